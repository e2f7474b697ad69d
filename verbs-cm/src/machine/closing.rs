//! The end of a connection: disconnected, rejected, given up, out of interest.

use std::time::Duration;

use verbs_core::mad::{Blob, TransactionId};

use crate::event::{Ended, Event, Failure};
use crate::machine::qp::Stage;
use crate::machine::{Connection, Ctx, Edge, State};
use crate::machine::{active, passive};
use crate::wire::{Drep, Dreq, Message, Rej, RejectReason};

/// The user disconnects.
pub(crate) fn disconnect(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    private_data: Blob<220>,
) -> bool {
    if conn.state != State::Established {
        return false;
    }
    conn.ended = Some(Ended::Here);
    send_dreq(conn, ctx, Edge::Disconnect, private_data);
    true
}

/// Takes `edge` to DreqSent: the queue pair goes to ERR while the peer is told.
pub(super) fn send_dreq(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    edge: Edge,
    private_data: Blob<220>,
) {
    if !conn.go(edge) {
        return;
    }
    conn.ended.get_or_insert(Ended::Failed);
    let dreq = Dreq {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        remote_qpn: conn.remote_qpn,
        private_data,
    };
    conn.ask(ctx, conn.own_tid, &dreq.into());
    conn.aim(ctx, Stage::Err);
}

/// A DREQ. Where it crosses ours, it is answered all the same, and ours no longer needs an answer.
pub(crate) fn handle_dreq(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    tid: TransactionId,
    dreq: &Dreq,
) -> bool {
    if dreq.remote_qpn != conn.qp.qpn() {
        return false;
    }
    conn.prove();
    let before = conn.state;
    let why = Failure::PeerDisconnected;
    let event = Event::ConnectError { conn: conn.id, why };
    match before {
        State::Timewait => {
            // Linux sends each repetition with the id of the first, but need not.
            send_drep(conn, ctx, tid);
            return true;
        }
        State::DreqSent => {
            send_drep(conn, ctx, tid);
            leave(conn, ctx, Edge::RecvDreq);
            return true;
        }
        State::RepRcvd | State::RepMraSent => {
            send_drep(conn, ctx, tid);
            fail(conn, ctx, Edge::RecvDreq, event);
            return true;
        }
        _ => {}
    }
    if !conn.go(Edge::RecvDreq) {
        return false;
    }
    conn.ended.get_or_insert(Ended::Peer);
    conn.deadline = None;
    conn.peer_tid = tid;
    if before != State::Established {
        conn.tell(ctx, event);
        conn.is_silent = true;
    }
    conn.aim(ctx, Stage::Err);
    if conn.qp.is_there() {
        finish_dreq(conn, ctx, Edge::QpReady);
    }
    true
}

/// The queue pair is in ERR: answers the DREQ.
pub(super) fn finish_dreq(conn: &mut Connection, ctx: &mut Ctx<'_>, edge: Edge) {
    send_drep(conn, ctx, conn.peer_tid);
    leave(conn, ctx, edge);
}

fn send_drep(conn: &mut Connection, ctx: &mut Ctx<'_>, tid: TransactionId) {
    let drep = Message::Drep(Drep {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        private_data: Blob::default(),
    });
    conn.send(ctx, tid, &drep);
}

/// The answer to our DREQ.
pub(crate) fn handle_drep(conn: &mut Connection, ctx: &mut Ctx<'_>) -> bool {
    if conn.state != State::DreqSent {
        return false;
    }
    conn.last = None;
    leave(conn, ctx, Edge::RecvDrep);
    true
}

/// A REJ, whatever it is about: the peer has no such connection, or no longer has it.
pub(crate) fn handle_rej(conn: &mut Connection, ctx: &mut Ctx<'_>, rej: &Rej) -> bool {
    if conn.state.after(Edge::RecvRej).is_none() {
        return false;
    }
    conn.last = None;
    match conn.state {
        State::Established | State::DreqSent => leave(conn, ctx, Edge::RecvRej),
        _ => {
            let event = Event::Rejected {
                conn: conn.id,
                reason: rej.reason,
                info: rej.info,
                private_data: rej.private_data,
            };
            fail(conn, ctx, Edge::RecvRej, event);
        }
    }
    true
}

/// The peer is gone, or has forgotten the connection. `tell`: that is taken from its silence, so it is told; it
/// need not answer.
pub(crate) fn lose(conn: &mut Connection, ctx: &mut Ctx<'_>, tell: bool) -> bool {
    if conn.state != State::Established {
        return false;
    }
    if tell {
        let dreq = Message::Dreq(Dreq {
            local_id: conn.local_id,
            remote_id: conn.remote_id.unwrap_or_default(),
            remote_qpn: conn.remote_qpn,
            private_data: Blob::default(),
        });
        ctx.out.send(conn.peer, dreq.emit(conn.own_tid));
    }
    conn.last = None;
    leave(conn, ctx, Edge::RecvRej);
    true
}

