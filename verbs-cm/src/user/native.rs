//! Services by their own number: connections of protocols that know the way to their peer and put
//! their own bytes into the messages, as those of native InfiniBand do (IPoIB, SRP).

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use verbs_core::sync::Arc;
use verbs_core::{Access, Qp, QpType, no_block};

use crate::connection::{Connection, finish_within};
use crate::endpoint::{Endpoint, initialise};
use crate::error::{Error, NotConnected};
use crate::event::ListenId;
use crate::hub::shared;
use crate::hub::{HostClaim, Hub};
use crate::limit::Limit;
use crate::listen::backlog::Backlog;
use crate::listen::request::ConnectRequest;
use crate::manager::Manager;
use crate::options::{ConnParam, bits, blob, options};
use crate::params::{Connect, Listen, Route};
use crate::step::{CancelStep, Step, StepFuture};
use crate::wire::{ServiceId, Transport};

impl Manager {
    /// Connects a queue pair to a service by its number, along a way that the caller knows. The private
    /// data, 92 bytes at most, stand in the message as they are.
    ///
    /// The queue pair is in RESET, or in INIT already (with another entry of the P_Key table, say).
    ///
    /// # Errors
    /// [`NotConnected`] with the queue pair and [`Error`]: [`Error::Rejected`], [`Error::NoAnswer`],
    /// [`Error::Failed`], [`Error::QpType`], [`Error::QpState`], [`Error::PrivateData`],
    /// [`Error::NoManager`], [`Error::Verb`].
    pub fn connect_service(&self, service: ServiceId, route: Route, qp: Qp) -> Calling {
        Calling {
            manager: self.clone(),
            service,
            route,
            qp,
            param: ConnParam::default(),
            access: Access::empty(),
            private_data: Vec::new(),
            timeout: None,
        }
    }

    /// Listens for a service by its number. Of the requests that were not taken yet, at most `backlog`
    /// wait; more are rejected.
    ///
    /// # Errors
    /// [`Error::Machine`] when there is a listener for it already or there are too many listeners,
    /// [`Error::NoManager`], [`Error::Verb`], [`Error::Service`].
    pub fn listen_service(&self, service: ServiceId, backlog: u32) -> Step<ServiceListener> {
        let manager = self.clone();
        Step::new(async move {
            let hub = manager.by_messages().await?;
            let queue = Arc::new(Backlog::new(backlog, Arc::downgrade(&hub)));
            let listen = Listen {
                backlog,
                ..Listen::new(service)
            };
            let id = hub.with(|inner, _| {
                let id = inner.cm.listen(listen)?;
                inner.kept.listeners.insert(id, queue.handler());
                Ok::<_, Error>(id)
            })?;
            let mut listener = ServiceListener {
                hub: Arc::clone(&hub),
                service,
                id,
                queue,
                claim: None,
            };
            let at = (
                Ipv6Addr::UNSPECIFIED,
                service.port().map_or(0, |(_, port)| port),
            );
            listener.claim = shared::claim(&hub, service, None, at.into()).await?;
            Ok(listener)
        })
    }
}

/// A connection to a service that is to be made; issue it, await it or wait for it.
#[must_use = "a connection is not asked for until issued, awaited or waited for"]
pub struct Calling {
    manager: Manager,
    service: ServiceId,
    route: Route,
    qp: Qp,
    param: ConnParam,
    access: Access,
    private_data: Vec<u8>,
    timeout: Option<Duration>,
}

options!(Calling);

impl Calling {
    /// How long it may take until the connection is there; as [`Connecting::timeout`](crate::Connecting::timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Begins; `routine` runs exactly once, under NoBlock, here or later. Never blocks.
    pub fn issue(
        self,
        routine: impl FnOnce(Result<Connection, NotConnected>) + Send + 'static,
    ) -> CancelStep {
        self.step().issue(routine)
    }

