//! An interface at work.
//!
//! What it knows is under one lock ([`State`]). Packets to be sent, completions, answers of the
//! administrator, events and the time come in; each takes the lock for a moment, changes what is known,
//! posts, and leaves what else is to be done as [`Action`]s, which follow when the lock is free. Nobody
//! waits anywhere and there is no thread: what takes several requests is a detached future that runs in
//! their completions.

mod act;
mod buffers;
mod entry;
mod keeper;
mod open;
mod receive;
mod state;

pub(crate) use open::open;

use std::net::IpAddr;
use std::task::{Context, Poll};

use verbs_cm::Manager;
use verbs_core::event::EventWatcher;
use verbs_core::mad::Time;
use verbs_core::sync::atomic::{AtomicU32, Ordering};
use verbs_core::sync::{Arc, AtomicWaker, Mutex, OnceLock};
use verbs_core::task::{self, OwnWaker};
use verbs_core::{Cq, Device, Gid, Lid, Memory, Mr, Pd, Qp, Timer, collect};

use crate::admin::Administration;
use crate::config::{Config, Mode};
use crate::counters::Counters;
use crate::error::{Error, SendError};
use crate::face::{Face, LinkInfo};
use crate::wire::{CONNECTED_MTU, HardwareAddress, Ip, group_of, too_big};
use state::{State, Verdict};

/// An interface, as everything that happens to it sees it. Fields go in this order.
pub(crate) struct Core {
    state: Mutex<State>,
    qp: Qp,
    /// Polled by its handler alone.
    cq: Mutex<Cq>,
    received: Mr,
    messages: Option<Mr>,
    _sent: [Mr; 2],
    pd: Pd,
    manager: Manager,
    admin: Arc<dyn Administration>,
    face: Arc<dyn Face>,
    timer: Arc<dyn Timer>,
    config: Config,
    kick: Kick,
    /// Woken when all work requests for datagrams have come back.
    drained: AtomicWaker,
    /// Kept alive here, as the device only refers to it.
    watcher: OnceLock<Arc<dyn EventWatcher>>,
    /// Memory to send from, by the size of its slots.
    memory: [Arc<Memory>; 2],
    device: Arc<Device>,
}

/// What the keeper is to do.
#[derive(Default)]
struct Kick {
    flags: AtomicU32,
    waker: AtomicWaker,
}

impl Kick {
    /// The interface is given up.
    const CLOSE: u32 = 1;
    /// The port or the partition has changed: the link comes up anew.
    const RESTART: u32 = 2;
    /// The subnet has changed: paths are asked for again.
    const REFRESH: u32 = 4;

    fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }

    /// What has come since the last time, if anything has.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<u32> {
        self.waker.register(cx.waker());
        match self.flags.swap(0, Ordering::AcqRel) {
            0 => Poll::Pending,
            flags => Poll::Ready(flags),
        }
    }

    /// These are seen to already.
    fn forget(&self, flags: u32) {
        self.flags.fetch_and(!flags, Ordering::AcqRel);
    }

    fn is_set(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }
}

