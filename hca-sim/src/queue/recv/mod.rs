//! Receive queues: a ring with one producer, which posts, and one consumer, which places messages.
//!
//! An entry is four atomic words; a bit of the first says which lap of the ring it belongs to and so publishes it. The
//! consumer is the owner of this direction of the connection: the peer's poster, the peer's machine, or the queue
//! pair's own machine when it flushes ([`crate::direct::path`]).
//!
//! Posting takes a pin and asks the queue pair's word whether receives are taken. A queue pair that goes to ERR changes
//! the word and flushes after a grace period: an entry that was posted under the old word is in the ring by then, and a
//! later post sees the new word and flushes its entry itself.

use verbs_core::mem::TouchWord;
use verbs_core::ring_index::RingIndex;
use verbs_core::slab_alloc::{SlabAlloc, SlabArc};
use verbs_core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use verbs_core::sync::{Mutex, Weak};
use verbs_core::tracked::Tracked;
use verbs_core::{Error, Piece, Sge};

use crate::queue::base::events::QpEvents;
use crate::queue::base::memory::{allocate, pack, unpack};

pub(crate) mod inline_credits;
#[cfg(all(test, verbs_loom))]
mod models;

/// In an entry's first word, below the count of pieces and the total length.
const LAP: u64 = 1;
const PIECES_SHIFT: u32 = 1;
const PIECES: u64 = 0x7f;
const ONE_PIECE: u64 = 1 << PIECES_SHIFT;
const TOTAL_SHIFT: u32 = 8;

/// First word, `wr_id`, and the first piece: address, length and key.
#[derive(Debug)]
#[repr(align(32))]
pub(crate) struct RecvEntry([AtomicU64; 4], Tracked);

/// The fields that the consumer writes.
#[derive(Debug)]
#[repr(align(64))]
struct RecvConsumer {
    head: AtomicU32,
    /// Number of the next packet that the peer sends.
    epsn: AtomicU32,
    /// The position behind the last inline CQE.
    inline_end: AtomicU32,
    /// The value of [`RecvRing::scattered`] that the consumer saw last.
    scattered: AtomicU32,
    /// How often inline CQEs were recalled.
    recalls: AtomicU32,
}

/// The fields that the producer writes for the consumer to read.
#[derive(Debug)]
#[repr(align(64))]
struct Producer {
    /// The receives that inline CQEs may use, see [`CreditOffer`].
    inline_credits: AtomicU64,
    /// The thread that posted when it was looked at last, or 0.
    poster: AtomicU32,
    /// Whose machine has found no receive, and waits for one.
    sender: Mutex<Option<Weak<dyn QpEvents>>>,
}

/// The entries of a ring. Each end has its own copy of their address, so that neither loads a line for it.
#[derive(Clone, Debug)]
pub(crate) struct Entries(RingIndex<SlabArc<[RecvEntry]>>);

/// The part of a receive queue that both ends share.
// Field order keeps the cache line of the poller and the poster away from the sender's.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RecvRing {
    consumer: RecvConsumer,
    pub(crate) entries: Entries,
    /// The second and further pieces of each entry, two words each.
    more: Box<[AtomicU64]>,
    max_sge: usize,
    /// Its tag counts the threads that keep pollers from scattering.
    door: TouchWord,
    /// Inline CQEs before this position have been scattered.
    scattered: AtomicU32,
    /// How long a sender that finds no receive has to wait, as the IBTA's code.
    rnr_timer: AtomicU8,
    producer: Producer,
}

/// A receive that waits for a message. For the consumer only, which has at most one of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting<'r> {
    ring: &'r RecvRing,
    entry: &'r RecvEntry,
    at: u32,
    what: u64,
}

impl Entries {
    /// The entry of a position and its lap bit: 1 on the first lap, so that a fresh ring is empty.
    #[inline(always)]
    fn place(&self, at: u32) -> (&RecvEntry, u64) {
        (self.0.at(at), self.lap(at))
    }

    /// Writes an entry of one piece. For the producer only.
    #[inline(always)]
    pub(crate) fn publish_one(&self, at: u32, wr_id: u64, piece: Piece) {
        let (entry, lap) = self.place(at);
        entry.publish_one(lap, wr_id, piece);
    }

