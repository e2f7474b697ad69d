//! How a thread waits for the host's daemon, and for neighbours.
//!
//! The engine's thread and one of the program may wait at the same time, each with an epoll instance of its own. A channel
//! has one bell for both: the one that takes its rings tells the other, if that sleeps.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io;
use rustix::net::RecvFlags;
use verbs_core::sync::Arc;
use verbs_core::sync::plain::{
    AtomicBool, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::Waiter;
use crate::ring::{Mapped, Watch};
use crate::time::{ALSO_MAX, Wakes};

/// After the line has carried something, this many calls of `receive` look at it. Later calls look when a waiting thread
/// has seen that there is something, so that polling costs no system call.
pub(super) const LOOKS: u32 = 512;

/// How often a port without a daemon looks for one.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// Events that one wait takes.
const EVENTS: usize = 16;
/// What events of the waiter itself and of the line are called; those of channels have their numbers, behind these.
const WAKES: u64 = 0;
const LINE: u64 = 1;
const WIRE: u64 = 2;
const CHANNELS: u64 = 3;

/// What was heard of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) number: u32,
    /// How often the neighbour has rung since the channel was made.
    pub(super) rings: u64,
    /// The neighbour has closed its end.
    pub(super) is_over: bool,
}

struct Watched {
    bell: Arc<OwnedFd>,
    rings: u64,
    /// Packets that arrive in its ring; `None` until they may be read.
    packets: Option<Watch<Mapped>>,
}

/// The channels and sockets, and who sleeps.
#[derive(Default)]
struct Watching {
    channels: BTreeMap<u32, Watched>,
    /// Sockets of the network.
    wire: Arc<[Arc<OwnedFd>]>,
    /// Threads that sleep until neighbours ring.
    sleepers: u32,
    /// One of them is the program's.
    is_beside: bool,
}

impl Watching {
    fn rings(&self) -> impl Iterator<Item = &Watch<Mapped>> {
        let channels = self.channels.values();
        channels.filter_map(|watched| watched.packets.as_ref())
    }

    /// Neighbours ring from now on when they have written something. Returns the first channel that has something already.
    fn lies_down(&self) -> Option<Heard> {
        let is_busy = |ring: &Watch<Mapped>| !ring.sleep();
        let mut channels = self.channels.iter();
        let (&number, watched) =
            channels.find(|(_, it)| it.packets.as_ref().is_some_and(is_busy))?;
        if self.sleepers > 1 {
            watched.packets.iter().for_each(Watch::sleeps_on);
        }
        Some(Heard {
            number,
            rings: watched.rings,
            is_over: false,
        })
    }

    /// A thread that has slept is awake.
    fn one_is_awake(&mut self, was_beside: bool) {
        self.sleepers -= 1;
        self.is_beside &= !was_beside;
        // Neighbours go on ringing for the other one.
        if self.sleepers == 0 {
            self.rings().for_each(Watch::wake);
        }
    }
}

pub(super) struct LineWaiter {
    /// The line and the bells, and `wakes`, for the engine's thread.
    engine: OwnedFd,
    wakes: Wakes,
    /// The line and the bells, and `changes`, for the program's thread.
    beside: OwnedFd,
    changes: Wakes,
    /// There is no daemon: a thread that waits looks for one now and then.
    is_cut: AtomicBool,
    /// The line has something to read, or has ended. Reported once by the system; whoever clears it reads.
    has_line: AtomicBool,
    /// The same of sockets of the network; the system reports once that they have something, and then when it is asked to
    /// again.
    has_wire: AtomicBool,
    /// Never held while waiting. A receiver takes it only when a channel begins or ends.
    watching: Mutex<Watching>,
    /// By the channel's number: the last word about each.
    heard: Mutex<BTreeMap<u32, Heard>>,
    has_heard: AtomicBool,
}

impl LineWaiter {
    pub(super) fn new(line: &OwnedFd) -> io::Result<Self> {
        let waiter = Self {
            engine: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wakes: Wakes::new()?,
            beside: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            changes: Wakes::new()?,
            is_cut: AtomicBool::new(false),
            has_line: AtomicBool::new(true),
            has_wire: AtomicBool::new(false),
            watching: Mutex::default(),
            heard: Mutex::default(),
            has_heard: AtomicBool::new(false),
        };
        let data = || epoll::EventData::new_u64(WAKES);
        let (engine, beside) = (&waiter.engine, &waiter.beside);
        epoll::add(engine, &waiter.wakes, data(), epoll::EventFlags::IN)?;
        epoll::add(beside, &waiter.changes, data(), epoll::EventFlags::IN)?;
        waiter.watch_line(line)?;
        Ok(waiter)
    }

    /// Both threads wait for that descriptor from now on.
    fn wait_for(&self, fd: &OwnedFd, name: u64, flags: epoll::EventFlags) -> io::Result<()> {
        for thread in [&self.engine, &self.beside] {
            epoll::add(thread, fd, epoll::EventData::new_u64(name), flags)?;
        }
        Ok(())
    }

