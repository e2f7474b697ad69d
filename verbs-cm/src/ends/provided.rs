//! The second way: a provider that makes connections itself, by its own verbs.

use std::fmt;
use std::future::IntoFuture;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use verbs_core::device::DeviceCore;
use verbs_core::event::{EventType, EventWatcher};
use verbs_core::mad::PortInfo;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::task::{self, OwnWaker};
use verbs_core::verb::Verb;
use verbs_core::{
    Access, AsyncEvent, CmBinder, CmEndpoint, CmEvent, CmParam, CmReply, CmSink, Device,
    ProviderAttr, Qp, Qpn, RequestFuture, Target, Timer, TransportType,
};

use crate::alternate::Alternate;
use crate::connection::Connection;
use crate::endpoint::{Data, initialise};
use crate::error::{Error, NotConnected, Rejection};
use crate::event::{CmError, Ended};
use crate::link::Link;
use crate::listen::backlog::{Backlog, Waiting};
use crate::listen::request::ConnectRequest;
use crate::options::ConnParam;
use crate::resolver::{Cached, Host, Query, Resolver, has_addresses};
use crate::wire::RejectReason;

/// The port that queue pairs begin on; the provider moves them to the one that has the way.
const PORT: u8 = 1;

/// The provider's connection manager, shared by all its users on that port.
pub(crate) struct Provided {
    port: u8,
    /// Which `binder` keeps from being closed.
    device: Arc<DeviceCore>,
    binder: CmBinder,
    resolver: Mutex<Arc<dyn Resolver>>,
    timer: Option<Arc<dyn Timer>>,
    known: Mutex<Known>,
    /// What the device refers to.
    below: Arc<dyn EventWatcher>,
}

/// What is known of the port, until it changes.
#[derive(Default)]
struct Known {
    info: Option<Arc<PortInfo>>,
    /// Counts changes, so that an answer from before one is not kept after it.
    changes: u64,
}

impl Provided {
    /// That of the port.
    pub(crate) fn of(device: &Device, port: u8) -> Arc<Self> {
        let core = device.target();
        core.service(|own: &Self| own.port == port, || Self::new(device, port))
    }

    fn new(device: &Device, port: u8) -> Arc<Self> {
        let provided = Arc::new_cyclic(|me: &Weak<Self>| Self {
            port,
            device: Arc::clone(device.target()),
            binder: device.cm_binder(),
            resolver: Mutex::new(Arc::new(Cached::new(Host))),
            timer: device.target().provider_of().timer(),
            known: Mutex::default(),
            below: Arc::new(Below(Weak::clone(me))),
        });
        device.target().watch_events(&provided.below);
        provided
    }

    /// The device's, if it has one.
    pub(crate) fn timer(&self) -> Option<&Arc<dyn Timer>> {
        self.timer.as_ref()
    }

    pub(crate) fn resolver(&self) -> Arc<dyn Resolver> {
        Arc::clone(&self.resolver.lock())
    }

    pub(crate) fn set_resolver(&self, resolver: Arc<dyn Resolver>) {
        let old = std::mem::replace(&mut *self.resolver.lock(), resolver);
        // A destructor of the client's, run under no lock.
        drop(old);
    }

    /// What is known of the port.
    pub(crate) async fn info(&self) -> Result<Arc<PortInfo>, Error> {
        let changes = {
            let known = self.known.lock();
            if let Some(info) = &known.info {
                return Ok(Arc::clone(info));
            }
            known.changes
        };
        let info = Arc::new(PortInfo::read(&self.device, self.port).await?);
        let mut known = self.known.lock();
        if known.changes == changes {
            known.info = Some(Arc::clone(&info));
        }
        Ok(info)
    }

    /// The address that a connection to that peer leaves from, with the number that was asked for: the resolver chooses,
    /// as on the other way. The wildcard stays one, and the choice is the provider's, where that knows more: at a port
    /// that has no GID of the peer's family, and for peers of a link, whose addresses need the link's name.
    pub(crate) async fn source(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        resolver: &dyn Resolver,
    ) -> Result<SocketAddr, Error> {
        let any = match remote.ip() {
            IpAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            IpAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
        };
        let asked = local.unwrap_or(any);
        let port = self.info().await?;
        let of_link = matches!(remote, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local());
        if of_link || !has_addresses(&port, remote.ip()) {
            return Ok(asked);
        }
        let wanted = Some(asked.ip()).filter(|ip| !ip.is_unspecified());
        let hop = resolver.resolve(Query {
            remote: remote.ip(),
            local: wanted,
            port,
        });
        let hop = hop.await?;
        Ok(match wanted {
            Some(_) => asked,
            None => SocketAddr::new(hop.local, asked.port()),
        })
    }