    /// The entries from a position to the end of its lap, and their lap bit.
    pub(crate) fn rest_of_lap(&self, at: u32) -> (&[RecvEntry], u64) {
        (self.0.rest_of_lap(at), self.lap(at))
    }

    #[inline(always)]
    fn lap(&self, at: u32) -> u64 {
        u64::from(self.0.is_even_lap(at)) * LAP
    }
}

impl RecvEntry {
    #[inline(always)]
    pub(crate) fn publish_one(&self, lap: u64, wr_id: u64, piece: Piece) {
        let Self([what, id, addr, rest], cell) = self;
        cell.write();
        id.store(wr_id, Relaxed);
        addr.store(piece.addr, Relaxed);
        rest.store(piece.len_key, Relaxed);
        let one = u64::from(piece.len()) << TOTAL_SHIFT | ONE_PIECE;
        what.store(one | lap, Release);
    }
}

impl Entries {
    /// Number and piece of the receive that an inline CQE has taken.
    #[inline(always)]
    pub(crate) fn taken(&self, at: u32) -> (u64, Piece) {
        let (RecvEntry([_, wr_id, addr, rest], cell), _) = self.place(at);
        cell.read();
        let (addr, len_key) = (addr.load(Relaxed), rest.load(Relaxed));
        (wr_id.load(Relaxed), Piece { addr, len_key })
    }
}

impl Waiting<'_> {
    /// The bytes that fit.
    pub(crate) fn total(self) -> u64 {
        self.what >> TOTAL_SHIFT
    }

    /// The number of its pieces.
    pub(crate) fn pieces(self) -> usize {
        (self.what >> PIECES_SHIFT & PIECES) as usize
    }

    #[inline(always)]
    pub(crate) fn wr_id(self) -> u64 {
        self.entry.1.read();
        self.entry.0[1].load(Relaxed)
    }

    /// The first piece.
    #[inline(always)]
    pub(crate) fn first(self) -> Sge {
        let RecvEntry([_, _, addr, rest], cell) = self.entry;
        cell.read();
        unpack(addr, rest)
    }

    /// Any piece, by its number.
    pub(crate) fn piece(self, number: usize) -> Sge {
        if number == 0 {
            return self.first();
        }
        let at = self.ring.place_of_piece(self.at, number);
        unpack(&self.ring.more[at], &self.ring.more[at + 1])
    }

    /// Takes it off the queue.
    pub(crate) fn consume(self) {
        self.ring.consume(self);
    }
}

