//! When the engine's thread leaves packets to consumers that poll.
//!
//! A consumer that polls an empty completion queue receives packets itself, and the thread, which would only wake up to
//! find nothing, sleeps. That costs time when the consumer stops polling without notice, to compute or to watch its
//! memory for a WRITE: packets wait until the thread looks again. So the thread looks [`LEFT`] after the last poll, and
//! if it finds something that has waited, pollers are not *trusted* for a time: the thread waits for packets as if no
//! consumer polled. The time doubles whenever trust is lost again soon after it was restored.
//!
//! A thread that drives when the engine's thread wakes up takes in what that has found: it is told, and looks again. So the
//! engine's thread rests for [`OCCUPIED`]; it would find the same packets again at once, and again, until they are taken.
//!
//! A consumer may also sleep at the port ([`Pollers::fall_asleep`]): it waits for packets itself, in the place of the
//! engine's thread, which would only wake up to wake it. Between two sleeps it counts as a poller; while it sleeps, the
//! engine's thread *rests*, and the consumer wakes it afterwards, so that it looks [`LEFT`] later whether that consumer
//! came back.

use std::time::Duration;

use verbs_core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::clock::Instant;

/// How long the thread leaves packets to a poller, counted from the last poll. It is the longest that a packet or an
/// answer waits when a consumer stops polling, and the thread wakes up as often while one polls.
const LEFT: Duration = Duration::from_millis(1);
/// How long the thread leaves packets to one that was driving when it woke up.
const OCCUPIED: Duration = Duration::from_micros(50);
/// How long pollers are not trusted after a packet has waited.
const DISTRUST_MIN: Duration = Duration::from_millis(2);
/// The maximum that this time doubles to.
const DISTRUST_MAX: Duration = Duration::from_millis(256);
/// Trust that lasted so many times as long as the distrust before it was justified: the next distrust is short again.
const JUSTIFIED: u64 = 4;

/// Of one port. Independent words, each a hint: an inconsistent view costs one wake-up or [`LEFT`], never a packet.
#[derive(Debug, Default)]
pub(super) struct Pollers {
    /// Until when packets are left to the consumer that polled last, in nanoseconds of the engine's clock; 0: they are
    /// not.
    left_until: AtomicU64,
    /// Until when packets are left to the thread that was driving last.
    occupied_until: AtomicU64,
    /// The time until which pollers are not trusted.
    distrusted_until: AtomicU64,
    /// The length of the last distrust.
    distrusted_for: AtomicU64,
    /// [`ASLEEP`] while a consumer sleeps at the port, and [`RESTS`] beside it if the engine's thread rests until that
    /// consumer wakes it. One word, so that the thread either rests before the consumer is awake, which then sees it, or
    /// finds it awake.
    sleeper: AtomicU32,
    /// Until when a consumer that has slept at the port is expected back.
    back_until: AtomicU64,
}

const ASLEEP: u32 = 1;
const RESTS: u32 = 2;

impl Pollers {
    /// A consumer polls all the time. Returns whether packets are left to it.
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

    /// The engine's thread has found another one that drives, and looks again when it has been told.
    pub(super) fn occupied(&self, now: Instant) {
        let until = (now + OCCUPIED).as_nanos();
        self.occupied_until.store(until, Relaxed);
    }

    /// The engine's thread is about to wait: until when it need not look for packets; in the past if it has to.
    pub(super) fn rests_until(&self, now: Instant) -> Instant {
        let occupied = Instant::from_nanos(self.occupied_until.load(Relaxed));
        let until = self.left_until().max(occupied);
        if until > now {
            return until;
        }
        if self.any_asleep() {
            let rests = |word| (word & ASLEEP != 0).then_some(word | RESTS);
            if self.sleeper.fetch_update(AcqRel, Acquire, rests).is_ok() {
                return Instant::NEVER;
            }
        }
        until
    }

    /// A consumer is about to sleep at the port; call [`woke`](Self::woke) afterwards. `false`: it may not, because
    /// another one does, or consumers are not trusted now.
    pub(super) fn fall_asleep(&self, now: Instant) -> bool {
        now.as_nanos() >= self.distrusted_until.load(Relaxed)
            && self
                .sleeper
                .compare_exchange(0, ASLEEP, AcqRel, Relaxed)
                .is_ok()
    }

    /// The consumer that slept at the port is awake. Returns whether the engine's thread has to be woken.
    pub(super) fn woke(&self, now: Instant) -> bool {
        let until = (now + LEFT).as_nanos();
        self.left_until.store(until, Relaxed);
        self.back_until.store(until, Relaxed);
        self.sleeper.swap(0, AcqRel) & RESTS != 0
    }

