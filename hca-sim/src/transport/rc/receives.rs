//! The responder's receives: SENDs are written to their memory, and WRITEs with immediate consume them.

use verbs_core::{Sge, WcCause, WcOpcode, WcStatus};

use super::responder::{ACK, Doing, Executed, INVALID, Refusal, Responder};
use crate::queue::base::limits::MAX_MESSAGE;
use crate::queue::cq::Cqe;
use crate::queue::recv::Waiting;
use crate::queue::srq::Seen;
use crate::transport::completion;
use crate::transport::pieces::{Body, Refused, place, scatter};
use crate::transport::{Ends, Events};
use crate::wire::{BthFlags, Head, NakCode};

/// The receive that a message is written to.
#[derive(Clone, Copy)]
pub(in crate::transport) struct Room<'r> {
    pub(in crate::transport) wr_id: u64,
    /// The queue pair's own, which is still on its queue.
    own: Option<Waiting<'r>>,
}

impl Responder {
    /// Completes the receive of the SEND under way in error. Returns whether there is one.
    pub(super) fn fail_receive(
        &mut self,
        ends: &Ends<'_>,
        status: WcStatus,
        reason: u32,
        events: &mut Events,
    ) -> bool {
        let Some(room) = self.room(ends) else {
            return false;
        };
        let cqe = Cqe::failure(room.wr_id, ends.qpn, status, reason);
        let completed = completion::receive(ends, &cqe, || room.consume(), events);
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

    pub(super) fn send(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) -> Executed {
        let place = head.opcode().facts().place;
        // The queue pair's own receive stays on its queue until the message has ended.
        let mut own = None;
        if place.is_first() {
            if ends.srq.is_some() {
                // One is left over from a message that did not end, on services where such messages are dropped.
                let taken = self.taken.take();
                let taken = taken.or_else(|| take_shared(ends, events));
                self.taken = Some(taken.ok_or(Refusal::NotReady)?);
            } else {
                own = Some(ends.recvs.next().ok_or(Refusal::NotReady)?);
            }
            // From here on a fault concerns this receive.
            self.doing = Doing::Send { placed: 0 };
        }
        let Doing::Send { placed } = self.doing else {
            return Err(INVALID);
        };
        if own.is_none() && self.taken.is_none() {
            own = Some(ends.recvs.next().ok_or(Refusal::Stopped)?);
        }
        let placed = self.place(ends, own, placed, payload)?;
        self.doing = Doing::Send { placed };
        if !place.is_last() {
            return Ok(());
        }
        let ext = head.ext();
        let mut inv = None;
        if let Some(ieth) = ext.ieth {
            let key = ieth.rkey;
            // No other thread can be inside: this one alone moves the bytes of this port.
            match ends.mrs.invalidate(key.value(), ends.who()) {
                Ok(invalidated) => {
                    inv = Some(key);
                    events.settle[1] = invalidated.settle.then_some(key.index());
                }
                Err(fault) => {
                    let reason = WcCause::from(fault).code();
                    let packets = payload.packets(ends.path.mtu);
                    return self.invalidated_nothing(ends, (head, packets), reason, events);
                }
            }
        }
        let shared = self.taken.as_ref().map(Room::shared);
        let room = own.map(Room::own).or(shared).ok_or(Refusal::Stopped)?;
        let imm = ext.immdt.map(|immdt| immdt.imm);
        let cqe = receive_cqe(ends, head, room.wr_id, WcOpcode::Recv, imm, placed);
        let cqe = inv.map_or(cqe, |key| cqe.inv(key));
        if !completion::receive(ends, &cqe, || room.consume(), events) {
            return Err(Refusal::Stopped);
        }
        self.taken = None;
        self.doing = Doing::Nothing;
        Ok(())
    }

    /// Writes a packet of a SEND into its receive, which is the queue pair's own or the one that was taken. Returns how
    /// many bytes of the message have arrived.
    fn place(
        &self,
        ends: &Ends<'_>,
        own: Option<Waiting<'_>>,
        placed: u32,
        payload: impl Body,
    ) -> Result<u32, Refusal> {
        if let Some(own) = own {
            let total = own.total();
            if own.pieces() != 1 {
                return fill(ends, placed, payload, total, ends.pd, pieces(own));
            }
            let end = end(placed, payload, total)?;
            if payload.len() != 0 {
                place(ends, own.piece(0), ends.pd, placed, payload).map_err(protection)?;
            }
            return Ok(end);
        }
        let seen = self.taken.as_ref().ok_or(Refusal::Stopped)?;
        let pd = ends.srq.map_or(ends.pd, |srq| srq.pd);
        let pieces = seen.pieces.iter().copied();
        fill(ends, placed, payload, seen.total, pd, pieces)
    }

    /// The key that a SEND was to invalidate does not exist, or does not belong to this queue pair: the sender sees
    /// success, and the queue pair goes to ERR (IBTA vol. 1, 9.9.3, class J).
    fn invalidated_nothing(
        &mut self,
        ends: &Ends<'_>,
        (head, packets): (&Head, u32),
        reason: u32,
        events: &mut Events,
    ) -> Executed {
        self.msn = self.msn.wrapping_add(1);
        self.advance(ends, packets);
        self.answer = Some((head.bth().psn.add(packets - 1), ACK));
        self.fail_receive(ends, WcStatus::RemInvReqErr, reason, events);
        Err(Refusal::Stopped)
    }
}

/// Takes a receive of the shared queue, if there is one.
pub(in crate::transport) fn take_shared(ends: &Ends<'_>, events: &mut Events) -> Option<Seen> {
    let srq = ends.srq?;
    loop {
        let seen = srq.look()?;
        // If another thread has taken it first, the next one is looked at.
        if let Some(limit) = srq.take(&seen) {
            events.srq_limit |= limit;
            return Some(seen);
        }
    }
}

impl<'r> Room<'r> {
    pub(in crate::transport) fn own(waiting: Waiting<'r>) -> Self {
        Self {
            wr_id: waiting.wr_id(),
            own: Some(waiting),
        }
    }

