//! The machine's monotonic clock.
//!
//! This is the only file of the crate that reads it, by a call of [`crate::sys`], or lets a thread wait for it.

use verbs_core::sync::thread;

use crate::sys::monotonic_nanos;
use crate::time::Instant;

/// The machine's monotonic clock, counted from when this value was made.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// What the system's clock showed then, in nanoseconds.
    start: u64,
}

impl Default for WallClock {
    fn default() -> Self {
        Self {
            start: monotonic_nanos(),
        }
    }
}

impl WallClock {
    /// The time.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(monotonic_nanos().saturating_sub(self.start))
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
