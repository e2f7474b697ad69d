//! When the engine's thread leaves packets to consumers that poll.
//!
//! A consumer that polls an empty completion queue receives packets itself, and the thread, which would only wake up to
//! find nothing, sleeps. That costs time when the consumer stops polling without notice, to compute or to watch its
//! memory for a WRITE: packets wait until the thread looks again. So the thread looks a while after the last poll. The
//! while is short at first, [`LEFT_MIN`], as each look takes the processor from a thread, and grows to [`LEFT_MAX`] while
//! looks find that the consumer polls: packets never wait longer than a part, [`TRIED`], of the time that it has polled.
//!
//! A consumer that has not polled for that while may not have had a processor, or be at work on the packets of another
//! port. So the thread looks again, ever more seldom and for [`AWAY_MAX`] at most, until the consumer sleeps, or has run in
//! the meantime without being at work ([`PollerThread`]): then it is *gone*. If something has waited for it, and an answer to
//! a request of its own while it sleeps is such a thing, pollers are not *trusted* for a time: the thread waits for packets as if no consumer polled. The time doubles whenever trust is lost
//! again soon after it was restored, and ends early if the consumer polls after all, and is faster than the thread
//! ([`FASTER_MIN`]).
//!
//! A thread that drives when the engine's thread wakes up takes in what that has found: it is told, and looks again. So the
//! engine's thread rests for [`OCCUPIED`]; it would find the same packets again at once, and again, until they are taken.
//!
//! A consumer may also sleep at the port ([`Pollers::fall_asleep`]): it waits for packets itself, in the place of the
//! engine's thread, which would only wake up to wake it. Between two sleeps it counts as a poller; while it sleeps, the
//! engine's thread *rests*, and the consumer wakes it afterwards, so that it looks [`BACK`] later whether that consumer
//! came back.
//!
//! The engine's thread itself leaves acknowledgements for a while to clients that reply at once
//! ([`Pollers::left_replies`]), and sends what no reply has taken along.

use std::time::Duration;

use verbs_core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::clock::Instant;
use crate::queue::base::poller_thread::{PollerThread, Whereabouts};
use crate::transport::rc::PROMPT;

/// How long the thread leaves packets to a poller at least, counted from the last poll, and how long it waits between
/// two looks at one that has not polled. Twice as long is less than a millisecond.
const LEFT_MIN: Duration = Duration::from_micros(400);
/// The longest that it leaves them: shorter than peers wait for an answer.
const LEFT_MAX: Duration = Duration::from_millis(8);
/// The part of the time that a consumer has polled for which packets are left to it.
const TRIED: u32 = 16;
/// How long a consumer may not poll because it does not run, or is at work elsewhere, until the thread takes in the
/// packets for it.
const AWAY_MAX: Duration = Duration::from_millis(8);
/// How long after its sleep at the port a consumer is expected back there.
const BACK: Duration = Duration::from_millis(1);
/// How long the thread leaves packets to one that was driving when it woke up.
const OCCUPIED: Duration = Duration::from_micros(50);
/// How long pollers are not trusted after a packet has waited.
const DISTRUST_MIN: Duration = Duration::from_millis(2);
/// The maximum that this time doubles to.
const DISTRUST_MAX: Duration = Duration::from_millis(256);
/// Trust that lasted so many times as long as the distrust before it was justified: the next distrust is short again.
const JUSTIFIED: u64 = 4;
/// How often in a row a poller that is not trusted has to take in packets before the engine's thread does, until it is
/// trusted again. The number doubles together with the time.
const FASTER_MIN: u32 = 8;
/// The maximum that it doubles to.
const FASTER_MAX: u32 = 1024;

