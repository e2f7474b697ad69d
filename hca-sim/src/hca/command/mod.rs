//! The command interface, as hardware has it.
//!
//! A provider that stands in front of the one that carries commands out. It has a number of command slots, each command
//! takes its time in one, and a command that finds no slot waits in line. That is what makes requests pend, complete
//! out of order, and be cancelled before they begin, as they are with a real HCA. By default it costs nothing: time is
//! zero, slots are unbounded, and commands pass straight through on the issuer's stack.

mod datagram;
mod queue;

#[cfg(all(test, not(verbs_loom)))]
mod tests;

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use slab::Slab;
use verbs_core::extension::ExtensionInfo;
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::provider::Vouch;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{AnyCommand, Error, PendingCommand, Provider, ProviderAttr, RequestId};

use crate::clock::Instant;
use crate::engine::{Due, Engine, Timer};
use crate::hca::command::datagram::Held;
use crate::hca::command::queue::{Parked, Queue};
use crate::hca::provider::vouch;

/// How long a command takes in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CommandTime {
    /// No time: a command that finds a slot is carried out on the issuer's stack.
    #[default]
    Zero,
    /// Always the same.
    Fixed(Duration),
    /// Drawn for each command, each value from `min` to `max` equally likely. Counted in
    /// nanoseconds, at most 584 years.
    Drawn {
        /// The shortest time.
        min: Duration,
        /// The longest time; `min` if it is below that.
        max: Duration,
    },
}

/// The order in which commands with different times complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CommandOrder {
    /// Each when its time is over.
    #[default]
    OutOfOrder,
    /// None before those that began earlier.
    InOrder,
}

/// The properties of a command interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandConfig {
    /// Commands that are carried out at the same time; further ones wait in line. Unbounded by default, so that no
    /// command waits unless it must. The device's limit of pending requests bounds how many may wait; beyond it
    /// requests end with [`Error::TooManyRequests`]; destroys are exempt.
    pub slots: NonZeroU32,
    /// How long each takes; zero by default.
    pub time: CommandTime,
    /// The order in which they complete; out of order by default, which shows only if times are drawn.
    pub order: CommandOrder,
    /// The seed of drawn times: with the same seed, commands have the same times in the order in which they begin.
    pub seed: u64,
    /// Whether the management datagrams that the device answers itself are commands too, as with adapters whose
    /// firmware answers them: each takes a slot and its time, and the reply is sent when the command completes. Off by
    /// default.
    pub datagrams: bool,
}

impl Default for CommandConfig {
    fn default() -> Self {
        Self {
            slots: NonZeroU32::MAX,
            time: CommandTime::Zero,
            order: CommandOrder::OutOfOrder,
            seed: 0,
            datagrams: false,
        }
    }
}

/// How busy a command interface is. The first two are of one moment; a slot is released right after its command has
/// completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CommandCounters {
    /// Commands in slots. Commands that pass straight through an unbounded interface are not counted.
    pub executing: u32,
    /// Requests that wait for a slot: the backpressure.
    pub queued: u32,
    /// The most that have waited at once.
    pub max_queued: u32,
    /// Requests that were cancelled before they began.
    pub cancelled: u64,
}

/// A provider with command slots and command times, in front of the one that carries commands out.
///
/// # Completion
/// With time zero and a slot free, inline, without a lock or an allocation. Otherwise the request pends, and is carried
/// out when its time is over: on the engine's thread, or on the thread that moves a virtual clock. With time zero and
/// no slot free, it is carried out on the thread that releases the slot it gets.
///
/// A command is in its slot until the provider behind has taken it. If that provider makes it pend again, it waits
/// there, not in a slot.
///
/// # Context
/// Takes a lock when a request pends, never one while it completes or passes anything on (K4).
///
/// # Cancel safety
/// A request that waits for a slot is taken out and ends with [`Error::Cancelled`]; a request whose command has begun
/// is left alone, and so is every destroy (K8).
pub struct CommandInterface {
    shared: Arc<Shared>,
}

struct Shared {
    /// Itself, for its timers to call.
    me: Weak<Self>,
    inner: Arc<dyn Provider>,
    engine: Engine,
    config: CommandConfig,
    queue: Queue<SlotWork>,
    executing: Mutex<Executing>,
    /// Mirrors `Executing::removed` for the path that takes no lock.
    removed: AtomicBool,
    cancelled: AtomicU64,
}

/// The commands whose time is running.
#[derive(Default)]
struct Executing {
    commands: Slab<Running>,
    /// Commands that have begun.
    begun: u64,
    /// The end of the time of the command that began last.
    last: Instant,
    removed: bool,
}