    /// Neither does any longer.
    fn forget(&self, fd: &OwnedFd) {
        for thread in [&self.engine, &self.beside] {
            let _ = epoll::delete(thread, fd);
        }
    }

    /// Waits for that line. One that is closed is no longer waited for.
    pub(super) fn watch_line(&self, line: &OwnedFd) -> io::Result<()> {
        self.wait_for(line, LINE, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        self.leave_line();
        Ok(())
    }

    /// Whether there is no daemon.
    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Release);
        // A thread that waits without end does not know it yet.
        self.changed();
    }

    /// What is waited for has changed: threads that wait begin again.
    fn changed(&self) {
        self.changes.ring();
        self.wake();
    }

    /// Waits for these sockets of the network from now on, and no longer for others.
    pub(super) fn watch_wire(&self, sockets: Arc<[Arc<OwnedFd>]>) {
        let before = std::mem::replace(&mut self.watching.lock().wire, Arc::clone(&sockets));
        before.iter().for_each(|socket| self.forget(socket));
        for socket in sockets.iter() {
            // Without it, packets are noticed when something else wakes the thread.
            let _ = self.wait_for(socket, WIRE, epoll::EventFlags::empty());
        }
        self.has_wire.store(true, Release);
        self.changed();
    }

    /// Has the system report once more when sockets of the network have something.
    pub(super) fn arm_wire(&self) {
        let sockets = Arc::clone(&self.watching.lock().wire);
        self.arm(&sockets);
    }

    fn arm(&self, sockets: &[Arc<OwnedFd>]) {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        for socket in sockets {
            for thread in [&self.engine, &self.beside] {
                // A socket that has just gone has nothing.
                let _ = epoll::modify(thread, socket, epoll::EventData::new_u64(WIRE), flags);
            }
        }
    }

    /// Whether sockets of the network have something, and were not looked at since.
    pub(super) fn take_wire(&self) -> bool {
        self.has_wire.load(Relaxed) && self.has_wire.swap(false, AcqRel)
    }

    /// Whether the line has something to read, and was not read since.
    pub(super) fn take_line(&self) -> bool {
        // Usually not, and every poll asks this.
        self.has_line.load(Relaxed) && self.has_line.swap(false, AcqRel)
    }

    /// The line was not read to its end.
    pub(super) fn leave_line(&self) {
        self.has_line.store(true, Release);
    }

    /// What was heard of channels since the last call.
    pub(super) fn take_heard(&self) -> Option<BTreeMap<u32, Heard>> {
        // Usually nothing, and every poll asks this.
        let any = self.has_heard.load(Relaxed) && self.has_heard.swap(false, AcqRel);
        any.then(|| std::mem::take(&mut *self.heard.lock()))
    }

    /// Waits for a channel's bell from now on.
    pub(super) fn add(&self, number: u32, bell: Arc<OwnedFd>) -> io::Result<()> {
        self.wait_for(&bell, u64::from(number) + CHANNELS, epoll::EventFlags::IN)?;
        let watched = Watched {
            bell,
            rings: 0,
            packets: None,
        };
        self.watching.lock().channels.insert(number, watched);
        Ok(())
    }

    /// Waits for packets of that channel, too.
    pub(super) fn watch(&self, number: u32, packets: Watch<Mapped>) {
        if let Some(watched) = self.watching.lock().channels.get_mut(&number) {
            watched.packets = Some(packets);
        }
        // A thread that waits does not know it yet.
        self.changed();
    }

    /// Waits for that channel no longer.
    pub(super) fn remove(&self, number: u32) {
        let watched = self.watching.lock().channels.remove(&number);
        if let Some(watched) = watched {
            self.forget(&watched.bell);
        }
    }

    /// Waits for no channel any longer.
    pub(super) fn clear(&self) {
        let numbers: Vec<_> = self.watching.lock().channels.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.remove(number));
    }

    fn note(&self, heard: Heard) {
        let mut all = self.heard.lock();
        let known = all.entry(heard.number).or_insert(heard);
        *known = Heard {
            is_over: known.is_over || heard.is_over,
            ..heard
        };
        drop(all);
        self.has_heard.store(true, Release);
    }

    /// A thread is about to sleep, and neighbours ring from now on when they have written something. `false` if there is
    /// something to receive now, and the thread does not sleep. It does not linger first: on a busy machine one that is
    /// woken runs sooner than one that has given way.
    pub(super) fn falls_asleep(&self, is_beside: bool) -> bool {
        let mut watching = self.watching.lock();
        // In this order: whoever takes something in looks at it under the lock afterwards.
        watching.sleepers += 1;
        watching.is_beside |= is_beside;
        let flags = [&self.has_line, &self.has_heard, &self.has_wire];
        let has_something = flags.iter().any(|flag| flag.load(Acquire));
        let busy = match has_something {
            true => None,
            false => watching.lies_down(),
        };
        if !has_something && busy.is_none() {
            self.arm(&watching.wire);
            return true;
        }
        watching.one_is_awake(is_beside);
        drop(watching);
        // Of many channels, that one is read next.
        busy.into_iter().for_each(|heard| self.note(heard));
        false
    }

    /// A thread that has slept is awake.
    pub(super) fn is_awake(&self, is_beside: bool) {
        self.watching.lock().one_is_awake(is_beside);
    }

    /// Takes in what the system has reported to a thread.
    fn take_in(&self, events: &[epoll::Event], own: &Wakes) {
        for event in events {
            let data = event.data;
            match data.u64() {
                WAKES => own.take(),
                LINE => self.leave_line(),
                WIRE => self.has_wire.store(true, Release),
                number => {
                    let number = u32::try_from(number - CHANNELS);
                    number.into_iter().for_each(|number| self.was_rung(number));
                }
            }
        }
    }

    /// How long a thread waits at most.
    fn timeout(&self, timeout: Option<Duration>) -> Option<Timespec> {
        let timeout = match self.is_cut.load(Acquire) {
            true => Some(timeout.map_or(RETRY, |timeout| timeout.min(RETRY))),
            false => timeout,
        };
        timeout.and_then(|timeout| Timespec::try_from(timeout).ok())
    }

    /// A neighbour has rung, or has ended.
    fn was_rung(&self, number: u32) {
        let mut watching = self.watching.lock();
        let Some(watched) = watching.channels.get_mut(&number) else {
            return;
        };
        let mut rings = [0; 64];
        let is_over = match rustix::net::recv(&watched.bell, &mut rings, RecvFlags::DONTWAIT) {
            Ok((0, _)) => true,
            Ok((count, _)) => {
                watched.rings += count as u64;
                false
            }
            Err(io::Errno::AGAIN | io::Errno::INTR) => false,
            Err(_) => true,
        };
        if is_over {
            // It would be reported again and again.
            self.forget(&watched.bell);
        }
        let rings = watched.rings;
        drop(watching);
        self.note(Heard {
            number,
            rings,
            is_over,
        });
    }
}