/// Of one port. Independent words, each a hint: an inconsistent view costs one wake-up or a wait of [`AWAY_MAX`], never a
/// packet.
#[derive(Debug)]
pub(super) struct Pollers {
    /// Until when packets are left to the consumer that polled last, in nanoseconds of the engine's clock; 0: they are
    /// not.
    left_until: AtomicU64,
    /// How long they are, in nanoseconds from the last poll on.
    left_for: AtomicU64,
    /// The [`PollerThread`] that polled last, as a number.
    thread: AtomicU32,
    /// What the engine's thread saw when it looked last; only that thread uses it.
    last_look: LastLook,
    /// Until when packets are left to the thread that was driving last.
    occupied_until: AtomicU64,
    /// The time until which pollers are not trusted.
    distrusted_until: AtomicU64,
    /// The length of the last distrust.
    distrusted_for: AtomicU64,
    /// How often in a row a poller that is not trusted took in packets before the engine's thread did.
    faster: AtomicU32,
    /// How often in a row it has to be.
    faster_needed: AtomicU32,
    /// [`ASLEEP`] while a consumer sleeps at the port, and [`RESTS`] beside it if the engine's thread rests until that
    /// consumer wakes it. One word, so that the thread either rests before the consumer is awake, which then sees it, or
    /// finds it awake.
    sleeper: AtomicU32,
    /// Until when a consumer that has slept at the port is expected back.
    back_until: AtomicU64,
    /// Until when the engine's thread leaves acknowledgements to clients that reply; 0: there are none.
    replies_until: AtomicU64,
}

const ASLEEP: u32 = 1;
const RESTS: u32 = 2;

/// In nanoseconds.
#[derive(Debug, Default)]
struct LastLook {
    at: AtomicU64,
    /// The time of [`Pollers::left_until`] that it has set itself, because the consumer had not polled.
    left_until: AtomicU64,
    /// Since when the consumer has not polled.
    away_since: AtomicU64,
    /// How long the consumer's thread had run then; [`u64::MAX`] while that does not count.
    had_run: AtomicU64,
}

/// What the engine's thread finds when it looks at the consumer that polled last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Packets are left to it.
    Left,
    /// No packets are left to a consumer.
    NotLeft,
    /// It has not polled for long, but it has not run either, or is at work.
    Late,
    /// It no longer polls, but runs, or has ended.
    Gone,
    /// It no longer polls, and sleeps.
    Asleep,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Pollers {
    fn default() -> Self {
        Self {
            left_until: AtomicU64::new(0),
            left_for: AtomicU64::new(nanos(LEFT_MIN)),
            thread: AtomicU32::new(0),
            last_look: LastLook::default(),
            occupied_until: AtomicU64::new(0),
            distrusted_until: AtomicU64::new(0),
            distrusted_for: AtomicU64::new(0),
            faster: AtomicU32::new(0),
            faster_needed: AtomicU32::new(FASTER_MIN),
            sleeper: AtomicU32::new(0),
            back_until: AtomicU64::new(0),
            replies_until: AtomicU64::new(0),
        }
    }
}

impl Pollers {
    /// The calling thread polls all the time.
    pub(super) fn polls_here(&self) {
        self.thread.store(PollerThread::me().number(), Relaxed);
    }

    /// A consumer polls all the time. Returns whether packets are left to it.
    pub(super) fn polled(&self, now: Instant) -> bool {
        if now.as_nanos() < self.distrusted_until.load(Relaxed) {
            return false;
        }
        self.left_until
            .store(now.as_nanos() + self.left_for.load(Relaxed), Relaxed);
        true
    }

    /// The engine's thread is awake.
    pub(super) fn look(&self, now: Instant) -> Look {
        let thread = PollerThread::from_number(self.thread.load(Relaxed));
        self.look_at(thread.as_ref().map(|thread| thread as _), now)
    }

