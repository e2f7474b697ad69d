//! When the engine's thread leaves packets to consumers that poll.
//!
//! A consumer that polls an empty completion queue takes packets in itself, and the thread, which would only wake up
//! to find nothing, sleeps. That costs when the consumer stops polling without a word, to compute or to watch its
//! memory for a WRITE: packets lie until the thread looks again. So the thread looks [`LEFT`] after the last poll, and
//! if it finds something that has waited, pollers are not *trusted* for a time: the thread waits for packets as if
//! no consumer polled. The time doubles each time that trust is lost again soon after it was given back.

use std::time::Duration;

use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use crate::clock::Instant;

/// How long the thread leaves packets to a poller, counted from the last poll. It is the longest that a packet or an
/// answer waits when a consumer stops polling, and the thread wakes up as often while one polls.
const LEFT: Duration = Duration::from_millis(1);
/// How long pollers are not trusted after a packet has waited.
const DISTRUST_MIN: Duration = Duration::from_millis(2);
/// What that doubles up to.
const DISTRUST_MAX: Duration = Duration::from_millis(256);
/// Trust that lasted so many times as long as the distrust before it was justified: the next distrust is short again.
const JUSTIFIED: u64 = 4;

/// Of one port. Words of their own, each a hint: a torn picture costs one wake-up or [`LEFT`], never a packet.
#[derive(Debug, Default)]
pub(super) struct Pollers {
    /// Until when packets are left to the consumer that polled last, in nanoseconds of the engine's clock; 0: they are not.
    left_until: AtomicU64,
    /// Until when pollers are not trusted.
    distrusted_until: AtomicU64,
    /// How long that was the last time.
    distrusted_for: AtomicU64,
}

impl Pollers {
    /// A consumer polls all the time. Whether packets are left to it.
    pub(super) fn polled(&self, now: Instant) -> bool {
        if now.as_nanos() < self.distrusted_until.load(Relaxed) {
            return false;
        }
        self.left_until.store((now + LEFT).as_nanos(), Relaxed);
        true
    }

    /// Until when packets are left to the consumer that polled last; in the past if they are not.
    pub(super) fn left_until(&self) -> Instant {
        Instant::from_nanos(self.left_until.load(Relaxed))
    }

    /// No packets are left to a poller from now on. Whether some were.
    pub(super) fn stop(&self) -> bool {
        // A look first: most callers have not polled, and a swap takes the cache line from those that do.
        self.left_until.load(Relaxed) != 0 && self.left_until.swap(0, AcqRel) != 0
    }

    /// A packet or an answer has waited for a poller that has gone.
    pub(super) fn gone(&self, now: Instant) {
        let now = now.as_nanos();
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let last = self.distrusted_for.load(Relaxed);
        let trusted_for = now.saturating_sub(self.distrusted_until.load(Relaxed));
        let next = if trusted_for > last.saturating_mul(JUSTIFIED) {
            nanos(DISTRUST_MIN)
        } else {
            (last * 2).clamp(nanos(DISTRUST_MIN), nanos(DISTRUST_MAX))
        };
        self.distrusted_for.store(next, Relaxed);
        self.distrusted_until
            .store(now.saturating_add(next), Relaxed);
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn packets_are_left_to_a_poller_for_a_while_after_each_poll() {
        let pollers = Pollers::default();
        assert!(pollers.polled(at(10)));
        assert_eq!(pollers.left_until(), at(1_010));
        assert!(pollers.polled(at(400)));
        assert_eq!(pollers.left_until(), at(1_400));
        assert!(pollers.stop());
        assert_eq!(pollers.left_until(), at(0));
        assert!(!pollers.stop(), "it had stopped already");
    }

    #[test]
    fn a_poller_who_goes_again_and_again_is_trusted_ever_more_seldom() {
        let pollers = Pollers::default();
        let mut now = 1_000_000;
        let mut last = 0;
        let mut spells = Vec::new();
        for _ in 0..10 {
            assert!(pollers.polled(at(now)));
            pollers.gone(at(now + 500));
            let gone = now + 500;
            while !pollers.polled(at(now)) {
                now += 100;
            }
            spells.push((now - gone).div_ceil(1_000));
            assert!(spells[spells.len() - 1] >= last, "{spells:?}");
            last = spells[spells.len() - 1];
        }
        assert_eq!(spells[..3], [2, 4, 8]);
        assert_eq!(spells[8..], [256, 256], "no longer than that");
    }

    #[test]
    fn a_poller_who_is_away_once_in_a_long_time_is_trusted_again_soon() {
        let pollers = Pollers::default();
        for seconds in 1..5 {
            let now = seconds * 1_000_000;
            assert!(pollers.polled(at(now)));
            pollers.gone(at(now + 500));
            assert!(!pollers.polled(at(now + 2_400)));
            assert!(pollers.polled(at(now + 2_500)));
        }
    }
}
