//! The engine: what stands for the hardware's own time.
//!
//! Command delays and wire timers are deadlines on it. On the wall clock one thread per engine calls
//! what is due; it starts with the first deadline, sleeps while nothing is due, and ends with the
//! engine. On a virtual clock there is no thread: whoever moves the clock calls what is due.
//!
//! The engine never runs a verb's submission: that happens on the submitter's thread.

mod attend;
mod timers;
mod wakes;

#[cfg(all(test, not(verbs_loom)))]
mod tests;

use std::fmt;
use std::time::Duration;

use verbs_core::collect;
use verbs_core::sync::plain::{AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak, thread};

use crate::clock::{Clock, Instant, WallClock};
use crate::engine::attend::{Attendance, Sleeper};
use crate::engine::timers::{Entry, Timers};
use crate::link::Waiter;

pub(crate) use crate::engine::attend::Attend;
pub use crate::engine::timers::Timer;

/// What an engine calls at a deadline.
pub trait Due: Send + Sync {
    /// The deadline that was set with `token` has passed; it is `now`.
    ///
    /// Runs under NoBlock and without a lock of the engine's (K3, K4): it may set and cancel
    /// deadlines, complete requests, and drop the engine. A deadline that is cancelled while it is
    /// being called is called all the same; where that matters, the callee keeps a generation in the
    /// token.
    fn due(&self, now: Instant, token: u64);
}

/// The timers of one HCA. Clones are the same engine; it ends with the last of them.
///
/// A timer keeps what it calls alive until it has been called, is cancelled, or the engine ends. When
/// the engine ends, what has not been called is never called.
///
/// # Context
/// Nothing here blocks, and everything may be called from routines and from [`Due::due`]. On the
/// wall clock, the first deadline starts a thread. Setting and cancelling take a short lock that is
/// never held while foreign code runs.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
}

struct Core {
    clock: Clock,
    agenda: Arc<Agenda>,
    number: u64,
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

    /// Calls `due` with `token` when `deadline` has passed: in order of deadlines, ties in the order
    /// in which they were set. A deadline that has passed already is due at once, but is never
    /// called in here.
    ///
    /// Allocates nothing unless more timers are set than ever before. If the system refuses the
    /// engine its thread, that is traced, and the next call tries again.
    pub fn at(&self, deadline: Instant, due: Arc<dyn Due>, token: u64) -> Timer {
        let Core {
            clock,
            agenda,
            number,
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

    /// Has the engine's thread see to packets as well: it waits with `waiter` from now on, and calls
    /// `whom` whenever that wait is over. On a virtual clock there is no thread, and nothing happens.
    pub(crate) fn attend_to(&self, whom: Weak<dyn Attend>, waiter: Arc<dyn Waiter>) {
        let Core {
            clock: Clock::Wall(clock),
            agenda,
            number,
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

    /// Takes a timer back. `true`: it will not be called; `false`: it has been, or is about to be.
    pub fn cancel(&self, timer: Timer) -> bool {
        let entry = self.core.agenda.state.lock().timers.remove(timer);
        entry.is_some()
    }

    /// Calls what is due now on the caller's thread, and says how much that was. On a virtual clock
    /// that includes what other engines of the clock have set.
    ///
    /// What is set meanwhile waits for the next turn. On the wall clock this works beside the
    /// engine's thread: either calls each timer, never both.
    pub fn turn(&self) -> usize {
        let now = self.now();
        self.core.agenda.turn(|_| now)
    }

    /// When something is due next; on a virtual clock, for any engine of the clock.
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

/// What is to happen, and who makes it happen. A virtual clock has one for all its engines, an
/// engine on the wall clock has its own.
pub(crate) struct Agenda {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    timers: Timers,
    /// The time of a virtual clock; unused on the wall clock.
    now: Instant,
    driver: Driver,
    /// What the thread sees to besides.
    attendance: Option<Attendance>,
}

/// The thread of a wall-clock engine.
#[derive(Default)]
enum Driver {
    /// Not started, since no deadline was ever set.
    #[default]
    None,
    /// Started; looks at the timers before it sleeps.
    Awake,
    /// Asleep, or about to be, until that time. Set under the lock, so that whoever sets an earlier
    /// deadline afterwards sees it; an unpark that comes before the park is not lost.
    Asleep(Sleeper, Option<Instant>),
    /// The engine has gone; the thread ends when it sees this.
    Gone,
}

/// Whom a new deadline wakes.
enum Wake {
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

    /// On a virtual clock nothing is due in the past, so what is set comes after all that is due.
    fn insert_virtual(
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

    fn insert(
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
                // Whoever comes next need not wake it again for something later.
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

    fn attend_to(&self, attendance: Attendance) -> Wake {
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

    fn pop(&self, now: Instant, order: u64) -> Option<(Instant, Entry)> {
        self.state.lock().timers.pop(now, order)
    }

    /// The engine's thread has nothing to call: until when it sleeps, and what it sees to afterwards.
    /// `None`: the engine has gone.
    fn fall_asleep(&self) -> Option<(Option<Instant>, Option<Attendance>)> {
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

    fn wake_up(&self) {
        let mut state = self.state.lock();
        if let Driver::Asleep(..) = state.driver {
            state.driver = Driver::Awake;
        }
    }

    /// The thread is no more. `true`: the caller starts another for what is left.
    fn abandoned(&self, restart: bool) -> bool {
        let mut state = self.state.lock();
        if matches!(state.driver, Driver::Gone) {
            return false;
        }
        let again = restart && (state.timers.next().is_some() || state.attendance.is_some());
        state.driver = if again { Driver::Awake } else { Driver::None };
        again
    }

    /// An engine has gone, with what it set. Its thread is told, not waited for: this may be it.
    fn leave(&self, owner: u64, wall: bool) {
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

fn call(now: Instant, entry: Entry) {
    collect(|| {
        entry.due.due(now, entry.token);
        drop(entry);
    });
}

/// Starts the engine's thread, which keeps the agenda but not the engine.
#[cold]
fn start(agenda: &Arc<Agenda>, clock: WallClock, number: u64) {
    let run = Run {
        agenda: Arc::clone(agenda),
        clock,
        number,
        phase: Phase::Starting,
    };
    let spawned = thread::Builder::new()
        .name(thread_name(number))
        .spawn(move || run.run());
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
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no thread yet, and perhaps there never will be.
    Starting,
    Serving,
    /// The engine has gone.
    Ended,
}

impl Run {
    fn run(mut self) {
        self.phase = Phase::Serving;
        loop {
            let now = self.clock.now();
            while let Some((_, entry)) = self.agenda.pop(now, u64::MAX) {
                call(now, entry);
            }
            let Some((next, attendance)) = self.agenda.fall_asleep() else {
                break;
            };
            // Early returns are harmless: the loop looks again.
            match &attendance {
                None => self.clock.park_until(next),
                Some(attendance) => attendance.wait(&self.clock, next),
            }
            self.agenda.wake_up();
            if let Some(attendance) = attendance {
                attendance.call();
            }
        }
        self.phase = Phase::Ended;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let restart = match self.phase {
            Phase::Ended => return,
            // There was no thread to be had.
            Phase::Starting => false,
            // A callee panicked, and the thread ends with its level in an unknown state. What is
            // left must not wait for a thread that is not there.
            Phase::Serving => true,
        };
        if self.agenda.abandoned(restart) {
            start(&self.agenda, self.clock, self.number);
        }
    }
}