impl RecvRing {
    /// A ring for `depth` receives of up to `max_sge` pieces: 32 bytes each, and 16 for each further piece.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(slabs: &SlabAlloc, depth: u32, max_sge: u32) -> Result<Self, Error> {
        let count = depth.max(1).next_power_of_two() as usize;
        let more = (max_sge as usize).saturating_sub(1) * 2 * count;
        Ok(Self {
            consumer: RecvConsumer {
                head: AtomicU32::new(0),
                epsn: AtomicU32::new(0),
                inline_end: AtomicU32::new(0),
                scattered: AtomicU32::new(0),
                recalls: AtomicU32::new(0),
            },
            entries: Entries(RingIndex::new(slabs.arc_slice(count, || {
                let words = std::array::from_fn(|_| AtomicU64::new(0));
                RecvEntry(words, Tracked::new())
            })?)),
            more: allocate(more, || AtomicU64::new(0))?,
            max_sge: max_sge.max(1) as usize,
            door: TouchWord::new(0),
            scattered: AtomicU32::new(0),
            rnr_timer: AtomicU8::new(0),
            producer: Producer {
                inline_credits: AtomicU64::new(0),
                poster: AtomicU32::new(0),
                sender: Mutex::new(None),
            },
        })
    }

    /// Keeps whose machine has found no receive, to be called.
    pub(crate) fn keep_sender(&self, sender: Weak<dyn QpEvents>) {
        let before = self.producer.sender.lock().replace(sender);
        drop(before);
    }

    /// A receive was posted that a sender's machine waits for. For the producer, outside of pins and locks.
    #[cold]
    pub(crate) fn call_sender(&self) {
        let sender = self.producer.sender.lock().clone();
        if let Some(sender) = sender.and_then(|sender| sender.upgrade()) {
            sender.kick();
        }
    }

    /// The receives that it has room for.
    pub(crate) fn room(&self) -> u32 {
        self.entries.0.len()
    }

    /// Whether the entry at that position, which is not before the consumer's and less than a lap behind it, is filled.
    fn is_filled(&self, at: u32) -> bool {
        let (entry, lap) = self.entries.place(at);
        (entry.0[0].load(Acquire) ^ lap) & LAP == 0
    }

    /// The oldest receive that was not consumed. For the consumer only.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<Waiting<'_>> {
        let at = self.consumer.head.load(Relaxed);
        let (entry, lap) = self.entries.place(at);
        let what = entry.0[0].load(Acquire);
        ((what ^ lap) & LAP == 0).then_some(Waiting {
            ring: self,
            entry,
            at,
            what,
        })
    }

    /// The oldest receive and its piece, if it has one piece. For the consumer only, with the ring's entries.
    #[inline(always)]
    pub(crate) fn next_piece<'r>(&'r self, entries: &'r Entries) -> Option<(Waiting<'r>, Piece)> {
        let at = self.consumer.head.load(Relaxed);
        let (entry, lap) = entries.place(at);
        let what = entry.0[0].load(Acquire);
        // Lap and count of pieces in one comparison.
        if (what ^ lap) & (PIECES << PIECES_SHIFT | LAP) != ONE_PIECE {
            return None;
        }
        let waiting = Waiting {
            ring: self,
            entry,
            at,
            what,
        };
        entry.1.read();
        let piece = Piece {
            addr: entry.0[2].load(Relaxed),
            len_key: entry.0[3].load(Relaxed),
        };
        Some((waiting, piece))
    }

    /// Takes the oldest receive, which is this one of this ring, off the queue.
    #[inline(always)]
    pub(crate) fn consume(&self, waiting: Waiting<'_>) {
        let head = &self.consumer.head;
        debug_assert_eq!(waiting.at, head.load(Relaxed), "at most one is in use");
        head.store(head.load(Relaxed).wrapping_add(1), Release);
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

    pub(crate) fn rnr_timer(&self) -> u8 {
        self.rnr_timer.load(Relaxed)
    }

    pub(crate) fn set_rnr_timer(&self, code: u8) {
        self.rnr_timer.store(code, Relaxed);
    }

    /// Where in `more` the second or a further piece of an entry is.
    fn place_of_piece(&self, at: u32, number: usize) -> usize {
        (self.entries.0.index(at) * (self.max_sge - 1) + number - 1) * 2
    }

    /// Writes an entry. For the producer only.
    pub(crate) fn publish_pieces(&self, at: u32, wr_id: u64, pieces: Pieces<'_>) {
        match pieces {
            Pieces::One(piece) => self.entries.publish_one(at, wr_id, piece),
            Pieces::List(sges) => self.publish(at, wr_id, sges),
        }
    }

    /// Writes an entry of any number of pieces. For the producer only.
    pub(crate) fn publish(&self, at: u32, wr_id: u64, sges: &[Sge]) {
        let (RecvEntry([what, id, addr, rest], cell), lap) = self.entries.place(at);
        cell.write();
        id.store(wr_id, Relaxed);
        let mut total = 0;
        for (number, sge) in sges.iter().enumerate() {
            total += u64::from(sge.len);
            if number == 0 {
                pack(addr, rest, *sge);
            } else {
                let place = self.place_of_piece(at, number);
                pack(&self.more[place], &self.more[place + 1], *sge);
            }
        }
        let pieces = sges.len() as u64;
        what.store(total << TOTAL_SHIFT | pieces << PIECES_SHIFT | lap, Release);
    }
}

/// The memory of a receive that is posted.
#[derive(Clone, Copy)]
pub(crate) enum Pieces<'a> {
    One(Piece),
    List(&'a [Sge]),
}
