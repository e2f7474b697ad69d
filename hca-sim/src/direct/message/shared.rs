//! Messages that take their receive from a shared receive queue.
//!
//! Other messages take from it at the same time, so a receive is looked at, checked, and then taken: only then is the
//! message certain. If another message has taken it first, the next receive is looked at. In each such round some
//! message has made progress.

use verbs_core::mem::Span;
use verbs_core::{WcCause, WcOpcode, WcStatus};

use crate::direct::message::lost::Lost;
use crate::direct::message::memory::{Ending, Tail};
use crate::direct::message::{
    Checked, Done, Faulty, Gathered, Message, MessageFault, MessageOutcome, Pieces, Ways,
};
use crate::queue::cq::{Cqe, note};
use crate::queue::srq::{Seen, SharedReceives, Spoiled};

impl<'a> Message<'a> {
    /// A SEND.
    pub(super) fn send_shared(&self, srq: &SharedReceives, tail: Tail) -> Checked<Done> {
        let len = self.length()?;
        let source = self.source()?;
        if let Some(status) = srq.spoiled(self.direct.qpn) {
            return Err(MessageOutcome::Fault(Lost::spoiled(status)));
        }
        let ways = self.ways(true)?;
        loop {
            let seen = srq.look().ok_or(MessageOutcome::NotReady)?;
            match self.shared_target(srq, &seen, len) {
                Err(fault) if srq.is_oldest(&seen) => return Err(MessageOutcome::Fault(fault)),
                Err(_) => {}
                Ok(target) => {
                    // Once the receive is taken the message cannot be given up, and taking a key away may have to wait.
                    // Doing it again does no harm.
                    let ending = self.conclude(tail)?;
                    if let Some(limit) = srq.take(&seen) {
                        if let Err(outcome) = self.copy(&source, &target, &Lost::SEND) {
                            return Err(self.spoil(srq, &seen, limit, outcome));
                        }
                        let receive = (&seen, WcOpcode::Recv, ending);
                        return self.finish_shared(&ways, receive, WcOpcode::Send, len, limit);
                    }
                }
            }
        }
    }

    /// A WRITE with immediate, whose bytes go to `target` and not into the receive.
    pub(super) fn write_shared(
        &self,
        srq: &SharedReceives,
        source: &Gathered<'_, '_>,
        target: Span<'_>,
        imm: u32,
        len: u32,
    ) -> Checked<Done> {
        let ways = self.ways(true)?;
        if srq.look().is_none() {
            return Err(MessageOutcome::NotReady);
        }
        // Once the receive is taken the message cannot be given up. Writing the bytes again does no harm.
        self.copy(source, &[target], &Lost::WRITE)?;
        loop {
            let seen = srq.look().ok_or(MessageOutcome::NotReady)?;
            if let Some(limit) = srq.take(&seen) {
                let receive = (&seen, WcOpcode::RecvRdmaWithImm, Ending::Imm(imm));
                return self.finish_shared(&ways, receive, WcOpcode::RdmaWrite, len, limit);
            }
        }
    }

    /// Memory turned out to be gone when the receive had been taken. It is kept for the next try of this message, which
    /// completes it in error.
    #[cold]
    fn spoil(
        &self,
        srq: &SharedReceives,
        seen: &Seen,
        limit: bool,
        outcome: MessageOutcome,
    ) -> MessageOutcome {
        let MessageOutcome::Fault(fault) = outcome else {
            return outcome;
        };
        srq.spoil(Spoiled {
            qpn: self.direct.qpn,
            wr_id: seen.wr_id,
            limit,
            status: fault.status,
        });
        MessageOutcome::Fault(Lost::spoiled(fault.status))
    }

    /// As [`Message::complete_faulty_receive`].
    pub(super) fn complete_faulty_shared(
        &self,
        srq: &SharedReceives,
        fault: &MessageFault,
        done: &mut Done,
    ) -> Faulty {
        let Some(way) = self.direct.cq.enter(self.pin) else {
            return Faulty::Busy;
        };
        if let Some(spoiled) = srq.take_spoiled(self.direct.qpn) {
            done.srq_limit |= spoiled.limit;
            let status = WcStatus::LocProtErr;
            let cqe = Cqe::failure(spoiled.wr_id, self.direct.qpn, status, fault.vendor_err);
            note(
                self.direct.cq.push(way, &cqe, |_| {}),
                &mut done.fire_recv,
                &mut done.overrun_recv,
            );
            return Faulty::Completed;
        }
        let len = self.length().unwrap_or(0);
        loop {
            let Some(seen) = srq.look() else {
                return Faulty::Again;
            };
            // In the meantime another receive may be the oldest, and have nothing wrong with it.
            let Err(found) = self.shared_target(srq, &seen, len) else {
                return Faulty::Again;
            };
            let Some(limit) = srq.take(&seen) else {
                continue;
            };
            done.srq_limit |= limit;
            let status = found.receive.unwrap_or(WcStatus::GeneralErr);
            let cqe = Cqe::failure(seen.wr_id, self.direct.qpn, status, fault.vendor_err);
            note(
                self.direct.cq.push(way, &cqe, |_| {}),
                &mut done.fire_recv,
                &mut done.overrun_recv,
            );
            return Faulty::Completed;
        }
    }

    /// The memory of a receive, checked against the shared queue's protection domain.
    fn shared_target(
        &self,
        srq: &SharedReceives,
        seen: &Seen,
        len: u32,
    ) -> Result<Pieces<'a>, MessageFault> {
        if u64::from(len) > seen.total {
            let fault = MessageFault::invalid(WcCause::TooLong);
            return Err(fault.with_receive(WcStatus::LocLenErr));
        }
        self.scatter(seen.pieces.iter().copied(), srq.pd, len)
    }

    fn finish_shared(
        &self,
        ways: &Ways,
        (seen, opcode, ending): (&Seen, WcOpcode, Ending),
        send_opcode: WcOpcode,
        len: u32,
        limit: bool,
    ) -> Checked<Done> {
        let mut done = Done {
            srq_limit: limit,
            ..Done::default()
        };
        if let Some(way) = ways.recv {
            let cqe = self.receive_cqe(seen.wr_id, opcode, ending, len);
            ending.note(&mut done);
            note(
                self.direct.cq.push(way, &cqe, |_| {}),
                &mut done.fire_recv,
                &mut done.overrun_recv,
            );
        }
        let sent = self.finish(ways, None, send_opcode, len)?;
        Ok(done.and(sent))
    }
}
