//! What a session polls, and whether it is as it has to be.

use verbs_core::{Wc, WcOpcode, WcStatus};

use crate::sim::check::{Rule, Sent};
use crate::sim::coverage::{Cell, Operation};
use crate::sim::run::area::Region;
use crate::sim::run::conn::{Conn, Message, Place, Seen, What, conn_of, is_receive};
use crate::sim::run::session::{End, Session};

impl Session {
    /// Polls all completion queues until they are empty, and judges what came.
    pub(super) fn reap(&mut self) {
        let mut all = Vec::new();
        for (end, at) in self.ends.iter_mut().enumerate() {
            for (queue, cq) in at.cqs.iter_mut().enumerate() {
                let mut out = [Wc::default(); 16];
                loop {
                    let polled = cq.poll(&mut out);
                    if polled.is_empty() {
                        break;
                    }
                    let (now, journal) = (self.world.sim.now(), self.world.sim.journal());
                    let name = (at.lease.node as u64) << 8 | queue as u64;
                    polled
                        .iter()
                        .for_each(|wc| journal.completion(now, name, wc));
                    all.extend(at.spoiled.pass(polled).into_iter().map(|wc| (end, wc)));
                }
            }
        }
        if all.is_empty() {
            return;
        }
        // A failure explains the flushes of the other queue, which may have been polled before it.
        for &(end, wc) in &all {
            if !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr)
                && let Some(index) = self.conn(end, &wc)
            {
                self.fail(index, end, &wc);
            }
        }
        for &(end, wc) in &all {
            if let Some(transcript) = &self.world.transcript {
                let (conn, receive) = (conn_of(wc.wr_id), is_receive(wc.wr_id));
                transcript.borrow_mut().completion(end, conn, receive, &wc);
            }
            match self.conn(end, &wc) {
                Some(index) if is_receive(wc.wr_id) => self.received(index, end, &wc),
                Some(index) => self.sent(index, end, &wc),
                None => {
                    let what = format!(
                        "a completion for {:#x} of {}, which is nobody's",
                        wc.wr_id, wc.qpn
                    );
                    self.world.accuse(Rule::Result, what);
                }
            }
        }
        self.look();
    }

    /// Whose completion that is.
    fn conn(&self, end: usize, wc: &Wc) -> Option<usize> {
        let named = match conn_of(wc.wr_id) {
            Some(index) => index,
            None => self
                .conns
                .iter()
                .position(|conn| conn.qpns[end] == wc.qpn)?,
        };
        let conn = self.conns.get(named)?;
        (conn.qpns[end] == wc.qpn).then_some(named)
    }

    /// What must be so whenever everything was polled.
    fn look(&mut self) {
        for conn in &self.conns {
            for lane in &conn.lanes {
                if lane.received < lane.confirmed {
                    let what = format!(
                        "{} messages were acknowledged, and {} receives have completed",
                        lane.confirmed, lane.received
                    );
                    self.world.accuse(Rule::Completion, what);
                }
            }
        }
        for end in &mut self.ends {
            for region in [&mut end.main, &mut end.spare, &mut end.read_only] {
                if let Err(what) = region.model.check() {
                    self.world.accuse(Rule::Memory, what);
                }
            }
        }
    }

    /// A work request ended in an error: whether there is cause for that one.
    fn fail(&mut self, index: usize, end: usize, wc: &Wc) {
        let loses = self.world.plan.loses();
        let orphaned = self.is_orphaned();
        let conn = &mut self.conns[index];
        let evil = |lane: &crate::sim::run::conn::Lane, wr_id| {
            lane.evil
                .filter(|&(evil, _)| evil == wr_id)
                .map(|(_, legal)| legal)
        };
        let explained = match wc.status {
            _ if is_receive(wc.wr_id) => {
                // A message that is too long is told at both ends.
                wc.status == WcStatus::LocLenErr && conn.lanes[1 - end].evil.is_some()
            }
            WcStatus::RetryExcErr if loses || orphaned || conn.broken => true,
            WcStatus::RnrRetryExcErr => conn.attrs.rnr_retry < 7,
            status => {
                evil(&conn.lanes[end], wc.wr_id).is_some_and(|legal| legal.contains(&status))
                    || self.touches_spare(index, end, wc)
            }
        };
        let conn = &mut self.conns[index];
        if !explained {
            let what = format!(
                "work request {:#x} ended without cause: {}",
                wc.wr_id, wc.status
            );
            self.world.accuse(Rule::Status, what);
        }
        conn.broken = true;
    }

    /// Whether a work request reaches for memory that is registered and deregistered while it is on its way. A READ
    /// that is asked for again when that memory has gone is not answered.
    fn touches_spare(&self, index: usize, end: usize, wc: &Wc) -> bool {
        let sends = self.conns[index].lanes[end].sends.iter();
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
    fn sent(&mut self, index: usize, end: usize, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let conn = &mut self.conns[index];
        let failed_before = conn.lanes[end].sends.has_failed();
        if wc.status == WcStatus::WrFlushErr && !(conn.broken || failed_before || orphaned) {
            let what = format!("work request {:#x} was flushed without cause", wc.wr_id);
            self.world.accuse(Rule::Status, what);
        }
        let retired = match conn.lanes[end].sends.complete(wc.wr_id, wc.status) {
            Ok(retired) => retired,
            Err(what) => return self.world.accuse(Rule::Order, what),
        };
        for sent in retired.silent {
            self.done(index, end, sent.what, None);
        }
        let what = retired.ended.what;
        if wc.is_ok() {
            self.done(index, end, what, Some(wc));
        } else {
            self.conns[index].broken = true;
            let seen = what.at_post;
            self.note(what.operation, &what.ways, seen, !orphaned);
        }
    }

    /// A work request did what it was to do.
    fn done(&mut self, index: usize, end: usize, what: What, wc: Option<&Wc>) {
        self.note(what.operation, &what.ways, what.at_post, false);
        let conn = &mut self.conns[index];
        let (lane_id, evil) = (conn.lane(end), conn.lanes[end].evil);
        conn.lanes[end].confirmed += u64::from(what.receives);
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
            if wc.opcode != expected {
                let what = format!(
                    "work request {:#x} is {}, not {}",
                    wc.wr_id, expected, wc.opcode
                );
                self.world.accuse(Rule::Result, what);
            }
            if evil.is_some_and(|(wr_id, _)| wr_id == wc.wr_id) {
                let what = format!(
                    "work request {:#x} succeeded, which nobody allowed",
                    wc.wr_id
                );
                self.world.accuse(Rule::Status, what);
            }
        }
        self.ends[1 - end].settle(lane_id, what.seq);
        let (Some(range), Some(read)) = (what.back, what.read) else {
            return;
        };
        let got = self.ends[end].main.model.reclaim(lane_id, what.seq);
        if let Some(at) = read.differs(&got) {
            let what = format!(
                "byte {at} of a {} into {:#x} is {:?}, which it has never been at the peer",
                what.operation.name(),
                range.start,
                got.get(at)
            );
            self.world.accuse(Rule::Result, what);
        }
    }

    /// A completion of a receive.
    fn received(&mut self, index: usize, end: usize, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let conn = &mut self.conns[index];
        let at = &mut self.ends[end];
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
            return self.world.accuse(Rule::Order, what);
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
                self.world.accuse(Rule::Status, what);
            }
            conn.broken = true;
            let cell = if orphaned {
                Cell::Removal
            } else {
                Cell::QpError
            };
            return self.world.coverage.borrow_mut().hit(row, cell);
        }
        let after = at.main.model.reclaim(wc.wr_id, wc.wr_id);
        let lane_id = conn.lane(1 - end);
        let lane = &mut conn.lanes[1 - end];
        let Some(message) = lane.messages.pop_front() else {
            let what = format!(
                "receive {:#x} completed, and nobody has sent anything",
                wc.wr_id
            );
            return self.world.accuse(Rule::Completion, what);
        };
        lane.received += 1;
        let seen = lane.sends.iter().find(|sent| sent.what.seq == message.seq);
        let seen = seen.map(|sent| sent.what.at_post);
        if let Err(what) = judge_message(wc, &message, &before, &after) {
            self.world.accuse(Rule::Result, what);
        }
        // What was sent before it is in place.
        at.settle(lane_id, message.seq);
        if let Some(seen) = seen {
            self.note(row, &[], seen, false);
        }
    }

    /// Enters into the table what a work request has met.
    fn note(&self, operation: Operation, ways: &[Operation], before: Seen, failed: bool) {
        let rows = std::iter::once(operation).chain(ways.iter().copied());
        let mut coverage = self.world.coverage.borrow_mut();
        let orphaned = self.is_orphaned();
        self.seen()
            .note(&mut coverage, rows, before, failed, orphaned);
    }

    /// A queue pair was reset: what was posted to it makes no completion any more.
    pub(super) fn forget(&mut self, index: usize, end: usize) {
        self.reap();
        let conn: &mut Conn = &mut self.conns[index];
        drop(conn.lanes[end].sends.reset());
        let recvs = std::mem::take(&mut conn.recvs[end]);
        for (wr_id, slot) in recvs {
            self.ends[end].main.model.give_up(wr_id, wr_id);
            self.ends[end].release(slot);
        }
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

/// Whether a receive got what was sent.
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
