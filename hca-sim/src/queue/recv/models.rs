//! A model of the receive ring.

use loom::thread;
use verbs_core::sync::Arc;

use super::*;

/// A producer fills a ring of two entries three times while the consumer takes: each arrives once, whole
/// and in order.
#[test]
fn loom_recv_ring_spsc() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        const COUNT: u32 = 3;
        let ring =
            Arc::new(RecvRing::new(&SlabAlloc::default(), 2, 1).expect("a model has memory"));
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

/// Receives that pass from the poster to a sender of inline CQEs to the thread that scatters them, in a ring of two
/// entries, so that one is used again. Two threads in each model: three that wait for each other have too many
/// branches.
struct InlineReceives {
    ring: RecvRing,
    loaded: AtomicU32,
}

impl InlineReceives {
    const COUNT: u32 = 3;

    fn new() -> Arc<Self> {
        Arc::new(Self {
            ring: RecvRing::new(&SlabAlloc::default(), 2, 1).expect("a model has memory"),
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

    fn send(&self, known: &mut inline_credits::InlineCredits) {
        let at = loop {
            match self.ring.inline_credit(known, 8) {
                Some(at) => break at,
                None => thread::yield_now(),
            }
        };
        assert!(self.ring.take_inline_credit(at));
        // As the entry of the completion queue does.
        self.loaded.store(at + 1, Release);
    }

    fn scatter(&self, at: u32) {
        while self.loaded.load(Acquire) <= at {
            thread::yield_now();
        }
        let (wr_id, piece) = self.ring.entries.taken(at);
        assert_eq!((wr_id, piece.addr), (u64::from(at) + 10, u64::from(at)));
        self.ring.scattered(at);
    }
}

/// A thread other than the poster scatters: an entry is read whole before it is filled again.
#[test]
fn loom_recv_inline_credits_scattered() {
    crate::qp::models::model(2, || {
        let receives = InlineReceives::new();
        let both = Arc::clone(&receives);
        let thread = thread::spawn(move || {
            let mut known = inline_credits::InlineCredits::default();
            for at in 0..InlineReceives::COUNT {
                both.post(at);
                both.send(&mut known);
            }
        });
        (0..InlineReceives::COUNT).for_each(|at| receives.scatter(at));
        thread.join().expect("the thread does not panic");
    });
}

/// A thread other than the one that posts and scatters sends inline CQEs: an offered receive is complete.
#[test]
fn loom_recv_inline_credits_offered() {
    crate::qp::models::model(2, || {
        let receives = InlineReceives::new();
        let sender = Arc::clone(&receives);
        let thread = thread::spawn(move || {
            let mut known = inline_credits::InlineCredits::default();
            (0..InlineReceives::COUNT).for_each(|_| sender.send(&mut known));
        });
        (0..2).for_each(|at| receives.post(at));
        receives.scatter(0);
        receives.post(2);
        (1..InlineReceives::COUNT).for_each(|at| receives.scatter(at));
        thread.join().expect("the thread does not panic");
    });
}

/// One thread sends inline CQEs and scatters, another posts: a receive is complete when it is offered.
#[test]
fn loom_recv_inline_credits_taken() {
    crate::qp::models::model(2, || {
        let receives = InlineReceives::new();
        let poster = Arc::clone(&receives);
        let thread = thread::spawn(move || {
            (0..InlineReceives::COUNT).for_each(|at| poster.post(at));
        });
        let mut known = inline_credits::InlineCredits::default();
        for at in 0..InlineReceives::COUNT {
            receives.send(&mut known);
            receives.scatter(at);
        }
        thread.join().expect("the thread does not panic");
    });
}