    fn look_at(&self, thread: Option<&dyn Whereabouts>, now: Instant) -> Look {
        let last = &self.last_look;
        let before = last.at.swap(now.as_nanos(), Relaxed);
        let until = self.left_until.load(Relaxed);
        let is_own = until == last.left_until.load(Relaxed);
        if until == 0 {
            return Look::NotLeft;
        }
        if now.as_nanos() < until {
            if !is_own {
                self.polls_on(now.as_nanos().saturating_sub(before));
            }
            return Look::Left;
        }
        if !is_own {
            last.away_since.store(until, Relaxed);
            last.had_run.store(u64::MAX, Relaxed);
        }
        let since = last.away_since.load(Relaxed);
        let away = now.as_nanos().saturating_sub(since);
        if away >= nanos(AWAY_MAX) {
            return Look::Late;
        }
        if let Some(gone) = self.has_gone(thread) {
            return gone;
        }
        let later = (now.as_nanos() + away.max(nanos(LEFT_MIN))).min(since + nanos(AWAY_MAX));
        last.left_until.store(later, Relaxed);
        // It may have polled, or stopped, in the meantime.
        match self
            .left_until
            .compare_exchange(until, later, AcqRel, Relaxed)
        {
            Err(0) => Look::NotLeft,
            Ok(_) | Err(_) => Look::Left,
        }
    }

    /// Whether a consumer that does not poll sleeps, or has run since the last look at it without being at work.
    fn has_gone(&self, thread: Option<&dyn Whereabouts>) -> Option<Look> {
        let had_run = &self.last_look.had_run;
        let Some(thread) = thread else {
            return Some(Look::Gone);
        };
        if thread.is_at_work() {
            had_run.store(u64::MAX, Relaxed);
            return None;
        }
        let Some(has_run) = thread.has_run().map(nanos) else {
            return Some(Look::Gone);
        };
        let before = had_run.load(Relaxed);
        if before == u64::MAX {
            had_run.store(has_run, Relaxed);
        } else if has_run.saturating_sub(before) >= nanos(LEFT_MIN) / 2 {
            return Some(Look::Gone);
        }
        thread.sleeps().then_some(Look::Asleep)
    }

