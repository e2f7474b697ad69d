//! A model of the receive ring.

use loom::thread;

use super::*;

/// A producer fills a ring of two entries three times while the consumer takes: each arrives once, whole
/// and in order.
#[test]
fn loom_landing_spsc() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        const COUNT: u32 = 3;
        let ring = Arc::new(RecvRing::new(&Yard::default(), 2, 1).expect("a model has memory"));
        let producer = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            for at in 0..COUNT {
                while at.wrapping_sub(producer.consumer.head.load(Acquire)) == 2 {
                    thread::yield_now();
                }
                let piece = Piece {
                    addr: u64::from(at),
                    len_key: 7 << 32 | u64::from(at + 1),
                };
                producer.entries.publish_one(at, u64::from(at) + 10, piece);
            }
        });
        for expected in 0..COUNT {
            let waiting = loop {
                if let Some(waiting) = ring.next() {
                    break waiting;
                }
                thread::yield_now();
            };
            assert_eq!(waiting.wr_id(), u64::from(expected) + 10);
            assert_eq!(waiting.total(), u64::from(expected) + 1);
            assert_eq!(waiting.first().addr, u64::from(expected));
            waiting.consume();
        }
        thread.join().expect("the producer does not panic");
        assert!(ring.next().is_none());
    });
}

/// Three threads pass receives on in a ring of two entries: one posts and offers them, one takes them for riders,
/// and one reads them and unloads. Each is read whole before it is filled anew.
#[test]
fn loom_recv_berths() {
    const COUNT: u32 = 3;
    crate::models::model(1, || {
        let ring = Arc::new(RecvRing::new(&Yard::default(), 2, 1).expect("a model has memory"));
        let loaded = Arc::new(AtomicU32::new(0));
        let producer = Arc::clone(&ring);
        let posts = thread::spawn(move || {
            for at in 0..COUNT {
                while at.wrapping_sub(producer.freed()) >= 2 {
                    thread::yield_now();
                }
                let piece = Piece {
                    addr: u64::from(at),
                    len_key: 8 << 32,
                };
                producer.entries.publish_one(at, u64::from(at) + 10, piece);
                producer.offer(at, 8);
            }
        });
        let (consumer, told) = (Arc::clone(&ring), Arc::clone(&loaded));
        let rides = thread::spawn(move || {
            let mut known = berth::Known::default();
            for _ in 0..COUNT {
                let at = loop {
                    match consumer.berth(&mut known, 8) {
                        Some(at) => break at,
                        None => thread::yield_now(),
                    }
                };
                assert!(consumer.board(at));
                // As the entry of the completion queue does.
                told.store(at + 1, Release);
            }
        });
        for at in 0..COUNT {
            while loaded.load(Acquire) <= at {
                thread::yield_now();
            }
            let (wr_id, piece) = ring.entries.taken(at);
            assert_eq!((wr_id, piece.addr), (u64::from(at) + 10, u64::from(at)));
            ring.unloaded(at);
        }
        for thread in [posts, rides] {
            thread.join().expect("the thread does not panic");
        }
    });
}
