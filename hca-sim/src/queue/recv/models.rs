//! A model of the receive ring.

use loom::thread;
use verbs_core::sync::Arc;

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

/// Receives that pass from who posts them to a sender's riders to who unloads them, in a ring of two entries, so that
/// one is used again. Two threads each, as three that wait for each other are too many branches.
struct Berths {
    ring: RecvRing,
    loaded: AtomicU32,
}

impl Berths {
    const COUNT: u32 = 3;

    fn new() -> Arc<Self> {
        Arc::new(Self {
            ring: RecvRing::new(&Yard::default(), 2, 1).expect("a model has memory"),
            loaded: AtomicU32::new(0),
        })
    }

    fn post(&self, at: u32) {
        while at.wrapping_sub(self.ring.freed()) >= 2 {
            thread::yield_now();
        }
        let piece = Piece {
            addr: u64::from(at),
            len_key: 8 << 32,
        };
        self.ring.entries.publish_one(at, u64::from(at) + 10, piece);
        self.ring.offer(at, 8);
    }

    fn ride(&self, known: &mut berth::Known) {
        let at = loop {
            match self.ring.berth(known, 8) {
                Some(at) => break at,
                None => thread::yield_now(),
            }
        };
        assert!(self.ring.board(at));
        // As the entry of the completion queue does.
        self.loaded.store(at + 1, Release);
    }

    fn unload(&self, at: u32) {
        while self.loaded.load(Acquire) <= at {
            thread::yield_now();
        }
        let (wr_id, piece) = self.ring.entries.taken(at);
        assert_eq!((wr_id, piece.addr), (u64::from(at) + 10, u64::from(at)));
        self.ring.unloaded(at);
    }
}

/// Who unloads is another thread than who posts: an entry is read whole before it is filled again.
#[test]
fn loom_recv_berths_unloaded() {
    crate::qp::models::model(2, || {
        let berths = Berths::new();
        let both = Arc::clone(&berths);
        let thread = thread::spawn(move || {
            let mut known = berth::Known::default();
            for at in 0..Berths::COUNT {
                both.post(at);
                both.ride(&mut known);
            }
        });
        (0..Berths::COUNT).for_each(|at| berths.unload(at));
        thread.join().expect("the thread does not panic");
    });
}

/// Who rides is another thread than who posts and unloads: what is offered is there whole.
#[test]
fn loom_recv_berths_offered() {
    crate::qp::models::model(2, || {
        let berths = Berths::new();
        let rider = Arc::clone(&berths);
        let thread = thread::spawn(move || {
            let mut known = berth::Known::default();
            (0..Berths::COUNT).for_each(|_| rider.ride(&mut known));
        });
        (0..2).for_each(|at| berths.post(at));
        berths.unload(0);
        berths.post(2);
        (1..Berths::COUNT).for_each(|at| berths.unload(at));
        thread.join().expect("the thread does not panic");
    });
}

/// Who rides and unloads is another thread than who posts: a receive is there whole when it is offered.
#[test]
fn loom_recv_berths_taken() {
    crate::qp::models::model(2, || {
        let berths = Berths::new();
        let poster = Arc::clone(&berths);
        let thread = thread::spawn(move || {
            (0..Berths::COUNT).for_each(|at| poster.post(at));
        });
        let mut known = berth::Known::default();
        for at in 0..Berths::COUNT {
            berths.ride(&mut known);
            berths.unload(at);
        }
        thread.join().expect("the thread does not panic");
    });
}
