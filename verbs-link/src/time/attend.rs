//! What an engine's thread attends to besides deadlines: packets that arrive while no consumer polls.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use verbs_core::collect;
use verbs_core::sync::{Arc, Weak, thread};

use crate::time::{Instant, WallClock};

/// Descriptors of its own that a thread of a program waits for beside the link's.
pub(crate) const ALSO_MAX: usize = 16;

/// How the engine's thread waits for packets when no consumer polls.
pub trait Waiter: Send + Sync + fmt::Debug {
    /// Waits until a packet has arrived (only if `packets`), [`Waiter::wake`] was called since the last wait began, or
    /// `timeout` is over (`None`: for ever). May return early.
    fn wait(&self, timeout: Option<Duration>, packets: bool);

    /// Ends the current wait, or the next one. Called from any thread; never blocks.
    fn wake(&self);

    /// Whether a thread of a program may [wait beside](Self::wait_beside), for that many descriptors of its own.
    fn has_place(&self, _also: usize) -> bool {
        false
    }

    /// A thread of a program waits in the place of the engine's: until a packet has arrived, one of `also` is readable, or
    /// `timeout` is over (`None`: for ever). [`Waiter::wake`] does not concern it. May return early; `None` at once where
    /// [there is no place](Self::has_place). At most one thread waits so at a time.
    ///
    /// # Errors
    /// The system's, of which a signal is the usual one.
    fn wait_beside(
        &self,
        _also: &[BorrowedFd<'_>],
        _timeout: Option<Duration>,
    ) -> Option<io::Result<()>> {
        None
    }
}

/// A receiver of packets that the engine's thread calls.
pub trait Attend: Send + Sync {
    /// Handles what has arrived, and returns whether anything has. Under NoBlock and without a lock of the engine.
    fn attend(&self) -> bool;

    /// Whether the thread polls for more packets before it sleeps, after some have arrived.
    fn busy_polls(&self) -> bool {
        false
    }

    /// When the thread calls at the latest, because something that it has left to others has to be sent.
    fn answers_by(&self) -> Option<Instant> {
        None
    }

    /// Until when a consumer polls and handles packets, so that the thread need not.
    fn polled_until(&self) -> Instant;
}

/// The receiver that the thread calls, and how the thread waits.
#[derive(Clone)]
pub(crate) struct Attendance {
    /// Does not keep the receiver alive, because the receiver keeps the engine.
    pub(crate) whom: Weak<dyn Attend>,
    pub(crate) waiter: Arc<dyn Waiter>,
}

impl Attendance {
    /// Waits until `next`, for a packet, or to be woken.
    pub(crate) fn wait(&self, clock: &WallClock, next: Option<Instant>) {
        let (polled, answers) = match self.whom.upgrade() {
            Some(whom) => (whom.polled_until(), whom.answers_by()),
            // The receiver is being dropped, and the engine with it.
            None => (Instant::NEVER, None),
        };
        let now = clock.now();
        let taken_over = polled > now;
        let polled = taken_over.then_some(polled);
        let end = [next, answers, polled].into_iter().flatten().min();
        let end = end.filter(|&end| end != Instant::NEVER);
        self.waiter.wait(end.map(|end| end.since(now)), !taken_over);
    }

    /// Calls the receiver to handle what has arrived; whether anything has.
    pub(crate) fn call(&self) -> bool {
        collect(|| self.whom.upgrade().is_some_and(|whom| whom.attend()))
    }

    /// Whether the receiver wants to be called again soon, and no consumer polls in its place.
    pub(crate) fn busy_polls(&self, now: Instant) -> bool {
        let wants = |whom: Arc<dyn Attend>| whom.busy_polls() && whom.polled_until() <= now;
        self.whom.upgrade().is_some_and(wants)
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
