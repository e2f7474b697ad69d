//! Moderation of events: an armed queue fires at a number of completions, or some time after the
//! first, whichever comes first.
//!
//! Pushers know nothing of it. A push that would have fired asks here, outside pins and locks; if it
//! is too early, the queue is armed again as the consumer had it, and a timer is set. Then the ring is
//! looked at once more: a completion that came in between has found the queue not armed.

use std::time::Duration;

use verbs_core::mem::grace;
use verbs_core::sync::atomic::{
    Ordering::{AcqRel, Relaxed, Release, SeqCst},
    fence,
};
use verbs_core::sync::{Arc, Weak};

use super::CqRing;
use crate::clock::Instant;
use crate::engine::{Due, Engine};

/// When events are due.
#[derive(Debug)]
pub(super) struct Moderation {
    ring: Weak<CqRing>,
    engine: Engine,
    /// Completions that make an event; 0 for no number of them.
    count: u32,
    /// After the first completion; zero for never.
    period: Duration,
    /// A timer is set.
    timing: bool,
}

/// What is to be done about an event.
enum Verdict {
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
            // Before events are held back: who holds one back wants it again, and pushers have to look for that.
            let touched = self.tell_moderated();
            let ring = Arc::clone(self);
            grace::after(touched, move || ring.look_again());
        }
        *self.moderation.lock() = moderation;
        // Never cleared: a fire that does not see it yet is one under the old rule.
        self.moderated.store(true, Release);
        self.fire_if_any();
    }

    /// Delivers the event of a push that said so, or holds it back; outside pins and locks.
    pub(crate) fn fire(&self) {
        if !self.moderated.load(Relaxed) {
            return self.notify.fire();
        }
        loop {
            let after = match self.verdict() {
                Verdict::Due => return self.notify.fire(),
                Verdict::Early { after } => after,
            };
            if let Some((engine, ring, period)) = after {
                engine.after(period, ring, 0);
            }
            let want = self.consumer.want.load(Relaxed);
            self.consumer.arm.fetch_or(want, AcqRel);
            fence(SeqCst);
            let due = matches!(self.verdict(), Verdict::Due);
            if !due || self.consumer.arm.swap(0, AcqRel) == 0 {
                return;
            }
        }
    }

    fn verdict(&self) -> Verdict {
        let mut held = self.moderation.lock();
        let Some(moderation) = held.as_mut() else {
            return Verdict::Due;
        };
        if moderation.count != 0 && self.waiting_at_least(moderation.count) {
            return Verdict::Due;
        }
        let starts = !moderation.timing && !moderation.period.is_zero();
        moderation.timing |= starts;
        let ring = starts.then(|| moderation.ring.upgrade()).flatten();
        Verdict::Early {
            after: ring.map(|ring| (moderation.engine.clone(), ring, moderation.period)),
        }
    }

    fn waiting_at_least(&self, count: u32) -> bool {
        // A full ring is as much as can wait.
        let buffer = self.buffer();
        let (head, count) = (self.head(), count.min(buffer.len()));
        (0..count).all(|n| buffer.published(head.wrapping_add(n)).is_some())
    }

    /// Fires whatever the number if anything waits and an event is wanted.
    fn fire_if_any(&self) {
        if self.buffer().published(self.head()).is_some() && self.consumer.arm.swap(0, AcqRel) != 0
        {
            self.notify.fire();
        }
    }
}

impl Due for CqRing {
    /// The time after a first completion is over.
    fn due(&self, _now: Instant, _token: u64) {
        if let Some(moderation) = self.moderation.lock().as_mut() {
            moderation.timing = false;
        }
        self.fire_if_any();
    }
}