    /// Whether a consumer sleeps at the port.
    pub(super) fn any_asleep(&self) -> bool {
        self.sleeper.load(Acquire) != 0
    }

    /// Whether a consumer sleeps at the port, or is expected back there.
    pub(super) fn expects(&self, now: impl FnOnce() -> Instant) -> bool {
        let back = self.back_until.load(Relaxed);
        self.any_asleep() || back != 0 && now().as_nanos() < back
    }

    /// No packets are left to a poller from now on. Returns whether some were.
    pub(super) fn stop(&self) -> bool {
        // A look first: most callers have not polled, and a swap takes the cache line from those that do.
        self.left_until.load(Relaxed) != 0 && self.left_until.swap(0, AcqRel) != 0
    }

    /// A packet or an answer has waited for a consumer that no longer polls.
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
    fn the_thread_rests_while_another_one_drives() {
        let pollers = Pollers::default();
        pollers.occupied(at(10));
        assert_eq!(pollers.rests_until(at(0)), at(60));
        assert_eq!(
            pollers.left_until(),
            at(0),
            "no poller is answerable for it"
        );
        assert!(!pollers.stop(), "nobody has polled");
        assert!(pollers.polled(at(20)));
        assert_eq!(pollers.rests_until(at(50)), at(1_020));
        pollers.occupied(at(1_000));
        assert!(pollers.stop());
        assert_eq!(pollers.rests_until(at(50)), at(1_050));
    }

    #[test]
    fn the_thread_rests_while_a_consumer_sleeps_and_looks_a_while_after_it_woke() {
        let pollers = Pollers::default();
        assert!(!pollers.expects(|| at(10)));
        assert!(pollers.fall_asleep(at(10)));
        assert!(!pollers.fall_asleep(at(20)), "one at a time");
        assert!(pollers.expects(|| at(20)));
        assert!(!pollers.woke(at(30)), "the thread does not rest yet");
        assert_eq!(pollers.rests_until(at(40)), at(1_030));
        assert!(pollers.fall_asleep(at(50)));
        assert_eq!(pollers.rests_until(at(1_029)), at(1_030));
        assert_eq!(pollers.rests_until(at(1_030)), Instant::NEVER);
        assert!(pollers.woke(at(5_000)), "the thread rests");
        assert!(pollers.expects(|| at(5_999)));
        assert!(!pollers.expects(|| at(6_000)));
        assert_eq!(pollers.rests_until(at(5_000)), at(6_000));
        assert_eq!(
            pollers.rests_until(at(6_001)),
            at(6_000),
            "no consumer came back"
        );
    }

    #[test]
    fn a_consumer_that_did_not_come_back_may_not_sleep_at_the_port_for_a_while() {
        let pollers = Pollers::default();
        assert!(pollers.fall_asleep(at(1_000_000)));
        assert!(!pollers.woke(at(1_000_000)));
        assert!(pollers.stop());
        pollers.gone(at(1_001_000));
        assert!(!pollers.fall_asleep(at(1_002_900)));
        assert!(pollers.fall_asleep(at(1_003_000)));
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

#[cfg(all(test, verbs_loom))]
mod models {
    use loom::model;
    use loom::thread;
    use verbs_core::sync::Arc;

    use super::*;

    /// Goal: the engine's thread does not rest for ever where no consumer sleeps: the one that was asleep wakes it. Method: it
    /// is about to wait while a consumer wakes up, falls asleep and wakes up again. Tried with the rest noted by a load and a
    /// store: the thread rests for ever.
    #[test]
    fn loom_pollers_rest_and_sleep() {
        model(|| {
            let pollers = Arc::new(Pollers::default());
            // In the past of the time at which the thread looks, so that only a sleeper lets it rest.
            let then = Instant::from_nanos(1);
            assert!(pollers.fall_asleep(then));
            let engine = Arc::clone(&pollers);
            let thread = thread::spawn(move || {
                let late = then + LEFT + LEFT;
                engine.rests_until(late) == Instant::NEVER
            });
            let mut wakes = u32::from(pollers.woke(then));
            assert!(pollers.fall_asleep(then));
            wakes += u32::from(pollers.woke(then));
            let rests = thread.join().expect("the thread does not panic");
            assert_eq!(wakes, u32::from(rests));
            assert!(!pollers.any_asleep());
        });
    }
}
