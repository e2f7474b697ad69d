//! All slots of a device, and the free list over them.
//!
//! Slots live in chunks of doubling size that are never freed before the device, so an index is an
//! address for ever. The free list is a tagged stack of indices: taking and giving back needs no
//! lock, so a preempted thread cannot hold up `issue` (K2). The tag in the upper half of the head
//! moves on with every pop; without it a pop that was overtaken by pop, pop, push of the same index
//! would link a slot that is in use (loom shows it).

use super::Slot;
use crate::sync::OnceLock;
use crate::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Slots in the first chunk; each further chunk doubles it.
const FIRST: u32 = if cfg!(verbs_loom) { 4 } else { 64 };
/// Chunks at most: 64 * (2^16 - 1) slots.
const CHUNKS: usize = 16;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Slab<B> {
    chunks: [OnceLock<Box<[Slot<B>]>>; CHUNKS],
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
            chunks: std::array::from_fn(|_| OnceLock::new()),
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
        let wanted = self.promised.fetch_add(1, Relaxed) + 1 + self.limit.min(FIRST);
        while self.capacity() < wanted && self.grow() {}
    }

    /// The object's destroy has completed.
    pub(crate) fn forgive(&self) {
        self.promised.fetch_sub(1, Relaxed);
    }

    pub(crate) fn get(&self, index: u32) -> &Slot<B> {
        let chunk = ((index / FIRST) + 1).ilog2();
        let first = FIRST * ((1 << chunk) - 1);
        let slots = self.chunks[chunk as usize]
            .get()
            .expect("an index comes from a chunk that exists");
        &slots[(index - first) as usize]
    }

    /// Every slot, with its index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<B>)> {
        (0u32..).zip(self.chunks.iter().map_while(OnceLock::get).flatten())
    }

    fn capacity(&self) -> u32 {
        let made = self
            .chunks
            .iter()
            .take_while(|chunk| chunk.get().is_some())
            .count();
        FIRST * ((1 << made) - 1)
    }

    /// Adds a chunk. Two callers at once may add two; `false` only when there is no room for more.
    #[cold]
    fn grow(&self) -> bool {
        let Some(chunk) = self.chunks.iter().position(|chunk| chunk.get().is_none()) else {
            return false;
        };
        let (first, size) = (FIRST * ((1 << chunk) - 1), FIRST << chunk);
        let slots: Box<[Slot<B>]> = (0..size).map(|_| Slot::default()).collect();
        for (i, slot) in slots.iter().enumerate().take(size as usize - 1) {
            slot.next.store(first + i as u32 + 2, Relaxed);
        }
        if self.chunks[chunk].set(slots).is_ok() {
            self.push(first, first + size - 1);
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
            // Release: whoever pops these sees their links.
            match self.free.compare_exchange_weak(head, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn grows_by_chunks_and_never_hands_out_twice() {
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
        assert!(slab.capacity() >= 10_008);
    }
}