/// The peer asks for a new connection with a queue pair that is part of this one: it does not
/// know this one any longer (IBTA vol. 1, 12.9.8.3.1).
pub(crate) fn go_stale(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    match conn.state {
        State::Established => send_dreq(conn, ctx, Edge::Disconnect, Blob::default()),
        state if state.after(Edge::RecvRej).is_some() && state != State::DreqSent => {
            conn.last = None;
            let why = Failure::Stale;
            let event = Event::ConnectError { conn: conn.id, why };
            fail(conn, ctx, Edge::RecvRej, event);
        }
        _ => {}
    }
}

/// The REP names a queue pair that is part of another connection; the table has rejected it.
pub(crate) fn refuse_rep(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    if matches!(conn.state, State::ReqSent | State::ReqMraRcvd) {
        let why = Failure::Stale;
        let event = Event::ConnectError { conn: conn.id, why };
        fail(conn, ctx, Edge::Abort, event);
    }
}

/// The user is no longer interested: there are no further events, and the queue pair is left alone. The peer
/// is told.
pub(crate) fn abort(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    conn.is_silent = true;
    conn.qp.detach();
    ctx.out.forget(conn.id);
    match conn.state {
        State::ReqSent | State::ReqMraRcvd => {
            active::withdraw(conn, ctx);
            conn.go(Edge::Abort);
            conn.deadline = None;
        }
        State::RtuRcvd | State::Established => {
            send_dreq(conn, ctx, Edge::Abort, Blob::default());
        }
        State::DreqRcvd => finish_dreq(conn, ctx, Edge::Abort),
        state if state.after(Edge::Abort).is_some() => {
            conn.send_rej(ctx, RejectReason::Consumer);
            leave(conn, ctx, Edge::Abort);
        }
        // It is over, or about to be.
        _ => {}
    }
}

/// The program ends: as [`disconnect`](disconnect) where the connection is there, and what is on its
/// way to be one fails. The peer is told.
pub(crate) fn end(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    let why = Failure::Ended;
    let event = Event::ConnectError { conn: conn.id, why };
    match conn.state {
        State::Established => {
            disconnect(conn, ctx, Blob::default());
        }
        State::ReqSent | State::ReqMraRcvd => {
            active::withdraw(conn, ctx);
            fail(conn, ctx, Edge::Abort, event);
        }
        State::RtuRcvd => {
            conn.tell(ctx, event);
            conn.is_silent = true;
            send_dreq(conn, ctx, Edge::Abort, Blob::default());
        }
        // It is over, or about to be.
        State::Idle | State::DreqSent | State::DreqRcvd | State::Timewait => {}
        _ => {
            conn.send_rej(ctx, RejectReason::Consumer);
            fail(conn, ctx, Edge::Abort, event);
        }
    }
}

/// A message was sent as often as it may be.
pub(super) fn give_up(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    match conn.state {
        State::ReqSent | State::ReqMraRcvd => active::give_up_request(conn, ctx),
        State::RepSent | State::RepMraRcvd => passive::give_up_reply(conn, ctx),
        State::DreqSent => {
            conn.last = None;
            leave(conn, ctx, Edge::GiveUp);
        }
        _ => conn.deadline = None,
    }
}

/// The connection did not come to be: tells so, as the last thing.
pub(super) fn fail(conn: &mut Connection, ctx: &mut Ctx<'_>, edge: Edge, event: Event) {
    conn.tell(ctx, event);
    conn.is_silent = true;
    leave(conn, ctx, edge);
}

/// Takes `edge` out of the connection, to timewait or, where nothing was begun, to nothing.
pub(super) fn leave(conn: &mut Connection, ctx: &mut Ctx<'_>, edge: Edge) {
    let was_closing = matches!(conn.state, State::DreqSent | State::DreqRcvd);
    let existed = was_closing || conn.state == State::Established;
    if !conn.go(edge) {
        return;
    }
    let by = *conn.ended.get_or_insert(Ended::Failed);
    conn.aim(ctx, Stage::Err);
    // Packets may be under way where there was a connection; where there was none, messages.
    let linger = if existed {
        conn.timewait.duration()
    } else {
        conn.wait * 2
    };
    let is_over = conn.state == State::Idle;
    conn.deadline = (!is_over).then(|| ctx.now + linger.max(Duration::from_millis(1)));
    if conn.was_told {
        let event = Event::Disconnected { conn: conn.id, by };
        conn.tell(ctx, event);
    }
}

/// Timewait is over.
pub(super) fn expire(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    conn.go(Edge::Expire);
    conn.deadline = None;
    if conn.was_told {
        let event = Event::TimewaitExit { conn: conn.id };
        conn.tell(ctx, event);
    }
}