    /// A consumer polls, and did so for that time, unless that is much longer than it was left alone.
    fn polls_on(&self, time: u64) {
        let left = self.left_for.load(Relaxed);
        let more = time.min(2 * left) / u64::from(TRIED);
        let left = (left + more).min(nanos(LEFT_MAX));
        self.left_for.store(left, Relaxed);
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
        let until = (now + BACK).as_nanos();
        self.polls_here();
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

    /// The engine's thread has left acknowledgements to clients that reply at once.
    pub(super) fn left_replies(&self, now: Instant) {
        let until = (now + PROMPT).as_nanos();
        self.replies_until.store(until, Relaxed);
    }

    /// The engine's thread looks at them, whether they were sent or not.
    pub(super) fn looks_at_replies(&self) {
        self.replies_until.store(0, Relaxed);
    }

    /// When the engine's thread has to look at them, if there are any.
    pub(super) fn replies_until(&self) -> Option<Instant> {
        let until = self.replies_until.load(Relaxed);
        (until != 0).then(|| Instant::from_nanos(until))
    }

    /// No packets are left to a poller from now on. Returns whether some were.
    pub(super) fn stop(&self) -> bool {
        // A look first: most callers have not polled, and a swap takes the cache line from those that do.
        self.left_until.load(Relaxed) != 0 && self.left_until.swap(0, AcqRel) != 0
    }

    /// A poller that is not trusted has taken in packets.
    pub(super) fn was_faster(&self, now: Instant) {
        if self.faster.fetch_add(1, Relaxed) + 1 == self.faster_needed.load(Relaxed) {
            // It may have the completion queue from another thread.
            self.polls_here();
            self.distrusted_until.fetch_min(now.as_nanos(), Relaxed);
        }
    }

    /// The engine's thread has taken in packets.
    pub(super) fn was_slower(&self) {
        self.faster.store(0, Relaxed);
    }

    /// A packet or an answer has waited for a consumer that no longer polls.
    pub(super) fn gone(&self, now: Instant) {
        let now = now.as_nanos();
        self.left_for.store(nanos(LEFT_MIN), Relaxed);
        self.was_slower();
        let last = self.distrusted_for.load(Relaxed);
        let trusted_for = now.saturating_sub(self.distrusted_until.load(Relaxed));
        let faster = self.faster_needed.load(Relaxed);
        let (next, faster) = if trusted_for > last.saturating_mul(JUSTIFIED) {
            (nanos(DISTRUST_MIN), FASTER_MIN)
        } else {
            let next = (last * 2).clamp(nanos(DISTRUST_MIN), nanos(DISTRUST_MAX));
            (next, (2 * faster).min(FASTER_MAX))
        };
        self.faster_needed.store(faster, Relaxed);
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
        assert_eq!(pollers.left_until(), at(410));
        assert!(pollers.polled(at(400)));
        assert_eq!(pollers.left_until(), at(800));
        assert!(pollers.stop());
        assert_eq!(pollers.left_until(), at(0));
        assert!(!pollers.stop(), "it had stopped already");
    }

    /// A thread as a test says.
    #[derive(Clone, Copy)]
    struct Thread {
        at_work: bool,
        /// In microseconds.
        has_run: Option<u64>,
    }

    impl Whereabouts for Thread {
        fn is_at_work(&self) -> bool {
            self.at_work
        }

        fn has_run(&self) -> Option<Duration> {
            self.has_run.map(Duration::from_micros)
        }

        fn sleeps(&self) -> bool {
            self.has_run == Some(SLEEPING)
        }
    }

    /// When a thread sleeps, instead of what it has run.
    const SLEEPING: u64 = 7;

    /// When the engine's thread looks, at which thread, and what it finds.
    type Looked = (u64, bool, Option<u64>, Look);

    fn looks(polled: u64, looks: &[Looked]) {
        let pollers = Pollers::default();
        assert!(pollers.polled(at(polled)));
        for &(now, at_work, has_run, found) in looks {
            let thread = Thread { at_work, has_run };
            assert_eq!(pollers.look_at(Some(&thread), at(now)), found, "{now}");
        }
    }

    #[test]
    fn a_consumer_that_runs_and_does_not_poll_is_gone_after_two_looks() {
        looks(0, &[(399, false, Some(1), Look::Left)]);
        let first = (400, false, Some(1_000), Look::Left);
        looks(0, &[first, (800, false, Some(1_200), Look::Gone)]);
        looks(0, &[(400, false, Some(SLEEPING), Look::Asleep)]);
        looks(0, &[first, (800, false, Some(SLEEPING), Look::Asleep)]);
        // A thread that has ended, or that the system does not tell of.
        looks(0, &[(400, false, None, Look::Gone)]);
        let nobody = Pollers::default();
        assert_eq!(nobody.look_at(None, at(5)), Look::NotLeft);
        nobody.left_until.store(1, Relaxed);
        assert_eq!(nobody.look_at(None, at(5)), Look::Gone);
    }

    #[test]
    fn a_consumer_that_does_not_run_or_works_is_not_gone_but_waited_for_so_long() {
        let at = [400, 800, 1_200, 2_000, 3_600, 6_800];
        let preempted = at.map(|now| (now, false, Some(1_000 + now / 100), Look::Left));
        looks(0, &preempted);
        let late = (8_400, false, Some(1_200), Look::Late);
        looks(0, &[&preempted[..], &[late]].concat());
        let works = at.map(|now| (now, true, Some(now), Look::Left));
        let late = (8_400, true, Some(8_400), Look::Late);
        looks(0, &[&works[..], &[late]].concat());
        // What it has run at its work does not count.
        let stopped = [
            (2_000, false, Some(2_000), Look::Left),
            (3_600, false, Some(3_600), Look::Gone),
        ];
        looks(0, &[&works[..3], &stopped].concat());
    }

    #[test]
    fn packets_are_left_for_longer_while_a_consumer_polls_until_it_is_gone() {
        let pollers = Pollers::default();
        let thread = Thread {
            at_work: false,
            has_run: Some(1),
        };
        let (mut now, mut looks) = (0, 0);
        let mut left = |until: u64| {
            while now < until {
                let _ = pollers.polled(at(now));
                now += 100;
                if pollers.last_look.at.load(Relaxed) + pollers.left_for.load(Relaxed)
                    <= now * 1_000
                {
                    let _ = pollers.look_at(Some(&thread), at(now));
                    looks += 1;
                }
            }
            (pollers.left_for.load(Relaxed) / 1_000, looks)
        };
        assert_eq!(left(100).0, 400);
        let (after, _) = left(64_000);
        assert!((4_100..=4_400).contains(&after), "{after}");
        let (after, looks) = left(1_000_000);
        assert_eq!(after, 8_000);
        assert!(looks < 220, "{looks} in a second");
        let (_, more) = left(2_000_000);
        assert!(more - looks <= 125, "{}", more - looks);
        pollers.gone(at(2_000_000));
        assert_eq!(pollers.left_for.load(Relaxed), 400_000);
    }

    #[test]
    fn a_poll_or_a_stop_during_a_look_counts() {
        let pollers = Pollers::default();
        assert!(pollers.polled(at(0)));
        let _ = pollers.stop();
        assert_eq!(pollers.look(at(900)), Look::NotLeft);
        assert!(pollers.polled(at(1_000)));
        assert_eq!(pollers.look(at(1_100)), Look::Left);
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
        assert_eq!(pollers.rests_until(at(50)), at(420));
        pollers.occupied(at(1_000));
        assert!(pollers.stop());
        assert_eq!(pollers.rests_until(at(50)), at(1_050));
    }

    #[test]
    fn the_thread_looks_once_at_the_acknowledgements_that_it_has_left() {
        let pollers = Pollers::default();
        assert_eq!(pollers.replies_until(), None);
        pollers.left_replies(at(10));
        pollers.left_replies(at(20));
        assert_eq!(pollers.replies_until(), Some(at(270)));
        assert_eq!(pollers.left_until(), at(0), "packets are not left");
        pollers.looks_at_replies();
        assert_eq!(pollers.replies_until(), None);
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
    fn a_poller_that_is_faster_than_the_thread_is_trusted_again_at_once() {
        let pollers = Pollers::default();
        pollers.gone(at(1_000));
        for now in (1_010..1_080).step_by(10) {
            pollers.was_faster(at(now));
            assert!(!pollers.polled(at(now)));
        }
        pollers.was_slower();
        for now in (1_100..1_180).step_by(10) {
            assert!(!pollers.polled(at(now)));
            pollers.was_faster(at(now));
        }
        assert!(pollers.polled(at(1_170)), "eight times in a row");
        assert!(pollers.fall_asleep(at(1_170)));
    }

    /// As a program that watches its memory is, now and then, for the answers to its own requests.
    #[test]
    fn a_poller_that_is_faster_and_goes_soon_again_has_to_be_faster_for_longer() {
        let pollers = Pollers::default();
        let mut took = Vec::new();
        for k in 0..10 {
            let now = at(1_000 + k);
            pollers.gone(now);
            let more = std::iter::repeat_with(|| pollers.was_faster(now));
            let till_trusted = more.take_while(|()| !pollers.polled(now));
            took.push(till_trusted.count() + 1);
        }
        assert_eq!(took[..4], [8, 16, 32, 64]);
        assert_eq!(took[8..], [1_024, 1_024], "no more than that");
        pollers.gone(at(2_000_000));
        assert_eq!(pollers.faster_needed.load(Relaxed), FASTER_MIN);
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
                let late = then + BACK + BACK;
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
