//! Whether a round has to look at what control verbs have left: verbs to complete, events to report.
//!
//! They are under a lock that most rounds need not take.
//!
//! ```text
//! control verb        lock; write; unlock; owes.set(); turn (hold the combiner, or leave a mark)
//! holder              owes.is_set()? lock; take; owes.keep(what is left?); unlock
//! ```
//!
//! The race: the holder looks just before a verb sets it, and does not take the lock. The verb's turn comes afterwards: it
//! either takes a round itself, or leaves a mark, which the holder acquires before its next round. And the holder clears it
//! under the lock, so it has taken all that was written by verbs that had set it before.

use verbs_core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Owes(AtomicBool);

impl Owes {
    /// The next round looks. After the control state was written, and before the turn that this is a reason for.
    pub(crate) fn set(&self) {
        self.0.store(true, Release);
    }

    /// For the holder: whether to look.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Acquire)
    }

    /// For the holder, under the lock of the control state: whether anything is left there.
    pub(crate) fn keep(&self, is_left: bool) {
        self.0.store(is_left, Release);
    }
}

#[cfg(all(test, verbs_loom))]
mod models {
    use loom::model;
    use loom::thread;
    use verbs_core::combiner::Combiner;
    use verbs_core::sync::{Arc, Mutex};

    use super::*;

    #[derive(Default)]
    struct Worker {
        combiner: Combiner,
        owes: Owes,
        /// Verbs that wait, and those that are complete.
        verbs: Mutex<(Vec<u32>, Vec<u32>)>,
    }

    impl Worker {
        fn verb(&self, number: u32) {
            self.verbs.lock().0.push(number);
            self.owes.set();
            let mut held = self.combiner.hold();
            while let Some(holds) = held {
                self.round();
                held = holds.leave();
            }
        }

        fn round(&self) {
            if self.owes.is_set() {
                let (waiting, done) = &mut *self.verbs.lock();
                done.append(waiting);
                self.owes.keep(!waiting.is_empty());
            }
        }
    }

    /// Goal: every verb completes. Method: two threads with a verb each.
    #[test]
    fn loom_owes_no_verb_is_left() {
        model(|| {
            let worker = Arc::new(Worker::default());
            let other = Arc::clone(&worker);
            let thread = thread::spawn(move || other.verb(1));
            worker.verb(2);
            thread.join().expect("the other thread does not panic");
            let (waiting, done) = &*worker.verbs.lock();
            assert_eq!((waiting.len(), done.len()), (0, 2));
        });
    }
}
