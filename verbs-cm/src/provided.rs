//! The second way: a provider that makes connections itself, by its own verbs.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::task::{self, OwnWaker};
use verbs_core::{CmBinder, CmEndpoint, CmEvent, CmParam, CmReply, CmSink, Device, Qp, Qpn, Timer};

use crate::connection::Connection;
use crate::endpoint::Data;
use crate::error::{Error, NotConnected, Rejection};
use crate::event::Ended;
use crate::link::Link;
use crate::listen::backlog::{Backlog, Waiting};
use crate::listen::request::ConnectRequest;
use crate::options::ConnParam;
use crate::resolver::{Fixed, Resolver};
use crate::wire::RejectReason;

/// The provider's connection manager.
pub(crate) struct Provided {
    binder: CmBinder,
    /// For names only.
    resolver: Mutex<Arc<dyn Resolver>>,
    timer: Option<Arc<dyn Timer>>,
}

impl Provided {
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            binder: device.cm_binder(),
            timer: device.target().provider_of().timer(),
            resolver: Mutex::new(Arc::new(Fixed::new())),
        }
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

    /// Connects a queue pair, whose states are the provider's business.
    pub(crate) async fn connect(
        &self,
        qp: Qp,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        param: &ConnParam,
        private_data: Data,
    ) -> Result<Connection, NotConnected> {
        let local = local.unwrap_or_else(|| match remote.ip() {
            IpAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            IpAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
        });
        let sink = Arc::new(Sink::default());
        let bound = self
            .binder
            .bind(local, Arc::<Sink>::clone(&sink) as _)
            .await;
        let endpoint = match bound {
            Ok(endpoint) => endpoint,
            Err(error) => return Err(NotConnected::new(error.into(), qp)),
        };
        let reply = endpoint
            .connect(&qp, remote, limits(param), private_data)
            .await;
        let rejected = |private_data: Box<[u8]>, reason| {
            Error::Rejected(Box::new(Rejection {
                peer: remote,
                reason,
                private_data: private_data.into(),
            }))
        };
        let error = match reply {
            Ok(CmReply::Established(data)) => {
                return Ok(established(endpoint, qp, remote, sink, data.into()));
            }
            Ok(CmReply::Rejected(data)) => rejected(data, RejectReason::Consumer),
            Ok(CmReply::Refused) => rejected(Box::default(), RejectReason::InvalidServiceId),
            Ok(CmReply::Unreachable) => Error::NoRoute(remote.ip()),
            Ok(_) => Error::TimedOut(remote),
            Err(error) => error.into(),
        };
        Err(NotConnected::new(error, qp))
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
        let endpoint = self.binder.bind(local, sink).await?;
        endpoint.listen(backlog).await?;
        Ok(endpoint)
    }
}

/// Accepts a request with a queue pair.
pub(crate) async fn accept(
    endpoint: CmEndpoint,
    qp: Qp,
    peer: SocketAddr,
    param: &ConnParam,
    private_data: Data,
) -> Result<Connection, NotConnected> {
    let sink = Arc::new(Sink::default());
    endpoint.events_to(Arc::<Sink>::clone(&sink) as _);
    match endpoint.accept(&qp, limits(param), private_data).await {
        Ok(()) => Ok(established(endpoint, qp, peer, sink, Data::new())),
        Err(error) => Err(NotConnected::new(error.into(), qp)),
    }
}

fn limits(param: &ConnParam) -> CmParam {
    CmParam {
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
    }
}

fn established(
    endpoint: CmEndpoint,
    qp: Qp,
    peer: SocketAddr,
    sink: Arc<Sink>,
    private_data: Data,
) -> Connection {
    let (qp, queues) = match qp.split() {
        Ok((qp, send, recv)) => (qp, Some((send, recv))),
        Err(qp) => (qp, None),
    };
    let end = End {
        peer,
        qp: Mutex::new(Some(qp)),
        endpoint: Mutex::new(Some(endpoint)),
        sink,
    };
    Connection::new(Arc::new(end), queues, private_data)
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
