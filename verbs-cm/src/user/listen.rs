//! The passive side.

pub(crate) mod backlog;
pub(crate) mod request;

use std::any::Any;
use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use verbs_core::Device;
use verbs_core::sync::{Arc, Weak};

use crate::error::Error;
use crate::event::{CmError, ListenId};
use crate::hub::shared;
use crate::hub::{HostClaim, Hub};
use crate::listen::backlog::{BACKLOG, Backlog};
use crate::manager::{Manager, Way};
use crate::params::Listen;
use crate::resolver::Address;
use crate::step::{CancelStep, Step, StepFuture};
use crate::wire::{PortSpace, ServiceId};

pub use request::{Accepting, ConnectRequest};

/// Listens for connections. The unspecified address stands for all of the device's; port number 0 for
/// any that is free.
///
/// Requests come from strangers, and their addresses may be forged. Those that are not confirmed are bounded
/// for the port, in number for each source and in all, in time, and in what is sent to them
/// ([`Config`](crate::Config)); the oldest gives way, and accepting it fails with
/// [`Failure::GaveWay`](crate::Failure::GaveWay). A program that accepts one request at a time waits for a
/// stranger's confirmation as long as that may take, and one that ends with a request that fails is ended by a stranger:
/// accept them beside each other.
///
/// ```no_run
/// # async fn example(dev: &verbs_core::Device, pd: &verbs_core::Pd, cq: &verbs_core::Cq)
/// # -> Result<(), verbs_cm::Error> {
/// use futures::StreamExt;
///
/// let mut listener = verbs_cm::listen(dev, "0.0.0.0:7174").backlog(16).await?;
/// while let Some(request) = listener.next().await {
///     let qp = pd.create_qp(verbs_core::QpInit::rc(cq, cq)).await?;
///     // Runs by itself: the loop takes the next request.
///     request.accept(qp).issue(|accepted| match accepted {
///         Ok(connection) => println!("connected to {}", connection.peer_addr()),
///         Err(failed) => println!("not connected: {}", failed.error),
///     });
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::NoAddress`], [`Error::AddressNotAvailable`], [`Error::AddressInUse`],
/// [`Error::NoManager`], [`Error::Machine`] at the limit of listeners.
pub fn listen(device: &Device, addr: impl Into<Address>) -> Listening {
    Manager::of(device).listen(addr)
}

/// A listener that is to be made; issue it, await it or wait for it.
#[must_use = "nobody listens until this is issued, awaited or waited for"]
#[derive(Debug)]
pub struct Listening {
    manager: Manager,
    addr: Address,
    backlog: u32,
    extended: bool,
}

impl Listening {
    pub(crate) fn new(manager: Manager, addr: impl Into<Address>) -> Self {
        Self {
            manager,
            addr: addr.into(),
            backlog: BACKLOG,
            extended: false,
        }
    }

    /// Takes requests for extended reliable connections too, which are accepted with a target queue pair
    /// ([`Xrcd::create_target_qp`](verbs_core::Xrcd::create_target_qp)): [`ConnectRequest::qp_type`] tells. Others
    /// refuse them. Providers that make connections by their own verbs have none.
    ///
    /// ```no_run
    /// # async fn example(dev: &verbs_core::Device, pd: &verbs_core::Pd, cq: &verbs_core::Cq)
    /// # -> Result<(), verbs_cm::Error> {
    /// let domain = dev.alloc_xrcd().await?;
    /// let srq = pd.create_xrc_srq(&domain, cq, 64, 1).await?;
    /// let mut listener = verbs_cm::listen(dev, "0.0.0.0:7174").extended().await?;
    /// let request = listener.accept().await;
    /// // Requests on the connection name the shared receive queue that they are for.
    /// let number = srq.srqn().value().to_be_bytes();
    /// let target = domain.create_target_qp().await?;
    /// let connection = request.accept(target).private_data(&number).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn extended(mut self) -> Self {
        self.extended = true;
        self
    }

    /// Requests that may wait for an answer; more are refused. 128 by default.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Begins; `routine` runs exactly once, under NoBlock, here or later. Never blocks.
    pub fn issue(
        self,
        routine: impl FnOnce(Result<Listener, Error>) + Send + 'static,
    ) -> CancelStep {
        self.step().issue(routine)
    }

    /// Begins and blocks the thread until it listens.
    ///
    /// # Errors
    /// As [`listen`]; and [`Error::WouldBlock`] under NoBlock (K3).
    pub fn wait(self) -> Result<Listener, Error> {
        self.step().wait()
    }

    /// All that is left, as a step.
    pub fn step(self) -> Step<Listener> {
        Step::new(async move {
            let Self {
                manager,
                addr,
                backlog,
                extended,
            } = self;
            match manager.way().await? {
                Way::Messages(hub) => {
                    let addr = addr.lookup(&*hub.resolver())?;
                    let how = (backlog, extended);
                    let inner = Bound::listen_at(&hub, PortSpace::Tcp, addr, how).await?;
                    Ok(Listener {
                        local: inner.local_addr(),
                        queue: Arc::clone(&inner.queue),
                        _listens: Box::new(inner),
                    })
                }
                Way::Verbs(provided) => {
                    let addr = addr.lookup(&*provided.resolver())?;
                    let queue = Arc::new(Backlog::new(backlog, Weak::new()));
                    let endpoint = provided.listen(addr, backlog, &queue).await?;
                    Ok(Listener {
                        local: endpoint.local(),
                        queue,
                        _listens: Box::new(endpoint),
                    })
                }
            }
        })
    }
}

