//! One channel: a connection, its receives, its commands, and the handles of their memory.
//!
//! All of it is one [`Core`] behind a lock whose holders run bounded code: posting, polling, mapping, and issuing
//! requests, whose routines are queued until the lock is released (NoBlock). Routines of commands are called
//! after the lock is released, one at a time. Completions drive everything that a command needs before its memory
//! returns to its owner: no thread waits.

mod login;
pub mod plan;
mod post;
mod prepare;
mod receive;
mod release;
pub mod table;
mod task;

use std::collections::VecDeque;
use std::fmt;

use verbs_cm::Connection;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Access, Cq, Extent, FastMr, Fmr, FmrPool, Memory, Mr, Wc, collect};

use crate::initiator::config::Options;
use crate::initiator::error::{Error, Outcome};
use crate::initiator::shared::Shared;
use crate::initiator::table::{Counters, SlotId, State, Table};
use crate::iu::{Cdb, InitiatorLogout, Lun, PortId, Tag, TaskAttribute, TaskFunction};

/// A channel of a session.
pub(crate) struct Channel {
    /// The session's name.
    initiator: PortId,
    shared: Weak<Shared>,
    options: Options,
    core: Mutex<Core>,
}

/// A SCSI command: its CDB, its logical unit, its memory.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// What to do.
    pub cdb: Cdb<'a>,
    /// The logical unit.
    pub lun: Lun,
    /// How it is ordered among other commands.
    pub attribute: TaskAttribute,
    /// The memory of its data.
    pub data: Data<'a>,
}

/// The memory of a command: a scatter list. It is shared with the device until the command's routine runs.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// None.
    None,
    /// Receives the data that the logical unit sends.
    In(&'a [Extent<'a>]),
    /// Holds the data for the logical unit.
    Out(&'a [Extent<'a>]),
}

/// Receives the ends of commands by number. A driver uses it instead of a closure for each command, so nothing is
/// allocated.
pub trait Adapter: Send + Sync {
    /// The command of that number has ended. Called once for each that was accepted, under NoBlock.
    fn ended(&self, number: u64, outcome: Outcome);
}

/// The routine of a command; it is called once, when the command has ended.
pub(crate) enum Routine {
    Call(Box<dyn FnOnce(Outcome) + Send>),
    Adapter(Arc<dyn Adapter>, u64),
}

impl Routine {
    pub(crate) fn new(call: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self::Call(Box::new(call))
    }

    fn call(self, outcome: Outcome) {
        match self {
            Self::Call(call) => call(outcome),
            Self::Adapter(adapter, number) => adapter.ended(number, outcome),
        }
    }
}

/// The state that a channel's lock protects.
pub(crate) struct Core {
    phase: Phase,
    table: Table,
    slots: Vec<Slot>,
    /// Calls to make after the lock is released.
    due: VecDeque<Due>,
    /// A thread is making these calls.
    calling: bool,
    /// Task management that waits for its slot.
    tasks: VecDeque<Task>,
    task: Option<Task>,
    hands: Hands,
    wires: Option<Wires>,
    /// A unit on its way from or to registered memory.
    scratch: Vec<u8>,
    /// The longest unit that the target takes.
    iu_len_max: usize,
    /// The target takes immediate data.
    immediate: bool,
    /// Commands by the format of their memory.
    formats: Formats,
}

/// Handles of a channel.
#[derive(Default)]
struct Hands {
    fast: Vec<FastMr>,
    fmr: Option<FmrPool>,
    /// Slots that wait for the pool's next flush, and for the flush that runs.
    unflushed: Vec<SlotId>,
    flushing: Vec<SlotId>,
}

/// What a channel posts to and polls.
struct Wires {
    // Dropped in this order.
    connection: Option<Connection>,
    cq: Cq,
    send: Mr,
    recv: Mr,
    /// Bytes of one slot's place in `send`.
    stride: usize,
}

/// The phase of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Logging in.
    Opening,
    /// Takes commands.
    Open,
    /// The connection is lost, or the channel was abandoned.
    Lost,
}

