//! How an end waits: it polls, lets other threads run, and gives up after a long silence.

use std::time::{Duration, Instant};

use verbs_core::sync::{spin_loop, thread};

use super::error::PerfError;

/// Polls that find nothing before another thread may have the processor: the peer may need it.
const SPINS: u32 = 64;

/// A peer that is alive answers within its retries; after this much nothing, it has gone.
const SILENCE: Duration = Duration::from_secs(10);

pub(super) struct Pace {
    spins: u32,
    last: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            spins: 0,
            last: Instant::now(),
        }
    }

    /// Something has come.
    pub(super) fn moved(&mut self) {
        if self.spins != 0 {
            *self = Self::new();
        }
    }

    /// Nothing has. Whether some time has passed, so that other things are worth a look.
    ///
    /// # Errors
    /// [`PerfError::Silent`], after a long time.
    pub(super) fn idle(&mut self, done: u64, of: u64) -> Result<bool, PerfError> {
        if self.spins == 0 {
            self.last = Instant::now();
        }
        self.spins = self.spins.wrapping_add(1).max(1);
        if !self.spins.is_multiple_of(SPINS) {
            spin_loop();
            return Ok(false);
        }
        thread::yield_now();
        if self.last.elapsed() > SILENCE {
            let seconds = SILENCE.as_secs();
            return Err(PerfError::Silent { seconds, done, of });
        }
        Ok(true)
    }
}