impl Manager {
    /// As [`listen`](crate::listen()).
    pub fn listen(&self, addr: impl Into<Address>) -> Listening {
        Listening::new(self.clone(), addr)
    }
}

impl IntoFuture for Listening {
    type Output = Result<Listener, Error>;
    type IntoFuture = StepFuture<Listener, Error>;

    fn into_future(self) -> Self::IntoFuture {
        self.step().into_future()
    }
}

/// Numbers that are drawn for a listener at most, where other processes have some.
const TRIES: u32 = 64;

/// A port number of one's own, given back when it is dropped.
pub(crate) struct Bound {
    hub: Arc<Hub>,
    space: PortSpace,
    addr: SocketAddr,
    /// Whether the number was taken from the table: listeners at several addresses share one.
    owns: bool,
}

impl Bound {
    /// Binds an address of the port; port number 0 for any.
    pub(crate) fn new(hub: &Arc<Hub>, space: PortSpace, addr: SocketAddr) -> Result<Self, Error> {
        hub.check_local(addr)?;
        let (port, owns) = hub.with(|inner, _| match addr.port() {
            0 => (inner.kept.ports.any(space), true),
            port => (Some(port), inner.kept.ports.take(space, port)),
        });
        let port = port.ok_or(Error::AddressInUse(addr))?;
        Ok(Self {
            hub: Arc::clone(hub),
            space,
            addr: SocketAddr::new(addr.ip(), port),
            owns,
        })
    }

    /// Binds an address, on the host too where other processes share it, and listens there.
    pub(crate) async fn listen_at(
        hub: &Arc<Hub>,
        space: PortSpace,
        addr: SocketAddr,
        (backlog, extended): (u32, bool),
    ) -> Result<Inner, Error> {
        let mut tries = match addr.port() {
            0 => TRIES,
            _ => 1,
        };
        loop {
            // A peer that asks when the host lets requests through finds a listener.
            let mut inner = Self::new(hub, space, addr)?.listen(backlog, extended)?;
            let (at, ip) = (inner.bound.addr, inner.bound.listening_addr());
            let service = ServiceId::rdma_cm(space, at.port());
            let claimed = shared::claim(hub, service, ip, at).await;
            tries -= 1;
            match claimed {
                Ok(claim) => {
                    inner.claim = claim;
                    return Ok(inner);
                }
                // Another process has the number, which was drawn.
                Err(Error::AddressInUse(_)) if tries > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// `None` for all addresses.
    fn listening_addr(&self) -> Option<IpAddr> {
        let ip = self.addr.ip();
        (!ip.is_unspecified()).then(|| ip.to_canonical())
    }

    fn listen(self, backlog: u32, extended: bool) -> Result<Inner, Error> {
        let Self {
            hub, space, addr, ..
        } = &self;
        let listen = Listen {
            addr: self.listening_addr(),
            backlog,
            extended,
            ..Listen::new(ServiceId::rdma_cm(*space, addr.port()))
        };
        let queue = Arc::new(Backlog::new(backlog, Arc::downgrade(hub)));
        let id = hub.with(|inner, _| {
            let id = inner.cm.listen(listen)?;
            inner.kept.listeners.insert(id, queue.handler());
            Ok(id)
        });
        let id = id.map_err(|error| match error {
            CmError::InUse { .. } => Error::AddressInUse(*addr),
            error => Error::Machine(error),
        })?;
        Ok(Inner {
            id,
            queue,
            bound: self,
            claim: None,
        })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.owns {
            let (space, port) = (self.space, self.addr.port());
            self.hub
                .with(|inner, _| inner.kept.ports.give_back(space, port));
        }
    }
}

/// What listeners of both kinds have.
pub(crate) struct Inner {
    id: ListenId,
    pub(crate) queue: Arc<Backlog>,
    pub(crate) bound: Bound,
    /// The number on the host, where other processes share it.
    claim: Option<HostClaim>,
}

impl Inner {
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.bound.addr
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The host first: no request comes without a listener.
        drop(self.claim.take());
        self.bound.hub.with(|inner, _| {
            // It was added, and is removed once.
            let _gone = inner.cm.unlisten(self.id);
            inner.kept.listeners.remove(&self.id);
        });
        self.queue.clear();
    }
}

/// Listens at an address: a stream of requests for connections. Dropping it ends that; requests that
/// were taken can still be answered.
pub struct Listener {
    local: SocketAddr,
    queue: Arc<Backlog>,
    /// What listens, until it is dropped.
    _listens: Box<dyn Any + Send + Sync>,
}

impl Listener {
    /// Where it listens, with the port number that was given to it.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next request.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no request with it.
    pub async fn accept(&mut self) -> ConnectRequest {
        poll_fn(|cx| self.poll_request(cx)).await
    }

    fn poll_request(&self, cx: &mut Context<'_>) -> Poll<ConnectRequest> {
        self.queue.poll_request(cx)
    }
}

impl Stream for Listener {
    type Item = ConnectRequest;

    /// Never ends.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ConnectRequest>> {
        self.poll_request(cx).map(Some)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}
