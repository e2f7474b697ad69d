//! Models of the slot and of the free list, named after the contract's rules.
//!
//! Each was tried with a defect put in: without the release fence in `occupy`, the dump shows a torn
//! record; with `publish` relaxed, the poller reads no result; without taking the cell back in
//! `poll`, loom reports the waker cell accessed twice; with `cancel` ignoring the generation, the
//! stale cancel hits; without the tag, the free list hands a slot out twice.
//!
//! Not seen: `occupy`'s last store without release. To loom 0.7, what a thread stores after a release fence is part of
//! what the fence publishes, and the meta is stored between the two.

use std::panic::Location;
use std::task::{Context, Poll, Wake, Waker};

use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

use super::{Claim, Meta, Published, Slab, Slot};
use crate::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
    fence,
};

type Value = u64;

fn meta(n: u32) -> Meta {
    Meta {
        verb: n,
        origin: n,
        target: u64::from(n),
        location: Location::caller(),
        since_ns: u64::from(n),
    }
}

fn put(mut claim: Claim<'_, Value>, value: Value) -> Published<Value> {
    claim.with_body(|body| *body = value);
    claim.publish()
}

/// Completes and wakes; says whether it was the one.
fn complete(slot: &Slot<Value>, generation: u32, value: Value) -> bool {
    let Some(claim) = slot.claim(generation) else {
        return false;
    };
    if let Published::Consumer(Some(waker)) = put(claim, value) {
        waker.wake();
    }
    true
}

#[test]
fn loom_k6_result_is_visible_to_the_poller() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let generation = slot.occupy(&meta(1), 0, false);
        let other = Arc::clone(&slot);
        let completer = thread::spawn(move || assert!(complete(&other, generation, 77)));
        let value = block_on(std::future::poll_fn(|cx| {
            let polled = slot.poll(cx);
            if polled.is_pending() {
                thread::yield_now();
            }
            polled
        }));
        assert_eq!(value, 77);
        completer.join().unwrap();
    });
}

#[test]
fn loom_k1_a_second_poll_replaces_the_waker_and_no_wake_is_lost() {
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, AcqRel);
        }
    }
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let generation = slot.occupy(&meta(1), 0, false);
        let other = Arc::clone(&slot);
        let completer = thread::spawn(move || assert!(complete(&other, generation, 5)));
        let [first, second] =
            std::array::from_fn(|_| std::sync::Arc::new(Count(AtomicU32::new(0))));
        let [a, b] = [
            Waker::from(first),
            Waker::from(std::sync::Arc::clone(&second)),
        ];
        let mut polled = slot.poll(&mut Context::from_waker(&a));
        if polled.is_pending() {
            polled = slot.poll(&mut Context::from_waker(&b));
        }
        completer.join().unwrap();
        match polled {
            Poll::Ready(value) => assert_eq!(value, 5),
            Poll::Pending => {
                assert!(second.0.load(Acquire) >= 1, "lost wake");
                assert_eq!(slot.poll(&mut Context::from_waker(&b)), Poll::Ready(5));
            }
        }
    });
}

#[test]
fn loom_k8_provider_and_removal_decide_once() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let generation = slot.occupy(&meta(1), 0, false);
        let won: Vec<_> = [1, 2]
            .map(|value| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || complete(&slot, generation, value))
            })
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        assert!(won[0] != won[1]);
        let winner = if won[0] { 1 } else { 2 };
        assert_eq!(
            slot.poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(winner)
        );
    });
}

#[test]
fn loom_k9_exactly_one_side_cleans_up_after_a_dropped_future() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let cleaned = Arc::new(AtomicU32::new(0));
        let generation = slot.occupy(&meta(1), 0, false);
        let _ = slot.poll(&mut Context::from_waker(Waker::noop()));
        let (other, count) = (Arc::clone(&slot), Arc::clone(&cleaned));
        let completer = thread::spawn(move || {
            let claim = other.claim(generation).expect("nobody else completes");
            if let Published::Orphan(body) = put(claim, 9) {
                assert_eq!(body, 9);
                count.fetch_add(1, AcqRel);
            }
        });
        if let Some(body) = slot.detach() {
            assert_eq!(body, 9);
            cleaned.fetch_add(1, AcqRel);
        }
        completer.join().unwrap();
        assert_eq!(cleaned.load(Acquire), 1);
        assert!(slot.inspect().is_none());
    });
}

