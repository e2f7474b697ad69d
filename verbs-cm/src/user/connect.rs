//! The active side.

use std::fmt;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::time::Duration;

use verbs_core::sync::Arc;
use verbs_core::{Access, Device, Qp, QpType, no_block};

use crate::address::pair;
use crate::alternate::Alternate;
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
/// The queue pair is in RESET, or in INIT if receives were posted already. An initiator of extended reliable
/// connections ([`QpInit::xrc`](verbs_core::QpInit::xrc)) is connected to a target; which shared receive queues there
/// are behind it is the services' to agree on, in private data for instance.
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
/// [`Error::Rejected`] (no listener; or refused, with private data), [`Error::NoAnswer`],
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
    alternate: Option<Alternate>,
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
            alternate: None,
        }
    }

    /// Has both queue pairs load an alternate path, to which they move when the first one fails or one of them is told
    /// to ([`QpAttr::migrate`](verbs_core::QpAttr::migrate)): on InfiniBand, between devices with
    /// [`AUTO_PATH_MIG`](verbs_core::DeviceCap::AUTO_PATH_MIG). A peer that does not take it is connected all the same;
    /// a query of the queue pair shows what became of it. [`Connection::load_path`] offers others later.
    pub fn alternate(mut self, path: impl Into<Alternate>) -> Self {
        self.alternate = Some(path.into());
        self
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
        let qp_type = self.qp.qp_type();
        if !matches!(qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend) {
            return Err(NotConnected::new(Error::QpType, self.qp));
        }
        match self.manager.way().await {
            Ok(Way::Messages(hub)) => self.by_messages(hub).await,
            Ok(Way::Verbs(provided)) => self.by_verbs(&provided).await,
            Err(error) => Err(NotConnected::new(error, self.qp)),
        }
    }

    async fn by_verbs(self, provided: &Provided) -> Result<Connection, NotConnected> {
        let resolver = self.resolver.clone();
        let resolver = resolver.unwrap_or_else(|| provided.resolver());
        let addr = match self.addr.lookup(&*resolver) {
            Ok(addr) => addr,
            Err(error) => return Err(NotConnected::new(error, self.qp)),
        };
        let limit = Limit::begin(provided.timer(), self.timeout);
        let Self {
            qp,
            local,
            param,
            access,
            private_data,
            ..
        } = self;
        let connecting = async {
            let local = provided.source(local, addr, &*resolver).await?;
            provided
                .connect(&qp, local, addr, &param, access, private_data)
                .await
        };
        // A provider that is stopped lets go of the queue pair when it can.
        let made = limit.answered(connecting).await;
        match made.unwrap_or_else(|| Err(limit.late(addr))) {
            Ok(made) => Ok(made.with(qp)),
            Err(error) => Err(NotConnected::new(error, qp)),
        }
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
        let alternate = self
            .alternate
            .map(|path| path.route(&hub.own_port(), &route));
        let alternate = match alternate.transpose() {
            Ok(alternate) => alternate,
            Err(error) => return Err(NotConnected::new(error, self.qp)),
        };
        let asked = Asked {
            addr,
            hop,
            route,
            alternate,
            port: self.local.map_or(0, |local| local.port()),
            param: self.param.within(&hub.port().device),
            timeout: Some(limit.for_answer()),
            private_data: self.private_data,
        };
        asked.finish(&hub, self.qp, &limit).await
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

/// The transport of a queue pair that connects.
fn transport_of(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Uc => Transport::Uc,
        QpType::XrcSend => Transport::Extended,
        _ => Transport::Rc,
    }
}

/// What a connection is asked for with, when the way is known.
pub(crate) struct Asked {
    pub(crate) addr: SocketAddr,
    pub(crate) hop: Hop,
    pub(crate) route: Route,
    pub(crate) alternate: Option<Route>,
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
    /// Asks, and asks again with a smaller path MTU as long as the peer rejects the request for that.
    async fn finish(
        mut self,
        hub: &Arc<Hub>,
        mut qp: Qp,
        limit: &Limit,
    ) -> Result<Connection, NotConnected> {
        loop {
            let made = match self.ask(hub, qp) {
                Ok(endpoint) => finish_within(endpoint, limit).await,
                Err((error, qp)) => Err(NotConnected::new(error, qp)),
            };
            let mut failed = match made {
                Ok(connection) => return Ok(connection),
                Err(failed) => failed,
            };
            match (failed.smaller_mtu(self.route.mtu), failed.qp.take()) {
                (Some(mtu), Some(back)) => {
                    tracing::debug!(peer = %self.addr, ?mtu, "the peer takes a smaller path MTU");
                    (self.route.mtu, qp) = (mtu, back);
                }
                (_, back) => return Err(NotConnected { qp: back, ..failed }),
            }
        }
    }

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
            transport: transport_of(qp.qp_type()),
            srq,
            responder_resources,
            initiator_depth,
            retry_count: bits(self.param.retry_count),
            rnr_retry_count: bits(self.param.rnr_retry_count),
            min_rnr_timer,
            response_timeout,
            max_cm_retries: bits(self.param.max_cm_retries),
            timeout: self.timeout,
            alternate: self.alternate,
            ..Connect::new(service, qp.qpn(), route)
        };
        hub.with(|inner, now| {
            let bound = match self.port {
                0 => inner.kept.ports.any(PortSpace::Tcp),
                port if inner.kept.ports.take(PortSpace::Tcp, port) => Some(port),
                _ => None,
            };
            let Some(source_port) = bound else {
                return Err((Error::AddressInUse(self.local(self.port)), qp));
            };
            let header = IpHeader {
                source_port,
                addresses,
            };
            connect.psn = inner.cm.draw_psn();
            connect = connect.ip(&header, data);
            match inner.cm.connect(now, connect) {
                Err(error) => {
                    inner.kept.ports.give_back(PortSpace::Tcp, source_port);
                    Err((error.into(), qp))
                }
                Ok(conn) => {
                    inner.kept.by_qpn.insert(qp.qpn().value(), conn);
                    let port = Some((PortSpace::Tcp, source_port));
                    let local = Some(self.local(source_port));
                    let endpoint = Endpoint::new(hub, conn, qp, local, self.addr, port);
                    inner.kept.conns.insert(conn, endpoint.handler());
                    Ok(endpoint)
                }
            }
        })
    }

    /// This end's address with that number.
    fn local(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.hop.local, port)
    }
}
