//! Posting: registrations and commands, invalidates, answers, receives.

use verbs_core::sync::Arc;
use verbs_core::{LocalInv, PostError, RKey, Recv, Send, SendWr};

use super::{Channel, Core, Handle, Phase, Wires, wr_id};
use super::{release, task};
use crate::initiator::error::Error;
use crate::initiator::table::SlotId;

/// Bytes of a receive: a response with the longest sense data that SCSI has, and room to spare.
pub(super) const RECV_LEN: usize = 512;

impl Wires {
    fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
        match &mut self.connection {
            Some(connection) => connection.post_send(wr),
            None => Err(PostError::Destroyed),
        }
    }

    /// Posts a receive again.
    pub(super) fn post_recv(&mut self, index: usize) -> Result<(), PostError> {
        let at = index * RECV_LEN;
        let recv = Recv::new(wr_id::RECV | index as u64).into(self.recv.slice(at..at + RECV_LEN));
        match &mut self.connection {
            Some(connection) => connection.post_recv(recv),
            None => Err(PostError::Destroyed),
        }
    }
}

impl Core {
    /// Sends ready commands, as far as the request limit and the queues allow.
    pub(super) fn send_ready(&mut self, channel: &Arc<Channel>) {
        if self.phase != Phase::Open {
            return;
        }
        task::send_next(self, channel);
        while let Some(id) = self.table.next_to_send() {
            match self.send(id) {
                Ok(()) => self.slot(id).sent_as = self.table.counters().sent,
                // Completions make room, and their handler calls this again.
                Err(PostError::Full { .. }) => {
                    self.table.unsend(id);
                    break;
                }
                Err(error) => {
                    self.table.unsend(id);
                    release::lose(self, channel, &error.into());
                    break;
                }
            }
        }
    }

    /// Posts the registrations of a command's handles, and then the command.
    fn send(&mut self, id: SlotId) -> Result<(), PostError> {
        let Some(wires) = &mut self.wires else {
            return Err(PostError::Destroyed);
        };
        let slot = &mut self.slots[usize::from(id.index)];
        let access = slot.access;
        while let Some(handle) = slot.handles.get_mut(slot.registered) {
            match handle {
                Handle::Fast { mr, is_valid } => {
                    wires.post(mr.register(0, access))?;
                    *is_valid = true;
                }
                Handle::Own(mr) => wires.post(mr.register(0, access))?,
                Handle::Fmr(_) => {}
            }
            slot.registered += 1;
        }
        let at = usize::from(id.index) * wires.stride;
        let unit = wires.send.slice(at..at + slot.iu_len);
        let number = wr_id::SEND | u64::from(id.index);
        wires.post(Send::new(number).from(unit).signaled())
    }

    /// Sends a unit from the space of the slot for task management.
    pub(super) fn send_unit(&mut self, id: SlotId, unit: &[u8]) -> Result<(), Error> {
        let Some(wires) = &mut self.wires else {
            return Err(Error::ConnectionLost);
        };
        let at = usize::from(id.index) * wires.stride;
        wires.send.write(at, unit)?;
        let place = wires.send.slice(at..at + unit.len());
        let number = wr_id::SEND | u64::from(id.index);
        Ok(wires.post(Send::new(number).from(place).signaled())?)
    }

    /// Answers a request of the target, or announces that the channel is about to be closed.
    pub(super) fn answer(&mut self, unit: &[u8]) -> Result<(), Error> {
        let Some(wires) = &mut self.wires else {
            return Err(Error::ConnectionLost);
        };
        let send = Send::new(wr_id::ANSWER).inline(unit).signaled();
        Ok(wires.post(send)?)
    }

    /// Posts the invalidate of a slot's key; only the last one of a slot generates a completion.
    pub(super) fn invalidate(
        &mut self,
        id: SlotId,
        key: RKey,
        is_last: bool,
    ) -> Result<(), PostError> {
        let Some(wires) = &mut self.wires else {
            return Err(PostError::Destroyed);
        };
        let inv = LocalInv::new(wr_id::INVALIDATE | u64::from(id.index), key);
        wires.post(if is_last { inv.signaled() } else { inv })
    }
}
