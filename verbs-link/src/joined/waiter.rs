//! How a thread waits for the host's daemon, and for neighbours.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io;
use rustix::net::RecvFlags;
use verbs_core::sync::Arc;
use verbs_core::sync::plain::{
    AtomicBool, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::Waiter;
use crate::ring::{Mapped, Watch};

/// How often a port without a daemon looks for one.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// Events that one wait takes.
const EVENTS: usize = 16;
/// What events of the waiter itself and of the line are called; those of channels have their numbers, behind these.
const WAKES: u64 = 0;
const LINE: u64 = 1;
const CHANNELS: u64 = 2;

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

pub(super) struct LineWaiter {
    epoll: OwnedFd,
    wakes: OwnedFd,
    /// There is no daemon: a thread that waits looks for one now and then.
    is_cut: AtomicBool,
    /// The line has something to read, or has ended. Reported once by the system; whoever clears it reads.
    has_line: AtomicBool,
    /// Never held while waiting. A receiver takes it only when a channel begins or ends.
    channels: Mutex<BTreeMap<u32, Watched>>,
    /// By the channel's number: the last word about each.
    heard: Mutex<BTreeMap<u32, Heard>>,
    has_heard: AtomicBool,
}

impl LineWaiter {
    pub(super) fn new(line: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let add = |fd, data, flags| epoll::add(&epoll, fd, epoll::EventData::new_u64(data), flags);
        add(&wakes, WAKES, epoll::EventFlags::IN)?;
        let waiter = Self {
            epoll,
            wakes,
            is_cut: AtomicBool::new(false),
            has_line: AtomicBool::new(true),
            channels: Mutex::default(),
            heard: Mutex::default(),
            has_heard: AtomicBool::new(false),
        };
        waiter.watch_line(line)?;
        Ok(waiter)
    }

    /// Waits for that line. One that is closed is no longer waited for.
    pub(super) fn watch_line(&self, line: &OwnedFd) -> io::Result<()> {
        let once = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, line, epoll::EventData::new_u64(LINE), once)?;
        self.leave_line();
        Ok(())
    }

    /// Whether there is no daemon.
    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Release);
        // A thread that waits without end does not know it yet.
        self.wake();
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
        let data = epoll::EventData::new_u64(u64::from(number) + CHANNELS);
        epoll::add(&self.epoll, &bell, data, epoll::EventFlags::IN)?;
        let watched = Watched {
            bell,
            rings: 0,
            packets: None,
        };
        self.channels.lock().insert(number, watched);
        Ok(())
    }

    /// Waits for packets of that channel, too.
    pub(super) fn watch(&self, number: u32, packets: Watch<Mapped>) {
        if let Some(watched) = self.channels.lock().get_mut(&number) {
            watched.packets = Some(packets);
        }
        // A thread that waits does not know it yet.
        self.wake();
    }

    /// Waits for that channel no longer.
    pub(super) fn remove(&self, number: u32) {
        let watched = self.channels.lock().remove(&number);
        if let Some(watched) = watched {
            let _ = epoll::delete(&self.epoll, &watched.bell);
        }
    }

    /// Waits for no channel any longer.
    pub(super) fn clear(&self) {
        let numbers: Vec<_> = self.channels.lock().keys().copied().collect();
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

    /// Whether there is something to receive; if not, neighbours ring when there is. A thread does not linger first: on a
    /// busy machine one that is woken runs sooner than one that has given way.
    fn has_something(&self) -> bool {
        if self.has_line.load(Acquire) || self.has_heard.load(Acquire) {
            return true;
        }
        let channels = self.channels.lock();
        let rings = || channels.values().filter_map(|it| it.packets.as_ref());
        let is_busy = |watched: &Watched| {
            let ring = watched.packets.as_ref();
            ring.is_some_and(|ring| !ring.sleep())
        };
        let Some((&number, watched)) = channels.iter().find(|(_, it)| is_busy(it)) else {
            return false;
        };
        rings().for_each(Watch::wake);
        // Of many channels, that one is read next.
        let rings = watched.rings;
        drop(channels);
        self.note(Heard {
            number,
            rings,
            is_over: false,
        });
        true
    }

    /// A neighbour has rung, or has ended.
    fn was_rung(&self, number: u32) {
        let mut channels = self.channels.lock();
        let Some(watched) = channels.get_mut(&number) else {
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
            let _ = epoll::delete(&self.epoll, &watched.bell);
        }
        let rings = watched.rings;
        drop(channels);
        self.note(Heard {
            number,
            rings,
            is_over,
        });
    }
}

impl Waiter for LineWaiter {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        if packets && self.has_something() {
            return;
        }
        let timeout = match self.is_cut.load(Acquire) {
            true => Some(timeout.map_or(RETRY, |timeout| timeout.min(RETRY))),
            false => timeout,
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; EVENTS];
        // An error, such as a signal, is an early return.
        let named = epoll::wait(&self.epoll, &mut events, timeout.as_ref()).unwrap_or(0);
        if packets {
            let channels = self.channels.lock();
            let rings = channels.values().filter_map(|it| it.packets.as_ref());
            rings.for_each(Watch::wake);
        }
        for event in &events[..named] {
            let data = event.data;
            match data.u64() {
                WAKES => {
                    let mut count = [0; 8];
                    // Another thread may have been faster: then there is nothing to read.
                    let _ = io::read(&self.wakes, &mut count);
                }
                LINE => self.leave_line(),
                number => {
                    let number = u32::try_from(number - CHANNELS);
                    number.into_iter().for_each(|number| self.was_rung(number));
                }
            }
        }
    }

    fn wake(&self) {
        // Fails only when 2^64 - 2 wakes wait already.
        let _ = io::write(&self.wakes, &1_u64.to_ne_bytes());
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
