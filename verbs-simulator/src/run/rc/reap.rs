//! The completions that a session polls, and whether they are as required.

use verbs_core::{Wc, WcOpcode, WcStatus};

use crate::check::{Rule, Sent};
use crate::coverage::{Cell, Operation};
use crate::run::Mode;
use crate::run::area::Region;
use crate::run::conn::{Conn, Message, Place, Seen, What, conn_of, is_receive};
use crate::run::rc::state::{End, Session};
use crate::run::rc::{post, streams};

/// Polls all completion queues until they are empty, and judges the completions.
pub(crate) fn reap(session: &mut Session) {
    streams::note_cuts(session);
    let mut all = Vec::new();
    for (end, at) in session.ends.iter_mut().enumerate() {
        for (queue, cq) in at.cqs.iter_mut().enumerate() {
            let mut out = [Wc::default(); 16];
            loop {
                let polled = cq.poll(&mut out);
                if polled.is_empty() {
                    break;
                }
                let (now, journal) = (session.world.sim.now(), session.world.sim.journal());
                let name = (at.lease.node as u64) << 8 | queue as u64;
                polled
                    .iter()
                    .for_each(|wc| journal.completion(now, name, wc));
                all.extend(at.poller.pass(polled).into_iter().map(|wc| (end, wc)));
            }
        }
    }
    if all.is_empty() {
        return;
    }
    // A failure explains the flushes of the other queue, which may have been polled before it.
    for &(end, wc) in &all {
        if !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr)
            && let Some(index) = conn(session, end, &wc)
        {
            fail(session, index, end, &wc);
        }
    }
    for &(end, wc) in &all {
        if let Some(transcript) = &session.world.transcript {
            let (conn, receive) = (conn_of(wc.wr_id), is_receive(wc.wr_id));
            transcript.borrow_mut().completion(end, conn, receive, &wc);
        }
        match conn(session, end, &wc) {
            Some(index) if is_receive(wc.wr_id) => received(session, index, end, &wc),
            Some(index) => sent(session, index, end, &wc),
            None => {
                let what = format!(
                    "a completion for {:#x} of {}, which is nobody's",
                    wc.wr_id, wc.qpn
                );
                session.world.violated(Rule::Result, what);
            }
        }
    }
    look(session);
}

/// The connection that a completion belongs to.
fn conn(session: &Session, end: usize, wc: &Wc) -> Option<usize> {
    let named = match conn_of(wc.wr_id) {
        Some(index) => index,
        None => session
            .conns
            .iter()
            .position(|conn| conn.qpns[end] == wc.qpn)?,
    };
    let conn = session.conns.get(named)?;
    (conn.qpns[end] == wc.qpn).then_some(named)
}

/// What must hold whenever everything was polled.
fn look(session: &mut Session) {
    for conn in &session.conns {
        for lane in &conn.lanes {
            if lane.received < lane.confirmed {
                let what = format!(
                    "{} messages were acknowledged, and {} receives have completed",
                    lane.confirmed, lane.received
                );
                session.world.violated(Rule::Completion, what);
            }
        }
    }
    for end in &mut session.ends {
        for region in [&mut end.main, &mut end.spare, &mut end.read_only] {
            if let Err(what) = region.model.check() {
                session.world.violated(Rule::Memory, what);
            }
        }
    }
}

/// A work request ended in an error: checks whether there is a cause for it.
fn fail(session: &mut Session, index: usize, end: usize, wc: &Wc) {
    let loses = session.world.plan.loses();
    let orphaned = session.is_orphaned();
    let conn = &mut session.conns[index];
    let failing = |lane: &crate::run::conn::Lane, wr_id| {
        lane.failing
            .filter(|&(failing, _)| failing == wr_id)
            .map(|(_, legal)| legal)
    };
    let explained = match wc.status {
        _ if is_receive(wc.wr_id) => {
            // A message that is too long is reported at both ends.
            wc.status == WcStatus::LocLenErr && conn.lanes[1 - end].failing.is_some()
        }
        WcStatus::RetryExcErr if loses || orphaned || conn.broken || conn.parted => true,
        // Over a stream, what was done before is reported with a READ or an atomic that waits.
        WcStatus::RemAccessErr | WcStatus::RemOpErr | WcStatus::RemInvReqErr
            if session.world.plan.mode == Mode::Streams && conn.broken =>
        {
            true
        }
        WcStatus::RnrRetryExcErr => conn.attrs.rnr_retry < 7,
        status => {
            failing(&conn.lanes[end], wc.wr_id).is_some_and(|legal| legal.contains(&status))
                || touches_spare(session, index, end, wc)
        }
    };
    let conn = &mut session.conns[index];
    if !explained {
        let what = format!(
            "work request {:#x} ended without cause: {}",
            wc.wr_id, wc.status
        );
        session.world.violated(Rule::Status, what);
    }
    conn.broken = true;
}

