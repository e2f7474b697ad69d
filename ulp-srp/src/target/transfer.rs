//! Posting: the READs and WRITEs that move data, and the SENDs behind them.

use std::collections::VecDeque;
use std::task::Waker;

use verbs_core::{PostError, RKey, Read, Remote, Send, SendWr, Sge, Write};

use super::channel::Channel;
use super::event::ChannelEnd;
use super::task::Step;
use crate::iu::{Delta, Detail, ResponseCode, Rsp, Status};
use crate::lun::Piece;

/// What a work request's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    /// A receive, of that slot.
    Received(u16),
    /// The last READ for the task in that slot.
    Fetched(u16),
    /// A SEND from that place.
    Sent(u16),
    /// Something in between, whose completion only says that there is room again.
    Part,
}

impl Id {
    pub(super) fn number(self) -> u64 {
        let (kind, at) = match self {
            Self::Received(slot) => (0, slot),
            Self::Fetched(slot) => (1, slot),
            Self::Sent(at) => (2, at),
            Self::Part => (3, 0),
        };
        kind << 16 | u64::from(at)
    }

    /// What has that number; all numbers are ours.
    pub(super) fn of(number: u64) -> Self {
        let at = (number & 0xffff) as u16;
        match number >> 16 {
            0 => Self::Received(at),
            1 => Self::Fetched(at),
            2 => Self::Sent(at),
            _ => Self::Part,
        }
    }
}

/// The places of the send queue, and those that units are sent from.
#[derive(Debug)]
pub(super) struct SendSlots {
    /// Work requests that fit on the queue.
    room: u32,
    /// Work requests since the last one whose completion was asked for.
    silent: u32,
    /// How many work requests are done with each completion, in order.
    groups: VecDeque<u32>,
    pub(super) free: Vec<u16>,
    /// Buffers whose data are under way, by the place of the unit behind them.
    held: Vec<Option<Piece>>,
}

impl SendSlots {
    pub(super) fn new(depth: u32) -> Self {
        // The configuration has at most that many.
        let places = u16::try_from(depth).unwrap_or(u16::MAX);
        Self {
            room: depth,
            silent: 0,
            groups: VecDeque::with_capacity(depth as usize),
            free: (0..places).rev().collect(),
            held: (0..places).map(|_| None).collect(),
        }
    }

    /// A completion that was asked for has come.
    pub(super) fn completed(&mut self) {
        self.room += self.groups.pop_front().unwrap_or(0);
    }

    /// The unit at that place has been sent.
    pub(super) fn sent(&mut self, at: u16) {
        self.held[usize::from(at)] = None;
        self.free.push(at);
    }

    /// Nothing was posted whose completion has not come.
    fn is_idle(&self) -> bool {
        self.silent == 0 && self.groups.is_empty()
    }

    fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Whether the next work request has to ask for its completion, so that there will be room again.
    fn is_last(&self) -> bool {
        self.room == 1
    }

    fn posted(&mut self, signaled: bool) {
        self.room -= 1;
        self.silent += 1;
        if signaled {
            self.groups.push_back(std::mem::take(&mut self.silent));
        }
    }
}

impl Channel {
    /// Posts what there is to post, as far as the send queue has room.
    pub(super) fn post(&mut self) {
        self.ask();
        while let Some(&slot) = self.posting.front() {
            let posted = match self.tasks[usize::from(slot)].step {
                Step::Table => self.post_table(slot),
                Step::Fetching => self.post_reads(slot),
                _ => self.post_answer(slot),
            };
            match posted {
                Ok(true) => {
                    // What was held may have begun meanwhile, behind it.
                    self.posting.pop_front();
                }
                Ok(false) => return,
                Err(_) => {
                    self.end.get_or_insert(ChannelEnd::Disconnected);
                    return;
                }
            }
        }
    }

