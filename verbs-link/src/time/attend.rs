//! What an engine's thread sees to besides deadlines: packets that come when nobody polls.

use std::fmt;
use std::time::Duration;

use verbs_core::collect;
use verbs_core::sync::{Arc, Weak, thread};

use crate::time::{Instant, WallClock};

/// What the hardware's thread waits with, when nobody polls.
pub trait Waiter: Send + Sync + fmt::Debug {
    /// Waits until a packet has come (only if `packets`), [`Waiter::wake`] was called since the last
    /// wait began, or `timeout` is over (`None`: for ever). May return early.
    fn wait(&self, timeout: Option<Duration>, packets: bool);

    /// Ends the wait that is going on, or the next one. From any thread, never blocks.
    fn wake(&self);
}

/// A receiver of packets that the engine's thread calls.
pub trait Attend: Send + Sync {
    /// Sees to what has come. Under NoBlock and without a lock of the engine's.
    fn attend(&self);

    /// Until when somebody polls and sees to packets, so that the thread need not.
    fn polled_until(&self) -> Instant;
}

/// Whom the thread calls, and what it waits with.
#[derive(Clone)]
pub(crate) struct Attendance {
    /// Not what keeps it alive: it keeps the engine.
    pub(crate) whom: Weak<dyn Attend>,
    pub(crate) waiter: Arc<dyn Waiter>,
}

impl Attendance {
    /// Waits until `next`, for a packet, or to be woken.
    pub(crate) fn wait(&self, clock: &WallClock, next: Option<Instant>) {
        let polled = match self.whom.upgrade() {
            Some(whom) => whom.polled_until(),
            // It is going, and the engine with it.
            None => Instant::NEVER,
        };
        let now = clock.now();
        let taken_over = polled > now;
        let end = match next {
            Some(next) if taken_over => Some(next.min(polled)),
            None if taken_over => Some(polled),
            next => next,
        };
        let end = end.filter(|&end| end != Instant::NEVER);
        self.waiter.wait(end.map(|end| end.since(now)), !taken_over);
    }

    /// Has what came seen to.
    pub(crate) fn call(&self) {
        collect(|| {
            if let Some(whom) = self.whom.upgrade() {
                whom.attend();
            }
        });
    }
}

/// How a thread that sleeps is woken.
#[derive(Clone)]
pub(crate) enum Sleeper {
    Thread(thread::Thread),
    Waiter(Arc<dyn Waiter>),
}

impl Sleeper {
    pub(crate) fn wake(&self) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Waiter(waiter) => waiter.wake(),
        }
    }
}
