//! The active side: it asks for a connection.

use std::time::Duration;

use verbs_core::addr::{Guid, Qpn};
use verbs_core::mad::{Bits, Blob, TransactionId};

use crate::event::{ConnId, Event, Failure};
use crate::machine::qp::{QpDriver, Stage, ack_timeout, active_attrs};
use crate::machine::{Connection, Ctx, Edge, Proof, Side, State};
use crate::pace::spread;
use crate::params::{Connect, Port};
use crate::refusals::{REFUSED_PAUSE, Refusals, Verdict};
use crate::wire::{CommId, Message, MtuCode, Rej, RejectReason, Rejected, Rep, Req, Rtu};

impl Connection {
    /// Sends the REQ.
    pub(crate) fn connect(
        ctx: &mut Ctx<'_>,
        id: ConnId,
        local_id: CommId,
        tid: TransactionId,
        connect: Connect,
    ) -> Self {
        let req = request(ctx.port, local_id, &connect);
        let mut conn = Self {
            id,
            state: State::Idle,
            local_id,
            remote_id: None,
            remote_guid: Guid::default(),
            remote_qpn: Qpn::default(),
            peer: connect.route.address(),
            own_tid: tid,
            peer_tid: tid,
            qp: QpDriver::new(connect.qpn),
            last: None,
            wait: usual_wait(&connect),
            retries_left: 0,
            deadline: None,
            refusals: Refusals::default(),
            gives_up: None,
            proof: Proof::GIVEN,
            timewait: req.primary.ack_timeout,
            private_data: Blob::default(),
            was_told: false,
            is_silent: false,
            ended: None,
            req: Box::new(req),
            side: Side::Active(Box::new(connect)),
        };
        conn.go(Edge::Connect);
        conn.ask(ctx, tid, &req.into());
        conn.hurry(ctx);
        conn
    }

    /// Spreads the repetitions of the REQ over the time that the peer has to show that it is there.
    fn hurry(&mut self, ctx: &Ctx<'_>) {
        let Side::Active(connect) = &self.side else {
            return;
        };
        let (wait, sends) = spread(self.wait, self.retries_left + 1, connect.timeout);
        (self.wait, self.retries_left) = (wait, sends - 1);
        self.deadline = Some(ctx.now + wait);
    }

    /// A REP: the first, or a repetition because our answer to it got lost or is not there yet.
    pub(crate) fn handle_rep(&mut self, ctx: &mut Ctx<'_>, tid: TransactionId, rep: &Rep) -> bool {
        let Side::Active(connect) = &self.side else {
            return false;
        };
        match self.state {
            State::ReqSent | State::ReqMraRcvd => {}
            State::RepMraSent | State::Established => return self.again(ctx),
            State::Timewait => return self.reject_again(ctx),
            _ => return false,
        }
        self.qp.attrs(active_attrs(connect, &self.req, rep));
        self.timewait = ack_timeout(connect.route.packet_lifetime, rep.target_ack_delay);
        self.wait = usual_wait(connect);
        self.go(Edge::RecvRep);
        self.peer_tid = tid;
        self.remote_id = Some(rep.local_id);
        (self.remote_guid, self.remote_qpn) = (rep.ca_guid, rep.qpn);
        self.private_data = Blob::new(&rep.private_data.0).unwrap_or_default();
        self.deadline = None;
        // What a repeated REP is answered with now is nothing: the REQ has done its work.
        self.last = None;
        self.aim(ctx, Stage::Rts);
        true
    }

    /// The queue pair is in RTS: sends the RTU.
    pub(super) fn confirm(&mut self, ctx: &mut Ctx<'_>) {
        let rtu = Rtu {
            local_id: self.local_id,
            remote_id: self.remote_id.unwrap_or_default(),
            private_data: Blob::default(),
        };
        self.send(ctx, self.peer_tid, &rtu.into());
        self.arrive(ctx);
    }

    /// Takes the REQ back. The peer may have it, and we do not know the peer's id: it finds the
    /// connection by our GUID (IBTA vol. 1, 12.6.7.2, reason 4).
    pub(super) fn withdraw(&mut self, ctx: &mut Ctx<'_>) {
        let guid = ctx.port.ca_guid.0.to_be_bytes();
        let rej = Message::Rej(Rej {
            local_id: self.local_id,
            remote_id: CommId(0),
            message: Rejected::Req,
            info_len: Bits::truncated(8),
            reason: RejectReason::Timeout,
            info: Blob::new(&guid).unwrap_or_default(),
            private_data: Blob::default(),
        });
        self.send(ctx, self.own_tid, &rej);
    }

    /// Nobody answered the REQ.
    pub(super) fn give_up_request(&mut self, ctx: &mut Ctx<'_>) {
        let event = Event::Unreachable { conn: self.id };
        self.end_request(ctx, event);
    }

    /// The network reports that the peer's host refused the REQ. Whether that means anything.
    pub(crate) fn handle_refusal(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.state != State::ReqSent {
            return false;
        }
        match self.refusals.refused() {
            Verdict::Ignore => return false,
            Verdict::SendSoon if self.retries_left > 0 => {
                let soon = ctx.now + REFUSED_PAUSE;
                self.deadline = self.deadline.map(|usual| usual.min(soon));
            }
            // That was the last one: it still has its time.
            Verdict::SendSoon => {}
            Verdict::GiveUp => {
                let event = Event::ConnectError {
                    conn: self.id,
                    why: Failure::PortUnreachable,
                };
                self.end_request(ctx, event);
            }
        }
        true
    }

    fn end_request(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        self.withdraw(ctx);
        self.go(Edge::GiveUp);
        self.deadline = None;
        self.tell(ctx, event);
    }
}

/// How long an answer may take: the peer's time, and the way there and back.
fn usual_wait(connect: &Connect) -> Duration {
    connect.response_timeout.duration() + 2 * connect.route.packet_lifetime.duration()
}

/// The REQ for a connection.
fn request(port: &Port, local_id: CommId, connect: &Connect) -> Req {
    let route = connect.route;
    let ack_timeout = ack_timeout(route.packet_lifetime, port.ack_delay);
    Req {
        local_id,
        service_id: connect.service_id,
        ca_guid: port.ca_guid,
        qpn: connect.qpn,
        responder_resources: connect.responder_resources,
        initiator_depth: connect.initiator_depth,
        remote_response_timeout: connect.response_timeout,
        transport: connect.transport,
        psn: connect.psn,
        local_response_timeout: connect.response_timeout,
        retry_count: connect.retry_count,
        pkey: route.pkey.0,
        path_mtu: MtuCode::from(route.mtu),
        rnr_retry_count: connect.rnr_retry_count,
        max_cm_retries: connect.max_cm_retries,
        srq: connect.srq,
        primary: route.to_wire(port, ack_timeout),
        private_data: connect.private_data,
        ..Req::default()
    }
}
