//! The active side.

use std::fmt;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::time::Duration;

use verbs_core::sync::Arc;
use verbs_core::{Access, Device, Qp, QpType, no_block};

use crate::address::pair;
use crate::connection::{Connection, finish_within};
use crate::endpoint::{Endpoint, initialise};
use crate::error::{Error, NotConnected};
use crate::hub::Hub;
use crate::limit::Limit;
use crate::manager::{Manager, Way};
use crate::options::{ConnParam, bits, blob, options};
use crate::params::{Connect, Route};
use crate::provided::Provided;
use crate::resolver::{Address, Hop, Query, Resolver};
use crate::step::{CancelStep, Step, StepFuture};
use crate::wire::{IpHeader, PortSpace, ServiceId, Transport};

/// Connects a queue pair to a service: resolves the address and the route, asks, and brings the queue
/// pair to RTS.
///
/// The queue pair is in RESET, or in INIT if receives were posted already.
///
/// A peer that does not show that it is there within [`CONNECT_TIMEOUT`](crate::CONNECT_TIMEOUT), 5 s, is
/// given up; [`Connecting::timeout`] chooses another time.
///
/// ```no_run
/// # async fn example(dev: &verbs_core::Device, qp: verbs_core::Qp) -> Result<(), verbs_cm::Error> {
/// let connection = verbs_cm::connect(dev, "10.0.0.2:7174", qp).private_data(b"hello").await?;
/// println!("connected to {}", connection.peer_addr());
/// connection.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NotConnected`] with the queue pair and [`Error`]: [`Error::NoAddress`], [`Error::NoRoute`],
/// [`Error::Rejected`] (nobody listens; or refused, with private data), [`Error::NoAnswer`],
/// [`Error::PortUnreachable`] (the host refuses packets, twice in a row),
/// [`Error::Failed`], [`Error::QpState`], [`Error::Verb`].
pub fn connect(device: &Device, addr: impl Into<Address>, qp: Qp) -> Connecting {
    Manager::of(device).connect(addr, qp)
}

/// A connection that is to be made; issue it, await it or wait for it.
#[must_use = "a connection is not asked for until issued, awaited or waited for"]
pub struct Connecting {
    manager: Manager,
    addr: Address,
    qp: Qp,
    local: Option<SocketAddr>,
    param: ConnParam,
    access: Access,
    private_data: Vec<u8>,
    resolver: Option<Arc<dyn Resolver>>,
    timeout: Option<Duration>,
}

options!(Connecting);

impl Connecting {
    pub(crate) fn new(manager: Manager, addr: impl Into<Address>, qp: Qp) -> Self {
        Self {
            manager,
            addr: addr.into(),
            qp,
            local: None,
            param: ConnParam::default(),
            access: Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::LOCAL_WRITE,
            private_data: Vec::new(),
            resolver: None,
            timeout: None,
        }
    }

    /// How long all of it may take: finding the way, the peer's answer, the queue pair. After that, the
    /// peer is told that the request is taken back, and the step fails with [`Error::NoAnswer`] and the
    /// queue pair. The request is repeated at least four times within it.
    ///
    /// Without it, finding the way and a first answer may take
    /// [`CONNECT_TIMEOUT`](crate::CONNECT_TIMEOUT) together, and a peer that asks for more time (by an
    /// MRA; IBTA vol. 1, 12.6.6) gets it. A shorter `response_timeout` with fewer `max_cm_retries` gives up
    /// earlier.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Binds this end to one of the device's addresses, and to a port number; 0 for any.
    pub fn bind(mut self, local: SocketAddr) -> Self {
        self.local = Some(local);
        self
    }

