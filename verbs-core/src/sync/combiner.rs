//! One thread at a time does the work; the others leave a mark and go.
//!
//! A thread that has a reason enters. The first one *holds* the combiner and does the work. A thread that enters in the
//! meantime only leaves a mark, and the holder goes round once more for all marks together. So no thread waits, and
//! no reason is lost.
//!
//! ```text
//! 0 (free) --enter--> 1 (held) --enter--> 2.. (held, marked) --again--> 1 (true)
//!                     1 (held) --again--> 0 (false)
//! ```
//!
//! Handlers are called so, one call after the other (K14), and ports and queue pairs of providers are driven so.

use std::mem::ManuallyDrop;

use crate::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Combiner {
    /// 0: free. Otherwise 1 and the marks.
    turns: AtomicU32,
}

/// The right to do the work, given back by [`Held::leave`] or [`Held::release`].
///
/// Dropping it gives it back as well: work that panics, in a link of the user's for instance, does not close
/// the combiner for ever. Marks of other threads then wait for the next thread that enters.
#[derive(Debug)]
#[must_use = "the combiner is held until it is left"]
pub struct Held<'c>(&'c Combiner);

impl Combiner {
    /// Enters with a reason. `true`: the caller holds the combiner, and calls [`Combiner::again`] after each round.
    /// `false`: the holder does the work.
    #[must_use]
    #[inline]
    pub fn enter(&self) -> bool {
        // AcqRel also when only a mark is left: the holder sees what this thread did before.
        self.turns.fetch_add(1, AcqRel) == 0
    }

    /// For the holder, after a round. `true`: a thread has left a mark, go round once more. `false`: the combiner is
    /// free.
    #[must_use]
    #[inline]
    pub fn again(&self) -> bool {
        let left = self.turns.compare_exchange(1, 0, AcqRel, Acquire);
        if left.is_err() {
            // Only the holder takes marks away.
            self.turns.swap(1, AcqRel);
        }
        left.is_err()
    }

    /// As [`Combiner::enter`], as a value that gives the combiner back when the work panics.
    #[inline]
    pub fn hold(&self) -> Option<Held<'_>> {
        self.enter().then(|| Held(self))
    }

    /// Holds it if it is free, and leaves no mark otherwise.
    #[inline]
    pub fn try_hold(&self) -> Option<Held<'_>> {
        let free = self.turns.compare_exchange(0, 1, AcqRel, Acquire).is_ok();
        free.then(|| Held(self))
    }
}

impl<'c> Held<'c> {
    /// Gives the combiner back; whether a thread has left a mark since it was held or left in vain last.
    #[inline]
    pub fn release(self) -> bool {
        ManuallyDrop::new(self).0.turns.swap(0, AcqRel) != 1
    }

    /// As [`Combiner::again`]: `Some`: a thread has left a mark, go round once more.
    #[inline]
    pub fn leave(self) -> Option<Held<'c>> {
        let held = ManuallyDrop::new(self);
        held.0.again().then(|| ManuallyDrop::into_inner(held))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.turns.swap(0, AcqRel);
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_holder_goes_round_again_for_those_who_came() {
        let combiner = Combiner::default();
        let held = combiner.hold().expect("no thread holds it");
        assert!(combiner.hold().is_none());
        assert!(combiner.try_hold().is_none(), "and leaves no mark");
        let held = held.leave().expect("one came");
        assert!(held.leave().is_none());
        assert!(combiner.try_hold().expect("free").leave().is_none());
    }

    #[test]
    fn work_that_panics_leaves_it_open() {
        let combiner = Combiner::default();
        let work = || {
            let _held = combiner.hold().expect("no thread holds it");
            assert!(combiner.hold().is_none(), "a mark of another thread");
            panic!("as a link of the user's may");
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        let held = combiner.try_hold().expect("free");
        assert!(held.leave().is_none());
    }
}

#[cfg(all(test, verbs_loom))]
mod models {
    use loom::model;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct Work {
        combiner: Combiner,
        /// Reasons, one for each thread. Relaxed: the combiner must carry them over.
        reasons: [AtomicBool; 3],
        inside: AtomicBool,
        done: AtomicU32,
    }

    impl Work {
        fn round(&self) {
            assert!(!self.inside.swap(true, Relaxed), "two hold the combiner");
            for reason in &self.reasons {
                // Loads and stores, so that only what the combiner orders can be right.
                if reason.load(Relaxed) {
                    reason.store(false, Relaxed);
                    self.done.store(self.done.load(Relaxed) + 1, Relaxed);
                }
            }
            self.inside.store(false, Relaxed);
        }

        fn serve(&self) {
            if self.combiner.enter() {
                self.round();
                while self.combiner.again() {
                    self.round();
                }
            }
        }
    }

    fn no_reason_is_lost(serve: fn(&Work)) {
        model(move || among(false, serve));
    }

    /// Two threads with a reason each, and the caller with a third one if it `joins` them.
    fn among(joins: bool, serve: fn(&Work)) {
        let work = Arc::new(Work::default());
        let threads = [0, 1].map(|number| {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                work.reasons[number].store(true, Relaxed);
                serve(&work);
            })
        });
        if joins {
            work.reasons[2].store(true, Relaxed);
            serve(&work);
        }
        for thread in threads {
            thread.join().expect("a thread of the model panicked");
        }
        assert_eq!(work.done.load(Relaxed), 2 + u32::from(joins));
    }

    /// Goal: leaving only when there is no mark loses no reason. Method: two threads with one each.
    #[test]
    fn loom_combiner_leave() {
        no_reason_is_lost(|work| {
            let mut held = work.combiner.hold();
            while let Some(holds) = held {
                work.round();
                held = holds.leave();
            }
        });
    }

    /// Goal: the holder sees the reasons of all threads whose marks it takes away, also of those that came after the
    /// one that kept it from leaving. Tried with `again` taking marks away without acquire.
    #[test]
    fn loom_combiner_two_marks() {
        model(|| among(true, Work::serve));
    }

    /// Goal: calls of a handler do not overlap, and no event is lost (K14). Tried with `again` storing 0 without
    /// looking: the event of the other thread is lost.
    #[test]
    fn loom_k14_calls_do_not_overlap_and_no_event_is_lost() {
        no_reason_is_lost(Work::serve);
    }

    /// Goal: releasing it whatever marks there are and entering again, as the driver does, loses none either.
    #[test]
    fn loom_combiner_release() {
        no_reason_is_lost(|work| {
            while let Some(held) = work.combiner.hold() {
                work.round();
                if !held.release() {
                    return;
                }
            }
        });
    }

    /// Goal: a thread that tries and finds it held leaves no mark; one that finds it free sees what was done.
    #[test]
    fn loom_combiner_try() {
        no_reason_is_lost(|work| {
            if let Some(held) = work.combiner.try_hold() {
                work.round();
                if !held.release() {
                    return;
                }
            }
            while let Some(held) = work.combiner.hold() {
                work.round();
                if !held.release() {
                    return;
                }
            }
        });
    }
}
