//! A filter that injects faults.

use std::fmt;

use crate::command::{AnyCommand, Kind, PendingCommand, RequestId};
use crate::error::Error;
use crate::provider::{Done, Frame, Hook, Provider};
use crate::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Release},
};
use crate::sync::{Arc, Mutex};

/// What happens to a verb instead of what should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// It fails with this error, and the device never sees it. A destroy cannot be taken back once
    /// it is accepted (K8): the device carries it out, and only the answer is this error.
    Fail(Error),
    /// It is held back. A destroy too: it is accepted, and takes long.
    Delay(Until),
    /// It is dropped, as by a defective provider, and ends with [`Error::Dropped`] (K7). Of a destroy
    /// only the answer gets lost.
    Lose,
}

/// How long a verb is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until [`Fault::release`]: a wedged command, which the device's list of pending requests
    /// shows, and which the device's removal ends.
    Released,
    /// Until that many verbs of any kind have overtaken it.
    Overtaken(u32),
}

/// Fails, delays or loses chosen verbs on their way to a provider.
///
/// Which, is told with [`Fault::inject`], while the device is open or before. Without an injection
/// in force a verb passes with one look at a counter.
///
/// # Cancel safety
/// A verb that is held back and cancelled ends with [`Error::Cancelled`], unless it is a destroy.
///
/// # Context
/// Takes a lock while an injection is in force, never while it calls anything. Requests that are
/// never released keep the device's memory, and this, alive.
pub struct Fault {
    inner: Arc<dyn Provider>,
    /// Injections and held requests that there are; changed under the lock.
    active: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    injections: Vec<Injection>,
    /// Oldest first.
    held: Vec<Held>,
}

struct Injection {
    kind: Kind,
    /// Verbs of the kind until it is the one, which is at 1.
    left: u64,
    action: FaultAction,
}

struct Held {
    until: Until,
    command: PendingCommand,
}

impl Fault {
    /// Stands in front of `inner` and lets everything through.
    pub fn new(inner: Arc<dyn Provider>) -> Self {
        Self {
            inner,
            active: AtomicUsize::new(0),
            state: Mutex::new(State::default()),
        }
    }

    /// Does `action` to the `nth` verb of that kind from now on, counted from 1; to no other. Of
    /// several injections for one verb the first one given is done, the others are spent.
    ///
    /// With `nth` 0 nothing happens.
    pub fn inject(&self, kind: Kind, nth: u64, action: FaultAction) {
        if nth == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.injections.push(Injection {
            kind,
            left: nth,
            action,
        });
        self.count(&state);
    }

    /// Lets everything go on that is held back, oldest first; says how many.
    pub fn release(&self) -> usize {
        let held = {
            let mut state = self.state.lock();
            let held = std::mem::take(&mut state.held);
            self.count(&state);
            held
        };
        let released = held.len();
        for Held { command, .. } in held {
            command.forward(&*self.inner);
        }
        released
    }

    /// Verbs that are held back.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Injections whose verb has not come yet.
    pub fn outstanding(&self) -> usize {
        self.state.lock().injections.len()
    }

    fn count(&self, state: &State) {
        let active = state.injections.len() + state.held.len();
        self.active.store(active, Release);
    }

    /// What is to be done to a verb of that kind that has come.
    fn judge(&self, kind: Kind) -> Option<FaultAction> {
        let mut state = self.state.lock();
        let mut action = None;
        state.injections.retain_mut(|injection| {
            if injection.kind == kind {
                injection.left -= 1;
            }
            if injection.left == 0 && action.is_none() {
                action = Some(injection.action);
            }
            injection.left > 0
        });
        self.count(&state);
        action
    }

    fn hold(&self, command: AnyCommand<'_>, until: Until) {
        let Some(command) = command.pend() else {
            return;
        };
        let mut state = self.state.lock();
        // The canceller marks the request and then looks here under the lock: one of us sees it.
        if is_cancelled(&command) {
            drop(state);
            return command.refuse(Error::Cancelled);
        }
        state.held.push(Held { until, command });
        self.count(&state);
    }

    /// A verb has gone by: what it was the last to overtake goes on.
    fn overtaken(&self) {
        let mut state = self.state.lock();
        for held in &mut state.held {
            if let Until::Overtaken(left) = &mut held.until {
                *left = left.saturating_sub(1);
            }
        }
        let over = |held: &mut Held| held.until == Until::Overtaken(0);
        let due: Vec<Held> = state.held.extract_if(.., over).collect();
        self.count(&state);
        drop(state);
        for Held { command, .. } in due {
            command.forward(&*self.inner);
        }
    }

    /// Lets the device carry a command out, and fails the answer.
    fn spoil(&self, command: AnyCommand<'_>, error: Error) {
        let hook: Arc<dyn Hook> = Arc::new(Spoil(error));
        let frame = Frame {
            hook: &hook,
            token: 0,
            next: command.frames(),
        };
        self.inner.issue(command.through(&frame));
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault")
            .field("outstanding", &self.outstanding())
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

impl Provider for Fault {
    fn issue(&self, command: AnyCommand<'_>) {
        if self.active.load(Acquire) == 0 {
            return self.inner.issue(command);
        }
        let destroys = command.kind().destroys();
        match self.judge(command.kind()) {
            None | Some(FaultAction::Delay(Until::Overtaken(0))) => self.inner.issue(command),
            // What is held back is not overtaken by what is held back after it.
            Some(FaultAction::Delay(until)) => return self.hold(command, until),
            Some(FaultAction::Fail(error)) if destroys => self.spoil(command, error),
            Some(FaultAction::Lose) if destroys => self.spoil(command, Error::Dropped),
            Some(FaultAction::Fail(error)) => command.refuse(error),
            Some(FaultAction::Lose) => drop(command),
        }
        self.overtaken();
    }

    fn cancel(&self, id: RequestId) {
        let held = {
            let mut state = self.state.lock();
            let wanted = |held: &Held| held.command.id() == id && !held.command.kind().destroys();
            let place = state.held.iter().position(wanted);
            let held = place.map(|place| state.held.remove(place));
            self.count(&state);
            held
        };
        match held {
            Some(Held { command, .. }) => command.refuse(Error::Cancelled),
            None => self.inner.cancel(id),
        }
    }

    passes_on!(inner);
}

/// Makes a failure of whatever the device answers.
struct Spoil(Error);

impl Hook for Spoil {
    fn completed(&self, _token: u64, done: &mut dyn Done) {
        done.fail(self.0);
    }
}

/// Whether the request was asked to end, and is one that takes notice (K8).
fn is_cancelled(command: &PendingCommand) -> bool {
    command.cancelled() && !command.kind().destroys()
}
