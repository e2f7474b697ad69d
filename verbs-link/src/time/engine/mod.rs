//! The engine: the model of the hardware's own timers.
//!
//! Command delays and wire timers are deadlines on it. On the wall clock one thread per engine calls what is due; it
//! starts with the first deadline, sleeps while nothing is due, and ends with the engine. On a virtual clock there is
//! no thread: the thread that moves the clock calls what is due.
//!
//! The engine never runs a verb's submission: that happens on the submitter's thread.

mod busy_poll;
mod wakes;

#[cfg(all(test, not(verbs_loom)))]
mod tests;

use std::fmt;
use std::time::Duration;

use verbs_core::process::spawn_without_signals;
use verbs_core::sync::plain::{AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, Weak};

use crate::time::agenda::{Agenda, Wake, call};
use crate::time::attend::{Attend, Attendance, Waiter};
use crate::time::{Clock, Due, Instant, Timer, WallClock};
use busy_poll::BusyPoll;
use wakes::Wakes;

/// The timers of one HCA. Clones are the same engine; it ends with the last of them.
///
/// A timer keeps what it calls alive until it has been called or cancelled, or the engine ends. When the engine ends,
/// timers that have not been called are never called.
///
/// # Context
/// Nothing here blocks, and everything may be called from routines and from [`Due::due`]. On the
/// wall clock, the first deadline starts a thread, which takes none of the program's signals. Setting and cancelling
/// take a short lock that is never held while foreign code runs.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
}

struct Core {
    clock: Clock,
    agenda: Arc<Agenda>,
    number: u64,
    wakes: Arc<Wakes>,
}

/// Engines are numbered, because several may share a virtual clock and its agenda.
static NUMBER: AtomicU64 = AtomicU64::new(1);

impl Engine {
    /// An engine on that clock.
    pub fn new(clock: impl Into<Clock>) -> Self {
        let clock = clock.into();
        let agenda = match &clock {
            Clock::Wall(_) => Arc::default(),
            Clock::Virtual(clock) => Arc::clone(clock.agenda()),
        };
        Self {
            core: Arc::new(Core {
                clock,
                agenda,
                number: NUMBER.fetch_add(1, Relaxed),
                wakes: Arc::default(),
            }),
        }
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.core.clock.now()
    }

    /// Calls `due` with `token` when `deadline` has passed: in order of deadlines, ties in the order in which they were
    /// set. A deadline that has passed already is due at once, but `due` is never called from within this method.
    ///
    /// Allocates nothing unless more timers are set than ever before. If the system refuses the engine its thread, that
    /// is logged, and the next call tries again.
    pub fn at(&self, deadline: Instant, due: Arc<dyn Due>, token: u64) -> Timer {
        let Core {
            clock,
            agenda,
            number,
            wakes: _,
        } = &*self.core;
        match clock {
            Clock::Virtual(_) => agenda.insert_virtual(deadline, *number, due, token),
            Clock::Wall(clock) => {
                let (timer, wake) = agenda.insert(deadline, *number, due, token);
                match wake {
                    Wake::Nobody => {}
                    Wake::Sleeper(sleeper) => sleeper.wake(),
                    Wake::Start => start(agenda, *clock, *number),
                }
                timer
            }
        }
    }

    /// Has the engine's thread attend to packets as well: it waits with `waiter` from now on, and calls `whom` after
    /// each wait. On a virtual clock there is no thread, and nothing happens.
    pub fn attend_to(&self, whom: Weak<dyn Attend>, waiter: Arc<dyn Waiter>) {
        let Core {
            clock: Clock::Wall(clock),
            agenda,
            number,
            wakes: _,
        } = &*self.core
        else {
            return;
        };
        match agenda.attend_to(Attendance { whom, waiter }) {
            Wake::Nobody => {}
            Wake::Sleeper(sleeper) => sleeper.wake(),
            Wake::Start => start(agenda, *clock, *number),
        }
    }

    /// As [`Engine::at`], that long from now.
    pub fn after(&self, delay: Duration, due: Arc<dyn Due>, token: u64) -> Timer {
        self.at(self.now() + delay, due, token)
    }

    /// Cancels a timer. `true`: it will not be called; `false`: it has been, or is about to be.
    pub fn cancel(&self, timer: Timer) -> bool {
        let entry = self.core.agenda.state.lock().timers.remove(timer);
        entry.is_some()
    }

    /// Calls what is due now on the caller's thread, and returns how much that was. On a virtual clock that includes
    /// what other engines of the clock have set.
    ///
    /// Deadlines that are set in the meantime wait for the next turn. On the wall clock this works alongside the
    /// engine's thread: one of the two calls each timer, never both.
    pub fn turn(&self) -> usize {
        let now = self.now();
        self.core.agenda.turn(|_| now)
    }

    /// The next deadline; on a virtual clock, of any engine of the clock.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.core.agenda.next_deadline()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core {
            clock,
            agenda: _,
            number,
            wakes: _,
        } = &*self.core;
        f.debug_struct("Engine")
            .field("number", number)
            .field("clock", clock)
            .finish_non_exhaustive()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.agenda
            .leave(self.number, matches!(self.clock, Clock::Wall(_)));
    }
}

/// Starts the engine's thread, which keeps the agenda but not the engine.
#[cold]
fn start(agenda: &Arc<Agenda>, clock: WallClock, number: u64) {
    let run = Run {
        agenda: Arc::clone(agenda),
        clock,
        number,
        phase: Phase::Starting,
        busy_poll: BusyPoll::default(),
    };
    let spawned = spawn_without_signals(thread_name(number), move || run.run());
    if let Err(error) = spawned {
        tracing::error!(%error, "the engine's thread could not be started; the next deadline tries again");
    }
}

/// As tools show it; Linux keeps 15 bytes.
fn thread_name(number: u64) -> String {
    format!("hca-engine-{number}")
}

/// The engine's thread.
struct Run {
    agenda: Arc<Agenda>,
    clock: WallClock,
    number: u64,
    phase: Phase,
    busy_poll: BusyPoll,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no thread yet, and perhaps there never will be.
    Starting,
    Serving,
    /// The engine has ended.
    Ended,
}

impl Run {
    fn run(mut self) {
        self.phase = Phase::Serving;
        loop {
            call_due(&self.agenda, self.clock.now());
            let Some((next, attendance)) = self.agenda.fall_asleep() else {
                break;
            };
            // Early returns are harmless: the loop looks again.
            match &attendance {
                None => self.clock.park_until(next),
                Some(attendance) => attendance.wait(&self.clock, next),
            }
            self.agenda.wake_up();
            if let Some(attendance) = attendance
                && attendance.call()
            {
                let agenda = &self.agenda;
                self.busy_poll
                    .run(&attendance, &self.clock, |now| call_due(agenda, now));
            }
        }
        self.phase = Phase::Ended;
    }
}

fn call_due(agenda: &Agenda, now: Instant) {
    while let Some((_, entry)) = agenda.pop(now, u64::MAX) {
        call(now, entry);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let restart = match self.phase {
            Phase::Ended => return,
            // The system had no thread to give.
            Phase::Starting => false,
            // A callee panicked, and the thread ends with its level in an unknown state. What is left must not wait for
            // a thread that does not exist.
            Phase::Serving => true,
        };
        if self.agenda.abandoned(restart) {
            start(&self.agenda, self.clock, self.number);
        }
    }
}
