//! The responder's receives: SENDs go into their memory, and WRITEs with immediate use them up.

use verbs_core::{Sge, WcOpcode, WcStatus};

use super::responder::{ACK, Doing, Executed, INVALID, Refusal, Responder};
use crate::queue::base::limits::MAX_MESSAGE;
use crate::queue::cq::Cqe;
use crate::queue::recv::Waiting;
use crate::queue::srq::Seen;
use crate::transport::completion;
use crate::transport::pieces::{Refused, scatter};
use crate::transport::{Ends, Notes};
use crate::wire::{BthFlags, Head, NakCode};

/// The receive that a message goes to.
#[derive(Clone, Copy)]
pub(super) struct Room<'r> {
    pub(super) wr_id: u64,
    /// The queue pair's own, which is still on its queue.
    own: Option<Waiting<'r>>,
}

impl Responder {
    /// Completes the receive of the SEND under way in error: whether there is one.
    pub(super) fn fail_receive(
        &mut self,
        ends: &Ends<'_>,
        status: WcStatus,
        reason: u32,
        notes: &mut Notes,
    ) -> bool {
        let Some(room) = self.room(ends) else {
            return false;
        };
        let cqe = Cqe::failure(room.wr_id, ends.qpn, status, reason);
        let completed = completion::receive(ends, &cqe, || room.consume(), notes);
        if completed {
            self.taken = None;
            self.doing = Doing::Nothing;
        }
        completed
    }

    /// The receive of the SEND under way.
    fn room<'r>(&self, ends: &Ends<'r>) -> Option<Room<'r>> {
        match (self.doing, &self.taken) {
            (Doing::Send { .. }, Some(seen)) => Some(Room::shared(seen)),
            (Doing::Send { .. }, None) => ends.recvs.next().map(Room::own),
            _ => None,
        }
    }

    /// Takes a receive of a shared queue, if there is one.
    pub(super) fn take_shared(&mut self, ends: &Ends<'_>, notes: &mut Notes) -> Option<Seen> {
        let srq = ends.srq?;
        loop {
            let seen = srq.look()?;
            // Losing it to somebody else means that the next one is looked at.
            if let Some(limit) = srq.take(&seen) {
                notes.srq_limit |= limit;
                return Some(seen);
            }
        }
    }

    pub(super) fn send(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: &[u8],
        notes: &mut Notes,
    ) -> Executed {
        let place = head.opcode().facts().place;
        if place.is_first() {
            if ends.srq.is_some() {
                // One is left over from a message that did not end, where those are dropped.
                let taken = self.taken.take();
                let taken = taken.or_else(|| self.take_shared(ends, notes));
                self.taken = Some(taken.ok_or(Refusal::NotReady)?);
            } else if ends.recvs.next().is_none() {
                return Err(Refusal::NotReady);
            }
            // From here on a fault concerns this receive.
            self.doing = Doing::Send { placed: 0 };
        }
        let Doing::Send { placed } = self.doing else {
            return Err(INVALID);
        };
        let placed = self.place(ends, placed, payload)?;
        self.doing = Doing::Send { placed };
        if !place.is_last() {
            return Ok(());
        }
        let ext = head.ext();
        let mut inv = None;
        if let Some(ieth) = ext.ieth {
            let key = ieth.rkey;
            // Nobody but this thread can be inside: it alone moves the bytes of this port.
            match ends.mrs.invalidate(key.value(), ends.who()) {
                Ok(invalidated) => {
                    inv = Some(key);
                    notes.settle[1] = invalidated.settle.then_some(key.index());
                }
                Err(fault) => {
                    let reason = fault as u32 + 1;
                    return self.invalidated_nothing(ends, head, reason, notes);
                }
            }
        }
        let room = self.room(ends).ok_or(Refusal::Stopped)?;
        let imm = ext.immdt.map(|immdt| immdt.imm);
        let cqe = receive_cqe(ends, head, room.wr_id, WcOpcode::Recv, imm, placed);
        let cqe = inv.map_or(cqe, |key| cqe.inv(key));
        if !completion::receive(ends, &cqe, || room.consume(), notes) {
            return Err(Refusal::Stopped);
        }
        self.taken = None;
        self.doing = Doing::Nothing;
        Ok(())
    }

    /// Writes a packet of a SEND into its receive; how many bytes of the message are there now.
    fn place(&self, ends: &Ends<'_>, placed: u32, payload: &[u8]) -> Result<u32, Refusal> {
        let own;
        let (total, pd) = match &self.taken {
            Some(seen) => (seen.total, ends.srq.map_or(ends.pd, |srq| srq.pd)),
            None => {
                own = ends.recvs.next().ok_or(Refusal::Stopped)?;
                let total = own.total();
                return fill(ends, placed, payload, total, ends.pd, pieces(own));
            }
        };
        let pieces = self
            .taken
            .iter()
            .flat_map(|seen| seen.pieces.iter().copied());
        fill(ends, placed, payload, total, pd, pieces)
    }

    /// The key that a SEND was to invalidate is none, or not this one's: the sender is told that all is
    /// well, and the queue pair goes to ERR (IBTA vol. 1, 9.9.3, class J).
    fn invalidated_nothing(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        reason: u32,
        notes: &mut Notes,
    ) -> Executed {
        self.msn = self.msn.wrapping_add(1);
        self.advance(ends, 1);
        self.answer = Some((head.bth().psn, ACK));
        self.fail_receive(ends, WcStatus::RemInvReqErr, reason, notes);
        Err(Refusal::Stopped)
    }
}

impl<'r> Room<'r> {
    pub(super) fn own(waiting: Waiting<'r>) -> Self {
        Self {
            wr_id: waiting.wr_id(),
            own: Some(waiting),
        }
    }

    pub(super) fn shared(seen: &Seen) -> Self {
        Self {
            wr_id: seen.wr_id,
            own: None,
        }
    }

    /// Takes it off its queue, if that has not been done.
    pub(super) fn consume(self) {
        if let Some(waiting) = self.own {
            waiting.consume();
        }
    }
}

/// The pieces of a receive.
fn pieces(waiting: Waiting<'_>) -> impl Iterator<Item = Sge> {
    (0..waiting.pieces()).map(move |number| waiting.piece(number))
}

/// Writes a packet of a SEND into a receive; how many bytes of the message are there now.
fn fill(
    ends: &Ends<'_>,
    placed: u32,
    payload: &[u8],
    total: u64,
    pd: u32,
    pieces: impl Iterator<Item = Sge>,
) -> Result<u32, Refusal> {
    let end = u64::from(placed) + payload.len() as u64;
    if end > total.min(u64::from(MAX_MESSAGE)) {
        let code = NakCode::InvalidRequest;
        return Err(Refusal::Fault(code, WcStatus::LocLenErr, 0));
    }
    scatter(ends, pieces, pd, placed, payload).map_err(|Refused(why)| {
        Refusal::Fault(NakCode::RemoteOperational, WcStatus::LocProtErr, why)
    })?;
    u32::try_from(end).map_err(|_| INVALID)
}

/// The completion of a receive.
pub(super) fn receive_cqe(
    ends: &Ends<'_>,
    head: &Head,
    wr_id: u64,
    opcode: WcOpcode,
    imm: Option<u32>,
    len: u32,
) -> Cqe {
    let solicited = head.bth().flags.contains(BthFlags::SOLICITED);
    let cqe = Cqe::success(wr_id, ends.qpn, opcode, len).solicited(solicited);
    imm.map_or(cqe, |imm| cqe.imm(imm))
}
