//! The command threads: a queue of commands for each.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use verbs_core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use verbs_core::sync::thread::{self, Thread};
use verbs_core::sync::{Arc, Mutex, OnceLock};
use verbs_core::{PendingCommand, RequestId};

use crate::cm::table::Step;

/// Work of a command thread.
pub(crate) enum Work {
    Command(PendingCommand),
    /// Work for a connection between verbs.
    Step(Step),
}

/// A queue of commands and the thread that carries them out, one after the other. The devices' limit of pending
/// requests bounds their number; steps of connections come with librdmacm's events, whose number depends on the
/// connections that its users have made.
#[derive(Default)]
pub(crate) struct Lane {
    /// Locked only for a push or a pop.
    queue: Mutex<VecDeque<Work>>,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Lane {
    /// Adds a command. Never waits.
    pub(crate) fn push(&self, work: Work) {
        self.queue.lock().push_back(work);
        self.wake();
    }

    /// Removes a command that has not begun and may end early.
    pub(crate) fn take(&self, id: RequestId) -> Option<PendingCommand> {
        let mut queue = self.queue.lock();
        let wanted = |work: &Work| match work {
            Work::Command(command) => command.id() == id && !command.kind().destroys(),
            Work::Step(_) => false,
        };
        let at = queue.iter().position(wanted)?;
        match queue.remove(at)? {
            Work::Command(command) => Some(command),
            Work::Step(_) => None,
        }
    }

    /// Ends the thread when it has carried out what is queued.
    pub(crate) fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn next(&self) -> Option<Work> {
        self.queue.lock().pop_front()
    }

    /// The thread: carries out commands until it has to stop. A routine that panics does not affect other commands.
    pub(crate) fn run(&self, carry_out: impl Fn(Work)) {
        // The first look finds commands that were added before.
        let _ = self.thread.set(thread::current());
        loop {
            match self.next() {
                Some(work) => shielded(|| carry_out(work)),
                None if self.stop.load(SeqCst) => return,
                None => thread::park(),
            }
        }
    }
}

/// Calls `f`, in which a client's code may panic. The panic's message has been printed.
pub(crate) fn shielded(f: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(f)).is_err() {
        tracing::error!("a routine or handler has panicked");
    }
}

/// The lanes of a NIC.
#[derive(Clone)]
pub(crate) struct Lanes {
    pub(crate) memory: Arc<Lane>,
    pub(crate) other: Arc<Lane>,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            memory: Arc::default(),
            other: Arc::default(),
        }
    }

    /// Adds a command to its lane. Commands on one object stay in order: those of regions are in one lane.
    pub(crate) fn push(&self, command: PendingCommand) {
        use PendingCommand::{DeregMr, RegMr, ReregMr};
        match command {
            RegMr(..) | ReregMr(..) | DeregMr(..) => self.memory.push(Work::Command(command)),
            command => self.other.push(Work::Command(command)),
        }
    }

    /// Adds work for a connection, behind the verbs that were issued before.
    pub(crate) fn step(&self, step: Step) {
        self.other.push(Work::Step(step));
    }

    /// Removes a command that has not begun and may end early.
    pub(crate) fn take(&self, id: RequestId) -> Option<PendingCommand> {
        self.other.take(id).or_else(|| self.memory.take(id))
    }

    pub(crate) fn stop(&self) {
        self.memory.stop();
        self.other.stop();
    }
}
