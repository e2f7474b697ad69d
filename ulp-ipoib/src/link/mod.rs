//! An interface at work.
//!
//! Its state is under one lock ([`State`]). Packets to be sent, completions, answers of the administrator, events
//! and timers each take the lock briefly, change the state, post, and leave the rest of the work as [`Action`]s,
//! which run after the lock is released. No code waits and there is no thread: a sequence of requests is a
//! detached future that runs in their completions.

mod act;
mod buffers;
mod entry;
mod keeper;
mod open;
mod receive;
mod send;
mod state;

pub(crate) use open::open;
pub(crate) use send::{Outgoing, send};

use std::future::poll_fn;
use std::net::IpAddr;
use std::task::{Context, Poll};

use verbs_cm::Manager;
use verbs_core::event::EventWatcher;
use verbs_core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use verbs_core::sync::{Arc, AtomicWaker, Mutex, OnceLock};
use verbs_core::task::{self, OwnWaker};
use verbs_core::time::Instant;
use verbs_core::{Cq, Device, Gid, Lid, Memory, Mr, Pd, Qp, Timer, collect};

use crate::admin::Administration;
use crate::config::Config;
use crate::counters::Counters;
use crate::error::Error;
use crate::face::{Face, LinkInfo};
use crate::wire::{HardwareAddress, group_of};
use state::State;

/// An interface as all its events see it. Fields are dropped in this order.
pub(crate) struct Core {
    state: Mutex<State>,
    qp: Qp,
    /// Polled only by its handler.
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
    /// The interface is closed, and all has been done that follows.
    pub(crate) over: Over,
    /// Woken when all work requests for datagrams have completed.
    drained: AtomicWaker,
    /// Kept alive here, because the device holds only a weak reference.
    watcher: OnceLock<Arc<dyn EventWatcher>>,
    /// Memory to send from, by the size of its slots.
    memory: [Arc<Memory>; 2],
    device: Arc<Device>,
}

/// The end of the keeper, which one task may wait for.
#[derive(Default)]
pub(crate) struct Over {
    has_ended: AtomicBool,
    waker: AtomicWaker,
}

impl Over {
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }

    /// Waits until all groups have been left, and the administrator has answered that.
    pub(crate) async fn wait(&self) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            match self.has_ended.load(Ordering::Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Requests to the keeper.
#[derive(Default)]
struct Kick {
    flags: AtomicU32,
    waker: AtomicWaker,
}

impl Kick {
    /// The interface is closed.
    const CLOSE: u32 = 1;
    /// The port or the partition has changed: the link restarts.
    const RESTART: u32 = 2;
    /// The subnet has changed: paths are requested again.
    const REFRESH: u32 = 4;

    fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }

    /// The flags set since the last call, if any.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<u32> {
        self.waker.register(cx.waker());
        match self.flags.swap(0, Ordering::AcqRel) {
            0 => Poll::Pending,
            flags => Poll::Ready(flags),
        }
    }

    /// Clears flags that are already handled.
    fn forget(&self, flags: u32) {
        self.flags.fetch_and(!flags, Ordering::AcqRel);
    }

    fn is_set(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }
}

impl Core {
    /// Changes the state, posts what is to be sent, and carries out the actions that follow. Runs under NoBlock: posting
    /// may make a handler of this interface due, which runs after the lock is released.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.with_more(false, change)
    }

    /// The same; if `more`, another change follows soon, and what is to be sent waits for it.
    fn with_more<R>(
        self: &Arc<Self>,
        more: bool,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        collect(|| {
            let now = self.timer.now();
            let (result, actions, has_room) = {
                let mut state = self.state.lock();
                let result = change(&mut state, now);
                if !more {
                    state.flush();
                }
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

    /// Sends what waits for more.
    pub(crate) fn flush(self: &Arc<Self>) {
        self.with(|_, _| ());
    }

    pub(crate) fn info(&self) -> LinkInfo {
        self.state.lock().info()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// Established connections: those that packets are sent on, and those that packets are received on.
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

    /// The hardware address of a neighbour; `None` if it does not answer.
    pub(crate) async fn resolve(self: &Arc<Self>, addr: IpAddr) -> Option<HardwareAddress> {
        let mut begins = true;
        poll_fn(|cx| {
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

    /// Closes the interface.
    pub(crate) fn close(&self) {
        self.kick.set(Kick::CLOSE);
    }

    /// Whether only this object is left of it.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}
