//! The passive side.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use verbs_core::mad::TimeCode;
use verbs_core::sync::{Arc, AtomicWaker, Mutex};
use verbs_core::{Access, CmEndpoint, CmRequest, Device, Qp, QpType, no_block};

use crate::connect::{finish, refused};
use crate::connection::Connection;
use crate::datagram::Question;
use crate::endpoint::{Data, Endpoint, initialise};
use crate::error::{Error, NotConnected};
use crate::event::{CmError, ConnId, Event, ListenId};
use crate::hub::Hub;
use crate::manager::{Manager, Way};
use crate::options::{ConnParam, bits, blob, options};
use crate::params::{Accept, Listen};
use crate::provided;
use crate::resolver::Address;
use crate::step::{CancelStep, Step, StepFuture};
use crate::wire::{IpHeader, PortSpace, RejectReason, Req, ServiceId, Transport};

/// Requests that wait for an answer, unless the listener says otherwise.
const BACKLOG: u32 = 128;

/// Listens for connections. The unspecified address stands for all of the device's; port number 0 for
/// any that is free.
///
/// ```no_run
/// # async fn example(dev: &verbs_core::Device, pd: &verbs_core::Pd, cq: &verbs_core::Cq)
/// # -> Result<(), verbs_cm::Error> {
/// use futures::StreamExt;
///
/// let mut listener = verbs_cm::listen(dev, "0.0.0.0:7174").backlog(16).await?;
/// while let Some(request) = listener.next().await {
///     let qp = pd.create_qp(verbs_core::QpInit::rc(cq, cq)).await?;
///     let connection = request.accept(qp).await?;
///     println!("connected to {}", connection.peer_addr());
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
}

impl Listening {
    pub(crate) fn new(manager: Manager, addr: impl Into<Address>) -> Self {
        Self {
            manager,
            addr: addr.into(),
            backlog: BACKLOG,
        }
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

    /// Begins and blocks the thread until somebody listens.
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
            } = self;
            match manager.way().await? {
                Way::Messages(hub) => {
                    let addr = addr.lookup(&*hub.resolver())?;
                    let inner = Bound::new(&hub, PortSpace::Tcp, addr)?.listen(backlog)?;
                    Ok(Listener {
                        local: inner.local_addr(),
                        queue: Arc::clone(&inner.queue),
                        _listens: Box::new(inner),
                    })
                }
                Way::Verbs(provided) => {
                    let addr = addr.lookup(&*provided.resolver())?;
                    let queue = Arc::new(Backlog::new(backlog));
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

impl IntoFuture for Listening {
    type Output = Result<Listener, Error>;
    type IntoFuture = StepFuture<Listener, Error>;

    fn into_future(self) -> Self::IntoFuture {
        self.step().into_future()
    }
}

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
            0 => (inner.ports.any(space), true),
            port => (Some(port), inner.ports.take(space, port)),
        });
        let port = port.ok_or(Error::AddressInUse(addr))?;
        Ok(Self {
            hub: Arc::clone(hub),
            space,
            addr: SocketAddr::new(addr.ip(), port),
            owns,
        })
    }

    pub(crate) fn listen(self, backlog: u32) -> Result<Inner, Error> {
        let Self {
            hub, space, addr, ..
        } = &self;
        let ip = addr.ip();
        let listen = Listen {
            addr: (!ip.is_unspecified()).then(|| ip.to_canonical()),
            backlog,
            ..Listen::new(ServiceId::rdma_cm(*space, addr.port()))
        };
        let queue = Arc::new(Backlog::new(backlog));
        let id = hub.with(|inner, _| {
            let id = inner.cm.listen(listen)?;
            inner.listeners.insert(id, Arc::downgrade(&queue));
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
        })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.owns {
            let (space, port) = (self.space, self.addr.port());
            self.hub.with(|inner, _| inner.ports.give_back(space, port));
        }
    }
}

/// What listeners of both kinds have.
pub(crate) struct Inner {
    id: ListenId,
    pub(crate) queue: Arc<Backlog>,
    pub(crate) bound: Bound,
}

impl Inner {
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.bound.addr
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.bound.hub.with(|inner, _| {
            // It was added, and is removed once.
            let _gone = inner.cm.unlisten(self.id);
            inner.listeners.remove(&self.id);
        });
        // What waits is rejected, by its own destructors.
        let waiting = std::mem::take(&mut *self.queue.waiting.lock());
        drop(waiting);
    }
}

/// What has come for a listener and was not taken.
pub(crate) struct Backlog {
    waiting: Mutex<VecDeque<Waiting>>,
    waker: AtomicWaker,
}

pub(crate) enum Waiting {
    Request(ConnectRequest),
    Question(Question),
}

impl Backlog {
    /// Room for all that may wait is reserved now.
    fn new(backlog: u32) -> Self {
        Self {
            waiting: Mutex::new(VecDeque::with_capacity(backlog.min(BACKLOG) as usize)),
            waker: AtomicWaker::new(),
        }
    }

