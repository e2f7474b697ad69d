//! The engine's call at the deadline of a queue pair's machine: whether it is still to come.
//!
//! The deadline moves with every packet, and a call that is early finds nothing to do and asks for the next. So there is
//! one call at a time. If a deadline moves to an earlier time, its call is cancelled and another asked for; one that has
//! begun by then is ignored.
//!
//! ```text
//! holder              is_pending()? no, or too late: ask(), engine.at(deadline, token)
//! engine              called(token); turn (list, hold the combiner, or leave a mark)
//! ```
//!
//! Whether a call is to come is not told by the time: a round's time was read before, perhaps long before, and in the
//! meantime the engine may have called. It would wait for that call for ever.
//!
//! The race: the holder looks just before the engine says that it calls. The engine's turn comes afterwards, and with it
//! another round. Its list and its combiner order the two, so the word itself need not.

use verbs_core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The token of the last call that was asked for, an even number, and beside it whether that is still to come.
#[derive(Debug, Default)]
pub(crate) struct RoundTimer(AtomicU32);

const PENDING: u32 = 1;

impl RoundTimer {
    /// For the holder: whether the engine is yet to call.
    pub(super) fn is_pending(&self) -> bool {
        self.0.load(Relaxed) & PENDING != 0
    }

    /// For the holder: the token of a call that it asks the engine for. It is never 0.
    pub(super) fn ask(&self) -> u64 {
        let next = (self.0.load(Relaxed) & !PENDING).wrapping_add(2).max(2);
        self.0.store(next | PENDING, Relaxed);
        u64::from(next)
    }

    /// The engine calls. `false`: another call was asked for since. To be followed by a turn.
    pub(super) fn called(&self, token: u64) -> bool {
        let last = u32::try_from(token);
        let called = |last| {
            let pending = last | PENDING;
            self.0.compare_exchange(pending, last, Relaxed, Relaxed)
        };
        last.is_ok_and(|last| called(last).is_ok())
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_pending_until_the_engine_calls_whatever_the_time_is() {
        let timer = RoundTimer::default();
        assert!(!timer.is_pending());
        let token = timer.ask();
        assert!(token != 0 && timer.is_pending());
        assert!(timer.called(token));
        assert!(!timer.is_pending() && !timer.called(token));
    }

    #[test]
    fn the_call_that_was_asked_for_last_counts() {
        let timer = RoundTimer::default();
        let late = timer.ask();
        let early = timer.ask();
        assert!(!timer.called(late) && timer.is_pending());
        assert!(timer.called(early) && !timer.is_pending());
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
        timer: RoundTimer,
        /// The tokens of calls that the engine was asked for.
        asked: Mutex<Vec<u64>>,
    }

    impl Worker {
        fn turn(&self) {
            let mut held = self.combiner.hold();
            while let Some(holds) = held {
                if !self.timer.is_pending() {
                    self.asked.lock().push(self.timer.ask());
                }
                held = holds.leave();
            }
        }
    }

    /// Goal: where a round believes that the engine will call, it will. Method: the engine calls while another thread takes
    /// a turn. Tried with the turn before the call is noted: no call is left, and the last round waits for one.
    #[test]
    fn loom_round_timer_is_asked_for_again() {
        model(|| {
            let worker = Arc::new(Worker::default());
            let first = worker.timer.ask();
            let engine = Arc::clone(&worker);
            let thread = thread::spawn(move || {
                assert!(engine.timer.called(first));
                engine.turn();
            });
            worker.turn();
            thread.join().expect("the engine does not panic");
            assert!(worker.timer.is_pending());
            assert_eq!(worker.asked.lock().len(), 1);
        });
    }
}
