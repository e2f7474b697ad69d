//! Rings whose entries are found by a position that counts on and on.
//!
//! # How it is sound
//!
//! The number of entries is a power of two when a ring is made, and what holds them gives the same slice
//! for ever ([`Same`]). So the low bits of a position are the index of one of them.

use std::ops::Deref;

use super::slab_alloc::SlabArc;

/// Entries, as many as a power of two, by position.
///
/// ```
/// use verbs_core::ring_index::RingIndex;
///
/// let ring = RingIndex::new(vec![10, 11, 12, 13].into_boxed_slice());
/// assert_eq!((ring.at(6), ring.is_even_lap(6)), (&12, false));
/// ```
#[derive(Clone, Debug)]
pub struct RingIndex<B> {
    all: B,
    mask: u32,
}

/// Holders of entries.
///
/// # Safety
/// As long as one lives, `deref` gives the same slice; so does that of a clone.
pub unsafe trait Same: Deref {}

// SAFETY: a box has one slice, and `RingIndex` gives no exclusive access to the box.
unsafe impl<T> Same for Box<[T]> {}
// SAFETY: no thread has exclusive access to what is in common.
unsafe impl<T> Same for SlabArc<[T]> {}

impl<T, B: Same<Target = [T]>> RingIndex<B> {
    /// A ring of those entries.
    ///
    /// # Panics
    /// If they are not as many as a power of two, at most 2^31.
    pub fn new(all: B) -> Self {
        let count = u32::try_from(all.len()).unwrap_or(0);
        assert!(count.is_power_of_two(), "a ring of {} entries", all.len());
        let mask = count - 1;
        Self { all, mask }
    }

    /// The entry of a position.
    #[inline(always)]
    pub fn at(&self, position: u32) -> &T {
        // SAFETY: there are `mask + 1` entries, see the head of the file.
        unsafe { self.all.get_unchecked(self.index(position)) }
    }

    /// The entries from a position to the end of its lap.
    #[inline(always)]
    pub fn rest_of_lap(&self, position: u32) -> &[T] {
        self.all.get(self.index(position)..).unwrap_or_default()
    }

    /// Which entry a position has.
    #[inline(always)]
    pub const fn index(&self, position: u32) -> usize {
        (position & self.mask) as usize
    }

    /// Whether a position is on the first lap, the third, and so on.
    #[inline(always)]
    pub const fn is_even_lap(&self, position: u32) -> bool {
        position & (self.mask + 1) == 0
    }

    /// How many entries there are; never none.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub const fn len(&self) -> u32 {
        self.mask + 1
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;
    use crate::slab_alloc::SlabAlloc;

    #[test]
    fn positions_go_round_also_where_they_wrap() {
        let ring = RingIndex::new(Box::from_iter(0..8_u32));
        for turn in 0..40_u32 {
            let at = turn.wrapping_sub(20);
            assert_eq!(*ring.at(at), at % 8);
            assert_eq!(ring.is_even_lap(at), at / 8 % 2 == 0);
            assert_eq!(ring.index(at), (at % 8) as usize);
        }
        assert_eq!(ring.len(), 8);
        assert_eq!(ring.rest_of_lap(13), [5, 6, 7]);
        assert_eq!(ring.rest_of_lap(u32::MAX), [7]);
    }

    #[test]
    fn one_entry_is_a_ring_too() {
        let slabs = SlabAlloc::default();
        let ring = RingIndex::new(slabs.arc_slice(1, || 7).expect("memory"));
        assert_eq!((ring.at(0), ring.at(u32::MAX)), (&7, &7));
        assert!(ring.is_even_lap(0) && !ring.is_even_lap(1));
        assert_eq!(ring.clone().at(3), &7);
    }

    #[test]
    #[should_panic = "a ring of 6 entries"]
    fn other_numbers_are_refused() {
        RingIndex::new(Box::from_iter(0..6));
    }

    #[test]
    #[should_panic = "a ring of 0 entries"]
    fn so_is_none() {
        RingIndex::new(Box::<[u8]>::default());
    }
}