#[test]
fn loom_k13_stale_cancel_and_late_completion_miss() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let generation = slot.occupy(&meta(1), 0, true);
        let other = Arc::clone(&slot);
        let canceller = thread::spawn(move || other.cancel(generation));
        let claim = slot.claim(generation).expect("nobody else completes");
        assert!(claim.by_routine());
        let _ = claim.into_body();
        let next = slot.occupy(&meta(2), 0, false);
        assert_ne!(generation, next);
        canceller.join().unwrap();
        assert!(!slot.cancelled(next), "a stale cancel hit the next request");
        assert!(
            slot.claim(generation).is_none(),
            "a late completion hit the next request"
        );
    });
}

#[test]
fn loom_k15_the_list_shows_no_mixture() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let generation = slot.occupy(&meta(1), 0, true);
        let other = Arc::clone(&slot);
        let reuser = thread::spawn(move || {
            let _ = other
                .claim(generation)
                .expect("nobody else completes")
                .into_body();
            other.occupy(&meta(2), 0, true);
        });
        if let Some(seen) = slot.inspect() {
            let n = u64::from(seen.meta.verb);
            assert!(
                seen.meta.target == n && seen.meta.since_ns == n,
                "torn: {seen:?}"
            );
            assert_eq!(u64::from(seen.generation), n - 1);
        }
        reuser.join().unwrap();
    });
}

#[test]
fn loom_k15_none_survives_the_removal_sweep() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let removed = Arc::new(AtomicU32::new(0));
        let (other, flag) = (Arc::clone(&slot), Arc::clone(&removed));
        let sweep = thread::spawn(move || {
            flag.store(1, Relaxed);
            fence(SeqCst);
            match other.inspect() {
                Some(seen) => complete(&other, seen.generation, 1),
                None => false,
            }
        });
        let generation = slot.occupy(&meta(1), 0, false);
        fence(SeqCst);
        let mine = removed.load(Relaxed) == 1 && complete(&slot, generation, 2);
        assert!(sweep.join().unwrap() != mine, "completed by exactly one");
    });
}

#[test]
fn loom_k2_the_free_list_hands_out_once() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        // One thread takes two and gives the first back; the other takes two at the same time.
        let slab = Arc::new(Slab::<Value>::new(4));
        let owners: Arc<[AtomicU32; 4]> = Arc::new(std::array::from_fn(|_| AtomicU32::new(0)));
        let own = |owners: &[AtomicU32; 4], index: u32| {
            assert_eq!(
                owners[index as usize].fetch_add(1, AcqRel),
                0,
                "handed out twice"
            );
        };
        let (other, theirs) = (Arc::clone(&slab), Arc::clone(&owners));
        let thread = thread::spawn(move || {
            let Some(first) = other.pop() else { return };
            own(&theirs, first);
            if let Some(second) = other.pop() {
                own(&theirs, second);
            }
            theirs[first as usize].fetch_sub(1, AcqRel);
            other.push(first, first);
        });
        for _ in 0..2 {
            if let Some(index) = slab.pop() {
                own(&owners, index);
            }
        }
        thread.join().unwrap();
    });
}

#[test]
fn loom_k15_what_is_listed_is_whole() {
    loom::model(|| {
        let slot = Arc::new(Slot::<Value>::default());
        let other = Arc::clone(&slot);
        let issues = thread::spawn(move || other.occupy(&meta(7), 0, false));
        if let Some(seen) = slot.inspect() {
            let meta = seen.meta;
            assert_eq!((meta.verb, meta.origin, meta.since_ns), (7, 7, 7));
            assert_eq!(meta.target, 7);
        }
        issues.join().unwrap();
        assert!(slot.inspect().is_some());
    });
}
