//! A stream that is connected: buffers, credits, and the queue pair that carries them.
//!
//! Each side writes into the other's receive buffer, a ring of two halves, with a message for each piece. The reader
//! grants credits: messages, and halves of the buffer, whose addresses it writes into the sender's ring of pieces.

mod maps;
pub(super) mod wire;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null;

use verbs_abi::rdmacm::CmId;
use verbs_abi::{self as abi, QpInitAttr, RecvWr, SendWr, Sge, Wc, opcode};

pub(super) use self::maps::publish_regions;
pub(crate) use self::maps::{riomap, riounmap, riowrite};
use self::wire::{Hello, MAP, Message, PIECE, Piece};
use super::memory::Buffer;
use super::options::Sizes;
use super::queue::Queue;
use crate::call::Errno;
use crate::qp;

/// Entries of a ring of pieces.
const RING: usize = 2;
/// Places of the send queue that are kept for credits and control messages.
const CONTROLS: u16 = 4;
/// The least room that data wait for before they are sent.
const LOW_WATER: usize = 2048;
/// The longest pieces: the first of a call, so that the peer can begin to read it, and the others.
const FIRST_MAX: usize = 1 << 16;
const PIECE_MAX: usize = 1 << 17;
/// Bytes of the immediate data, which the last packet of a message carries besides its payload. A piece that others follow
/// is shorter by so much than a number of whole packets: its last packet is no longer than the ones before it, and leaves
/// with them.
const IMMEDIATE: usize = 4;

/// The kind of a completion, in the upper half of its number.
const RECEIVED: u64 = 1 << 63;
const WRITTEN: u64 = 1 << 62;
const CONTROL: u64 = 1 << 61;

/// A connected stream.
pub(super) struct Stream {
    /// Before the buffers, which the peer may write until it is destroyed.
    queue: Queue,
    sizes: Sizes,
    send: Buffer,
    receive: Buffer,
    /// The ring of pieces, and the table of the peer's maps behind it; the peer writes both.
    targets: Buffer,

    /// The position of the next bytes in the send buffer, and how many are free.
    send_at: usize,
    send_free: usize,
    sends_free: u16,
    controls: u16,
    /// The messages that were sent, and how many may be.
    sent: u16,
    limit: u16,
    target: usize,

    /// Pieces that have arrived and were not read.
    arrived: VecDeque<u32>,
    /// Their bytes.
    unread: usize,
    /// The position of the next byte to read, and the beginning of the half that is granted next.
    read_at: usize,
    give_at: usize,
    /// Bytes that were read and not granted again yet.
    read: usize,
    messages_read: u16,
    /// The number of messages at which new credits are due.
    credit_due: u16,
    peer_ring: Piece,
    peer_slot: usize,
    peer_maps: u16,
    swaps: bool,
    /// A message that waits for a place.
    unsaid: Option<Message>,
    /// It ends when all that was sent has arrived.
    ends: bool,

    pub(super) readable: bool,
    pub(super) writable: bool,
    /// It works; afterwards data that have arrived can still be read.
    pub(super) is_up: bool,
    pub(super) error: Option<Errno>,
}

impl Stream {
    /// This side's maps that the peer has room for.
    pub(super) fn peer_maps(&self) -> u16 {
        self.peer_maps
    }