    /// Connects a queue pair, whose states are the provider's business. Dropped, it cancels what it has begun.
    pub(crate) async fn connect(
        &self,
        qp: &Qp,
        local: SocketAddr,
        remote: SocketAddr,
        param: &ConnParam,
        access: Access,
        private_data: Data,
    ) -> Result<Made, Error> {
        let sink = Arc::new(Sink::default());
        let told = Arc::<Sink>::clone(&sink) as _;
        let bound = self.binder.bind(local, told).await;
        let endpoint = bound.map_err(|error| match error {
            verbs_core::Error::AddrNotAvailable if local.ip().is_unspecified() => {
                Error::NoRoute(remote.ip())
            }
            error => not_bound(error, local),
        })?;
        fits(&private_data, &endpoint)?;
        prepare(&endpoint, qp, access).await?;
        let param = limits(&endpoint, param);
        let asked = endpoint.connect(qp, remote, param, private_data);
        let reply = Attempt(asked.into_future()).await;
        let reply = reply.map_err(|error| not_bound(error, local))?;
        let rejected = |private_data: Box<[u8]>, reason| {
            Error::Rejected(Box::new(Rejection {
                peer: remote,
                reason,
                private_data: private_data.into(),
                path_mtu: None,
            }))
        };
        Err(match reply {
            CmReply::Established(data) => {
                return Ok(Made {
                    endpoint,
                    peer: remote,
                    sink,
                    private_data: data.into(),
                });
            }
            CmReply::Rejected(data) => rejected(data, RejectReason::Consumer),
            CmReply::Refused => rejected(Box::default(), RejectReason::InvalidServiceId),
            CmReply::ManagerRejected(reason) => {
                rejected(Box::default(), RejectReason::from_code(reason))
            }
            CmReply::Unreachable => Error::NoRoute(remote.ip()),
            _ => Error::TimedOut(remote),
        })
    }

    /// Listens; requests go into `queue`.
    pub(crate) async fn listen(
        &self,
        local: SocketAddr,
        backlog: u32,
        queue: &Arc<Backlog>,
    ) -> Result<CmEndpoint, Error> {
        let sink = Arc::new(Sink {
            listens: Some(Arc::downgrade(queue)),
            ..Sink::default()
        });
        let bound = self.binder.bind(local, sink).await;
        let endpoint = bound.map_err(|error| not_bound(error, local))?;
        let listening = endpoint.listen(backlog).await;
        listening.map_err(|error| not_bound(error, local))?;
        Ok(endpoint)
    }
}

/// What comes from below: that the port has changed.
struct Below(Weak<Provided>);

impl EventWatcher for Below {
    fn event(&self, event: AsyncEvent) {
        let changes = matches!(
            event.event,
            EventType::GidChange | EventType::PortErr | EventType::PortActive
        );
        if let Some(provided) = self.0.upgrade()
            && changes
        {
            {
                let mut known = provided.known.lock();
                known.info = None;
                known.changes += 1;
            }
            provided.resolver().invalidate();
        }
    }
}

/// Accepts a request with a queue pair.
pub(crate) async fn accept(
    endpoint: CmEndpoint,
    qp: Qp,
    peer: SocketAddr,
    param: &ConnParam,
    access: Access,
    private_data: Data,
) -> Result<Connection, NotConnected> {
    let sink = Arc::new(Sink::default());
    endpoint.events_to(Arc::<Sink>::clone(&sink) as _);
    let param = limits(&endpoint, param);
    let accepted = async {
        fits(&private_data, &endpoint)?;
        prepare(&endpoint, &qp, access).await?;
        let asked = endpoint.accept(&qp, param, private_data);
        Ok(Attempt(asked.into_future()).await?)
    };
    match accepted.await {
        Ok(()) => Ok(Made {
            endpoint,
            peer,
            sink,
            private_data: Data::new(),
        }
        .with(qp)),
        Err(error) => Err(NotConnected::new(error, qp)),
    }
}

/// What the peer may do through the queue pair is said before it is connected, where its states are InfiniBand's.
async fn prepare(endpoint: &CmEndpoint, qp: &Qp, access: Access) -> Result<(), Error> {
    match attr_of(endpoint).transport {
        TransportType::Iwarp => Ok(()),
        _ => initialise(qp, PORT, access).await,
    }
}

fn attr_of(endpoint: &CmEndpoint) -> ProviderAttr {
    endpoint.target().provider().query_provider(PORT)
}

/// A verb that waits for a peer, which may never answer: cancelled when it is dropped.
struct Attempt<'a, V: Verb>(RequestFuture<'a, V>);

impl<V: Verb> Future for Attempt<'_, V> {
    type Output = Result<V::Output, V::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<V: Verb> Drop for Attempt<'_, V> {
    fn drop(&mut self) {
        if let Some(handle) = self.0.cancel_handle() {
            handle.cancel();
        }
    }
}

/// Why an endpoint could not be bound, with its address.
fn not_bound(error: verbs_core::Error, local: SocketAddr) -> Error {
    match error {
        verbs_core::Error::AddrInUse { .. } => Error::AddressInUse(local),
        verbs_core::Error::AddrNotAvailable => Error::AddressNotAvailable(local.ip()),
        error => error.into(),
    }
}

/// Whether the provider carries that much private data.
fn fits(private_data: &[u8], endpoint: &CmEndpoint) -> Result<(), Error> {
    let max = usize::from(attr_of(endpoint).cm.private_data);
    let got = private_data.len();
    if got > max {
        return Err(Error::PrivateData { got, max });
    }
    Ok(())
}