/// The state of one command.
#[derive(Default)]
struct Slot {
    lun: Lun,
    routine: Option<Routine>,
    outcome: Option<Outcome>,
    /// Bytes of the unit that was written.
    iu_len: usize,
    /// What the target may do with the memory.
    access: Access,
    handles: Vec<Handle>,
    /// How many of these handles the posted registrations have registered.
    registered: usize,
    /// Requests and invalidates in flight.
    pending: usize,
    /// The command's number in the order of sending on this channel.
    sent_as: u64,
    /// A command whose handles are being allocated.
    asked: Option<Box<prepare::Asked>>,
}

/// A key for part of a command's memory.
enum Handle {
    /// A handle of the pool.
    Fast { mr: FastMr, is_valid: bool },
    /// A handle allocated for the command.
    Own(FastMr),
    /// A handle of the pool of fast memory regions.
    Fmr(Fmr),
}

/// Task management.
pub(crate) struct Task {
    function: TaskFunction,
    lun: Lun,
    /// The command to abort.
    target: Option<SlotId>,
    routine: Routine,
    /// How many requests had been sent before it.
    mark: u64,
}

impl Task {
    /// A task management request to send.
    pub(crate) fn new(
        function: TaskFunction,
        lun: Lun,
        target: Option<SlotId>,
        routine: Routine,
    ) -> Self {
        Self {
            function,
            lun,
            target,
            routine,
            mark: 0,
        }
    }
}

/// A call to make after the lock is released.
enum Due {
    Routine(Routine, Outcome),
    Asynchronous(Lun, Vec<u8>),
    Lost(Error),
    /// A waiter may find a free slot.
    Room,
    /// A task management function that affects the other channels too.
    Reset(TaskFunction, Lun),
    Disconnect(Box<Connection>),
}

/// Commands by the format in which their memory was described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Formats {
    /// Without data.
    pub none: u64,
    /// One descriptor.
    pub direct: u64,
    /// A table of descriptors.
    pub indirect: u64,
    /// Data inside the command.
    pub immediate: u64,
    /// Of the direct and indirect ones, those by keys of published memory.
    pub published: u64,
    /// Descriptors in tables.
    pub entries: u64,
}

/// A command that was refused before anything was done, with its routine.
pub struct Refused<F> {
    /// Why.
    pub error: Error,
    /// The routine that would have been called.
    pub routine: F,
}

impl<F> fmt::Debug for Refused<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Channel {
    /// Opens a channel: creates its device objects, then connects.
    pub(crate) async fn open(shared: &Arc<Shared>, number: u8) -> Result<Arc<Self>, Error> {
        login::open(shared, number).await
    }

    /// A channel that is not connected yet.
    fn new(number: u8, shared: &Arc<Shared>, options: &Options) -> Self {
        let depth = options.queue_depth;
        let slot = |_| Slot {
            handles: Vec::with_capacity(options.runs_max.into()),
            ..Slot::default()
        };
        let core = Core {
            phase: Phase::Opening,
            table: Table::new(number, depth),
            slots: (0..=depth).map(slot).collect(),
            due: VecDeque::with_capacity(2 * usize::from(depth) + 8),
            calling: false,
            tasks: VecDeque::new(),
            task: None,
            hands: Hands::default(),
            wires: None,
            scratch: Vec::new(),
            iu_len_max: 0,
            immediate: false,
            formats: Formats::default(),
        };
        Self {
            initiator: shared.initiator(),
            shared: Arc::downgrade(shared),
            options: options.clone(),
            core: Mutex::new(core),
        }
    }

    /// Runs `work` under the lock, then makes the calls that have become due.
    fn with<T>(self: &Arc<Self>, work: impl FnOnce(&mut Core) -> T) -> T {
        collect(|| {
            let mut core = self.core.lock();
            let result = work(&mut core);
            if core.calling {
                return result;
            }
            core.calling = true;
            while let Some(due) = core.due.pop_front() {
                drop(core);
                self.call(due);
                core = self.core.lock();
            }
            core.calling = false;
            result
        })
    }

    fn call(self: &Arc<Self>, due: Due) {
        let shared = || self.shared.upgrade();
        match due {
            Due::Routine(routine, outcome) => routine.call(outcome),
            Due::Asynchronous(lun, sense) => {
                if let Some(shared) = shared() {
                    shared.asynchronous(lun, &sense);
                }
            }
            Due::Lost(error) => {
                if let Some(shared) = shared() {
                    shared.lost(self, &error);
                }
            }
            Due::Room => {
                if let Some(shared) = shared() {
                    shared.room();
                }
            }
            Due::Reset(function, lun) => {
                if let Some(shared) = shared() {
                    shared.reset(self, function, lun);
                }
            }
            // The connection's own step tells the peer and destroys the queue pair.
            Due::Disconnect(connection) => {
                let _ = connection.close().issue(|_closed| ());
            }
        }
    }

