//! How long a port waits for a neighbour that does not read.
//!
//! A port whose link has no room sends nothing, to no peer. So a neighbour whose ring is full may hold it for a moment,
//! as a process that is not running at the moment does, but not for ever: then packets to that neighbour are lost, as
//! on any network, until it reads again. What it reads gives it that moment again: one that reads as fast as a network of
//! 2 Gbit/s may hold the port all the time, and loses nothing.

use std::time::Duration;

use crate::time::Instant;

/// How long a neighbour may hold the port at once: a few time slices of a busy machine.
const HOLD_MAX: Duration = Duration::from_millis(20);

/// How long it may hold it at least, or it does not at all: to look again takes time, too.
const HOLD_MIN: Duration = Duration::from_millis(2);

/// What it has held comes back in this many times the time.
const RECOVERY: u32 = 10;

/// What it has held comes back in so many nanoseconds for each byte that it reads: 2 Gbit/s.
const NANOS_PER_BYTE: u64 = 4;

/// One neighbour's share: it holds the port at most [`HOLD_MAX`] at once, and a tenth of the time in the long run, beside
/// what it reads.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::joined) struct Patience {
    /// How much of [`HOLD_MAX`] was used.
    used: Duration,
    /// When that was.
    at: Instant,
    /// What it had read by then, in bytes.
    had_read: u64,
    /// Its ring has been full since.
    is_held: bool,
}

impl Patience {
    /// The ring is full; the neighbour has read so many bytes of it so far. Returns whether to wait for it.
    pub(in crate::joined) fn waits(&mut self, now: Instant, has_read: u64) -> bool {
        self.look(now, has_read);
        if self.is_held {
            return self.used < HOLD_MAX;
        }
        self.is_held = self.used + HOLD_MIN <= HOLD_MAX;
        self.is_held
    }

    /// Whether its ring was full at last.
    pub(in crate::joined) fn is_held(&self) -> bool {
        self.is_held
    }

    /// There is room again.
    pub(in crate::joined) fn has_room(&mut self, now: Instant, has_read: u64) {
        self.look(now, has_read);
        self.is_held = false;
    }

    /// What has been used by now. Nothing is saved up, however much was read.
    fn look(&mut self, now: Instant, has_read: u64) {
        let time = now.since(self.at);
        let (held, recovered) = match self.is_held {
            true => (time, Duration::ZERO),
            false => (Duration::ZERO, time / RECOVERY),
        };
        let read = has_read.saturating_sub(self.had_read);
        let read = Duration::from_nanos(read.saturating_mul(NANOS_PER_BYTE));
        let used = (self.used + held).saturating_sub(recovered + read);
        (self.used, self.at, self.had_read) = (used.min(HOLD_MAX), now, has_read);
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use std::ops::Range;

    use super::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn a_neighbour_holds_the_port_for_a_moment_only() {
        let mut patience = Patience::default();
        assert!(patience.waits(at(500_000), 0) && patience.waits(at(519_999), 0));
        assert!(!patience.waits(at(520_000), 0) && !patience.waits(at(900_000), 0));
        assert!(patience.is_held());
        patience.has_room(at(900_000), 0);
        // It has used everything, and gets back a tenth of the time.
        assert!(!patience.waits(at(900_001), 0) && !patience.waits(at(919_000), 0));
        assert!(patience.waits(at(950_000), 0) && patience.waits(at(954_000), 0));
        assert!(!patience.waits(at(956_000), 0));
        patience.has_room(at(956_000), 0);
        assert!(patience.waits(at(2_000_000), 0) && patience.waits(at(2_019_000), 0));
    }

    /// Goal: a neighbour that reads just enough to be waited for again holds the port a tenth of the time at most.
    #[test]
    fn a_neighbour_that_plays_with_it_gains_nothing() {
        let (mut patience, mut held) = (Patience::default(), 0);
        for micros in 0..1_000_000 {
            if patience.waits(at(1_000_000 + micros), 0) {
                held += 1;
            } else if patience.is_held() {
                patience.has_room(at(1_000_000 + micros), 0);
            }
        }
        assert!(held <= 20_000 + 100_000 + 1000, "{held} us of a second");
    }

    /// How long a neighbour is waited for, of a second in which its ring is always full, if it reads so many bytes in a
    /// microsecond; but for the time from `stops` on, in milliseconds.
    fn held_of_a_second(bytes: u64, stops: Range<u64>) -> u64 {
        let (mut patience, mut has_read, mut held) = (Patience::default(), 0, 0);
        for micros in 0..1_000_000 {
            if !stops.contains(&(micros / 1000)) {
                has_read += bytes;
            }
            if patience.waits(at(1_000_000 + micros), has_read) {
                held += 1;
            } else if patience.is_held() {
                patience.has_room(at(1_000_000 + micros), has_read);
            }
        }
        held
    }

    /// Goal: one that reads as fast as a network loses nothing, even if it has no processor for a while; one that reads
    /// more slowly is waited for in proportion.
    #[test]
    fn a_neighbour_that_reads_is_waited_for() {
        assert_eq!(held_of_a_second(250, 0..0), 1_000_000);
        assert_eq!(held_of_a_second(2500, 500..519), 1_000_000);
        let slow = held_of_a_second(25, 0..0);
        assert!((100_000..250_000).contains(&slow), "{slow} us of a second");
        let stopped = held_of_a_second(2500, 500..1000);
        assert!((519_000..600_000).contains(&stopped), "{stopped} us");
    }
}
