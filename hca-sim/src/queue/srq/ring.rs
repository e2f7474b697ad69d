//! The ring of a shared receive queue: one producer, which posts, and as many consumers as queue pairs place messages.
//!
//! An entry is published by the lap bit of its first word, as in a receive queue of one queue pair.
//! Consumers agree by a compare-exchange of the head:
//!
//! ```text
//! look    read the head, then the entry's words
//! take    head --CAS--> head + 1; only now the entry belongs to the consumer
//! ```
//! *The race that looks bad*: a consumer reads an entry while another takes it and the producer writes the next one
//! over it. What was read is a mixture then; but the head has moved, so taking it fails, and the mixture is thrown
//! away. The head counts 2^32 receives before it repeats, and no look takes that long. Before the exchange, what was
//! read may only be checked, and not used otherwise.
//!
//! # Resize
//!
//! Entries are in *segments*, each for the positions from its start to that of the next one. A resize only offers a new
//! segment; the producer begins with it at its next post, and consumers reach it when they have taken what is before.
//! So no thread is stopped, and head and tail continue to count. A ring that was never resized has one segment and
//! looks for no other; a thread that takes from a ring that was resized finds the segment under a lock.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Error, Sge};

use crate::queue::base::limits::MAX_SGE;
use crate::queue::base::memory::{allocate, pack, unpack};

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
    /// The segment that the ring began with.
    first: Arc<RingSegment>,
    /// There is a segment other than the first.
    resized: AtomicBool,
    /// If so: the segments in which receives may wait, oldest first.
    segments: Mutex<VecDeque<Arc<RingSegment>>>,
    /// A segment that the producer begins with at its next post.
    offer: Mutex<Option<ResizeOffer>>,
    offered: AtomicBool,
    max_sge: usize,
}

/// A resize's offer to the producer.
#[derive(Debug)]
pub(crate) struct ResizeOffer {
    segment: Arc<RingSegment>,
    pub(super) depth: u32,
}

/// Entries for consecutive positions.
#[derive(Debug)]
pub(super) struct RingSegment {
    /// First word, `wr_id`, then two words for each piece.
    words: Box<[AtomicU64]>,
    count: u32,
    stride: usize,
    /// The first position; written before any other thread knows the segment.
    start: AtomicU32,
}

impl RingSegment {
    fn new(depth: u32, max_sge: usize) -> Result<Self, Error> {
        let (count, stride) = (depth.max(1).next_power_of_two(), 2 + 2 * max_sge);
        Ok(Self {
            words: allocate(count as usize * stride, || AtomicU64::new(0))?,
            count,
            stride,
            start: AtomicU32::new(0),
        })
    }

    /// Whether that position is in this segment or behind it, and not before it.
    fn begins_before(&self, at: u32) -> bool {
        at.wrapping_sub(self.start.load(Relaxed)).cast_signed() >= 0
    }

    /// The entry of that position and its lap bit: 1 on the first lap, so that fresh entries are empty.
    fn place(&self, at: u32) -> (&[AtomicU64], u64) {
        let number = at.wrapping_sub(self.start.load(Relaxed));
        let from = (number & (self.count - 1)) as usize * self.stride;
        let lap = if number & self.count == 0 { LAP } else { 0 };
        (&self.words[from..from + self.stride], lap)
    }
}

/// A receive as a consumer has read it: to be checked, and used only once it is taken.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    at: u32,
    pub(crate) wr_id: u64,
    /// The bytes that fit.
    pub(crate) total: u64,
    pub(crate) pieces: ArrayVec<Sge, MAX_SGE>,
}