/// What the provider is asked for: no more READs and atomics than it can do.
fn limits(endpoint: &CmEndpoint, param: &ConnParam) -> CmParam {
    let most = attr_of(endpoint).cm;
    CmParam {
        responder_resources: param.responder_resources.min(most.max_ird),
        initiator_depth: param.initiator_depth.min(most.max_ord),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        min_rnr_timer: param.min_rnr_timer,
        tos: param.tos,
    }
}

/// A connection that is there, without its queue pair.
pub(crate) struct Made {
    endpoint: CmEndpoint,
    peer: SocketAddr,
    sink: Arc<Sink>,
    private_data: Data,
}

impl Made {
    /// As users have it.
    pub(crate) fn with(self, qp: Qp) -> Connection {
        let (qp, queues) = match qp.split() {
            Ok((qp, send, recv)) => (qp, Some((send, recv))),
            Err(qp) => (qp, None),
        };
        let end = End {
            peer: self.peer,
            qp: Mutex::new(Some(qp)),
            endpoint: Mutex::new(Some(self.endpoint)),
            sink: self.sink,
        };
        Connection::new(Arc::new(end), queues, self.private_data)
    }
}

/// This end of a connection that the provider made.
struct End {
    peer: SocketAddr,
    qp: Mutex<Option<Qp>>,
    /// Unbound when the queue pair is taken away, so that it can be destroyed.
    endpoint: Mutex<Option<CmEndpoint>>,
    sink: Arc<Sink>,
}

/// Where the provider's events arrive.
#[derive(Default)]
struct Sink {
    listens: Option<Weak<Backlog>>,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    is_over: bool,
    /// From before the connection is over, where this side ends it.
    ended: Option<Ended>,
    waiting: Vec<Waker>,
}

impl CmSink for Sink {
    fn event(&self, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest(request) => {
                let queue = self.listens.as_ref().and_then(Weak::upgrade);
                if let Some(queue) = queue {
                    queue.push(Waiting::Request(ConnectRequest::by_verb(request)));
                }
            }
            CmEvent::Disconnected => self.over(Ended::Peer),
            CmEvent::Closed => self.over(Ended::Failed),
        }
    }
}

impl Sink {
    /// The connection is over; `by`: which side ended it, unless that is known.
    fn over(&self, by: Ended) {
        let waiting = {
            let mut life = self.life.lock();
            life.is_over = true;
            life.ended.get_or_insert(by);
            std::mem::take(&mut life.waiting)
        };
        waiting.into_iter().for_each(task::wake);
    }
}

impl Link for End {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn qpn(&self) -> Option<Qpn> {
        self.qp.lock().as_ref().map(Qp::qpn)
    }

    fn local(&self) -> Option<SocketAddr> {
        self.endpoint.lock().as_ref().map(CmEndpoint::local)
    }

    /// Connections over TCP do not tell.
    fn remote_qpn(&self) -> Option<Qpn> {
        None
    }

    fn provider(&self) -> Option<ProviderAttr> {
        self.endpoint.lock().as_ref().map(attr_of)
    }

    fn load_path(&self, _path: &Alternate) -> Result<(), Error> {
        Err(CmError::NoAlternates.into())
    }

    /// None is ever offered.
    fn poll_path(&self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Err(CmError::NoAlternates.into()))
    }

    fn is_established(&self) -> bool {
        !self.sink.life.lock().is_over
    }

    /// The queue pair goes to ERR; the provider closes the connection, and says so when it is over.
    fn disconnect(&self) {
        verbs_core::collect(|| {
            if let Some(qp) = &*self.qp.lock() {
                self.sink.life.lock().ended.get_or_insert(Ended::Here);
                let sink = Arc::clone(&self.sink);
                let _ = qp.to_error().issue(move |result| {
                    // A queue pair that cannot be moved has gone with its device.
                    if result.is_err() {
                        sink.over(Ended::Failed);
                    }
                });
            }
        });
    }

    fn ended(&self) -> Option<Ended> {
        self.sink.life.lock().ended
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = OwnWaker::of(cx.waker());
        let mut life = self.sink.life.lock();
        if life.is_over {
            return Poll::Ready(());
        }
        waker.join(&mut life.waiting);
        Poll::Pending
    }

    /// Telling is the provider's.
    fn drained(&self) -> BoxFuture<'static, ()> {
        future::ready(()).boxed()
    }

    /// The endpoint is unbound: while it is there, the queue pair cannot be destroyed (K10).
    fn released(&self) -> BoxFuture<'static, ()> {
        let endpoint = self.endpoint.lock().take();
        async move {
            if let Some(endpoint) = endpoint {
                // That of a device that has gone has gone with it.
                let _ = endpoint.unbind().await;
            }
        }
        .boxed()
    }

    fn take_qp(&self) -> Option<Qp> {
        let endpoint = self.endpoint.lock().take();
        drop(endpoint);
        self.qp.lock().take()
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