    /// Has this connection's address looked up elsewhere.
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = Some(resolver);
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
    /// As [`connect`]; and [`Error::WouldBlock`] under NoBlock, at once, with the queue pair (K3).
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
        if !matches!(self.qp.qp_type(), QpType::Rc | QpType::Uc) {
            return Err(NotConnected::new(Error::QpType, self.qp));
        }
        match self.manager.way().await {
            Ok(Way::Messages(hub)) => self.by_messages(hub).await,
            Ok(Way::Verbs(provided)) => self.by_verbs(&provided).await,
            Err(error) => Err(NotConnected::new(error, self.qp)),
        }
    }

    async fn by_verbs(self, provided: &Provided) -> Result<Connection, NotConnected> {
        let addr = match self.addr.lookup(&*provided.resolver()) {
            Ok(addr) => addr,
            Err(error) => return Err(NotConnected::new(error, self.qp)),
        };
        let limit = Limit::begin(provided.timer(), self.timeout);
        let Self {
            qp,
            local,
            param,
            private_data,
            ..
        } = self;
        let connecting = provided.connect(qp, local, addr, &param, private_data);
        let made = limit.done(connecting).await;
        // A provider that is stopped keeps the queue pair until it has let go, and destroys it.
        made.unwrap_or_else(|| Err(limit.late(addr).into()))
    }

    async fn by_messages(self, hub: Arc<Hub>) -> Result<Connection, NotConnected> {
        let limit = Limit::begin(hub.timer(), self.timeout);
        let (addr, hop, route) = match self.find(&hub, &limit).await {
            Ok(found) => found,
            Err(error) => return Err(NotConnected::new(error, self.qp)),
        };
        if let Err(error) = initialise(&self.qp, hub.port().number, self.access).await {
            return Err(NotConnected::new(error, self.qp));
        }
        let asked = Asked {
            addr,
            hop,
            route,
            port: self.local.map_or(0, |local| local.port()),
            param: self.param.within(&hub.port().device),
            timeout: Some(limit.for_answer()),
            private_data: self.private_data,
        };
        match asked.ask(&hub, self.qp) {
            Ok(endpoint) => finish_within(endpoint, &limit).await,
            Err((error, qp)) => Err(NotConnected::new(error, qp)),
        }
    }

    /// Address and route resolution.
    async fn find(&self, hub: &Hub, limit: &Limit) -> Result<(SocketAddr, Hop, Route), Error> {
        let resolver = match &self.resolver {
            Some(resolver) => Arc::clone(resolver),
            None => hub.resolver(),
        };
        let addr = self.addr.lookup(&*resolver)?;
        let local = self.local.map(|local| local.ip());
        let query = Query {
            remote: addr.ip(),
            local: local.filter(|local| !local.is_unspecified()),
            port: hub.port(),
        };
        let way = async {
            let hop = resolver.resolve(query).await?;
            let route = hub.route(addr.ip(), &hop).await?;
            Ok((addr, hop, route))
        };
        let found = limit.answered(way).await;
        found.unwrap_or_else(|| Err(limit.late(addr)))
    }
}

impl IntoFuture for Connecting {
    type Output = Result<Connection, NotConnected>;
    type IntoFuture = StepFuture<Connection, NotConnected>;

    fn into_future(self) -> Self::IntoFuture {
        self.step().into_future()
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

/// What a connection is asked for with, when the way is known.
pub(crate) struct Asked {
    pub(crate) addr: SocketAddr,
    pub(crate) hop: Hop,
    pub(crate) route: Route,
    /// The number to bind; 0 for any.
    pub(crate) port: u16,
    pub(crate) param: ConnParam,
    /// How long the peer has to show that it is there.
    pub(crate) timeout: Option<Duration>,
    pub(crate) private_data: Vec<u8>,
}

impl Manager {
    /// As [`connect`](crate::connect()).
    pub fn connect(&self, addr: impl Into<Address>, qp: Qp) -> Connecting {
        Connecting::new(self.clone(), addr, qp)
    }
}

impl Asked {
    /// Sends the REQ. The queue pair is in INIT.
    pub(crate) fn ask(&self, hub: &Arc<Hub>, qp: Qp) -> Result<Arc<Endpoint>, (Error, Qp)> {
        let data = match blob::<56>(&self.private_data) {
            Ok(data) => data,
            Err(error) => return Err((error, qp)),
        };
        let addresses = match pair(self.hop.local, self.addr.ip()) {
            Ok(addresses) => addresses,
            Err(error) => return Err((error, qp)),
        };
        let ConnParam {
            responder_resources,
            initiator_depth,
            min_rnr_timer,
            srq,
            response_timeout,
            tos,
            ..
        } = self.param;
        let mut route = self.route;
        if let Some(global) = &mut route.av.global {
            global.traffic_class = tos;
        }
        let service = ServiceId::rdma_cm(PortSpace::Tcp, self.addr.port());
        let mut connect = Connect {
            transport: match qp.qp_type() {
                QpType::Uc => Transport::Uc,
                _ => Transport::Rc,
            },
            srq,
            responder_resources,
            initiator_depth,
            retry_count: bits(self.param.retry_count),
            rnr_retry_count: bits(self.param.rnr_retry_count),
            min_rnr_timer,
            response_timeout,
            max_cm_retries: bits(self.param.max_cm_retries),
            timeout: self.timeout,
            ..Connect::new(service, qp.qpn(), route)
        };
        hub.with(|inner, now| {
            let bound = match self.port {
                0 => inner.ports.any(PortSpace::Tcp),
                port if inner.ports.take(PortSpace::Tcp, port) => Some(port),
                _ => None,
            };
            let Some(source_port) = bound else {
                let taken = SocketAddr::new(self.hop.local, self.port);
                return Err((Error::AddressInUse(taken), qp));
            };
            let header = IpHeader {
                source_port,
                addresses,
            };
            connect.psn = inner.cm.draw_psn();
            connect = connect.ip(&header, data);
            match inner.cm.connect(now, connect) {
                Err(error) => {
                    inner.ports.give_back(PortSpace::Tcp, source_port);
                    Err((error.into(), qp))
                }
                Ok(conn) => {
                    inner.by_qpn.insert(qp.qpn().value(), conn);
                    let port = Some((PortSpace::Tcp, source_port));
                    let endpoint = Endpoint::new(hub, conn, qp, self.addr, port);
                    inner.conns.insert(conn, endpoint.handler());
                    Ok(endpoint)
                }
            }
        })
    }
}
