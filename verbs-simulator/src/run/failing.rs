//! Work requests that have to fail.

use verbs_core::{Remote, SendFlags, SendOp, Sge, WcStatus};

use crate::coverage::Operation;
use crate::run::Mode;
use crate::run::area::{Area, begin};
use crate::run::conn::Place;
use crate::run::rc::post;
use crate::run::rc::state::Session;
use crate::run::wr_builder::WrBuilder;

/// Accesses the spare region of that end by keys that it had before.
pub(super) fn post_stale(session: &mut Session, end: usize, key: Remote) {
    let conn = &session.conns[0];
    if !conn.live || conn.broken {
        return;
    }
    let out = begin(0, Area::Out);
    let Some(mr) = &session.ends[1 - end].main.mr else {
        return;
    };
    let key_op = SendOp::Write(key);
    let mut builder = WrBuilder::new(Operation::Write, key_op);
    builder.sges.push(mr.slice(out..out + 8));
    builder.flags = SendFlags::SIGNALED;
    if post::post(session, 0, 1 - end, builder) {
        let conn = &mut session.conns[0];
        conn.broken = true;
        let legal = over_streams(session.world.plan.mode, &key_op, &[WcStatus::RemAccessErr]);
        conn.lanes[1 - end].failing = Some((conn.send_id(1 - end), legal));
    }
}

/// Posts a work request that has to fail, and takes the connection down.
pub(super) fn post_failing(session: &mut Session, index: usize, end: usize) {
    use WcStatus::{LocProtErr, RemAccessErr, RemInvReqErr};
    let conn = &session.conns[index];
    if !conn.live || conn.broken {
        return;
    }
    let remote = |place, at| post::remote(session, 1 - end, place, at);
    let (Some(main), Some(read_only), Some(mr)) = (
        remote(Place::Main, begin(index, Area::Target)),
        remote(Place::ReadOnly, 0),
        session.ends[end].main.mr.as_ref(),
    ) else {
        return;
    };
    let out = begin(index, Area::Out);
    let piece = mr.slice(out..out + 8);
    let wrong_key = Remote {
        rkey: main.rkey.next(),
        ..main
    };
    let outside = Remote {
        addr: main.addr + (1 << 24),
        ..main
    };
    let too_long = session.ends[1 - end].slot + 1;
    let local = Sge {
        lkey: piece.lkey.next(),
        ..piece
    };
    let (op, sge, legal): (_, _, &'static [WcStatus]) = match session.draw.below(8) {
        0 => (SendOp::Write(wrong_key), piece, &[RemAccessErr]),
        1 => (SendOp::Write(outside), piece, &[RemAccessErr]),
        2 => (SendOp::Write(read_only), piece, &[RemAccessErr]),
        3 => (SendOp::Read(wrong_key), piece, &[RemAccessErr]),
        4 => (
            SendOp::FetchAdd {
                remote: read_only,
                add: 1,
            },
            piece,
            &[RemAccessErr],
        ),
        5 => (SendOp::Write(main), local, &[LocProtErr]),
        6 => (SendOp::Send, local, &[LocProtErr]),
        _ => (SendOp::Send, mr.slice(out..out + too_long), &[RemInvReqErr]),
    };
    let legal = over_streams(session.world.plan.mode, &op, legal);
    let mut builder = WrBuilder::new(Operation::Write, op);
    builder.sges.push(sge);
    builder.flags = SendFlags::SIGNALED;
    if post::post(session, index, end, builder) {
        let conn = &mut session.conns[index];
        conn.broken = true;
        conn.lanes[end].failing = Some((conn.send_id(end), legal));
    }
}

/// Over a stream, a SEND or WRITE that fails at the peer has succeeded here before that.
fn over_streams(mode: Mode, op: &SendOp, legal: &'static [WcStatus]) -> &'static [WcStatus] {
    let is_handed_over = matches!(op, SendOp::Send | SendOp::Write(_));
    match mode {
        Mode::Streams if is_handed_over && legal != [WcStatus::LocProtErr] => &[WcStatus::Success],
        _ => legal,
    }
}
