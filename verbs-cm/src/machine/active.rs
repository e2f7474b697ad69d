//! The active side: it asks for a connection.

use std::time::Duration;

use verbs_core::addr::{Guid, Qpn};
use verbs_core::mad::{Bits, Blob, TimeCode, TransactionId};

use crate::event::{ConnId, Event, Failure};
use crate::machine::paths::Loading;
use crate::machine::qp::{QpDriver, Stage, ack_timeout, active_attrs};
use crate::machine::{Connection, Ctx, Edge, Proof, Side, State};
use crate::pace::spread;
use crate::params::{Connect, Port, Route};
use crate::refusals::{REFUSED_PAUSE, Refusals, Verdict};
use crate::wire::{
    CommId, Message, MtuCode, Rej, RejectReason, Rejected, Rep, Req, ReqPath, Rtu, Transport,
};

/// Sends the REQ.
pub(crate) fn connect(
    ctx: &mut Ctx<'_>,
    id: ConnId,
    local_id: CommId,
    tid: TransactionId,
    connect: Connect,
) -> Connection {
    let req = request(ctx.port, local_id, &connect);
    let mut conn = Connection {
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
        ack_delay: TimeCode::default(),
        loading: Loading::default(),
        loads: 0,
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
    hurry(&mut conn, ctx);
    conn
}

/// Spreads the repetitions of the REQ over the time that the peer has to show that it is there.
fn hurry(conn: &mut Connection, ctx: &Ctx<'_>) {
    let Side::Active(connect) = &conn.side else {
        return;
    };
    let (wait, sends) = spread(conn.wait, conn.retries_left + 1, connect.timeout);
    (conn.wait, conn.retries_left) = (wait, sends - 1);
    conn.deadline = Some(ctx.now + wait);
}

/// A REP: the first, or a repetition because our answer to it got lost or is not there yet.
pub(crate) fn handle_rep(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    tid: TransactionId,
    rep: &Rep,
) -> bool {
    let Side::Active(connect) = &conn.side else {
        return false;
    };
    match conn.state {
        State::ReqSent | State::ReqMraRcvd => {}
        State::RepMraSent | State::Established => return conn.again(ctx),
        State::Timewait => return conn.reject_again(ctx),
        _ => return false,
    }
    conn.qp.attrs(active_attrs(connect, &conn.req, rep));
    conn.timewait = ack_timeout(connect.route.packet_lifetime, rep.target_ack_delay);
    conn.wait = usual_wait(connect);
    conn.go(Edge::RecvRep);
    conn.peer_tid = tid;
    conn.remote_id = Some(rep.local_id);
    (conn.remote_guid, conn.remote_qpn) = (rep.ca_guid, rep.qpn);
    conn.ack_delay = rep.target_ack_delay;
    conn.private_data = Blob::new(&rep.private_data.0).unwrap_or_default();
    conn.deadline = None;
    // What a repeated REP is answered with now is nothing: the REQ has done its work.
    conn.last = None;
    conn.aim(ctx, Stage::Rts);
    true
}

/// The queue pair is in RTS: sends the RTU.
pub(super) fn confirm(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    let rtu = Rtu {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        private_data: Blob::default(),
    };
    conn.send(ctx, conn.peer_tid, &rtu.into());
    conn.arrive(ctx);
}

/// Takes the REQ back. The peer may have it, and we do not know the peer's id: it finds the
/// connection by our GUID (IBTA vol. 1, 12.6.7.2, reason 4).
pub(super) fn withdraw(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    let guid = ctx.port.ca_guid.0.to_be_bytes();
    let rej = Message::Rej(Rej {
        local_id: conn.local_id,
        remote_id: CommId(0),
        message: Rejected::Req,
        info_len: Bits::truncated(8),
        reason: RejectReason::Timeout,
        info: Blob::new(&guid).unwrap_or_default(),
        private_data: Blob::default(),
    });
    conn.send(ctx, conn.own_tid, &rej);
}

/// The REQ was not answered.
pub(super) fn give_up_request(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    let event = Event::Unreachable { conn: conn.id };
    end_request(conn, ctx, event);
}

/// The network reports that the peer's host refused the REQ. Whether that means anything.
pub(crate) fn handle_refusal(conn: &mut Connection, ctx: &mut Ctx<'_>) -> bool {
    if conn.state != State::ReqSent {
        return false;
    }
    match conn.refusals.refused() {
        Verdict::Ignore => return false,
        Verdict::SendSoon if conn.retries_left > 0 => {
            let soon = ctx.now + REFUSED_PAUSE;
            conn.deadline = conn.deadline.map(|usual| usual.min(soon));
        }
        // That was the last one: it still has its time.
        Verdict::SendSoon => {}
        Verdict::GiveUp => {
            let event = Event::ConnectError {
                conn: conn.id,
                why: Failure::PortUnreachable,
            };
            end_request(conn, ctx, event);
        }
    }
    true
}

fn end_request(conn: &mut Connection, ctx: &mut Ctx<'_>, event: Event) {
    withdraw(conn, ctx);
    conn.go(Edge::GiveUp);
    conn.deadline = None;
    conn.tell(ctx, event);
}

/// How long an answer may take: the peer's time, and the way there and back.
fn usual_wait(connect: &Connect) -> Duration {
    connect.response_timeout.duration() + 2 * connect.route.packet_lifetime.duration()
}

/// The REQ for a connection.
fn request(port: &Port, local_id: CommId, connect: &Connect) -> Req {
    let route = connect.route;
    let wire =
        |route: Route| route.to_wire(port, ack_timeout(route.packet_lifetime, port.ack_delay));
    let is_xrc = connect.transport == Transport::Extended;
    // An initiator is asked for nothing, and its target asks for nothing.
    let unless_xrc = |bits: Bits<3>| if is_xrc { Bits::default() } else { bits };
    Req {
        local_id,
        service_id: connect.service_id,
        ca_guid: port.ca_guid,
        qpn: connect.qpn,
        responder_resources: if is_xrc {
            0
        } else {
            connect.responder_resources
        },
        initiator_depth: connect.initiator_depth,
        remote_response_timeout: connect.response_timeout,
        transport: connect.transport,
        extended_transport: if is_xrc { Req::XRC } else { Bits::default() },
        psn: connect.psn,
        local_response_timeout: connect.response_timeout,
        retry_count: unless_xrc(connect.retry_count),
        pkey: route.pkey.0,
        path_mtu: MtuCode::from(route.mtu),
        rnr_retry_count: unless_xrc(connect.rnr_retry_count),
        max_cm_retries: connect.max_cm_retries,
        srq: connect.srq && !is_xrc,
        primary: wire(route),
        alternate: connect.alternate.map_or_else(ReqPath::default, wire),
        private_data: connect.private_data,
        ..Req::default()
    }
}