/// A command whose time is running.
struct Running {
    /// Its number in the order of beginning; the timer's token has it too.
    number: u32,
    timer: Timer,
    command: SlotWork,
}

impl CommandInterface {
    /// A command interface in front of `inner`, whose command times run on `engine`.
    pub fn new(inner: Arc<dyn Provider>, engine: Engine, config: CommandConfig) -> Self {
        let shared = Arc::new_cyclic(|me| Shared {
            me: Weak::clone(me),
            inner,
            engine,
            config,
            queue: Queue::new(config.slots.get()),
            executing: Mutex::new(Executing::default()),
            removed: AtomicBool::new(false),
            cancelled: AtomicU64::new(0),
        });
        Self { shared }
    }

    /// How busy it is.
    pub fn counters(&self) -> CommandCounters {
        let shared = &*self.shared;
        let counts = shared.queue.counts();
        CommandCounters {
            executing: counts.executing,
            queued: counts.queued,
            max_queued: u32::try_from(shared.queue.longest()).unwrap_or(u32::MAX),
            cancelled: shared.cancelled.load(Relaxed),
        }
    }

    /// The device is removed: all requests in line and in slots end with [`Error::DeviceRemoved`], and so do later ones
    /// (K15). Destroys are passed to the provider behind at once, without taking time, so that it can release what it
    /// has. Returns how many requests it ended.
    ///
    /// At a removal, call this before [`DeviceCore::remove`](verbs_core::device::DeviceCore::remove): requests that the
    /// latter ends first are counted as late here.
    pub fn fail_all(&self) -> usize {
        let shared = &self.shared;
        let executing = {
            let mut executing = shared.executing.lock();
            executing.removed = true;
            shared.removed.store(true, Release);
            std::mem::take(&mut executing.commands)
        };
        let waiting = shared.queue.take_all();
        // In the order in which they began.
        let mut begun: Vec<_> = executing.into_iter().map(|(_, running)| running).collect();
        begun.sort_unstable_by_key(|running| running.number);
        let ended = begun.len() + waiting.len();
        for Running { timer, command, .. } in begun {
            shared.engine.cancel(timer);
            shared.pass_on(command);
            shared.give_back();
        }
        for command in waiting {
            shared.pass_on(command);
        }
        ended
    }
}

impl fmt::Debug for CommandInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandInterface")
            .field("config", &self.shared.config)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Provider for CommandInterface {
    #[inline]
    fn issue(&self, command: AnyCommand<'_>) {
        let shared = &self.shared;
        if shared.removed.load(Acquire) {
            return match command.kind().destroys() {
                true => shared.inner.issue(command),
                false => command.refuse(Error::DeviceRemoved),
            };
        }
        if shared.config.time == CommandTime::Zero {
            if shared.config.slots == NonZeroU32::MAX {
                return shared.inner.issue(command);
            }
            if shared.queue.try_enter() {
                shared.inner.issue(command);
                return shared.give_back();
            }
        }
        shared.park(command);
    }

    fn cancel(&self, id: RequestId) {
        let shared = &self.shared;
        let wanted = |work: &SlotWork| work.is_request(id);
        match shared.queue.take(wanted) {
            Some(command) => shared.cancelled(command),
            // It may have passed through to the provider behind.
            None => shared.inner.cancel(id),
        }
    }

    fn process_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        let shared = &self.shared;
        if shared.config.datagrams
            && Held::is_the_devices(incoming)
            && let Some(later) = incoming.later.take()
        {
            shared.enter(SlotWork::Datagram(Held::new(incoming, later)));
            return MadVerdict::Later;
        }
        shared.inner.process_mad(incoming, reply)
    }

    fn extensions(&self) -> &[ExtensionInfo] {
        self.shared.inner.extensions()
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.shared.inner.query_provider(port)
    }

    fn seed(&self) -> Option<u64> {
        self.shared.inner.seed()
    }

    fn vouch(&self) -> Option<Vouch> {
        vouch::over(self, &*self.shared.inner)
    }

    fn timer(&self) -> Option<Arc<dyn verbs_core::Timer>> {
        self.shared.inner.timer()
    }

    fn host_ports(&self) -> Option<Arc<dyn verbs_core::host::HostPorts>> {
        self.shared.inner.host_ports()
    }
}

impl Due for Shared {
    /// The time of a command is over; the token names it.
    fn due(&self, _now: Instant, token: u64) {
        let (number, index) = ((token >> 32) as u32, (token & 0xffff_ffff) as usize);
        let command = {
            let mut executing = self.executing.lock();
            match executing.commands.get(index) {
                Some(running) if running.number == number => {
                    executing.commands.remove(index).command
                }
                // The removal came first.
                _ => return,
            }
        };
        self.pass_on(command);
        self.give_back();
    }
}