    /// Begins a command. `routine` makes the routine; it is called only if the command is accepted.
    pub(crate) fn command(
        self: &Arc<Self>,
        command: &Command<'_>,
        routine: impl FnOnce() -> Routine,
    ) -> Result<Tag, Error> {
        self.with(|core| {
            let id = prepare::begin(core, self, command)?;
            core.slot(id).routine = Some(routine());
            core.send_ready(self);
            Ok(core.table.tag(id))
        })
    }

    /// Handles what has completed.
    fn turn(self: &Arc<Self>) {
        self.with(|core| {
            let mut out = [Wc::default(); 16];
            loop {
                let Some(wires) = &mut core.wires else { return };
                let polled = wires.cq.poll(&mut out).len();
                for wc in &out[..polled] {
                    receive::completed(core, self, wc);
                }
                if polled == 0 {
                    let Some(wires) = &mut core.wires else { return };
                    if wires.cq.arm(verbs_core::Arm::Next) == verbs_core::Armed::Empty {
                        break;
                    }
                }
            }
            core.send_ready(self);
        });
    }

    /// Abandons the channel: every command ends, each in its own time.
    pub(crate) fn abandon(self: &Arc<Self>, error: &Error) {
        self.with(|core| release::lose(core, self, error));
    }

    /// Tells the target that the channel is about to be closed, and abandons it; the caller closes the
    /// connection.
    pub(crate) fn log_out(self: &Arc<Self>) -> Option<Connection> {
        self.with(|core| {
            let logout = InitiatorLogout::default();
            // The end of the connection says as much.
            let _ = core.answer(&logout.unit());
            let wires = core.wires.as_mut();
            let connection = wires.and_then(|wires| wires.connection.take());
            release::lose(core, self, &Error::LoggedOut);
            connection
        })
    }

    /// Whether it takes commands.
    pub(crate) fn is_open(&self) -> bool {
        self.core.lock().phase == Phase::Open
    }

    /// Free slots; none if the channel takes no commands.
    pub(crate) fn available(&self) -> usize {
        let core = self.core.lock();
        match core.phase {
            Phase::Open => core.table.available(),
            _ => 0,
        }
    }

    /// Its counters so far.
    pub(crate) fn counters(&self) -> (Counters, Formats) {
        let core = self.core.lock();
        (core.table.counters(), core.formats)
    }

    /// Requests that the target still takes.
    pub(crate) fn limit(&self) -> i32 {
        self.core.lock().table.limit()
    }
}

impl Core {
    fn slot(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[usize::from(id.index)]
    }

    /// Sets the outcome of a command, unless it already has one.
    fn claim(&mut self, channel: &Arc<Channel>, id: SlotId, error: Error) {
        if self.table.claim(id).is_some() {
            self.slot(id).outcome = Some(Err(error));
            release::let_go(self, channel, id, None);
        }
    }

    /// Whether a slot's outcome is decided, and nothing of the command is in flight.
    fn is_over(&self, id: SlotId) -> bool {
        let slot = &self.slots[usize::from(id.index)];
        self.table.state(id) == State::Claimed && slot.pending == 0 && slot.handles.is_empty()
    }
}

/// A piece of memory that a command keeps alive.
#[derive(Clone, Debug)]
struct Piece {
    memory: Arc<Memory>,
    offset: usize,
    len: u32,
}

impl Piece {
    fn extent(&self) -> Extent<'_> {
        Extent {
            memory: &self.memory,
            offset: self.offset,
            len: self.len,
        }
    }
}

/// Numbers of work requests: the kind, and the slot or receive.
mod wr_id {
    pub(super) const SEND: u64 = 1 << 32;
    pub(super) const RECV: u64 = 2 << 32;
    pub(super) const INVALIDATE: u64 = 3 << 32;
    pub(super) const ANSWER: u64 = 4 << 32;
    pub(super) const KIND: u64 = !0 << 32;
}
