//! The passive side: it is asked.

use verbs_core::addr::Mtu;
use verbs_core::mad::{Address, Bits, Blob, TimeCode, TransactionId};
use verbs_core::{Av, QpAttr};

use crate::event::{ConnId, Event, Failure, ListenId};
use crate::machine::closing;
use crate::machine::paths::Loading;
use crate::machine::qp::{QpDriver, Stage, Ways, passive_attrs};
use crate::machine::{Connection, Ctx, Edge, Offer, Proof, Side, State};
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
    pub(crate) offer: Offer,
}

/// Tells the user of a REQ.
pub(crate) fn requested(ctx: &mut Ctx<'_>, request: Request) -> Connection {
    let req = request.req;
    let longest = ctx.config.response_timeout_max;
    let response = req.local_response_timeout.min(longest);
    // The ACK timeout is there and back.
    let way = req.primary.ack_timeout.min(longest);
    let mut conn = Connection {
        id: request.id,
        state: State::Idle,
        side: Side::Passive {
            listener: request.listener,
            av: request.av,
            mtu: request.mtu,
            offer: request.offer,
            takes_paths: false,
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
        ack_delay: TimeCode::default(),
        loading: Loading::default(),
        loads: 0,
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
pub(crate) fn handle_req_again(conn: &mut Connection, ctx: &mut Ctx<'_>) -> bool {
    conn.proof.heard = conn.proof.heard.saturating_add(1);
    match conn.state {
        State::ReqMraSent | State::RepSent | State::RepMraRcvd => conn.again(ctx),
        State::Timewait => conn.reject_again(ctx),
        _ => false,
    }
}

/// The user accepts: the queue pair goes to RTR, then the REP is sent.
pub(crate) fn accept(conn: &mut Connection, ctx: &mut Ctx<'_>, accept: &Accept) -> bool {
    if !conn.go(Edge::Accept) {
        return false;
    }
    let answer = answer_to(conn, ctx.port, accept);
    let attrs = attrs_if(conn, ctx.port, accept);
    if let (
        Side::Passive {
            rep, takes_paths, ..
        },
        Some(attrs),
    ) = (&mut conn.side, attrs)
    {
        **rep = answer;
        *takes_paths = accept.takes_paths;
        conn.qp = QpDriver::new(accept.qpn);
        conn.qp.attrs(attrs);
    }
    // The MRA has done its work; until the REP there is no answer to a repeated REQ.
    conn.last = None;
    conn.aim(ctx, Stage::Rtr);
    true
}

/// The REP that the user's answer makes.
fn answer_to(conn: &Connection, port: &Port, accept: &Accept) -> Rep {
    let failover = match &conn.side {
        Side::Passive { offer, .. } => offer.failover(accept),
        Side::Active(_) => Bits::default(),
    };
    Rep {
        local_id: conn.local_id,
        remote_id: conn.req.local_id,
        qpn: accept.qpn,
        psn: accept.psn,
        responder_resources: accept.responder_resources,
        // At most what the peer serves.
        initiator_depth: accept.initiator_depth.min(conn.req.responder_resources),
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
pub(crate) fn attrs_if(
    conn: &Connection,
    port: &Port,
    accept: &Accept,
) -> Option<(QpAttr, QpAttr)> {
    let Side::Passive { av, mtu, offer, .. } = conn.side else {
        return None;
    };
    let rep = answer_to(conn, port, accept);
    let alternate = offer.taken(accept);
    let ways = Ways { av, mtu, alternate };
    Some(passive_attrs(accept, &conn.req, &rep, &ways))
}

/// The queue pair is in RTR: sends the REP.
pub(super) fn reply(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    let Side::Passive { rep, .. } = &conn.side else {
        unreachable!("only the passive side replies");
    };
    let rep = rep.written_as(conn.is_extended());
    conn.go(Edge::QpReady);
    conn.gives_up = Some(ctx.now + ctx.config.half_open_time_max);
    conn.ask(ctx, conn.peer_tid, &rep.into());
}

/// The user rejects.
pub(crate) fn reject(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    reason: RejectReason,
    info: &[u8],
    private_data: Blob<148>,
) -> bool {
    if !conn.state.awaits_user() {
        return false;
    }
    let info_len = u32::try_from(info.len().min(Blob::<72>::LEN)).unwrap_or(0);
    let info = Blob::new(info).unwrap_or_default();
    conn.send_rej_with(ctx, reason, Bits::saturating(info_len), info, private_data);
    conn.is_silent = true;
    closing::leave(conn, ctx, Edge::Reject);
    true
}

/// An RTU, or data that overtook a lost one: the queue pair goes to RTS.
pub(crate) fn handle_rtu(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    private_data: Blob<224>,
) -> bool {
    if !conn.go(Edge::RecvRtu) {
        return false;
    }
    conn.prove();
    conn.private_data = private_data;
    conn.deadline = None;
    conn.last = None;
    conn.aim(ctx, Stage::Rts);
    true
}

/// Newer requests need the place of this one, whose peer has not confirmed it.
pub(crate) fn give_way(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    ctx.out.counters.gave_way += 1;
    conn.send_rej(ctx, RejectReason::NoResources);
    let why = Failure::GaveWay;
    let event = Event::ConnectError { conn: conn.id, why };
    closing::fail(conn, ctx, Edge::Abort, event);
}

/// The REP was not confirmed.
pub(super) fn give_up_reply(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    conn.send_rej(ctx, RejectReason::Timeout);
    let why = Failure::NoConfirmation;
    let event = Event::ConnectError { conn: conn.id, why };
    closing::fail(conn, ctx, Edge::GiveUp, event);
}
