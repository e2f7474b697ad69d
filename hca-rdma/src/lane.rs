//! The command threads: a queue of commands for each.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use verbs_core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use verbs_core::sync::thread::{self, Thread};
use verbs_core::sync::{Arc, Mutex, OnceLock};
use verbs_core::{PendingCommand, RequestId};

/// A queue of commands and the thread that carries them out, one after the other. How many there can be is the limit of
/// pending requests of the devices.
#[derive(Default)]
pub(crate) struct Lane {
    /// Locked for a push or a pop, nothing more.
    queue: Mutex<VecDeque<PendingCommand>>,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Lane {
    /// Puts a command in. Never waits.
    pub(crate) fn push(&self, command: PendingCommand) {
        self.queue.lock().push_back(command);
        self.wake();
    }

    /// Takes a command out that has not begun and may end early.
    pub(crate) fn take(&self, id: RequestId) -> Option<PendingCommand> {
        let mut queue = self.queue.lock();
        let wanted = |command: &PendingCommand| command.id() == id && !command.kind().destroys();
        let at = queue.iter().position(wanted)?;
        queue.remove(at)
    }

    /// Ends the thread when it has carried out what it has.
    pub(crate) fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn next(&self) -> Option<PendingCommand> {
        self.queue.lock().pop_front()
    }

    /// The thread: carries out commands until it is told to stop. A routine that panics ends nobody else's command.
    pub(crate) fn run(&self, carry_out: impl Fn(PendingCommand)) {
        // Commands that came before are found by the first look.
        let _ = self.thread.set(thread::current());
        loop {
            match self.next() {
                Some(command) => shielded(|| carry_out(command)),
                None if self.stop.load(SeqCst) => return,
                None => thread::park(),
            }
        }
    }
}

/// Calls `f`, in which a client's code may panic. What the panic says has been printed.
pub(crate) fn shielded(f: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(f)).is_err() {
        tracing::error!("a routine or handler has panicked");
    }
}

/// Starts a thread.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(body)
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

    /// Puts a command where it belongs. Commands on one object stay in order: those of regions are in one lane.
    pub(crate) fn push(&self, command: PendingCommand) {
        use PendingCommand::{DeregMr, RegMr, ReregMr};
        match command {
            RegMr(..) | ReregMr(..) | DeregMr(..) => self.memory.push(command),
            command => self.other.push(command),
        }
    }

    /// Takes a command out that has not begun and may end early.
    pub(crate) fn take(&self, id: RequestId) -> Option<PendingCommand> {
        self.other.take(id).or_else(|| self.memory.take(id))
    }

    pub(crate) fn stop(&self) {
        self.memory.stop();
        self.other.stop();
    }
}