    /// A stream on an id that is on a device, with its receives posted; call [`begin`](Self::begin) when the peer is
    /// known.
    pub(super) fn new(id: *mut CmId, mut sizes: Sizes) -> Result<Self, Errno> {
        // SAFETY: plain numbers and pointers.
        let mut init: QpInitAttr = unsafe { zeroed() };
        init.cap = abi::QpCap {
            max_send_wr: sizes.sends.into(),
            max_recv_wr: sizes.receives.into(),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: sizes.inline,
        };
        (init.qp_type, init.sq_sig_all) = (2, 1);
        let queue = Queue::new(id, &mut init)?;
        let pd = queue.pd();
        sizes.inline = init.cap.max_inline_data;
        let half = sizes.receive_buffer / 2;
        let stream = Self {
            queue,
            send: Buffer::new(pd, sizes.send_buffer)?,
            receive: Buffer::new(pd, half * 2)?,
            targets: Buffer::new(pd, RING * PIECE + usize::from(sizes.maps) * MAP)?,
            send_at: 0,
            send_free: sizes.send_buffer,
            sends_free: sizes.sends - CONTROLS,
            controls: 0,
            sent: 0,
            limit: 0,
            target: 0,
            arrived: VecDeque::with_capacity(sizes.receives.into()),
            unread: 0,
            read_at: 0,
            give_at: half,
            // The second half is granted with the first credits.
            read: half,
            messages_read: 0,
            credit_due: sizes.receives / 2,
            peer_ring: Piece::default(),
            peer_slot: 1,
            peer_maps: 0,
            swaps: false,
            unsaid: None,
            ends: false,
            readable: true,
            writable: true,
            is_up: true,
            error: None,
            sizes,
        };
        (0..stream.sizes.receives).try_for_each(|_| stream.post_receive())?;
        Ok(stream)
    }

