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
