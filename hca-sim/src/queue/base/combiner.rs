//! One thread at a time does the work; others leave a mark and go.
//!
//! Whoever has a reason enters. The first one *holds* the combiner and does the work; who comes
//! meanwhile is counted, and the holder goes round again before it lets go. So nobody waits, and no
//! reason is lost.

use std::mem::ManuallyDrop;

use verbs_core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Combiner {
    /// 0: nobody holds it. Otherwise 1 and those who came meanwhile.
    turns: AtomicU32,
}

/// The right to do the work; given back by [`Held::leave`] or [`Held::release`].
///
/// Dropping it gives it back as well: work that panics, in a link of the user's for instance, does not close
/// the combiner for ever. Reasons that others left wait then for the next one who comes.
#[derive(Debug)]
#[must_use = "the combiner is held until it is left"]
pub(crate) struct Held<'t> {
    combiner: &'t Combiner,
    seen: u32,
}

impl Combiner {
    /// Enters with a reason: `None` if somebody else will see to it.
    pub(crate) fn enter(&self) -> Option<Held<'_>> {
        (self.turns.fetch_add(1, AcqRel) == 0).then(|| self.held())
    }

    /// Enters if nobody is inside, and leaves no mark otherwise.
    pub(crate) fn try_enter(&self) -> Option<Held<'_>> {
        let free = self.turns.compare_exchange(0, 1, AcqRel, Acquire).is_ok();
        free.then(|| self.held())
    }

    /// Only for the thread that has entered: dropping it opens the combiner.
    fn held(&self) -> Held<'_> {
        Held {
            combiner: self,
            seen: 1,
        }
    }
}

impl<'t> Held<'t> {
    /// Leaves whoever came meanwhile; whether somebody did since it was entered.
    pub(crate) fn release(self) -> bool {
        let held = ManuallyDrop::new(self);
        held.combiner.turns.swap(0, AcqRel) != held.seen
    }

    /// Leaves; gives the combiner back if somebody came since it was entered or left in vain last.
    pub(crate) fn leave(self) -> Option<Held<'t>> {
        let mut held = ManuallyDrop::new(self);
        let turns = &held.combiner.turns;
        match turns.compare_exchange(held.seen, 0, AcqRel, Acquire) {
            Ok(_) => None,
            Err(seen) => {
                held.seen = seen;
                Some(ManuallyDrop::into_inner(held))
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.combiner.turns.swap(0, AcqRel);
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_holder_goes_round_again_for_those_who_came() {
        let combiner = Combiner::default();
        let held = combiner.enter().expect("nobody is inside");
        assert!(combiner.enter().is_none());
        assert!(combiner.try_enter().is_none(), "and leaves no mark");
        let held = held.leave().expect("one came");
        assert!(held.leave().is_none());
        assert!(combiner.try_enter().expect("free").leave().is_none());
    }

    #[test]
    fn work_that_panics_leaves_it_open() {
        let combiner = Combiner::default();
        let work = || {
            let _held = combiner.enter().expect("nobody is inside");
            assert!(combiner.enter().is_none(), "a reason of somebody else");
            panic!("as a link of the user's may");
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        let held = combiner.try_enter().expect("free");
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
        reasons: [AtomicBool; 2],
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
    }

    fn no_reason_is_lost(serve: fn(&Work)) {
        model(move || {
            let work = Arc::new(Work::default());
            let threads = [0, 1].map(|number| {
                let work = Arc::clone(&work);
                thread::spawn(move || {
                    work.reasons[number].store(true, Relaxed);
                    serve(&work);
                })
            });
            for thread in threads {
                thread.join().expect("a thread of the model panicked");
            }
            assert_eq!(work.done.load(Relaxed), 2);
        });
    }

    /// Goal: leaving only when nobody came loses no reason. Method: two threads with one each.
    #[test]
    fn loom_turnstile_leave() {
        no_reason_is_lost(|work| {
            let mut held = work.combiner.enter();
            while let Some(holds) = held {
                work.round();
                held = holds.leave();
            }
        });
    }

    /// Goal: letting go whoever came and entering again, as the driver does, loses none either.
    #[test]
    fn loom_turnstile_release() {
        no_reason_is_lost(|work| {
            while let Some(held) = work.combiner.enter() {
                work.round();
                if !held.release() {
                    return;
                }
            }
        });
    }

    /// Goal: who tries and finds it held leaves no mark, and who finds it free sees what was done.
    #[test]
    fn loom_turnstile_try() {
        no_reason_is_lost(|work| {
            if let Some(held) = work.combiner.try_enter() {
                work.round();
                if !held.release() {
                    return;
                }
            }
            while let Some(held) = work.combiner.enter() {
                work.round();
                if !held.release() {
                    return;
                }
            }
        });
    }
}
