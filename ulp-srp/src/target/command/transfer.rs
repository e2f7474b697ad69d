//! Posting: the READs and WRITEs that move data, and the SENDs after them.

use std::collections::VecDeque;
use std::task::Waker;

use verbs_core::{PostError, RKey, Read, Remote, Send, SendWr, Sge, Write};

use super::task::Step;
use crate::iu::{Delta, Detail, ResponseCode, Rsp, Status};
use crate::lun::Piece;
use crate::target::channel::Channel;
use crate::target::event::ChannelEnd;
use crate::target::manage;

/// The meaning of a work request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    /// A receive of that slot.
    Received(u16),
    /// The last READ for the task in that slot.
    Fetched(u16),
    /// A SEND from that slot of the send memory.
    Sent(u16),
    /// An intermediate work request, whose completion only shows that there is room again.
    Part,
}

impl Id {
    pub(crate) fn number(self) -> u64 {
        let (kind, at) = match self {
            Self::Received(slot) => (0, slot),
            Self::Fetched(slot) => (1, slot),
            Self::Sent(at) => (2, at),
            Self::Part => (3, 0),
        };
        kind << 16 | u64::from(at)
    }

    /// Decodes a number; all numbers are the target's own.
    pub(crate) fn of(number: u64) -> Self {
        let at = (number & 0xffff) as u16;
        match number >> 16 {
            0 => Self::Received(at),
            1 => Self::Fetched(at),
            2 => Self::Sent(at),
            _ => Self::Part,
        }
    }
}

/// The capacity of the send queue, and the slots that units are sent from.
#[derive(Debug)]
pub(crate) struct SendSlots {
    /// Work requests that fit on the queue.
    room: u32,
    /// Work requests since the last signaled one.
    silent: u32,
    /// The number of work requests that each completion retires, in order.
    groups: VecDeque<u32>,
    pub(crate) free: Vec<u16>,
    /// Buffers whose data are in flight, by the slot of the unit behind them.
    held: Vec<Option<Piece>>,
}