    pub(in crate::transport) fn shared(seen: &Seen) -> Self {
        Self {
            wr_id: seen.wr_id,
            own: None,
        }
    }

    /// Takes it off its queue, if that has not been done.
    pub(in crate::transport) fn consume(self) {
        if let Some(waiting) = self.own {
            waiting.consume();
        }
    }
}

/// The pieces of a receive.
pub(in crate::transport) fn pieces(waiting: Waiting<'_>) -> impl Iterator<Item = Sge> {
    (0..waiting.pieces()).map(move |number| waiting.piece(number))
}

/// Writes a packet of a SEND into a receive. Returns how many bytes of the message have arrived.
fn fill(
    ends: &Ends<'_>,
    placed: u32,
    payload: impl Body,
    total: u64,
    pd: u32,
    pieces: impl Iterator<Item = Sge>,
) -> Result<u32, Refusal> {
    let end = end(placed, payload, total)?;
    scatter(ends, pieces, pd, placed, payload).map_err(protection)?;
    Ok(end)
}

/// How many bytes of a message have arrived with that packet, if the receive has room for them.
fn end(placed: u32, payload: impl Body, total: u64) -> Result<u32, Refusal> {
    let end = u64::from(placed) + payload.len() as u64;
    if end > total.min(u64::from(MAX_MESSAGE)) {
        let code = NakCode::InvalidRequest;
        return Err(Refusal::Fault(
            code,
            WcStatus::LocLenErr,
            WcCause::TooLong.code(),
        ));
    }
    u32::try_from(end).map_err(|_| INVALID)
}

/// A receive may not be written to.
fn protection(Refused(why): Refused) -> Refusal {
    Refusal::Fault(NakCode::RemoteOperational, WcStatus::LocProtErr, why)
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
