//! Deadlines and what is due at them, and the thread that sleeps until then.

use std::fmt;

use verbs_core::collect;
use verbs_core::sync::{Arc, Mutex, thread};

use crate::time::attend::{Attendance, Sleeper};
use crate::time::timers::{Entry, Timers};
use crate::time::{Due, Instant, Timer};

/// What is due, and the thread that calls it. A virtual clock has one agenda for all its engines; an engine on the wall
/// clock has its own.
pub(crate) struct Agenda {
    pub(crate) state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) timers: Timers,
    /// The time of a virtual clock; unused on the wall clock.
    now: Instant,
    pub(crate) driver: Driver,
    /// What the thread attends to in addition to deadlines.
    attendance: Option<Attendance>,
}

/// The thread of a wall-clock engine.
#[derive(Default)]
pub(crate) enum Driver {
    /// Not started, since no deadline was ever set.
    #[default]
    None,
    /// Started; looks at the timers before it sleeps.
    Awake,
    /// Asleep, or about to be, until that time. Set under the lock, so that a thread that sets an earlier deadline
    /// afterwards sees it; an unpark before the park is not lost.
    Asleep(Sleeper, Option<Instant>),
    /// The engine has ended; the thread ends when it sees this.
    Gone,
}

/// The sleeper that a new deadline wakes.
pub(crate) enum Wake {
    Nobody,
    Sleeper(Sleeper),
    Start,
}

impl Default for Agenda {
    fn default() -> Self {
        Self {
            state: Mutex::new(State::default()),
        }
    }
}

impl fmt::Debug for Agenda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agenda")
            .field("now", &self.virtual_now())
            .finish_non_exhaustive()
    }
}

impl Agenda {
    pub(crate) fn virtual_now(&self) -> Instant {
        self.state.lock().now
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.state.lock().timers.next()
    }

    /// Calls what is due at `now`, which is made from the virtual time, and was set before.
    pub(crate) fn turn(&self, now: impl FnOnce(Instant) -> Instant) -> usize {
        let (now, order) = {
            let mut state = self.state.lock();
            state.now = now(state.now);
            (state.now, state.timers.order())
        };
        let mut called = 0;
        while let Some((_, entry)) = self.pop(now, order) {
            call(now, entry);
            called += 1;
        }
        called
    }

    /// Moves the virtual time to `end`, calling what is due on the way.
    pub(crate) fn run_until(&self, end: Instant) -> usize {
        let mut called = 0;
        loop {
            let (now, entry) = {
                let mut state = self.state.lock();
                let popped = state.timers.pop(end, u64::MAX);
                let to = popped.as_ref().map_or(end, |&(deadline, _)| deadline);
                state.now = state.now.max(to);
                let Some((_, entry)) = popped else {
                    return called;
                };
                (state.now, entry)
            };
            call(now, entry);
            called += 1;
        }
    }

    /// On a virtual clock nothing is due in the past, so a new deadline is ordered after everything that is due.
    pub(crate) fn insert_virtual(
        &self,
        deadline: Instant,
        owner: u64,
        due: Arc<dyn Due>,
        token: u64,
    ) -> Timer {
        let mut state = self.state.lock();
        let deadline = deadline.max(state.now);
        state.timers.insert(deadline, owner, due, token)
    }

    pub(crate) fn insert(
        &self,
        deadline: Instant,
        owner: u64,
        due: Arc<dyn Due>,
        token: u64,
    ) -> (Timer, Wake) {
        let mut state = self.state.lock();
        let timer = state.timers.insert(deadline, owner, due, token);
        let wake = match &mut state.driver {
            Driver::Asleep(sleeper, until) if until.is_none_or(|until| deadline < until) => {
                // The next thread does not need to wake it again for something later.
                *until = Some(deadline);
                Wake::Sleeper(sleeper.clone())
            }
            Driver::None => {
                state.driver = Driver::Awake;
                Wake::Start
            }
            Driver::Asleep(..) | Driver::Awake | Driver::Gone => Wake::Nobody,
        };
        (timer, wake)
    }

    pub(crate) fn attend_to(&self, attendance: Attendance) -> Wake {
        let mut state = self.state.lock();
        state.attendance = Some(attendance);
        match &state.driver {
            Driver::Asleep(sleeper, _) => Wake::Sleeper(sleeper.clone()),
            Driver::None => {
                state.driver = Driver::Awake;
                Wake::Start
            }
            Driver::Awake | Driver::Gone => Wake::Nobody,
        }
    }

    pub(crate) fn pop(&self, now: Instant, order: u64) -> Option<(Instant, Entry)> {
        self.state.lock().timers.pop(now, order)
    }

    /// The engine's thread has nothing to call. Returns until when it sleeps, and what it attends to afterwards.
    /// `None`: the engine has ended.
    pub(crate) fn fall_asleep(&self) -> Option<(Option<Instant>, Option<Attendance>)> {
        let mut state = self.state.lock();
        if matches!(state.driver, Driver::Gone) {
            return None;
        }
        let next = state.timers.next();
        let attendance = state.attendance.clone();
        let sleeper = match &attendance {
            Some(attendance) => Sleeper::Waiter(Arc::clone(&attendance.waiter)),
            None => Sleeper::Thread(thread::current()),
        };
        state.driver = Driver::Asleep(sleeper, next);
        Some((next, attendance))
    }

    pub(crate) fn wake_up(&self) {
        let mut state = self.state.lock();
        if let Driver::Asleep(..) = state.driver {
            state.driver = Driver::Awake;
        }
    }

    /// The thread has ended. `true`: the caller starts another for what is left.
    pub(crate) fn abandoned(&self, restart: bool) -> bool {
        let mut state = self.state.lock();
        if matches!(state.driver, Driver::Gone) {
            return false;
        }
        let again = restart && (state.timers.next().is_some() || state.attendance.is_some());
        state.driver = if again { Driver::Awake } else { Driver::None };
        again
    }

    /// An engine has ended, with everything that it set. Its thread is told, not waited for: this may be that thread.
    pub(crate) fn leave(&self, owner: u64, wall: bool) {
        let mut state = self.state.lock();
        let taken = state.timers.remove_all(owner);
        let driver = if wall {
            std::mem::replace(&mut state.driver, Driver::Gone)
        } else {
            Driver::None
        };
        drop(state);
        if let Driver::Asleep(sleeper, _) = driver {
            sleeper.wake();
        }
        // Destructors of what would have been called are foreign code (K4).
        drop(taken);
    }
}

pub(crate) fn call(now: Instant, entry: Entry) {
    collect(|| {
        entry.due.due(now, entry.token);
        drop(entry);
    });
}
