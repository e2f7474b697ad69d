//! This end of a connection, between the user and the state machine: the queue pair, and how far it is.

use std::fmt;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::task::{self, OwnWaker};
use verbs_core::{Access, Qp, QpAttr, QpState, Qpn, RecvQueue, SendQueue};

use crate::alternate::Alternate;
use crate::error::{Error, Rejection};
use crate::event::{CmError, ConnId, Ended, Event, Failure, PathError, QpChange};
use crate::hub::Hub;
use crate::hub::handler::{ConnHandler, Handler};
use crate::wire::PortSpace;

/// Private data, as long as the message carries; there is no length on the wire.
pub(crate) type Data = Vec<u8>;

/// The private data of an RTU, which are the longest that establish a connection.
const PRIVATE_DATA_MAX: usize = 224;

/// A connection that the state machine knows. The machine's tables refer to it only; it goes with the
/// user's last handle, which ends the connection.
pub(crate) struct Endpoint {
    hub: Arc<Hub>,
    conn: ConnId,
    qpn: Qpn,
    /// The number that was bound for it.
    port: Option<(PortSpace, u16)>,
    /// This end's address, where connections have addresses.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: SocketAddr,
    /// `None` once it was taken away. Held while a modify is issued, which runs nothing foreign, as
    /// that happens under NoBlock.
    qp: Mutex<Option<Qp>>,
    life: Mutex<Life>,
}

struct Life {
    phase: Phase,
    /// What came of the last alternate path; nothing while it is offered.
    path: Option<Result<(), PathError>>,
    waiting: Vec<Waker>,
    /// Room for the peer's private data, until they come.
    room: Data,
}

/// How far the connection is.
#[derive(Clone, Debug)]
enum Phase {
    Making,
    Failed(Error),
    /// With the peer's private data.
    Established(Data),
    /// It was there, with these private data, and one side has ended it.
    Over(Data, Ended),
}

impl Endpoint {
    /// For a connection that the machine has just been told of; `inner` lists it.
    pub(crate) fn new(
        hub: &Arc<Hub>,
        conn: ConnId,
        qp: Qp,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        port: Option<(PortSpace, u16)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            hub: Arc::clone(hub),
            conn,
            qpn: qp.qpn(),
            port,
            local,
            peer,
            qp: Mutex::new(Some(qp)),
            life: Mutex::new(Life {
                phase: Phase::Making,
                path: None,
                // What events need is reserved with the endpoint.
                waiting: Vec::with_capacity(2),
                room: Data::with_capacity(PRIVATE_DATA_MAX),
            }),
        })
    }

    /// As the machine's tables refer to it.
    pub(crate) fn handler(self: &Arc<Self>) -> Weak<dyn ConnHandler> {
        Arc::downgrade(self) as Weak<dyn ConnHandler>
    }

    /// Whether the connection is there, with the peer's private data, or will never be.
    pub(crate) fn poll_established(&self, cx: &mut Context<'_>) -> Poll<Result<Data, Error>> {
        let mut waker = OwnWaker::of(cx.waker());
        let mut life = self.life.lock();
        match &life.phase {
            Phase::Making => {
                waker.join(&mut life.waiting);
                Poll::Pending
            }
            Phase::Failed(error) => Poll::Ready(Err(error.clone())),
            // A connection that was there for a moment only has a handle all the same.
            Phase::Established(data) | Phase::Over(data, _) => Poll::Ready(Ok(data.clone())),
        }
    }

    pub(crate) fn is_established(&self) -> bool {
        matches!(self.life.lock().phase, Phase::Established(_))
    }

    /// Which side has ended the connection, if it is being ended.
    pub(crate) fn ended(&self) -> Option<Ended> {
        // First the machine, which forgets connections when their last event is out.
        let ended = self.hub.look(|inner| inner.cm.ended(self.conn));
        ended.or_else(|| match self.life.lock().phase {
            Phase::Over(_, by) => Some(by),
            _ => None,
        })
    }

    /// The peer's queue pair, while the state machine knows the connection.
    pub(crate) fn remote_qpn(&self) -> Option<Qpn> {
        self.hub.look(|inner| inner.cm.remote_qpn(self.conn))
    }

    /// Tells the peer, and takes the queue pair to ERR. Does nothing where that is under way.
    pub(crate) fn disconnect(&self) {
        self.hub.with(|inner, now| {
            let _over = inner.cm.disconnect(now, self.conn, Default::default());
        });
    }

    /// Offers the peer an alternate path.
    pub(crate) fn load_path(&self, path: &Alternate) -> Result<(), Error> {
        let port = self.hub.own_port();
        self.hub.with(|inner, now| {
            let Some(route) = inner.cm.route(self.conn) else {
                return Err(CmError::NoAlternates.into());
            };
            let route = path.route(&port, &route)?;
            // Before the machine is told: the answer comes when this lock is free again.
            let before = self.life.lock().path.take();
            let offered = inner.cm.load_path(now, self.conn, &route);
            if offered.is_err() {
                self.life.lock().path = before;
            }
            Ok(offered?)
        })
    }

    /// What has come of the path that was offered last.
    pub(crate) fn poll_path(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut waker = OwnWaker::of(cx.waker());
        let mut life = self.life.lock();
        match (life.path, &life.phase) {
            (Some(done), _) => Poll::Ready(done.map_err(Error::Path)),
            (None, Phase::Making | Phase::Established(_)) => {
                waker.join(&mut life.waiting);
                Poll::Pending
            }
            (None, Phase::Failed(_) | Phase::Over(..)) => Poll::Ready(Err(Error::Disconnected)),
        }
    }

    /// Ends when the messages so far have left.
    pub(crate) fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.hub.drained()
    }

    /// Takes the queue pair away: the connection is over, or will be without it.
    pub(crate) fn take_qp(&self) -> Option<Qp> {
        self.qp.lock().take()
    }

    /// Takes the queues off the queue pair, unless that was done before.
    pub(crate) fn take_queues(&self) -> Option<(SendQueue, RecvQueue)> {
        let mut place = self.qp.lock();
        let (qp, queues) = match place.take()?.split() {
            Ok((qp, send, recv)) => (qp, Some((send, recv))),
            Err(qp) => (qp, None),
        };
        *place = Some(qp);
        queues
    }

    /// Calls with the queue pair, unless it was taken away.
    pub(crate) fn with_qp<R>(&self, call: impl FnOnce(&Qp) -> R) -> Option<R> {
        self.qp.lock().as_ref().map(call)
    }
}

