//! Moderation of events: an armed queue fires at a number of completions, or some time after the
//! first, whichever comes first.
//!
//! Pushers know nothing of it. A push that would have fired asks here, outside pins and locks; if it is too early, the
//! queue is armed again as the consumer had armed it, and a timer is set. Then the ring is looked at once more: a
//! completion that was pushed in between has found the queue not armed.

use std::time::Duration;

use verbs_core::cq::CqInfo;
use verbs_core::mem::grace;
use verbs_core::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use verbs_core::sync::{Arc, Weak};

use super::CqRing;
use super::entry::{COUNT_SHIFT, WANT_NEXT};
use crate::clock::Instant;
use crate::engine::{Due, Engine};

/// When events are due.
#[derive(Debug)]
pub(super) struct Moderation {
    ring: Weak<CqRing>,
    engine: Engine,
    /// Completions that make an event; 0 if their number does not matter.
    count: u32,
    /// After the first completion; zero for never.
    period: Duration,
    /// A timer is set.
    timing: bool,
}

/// What to do about an event.
enum EventTiming {
    Due,
    Early {
        after: Option<(Engine, Arc<CqRing>, Duration)>,
    },
}

impl CqRing {
    /// From now on events wait for `count` completions or `period_us` after the first; both 0 for an
    /// event at the first.
    pub(crate) fn moderate(self: &Arc<Self>, engine: &Engine, count: u16, period_us: u32) {
        let moderation = (count > 1 || period_us != 0).then(|| Moderation {
            ring: Arc::downgrade(self),
            engine: engine.clone(),
            count: u32::from(count),
            period: Duration::from_micros(u64::from(period_us)),
            timing: false,
        });
        if moderation.is_some() {
            // Before events are held back: holding one back makes it wanted again, and pushers have to check for that.
            let touched = self.tell_moderated();
            let ring = Arc::clone(self);
            grace::after(touched, move || ring.look_again());
        }
        *self.moderation.lock() = moderation;
        // Never cleared: a fire that does not see it yet follows the old rule.
        self.moderated.store(true, Release);
        self.fire_if_any();
    }

    /// Events of this queue may wait for a number of completions from now on, which the consumer sets when it arms.
    pub(super) fn expect_counts(self: &Arc<Self>) {
        if self.moderated.load(Relaxed) {
            return;
        }
        let touched = self.tell_moderated();
        let ring = Arc::clone(self);
        grace::after(touched, move || ring.look_again());
        self.moderated.store(true, Release);
    }

    /// Its current size and moderation.
    pub(crate) fn info(&self) -> CqInfo {
        let (count, period) = match &*self.moderation.lock() {
            Some(moderation) => (moderation.count, moderation.period),
            None => (0, Duration::ZERO),
        };
        CqInfo {
            cqe: self.buffer().len(),
            moderation_count: u16::try_from(count).unwrap_or(u16::MAX),
            moderation_period_us: u32::try_from(period.as_micros()).unwrap_or(u32::MAX),
            overrun: self.told.load(Acquire),
        }
    }

    /// Delivers the event of a push that was due to fire, or holds it back; called outside pins and locks.
    pub(crate) fn fire(&self) {
        if !self.moderated.load(Relaxed) {
            return self.notify.fire();
        }
        loop {
            let after = match self.verdict() {
                EventTiming::Due => return self.notify.fire(),
                EventTiming::Early { after } => after,
            };
            if let Some((engine, ring, period)) = after {
                engine.after(period, ring, 0);
            }
            let want = self.consumer.want.load(Relaxed) & WANT_NEXT;
            self.consumer.arm.fetch_or(want, AcqRel);
            fence(SeqCst);
            let due = matches!(self.verdict(), EventTiming::Due);
            if !due || self.consumer.arm.swap(0, AcqRel) == 0 {
                return;
            }
        }
    }

    fn verdict(&self) -> EventTiming {
        let wanted = self.consumer.want.load(Relaxed) >> COUNT_SHIFT;
        if wanted > 1 && !self.waiting_at_least(wanted) {
            return EventTiming::Early {
                after: self.timer(),
            };
        }
        let mut held = self.moderation.lock();
        let Some(moderation) = held.as_mut() else {
            return EventTiming::Due;
        };
        if moderation.count != 0 && self.waiting_at_least(moderation.count) {
            return EventTiming::Due;
        }
        let after = moderation.timer();
        EventTiming::Early { after }
    }

    fn timer(&self) -> Option<(Engine, Arc<CqRing>, Duration)> {
        self.moderation.lock().as_mut().and_then(Moderation::timer)
    }

    pub(super) fn waiting_at_least(&self, count: u32) -> bool {
        // A full ring is as much as can wait.
        let buffer = self.buffer();
        let (head, count) = (self.head(), count.min(buffer.len()));
        (0..count).all(|n| buffer.published(head.wrapping_add(n)).is_some())
    }

    /// Fires, regardless of the number, if anything waits and an event is wanted.
    fn fire_if_any(&self) {
        if self.buffer().published(self.head()).is_some() && self.consumer.arm.swap(0, AcqRel) != 0
        {
            self.notify.fire();
        }
    }
}

impl Moderation {
    /// The timer that a first completion sets, if one is needed.
    fn timer(&mut self) -> Option<(Engine, Arc<CqRing>, Duration)> {
        let starts = !self.timing && !self.period.is_zero();
        self.timing |= starts;
        let ring = starts.then(|| self.ring.upgrade()).flatten();
        ring.map(|ring| (self.engine.clone(), ring, self.period))
    }
}

impl Due for CqRing {
    /// The period after a first completion is over.
    fn due(&self, _now: Instant, _token: u64) {
        if let Some(moderation) = self.moderation.lock().as_mut() {
            moderation.timing = false;
        }
        self.fire_if_any();
    }
}
