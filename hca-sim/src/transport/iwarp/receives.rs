//! The responder's receives: SENDs go into their memory.

use verbs_core::{WcCause, WcOpcode, WcStatus};
use verbs_wire::iwarp::{Cause, ImmediateData, RdmapOpcode, STag, Untagged};

use super::fault::Fault;
use crate::queue::base::limits::MAX_MESSAGE;
use crate::queue::cq::Cqe;
use crate::queue::srq::Seen;
use crate::transport::pieces::{Refused, scatter};
use crate::transport::rc::{Room, pieces, take_shared};
use crate::transport::{Ends, Events, completion};
use verbs_core::RKey;

/// The SENDs of the peer.
#[derive(Debug)]
pub(super) struct Receives {
    /// The number of the message that is next, or under way.
    msn: u32,
    sending: Option<Sending>,
    /// The receive from a shared queue that was taken for it.
    taken: Option<Seen>,
}

/// A SEND that is under way.
#[derive(Clone, Copy, Debug)]
struct Sending {
    opcode: RdmapOpcode,
    invalidate: STag,
    /// Bytes that are in the receive.
    placed: u32,
}

impl Default for Receives {
    fn default() -> Self {
        Self {
            msn: 1,
            sending: None,
            taken: None,
        }
    }
}

impl Receives {
    /// The receive that was taken from a shared queue for a message that will not end.
    pub(super) fn abandon(&mut self) -> Option<u64> {
        self.sending = None;
        self.taken.take().map(|seen| seen.wr_id)
    }

    /// Whether a SEND has come in part.
    pub(super) fn is_inside(&self) -> bool {
        self.sending.is_some()
    }

    /// A segment begins: from its first one on a message has a receive.
    pub(super) fn begin(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
        len: u32,
        events: &mut Events,
    ) -> Result<(), Fault> {
        if header.msn != self.msn {
            return Err(Fault::peer(Cause::DDP_MSN_RANGE));
        }
        let sending = match self.sending {
            Some(sending) => sending,
            None => {
                if header.offset != 0 {
                    return Err(Fault::peer(Cause::DDP_OFFSET));
                }
                self.find(ends, events)?;
                Sending {
                    opcode: header.opcode,
                    invalidate: header.invalidate,
                    placed: 0,
                }
            }
        };
        self.sending = Some(sending);
        if header.offset != sending.placed {
            return Err(Fault::peer(Cause::DDP_OFFSET));
        }
        // All segments of a message are of one kind (RFC 5040, section 5.1).
        if header.opcode != sending.opcode || header.invalidate != sending.invalidate {
            return Err(Fault::peer(Cause::RDMAP_OPCODE));
        }
        let end = u64::from(sending.placed) + u64::from(len);
        if end > self.total(ends).min(u64::from(MAX_MESSAGE)) {
            return Err(Fault::receive(
                Cause::DDP_TOO_LONG,
                WcStatus::LocLenErr,
                WcCause::TooLong.code(),
            ));
        }
        Ok(())
    }

    /// Bytes of the segment.
    pub(super) fn place(&mut self, ends: &Ends<'_>, bytes: &[u8]) -> Result<(), Fault> {
        let Some(sending) = &mut self.sending else {
            return Ok(());
        };
        let at = sending.placed;
        let placed = match (&self.taken, ends.recvs.next()) {
            (Some(seen), _) => {
                let pd = ends.srq.map_or(ends.pd, |srq| srq.pd);
                scatter(ends, seen.pieces.iter().copied(), pd, at, bytes)
            }
            (None, Some(own)) => scatter(ends, pieces(own), ends.pd, at, bytes),
            // It is there until the message has ended.
            (None, None) => return Err(Fault::STOPPED),
        };
        placed.map_err(|Refused(reason)| {
            Fault::receive(Cause::DDP_CATASTROPHIC, WcStatus::LocProtErr, reason)
        })?;
        sending.placed += u32::try_from(bytes.len()).unwrap_or(0);
        Ok(())
    }

