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