    /// The parameters of this side.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            is_big_endian: cfg!(target_endian = "big"),
            credits: self.sizes.receives,
            maps: self.sizes.maps,
            ring: Piece {
                length: RING as u32,
                ..self.targets.piece(0, 0)
            },
            first: self.receive.piece(0, self.half()),
        }
    }

    /// Takes over the parameters of the peer.
    pub(super) fn begin(&mut self, peer: &Hello) {
        self.swaps = peer.is_big_endian != cfg!(target_endian = "big");
        self.limit = peer.credits;
        self.peer_ring = peer.ring;
        self.peer_maps = peer.maps;
        self.targets.write(0, &peer.first.to_ring(false));
    }

    fn half(&self) -> usize {
        self.receive.len() / 2
    }

    /// Readable when completions have been pushed since [`arm`](Self::arm).
    pub(super) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// Makes the descriptor readable with the next completion.
    pub(super) fn arm(&self) {
        self.queue.arm();
    }

    /// Whether something has completed since [`arm`](Self::arm); says so once.
    pub(super) fn has_event(&self) -> bool {
        self.queue.take_event()
    }

    /// Takes completions, grants credits that are due, and says what waits to be said.
    pub(super) fn advance(&mut self) {
        // SAFETY: plain numbers.
        let mut wcs: [Wc; 16] = unsafe { zeroed() };
        loop {
            let taken = self.queue.poll(&mut wcs);
            if taken.is_empty() {
                break;
            }
            taken.iter().for_each(|wc| self.completed(wc));
        }
        self.give_credits();
        self.speak();
    }

    fn completed(&mut self, wc: &Wc) {
        match wc.wr_id {
            id if id & RECEIVED != 0 => {
                if wc.status == 0 {
                    self.hear(Message::parse(u32::from_be(wc.imm_or_key)));
                }
            }
            id if id & CONTROL != 0 => self.controls -= 1,
            id => {
                self.sends_free += 1;
                self.send_free += (id & !WRITTEN) as usize;
            }
        }
        if wc.status != 0 && self.is_up {
            self.fail(Errno(libc::ECONNRESET));
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Data(length) => self.take(length),
            Message::Credit(limit) => self.limit = limit,
            Message::Map | Message::Other => {}
            Message::Shutdown if self.writable => self.readable = false,
            Message::Shutdown | Message::Disconnect => self.end(),
        }
        if self.is_up && self.post_receive().is_err() {
            self.fail(Errno(libc::EIO));
        }
    }

    /// As if the peer had sent that immediate data, and had written that piece into the ring.
    #[cfg(test)]
    pub(super) fn hear_for_tests(&mut self, imm: u32, piece: Option<Piece>) {
        if let Some(piece) = piece {
            self.targets
                .write(self.target * PIECE, &piece.to_ring(false));
        }
        self.hear(Message::parse(imm));
        assert!(
            self.unread <= self.receive.len(),
            "no more than there is room for"
        );
    }

    /// The peer reports that it has written that many bytes behind the previous ones. A peer that reports more than it
    /// was given room for, or more often, breaks the protocol.
    fn take(&mut self, length: u32) {
        let has_room = self.unread + length as usize <= self.receive.len();
        if !has_room || self.arrived.len() >= self.sizes.receives.into() {
            return self.fail(Errno(libc::EPROTO));
        }
        self.unread += length as usize;
        self.arrived.push_back(length);
    }

    /// Nothing is sent or received any longer; data that have arrived can be read.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.is_up) {
            (self.readable, self.writable) = (false, false);
            // Posted work is flushed, which wakes waiting threads.
            // SAFETY: the id's queue pair.
            let _ = unsafe {
                qp::modify(
                    self.queue.pair(),
                    verbs_core::QpAttr::to(verbs_core::QpState::Err),
                )
            };
        }
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
        self.end();
    }

    fn post_receive(&self) -> Result<(), Errno> {
        let wr = RecvWr {
            wr_id: RECEIVED,
            next: null(),
            sg_list: null(),
            num_sge: 0,
        };
        // SAFETY: a work request without memory.
        unsafe { self.queue.receive(&wr) }
    }

    /// Writes to the peer, with a message if there is one.
    fn write(
        &self,
        wr_id: u64,
        list: &[Sge],
        to: Piece,
        message: Option<Message>,
        inline: bool,
    ) -> Result<(), Errno> {
        /// `IBV_SEND_INLINE`.
        const INLINE: u32 = 1 << 3;
        // SAFETY: plain numbers and pointers.
        let mut wr: SendWr = unsafe { zeroed() };
        wr.wr_id = wr_id;
        (wr.sg_list, wr.num_sge) = (list.as_ptr(), list.len() as c_int);
        wr.opcode = match message {
            Some(_) => opcode::RDMA_WRITE_WITH_IMM,
            None => opcode::RDMA_WRITE,
        };
        wr.send_flags = if inline { INLINE } else { 0 };
        wr.imm_or_key = message.map_or(0, |message| message.emit().to_be());
        wr.wr.rdma = abi::Rdma {
            remote_addr: to.addr,
            rkey: to.key,
        };
        // SAFETY: the list and what it names exist until the completion, or are inline.
        unsafe { self.queue.send(&mut wr) }
    }

    fn control(&mut self, list: &[Sge], to: Piece, message: Message) -> Result<(), Errno> {
        self.write(CONTROL, list, to, Some(message), !list.is_empty())?;
        self.controls += 1;
        Ok(())
    }

    fn may_control(&self) -> bool {
        self.is_up && self.controls < CONTROLS
    }

    fn give_credits(&mut self) {
        let is_due = (self.messages_read.wrapping_sub(self.credit_due)).cast_signed() >= 0;
        let has_half = self.read >= self.half();
        if !(is_due || has_half) || !self.may_control() {
            return;
        }
        let receives = self.sizes.receives;
        let message = Message::Credit(self.messages_read.wrapping_add(receives));
        let given = match has_half {
            true => {
                let entry = self
                    .receive
                    .piece(self.give_at, self.half())
                    .to_ring(self.swaps);
                let list = [Sge {
                    addr: entry.as_ptr().addr() as u64,
                    length: PIECE as u32,
                    lkey: 0,
                }];
                let slot = self
                    .peer_ring
                    .addr
                    .wrapping_add((self.peer_slot * PIECE) as u64);
                self.control(
                    &list,
                    Piece {
                        addr: slot,
                        ..self.peer_ring
                    },
                    message,
                )
            }
            false => self.control(&[], Piece::default(), message),
        };
        if given.is_err() {
            return self.fail(Errno(libc::EIO));
        }
        self.credit_due = self.messages_read.wrapping_add(receives / 2);
        if has_half {
            self.read -= self.half();
            self.give_at = (self.give_at + self.half()) % self.receive.len();
            self.peer_slot = (self.peer_slot + 1) % (self.peer_ring.length.max(1) as usize);
        }
    }

    /// The piece of the peer's buffer that data are written to now.
    fn to(&self) -> Piece {
        Piece::of_ring(self.targets.read(self.target * PIECE))
    }

    pub(super) fn may_send(&self) -> bool {
        self.is_up
            && self.sends_free > 0
            && self.send_free >= LOW_WATER.min(self.send.len())
            && self.sent != self.limit
            && self.to().length > 0
    }

    pub(super) fn may_receive(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub(super) fn all_sent(&self) -> bool {
        !self.is_up || self.sends_free == self.sizes.sends - CONTROLS && self.controls == 0
    }

    /// Sends what it can now. Returns how many bytes that were.
    pub(super) fn send(&mut self, data: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        let mut most = FIRST_MAX;
        while done < data.len() && self.writable && self.may_send() {
            let to = self.to();
            let room = self.send_free.min(to.length as usize);
            let length = piece_len(data.len() - done, room, most);
            most = PIECE_MAX;
            let part = &data[done..done + length];
            let message = Some(Message::Data(length as u32));
            // Before they are sent: the peer may put the next piece into this place as soon as it has read them.
            let rest = Piece {
                addr: to.addr.wrapping_add(length as u64),
                length: to.length - length as u32,
                ..to
            };
            self.targets
                .write(self.target * PIECE, &rest.to_ring(false));
            if rest.length == 0 {
                self.target = (self.target + 1) % RING;
            }
            if length <= self.sizes.inline as usize {
                let list = [Sge {
                    addr: part.as_ptr().addr() as u64,
                    length: length as u32,
                    lkey: 0,
                }];
                self.write(length as u64, &list, to, message, true)?;
            } else {
                let (list, count) = self.send.put(self.send_at, part);
                self.write(length as u64, &list[..count], to, message, false)?;
                self.send_at = (self.send_at + length) % self.send.len();
            }
            self.sends_free -= 1;
            self.send_free -= length;
            self.sent = self.sent.wrapping_add(1);
            done += length;
        }
        Ok(done)
    }

    /// Reads what has arrived. Returns how many bytes that were. `peeks` leaves them in place.
    pub(super) fn receive(&mut self, into: &mut [u8], peeks: bool) -> usize {
        let (mut done, mut at, mut message) = (0, self.read_at, 0);
        while done < into.len() {
            let Some(left) = self.arrived.get_mut(message) else {
                break;
            };
            let length = (*left as usize).min(into.len() - done);
            self.receive.get(at, &mut into[done..done + length]);
            (done, at) = (done + length, (at + length) % self.receive.len());
            if peeks {
                message += 1;
            } else {
                *left -= length as u32;
                self.unread -= length;
                if *left == 0 {
                    self.arrived.pop_front();
                    self.messages_read = self.messages_read.wrapping_add(1);
                }
            }
        }
        if !peeks {
            self.read_at = at;
            self.read += done;
            self.give_credits();
        }
        done
    }

    /// Informs the peer, behind all that was sent, that this side sends no more, or that it ends; then it does end as soon as
    /// that has arrived.
    pub(super) fn say(&mut self, message: Message) {
        self.ends |= message == Message::Disconnect;
        self.unsaid = Some(message);
        self.speak();
    }

    fn speak(&mut self) {
        if self.may_control()
            && let Some(message) = self.unsaid.take()
            && self.control(&[], Piece::default(), message).is_err()
        {
            self.fail(Errno(libc::EIO));
        }
        if self.ends && self.unsaid.is_none() && self.all_sent() {
            self.end();
        }
    }

    /// Room in the peer's table for a map of this side, by its number.
    pub(super) fn publish_map(
        &mut self,
        index: u16,
        offset: u64,
        piece: Piece,
    ) -> Result<bool, Errno> {
        if index >= self.peer_maps {
            return Err(Errno(libc::ENOMEM));
        }
        if !(self.is_up && self.sends_free > 0 && self.sent != self.limit && self.send_free >= MAP)
        {
            return Ok(false);
        }
        let mut entry = [0; MAP];
        let turned = if self.swaps {
            offset.swap_bytes()
        } else {
            offset
        };
        entry[..8].copy_from_slice(&turned.to_ne_bytes());
        entry[8..].copy_from_slice(&piece.to_ring(self.swaps));
        let list = [Sge {
            addr: entry.as_ptr().addr() as u64,
            length: MAP as u32,
            lkey: 0,
        }];
        let at = usize::from(index) * MAP + self.peer_ring.length as usize * PIECE;
        let to = Piece {
            addr: self.peer_ring.addr.wrapping_add(at as u64),
            ..self.peer_ring
        };
        self.write(0, &list, to, Some(Message::Map), true)?;
        self.sends_free -= 1;
        self.sent = self.sent.wrapping_add(1);
        Ok(true)
    }

    /// Where the peer has mapped that offset, and the length of its memory from there.
    pub(super) fn map_of(&self, offset: u64) -> Option<Piece> {
        (0..usize::from(self.sizes.maps)).find_map(|index| {
            let at = RING * PIECE + index * MAP;
            let first = u64::from_ne_bytes(self.targets.read(at));
            let piece = Piece::of_ring(self.targets.read(at + 8));
            let into = offset
                .checked_sub(first)
                .filter(|&into| into < piece.length.into())?;
            Some(Piece {
                addr: piece.addr.wrapping_add(into),
                length: piece.length - into as u32,
                ..piece
            })
        })
    }

    /// Writes into the peer's memory what it can now. Returns how many bytes that were.
    pub(super) fn write_at(&mut self, data: &[u8], to: Piece) -> Result<usize, Errno> {
        let mut done = 0;
        while done < data.len() && done < to.length as usize && self.writable && self.is_up {
            if self.sends_free == 0 || self.send_free < LOW_WATER || self.sent == self.limit {
                break;
            }
            let length = (data.len() - done)
                .min(PIECE_MAX)
                .min(self.send_free)
                .min(to.length as usize - done);
            let (list, count) = self.send.put(self.send_at, &data[done..done + length]);
            let at = Piece {
                addr: to.addr.wrapping_add(done as u64),
                ..to
            };
            self.write(WRITTEN | length as u64, &list[..count], at, None, false)?;
            self.send_at = (self.send_at + length) % self.send.len();
            self.sends_free -= 1;
            self.send_free -= length;
            done += length;
        }
        Ok(done)
    }
}

