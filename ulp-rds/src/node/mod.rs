//! A node: the addresses of a device that have RDS, their connections and listeners.
//!
//! Nothing here has a thread. One future for each connection and one for each listener run where completions and
//! routines run ([`verbs_core::task`]). What all share is under one lock, queue pairs among it. A thread that sends a datagram
//! posts it, and one that receives polls for it; events and tasks that become due run when the lock is free.

mod driver;
mod half_open;
pub(crate) mod id;
mod link;
pub(crate) mod maps;
mod operations;
mod queues;
pub(crate) mod socket;
pub(crate) mod state;
mod table;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use futures::channel::oneshot;
use futures::future::{Either, select};
use verbs_cm::{ConnectRequest, Listener};
use verbs_core::sync::atomic::AtomicBool;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::time::Instant;
use verbs_core::timer::Timer;
use verbs_core::{Access, Device, Memory, Mr, Pd, Raise, task};

use self::maps::Maps;
use self::state::State;
use crate::config::Config;
use crate::error::Error;
use crate::machine::{Counts, State as Stage};
use crate::rdma::Atomics;
use crate::wire::Handshake;

/// RDS on a device. Clones are the same node; it ends with the last of them and of its sockets.
#[derive(Clone)]
pub struct Node(Arc<Handle>);

/// What keeps a node open.
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    /// Listeners end when these are dropped.
    _listening: Vec<oneshot::Sender<()>>,
}

/// What connections and listeners share.
pub(crate) struct Core {
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Pd,
    pub(crate) maps: Arc<Maps>,
    pub(crate) config: Config,
    pub(crate) timer: Arc<dyn Timer>,
    /// Whether programs look at some completion queues by themselves: a socket that takes may find what no event has told of.
    pub(crate) is_polled: Arc<AtomicBool>,
    state: Mutex<State>,
}

/// A connection, as [`Node::connections`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The address here.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// The type of service.
    pub tos: u8,
    /// Where it stands.
    pub state: Stage,
    /// Messages that are queued, those that wait for an acknowledgement among them.
    pub queued: usize,
    /// Messages that were transmitted and are not acknowledged.
    pub unacked: usize,
    /// What was counted.
    pub counts: Counts,
}

impl Node {
    /// Opens RDS on a device, and listens for peers on all its addresses.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NoTimer`], [`Error::Verb`], [`Error::Cm`] where an address is not the device's or
    /// another program listens.
    pub async fn open(device: &Arc<Device>, config: Config) -> Result<Self, Error> {
        let settings = [
            ("the number of addresses", config.addresses.len()),
            ("Config::receives", config.receives as usize),
            ("Config::sends", config.sends as usize),
            ("Config::send_buffer", config.send_buffer),
        ];
        if let Some((name, _)) = settings.into_iter().find(|(_, value)| *value == 0) {
            return Err(Error::Zero(name));
        }
        let timer = device
            .target()
            .provider_of()
            .timer()
            .ok_or(Error::NoTimer)?;
        let attr = device.query().await?;
        let (atomics, maps) = (Atomics::of(&attr), Maps::new(config.pooled_mappings, &attr));
        let pd = device.alloc_pd().await?;
        let mut listeners = Vec::new();
        for &addr in &config.addresses {
            let listening = verbs_cm::listen(device, (addr, config.port(addr)));
            listeners.push((addr, listening.await?));
        }
        let drawn = || RandomState::new().build_hasher().finish() as u32;
        let generation = config
            .generation
            .map_or_else(|| drawn().max(1), NonZeroU32::get);
        let is_polled = Arc::<AtomicBool>::default();
        let state = State::new(config.clone(), generation, atomics, Arc::clone(&is_polled));
        let core = Arc::new(Core {
            device: Arc::clone(device),
            pd,
            maps: Arc::new(maps),
            timer,
            is_polled,
            state: Mutex::new(state),
            config,
        });
        let listening = listeners.into_iter().map(|(addr, listener)| {
            let (stop, stopped) = oneshot::channel();
            task::detach(listen(Arc::clone(&core), addr, listener, stopped));
            stop
        });
        Ok(Self(Arc::new(Handle {
            _listening: listening.collect(),
            core,
        })))
    }