impl Ring {
    /// A ring for `depth` receives of up to `max_sge` pieces: `16 + 16 * max_sge` bytes for each.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(depth: u32, max_sge: u32) -> Result<Self, Error> {
        let max_sge = max_sge as usize;
        Ok(Self {
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            first: Arc::new(RingSegment::new(depth, max_sge)?),
            resized: AtomicBool::new(false),
            segments: Mutex::new(VecDeque::new()),
            offer: Mutex::new(None),
            offered: AtomicBool::new(false),
            max_sge,
        })
    }

    /// Offers the producer room for `depth` receives instead of what it has. An earlier offer that it
    /// has not seen is withdrawn.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn offer(&self, depth: u32) -> Result<(), Error> {
        let segment = Arc::new(RingSegment::new(depth, self.max_sge)?);
        *self.offer.lock() = Some(ResizeOffer { segment, depth });
        self.offered.store(true, Release);
        Ok(())
    }

    /// Whether the producer has to look at an offer.
    pub(super) fn has_offer(&self) -> bool {
        self.offered.load(Acquire)
    }

    /// Begins with the segment that is offered, at that position. Returns the depth from now on. For the producer only.
    pub(super) fn accept(&self, segment: &mut Arc<RingSegment>, tail: u32) -> Option<u32> {
        let offer = {
            let mut offer = self.offer.lock();
            self.offered.store(false, Relaxed);
            offer.take()
        }?;
        offer.segment.start.store(tail, Relaxed);
        let mut segments = self.segments.lock();
        if segments.is_empty() {
            segments.push_back(Arc::clone(&self.first));
        }
        segments.push_back(Arc::clone(&offer.segment));
        self.resized.store(true, Release);
        drop(segments);
        *segment = offer.segment;
        Some(offer.depth)
    }

    /// The segment that the ring began with, for the producer.
    pub(super) fn first(&self) -> &Arc<RingSegment> {
        &self.first
    }

    /// Looks into the segment of that position, which was the head a moment ago.
    fn with_segment<R>(&self, at: u32, look: impl FnOnce(&RingSegment) -> R) -> R {
        // After the head: the thread that moved it into another segment knew that there is one.
        if !self.resized.load(Acquire) {
            return look(&self.first);
        }
        let segment = {
            let mut segments = self.segments.lock();
            // What is before the head is no longer needed, and the head does not move back.
            while segments.get(1).is_some_and(|next| next.begins_before(at)) {
                segments.pop_front();
            }
            segments.front().map(Arc::clone)
        };
        look(segment.as_deref().unwrap_or(&self.first))
    }

    /// The oldest receive, if there is one.
    pub(crate) fn look(&self) -> Option<Seen> {
        let at = self.head.load(SeqCst);
        self.with_segment(at, |segment| {
            let (entry, lap) = segment.place(at);
            let what = entry[0].load(Acquire);
            if (what ^ lap) & LAP != 0 {
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
        })
    }

    /// Whether that receive was not taken: then what was read of it is valid.
    pub(crate) fn is_oldest(&self, seen: &Seen) -> bool {
        // The reads before must not move behind this one. No model sees the fence: to loom, loads that are SeqCst return
        // the newest value.
        verbs_core::sync::atomic::fence(Acquire);
        self.head.load(SeqCst) == seen.at
    }

    /// Takes the receive; `false` if another thread has taken it first.
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
        // If a producer has counted a receive and not yet written it, the receive is about to appear.
        let waiting = self.tail.load(SeqCst).wrapping_sub(head).cast_signed();
        waiting.max(0).cast_unsigned()
    }

    /// Entries in use, for the producer.
    pub(super) fn used(&self, tail: u32) -> u32 {
        tail.wrapping_sub(self.head.load(Acquire))
    }

    /// Writes an entry, for which there is room in the producer's segment. For the producer only.
    pub(super) fn publish(&self, segment: &RingSegment, at: u32, wr_id: u64, sges: &[Sge]) {
        let (entry, lap) = segment.place(at);
        self.tail.store(at.wrapping_add(1), Relaxed);
        entry[1].store(wr_id, Relaxed);
        let mut total = 0;
        for (pair, sge) in entry[2..].chunks_exact(2).zip(sges) {
            total += u64::from(sge.len);
            pack(&pair[0], &pair[1], *sge);
        }
        let pieces = sges.len() as u64;
        let what = total << TOTAL_SHIFT | pieces << PIECES_SHIFT | lap;
        entry[0].store(what, Release);
    }

    /// The most pieces of one receive.
    pub(super) fn max_sge(&self) -> usize {
        self.max_sge
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
            ring.publish(&ring.first, round * 2, 10, &[sge(1), sge(2), sge(3)]);
            ring.publish(&ring.first, round * 2 + 1, 11, &[]);
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

#[cfg(all(test, not(verbs_loom)))]
mod resize_tests {
    use super::*;

    /// Positions continue over several segments, and old segments are dropped when their receives have been taken.
    #[test]
    fn receives_come_in_order_over_segments() {
        let ring = Ring::new(2, 0).unwrap();
        let mut segment = Arc::clone(ring.first());
        let (mut tail, mut taken) = (0, 0);
        let take = |taken: &mut u64| {
            let seen = ring.look().unwrap();
            assert_eq!(seen.wr_id, *taken);
            assert!(ring.take(&seen));
            *taken += 1;
        };
        for depth in [4, 1, 16, 2, 2] {
            ring.offer(99).unwrap();
            ring.offer(depth).unwrap();
            assert_eq!(ring.accept(&mut segment, tail), Some(depth));
            assert_eq!(
                ring.accept(&mut segment, tail),
                None,
                "the first was withdrawn"
            );
            for _ in 0..3 * depth {
                while ring.used(tail) >= depth.min(2) {
                    take(&mut taken);
                }
                ring.publish(&segment, tail, u64::from(tail), &[]);
                tail += 1;
            }
        }
        while taken < u64::from(tail) {
            take(&mut taken);
        }
        assert!(ring.look().is_none());
        assert_eq!(ring.segments.lock().len(), 1, "what is taken is given back");
    }
}

/// Tried with a defect put in: with `take` a plain store, a receive is taken twice; with the entry published relaxed, a
/// consumer takes what was never posted. Loom does not show a read of the entry that moves behind the exchange: it
/// executes reads in program order, so the orderings of `take` and `used` rest on the argument above.
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

    /// Takes one receive if there is one, and returns which.
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
            ring.publish(&ring.first, 0, 0, &[sge(0)]);
            let poppers = [0, 1].map(|_| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || pop(&ring))
            });
            ring.publish(&ring.first, 1, 1, &[sge(1)]);
            // The third receive is written over the first, when that is free.
            let posted = ring.used(2) < 2;
            if posted {
                ring.publish(&ring.first, 2, 2, &[sge(2)]);
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

    /// The producer begins another segment while a consumer takes: nothing is lost or taken twice.
    #[test]
    fn loom_srq_resize_keeps_what_is_posted() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let ring = Arc::new(Ring::new(1, 1).unwrap());
            let mut segment = verbs_core::sync::Arc::clone(ring.first());
            ring.publish(&segment, 0, 0, &[sge(0)]);
            ring.offer(2).unwrap();
            let popper = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || [pop(&ring), pop(&ring)])
            };
            assert_eq!(ring.accept(&mut segment, 1), Some(2));
            ring.publish(&segment, 1, 1, &[sge(1)]);
            let mut taken: Vec<u64> = pop(&ring).into_iter().collect();
            taken.extend(popper.join().unwrap().into_iter().flatten());
            while let Some(number) = pop(&ring) {
                taken.push(number);
            }
            taken.sort_unstable();
            assert_eq!(taken, [0, 1]);
        });
    }
}
