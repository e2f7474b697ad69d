//! All slots of a device, and the free list over them.
//!
//! Slots live in *pieces* of one size that are never freed before the device, so an index is an address
//! for ever; the tables of pieces double. A slot is large, so pieces that double would leave half of
//! them spare. The free list is a tagged stack of indices: taking and giving back needs no
//! lock, so a preempted thread cannot hold up `issue` (K2). The tag in the upper half of the head
//! moves on with every pop; without it a pop that was overtaken by pop, pop, push of the same index
//! would link a slot that is in use (loom shows it).

use super::Slot;
use crate::sync::OnceLock;
use crate::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Slots in a piece.
const PIECE: u32 = if cfg!(verbs_loom) { 4 } else { 64 };
/// Tables at most: 64 * (2^16 - 1) slots.
const TABLES: usize = 16;

/// Slots side by side, when they are needed.
type Piece<B> = OnceLock<Box<[Slot<B>]>>;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Slab<B> {
    /// One piece in the first, and twice as many in each as in the one before.
    tables: [OnceLock<Box<[Piece<B>]>>; TABLES],
    /// How many pieces there are.
    pieces: AtomicU32,
    /// Tag in the upper half, index + 1 of the first free slot in the lower.
    free: AtomicU64,
    /// Ordinary requests that may be pending.
    limit: u32,
    ordinary: AtomicU32,
    /// Slots promised to the destroys of living objects (K7).
    promised: AtomicU32,
}

impl<B> Slab<B> {
    pub(crate) fn new(limit: u32) -> Self {
        let slab = Self {
            tables: std::array::from_fn(|_| OnceLock::new()),
            pieces: AtomicU32::new(0),
            free: AtomicU64::new(0),
            limit,
            ordinary: AtomicU32::new(0),
            promised: AtomicU32::new(0),
        };
        slab.grow();
        slab
    }

    /// How many ordinary requests may be pending.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes a slot. Ordinary requests are limited, the others were promised theirs.
    pub(crate) fn acquire(&self, ordinary: bool) -> Option<u32> {
        if ordinary && self.ordinary.fetch_add(1, Relaxed) >= self.limit {
            self.ordinary.fetch_sub(1, Relaxed);
            return None;
        }
        loop {
            if let Some(index) = self.pop() {
                return Some(index);
            }
            if !self.grow() {
                if ordinary {
                    self.ordinary.fetch_sub(1, Relaxed);
                }
                return None;
            }
        }
    }

    /// Gives a vacated slot back.
    pub(crate) fn release(&self, index: u32, ordinary: bool) {
        self.push(index, index);
        if ordinary {
            self.ordinary.fetch_sub(1, Relaxed);
        }
    }

    /// Promises a slot to the destroy of an object that is being created (K7).
    pub(crate) fn promise(&self) {
        let wanted = self.promised.fetch_add(1, Relaxed) + 1 + self.limit.min(PIECE);
        while self.capacity() < wanted && self.grow() {}
    }

    /// The object's destroy has completed.
    pub(crate) fn forgive(&self) {
        self.promised.fetch_sub(1, Relaxed);
    }

    pub(crate) fn get(&self, index: u32) -> &Slot<B> {
        let slots = self
            .piece(index / PIECE)
            .and_then(OnceLock::get)
            .expect("an index comes from a piece that exists");
        &slots[(index % PIECE) as usize]
    }

    /// Every slot, with its index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<B>)> {
        let pieces = (0..).map_while(|number| self.piece(number).and_then(OnceLock::get));
        (0u32..).zip(pieces.flatten())
    }

    fn capacity(&self) -> u32 {
        self.pieces.load(Acquire) * PIECE
    }

    /// The place of a piece, if its table exists.
    fn piece(&self, number: u32) -> Option<&Piece<B>> {
        let (table, place) = place_of(number);
        self.tables.get(table)?.get()?.get(place)
    }

    /// Adds a piece. Two callers at once may add two; `false` only when there is no room for more.
    #[cold]
    fn grow(&self) -> bool {
        let number = self.pieces.load(Acquire);
        let (table, place) = place_of(number);
        let Some(lock) = self.tables.get(table) else {
            return false;
        };
        if lock.get().is_none() {
            let _ = lock.set((0..1 << table).map(|_| Piece::new()).collect());
        }
        let Some(pieces) = lock.get() else {
            return false;
        };
        let first = number * PIECE;
        let slots: Box<[Slot<B>]> = (0..PIECE).map(|_| Slot::default()).collect();
        for (i, slot) in slots.iter().enumerate().take(PIECE as usize - 1) {
            slot.next.store(first + i as u32 + 2, Relaxed);
        }
        let added = pieces[place].set(slots).is_ok();
        // The second thread counts it too, so that it does not wait for the first.
        let _ = self
            .pieces
            .compare_exchange(number, number + 1, AcqRel, Relaxed);
        if added {
            self.push(first, first + PIECE - 1);
        }
        true
    }

    pub(super) fn pop(&self) -> Option<u32> {
        let mut head = self.free.load(Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let next = self.get(index).next.load(Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            match self
                .free
                .compare_exchange_weak(head, tag | u64::from(next), AcqRel, Acquire)
            {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    /// Puts the chain from `first` to `last` on top.
    pub(super) fn push(&self, first: u32, last: u32) {
        let mut head = self.free.load(Relaxed);
        loop {
            self.get(last).next.store(head as u32, Relaxed);
            let new = head >> 32 << 32 | u64::from(first + 1);
            // Release: the thread that pops these sees their links.
            match self.free.compare_exchange_weak(head, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// In which table a piece is, and where in it.
const fn place_of(piece: u32) -> (usize, usize) {
    let table = (piece + 1).ilog2();
    (table as usize, (piece + 1 - (1 << table)) as usize)
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn grows_by_pieces_and_never_hands_out_twice() {
        let slab = Slab::<()>::new(1000);
        let mut seen: Vec<u32> = (0..1000)
            .map(|_| slab.acquire(true).expect("below the limit"))
            .collect();
        assert_eq!(slab.acquire(true), None, "the limit holds");
        assert!(slab.acquire(false).is_some(), "a destroy is exempt");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
        slab.release(seen[500], true);
        assert_eq!(slab.acquire(true), Some(seen[500]));
    }

    #[test]
    fn k7_promised_slots_exist_before_they_are_needed() {
        let slab = Slab::<()>::new(8);
        for _ in 0..10_000 {
            slab.promise();
        }
        assert!((10_008..10_008 + 2 * PIECE).contains(&slab.capacity()));
        assert_eq!(slab.iter().count(), slab.capacity() as usize);
    }
}