/// Whether a work request uses memory that is registered and deregistered while it is under way. A READ that is
/// requested again after that memory was deregistered is not answered.
fn touches_spare(session: &Session, index: usize, end: usize, wc: &Wc) -> bool {
    let sends = session.conns[index].lanes[end].sends.iter();
    let of = |sent: &&Sent<What>| sent.wr_id == wc.wr_id;
    let spare = |(place, _): &(Place, _)| *place == Place::Spare;
    let mut sends = sends.filter(of);
    sends.any(|sent| {
        let ends_so = match wc.status {
            WcStatus::RemAccessErr => true,
            WcStatus::RetryExcErr => sent.what.operation == Operation::Read,
            _ => false,
        };
        ends_so && sent.what.target.as_ref().is_some_and(spare)
    })
}

/// A completion of a send queue.
fn sent(session: &mut Session, index: usize, end: usize, wc: &Wc) {
    let orphaned = session.is_orphaned();
    let conn = &mut session.conns[index];
    let failed_before = conn.lanes[end].sends.has_failed();
    if wc.status == WcStatus::WrFlushErr && !(conn.broken || failed_before || orphaned) {
        let what = format!("work request {:#x} was flushed without cause", wc.wr_id);
        session.world.violated(Rule::Status, what);
    }
    let retired = match conn.lanes[end].sends.complete(wc.wr_id, wc.status) {
        Ok(retired) => retired,
        Err(what) => return session.world.violated(Rule::Order, what),
    };
    for sent in retired.silent {
        done(session, index, end, sent.what, None);
    }
    let what = retired.ended.what;
    if wc.is_ok() {
        done(session, index, end, what, Some(wc));
    } else {
        session.conns[index].broken = true;
        let seen = what.at_post;
        note(session, what.operation, &what.variants, seen, !orphaned);
    }
}

/// A work request has had its effect.
fn done(session: &mut Session, index: usize, end: usize, what: What, wc: Option<&Wc>) {
    note(session, what.operation, &what.variants, what.at_post, false);
    let conn = &mut session.conns[index];
    let (lane_id, failing) = (conn.lane(end), conn.lanes[end].failing);
    let is_settled = conn.lanes[end].confirm(&what, session.world.plan.mode);
    if let Some(wc) = wc {
        let expected = match what.operation {
            Operation::Send | Operation::SendImm => WcOpcode::Send,
            Operation::Write | Operation::WriteImm => WcOpcode::RdmaWrite,
            Operation::Read => WcOpcode::RdmaRead,
            Operation::CompareSwap => WcOpcode::CompSwap,
            Operation::MaskedCompareSwap => WcOpcode::MaskedCompSwap,
            Operation::MaskedFetchAdd => WcOpcode::MaskedFetchAdd,
            Operation::AtomicWrite => WcOpcode::AtomicWrite,
            Operation::Flush => WcOpcode::Flush,
            Operation::RegMr => WcOpcode::RegMr,
            Operation::LocalInv => WcOpcode::LocalInv,
            _ => WcOpcode::FetchAdd,
        };
        let of_failing = |(wr_id, _): (u64, _)| wr_id == wc.wr_id;
        if wc.opcode != expected && !failing.is_some_and(of_failing) {
            let what = format!(
                "work request {:#x} is {}, not {}",
                wc.wr_id, expected, wc.opcode
            );
            session.world.violated(Rule::Result, what);
        }
        let is_illegal = |(wr_id, legal): (u64, &[WcStatus])| {
            wr_id == wc.wr_id && !legal.contains(&WcStatus::Success)
        };
        if failing.is_some_and(is_illegal) {
            let what = format!(
                "work request {:#x} succeeded, which nobody allowed",
                wc.wr_id
            );
            session.world.violated(Rule::Status, what);
        }
    }
    if is_settled {
        session.ends[1 - end].settle(lane_id, what.seq);
    }
    let (Some(range), Some(read)) = (what.back, what.read) else {
        return;
    };
    let got = session.ends[end].main.model.reclaim(lane_id, what.seq);
    if let Some(at) = read.differs(&got) {
        let what = format!(
            "byte {at} of a {} into {:#x} is {:?}, which it has never been at the peer",
            what.operation.name(),
            range.start,
            got.get(at)
        );
        session.world.violated(Rule::Result, what);
    }
}

