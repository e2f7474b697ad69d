//! Bytes for which a key, a right and a range have been checked.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::copy::guard::Unmapped;
use super::copy::{SHORT, copy, copy_short, copy_short_unguarded};
use super::pin::Pin;
use super::word::Word;

/// Checked bytes of a registered region, accessible until the pin is left.
///
/// [`MrTable::check`](super::MrTable::check) creates one, under a [`Pin`]; it cannot outlive the pin or
/// change thread, and the region's memory is not freed before the pin is left. Other threads may access the same
/// bytes at the same time: reads may be torn, byte by byte. [`Memory::window`](super::Memory::window) creates one of memory
/// whose owner needs no key.
///
/// A window does not know the right for which it was checked; a caller that writes through it must have asked for
/// a right to write.
#[derive(Clone, Copy)]
pub struct Window<'p> {
    start: NonNull<u8>,
    len: u32,
    pin: PhantomData<&'p Pin>,
}

impl<'p> Window<'p> {
    /// # Safety
    /// `len` bytes from `start` are valid for `'p`, for writing too if the window will be written
    /// through, and no reference covers them.
    #[inline(always)]
    pub(super) const unsafe fn new(start: NonNull<u8>, len: u32) -> Self {
        Self {
            start,
            len,
            pin: PhantomData,
        }
    }

    /// A window of no bytes: the result of an access of length zero, whatever its key.
    #[inline(always)]
    pub const fn empty() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            pin: PhantomData,
        }
    }

    /// Bytes.
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.len
    }

    /// Whether there are no bytes.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies `src` into this window: as many bytes as the shorter of both has; returns their number. Overlap is
    /// legal.
    ///
    /// # Errors
    /// [`Unmapped`], if memory of a program's own is gone ([`catch_faults`](super::catch_faults)); some bytes may
    /// have been copied.
    #[inline(always)]
    pub fn copy_from(self, src: Window<'_>) -> Result<u32, Unmapped> {
        let n = self.len.min(src.len);
        // SAFETY: both windows are alive, so both ranges are valid, and `n` is within both.
        unsafe { copy(self.start, src.start, n as usize) }.map(|()| n)
    }

    /// Bytes of a short copy, at most.
    pub const SHORT: u32 = SHORT as u32;

    /// As [`copy_from`](Self::copy_from), for at most [`SHORT`](Self::SHORT) bytes; copies no more. Calls no
    /// function.
    ///
    /// # Errors
    /// As for [`copy_from`](Self::copy_from).
    #[inline(always)]
    pub fn copy_short_from(self, src: Window<'_>) -> Result<(), Unmapped> {
        let n = self.len.min(src.len);
        // SAFETY: both windows are alive, so both ranges are valid, and `n` is within both.
        unsafe { copy_short(self.start, src.start, n as usize) }
    }

    /// As [`copy_short_from`](Self::copy_short_from), for memory that stays: without a guard, so that nothing has to be
    /// kept for the case that some of it is gone, which ends the process.
    #[inline(always)]
    pub fn copy_short_unguarded(self, src: Window<'_>) {
        let n = self.len.min(src.len);
        // SAFETY: both windows are alive, so both ranges are valid, and `n` is within both.
        unsafe { copy_short_unguarded(self.start, src.start, n as usize) };
    }

    /// As [`write_short_from`](Self::write_short_from), for memory that stays: without a guard.
    #[inline(always)]
    pub fn write_short_unguarded(self, src: &[u8]) {
        let n = (self.len as usize).min(src.len());
        // SAFETY: `n` is within both; no thread writes `src` while it is borrowed.
        unsafe { copy_short_unguarded(self.start, NonNull::from(src).cast(), n) };
    }

    /// As [`write_from`](Self::write_from), for at most [`SHORT`](Self::SHORT) bytes; copies no more. Calls no
    /// function.
    ///
    /// # Errors
    /// As for [`copy_from`](Self::copy_from).
    #[inline(always)]
    pub fn write_short_from(self, src: &[u8]) -> Result<(), Unmapped> {
        let n = (self.len as usize).min(src.len());
        // SAFETY: `n` is within both; no thread writes `src` while it is borrowed.
        unsafe { copy_short(self.start, NonNull::from(src).cast(), n) }
    }

    /// As [`read_into`](Self::read_into), for at most [`SHORT`](Self::SHORT) bytes; copies no more. Calls no
    /// function.
    ///
    /// # Errors
    /// As for [`copy_from`](Self::copy_from).
    #[inline(always)]
    pub fn read_short_into(self, dst: &mut [u8]) -> Result<(), Unmapped> {
        let n = (self.len as usize).min(dst.len());
        // SAFETY: `n` is within both; `dst` is the caller's alone.
        unsafe { copy_short(NonNull::from(&mut *dst).cast(), self.start, n) }
    }

    /// Copies private bytes into this window: as many as fit; returns their number.
    ///
    /// # Errors
    /// As for [`copy_from`](Self::copy_from).
    #[inline(always)]
    pub fn write_from(self, src: &[u8]) -> Result<u32, Unmapped> {
        let n = (self.len as usize).min(src.len());
        // SAFETY: `n` is within both; no thread writes `src` while it is borrowed.
        unsafe { copy(self.start, NonNull::from(src).cast(), n) }.map(|()| n as u32)
    }

    /// Copies this window to private bytes: as many as fit; returns their number.
    ///
    /// # Errors
    /// As for [`copy_from`](Self::copy_from).
    #[inline(always)]
    pub fn read_into(self, dst: &mut [u8]) -> Result<u32, Unmapped> {
        let n = (self.len as usize).min(dst.len());
        // SAFETY: `n` is within both; `dst` is the caller's alone.
        unsafe { copy(NonNull::from(&mut *dst).cast(), self.start, n) }.map(|()| n as u32)
    }

    /// Whether one of its bytes is at that address.
    #[cold]
    pub fn covers(self, addr: usize) -> bool {
        addr.wrapping_sub(self.start.addr().get()) < self.len as usize
    }

    /// The part of `len` bytes from `offset` on; `None` if it is not within this window.
    #[inline]
    pub fn part(self, offset: u32, len: u32) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset + len <= self.len`, so the part is as valid as the whole.
        Some(unsafe { Self::new(self.start.add(offset as usize), len) })
    }

    /// The window's first 8 bytes as a word for atomic operations. `None` unless there are 8 aligned bytes.
    #[inline]
    pub fn word(self) -> Option<Word<'p>> {
        if self.len < 8 {
            return None;
        }
        // SAFETY: the window has 8 bytes and they are valid for `'p`; no reference covers them.
        unsafe { Word::new(self.start) }
    }
}

impl fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:p}, {} bytes)", self.start, self.len)
    }
}
