//! A node: the addresses of a device that have RDS, their connections and listeners.
//!
//! Nothing here has a thread. One future for each connection and one for each listener run where completions and
//! routines run ([`verbs_core::task`]). What all share is under one lock, taken for a moment and never while a task is
//! woken.

mod buffers;
mod link;
mod operations;
pub(crate) mod state;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};

use futures::channel::oneshot;
use futures::future::{Either, select};
use verbs_cm::{ConnectRequest, Listener};
use verbs_core::mad::Time;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::timer::Timer;
use verbs_core::{Access, Device, Memory, Mr, Pd, task};

use self::state::State;
use crate::config::Config;
use crate::error::Error;
use crate::machine::{Counts, Refusal, State as Stage};
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
    pub(crate) config: Config,
    pub(crate) timer: Arc<dyn Timer>,
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
        let pd = device.alloc_pd().await?;
        let mut listeners = Vec::new();
        for &addr in &config.addresses {
            let listening = verbs_cm::listen(device, (addr, config.port(addr)));
            listeners.push((addr, listening.await?));
        }
        // Another number in each life; it decides nothing else.
        let generation = RandomState::new().build_hasher().finish() as u32;
        let core = Arc::new(Core {
            device: Arc::clone(device),
            pd,
            timer,
            state: Mutex::new(State::new(config.clone(), generation)),
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

    /// The connections, up or not.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.0.core.with(|state, _| {
            let links = state.links.iter();
            let info = links.map(|(&(local, remote, tos), link)| ConnectionInfo {
                local,
                remote,
                tos,
                state: link.machine.state(),
                queued: link.machine.queued(),
                unacked: link.machine.unacked(),
                counts: link.machine.counts(),
            });
            info.collect()
        })
    }

    /// The sockets' addresses.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        self.0
            .core
            .with(|state, _| state.sockets.keys().copied().collect())
    }

    /// Drops the connections to a peer, one for each type of service, as if they were lost. Messages are transmitted
    /// again on the next ones. Returns whether one was up.
    pub fn drop_connection(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.0.core.with(|state, _| {
            let of_peer = (local, remote, 0)..=(local, remote, u8::MAX);
            let mut any = false;
            for (_, link) in state.links.range_mut(of_peer) {
                // A connection that is up ends like one whose peer asks again.
                if link.machine.state() == Stage::Up {
                    link.machine.fail();
                    state.wakes.extend(link.waker.take());
                    any = true;
                }
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
        let registering = self.0.core.pd.register(memory, Access::LOCAL_WRITE);
        Ok(Arc::new(registering.await?))
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
        self.core.with(|state, _| {
            state.closed = true;
            for link in state.links.values() {
                state.wakes.extend(link.waker.take());
            }
        });
    }
}

impl Core {
    /// Looks at the state, or changes it. Wakes and starts what has to be when the lock is free.
    pub(crate) fn with<T>(self: &Core, change: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = self.timer.now();
        let (result, wakes, released) = {
            let mut state = self.state.lock();
            let result = change(&mut state, now);
            let wakes = std::mem::take(&mut state.wakes);
            (result, wakes, std::mem::take(&mut state.released))
        };
        drop(released);
        for waker in wakes {
            task::wake(waker);
        }
        result
    }

    /// As [`with`](Self::with), for what may make connections.
    pub(crate) fn with_links<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, newborn) = self.with(|state, _| {
            let result = change(state);
            (result, std::mem::take(&mut state.newborn))
        });
        for key in newborn {
            task::detach(link::drive(Arc::clone(self), key));
        }
        result
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
    let refused = core.with_links(|state| {
        let is_closed = state.closed;
        let link = state.link((addr, peer.source, peer.tos));
        let Some(link) = link.filter(|_| !is_closed) else {
            return Some(request);
        };
        let refused = match link.machine.accept() {
            Ok(answer) => {
                link.request = Some((request, peer, answer));
                None
            }
            Err(Refusal::Busy | Refusal::Stale) => Some(request),
        };
        let waker = link.waker.take();
        state.wakes.extend(waker);
        refused
    });
    if let Some(request) = refused {
        // The peer tries again after a while.
        let _gone = request.reject(&[]);
    }
}
