//! Words of registered memory, for atomic operations.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::copy::guard::Unmapped;
use super::copy::word;
use super::pin::Pin;

/// 8 aligned bytes of a registered region, as a number in this machine's byte order; accessible until the pin is left.
///
/// All operations fail with [`Unmapped`] if memory of a program's own is gone
/// ([`catch_faults`](super::catch_faults)).
#[derive(Clone, Copy)]
pub struct Word<'p> {
    at: NonNull<u64>,
    pin: PhantomData<&'p Pin>,
}

impl Word<'_> {
    /// `None` if the bytes are not aligned.
    ///
    /// # Safety
    /// 8 bytes from `at` are valid for reads and writes for the word's lifetime, and no reference covers them.
    #[inline(always)]
    pub(super) unsafe fn new(at: NonNull<u8>) -> Option<Self> {
        let at = at.cast::<u64>();
        let pin = PhantomData;
        at.is_aligned().then_some(Self { at, pin })
    }

    /// Atomically adds, and returns the old value.
    ///
    /// # Errors
    /// [`Unmapped`].
    #[inline]
    pub fn fetch_add(self, add: u64) -> Result<u64, Unmapped> {
        // SAFETY: `new` was promised a valid word, and has checked that it is aligned; so below.
        unsafe { word::fetch_add(self.at, add) }
    }

    /// Atomically replaces the word by `swap` if it equals `compare`, and returns the old value.
    ///
    /// # Errors
    /// [`Unmapped`].
    #[inline]
    pub fn compare_swap(self, compare: u64, swap: u64) -> Result<u64, Unmapped> {
        // SAFETY: as in `fetch_add`.
        unsafe { word::compare_exchange(self.at, compare, swap) }
    }

    /// As [`compare_swap`](Self::compare_swap), but compares and replaces only the bits in the masks.
    ///
    /// # Errors
    /// [`Unmapped`].
    pub fn masked_compare_swap(
        self,
        (compare, compare_mask): (u64, u64),
        (swap, swap_mask): (u64, u64),
    ) -> Result<u64, Unmapped> {
        self.update(|old| {
            let equal = (old ^ compare) & compare_mask == 0;
            equal.then_some(old & !swap_mask | swap & swap_mask)
        })
    }

    /// As [`fetch_add`](Self::fetch_add), for several numbers in one word: a bit of `boundary` marks the highest
    /// bit of one, and no carry leaves it.
    ///
    /// # Errors
    /// [`Unmapped`].
    pub fn masked_fetch_add(self, add: u64, boundary: u64) -> Result<u64, Unmapped> {
        // Without their highest bits no carry can leave the fields; the highest bits are added without carry.
        self.update(|old| {
            let low = (old & !boundary).wrapping_add(add & !boundary);
            Some(low ^ (old ^ add) & boundary)
        })
    }

    /// Atomically stores 8 bytes, as they are.
    ///
    /// # Errors
    /// [`Unmapped`].
    pub fn store(self, bytes: [u8; 8]) -> Result<(), Unmapped> {
        // SAFETY: as in `fetch_add`.
        unsafe { word::store(self.at, u64::from_ne_bytes(bytes)) }
    }

    /// Atomically replaces the word by what `change` makes of it, if that is anything; returns the old value.
    fn update(self, change: impl Fn(u64) -> Option<u64>) -> Result<u64, Unmapped> {
        // SAFETY: as in `fetch_add`.
        let mut old = unsafe { word::load(self.at) }?;
        loop {
            let Some(new) = change(old) else {
                return Ok(old);
            };
            match self.compare_swap(old, new)? {
                found if found == old => return Ok(old),
                found => old = found,
            }
        }
    }
}

impl fmt::Debug for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({:p})", self.at)
    }
}