impl Shared {
    #[inline(never)]
    fn park(&self, command: AnyCommand<'_>) {
        if let Some(command) = command.pend() {
            self.enter(SlotWork::Command(command));
        }
    }

    /// Takes a slot, or waits in line for one.
    fn enter(&self, work: SlotWork) {
        match self.queue.park(work, SlotWork::is_cancelled) {
            Parked::Enter(work) => self.carry_out(work),
            Parked::Waits => {}
            Parked::Marked(work) => self.cancelled(work),
        }
    }

    /// Gives a slot back, and carries out what waited for it.
    #[inline]
    fn give_back(&self) {
        if let Some(next) = self.queue.leave() {
            self.carry_out(next);
        }
    }

    /// Begins a command that has a slot; when that takes no time, continues with commands that wait.
    #[inline(never)]
    fn carry_out(&self, mut command: SlotWork) {
        loop {
            if command.is_cancelled() {
                self.cancelled(command);
            } else if let Some(command) = self.begin(command) {
                self.pass_on(command);
            } else {
                return;
            }
            match self.queue.leave() {
                Some(next) => command = next,
                None => return,
            }
        }
    }

    /// Starts the command's time; returns the command if that is over already.
    fn begin(&self, command: SlotWork) -> Option<SlotWork> {
        // The lock is held until the timer is set, so that commands that are due at the same time complete in the order
        // in which they began. The engine calls no code under its own lock.
        let mut executing = self.executing.lock();
        if executing.removed {
            return Some(command);
        }
        let number = executing.begun;
        executing.begun += 1;
        let time = draw(self.config.time, self.config.seed, number);
        let in_order = self.config.order == CommandOrder::InOrder;
        if time.is_zero() && (!in_order || executing.commands.is_empty()) {
            return Some(command);
        }
        let mut deadline = self.engine.now() + time;
        if in_order {
            deadline = deadline.max(executing.last);
            executing.last = deadline;
        }
        let number = (number & 0xffff_ffff) as u32;
        let place = executing.commands.vacant_entry();
        let token = u64::from(number) << 32 | place.key() as u64;
        let me: Arc<dyn Due> = self.me.upgrade().expect("whoever calls this holds it");
        let timer = self.engine.at(deadline, me, token);
        place.insert(Running {
            number,
            timer,
            command,
        });
        None
    }

    /// Hands a command to the provider behind; if the device is removed, only destroys.
    fn pass_on(&self, work: SlotWork) {
        let removed = self.removed.load(Acquire);
        match work {
            SlotWork::Command(command) if removed && !command.kind().destroys() => {
                command.refuse(Error::DeviceRemoved);
            }
            SlotWork::Command(command) => command.forward(&*self.inner),
            SlotWork::Datagram(_) if removed => {}
            SlotWork::Datagram(held) => held.answer(&*self.inner),
        }
    }

    fn cancelled(&self, work: SlotWork) {
        if let SlotWork::Command(command) = work {
            self.cancelled.fetch_add(1, Relaxed);
            command.refuse(Error::Cancelled);
        }
    }
}

/// The work that takes a slot.
#[expect(
    clippy::large_enum_variant,
    reason = "commands are the usual case, and are moved without an allocation"
)]
enum SlotWork {
    Command(PendingCommand),
    Datagram(Box<Held>),
}

impl SlotWork {
    /// Whether a cancel of the request was asked for, and the request is one that can be cancelled (K8).
    fn is_cancelled(&self) -> bool {
        match self {
            Self::Command(command) => command.cancelled() && !command.kind().destroys(),
            Self::Datagram(_) => false,
        }
    }

    /// Whether it is that request, and one that can be cancelled.
    fn is_request(&self, id: RequestId) -> bool {
        match self {
            Self::Command(command) => command.id() == id && !command.kind().destroys(),
            Self::Datagram(_) => false,
        }
    }
}

/// The time of the `number`-th command to begin.
fn draw(time: CommandTime, seed: u64, number: u64) -> Duration {
    match time {
        CommandTime::Zero => Duration::ZERO,
        CommandTime::Fixed(time) => time,
        CommandTime::Drawn { min, max } => {
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let (min, max) = (nanos(min), nanos(max));
            let values = u128::from(max.saturating_sub(min)) + 1;
            // The upper 64 bits of the product lie below `values`, so the cast loses nothing.
            let drawn = ((u128::from(mix(seed, number)) * values) >> 64) as u64;
            Duration::from_nanos(min.saturating_add(drawn))
        }
    }
}

/// The `number`-th output of a SplitMix64 generator that starts at `seed`.
fn mix(seed: u64, number: u64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_add(STEP.wrapping_mul(number.wrapping_add(1)));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