impl SendSlots {
    pub(crate) fn new(depth: u32) -> Self {
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

    /// The completion of a signaled work request has arrived.
    pub(crate) fn completed(&mut self) {
        self.room += self.groups.pop_front().unwrap_or(0);
    }

    /// The unit in that slot has been sent.
    pub(crate) fn sent(&mut self, at: u16) {
        self.held[usize::from(at)] = None;
        self.free.push(at);
    }

    /// No posted work request is outstanding.
    fn is_idle(&self) -> bool {
        self.silent == 0 && self.groups.is_empty()
    }

    fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Whether the next work request must be signaled, so there will be room again.
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

/// Posts pending answers, as far as the send queue has room.
pub(in crate::target) fn post(channel: &mut Channel) {
    manage::ask(channel);
    while let Some(&slot) = channel.posting.front() {
        let posted = match channel.tasks[usize::from(slot)].step {
            Step::Table => post_table(channel, slot),
            Step::Fetching => post_reads(channel, slot),
            _ => post_answer(channel, slot),
        };
        match posted {
            Ok(true) => {
                // A held task may have begun in the meantime, behind it.
                channel.posting.pop_front();
            }
            Ok(false) => return,
            Err(_) => {
                channel.end.get_or_insert(ChannelEnd::Disconnected);
                return;
            }
        }
    }
}

/// Posts one work request, if there is room. It is signaled if `last`, or if there would otherwise never be
/// room again.
fn post_one<'w>(
    channel: &mut Channel,
    wr: impl Into<SendWr<'w>>,
    last: bool,
) -> Result<(), PostError> {
    let mut wr = wr.into();
    let signaled = last || channel.sends.is_last();
    if signaled {
        wr.flags |= verbs_core::SendFlags::SIGNALED;
    }
    channel.connection.post_send(wr)?;
    channel.sends.posted(signaled);
    Ok(())
}

/// Probes the device of a silent initiator. If work requests are in flight, they are probe enough.
pub(in crate::target) fn keep_alive(channel: &mut Channel, waker: &Waker) {
    let is_due = (channel.keepalive.as_mut()).is_some_and(|keepalive| keepalive.is_due(waker));
    if !is_due || !channel.sends.is_idle() {
        return;
    }
    channel.shared.live.keepalives.add(1);
    // No bytes are written, so no key is checked.
    let nowhere = Remote {
        addr: 0,
        rkey: RKey::default(),
    };
    if post_one(channel, Write::new(Id::Part.number(), nowhere), true).is_err() {
        channel.end.get_or_insert(ChannelEnd::Disconnected);
    }
}

fn post_table(channel: &mut Channel, slot: u16) -> Result<bool, PostError> {
    if !channel.sends.has_room() {
        return Ok(false);
    }
    let task = &channel.tasks[usize::from(slot)];
    let Some((rest, _)) = task.rest else {
        return Ok(true);
    };
    let into = Sge {
        addr: task.place.addr,
        len: rest.len,
        lkey: task.place.lkey,
    };
    channel.shared.live.rdma_reads.add(1);
    let read = Read::new(Id::Fetched(slot).number(), rest.remote(0)).into(into);
    post_one(channel, read, true)?;
    Ok(true)
}

fn post_reads(channel: &mut Channel, slot: u16) -> Result<bool, PostError> {
    while channel.sends.has_room() {
        let task = &mut channel.tasks[usize::from(slot)];
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
        channel.shared.live.rdma_reads.add(1);
        channel.shared.live.bytes_out.add(piece.len.into());
        let read = Read::new(id.number(), piece.remote(0)).into(into);
        post_one(channel, read, last)?;
        if last {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Posts the data and then the answer: they arrive in that order.
fn post_answer(channel: &mut Channel, slot: u16) -> Result<bool, PostError> {
    while channel.sends.has_room() {
        let task = &mut channel.tasks[usize::from(slot)];
        let Some((piece, at)) = task.next_piece() else {
            return post_rsp(channel, slot);
        };
        let from = Sge {
            addr: task.place.addr + u64::from(at),
            len: piece.len,
            lkey: task.place.lkey,
        };
        channel.shared.live.rdma_writes.add(1);
        channel.shared.live.bytes_in.add(piece.len.into());
        let write = Write::new(Id::Part.number(), piece.remote(0)).from(from);
        post_one(channel, write, false)?;
    }
    Ok(false)
}

fn post_rsp(channel: &mut Channel, slot: u16) -> Result<bool, PostError> {
    let Some(at) = channel.sends.free.pop() else {
        return Ok(false);
    };
    // Before the answer, or the initiator's next request could arrive too early.
    channel.repost(slot);
    let delta = (1 + channel.owed).max(0);
    channel.owed += 1 - delta;
    channel.credit += delta;
    let task = &mut channel.tasks[usize::from(slot)];
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
    // The buffer is free when its data have been sent, which is certain when this answer has arrived.
    channel.sends.held[usize::from(at)] = task.piece.take();
    let invalidate = task
        .direct
        .filter(|_| channel.house.config.remote_invalidate);
    let was_command = !task.is_management();
    let mut bytes = [0; 128];
    let len = rsp.emit(&mut bytes).unwrap_or(0);
    let solicited = rsp.solicited;
    let mut send = Send::new(Id::Sent(at).number()).from(unit(channel, at, &bytes[..len]));
    if solicited {
        send = send.solicited();
    }
    if let Some(rkey) = invalidate {
        channel.shared.live.invalidations.add(1);
        send = send.invalidate(rkey);
    }
    post_one(channel, send, true)?;
    channel.ended(slot, was_command);
    Ok(true)
}

/// Writes a unit to the slot that it is sent from.
fn unit(channel: &Channel, at: u16, bytes: &[u8]) -> Sge {
    let start = usize::from(at) * channel.rooms.send_stride;
    // The slot is as long as the longest unit.
    let written = channel.rooms.sent.write(start, bytes);
    debug_assert_eq!(written, Ok(()));
    channel.rooms.sent.slice(start..start + bytes.len())
}

/// Sends a unit that is not an answer; returns whether there was room for it.
pub(in crate::target) fn send_unit(channel: &mut Channel, bytes: &[u8]) -> Result<bool, PostError> {
    if !channel.sends.has_room() {
        return Ok(false);
    }
    let Some(at) = channel.sends.free.pop() else {
        return Ok(false);
    };
    let send = Send::new(Id::Sent(at).number()).from(unit(channel, at, bytes));
    post_one(channel, send, true)?;
    Ok(true)
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
