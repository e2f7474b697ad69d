//! The send ring: work requests that wait for the machine, and which completion retires which.
//!
//! Work requests are numbered from the queue's creation. Those that the poster carries out itself never enter the ring;
//! the others have a position in it, counted from the creation as well. Each number has one writer: the poster appends,
//! the machine's holder executes.

use arrayvec::ArrayVec;
use verbs_core::ring_index::RingIndex;
use verbs_core::slab_alloc::{SlabAlloc, SlabArc};
use verbs_core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use verbs_core::tracked::{Row, Tracked};
use verbs_core::{
    Datagram, Dest, Error, Payload, QpCap, RKey, Remote, SendFlags, SendOp, SendWr, Sge,
};

use crate::queue::base::limits::{MAX_INLINE, MAX_SGE};
use crate::queue::base::memory::allocate;
use crate::wire::Service;

mod datagram;
mod entry;
mod memory;
#[cfg(all(test, verbs_loom))]
mod models;

use entry::{SendEntry, has_operands};

/// The mark of no work request: its position was not on lap -1 of the ring.
const NEVER: u64 = (u32::MAX as u64) << 32;
/// Words of an entry before its room, where pieces, inline bytes and operands are.
const HEADER: usize = 4;
/// Words at the end of the room, for operations that have operands.
const OPERANDS: usize = 4;

/// In the first word: the operation.
mod op {
    pub(super) const SEND: u64 = 0;
    pub(super) const SEND_IMM: u64 = 1;
    pub(super) const WRITE: u64 = 2;
    pub(super) const WRITE_IMM: u64 = 3;
    pub(super) const READ: u64 = 4;
    pub(super) const COMPARE_SWAP: u64 = 5;
    pub(super) const FETCH_ADD: u64 = 6;
    pub(super) const SEND_INV: u64 = 7;
    pub(super) const MASKED_COMPARE_SWAP: u64 = 8;
    pub(super) const MASKED_FETCH_ADD: u64 = 9;
    pub(super) const ATOMIC_WRITE: u64 = 10;
    pub(super) const FLUSH: u64 = 11;
    pub(super) const LOCAL_INV: u64 = 12;
    pub(super) const REG_MR: u64 = 13;
    pub(super) const BIND_MW: u64 = 14;
    pub(super) const READ_INV: u64 = 15;
}
const FLAGS_SHIFT: u32 = 8;
const INLINE: u64 = 1 << 16;
/// In the first word: the destination is in the words behind the payload.
const DATAGRAM: u64 = 1 << 17;
/// In the first word: the last word names a shared receive queue.
const SRQ: u64 = 1 << 18;
/// In the first word: there is one piece, of 8 bytes; its key is stored beside the remote one, and only its address is
/// in the room.
const WORD_PIECE: u64 = 1 << 19;
/// Words of the destination of a datagram.
const DATAGRAM_WORDS: usize = 5;
/// In the first word: how many pieces or inline bytes; 12 bits.
const COUNT_SHIFT: u32 = 20;
const COUNT: u64 = 0xfff;
/// In the first word: the number of the work request.
const INDEX_SHIFT: u32 = 32;

/// See the module's documentation.
// One line: a thread with many queue pairs loads every part of it for every message.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct SendRing {
    /// Number of the next packet to send; 24 bits of it count.
    psn: AtomicU32,
    /// Positions before this are finished.
    executed: AtomicU32,
    /// Positions before this are filled.
    appended: AtomicU32,
    words: Box<[AtomicU64]>,
    stride: u16,
    /// Words of an entry behind its room, for its destination.
    to: u16,
    /// By work request: its number in the upper half, the position of its completion in the lower.
    marks: RingIndex<SlabArc<[AtomicU64]>>,
    /// The numbers of packets at both ends, which the machine and the poster write in turns.
    side: Tracked,
    filled: Row,
}

const _: () = assert!(cfg!(verbs_loom) || size_of::<SendRing>() == 64);
// Inline bytes are read a word at a time.
const _: () = assert!(MAX_INLINE.is_multiple_of(8));

