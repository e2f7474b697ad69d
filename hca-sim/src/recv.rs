//! Receive queues: a ring with one producer, who posts, and one consumer, who lands messages.
//!
//! An entry is four atomic words; a bit of the first says whose lap of the ring it belongs to and so
//! publishes it. The consumer is whoever owns this direction of the connection: the peer's poster, the
//! peer's machine, or the queue pair's own machine when it flushes ([`crate::landing`]).
//!
//! Posting takes a pin and asks the queue pair's word whether receives are taken. A queue pair that
//! goes to ERR changes the word and flushes after a grace period: an entry that was posted under the
//! old word is there by then, and one that was not sees the new word and flushes itself.

use std::fmt;

use verbs_core::mem::{Pin, pin};
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use verbs_core::{Error, LKey, PostError, QpState, RawRecvQueue, Sge};

use crate::qp::{QueuePair, flag};

#[cfg(all(test, verbs_loom))]
mod models;

/// In an entry's first word, below the count of pieces and the total length.
const LAP: u64 = 1;
const PIECES_SHIFT: u32 = 1;
const PIECES: u64 = 0x7f;
const TOTAL_SHIFT: u32 = 8;

/// First word, `wr_id`, and the first piece: address, length and key.
#[derive(Debug)]
#[repr(align(32))]
struct Entry([AtomicU64; 4]);

/// What the consumer writes.
#[derive(Debug)]
#[repr(align(64))]
struct Consumer {
    head: AtomicU32,
    /// Number of the next packet that the peer is to send.
    epsn: AtomicU32,
}

/// The part of a receive queue that both ends share.
#[derive(Debug)]
pub(crate) struct RecvRing {
    consumer: Consumer,
    entries: Box<[Entry]>,
    /// Of a position: which entry it is.
    mask: u32,
    /// The second and further pieces of each entry, two words each.
    more: Box<[AtomicU64]>,
    max_sge: usize,
    /// A sender waits for a receive.
    wanted: AtomicBool,
    /// How long a sender that finds none is to wait, as the IBTA's code.
    rnr_timer: AtomicU8,
}

/// A receive that waits for a message. For the consumer only, who has at most one of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting<'r> {
    ring: &'r RecvRing,
    entry: &'r Entry,
    at: u32,
    what: u64,
}

impl Waiting<'_> {
    /// Bytes that fit.
    pub(crate) fn total(self) -> u64 {
        self.what >> TOTAL_SHIFT
    }

    /// How many pieces they are in.
    pub(crate) fn pieces(self) -> usize {
        (self.what >> PIECES_SHIFT & PIECES) as usize
    }

    /// Whether there is one piece, with room for that many bytes.
    #[inline(always)]
    pub(crate) fn is_one_piece_of(self, len: u32) -> bool {
        self.what & PIECES << PIECES_SHIFT == 1 << PIECES_SHIFT
            && u64::from(len) <= self.what >> TOTAL_SHIFT
    }

    #[inline(always)]
    pub(crate) fn wr_id(self) -> u64 {
        self.entry.0[1].load(Relaxed)
    }

    /// The first piece.
    #[inline(always)]
    pub(crate) fn first(self) -> Sge {
        let Entry([_, _, addr, rest]) = self.entry;
        unpack(addr, rest)
    }

    /// Any piece, by its number.
    pub(crate) fn piece(self, number: usize) -> Sge {
        if number == 0 {
            return self.first();
        }
        let at = self.ring.place(self.at, number);
        unpack(&self.ring.more[at], &self.ring.more[at + 1])
    }

    /// Takes it off the queue.
    #[inline(always)]
    pub(crate) fn consume(self) {
        self.ring
            .consumer
            .head
            .store(self.at.wrapping_add(1), Release);
    }
}