    /// The segment is whole. The last one completes the receive.
    pub(super) fn end(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
        events: &mut Events,
    ) -> Result<(), Fault> {
        let Some(sending) = self.sending.filter(|_| header.is_last) else {
            return Ok(());
        };
        let invalidated = sending
            .opcode
            .invalidates()
            .then(|| RKey::new(sending.invalidate.value()));
        if let Some(key) = invalidated {
            // No other thread can be inside: this one alone moves the bytes of this port.
            match ends.mrs.invalidate(key.value(), ends.who()) {
                Ok(done) => events.settle[1] = done.settle.then_some(key.index()),
                Err(fault) => {
                    let (cause, status) = (Cause::RDMAP_INVALIDATE, WcStatus::RemInvReqErr);
                    return Err(Fault::receive(cause, status, fault as u32 + 1));
                }
            }
        }
        let room = self.room(ends).ok_or(Fault::STOPPED)?;
        let cqe = Cqe::success(room.wr_id, ends.qpn, WcOpcode::Recv, sending.placed)
            .solicited(sending.opcode.is_solicited());
        let cqe = invalidated.map_or(cqe, |key| cqe.inv(key));
        if !completion::receive(ends, &cqe, || room.consume(), events) {
            return Err(Fault::STOPPED);
        }
        (self.sending, self.taken) = (None, None);
        self.msn = self.msn.wrapping_add(1);
        Ok(())
    }

    /// Immediate data come, which take a receive and none of its memory (RFC 7306, section 4).
    pub(super) fn begin_immediate(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
        events: &mut Events,
    ) -> Result<(), Fault> {
        if header.msn != self.msn {
            return Err(Fault::peer(Cause::DDP_MSN_RANGE));
        }
        // They are a message by themselves, of one segment.
        if self.sending.is_some() {
            return Err(Fault::peer(Cause::RDMAP_OPCODE));
        }
        if header.offset != 0 || !header.is_last {
            return Err(Fault::peer(Cause::DDP_OFFSET));
        }
        self.find(ends, events)
    }

    /// They are whole. `written` is what the WRITE before them has placed. Completions have room for the first half of
    /// them.
    pub(super) fn end_immediate(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
        ImmediateData([a, b, c, d, ..]): ImmediateData,
        written: u32,
        events: &mut Events,
    ) -> Result<(), Fault> {
        let room = self.room(ends).ok_or(Fault::STOPPED)?;
        let cqe = Cqe::success(room.wr_id, ends.qpn, WcOpcode::RecvRdmaWithImm, written)
            .imm(u32::from_be_bytes([a, b, c, d]))
            .solicited(header.opcode.is_solicited());
        if !completion::receive(ends, &cqe, || room.consume(), events) {
            return Err(Fault::STOPPED);
        }
        self.taken = None;
        self.msn = self.msn.wrapping_add(1);
        Ok(())
    }

    /// Completes the receive of the SEND under way in error: whether there is one.
    pub(super) fn fail(
        &mut self,
        ends: &Ends<'_>,
        status: WcStatus,
        reason: u32,
        events: &mut Events,
    ) -> bool {
        let Some(room) = self.sending.and_then(|_| self.room(ends)) else {
            return false;
        };
        let cqe = Cqe::failure(room.wr_id, ends.qpn, status, reason);
        let completed = completion::receive(ends, &cqe, || room.consume(), events);
        if completed {
            (self.sending, self.taken) = (None, None);
        }
        completed
    }

    /// Finds a receive for a message that begins.
    fn find(&mut self, ends: &Ends<'_>, events: &mut Events) -> Result<(), Fault> {
        let is_there = if ends.srq.is_some() {
            self.taken = self.taken.take().or_else(|| take_shared(ends, events));
            self.taken.is_some()
        } else {
            ends.recvs.next().is_some()
        };
        if is_there {
            Ok(())
        } else {
            Err(Fault::NO_RECEIVE)
        }
    }

    /// The receive of the message under way.
    fn room<'r>(&self, ends: &Ends<'r>) -> Option<Room<'r>> {
        match &self.taken {
            Some(seen) => Some(Room::shared(seen)),
            None => ends.recvs.next().map(Room::own),
        }
    }

    /// Bytes that fit into it.
    fn total(&self, ends: &Ends<'_>) -> u64 {
        match &self.taken {
            Some(seen) => seen.total,
            None => ends.recvs.next().map_or(0, |waiting| waiting.total()),
        }
    }
}