impl Core {
    /// Changes what is known, and sees to what follows. Under NoBlock: what posting leads to may be a
    /// handler here, which comes when the lock is free.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, Time) -> R) -> R {
        collect(|| {
            let now = self.timer.now();
            let (result, actions, has_room) = {
                let mut state = self.state.lock();
                let result = change(&mut state, now);
                let actions = match state.actions.is_empty() {
                    true => Vec::new(),
                    false => std::mem::take(&mut state.actions),
                };
                (result, actions, state.has_room_again())
            };
            for action in actions {
                self.act(action);
            }
            if has_room {
                self.face.writable();
            }
            result
        })
    }

    /// Sends a packet of IP.
    pub(crate) fn send(self: &Arc<Self>, bytes: &[u8]) -> Result<(), SendError> {
        let ip = Ip::parse(bytes)?;
        if bytes.len() > self.longest() {
            self.state.lock().counters.too_big += 1;
            self.tell_sender(bytes, &ip, self.longest());
            return Ok(());
        }
        let slot = {
            let mut state = self.state.lock();
            if state.link.is_none() {
                state.counters.link_down += 1;
                return Err(SendError::Down);
            }
            state.take_slot(bytes.len()).ok_or(SendError::Full)?
        };
        let len = self.fill(slot, &ip, bytes);
        let packet = buffers::Packet { slot, len };
        let verdict = self.with(|state, now| {
            state.follow_report(bytes, &ip, now);
            let verdict = state.route(&ip, packet, now);
            if verdict != Verdict::Taken {
                state.give_back(slot);
                state.is_awaited |= verdict == Verdict::Full;
                state.counters.too_big += u64::from(matches!(verdict, Verdict::TooBig(_)));
            }
            verdict
        });
        match verdict {
            Verdict::TooBig(mtu) => {
                self.tell_sender(bytes, &ip, mtu);
                Ok(())
            }
            Verdict::Full => Err(SendError::Full),
            Verdict::Taken | Verdict::Waits => Ok(()),
        }
    }

    /// Writes a packet with its header into a slot, and returns the bytes of both.
    fn fill(&self, slot: buffers::Slot, ip: &Ip, bytes: &[u8]) -> u32 {
        let header = ip.protocol().header();
        let (memory, stride) = match slot.size {
            buffers::Size::Datagram => (&self.memory[0], buffers::DATAGRAM_STRIDE),
            buffers::Size::Connected => (&self.memory[1], buffers::MESSAGE_STRIDE),
        };
        let offset = slot.index as usize * stride;
        // The slot is in the memory, and long enough: it was chosen by the length.
        let written = memory
            .write(offset, &header)
            .and_then(|()| memory.write(offset + header.len(), bytes));
        debug_assert!(written.is_ok());
        u32::try_from(header.len() + bytes.len()).unwrap_or(u32::MAX)
    }

    /// Tells the sender of a packet that it was too long.
    fn tell_sender(&self, packet: &[u8], ip: &Ip, mtu: usize) {
        let router = self.state.lock().own_address(ip.source);
        let mut message = [0; 1280];
        let written = router.and_then(|router| too_big(packet, mtu, router, &mut message));
        if let Some(told) = written.and_then(|len| message.get(..len)) {
            collect(|| self.face.deliver(told));
        }
    }

    /// Bytes of the longest packet that any way may carry.
    fn longest(&self) -> usize {
        match self.config.mode {
            Mode::Connected => CONNECTED_MTU,
            Mode::Datagram => buffers::DATAGRAM_STRIDE - crate::wire::HEADER_LEN,
        }
    }

    pub(crate) fn info(&self) -> LinkInfo {
        self.state.lock().info()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// Connections that are up: those that packets are sent over, and those that they come from.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.connections_up(), state.passive.len())
    }

    /// Neighbours whose address is known.
    pub(crate) fn neighbours(&self) -> Vec<(IpAddr, HardwareAddress)> {
        let state = self.state.lock();
        let known = state.neighbours.iter();
        known
            .filter_map(|(&hop, neighbour)| Some((hop, neighbour.at?)))
            .collect()
    }

    pub(crate) fn subscribe(self: &Arc<Self>, group: IpAddr) -> Result<(), Error> {
        self.with(|state, now| {
            if state.is_closed {
                return Err(Error::Closed);
            }
            let mgid = group_of(group, state.config.pkey, state.config.scope);
            let mgid = mgid.ok_or(Error::NotGroup(group))?;
            match state.subscribe(mgid, now) {
                true => Ok(()),
                false => Err(Error::Groups {
                    max: crate::config::GROUPS_MAX,
                }),
            }
        })
    }

    pub(crate) fn unsubscribe(self: &Arc<Self>, group: IpAddr) {
        self.with(|state, _| {
            if let Some(mgid) = group_of(group, state.config.pkey, state.config.scope) {
                state.unsubscribe(mgid);
            }
        });
    }

    /// Where a neighbour is; `None` if it does not say.
    pub(crate) async fn resolve(self: &Arc<Self>, addr: IpAddr) -> Option<HardwareAddress> {
        let mut begins = true;
        std::future::poll_fn(|cx| {
            let begins = std::mem::take(&mut begins);
            let mut waker = OwnWaker::of(cx.waker());
            let found = self.with(|state, now| {
                let hop = state.config.next_hop(addr);
                state.resolve(hop, begins, &mut waker, now)
            });
            found.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// The LID of a port that there is a path to, where there are LIDs.
    pub(crate) fn lid_of(&self, gid: Gid) -> Option<Lid> {
        let state = self.state.lock();
        let lid = state.paths.get(&gid)?.av()?.dlid;
        (lid != Lid(0)).then_some(lid)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Gives the interface up.
    pub(crate) fn close(&self) {
        self.kick.set(Kick::CLOSE);
    }

    /// Whether nothing is left of it but this.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}