impl Handler for Endpoint {
    fn event(&self, event: Event) {
        let path = match event {
            Event::PathLoaded { .. } => Some(Ok(())),
            Event::PathRefused { why, .. } => Some(Err(why)),
            _ => None,
        };
        if path.is_some() {
            let waiting = {
                let mut life = self.life.lock();
                life.path = path;
                std::mem::take(&mut life.waiting)
            };
            return waiting.into_iter().for_each(task::wake);
        }
        let phase = match event {
            Event::Established { private_data, .. } => {
                let mut data = std::mem::take(&mut self.life.lock().room);
                data.extend_from_slice(&private_data.0);
                Phase::Established(data)
            }
            Event::Rejected {
                reason,
                info,
                private_data,
                ..
            } => Phase::Failed(Error::Rejected(Box::new(Rejection {
                peer: self.peer,
                reason,
                private_data: private_data.0.to_vec(),
                path_mtu: reason.path_mtu(&info.0),
            }))),
            Event::Unreachable { .. } => Phase::Failed(Error::TimedOut(self.peer)),
            Event::ConnectError {
                why: Failure::PortUnreachable,
                ..
            } => Phase::Failed(Error::PortUnreachable(self.peer)),
            Event::ConnectError { why, .. } => Phase::Failed(Error::Failed(why)),
            Event::Disconnected { by, .. } => Phase::Over(Data::new(), by),
            _ => return,
        };
        let waiting = {
            let mut life = self.life.lock();
            life.phase = match (phase, &mut life.phase) {
                (Phase::Over(_, by), Phase::Established(data)) => {
                    Phase::Over(std::mem::take(data), by)
                }
                (phase, _) => phase,
            };
            std::mem::take(&mut life.waiting)
        };
        waiting.into_iter().for_each(task::wake);
    }
}

impl ConnHandler for Endpoint {
    fn modify(&self, hub: &Arc<Hub>, change: QpChange) {
        let (hub, conn) = (Arc::downgrade(hub), change.conn);
        let routine = move |result| {
            if let Some(hub) = hub.upgrade() {
                hub.modified(conn, result);
            }
        };
        match &*self.qp.lock() {
            Some(qp) => drop(qp.modify(change.attr).issue(routine)),
            None => routine(Err(verbs_core::Error::Closing)),
        }
    }

    fn modify_and_wait(&self, attr: QpAttr) -> Result<(), verbs_core::Error> {
        let done = self.with_qp(|qp| qp.modify(attr).wait());
        done.unwrap_or(Err(verbs_core::Error::Closing))
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = OwnWaker::of(cx.waker());
        let mut life = self.life.lock();
        match life.phase {
            Phase::Over(..) | Phase::Failed(_) => Poll::Ready(()),
            Phase::Making | Phase::Established(_) => {
                waker.join(&mut life.waiting);
                Poll::Pending
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let (conn, qpn, port) = (self.conn, self.qpn.value(), self.port);
        self.hub.with(|inner, now| {
            // It may have had its last event.
            let _gone = inner.cm.destroy(now, conn);
            inner.kept.conns.remove(&conn);
            if inner.kept.by_qpn.get(&qpn) == Some(&conn) {
                inner.kept.by_qpn.remove(&qpn);
            }
            if let Some((space, port)) = port {
                inner.kept.ports.give_back(space, port);
            }
        });
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("peer", &self.peer)
            .field("phase", &self.life.lock().phase)
            .finish_non_exhaustive()
    }
}

/// Brings a queue pair to INIT, unless it is there. `access` is what the peer may do through it.
pub(crate) async fn initialise(qp: &Qp, port: u8, access: Access) -> Result<(), Error> {
    let info = qp.query().await?;
    match info.state {
        QpState::Reset => Ok(qp.init(port, access).await?),
        QpState::Init => Ok(()),
        other => Err(Error::QpState(other)),
    }
}
