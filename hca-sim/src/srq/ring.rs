//! The ring of a shared receive queue: one producer, who posts, and as many consumers as queue pairs
//! land messages.
//!
//! An entry is published by the lap bit of its first word, as in a receive queue of one queue pair.
//! Consumers agree by a compare-exchange of the head:
//!
//! ```text
//! look    read the head, then the entry's words
//! take    head --CAS--> head + 1; only now the entry belongs to the consumer
//! ```
//!
//! *The race that looks bad*: a consumer reads an entry while another takes it and the producer writes
//! the next one over it. What was read is a mixture then; but the head has moved, so taking it fails,
//! and the mixture is thrown away. The head counts 2^32 receives before it repeats, and nobody looks for
//! that long. Before the exchange nothing may be done with what was read but to check it.

use arrayvec::ArrayVec;
use verbs_core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use verbs_core::{Error, Sge};

use crate::message::MAX_SGE;
use crate::recv::{allocate, pack, unpack};

/// In an entry's first word, below the total length and the count of pieces.
const LAP: u64 = 1;
const PIECES_SHIFT: u32 = 1;
const PIECES: u64 = 0x7f;
const TOTAL_SHIFT: u32 = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Positions before this are taken.
    head: AtomicU32,
    /// Positions before this are posted or about to be. Written before the entry that it counts.
    tail: AtomicU32,
    /// First word, `wr_id`, then two words for each piece.
    words: Box<[AtomicU64]>,
    count: u32,
    max_sge: usize,
}

/// A receive as a consumer has read it: to be checked, and used only once it is taken.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    at: u32,
    pub(crate) wr_id: u64,
    /// Bytes that fit.
    pub(crate) total: u64,
    pub(crate) pieces: ArrayVec<Sge, MAX_SGE>,
}