    /// The connections, up or not. One that is lost is there until it is forgotten ([`Config::forget_after`]).
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.0.core.with(|state| {
            let links = state.links.iter();
            let info = links.map(|link| ConnectionInfo {
                local: link.key.0,
                remote: link.key.1,
                tos: link.key.2,
                state: link.machine.state(),
                queued: link.machine.queued(),
                unacked: link.machine.unacked(),
                counts: link.machine.counts(),
            });
            info.collect()
        })
    }

    /// Why the last attempt to connect to a peer has failed: `None` if there was no such attempt, and when a connection
    /// has been made since. The node tries again, whatever the reason is.
    pub fn last_error(&self, local: IpAddr, remote: IpAddr) -> Option<Error> {
        self.0.core.with(|state| {
            let links = state.links.iter();
            let mut errors = links
                .filter(|link| (link.key.0, link.key.1) == (local, remote))
                .filter_map(|link| link.error.as_deref());
            let error: Option<&Error> = errors.next();
            error.cloned()
        })
    }

    /// Connections that peers, or others in their names, have asked for and that are not established:
    /// [`Config::half_open_max`] at most.
    pub fn half_open(&self) -> usize {
        self.0.core.with(|state| state.half_open.len())
    }

    /// The sockets' addresses.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        self.0
            .core
            .with(|state| state.sockets.addresses().collect())
    }

    /// Drops the connections to a peer, one for each type of service, as if they were lost. Messages are transmitted
    /// again on the next ones. Returns whether one was up.
    pub fn drop_connection(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.0.core.with(|state| {
            let mut any = false;
            for id in state.links.between(local, remote) {
                // A connection that is up ends like one whose peer asks again.
                any |= state.fail(id);
            }
            any
        })
    }

    /// Pauses and times come from here.
    pub fn timer(&self) -> &Arc<dyn Timer> {
        &self.0.core.timer
    }

    /// Registers memory for the near end of operations ([`Rdma`](crate::Rdma)).
    ///
    /// # Errors
    /// [`Error::Verb`].
    pub async fn register(&self, memory: impl Into<Arc<Memory>>) -> Result<Arc<Mr>, Error> {
        let core = &self.0.core;
        let access = core.device.read_sink(Access::empty());
        let registering = core.pd.register(memory, access);
        Ok(Arc::new(registering.await?))
    }

    /// Makes the keys of [lazy](crate::Mapping::lazily) mappings that have ended invalid, and waits for that: Linux's
    /// `RDS_FREE_MR` with no cookie.
    ///
    /// # Errors
    /// [`Error::Verb`] if the device refuses.
    pub async fn flush_mappings(&self) -> Result<(), Error> {
        Ok(self.0.core.maps.flush().await?)
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.0
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = &self.0.core.config.addresses;
        f.debug_struct("Node")
            .field("addresses", addresses)
            .finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.with(|state| {
            state.closed = true;
            state.wake_all();
        });
    }
}

impl Core {
    /// Looks at the state, or changes it. Wakes and starts what has to be when the lock is free.
    #[inline]
    pub(crate) fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        // Left in the other order: what becomes due when packets are posted, at the other end for instance, runs when the lock
        // is free.
        let level = Raise::new();
        let mut state = self.state.lock();
        let result = change(&mut state);
        let is_due = !state.due.is_empty();
        drop(state);
        drop(level);
        if is_due {
            self.carry_out();
        }
        result
    }

    /// Does what is due.
    #[inline(never)]
    fn carry_out(self: &Arc<Self>) {
        let level = Raise::new();
        let due = self.state.lock().due.take();
        drop(level);
        drop(due.released);
        for waker in due.wakes {
            task::wake(waker);
        }
        for (id, number) in due.newborn {
            task::detach(driver::drive(Arc::clone(self), id, number));
        }
    }

    /// As [`with`](Self::with), for what depends on the time.
    pub(crate) fn with_time<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State, Instant) -> T,
    ) -> T {
        let now = self.timer.now();
        self.with(|state| change(state, now))
    }
}

/// Takes requests until the node is closed.
async fn listen(
    core: Arc<Core>,
    addr: IpAddr,
    mut listener: Listener,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let accepted = std::pin::pin!(listener.accept());
        match select(accepted, &mut stopped).await {
            Either::Left((request, _)) => asked(&core, addr, request),
            Either::Right(_) => return,
        }
    }
}

/// A peer asks for a connection.
fn asked(core: &Arc<Core>, addr: IpAddr, request: ConnectRequest) {
    let peer = Handshake::parse(request.private_data(), addr.is_ipv6());
    let peer = peer.and_then(|peer| peer.choose().map(|_| peer));
    let peer = match peer {
        Ok(peer) => peer,
        Err(error) => {
            tracing::debug!(%error, from = %request.peer_addr(), "a request is refused");
            // The peer may have given up.
            let _gone = request.reject(&[]);
            return;
        }
    };
    if peer.destination != addr || peer.source != request.peer_addr().ip() {
        tracing::debug!(?peer, from = %request.peer_addr(), "a request says other addresses than it came from");
        let _gone = request.reject(&[]);
        return;
    }
    let key = (addr, peer.source, peer.tos);
    let mut request = Some(request);
    let entered = core.with(|state| {
        let (number, asked) = state.asked(key)?;
        let request = request.take()?;
        Some(driver::Request {
            number,
            key,
            request,
            peer,
            asked,
        })
    });
    if let Some(request) = entered {
        task::detach(driver::open(Arc::clone(core), request));
    }
    if let Some(request) = request {
        // The peer tries again after a while.
        let _gone = request.reject(&[]);
    }
}
