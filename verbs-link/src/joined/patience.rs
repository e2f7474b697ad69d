//! How long a port waits for a neighbour that does not read.
//!
//! A port whose link has no room sends nothing, to no peer. So a neighbour whose ring is full may hold it for a moment,
//! as a process that is not running at the moment does, but not for ever: then packets to that neighbour are lost, as
//! on any network, until it reads again.

use std::time::Duration;

use crate::time::Instant;

/// How long a neighbour may hold the port at once: a few time slices of a busy machine.
const HOLD_MAX: Duration = Duration::from_millis(20);

/// How long it may hold it at least, or it does not at all: to look again takes time, too.
const HOLD_MIN: Duration = Duration::from_millis(2);

/// What it has held comes back in this many times the time.
const RECOVERY: u32 = 10;

/// One neighbour's share: it holds the port at most [`HOLD_MAX`] at once, and a tenth of the time in the long run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    /// How much of [`HOLD_MAX`] was used.
    used: Duration,
    /// When that was.
    at: Instant,
    /// Since when its ring has been full.
    since: Option<Instant>,
}

impl Patience {
    /// The ring is full. Returns whether to wait for it.
    pub(super) fn waits(&mut self, now: Instant) -> bool {
        if let Some(since) = self.since {
            return self.used + now.since(since) < HOLD_MAX;
        }
        let recovered = now.since(self.at) / RECOVERY;
        let used = self.used.saturating_sub(recovered);
        let waits = used + HOLD_MIN <= HOLD_MAX;
        if waits {
            (self.used, self.since) = (used, Some(now));
        }
        waits
    }

    /// Whether its ring was full at last.
    pub(super) fn is_held(&self) -> bool {
        self.since.is_some()
    }

    /// There is room again.
    pub(super) fn has_room(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.used = (self.used + now.since(since)).min(HOLD_MAX);
            self.at = now;
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn a_neighbour_holds_the_port_for_a_moment_only() {
        let mut patience = Patience::default();
        assert!(patience.waits(at(500_000)) && patience.waits(at(519_999)));
        assert!(!patience.waits(at(520_000)) && !patience.waits(at(900_000)));
        assert!(patience.is_held());
        patience.has_room(at(900_000));
        // It has used everything, and gets back a tenth of the time.
        assert!(!patience.waits(at(900_001)) && !patience.waits(at(919_000)));
        assert!(patience.waits(at(950_000)) && patience.waits(at(954_000)));
        assert!(!patience.waits(at(956_000)));
        patience.has_room(at(956_000));
        assert!(patience.waits(at(2_000_000)) && patience.waits(at(2_019_000)));
    }

    /// Goal: a neighbour that reads just enough to be waited for again holds the port a tenth of the time at most.
    #[test]
    fn a_neighbour_that_plays_with_it_gains_nothing() {
        let (mut patience, mut held) = (Patience::default(), 0);
        for micros in 0..1_000_000 {
            if patience.waits(at(1_000_000 + micros)) {
                held += 1;
            } else if patience.is_held() {
                patience.has_room(at(1_000_000 + micros));
            }
        }
        assert!(held <= 20_000 + 100_000 + 1000, "{held} us of a second");
    }
}
