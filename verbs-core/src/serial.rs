//! Makes the calls of one handler come one after the other (K14).
//!
//! Whoever has an event enters. The first becomes the runner; later ones leave a mark, and the
//! runner goes round once more for all of them together, as they would have found the same queue.
//!
//! ```text
//! IDLE --enter--> RUNNING --enter--> MARKED --again--> RUNNING (true)
//! RUNNING --again--> IDLE (false)
//! ```

use crate::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const MARKED: u32 = 2;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Serial(AtomicU32);

impl Default for Serial {
    fn default() -> Self {
        Self(AtomicU32::new(IDLE))
    }
}

impl Serial {
    /// `true`: the caller is the runner and calls [`Serial::again`] after each round.
    #[must_use]
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.0.load(Acquire);
        loop {
            let next = if state == IDLE { RUNNING } else { MARKED };
            // AcqRel also when only a mark is left: the runner sees what the marker did before.
            match self.0.compare_exchange_weak(state, next, AcqRel, Acquire) {
                Ok(_) => return state == IDLE,
                Err(now) => state = now,
            }
        }
    }

    /// A round is done. `true`: there was an event meanwhile, go round once more.
    #[must_use]
    pub(crate) fn again(&self) -> bool {
        match self.0.compare_exchange(RUNNING, IDLE, AcqRel, Acquire) {
            Ok(_) => false,
            Err(_) => {
                // Only the runner leaves MARKED, so this is ours to do.
                self.0.swap(RUNNING, AcqRel);
                true
            }
        }
    }

    /// Whether somebody is the runner.
    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Acquire) != IDLE
    }
}

#[cfg(all(test, verbs_loom))]
mod loom_tests {
    //! Tried with `again` storing IDLE without looking: the event of the other thread is lost.

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct Shared {
        serial: Serial,
        events: AtomicU32,
        inside: AtomicBool,
        seen: AtomicU32,
    }

    fn event(shared: &Shared) {
        shared.events.fetch_add(1, Relaxed);
        if shared.serial.enter() {
            loop {
                assert!(!shared.inside.swap(true, Relaxed), "two handlers at once");
                shared.seen.store(shared.events.load(Relaxed), Relaxed);
                shared.inside.store(false, Relaxed);
                if !shared.serial.again() {
                    break;
                }
            }
        }
    }

    #[test]
    fn loom_k14_calls_do_not_overlap_and_no_event_is_lost() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || event(&other));
            event(&shared);
            thread.join().unwrap();
            assert_eq!(
                shared.seen.load(Relaxed),
                2,
                "the last round sees every event"
            );
        });
    }
}
