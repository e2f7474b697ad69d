//! A request for a connection, and its answer.

use std::fmt;
use std::future::IntoFuture;
use std::net::{IpAddr, SocketAddr};

use verbs_core::mad::TimeCode;
use verbs_core::sync::Arc;
use verbs_core::{Access, CmEndpoint, CmRequest, Gid, Qp, QpType, no_block};

use crate::address::peer_of;
use crate::connection::{Connection, finish};
use crate::endpoint::{Data, Endpoint, initialise};
use crate::error::{Error, NotConnected};
use crate::event::ConnId;
use crate::hub::Hub;
use crate::machine::State;
use crate::options::{ConnParam, bits, blob, options};
use crate::params::Accept;
use crate::provided;
use crate::step::{CancelStep, Step, StepFuture};
use crate::wire::{IpHeader, RejectReason, Req, Transport};

/// A peer asks for a connection: [accept](ConnectRequest::accept) or [reject](ConnectRequest::reject)
/// it. Dropping it rejects it.
pub struct ConnectRequest {
    peer: SocketAddr,
    gid: Option<Gid>,
    local: Option<SocketAddr>,
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
    pub(super) fn by_message(
        hub: &Arc<Hub>,
        conn: ConnId,
        ip: Option<IpHeader>,
        gid: Option<IpAddr>,
        req: &Req,
    ) -> Self {
        let start = ip.map_or(0, |_| IpHeader::LEN);
        let qp_type = match req.transport {
            Transport::Uc => QpType::Uc,
            Transport::Extended => QpType::XrcRecv,
            _ => QpType::Rc,
        };
        Self {
            peer: peer_of(ip, gid),
            gid: Some(req.primary.local_gid),
            local: ip.map(|ip| {
                let port = req.service_id.port().map_or(0, |(_, port)| port);
                SocketAddr::new(ip.addresses.destination(), port)
            }),
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
            gid: None,
            local: Some(request.endpoint.local()),
            private_data: request.private_data,
            responder_resources: request.param.responder_resources,
            initiator_depth: request.param.initiator_depth,
            asked: Asked::Verb(request.endpoint),
        }
    }

    /// Whether the peer still waits for the answer, as far as is known here.
    pub(super) fn is_alive(&self) -> bool {
        match &self.asked {
            Asked::Message { hub, conn, .. } => {
                let state = hub.with(|inner, _| inner.cm.state(*conn));
                state.is_some_and(State::awaits_user)
            }
            Asked::Verb(_) => true,
            Asked::Answered => false,
        }
    }

    /// The peer that asks; without port number if the request has no header of the RDMA IP connection manager.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The GID that the connection's packets go to, where connections are made by messages; on Ethernet the
    /// request came from it. [`peer_addr`](Self::peer_addr) is what the peer says.
    pub fn peer_gid(&self) -> Option<Gid> {
        self.gid
    }

    /// Which type of queue pair accepts it: [`QpType::XrcRecv`], a target, for an extended reliable connection
    /// ([`Listening::extended`](crate::Listening::extended)).
    pub fn qp_type(&self) -> QpType {
        match self.asked {
            Asked::Message { qp_type, .. } => qp_type,
            Asked::Verb(_) | Asked::Answered => QpType::Rc,
        }
    }

    /// The address that was asked for, if the request says it.
    pub fn local_addr(&self) -> Option<IpAddr> {
        self.local.map(|local| local.ip())
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

    /// Rejects it, and tells the peer why in its own words: 148 bytes at most. Never blocks. A program that
    /// ends right after it awaits [`Manager::drained`](crate::Manager::drained) first.
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
            return Err(NotConnected::new(Error::WouldBlock, self.qp));
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
                    access,
                    private_data,
                    ..
                } = self;
                provided::accept(endpoint, qp, peer, &param, access, private_data).await
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
            return Err(NotConnected::new(Error::QpType, qp));
        }
        let data = match blob::<196>(&private_data) {
            Ok(data) => data,
            Err(error) => return Err(NotConnected::new(error, qp)),
        };
        let port = pending.hub.port();
        let param = param.within(&port.device);
        if let Err(error) = initialise(&qp, port.number, access).await {
            return Err(NotConnected::new(error, qp));
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
        match pending.answer(accept, qp, request.local, request.peer) {
            Ok(endpoint) => finish(endpoint).await,
            Err((error, qp)) => Err(NotConnected::new(error, qp)),
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
        local: Option<SocketAddr>,
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
            inner.kept.by_qpn.insert(qp.qpn().value(), conn);
            let endpoint = Endpoint::new(&hub, conn, qp, local, peer, None);
            inner.kept.conns.insert(conn, endpoint.handler());
            Ok(endpoint)
        })?;
        // The endpoint handles it from now on.
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