    /// Begins and blocks the thread until the connection is there or will never be.
    ///
    /// # Errors
    /// As [`Manager::connect_service`]; and [`Error::WouldBlock`] under NoBlock, at once, with the queue
    /// pair (K3).
    pub fn wait(self) -> Result<Connection, NotConnected> {
        if no_block() {
            return Err(NotConnected::new(Error::WouldBlock, self.qp));
        }
        self.step().wait()
    }

    /// All that is left, as a step.
    pub fn step(self) -> Step<Connection, NotConnected> {
        Step::new(self.run())
    }

    async fn run(self) -> Result<Connection, NotConnected> {
        let transport = match self.qp.qp_type() {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            _ => return Err(NotConnected::new(Error::QpType, self.qp)),
        };
        let private_data = match blob::<92>(&self.private_data) {
            Ok(data) => data,
            Err(error) => return Err(NotConnected::new(error, self.qp)),
        };
        let hub = match self.manager.by_messages().await {
            Ok(hub) => hub,
            Err(error) => return Err(NotConnected::new(error, self.qp)),
        };
        let limit = Limit::begin(hub.timer(), self.timeout);
        let port = hub.port();
        if let Err(error) = initialise(&self.qp, port.number, self.access).await {
            return Err(NotConnected::new(error, self.qp));
        }
        let param = self.param.within(&port.device);
        let mut connect = Connect {
            transport,
            srq: param.srq,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: bits(param.retry_count),
            rnr_retry_count: bits(param.rnr_retry_count),
            min_rnr_timer: param.min_rnr_timer,
            response_timeout: param.response_timeout,
            max_cm_retries: bits(param.max_cm_retries),
            timeout: Some(limit.for_answer()),
            private_data,
            ..Connect::new(self.service, self.qp.qpn(), self.route)
        };
        let (qp, peer) = (self.qp, IpAddr::from(self.route.remote_gid));
        let asked = hub.with(|inner, now| {
            connect.psn = inner.cm.draw_psn();
            match inner.cm.connect(now, connect) {
                Err(error) => Err(NotConnected::new(error.into(), qp)),
                Ok(conn) => {
                    inner.kept.by_qpn.insert(qp.qpn().value(), conn);
                    let peer = SocketAddr::new(peer, 0);
                    let endpoint = Endpoint::new(&hub, conn, qp, None, peer, None);
                    inner.kept.conns.insert(conn, endpoint.handler());
                    Ok(endpoint)
                }
            }
        });
        finish_within(asked?, &limit).await
    }
}

impl IntoFuture for Calling {
    type Output = Result<Connection, NotConnected>;
    type IntoFuture = StepFuture<Connection, NotConnected>;

    fn into_future(self) -> Self::IntoFuture {
        self.step().into_future()
    }
}

impl fmt::Debug for Calling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calling")
            .field("service", &self.service)
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

/// Listens for a service: a stream of requests for connections. Dropping it ends that; requests that
/// were taken can still be answered.
pub struct ServiceListener {
    hub: Arc<Hub>,
    service: ServiceId,
    id: ListenId,
    queue: Arc<Backlog>,
    /// The service on the host, where other processes share it.
    claim: Option<HostClaim>,
}

impl ServiceListener {
    /// The service.
    pub fn service(&self) -> ServiceId {
        self.service
    }

    /// The next request.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no request with it.
    pub async fn accept(&mut self) -> ConnectRequest {
        poll_fn(|cx| self.queue.poll_request(cx)).await
    }
}

impl Stream for ServiceListener {
    type Item = ConnectRequest;

    /// Never ends.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ConnectRequest>> {
        self.queue.poll_request(cx).map(Some)
    }
}

impl Drop for ServiceListener {
    fn drop(&mut self) {
        drop(self.claim.take());
        self.hub.with(|inner, _| {
            // It was added, and is removed once.
            let _gone = inner.cm.unlisten(self.id);
            inner.kept.listeners.remove(&self.id);
        });
        self.queue.clear();
    }
}

impl fmt::Debug for ServiceListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceListener")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}
