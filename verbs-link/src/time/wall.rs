//! The machine's monotonic clock.
//!
//! This is the only file of the crate that reads it or lets a thread wait for it.

use verbs_core::sync::thread;

use crate::time::Instant;

/// The machine's monotonic clock, counted from when this value was made.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: std::time::Instant,
}

impl Default for WallClock {
    fn default() -> Self {
        Self {
            start: std::time::Instant::now(),
        }
    }
}

impl WallClock {
    /// The time.
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    /// Parks the thread until `deadline`, or until it is unparked. May return early.
    pub(crate) fn park_until(&self, deadline: Option<Instant>) {
        match deadline {
            None => thread::park(),
            // Under loom no time passes; only an unpark ends the wait.
            #[cfg(verbs_loom)]
            Some(_) => thread::park(),
            #[cfg(not(verbs_loom))]
            Some(deadline) => thread::park_timeout(deadline.since(self.now())),
        }
    }
}