    /// One work request, if there is room. The completion is asked for if `last`, or if there would never be
    /// room again otherwise.
    fn post_one<'w>(&mut self, wr: impl Into<SendWr<'w>>, last: bool) -> Result<(), PostError> {
        let mut wr = wr.into();
        let signaled = last || self.sends.is_last();
        if signaled {
            wr.flags |= verbs_core::SendFlags::SIGNALED;
        }
        self.connection.post_send(wr)?;
        self.sends.posted(signaled);
        Ok(())
    }

    /// Asks the device of a silent initiator for a sign of life. What is under way asks for one itself.
    pub(super) fn keep_alive(&mut self, waker: &Waker) {
        let is_due = (self.keepalive.as_mut()).is_some_and(|keepalive| keepalive.is_due(waker));
        if !is_due || !self.sends.is_idle() {
            return;
        }
        self.shared.live.keepalives.add(1);
        // No bytes are written, so no key is looked at.
        let nowhere = Remote {
            addr: 0,
            rkey: RKey::default(),
        };
        if self
            .post_one(Write::new(Id::Part.number(), nowhere), true)
            .is_err()
        {
            self.end.get_or_insert(ChannelEnd::Disconnected);
        }
    }

    fn post_table(&mut self, slot: u16) -> Result<bool, PostError> {
        if !self.sends.has_room() {
            return Ok(false);
        }
        let task = &self.tasks[usize::from(slot)];
        let Some((rest, _)) = task.rest else {
            return Ok(true);
        };
        let into = Sge {
            addr: task.place.addr,
            len: rest.len,
            lkey: task.place.lkey,
        };
        self.shared.live.rdma_reads.add(1);
        let read = Read::new(Id::Fetched(slot).number(), rest.remote(0)).into(into);
        self.post_one(read, true)?;
        Ok(true)
    }

    fn post_reads(&mut self, slot: u16) -> Result<bool, PostError> {
        while self.sends.has_room() {
            let task = &mut self.tasks[usize::from(slot)];
            let Some((piece, at)) = task.next_piece() else {
                return Ok(true);
            };
            let into = Sge {
                addr: task.place.addr + u64::from(at),
                len: piece.len,
                lkey: task.place.lkey,
            };
            let last = task.is_moved();
            let id = if last { Id::Fetched(slot) } else { Id::Part };
            self.shared.live.rdma_reads.add(1);
            self.shared.live.bytes_out.add(piece.len.into());
            let read = Read::new(id.number(), piece.remote(0)).into(into);
            self.post_one(read, last)?;
            if last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Data, and the answer behind them: they arrive in that order.
    fn post_answer(&mut self, slot: u16) -> Result<bool, PostError> {
        while self.sends.has_room() {
            let task = &mut self.tasks[usize::from(slot)];
            let Some((piece, at)) = task.next_piece() else {
                return self.post_rsp(slot);
            };
            let from = Sge {
                addr: task.place.addr + u64::from(at),
                len: piece.len,
                lkey: task.place.lkey,
            };
            self.shared.live.rdma_writes.add(1);
            self.shared.live.bytes_in.add(piece.len.into());
            let write = Write::new(Id::Part.number(), piece.remote(0)).from(from);
            self.post_one(write, false)?;
        }
        Ok(false)
    }

    fn post_rsp(&mut self, slot: u16) -> Result<bool, PostError> {
        let Some(at) = self.sends.free.pop() else {
            return Ok(false);
        };
        // Before the answer, or the initiator's next request could come too early.
        self.repost(slot);
        let delta = (1 + self.owed).max(0);
        self.owed += 1 - delta;
        self.credit += delta;
        let task = &mut self.tasks[usize::from(slot)];
        let answer = &task.answer;
        let sense = answer.sense.as_ref().map(crate::scsi::Sense::emit_fixed);
        let good = answer.status == Status::GOOD
            && answer
                .code
                .is_none_or(|code| code == ResponseCode::COMPLETE);
        let (data_out, data_in) = match task.is_out {
            true => (answer.residual, crate::iu::Residual::None),
            false => (crate::iu::Residual::None, answer.residual),
        };
        let rsp = Rsp {
            solicited: if good {
                task.solicit_success
            } else {
                task.solicit_failure
            },
            delta: Delta(delta),
            tag: task.tag,
            status: answer.status,
            data_out,
            data_in,
            detail: match (answer.code, &sense) {
                (Some(code), _) => Detail::Response(code),
                (None, Some(sense)) => Detail::Sense(sense),
                (None, None) => Detail::None,
            },
        };
        // The buffer is free when the data in it are on their way, and that is so when this has arrived.
        self.sends.held[usize::from(at)] = task.piece.take();
        let invalidate = task.direct.filter(|_| self.house.config.remote_invalidate);
        let was_command = !task.is_management();
        let mut bytes = [0; 128];
        let len = rsp.emit(&mut bytes).unwrap_or(0);
        let solicited = rsp.solicited;
        let mut send = Send::new(Id::Sent(at).number()).from(self.unit(at, &bytes[..len]));
        if solicited {
            send = send.solicited();
        }
        if let Some(rkey) = invalidate {
            self.shared.live.invalidations.add(1);
            send = send.invalidate(rkey);
        }
        self.post_one(send, true)?;
        self.ended(slot, was_command);
        Ok(true)
    }

    /// Puts a unit into the place that it is sent from.
    fn unit(&self, at: u16, bytes: &[u8]) -> Sge {
        let start = usize::from(at) * self.rooms.send_stride;
        // The place is as long as the longest unit.
        let written = self.rooms.sent.write(start, bytes);
        debug_assert_eq!(written, Ok(()));
        self.rooms.sent.slice(start..start + bytes.len())
    }

    /// Sends a unit that answers nothing; whether there was room for it.
    pub(super) fn send_unit(&mut self, bytes: &[u8]) -> Result<bool, PostError> {
        if !self.sends.has_room() {
            return Ok(false);
        }
        let Some(at) = self.sends.free.pop() else {
            return Ok(false);
        };
        let send = Send::new(Id::Sent(at).number()).from(self.unit(at, bytes));
        self.post_one(send, true)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_are() {
        for id in [
            Id::Received(7),
            Id::Fetched(0),
            Id::Sent(u16::MAX),
            Id::Part,
        ] {
            assert_eq!(Id::of(id.number()), id);
        }
    }

    #[test]
    fn room_comes_back_with_the_completion_of_a_group() {
        let mut sends = SendSlots::new(4);
        sends.posted(false);
        sends.posted(false);
        sends.posted(true);
        assert!(sends.is_last());
        sends.posted(true);
        assert!(!sends.has_room());
        sends.completed();
        assert_eq!(sends.room, 3);
        sends.completed();
        assert_eq!(sends.room, 4);
    }
}