/// A completion of a receive.
fn received(session: &mut Session, index: usize, end: usize, wc: &Wc) {
    let orphaned = session.is_orphaned();
    let conn = &mut session.conns[index];
    let at = &mut session.ends[end];
    let shared = conn_of(wc.wr_id).is_none();
    let slot = if shared {
        at.shared.remove(&wc.wr_id)
    } else {
        let recvs = &mut conn.recvs[end];
        let first = recvs.front().is_some_and(|&(wr_id, _)| wr_id == wc.wr_id);
        first
            .then(|| recvs.pop_front())
            .flatten()
            .map(|(_, slot)| slot)
    };
    let Some(slot) = slot else {
        let what = format!(
            "receive {:#x} is not the one whose turn it is: {}",
            wc.wr_id, wc.status
        );
        return session.world.violated(Rule::Order, what);
    };
    let begin = at.slot_at(slot);
    let before = at.main.model.settled(begin..begin + at.slot).to_vec();
    at.release(slot);
    let row = if shared {
        Operation::SharedReceive
    } else {
        Operation::Receive
    };
    if !wc.is_ok() {
        at.main.model.give_up(wc.wr_id, wc.wr_id);
        if wc.status == WcStatus::WrFlushErr && !(conn.broken || orphaned) {
            let what = format!("receive {:#x} was flushed without cause", wc.wr_id);
            session.world.violated(Rule::Status, what);
        }
        conn.broken = true;
        let cell = if orphaned {
            Cell::Removal
        } else {
            Cell::QpError
        };
        return session.world.coverage.borrow_mut().hit(row, cell);
    }
    let after = at.main.model.reclaim(wc.wr_id, wc.wr_id);
    let lane_id = conn.lane(1 - end);
    let lane = &mut conn.lanes[1 - end];
    let Some(message) = lane.messages.pop_front() else {
        let what = format!(
            "receive {:#x} completed, and nobody has sent anything",
            wc.wr_id
        );
        return session.world.violated(Rule::Completion, what);
    };
    lane.received += 1;
    let seen = lane.sends.iter().find(|sent| sent.what.seq == message.seq);
    let seen = seen.map(|sent| sent.what.at_post);
    if let Err(what) = judge_message(wc, &message, &before, &after) {
        session.world.violated(Rule::Result, what);
    }
    // What was sent before it is in place.
    at.settle(lane_id, message.seq);
    if let Some(seen) = seen {
        note(session, row, &[], seen, false);
    }
}

/// Enters into the table what a work request has met.
fn note(
    session: &Session,
    operation: Operation,
    variants: &[Operation],
    before: Seen,
    failed: bool,
) {
    let rows = std::iter::once(operation).chain(variants.iter().copied());
    let mut coverage = session.world.coverage.borrow_mut();
    let orphaned = session.is_orphaned();
    post::seen(session).note(&mut coverage, rows, before, failed, orphaned);
}

/// A queue pair was reset: work posted to it no longer makes completions.
pub(crate) fn forget(session: &mut Session, index: usize, end: usize) {
    reap(session);
    let conn: &mut Conn = &mut session.conns[index];
    drop(conn.lanes[end].sends.reset());
    let recvs = std::mem::take(&mut conn.recvs[end]);
    for (wr_id, slot) in recvs {
        session.ends[end].main.model.give_up(wr_id, wr_id);
        session.ends[end].release(slot);
    }
}

impl End {
    /// All writes of a lane up to that one have taken effect here.
    fn settle(&mut self, lane: u64, seq: u64) {
        let regions: [&mut Region; 3] = [&mut self.main, &mut self.spare, &mut self.read_only];
        regions
            .into_iter()
            .for_each(|region| region.model.settle(lane, seq));
    }
}

/// Whether a receive has the bytes that were sent.
fn judge_message(wc: &Wc, message: &Message, before: &[u8], after: &[u8]) -> Result<(), String> {
    let opcode = match message.bytes {
        Some(_) => WcOpcode::Recv,
        None => WcOpcode::RecvRdmaWithImm,
    };
    if (wc.opcode, wc.immediate()) != (opcode, message.imm) {
        return Err(format!(
            "receive {:#x} is {} with {:?}, not {opcode} with {:?}",
            wc.wr_id,
            wc.opcode,
            wc.immediate(),
            message.imm
        ));
    }
    if wc.byte_len as usize != message.len {
        return Err(format!(
            "receive {:#x} has {} bytes, not {}",
            wc.wr_id, wc.byte_len, message.len
        ));
    }
    let sent = message.bytes.as_deref().unwrap_or(&[]);
    let expected = sent.iter().chain(before.iter().skip(sent.len()));
    match expected
        .zip(after)
        .position(|(expected, got)| expected != got)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {at} of receive {:#x} with {} bytes is {:#04x}",
            wc.wr_id, message.len, after[at]
        )),
    }
}
