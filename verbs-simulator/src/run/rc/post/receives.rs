//! Receives, posted to a queue of the connection or to a shared one.

use verbs_core::{PostError, Recv};

use crate::check::Rule;
use crate::run::conn::recv_id;
use crate::run::rc::state::{SRQ_DEPTH, Session};
use crate::run::wr_builder::cut;

/// Posts some receives at that end.
pub(crate) fn post(session: &mut Session, index: usize, end: usize) {
    // A message that waits takes the first receive at once or a little later, and makes room or does not: a run
    // that is compared has to post one at a time.
    let several = if session.world.transcript.is_some() {
        1
    } else {
        4
    };
    for _ in 0..=session.draw.below(several) {
        if !post_one(session, index, end) {
            return;
        }
    }
}

fn post_one(session: &mut Session, index: usize, end: usize) -> bool {
    let Session {
        draw,
        ends,
        conns,
        world,
    } = session;
    let (at, conn) = (&mut ends[end], &mut conns[index]);
    let shared = at.srq.is_some();
    let mut areas = at.free.iter_mut().enumerate();
    let usable =
        |(area, free): &(usize, &mut Vec<usize>)| (shared || *area == index) && !free.is_empty();
    let Some((area, slot)) = areas
        .find(usable)
        .and_then(|(area, free)| Some((area, *free.last()?)))
    else {
        return false;
    };
    if !conn.live {
        return false;
    }
    let (waiting, depth) = match shared {
        true => (at.shared.len(), SRQ_DEPTH),
        false => (conn.recvs[end].len(), conn.attrs.recv_depth),
    };
    at.seq += 1;
    let wr_id = recv_id(at.seq, (!shared).then_some(index));
    let begin = at.slot_at(slot);
    let Some(mr) = &at.main.mr else { return false };
    let mut sges = Vec::new();
    let mut from = begin;
    for len in cut(draw, at.slot, conn.attrs.sges as usize) {
        sges.push(mr.slice(from..from + len));
        from += len;
    }
    let recv = Recv::new(wr_id).scatter(&sges);
    let posted = match (&mut at.srq, &mut conn.qps[end]) {
        (Some(srq), _) => srq.post_recv(recv),
        (None, Some(qp)) => qp.post_recv(recv),
        (None, None) => return false,
    };
    match posted {
        Ok(()) => {
            at.free[area].pop();
            at.main.model.lend(wr_id, wr_id, begin, at.slot);
            match shared {
                true => drop(at.shared.insert(wr_id, slot)),
                false => conn.recvs[end].push_back((wr_id, slot)),
            }
            true
        }
        Err(PostError::Full { .. }) if waiting >= depth as usize => false,
        Err(PostError::DeviceRemoved) if at.lease.removed.get() => false,
        Err(error) => {
            let what = format!("a receive with {waiting} waiting was refused: {error}");
            world.violated(Rule::Post, what);
            false
        }
    }
}