    /// The machine has a request.
    pub(crate) fn event(&self, hub: &Arc<Hub>, event: Event) {
        let waiting = match event {
            Event::ConnectRequest {
                conn,
                from,
                req,
                ip,
                ..
            } => {
                let gid = from.av.global.map(|global| IpAddr::from(global.dgid));
                Waiting::Request(ConnectRequest::by_message(hub, conn, ip, gid, &req))
            }
            Event::ResolveRequest {
                resolution,
                from,
                req,
                ip,
                ..
            } => {
                let gid = from.av.global.map(|global| IpAddr::from(global.dgid));
                Waiting::Question(Question::new(hub, resolution, peer_of(ip, gid), ip, &req))
            }
            _ => return,
        };
        self.push(waiting);
    }

    pub(crate) fn push(&self, waiting: Waiting) {
        self.waiting.lock().push_back(waiting);
        self.waker.wake();
    }

    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Waiting> {
        self.waker.register(cx.waker());
        match self.waiting.lock().pop_front() {
            Some(waiting) => Poll::Ready(waiting),
            None => Poll::Pending,
        }
    }
}

fn peer_of(ip: Option<IpHeader>, gid: Option<IpAddr>) -> SocketAddr {
    let unknown = IpAddr::from([0, 0, 0, 0]);
    match ip {
        Some(ip) => SocketAddr::new(ip.addresses.source(), ip.source_port),
        None => SocketAddr::new(gid.unwrap_or(unknown), 0),
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
        loop {
            match self.queue.poll_next(cx) {
                Poll::Ready(Waiting::Request(request)) => return Poll::Ready(request),
                // A question for datagrams in the port space of connections: nobody answers it.
                Poll::Ready(Waiting::Question(question)) => drop(question),
                Poll::Pending => return Poll::Pending,
            }
        }
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

/// A peer asks for a connection: [accept](ConnectRequest::accept) or [reject](ConnectRequest::reject)
/// it. Dropping it rejects it.
pub struct ConnectRequest {
    peer: SocketAddr,
    local: Option<IpAddr>,
    private_data: Data,
    /// As the peer sees them.
    responder_resources: u8,
    initiator_depth: u8,
    asked: Asked,
}

/// How the peer asked, until it is answered.
enum Asked {
    Message {
        hub: Arc<Hub>,
        conn: ConnId,
        qp_type: QpType,
    },
    Verb(CmEndpoint),
    Answered,
}

impl ConnectRequest {
    fn by_message(
        hub: &Arc<Hub>,
        conn: ConnId,
        ip: Option<IpHeader>,
        gid: Option<IpAddr>,
        req: &Req,
    ) -> Self {
        let start = ip.map_or(0, |_| IpHeader::LEN);
        let qp_type = match req.transport {
            Transport::Uc => QpType::Uc,
            _ => QpType::Rc,
        };
        Self {
            peer: peer_of(ip, gid),
            local: ip.map(|ip| ip.addresses.destination()),
            private_data: req.private_data.0[start..].to_vec(),
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            asked: Asked::Message {
                hub: Arc::clone(hub),
                conn,
                qp_type,
            },
        }
    }

    pub(crate) fn by_verb(request: CmRequest) -> Self {
        Self {
            peer: request.remote,
            local: Some(request.endpoint.local().ip()),
            private_data: request.private_data,
            responder_resources: request.param.responder_resources,
            initiator_depth: request.param.initiator_depth,
            asked: Asked::Verb(request.endpoint),
        }
    }

    /// Who asks; without port number if the request has no header of the RDMA IP connection manager.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The address that was asked for, if the request says it.
    pub fn local_addr(&self) -> Option<IpAddr> {
        self.local
    }

    /// What the peer says along. By messages that is 56 bytes after the header of the RDMA IP connection
    /// manager, or 92 without one, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// READs and atomics that the peer serves at a time.
    pub fn responder_resources(&self) -> u8 {
        self.responder_resources
    }

    /// READs and atomics that the peer wants to have outstanding.
    pub fn initiator_depth(&self) -> u8 {
        self.initiator_depth
    }

    /// Accepts it with that queue pair, which is in RESET, or in INIT if receives were posted already.
    ///
    /// # Errors
    /// [`NotConnected`] with the queue pair and [`Error`]: [`Error::Machine`] when the peer has given
    /// up, [`Error::QpType`], [`Error::QpState`], [`Error::Failed`], [`Error::Verb`].
    pub fn accept(self, qp: Qp) -> Accepting {
        let param = ConnParam {
            responder_resources: self.initiator_depth,
            initiator_depth: self.responder_resources,
            ..ConnParam::default()
        };
        Accepting {
            request: self,
            qp,
            param,
            access: Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::LOCAL_WRITE,
            private_data: Vec::new(),
        }
    }

    /// Rejects it, and tells the peer why in its own words: 148 bytes at most. Never blocks.
    ///
    /// # Errors
    /// [`Error::PrivateData`], [`Error::Machine`] when the peer has given up.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        let data = blob::<148>(private_data)?;
        match std::mem::replace(&mut self.asked, Asked::Answered) {
            Asked::Message { hub, conn, .. } => {
                let reason = RejectReason::Consumer;
                let rejected = hub.with(|inner, now| inner.cm.reject(now, conn, reason, &[], data));
                Ok(rejected?)
            }
            Asked::Verb(endpoint) => {
                // The endpoint has served its purpose when this is done.
                let request = endpoint.reject(private_data.to_vec());
                let _ = request.issue(|_done| ());
                Ok(())
            }
            Asked::Answered => Ok(()),
        }
    }

    /// Tells the peer that the answer takes longer, where there is a message for that. Never blocks.
    ///
    /// # Errors
    /// [`Error::Machine`] when no answer is due.
    pub fn delay(&self, longer: TimeCode) -> Result<(), Error> {
        match &self.asked {
            Asked::Message { hub, conn, .. } => {
                Ok(hub.with(|inner, now| inner.cm.delay(now, *conn, longer))?)
            }
            Asked::Verb(_) | Asked::Answered => Ok(()),
        }
    }
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if let Asked::Message { hub, conn, .. } = &self.asked {
            hub.with(|inner, now| {
                // The peer may have given up.
                let _gone = inner.cm.destroy(now, *conn);
            });
        }
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A request that is to be accepted; issue it, await it or wait for it.
#[must_use = "a request is not accepted until this is issued, awaited or waited for"]
#[derive(Debug)]
pub struct Accepting {
    request: ConnectRequest,
    qp: Qp,
    param: ConnParam,
    access: Access,
    private_data: Vec<u8>,
}

options!(Accepting);

impl Accepting {
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
    /// As [`ConnectRequest::accept`]; and [`Error::WouldBlock`] under NoBlock, with the queue pair; the
    /// request is rejected (K3).
    pub fn wait(self) -> Result<Connection, NotConnected> {
        if no_block() {
            return Err(refused(Error::WouldBlock, self.qp));
        }
        self.step().wait()
    }

    /// All that is left, as a step.
    pub fn step(self) -> Step<Connection, NotConnected> {
        Step::new(self.run())
    }

    async fn run(mut self) -> Result<Connection, NotConnected> {
        match std::mem::replace(&mut self.request.asked, Asked::Answered) {
            Asked::Message { hub, conn, qp_type } => {
                let conn = Some(conn);
                let pending = Pending { hub, conn };
                self.by_message(pending, qp_type).await
            }
            Asked::Verb(endpoint) => {
                let peer = self.request.peer;
                let Self {
                    qp,
                    param,
                    private_data,
                    ..
                } = self;
                provided::accept(endpoint, qp, peer, &param, private_data).await
            }
            Asked::Answered => unreachable!("a request is answered once"),
        }
    }

    async fn by_message(
        self,
        pending: Pending,
        qp_type: QpType,
    ) -> Result<Connection, NotConnected> {
        let Self {
            request,
            qp,
            param,
            access,
            private_data,
        } = self;
        if qp.qp_type() != qp_type {
            return Err(refused(Error::QpType, qp));
        }
        let data = match blob::<196>(&private_data) {
            Ok(data) => data,
            Err(error) => return Err(refused(error, qp)),
        };
        let port = pending.hub.port();
        let param = param.within(&port.device);
        if let Err(error) = initialise(&qp, port.number, access).await {
            return Err(refused(error, qp));
        }
        let accept = Accept {
            qpn: qp.qpn(),
            srq: param.srq,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            rnr_retry_count: bits(param.rnr_retry_count),
            min_rnr_timer: param.min_rnr_timer,
            private_data: data,
            ..Accept::default()
        };
        match pending.answer(accept, qp, request.peer) {
            Ok(endpoint) => finish(endpoint).await,
            Err((error, qp)) => Err(refused(error, qp)),
        }
    }
}

/// A request by message that is being accepted; dropping it rejects it.
struct Pending {
    hub: Arc<Hub>,
    /// `None` once the machine was told.
    conn: Option<ConnId>,
}

impl Pending {
    /// Has the machine accept it.
    fn answer(
        mut self,
        mut accept: Accept,
        qp: Qp,
        peer: SocketAddr,
    ) -> Result<Arc<Endpoint>, (Error, Qp)> {
        let hub = Arc::clone(&self.hub);
        let Some(conn) = self.conn else {
            unreachable!("the machine is told once");
        };
        let endpoint = hub.with(|inner, now| {
            accept.psn = inner.cm.draw_psn();
            if let Err(error) = inner.cm.accept(now, conn, &accept) {
                return Err((error.into(), qp));
            }
            inner.by_qpn.insert(qp.qpn().value(), conn);
            let endpoint = Endpoint::new(&hub, conn, qp, peer, None);
            inner.conns.insert(conn, Arc::downgrade(&endpoint));
            Ok(endpoint)
        })?;
        // The endpoint sees to it from now on.
        self.conn = None;
        Ok(endpoint)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(conn) = self.conn {
            self.hub.with(|inner, now| {
                // The peer may have given up.
                let _gone = inner.cm.destroy(now, conn);
            });
        }
    }
}

impl IntoFuture for Accepting {
    type Output = Result<Connection, NotConnected>;
    type IntoFuture = StepFuture<Connection, NotConnected>;

    fn into_future(self) -> Self::IntoFuture {
        self.step().into_future()
    }
}