impl RecvRing {
    /// A ring for `depth` receives of up to `max_sge` pieces.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(depth: u32, max_sge: u32) -> Result<Self, Error> {
        let count = depth.max(1).next_power_of_two() as usize;
        let more = (max_sge as usize).saturating_sub(1) * 2 * count;
        Ok(Self {
            consumer: Consumer {
                head: AtomicU32::new(0),
                epsn: AtomicU32::new(0),
            },
            entries: allocate(count, || Entry(std::array::from_fn(|_| AtomicU64::new(0))))?,
            mask: (count - 1) as u32,
            more: allocate(more, || AtomicU64::new(0))?,
            max_sge: max_sge.max(1) as usize,
            wanted: AtomicBool::new(false),
            rnr_timer: AtomicU8::new(0),
        })
    }

    /// The oldest receive that was not consumed. For the consumer only.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<Waiting<'_>> {
        let at = self.consumer.head.load(Relaxed);
        let entry = self.entry(at);
        let what = entry.0[0].load(Acquire);
        ((what ^ self.lap(at)) & LAP == 0).then_some(Waiting {
            ring: self,
            entry,
            at,
            what,
        })
    }

    /// Number of the next packet that the peer is to send; 24 bits of it count.
    #[inline(always)]
    pub(crate) fn epsn(&self) -> u32 {
        self.consumer.epsn.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn expect(&self, psn: u32) {
        self.consumer.epsn.store(psn, Relaxed);
    }

    /// Asks the producer to call when it posts. A call may be missed; the RNR timer comes anyway.
    pub(crate) fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Relaxed);
    }

    pub(crate) fn rnr_timer(&self) -> u8 {
        self.rnr_timer.load(Relaxed)
    }

    pub(crate) fn set_rnr_timer(&self, code: u8) {
        self.rnr_timer.store(code, Relaxed);
    }

    #[inline(always)]
    fn entry(&self, at: u32) -> &Entry {
        &self.entries[(at & self.mask) as usize]
    }

    /// The lap bit of that position: 1 on the first lap, so that a fresh ring is empty.
    #[inline(always)]
    fn lap(&self, at: u32) -> u64 {
        if at as usize & self.entries.len() == 0 {
            LAP
        } else {
            0
        }
    }

    /// Where in `more` the second or a further piece of an entry is.
    fn place(&self, at: u32, number: usize) -> usize {
        let slot = (at & self.mask) as usize;
        (slot * (self.max_sge - 1) + number - 1) * 2
    }

    /// Writes an entry. For the producer only.
    #[inline(always)]
    fn publish_pieces(&self, at: u32, wr_id: u64, pieces: Pieces<'_>) {
        match pieces {
            Pieces::One(sge) => self.publish_one(at, wr_id, sge),
            Pieces::List(sges) => self.publish(at, wr_id, sges),
        }
    }

    /// Writes an entry of one piece. For the producer only.
    #[inline(always)]
    fn publish_one(&self, at: u32, wr_id: u64, sge: Sge) {
        let Entry([what, id, addr, rest]) = self.entry(at);
        id.store(wr_id, Relaxed);
        pack(addr, rest, sge);
        let one = u64::from(sge.len) << TOTAL_SHIFT | 1 << PIECES_SHIFT;
        what.store(one | self.lap(at), Release);
    }

    /// Writes an entry of any number of pieces. For the producer only.
    pub(crate) fn publish(&self, at: u32, wr_id: u64, sges: &[Sge]) {
        let Entry([what, id, addr, rest]) = self.entry(at);
        id.store(wr_id, Relaxed);
        let mut total = 0;
        for (number, sge) in sges.iter().enumerate() {
            total += u64::from(sge.len);
            if number == 0 {
                pack(addr, rest, *sge);
            } else {
                let place = self.place(at, number);
                pack(&self.more[place], &self.more[place + 1], *sge);
            }
        }
        let pieces = sges.len() as u64;
        what.store(
            total << TOTAL_SHIFT | pieces << PIECES_SHIFT | self.lap(at),
            Release,
        );
    }
}

/// The memory of a receive that is posted.
#[derive(Clone, Copy)]
enum Pieces<'a> {
    One(Sge),
    List(&'a [Sge]),
}

/// A boxed slice, or the error that says there is no memory for it.
pub(crate) fn allocate<T>(count: usize, make: impl Fn() -> T) -> Result<Box<[T]>, Error> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
    all.extend((0..count).map(|_| make()));
    Ok(all.into_boxed_slice())
}