/// Room for what one wait reports.
fn no_events() -> [epoll::Event; EVENTS] {
    let none = epoll::Event {
        flags: epoll::EventFlags::empty(),
        data: epoll::EventData::new_u64(0),
    };
    [none; EVENTS]
}

impl Waiter for LineWaiter {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        let timeout = self.timeout(timeout);
        if !packets && self.watching.lock().is_beside {
            // The program's thread is told of everything else.
            let mut polled = [PollFd::new(&self.wakes, PollFlags::IN)];
            if let Ok(1..) = poll(&mut polled, timeout.as_ref()) {
                self.wakes.take();
            }
            return;
        }
        if packets && !self.falls_asleep(false) {
            return;
        }
        let mut events = no_events();
        // An error, such as a signal, is an early return.
        let named = epoll::wait(&self.engine, &mut events, timeout.as_ref()).unwrap_or(0);
        if packets {
            self.is_awake(false);
        }
        self.take_in(&events[..named], &self.wakes);
        let has_taken = |event: &epoll::Event| {
            let data = event.data;
            data.u64() != WAKES
        };
        // The program's thread has fallen asleep since: the system reports it nothing that was taken in here.
        if events[..named].iter().any(has_taken) && self.watching.lock().is_beside {
            self.changes.ring();
        }
    }

    fn wake(&self) {
        self.wakes.ring();
    }

    fn has_place(&self, also: usize) -> bool {
        also <= ALSO_MAX
    }

    fn wait_beside(
        &self,
        also: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Option<std::io::Result<()>> {
        if !self.has_place(also.len()) {
            return None;
        }
        let timeout = self.timeout(timeout);
        if !self.falls_asleep(true) {
            return Some(Ok(()));
        }
        let mut polled = ArrayVec::<_, { ALSO_MAX + 1 }>::new();
        polled.push(PollFd::new(&self.beside, PollFlags::IN));
        let also = also.iter().copied();
        polled.extend(also.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let waited = poll(&mut polled, timeout.as_ref());
        self.is_awake(true);
        if waited.is_ok() && !polled[0].revents().is_empty() {
            let mut events = no_events();
            let now = Timespec::default();
            let named = epoll::wait(&self.beside, &mut events, Some(&now)).unwrap_or(0);
            self.take_in(&events[..named], &self.changes);
        }
        Some(waited.map(drop).map_err(Into::into))
    }
}

impl fmt::Debug for LineWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineWaiter")
            .field("is_cut", &self.is_cut)
            .field("has_line", &self.has_line)
            .finish_non_exhaustive()
    }
}
