//! The passive side: it is asked.

use verbs_core::addr::Mtu;
use verbs_core::mad::{Address, Bits, Blob, TransactionId};
use verbs_core::{Av, QpAttr};

use crate::event::{ConnId, Event, Failure, ListenId};
use crate::machine::qp::{QpDriver, Stage, passive_attrs};
use crate::machine::{Connection, Ctx, Edge, Proof, Side, State};
use crate::params::{Accept, Port};
use crate::refusals::Refusals;
use crate::wire::{CommId, IpHeader, RejectReason, Rep, Req};

/// A REQ that the table found nothing wrong with.
pub(crate) struct Request {
    pub(crate) id: ConnId,
    pub(crate) listener: ListenId,
    pub(crate) local_id: CommId,
    pub(crate) own_tid: TransactionId,
    pub(crate) peer_tid: TransactionId,
    pub(crate) from: Address,
    pub(crate) req: Req,
    pub(crate) av: Av,
    pub(crate) mtu: Mtu,
}

impl Connection {
    /// Tells the user of a REQ.
    pub(crate) fn requested(ctx: &mut Ctx<'_>, request: Request) -> Self {
        let req = request.req;
        let longest = ctx.config.response_timeout_max;
        let response = req.local_response_timeout.min(longest);
        // The ACK timeout is there and back.
        let way = req.primary.ack_timeout.min(longest);
        let mut conn = Self {
            id: request.id,
            state: State::Idle,
            side: Side::Passive {
                listener: request.listener,
                av: request.av,
                mtu: request.mtu,
                rep: Box::default(),
            },
            local_id: request.local_id,
            remote_id: Some(req.local_id),
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            peer: request.from,
            own_tid: request.own_tid,
            peer_tid: request.peer_tid,
            qp: QpDriver::new(verbs_core::Qpn::default()),
            last: None,
            wait: response.duration() + way.duration(),
            retries_left: 0,
            deadline: None,
            refusals: Refusals::default(),
            gives_up: None,
            proof: Proof::NONE,
            timewait: way,
            private_data: Blob::default(),
            was_told: false,
            is_silent: false,
            ended: None,
            req: Box::new(req),
        };
        conn.go(Edge::RecvReq);
        let event = Event::ConnectRequest {
            conn: conn.id,
            listener: request.listener,
            from: request.from,
            req,
            ip: IpHeader::parse(&req.private_data.0).ok(),
        };
        conn.tell(ctx, event);
        conn
    }

    /// The same REQ once more: the answer got lost, or is not there yet.
    pub(crate) fn handle_req_again(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.proof.heard = self.proof.heard.saturating_add(1);
        match self.state {
            State::ReqMraSent | State::RepSent | State::RepMraRcvd => self.again(ctx),
            State::Timewait => self.reject_again(ctx),
            _ => false,
        }
    }

    /// The user accepts: the queue pair goes to RTR, then the REP is sent.
    pub(crate) fn accept(&mut self, ctx: &mut Ctx<'_>, accept: &Accept) -> bool {
        if !self.go(Edge::Accept) {
            return false;
        }
        let answer = self.answer_to(ctx.port, accept);
        let attrs = self.attrs_if(ctx.port, accept);
        if let (Side::Passive { rep, .. }, Some(attrs)) = (&mut self.side, attrs) {
            **rep = answer;
            self.qp = QpDriver::new(accept.qpn);
            self.qp.attrs(attrs);
        }
        // The MRA has done its work; until the REP there is no answer to a repeated REQ.
        self.last = None;
        self.aim(ctx, Stage::Rtr);
        true
    }

    /// The REP that the user's answer makes.
    fn answer_to(&self, port: &Port, accept: &Accept) -> Rep {
        // There are no alternate paths.
        let failover = match self.req.alternate.local_lid.0 {
            0 => Bits::default(),
            _ => Bits::truncated(1),
        };
        Rep {
            local_id: self.local_id,
            remote_id: self.req.local_id,
            qpn: accept.qpn,
            psn: accept.psn,
            responder_resources: accept.responder_resources,
            // No more than the peer serves.
            initiator_depth: accept.initiator_depth.min(self.req.responder_resources),
            target_ack_delay: port.ack_delay,
            failover,
            rnr_retry_count: accept.rnr_retry_count,
            srq: accept.srq,
            ca_guid: port.ca_guid,
            private_data: accept.private_data,
            ..Rep::default()
        }
    }

    /// The modifies to RTR and to RTS that accepting it like that brings; `None` for the active side.
    pub(crate) fn attrs_if(&self, port: &Port, accept: &Accept) -> Option<(QpAttr, QpAttr)> {
        let Side::Passive { av, mtu, .. } = &self.side else {
            return None;
        };
        let rep = self.answer_to(port, accept);
        Some(passive_attrs(accept, &self.req, &rep, *av, *mtu))
    }

    /// The queue pair is in RTR: sends the REP.
    pub(super) fn reply(&mut self, ctx: &mut Ctx<'_>) {
        let Side::Passive { rep, .. } = &self.side else {
            unreachable!("only the passive side replies");
        };
        let rep = **rep;
        self.go(Edge::QpReady);
        self.gives_up = Some(ctx.now + ctx.config.half_open_time_max);
        self.ask(ctx, self.peer_tid, &rep.into());
    }

    /// The user rejects.
    pub(crate) fn reject(
        &mut self,
        ctx: &mut Ctx<'_>,
        reason: RejectReason,
        info: &[u8],
        private_data: Blob<148>,
    ) -> bool {
        if !self.state.awaits_user() {
            return false;
        }
        let info_len = u32::try_from(info.len().min(Blob::<72>::LEN)).unwrap_or(0);
        let info = Blob::new(info).unwrap_or_default();
        self.send_rej_with(ctx, reason, Bits::saturating(info_len), info, private_data);
        self.is_silent = true;
        self.leave(ctx, Edge::Reject);
        true
    }

    /// An RTU, or data that overtook a lost one: the queue pair goes to RTS.
    pub(crate) fn handle_rtu(&mut self, ctx: &mut Ctx<'_>, private_data: Blob<224>) -> bool {
        if !self.go(Edge::RecvRtu) {
            return false;
        }
        self.prove();
        self.private_data = private_data;
        self.deadline = None;
        self.last = None;
        self.aim(ctx, Stage::Rts);
        true
    }

    /// Newer requests need the place of this one, whose peer has not confirmed it.
    pub(crate) fn give_way(&mut self, ctx: &mut Ctx<'_>) {
        ctx.out.counters.gave_way += 1;
        self.send_rej(ctx, RejectReason::NoResources);
        let why = Failure::GaveWay;
        let event = Event::ConnectError { conn: self.id, why };
        self.fail(ctx, Edge::Abort, event);
    }

    /// Nobody confirmed the REP.
    pub(super) fn give_up_reply(&mut self, ctx: &mut Ctx<'_>) {
        self.send_rej(ctx, RejectReason::Timeout);
        let why = Failure::NoConfirmation;
        let event = Event::ConnectError { conn: self.id, why };
        self.fail(ctx, Edge::GiveUp, event);
    }
}