/// The length of the next piece of data of which `left` bytes are left, where there is room for `room`.
fn piece_len(left: usize, room: usize, most: usize) -> usize {
    let length = left.min(room);
    // A piece of a few bytes would cost as much as one of a packet.
    if length >= most + LOW_WATER {
        most - IMMEDIATE
    } else {
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pieces that others follow end with a packet that fits behind the others, and none is tiny.
    #[test]
    fn pieces_are_long_and_none_is_a_few_bytes() {
        assert_eq!(piece_len(100, 1 << 20, FIRST_MAX), 100);
        assert_eq!(piece_len(FIRST_MAX + 4, 1 << 20, FIRST_MAX), FIRST_MAX + 4);
        assert_eq!(piece_len(1 << 20, 5000, FIRST_MAX), 5000);
        let mut left = 1 << 20;
        let mut most = FIRST_MAX;
        let mut pieces = Vec::new();
        while left > 0 {
            let length = piece_len(left, 1 << 19, most);
            pieces.push(length);
            (left, most) = (left - length, PIECE_MAX);
        }
        assert_eq!(pieces[..2], [FIRST_MAX - 4, PIECE_MAX - 4]);
        assert!(pieces.iter().all(|&piece| piece >= LOW_WATER), "{pieces:?}");
        assert_eq!(pieces.len(), 9);
    }
}