impl Ring {
    /// A ring for `depth` receives of up to `max_sge` pieces: `16 + 16 * max_sge` bytes for each.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(depth: u32, max_sge: u32) -> Result<Self, Error> {
        let count = depth.max(1).next_power_of_two();
        let max_sge = max_sge as usize;
        let words = count as usize * (2 + 2 * max_sge);
        Ok(Self {
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            words: allocate(words, || AtomicU64::new(0))?,
            count,
            max_sge,
        })
    }

    /// The oldest receive, if there is one.
    pub(crate) fn look(&self) -> Option<Seen> {
        let at = self.head.load(SeqCst);
        let entry = self.entry(at);
        let what = entry[0].load(Acquire);
        if (what ^ self.lap(at)) & LAP != 0 {
            return None;
        }
        let pieces = (what >> PIECES_SHIFT & PIECES) as usize;
        let pairs = entry[2..].chunks_exact(2).take(pieces);
        Some(Seen {
            at,
            wr_id: entry[1].load(Relaxed),
            total: what >> TOTAL_SHIFT,
            pieces: pairs.map(|pair| unpack(&pair[0], &pair[1])).collect(),
        })
    }

    /// Whether nobody has taken that receive: then what was read of it is true.
    pub(crate) fn is_oldest(&self, seen: &Seen) -> bool {
        // The reads before must not move behind this one.
        verbs_core::sync::atomic::fence(Acquire);
        self.head.load(SeqCst) == seen.at
    }

    /// Takes the receive; `false` if somebody else was faster.
    pub(crate) fn take(&self, seen: &Seen) -> bool {
        let next = seen.at.wrapping_add(1);
        // Its release half keeps the reads of the entry before it; the producer acquires the head.
        self.head
            .compare_exchange(seen.at, next, SeqCst, Relaxed)
            .is_ok()
    }

    /// Receives that wait.
    pub(crate) fn waiting(&self) -> u32 {
        let head = self.head.load(SeqCst);
        // A producer that has counted and not yet written is a receive that is about to be there.
        let waiting = self.tail.load(SeqCst).wrapping_sub(head).cast_signed();
        waiting.max(0).cast_unsigned()
    }

    /// Entries in use, for the producer.
    pub(super) fn used(&self, tail: u32) -> u32 {
        tail.wrapping_sub(self.head.load(Acquire))
    }

    /// Writes an entry, for which there is room. For the producer only.
    pub(super) fn publish(&self, at: u32, wr_id: u64, sges: &[Sge]) {
        let entry = self.entry(at);
        self.tail.store(at.wrapping_add(1), Relaxed);
        entry[1].store(wr_id, Relaxed);
        let mut total = 0;
        for (pair, sge) in entry[2..].chunks_exact(2).zip(sges) {
            total += u64::from(sge.len);
            pack(&pair[0], &pair[1], *sge);
        }
        let pieces = sges.len() as u64;
        let what = total << TOTAL_SHIFT | pieces << PIECES_SHIFT | self.lap(at);
        entry[0].store(what, Release);
    }

    /// Pieces of one receive at most.
    pub(super) fn max_sge(&self) -> usize {
        self.max_sge
    }

    fn entry(&self, at: u32) -> &[AtomicU64] {
        let stride = 2 + 2 * self.max_sge;
        let start = (at & (self.count - 1)) as usize * stride;
        &self.words[start..start + stride]
    }

    /// The lap bit of that position: 1 on the first lap, so that a fresh ring is empty.
    fn lap(&self, at: u32) -> u64 {
        if at & self.count == 0 { LAP } else { 0 }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use verbs_core::LKey;

    use super::*;

    fn sge(len: u32) -> Sge {
        Sge {
            addr: u64::from(len),
            len,
            lkey: LKey::new(0x100),
        }
    }

    #[test]
    fn receives_come_in_order_with_all_their_pieces() {
        let ring = Ring::new(2, 3).unwrap();
        assert!(ring.look().is_none());
        for round in 0..5 {
            ring.publish(round * 2, 10, &[sge(1), sge(2), sge(3)]);
            ring.publish(round * 2 + 1, 11, &[]);
            assert_eq!(ring.waiting(), 2);
            let first = ring.look().unwrap();
            assert_eq!((first.wr_id, first.total), (10, 6));
            assert_eq!(first.pieces.as_slice(), [sge(1), sge(2), sge(3)]);
            assert!(ring.take(&first));
            assert!(!ring.take(&first), "it is taken once");
            let second = ring.look().unwrap();
            assert_eq!(
                (second.wr_id, second.total, second.pieces.len()),
                (11, 0, 0)
            );
            assert!(ring.is_oldest(&second) && !ring.is_oldest(&first));
            assert!(ring.take(&second));
            assert_eq!((ring.waiting(), ring.look().is_none()), (0, true));
        }
    }
}

/// Tried with a defect put in: with `take` a plain store, a receive is taken twice; with the entry
/// published relaxed, a consumer takes what was never posted. What loom does not show is a read of the
/// entry that moves behind the exchange: it executes reads in program order, so that the orderings of
/// `take` and `used` stand by argument.
#[cfg(all(test, verbs_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;
    use verbs_core::LKey;

    use super::*;

    fn sge(number: u64) -> Sge {
        Sge {
            addr: number,
            len: 1,
            lkey: LKey::new(0x100),
        }
    }

    /// Takes one receive if there is one, and says which.
    fn pop(ring: &Ring) -> Option<u64> {
        loop {
            let seen = ring.look()?;
            if ring.take(&seen) {
                assert_eq!(seen.pieces[0].addr, seen.wr_id, "no mixture");
                return Some(seen.wr_id);
            }
        }
    }

    #[test]
    fn loom_srq_pop_gives_each_receive_to_one() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let ring = Arc::new(Ring::new(2, 1).unwrap());
            ring.publish(0, 0, &[sge(0)]);
            let poppers = [0, 1].map(|_| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || pop(&ring))
            });
            ring.publish(1, 1, &[sge(1)]);
            // The third receive goes over the first, when that is free.
            let posted = ring.used(2) < 2;
            if posted {
                ring.publish(2, 2, &[sge(2)]);
            }
            let mut taken: Vec<u64> = poppers
                .into_iter()
                .filter_map(|popper| popper.join().unwrap())
                .collect();
            while let Some(number) = pop(&ring) {
                taken.push(number);
            }
            taken.sort_unstable();
            let expected: Vec<u64> = if posted { vec![0, 1, 2] } else { vec![0, 1] };
            assert_eq!(taken, expected);
        });
    }
}