/// Room for the parts of a work request that it borrows; most have none.
#[derive(Default)]
pub(crate) struct Scratch {
    sges: ArrayVec<Sge, MAX_SGE>,
    datagram: Option<Datagram>,
    bytes: ArrayVec<u8, MAX_INLINE>,
}

impl SendRing {
    /// A ring for those sizes: `(4 + room) * 8 + 8` bytes for each work request. The room is 5 words for one piece and
    /// 4 more than two a piece for several, or the inline bytes if those are more. One word more holds the destination
    /// on an extended reliable connection, and five if it is a datagram.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(slabs: &SlabAlloc, cap: &QpCap, service: Service) -> Result<Self, Error> {
        let count = cap.max_send_wr.max(1).next_power_of_two() as usize;
        let pieces = match cap.max_send_sge as usize {
            // One piece of an operation that has operands is one word.
            0 | 1 => 1,
            several => 2 * several,
        };
        let room = (pieces + OPERANDS).max(cap.max_inline_data.div_ceil(8) as usize);
        let to = match service {
            Service::Ud => DATAGRAM_WORDS,
            Service::Xrc => 1,
            _ => 0,
        };
        let stride = HEADER + room + to;
        Ok(Self {
            psn: AtomicU32::new(0),
            executed: AtomicU32::new(0),
            appended: AtomicU32::new(0),
            words: allocate(count * stride, || AtomicU64::new(0))?,
            stride: stride as u16,
            to: to as u16,
            marks: RingIndex::new(slabs.arc_slice(count, || AtomicU64::new(NEVER))?),
            side: Tracked::new(),
            filled: Row::new(count),
        })
    }

    /// The work requests that it has room for.
    pub(crate) fn room(&self) -> u32 {
        self.marks.len()
    }

    pub(crate) fn psn(&self) -> u32 {
        self.psn.load(Relaxed)
    }

    pub(crate) fn set_psn(&self, psn: u32) {
        self.psn.store(psn, Relaxed);
    }

    /// Counts the packets that messages would have been. Returns the number of the next one.
    #[inline(always)]
    pub(crate) fn advance(&self, packets: u32) -> u32 {
        self.side.write();
        let psn = self.psn.load(Relaxed).wrapping_add(packets);
        self.psn.store(psn, Relaxed);
        psn
    }

    /// Remembers at which position of the completion queue a work request completed.
    #[inline(always)]
    pub(crate) fn mark(&self, index: u32, at: u32) {
        let mark = u64::from(index) << 32 | u64::from(at);
        self.marks.at(index).store(mark, Relaxed);
    }

    /// The position at which that work request completed, if it made a completion.
    pub(crate) fn marked(&self, index: u32) -> Option<u32> {
        let mark = self.marks.at(index).load(Relaxed);
        ((mark >> 32) as u32 == index).then_some(mark as u32)
    }

    /// Forgets at which positions work requests completed. For the machine, while nothing can be posted.
    pub(crate) fn forget_marks(&self) {
        for mark in self.marks.rest_of_lap(0) {
            mark.store(NEVER, Relaxed);
        }
    }

    /// The work requests from the oldest that is not finished to the newest, both included: one that was not carried
    /// out, or whose completion waits at a position of which `waits` says so. Those that are posted at this moment are
    /// counted or not.
    pub(crate) fn outstanding(&self, waits: impl Fn(u32) -> bool) -> u32 {
        let marks = self.marks.rest_of_lap(0).iter();
        let completed = marks.map(|mark| mark.load(Relaxed)).filter_map(|mark| {
            let is_waiting = mark != NEVER && waits(mark as u32);
            is_waiting.then_some((mark >> 32) as u32)
        });
        let (from, to) = (self.executed.load(Acquire), self.appended.load(Acquire));
        let positions = (0..to.wrapping_sub(from).min(self.room())).map(|n| from.wrapping_add(n));
        let unfinished = completed.chain(positions.map(|at| self.index(at)));
        let mut span: Option<(u32, u32)> = None;
        for index in unfinished {
            let (first, last) = span.unwrap_or((index, index));
            let is_before = |a: u32, b: u32| a.wrapping_sub(b).cast_signed() < 0;
            span = Some((
                if is_before(index, first) {
                    index
                } else {
                    first
                },
                if is_before(last, index) { index } else { last },
            ));
        }
        span.map_or(0, |(first, last)| last.wrapping_sub(first).wrapping_add(1))
    }

    /// The oldest work request, from `first` on and before `end`, that is not carried out or has made a completion. For
    /// the poster.
    pub(crate) fn first_unfinished(&self, first: u32, end: u32) -> Option<u32> {
        let waiting = self.next().map(|at| self.index(at));
        let mut all = (0..end.wrapping_sub(first)).map(|n| first.wrapping_add(n));
        all.find(|&index| waiting == Some(index) || self.marked(index).is_some())
    }

    /// Whether the machine has nothing to do, so that the poster may place messages itself.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        // Acquire: what the machine did is visible to the poster, which continues from there.
        self.appended.load(Relaxed) == self.executed.load(Acquire)
    }

    /// Puts the work request of that number into the ring. For the poster, whose queue is no deeper than the ring, so
    /// that there is room.
    pub(crate) fn append(&self, index: u32, wr: &SendWr<'_>) {
        let at = self.appended.load(Relaxed);
        self.filled.at(self.marks.index(at)).write();
        self.write(at, index, wr);
        self.appended.store(at.wrapping_add(1), Release);
    }

    /// The position that is next, if one is filled. For the machine.
    pub(crate) fn next(&self) -> Option<u32> {
        let executed = self.executed.load(Relaxed);
        (self.appended.load(Acquire) != executed).then_some(executed)
    }

    /// Whether that position, which is not executed, is filled. For the machine.
    pub(crate) fn is_filled(&self, at: u32) -> bool {
        self.appended.load(Acquire).wrapping_sub(at).cast_signed() > 0
    }

    /// Whether the work request at that position, which is filled, concerns only keys of this side.
    pub(crate) fn is_local(&self, at: u32) -> bool {
        let what = self.what(at);
        matches!(what & 0xff, op::LOCAL_INV | op::REG_MR | op::BIND_MW)
    }

    /// The work request at that position is finished. For the machine.
    pub(crate) fn executed(&self, at: u32) {
        self.executed.store(at.wrapping_add(1), Release);
    }

    /// The number of the work request at that position. For the machine.
    pub(crate) fn index(&self, at: u32) -> u32 {
        (self.what(at) >> INDEX_SHIFT) as u32
    }

    /// The first word of an entry.
    #[inline]
    fn what(&self, at: u32) -> u64 {
        let first = self.marks.index(at) * usize::from(self.stride);
        self.words[first].load(Relaxed)
    }

    #[inline]
    fn entry(&self, at: u32) -> SendEntry<'_> {
        // There are as many entries as marks.
        let (slot, stride) = (self.marks.index(at), usize::from(self.stride));
        let words = &self.words[slot * stride..(slot + 1) * stride];
        let ([what, wr_id, remote, keys], rest) = words
            .split_first_chunk::<HEADER>()
            .expect("an entry has its header");
        let (room, to) = rest.split_at(rest.len() - usize::from(self.to));
        SendEntry {
            what,
            wr_id,
            remote,
            keys,
            room,
            to,
        }
    }

    fn write(&self, at: u32, index: u32, wr: &SendWr<'_>) {
        let entry = self.entry(at);
        let none = Remote::default();
        let (op, remote, imm, a, b, c, d) = match wr.op {
            SendOp::SendWithImm(imm) => (op::SEND_IMM, none, imm, 0, 0, 0, 0),
            SendOp::SendWithInv(key) => (op::SEND_INV, none, key.value(), 0, 0, 0, 0),
            SendOp::Write(to) => (op::WRITE, to, 0, 0, 0, 0, 0),
            SendOp::WriteWithImm(to, imm) => (op::WRITE_IMM, to, imm, 0, 0, 0, 0),
            SendOp::Read(from) => (op::READ, from, 0, 0, 0, 0, 0),
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => (op::COMPARE_SWAP, remote, 0, compare, swap, 0, 0),
            SendOp::FetchAdd { remote, add } => (op::FETCH_ADD, remote, 0, add, 0, 0, 0),
            other => memory::write(&other).unwrap_or((op::SEND, none, 0, 0, 0, 0, 0)),
        };
        let (kind, count, low) = entry.write_payload(op, imm, wr.payload);
        if has_operands(op) {
            for (word, value) in entry.operands().iter().zip([a, b, c, d]) {
                word.store(value, Relaxed);
            }
        }
        let flags = u64::from(wr.flags.bits() & 0xff) << FLAGS_SHIFT;
        let dest = entry.write_dest(wr.dest);
        let index = u64::from(index) << INDEX_SHIFT;
        let what = op | flags | kind | dest | count << COUNT_SHIFT | index;
        entry.what.store(what, Relaxed);
        entry.wr_id.store(wr.wr_id, Relaxed);
        entry.remote.store(remote.addr, Relaxed);
        let keys = u64::from(remote.rkey.value()) << 32 | u64::from(low);
        entry.keys.store(keys, Relaxed);
    }

    /// Reads a work request back. For the machine.
    #[inline]
    pub(crate) fn read<'s>(&self, at: u32, scratch: &'s mut Scratch) -> SendWr<'s> {
        self.filled.at(self.marks.index(at)).read();
        let entry = self.entry(at);
        let (what, keys) = (entry.what.load(Relaxed), entry.keys.load(Relaxed));
        let remote = Remote {
            addr: entry.remote.load(Relaxed),
            rkey: RKey::new((keys >> 32) as u32),
        };
        let Scratch {
            sges,
            datagram,
            bytes,
        } = scratch;
        let count = (what >> COUNT_SHIFT & COUNT) as usize;
        let payload = if what & INLINE != 0 {
            bytes.clear();
            for word in entry.room.iter().take(count.min(MAX_INLINE).div_ceil(8)) {
                bytes.extend(word.load(Relaxed).to_le_bytes());
            }
            Payload::Inline(&bytes[..count.min(bytes.len())])
        } else if count == 1 {
            Payload::One(entry.read_sge(what, keys))
        } else {
            sges.clear();
            sges.extend(entry.read_sges().take(count.min(MAX_SGE)));
            Payload::List(&*sges)
        };
        let dest = if what & (DATAGRAM | SRQ) == 0 {
            Dest::Peer
        } else {
            entry.read_dest(what, datagram)
        };
        let flags = SendFlags::from_bits_truncate((what >> FLAGS_SHIFT) as u32 & 0xff);
        let wr_id = entry.wr_id.load(Relaxed);
        let wr = |op| SendWr {
            wr_id,
            op,
            flags,
            payload,
            dest,
        };
        // The most frequent ones by themselves: an operation is large, and these leave most of it as it is.
        match what & 0xff {
            op::SEND => wr(SendOp::Send),
            op::WRITE => wr(SendOp::Write(remote)),
            other => wr(read_op(other, remote, keys as u32, entry)),
        }
    }
}

/// The operation of that number, which is neither SEND nor WRITE.
fn read_op(number: u64, remote: Remote, imm: u32, entry: SendEntry<'_>) -> SendOp {
    let operands = || entry.operands().each_ref().map(|word| word.load(Relaxed));
    match number {
        op::SEND_IMM => SendOp::SendWithImm(imm),
        op::SEND_INV => SendOp::SendWithInv(RKey::new(imm)),
        op::WRITE_IMM => SendOp::WriteWithImm(remote, imm),
        op::READ => SendOp::Read(remote),
        op::COMPARE_SWAP => {
            let [compare, swap, ..] = operands();
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            }
        }
        op::FETCH_ADD => {
            let [add, ..] = operands();
            SendOp::FetchAdd { remote, add }
        }
        other => memory::read(other, remote, imm, operands()),
    }
}