#[inline(always)]
pub(crate) fn pack(addr: &AtomicU64, rest: &AtomicU64, sge: Sge) {
    addr.store(sge.addr, Relaxed);
    rest.store(
        u64::from(sge.len) << 32 | u64::from(sge.lkey.value()),
        Relaxed,
    );
}

#[inline(always)]
pub(crate) fn unpack(addr: &AtomicU64, rest: &AtomicU64) -> Sge {
    let rest = rest.load(Relaxed);
    Sge {
        addr: addr.load(Relaxed),
        len: (rest >> 32) as u32,
        lkey: LKey::new(rest as u32),
    }
}

/// The producer's end.
#[repr(align(128))]
pub(crate) struct RecvPoster {
    qp: Arc<QueuePair>,
    /// `None` until the first post that finds the ring allocated.
    ring: Option<Arc<RecvRing>>,
    tail: u32,
    /// Entries that are known to be free.
    room: u32,
    /// The queue takes receives without a piece only.
    one_is_too_many: bool,
}

impl RecvPoster {
    /// The one producer of a new queue pair.
    pub(crate) fn new(qp: Arc<QueuePair>) -> Self {
        let one_is_too_many = qp.cap.max_recv_sge == 0;
        Self {
            qp,
            ring: None,
            tail: 0,
            room: 0,
            one_is_too_many,
        }
    }

    /// Finds room, or says why nothing can be posted.
    #[cold]
    fn look_for_room(&mut self) -> Result<(), PostError> {
        if self.ring.is_none() {
            self.qp.check_post_recv()?;
            self.ring = self.qp.recv_ring().cloned();
        }
        let Some(ring) = &self.ring else {
            return Err(PostError::State(QpState::Reset));
        };
        let depth = self.qp.cap.max_recv_wr;
        let used = self.tail.wrapping_sub(ring.consumer.head.load(Acquire));
        self.room = depth.saturating_sub(used);
        if self.room == 0 {
            self.qp.check_post_recv()?;
            return Err(PostError::Full { depth });
        }
        Ok(())
    }

    /// Posts one receive.
    #[inline(always)]
    fn post_pieces(&mut self, wr_id: u64, pieces: Pieces<'_>) -> Result<(), PostError> {
        if self.room == 0 {
            self.look_for_room()?;
        }
        let Some(ring) = &self.ring else {
            return Err(PostError::State(QpState::Reset));
        };
        let pin = pin();
        if !self
            .qp
            .word
            .admits(&pin, flag::TAKES_RECVS, flag::TAKES_RECVS)
        {
            return self.post_to_flush(pin, wr_id, pieces);
        }
        ring.publish_pieces(self.tail, wr_id, pieces);
        drop(pin);
        self.tail = self.tail.wrapping_add(1);
        self.room -= 1;
        if ring.wanted.load(Relaxed) {
            self.qp.call_sender();
        }
        Ok(())
    }

    /// Posts to a queue pair in ERR, which completes the receive at once.
    #[cold]
    fn post_to_flush(&mut self, pin: Pin, wr_id: u64, pieces: Pieces<'_>) -> Result<(), PostError> {
        let Some(ring) = &self.ring else {
            return Err(PostError::State(QpState::Reset));
        };
        self.qp.enter_to_post_recv(&pin)?;
        ring.publish_pieces(self.tail, wr_id, pieces);
        drop(pin);
        self.tail = self.tail.wrapping_add(1);
        self.room -= 1;
        self.qp.turn();
        Ok(())
    }
}

impl RawRecvQueue for RecvPoster {
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let max = self.qp.cap.max_recv_sge;
        if sges.len() > max as usize {
            let got = u32::try_from(sges.len()).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges { got, max });
        }
        self.post_pieces(wr_id, Pieces::List(sges))
    }

    fn post_one(&mut self, wr_id: u64, sge: Sge) -> Result<(), PostError> {
        if self.one_is_too_many {
            return Err(PostError::TooManySges { got: 1, max: 0 });
        }
        self.post_pieces(wr_id, Pieces::One(sge))
    }
}

impl fmt::Debug for RecvPoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvPoster")
            .field("qpn", &self.qp.qpn)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}
