//! The one function that copies registered memory.
//!
//! A peer may write the same bytes at the same time, so an ordinary copy would be a data race and therefore
//! undefined, `volatile` or not. Instead, every load and store of shared bytes is inside an `asm!` block: up to
//! 64 bytes by straight-line moves, more by calling the C library. Each block is in the tables of [`guard`], so a
//! fault in it ends the copy and not the process; words of atomic operations are accessed here for the same reason.

use std::ptr::NonNull;

pub(super) mod guard;

use guard::Unmapped;

/// Copies `len` bytes from `src` to `dst`; overlapping ranges are copied as `memmove` does.
///
/// Bytes that another thread changes during the copy arrive torn, each byte old or new; nothing else happens.
/// Never blocks, never allocates.
///
/// # Errors
/// [`Unmapped`], after [`guard::catch_faults`], if a byte cannot be accessed; others may have been copied.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `len` bytes. No reference (`&[u8]` or `&mut [u8]`) may
/// cover a byte that another thread or process writes during the call; a reference of the caller to private bytes
/// is fine.
// The asm blocks below are opaque to the compiler: it must assume that each does anything that a Rust program
// could do there, and "relaxed loads and stores of single bytes" is such a thing. Two copies that race are
// therefore like `AtomicU8` accesses that race: torn, never undefined. A block without `nomem` is also a compiler
// barrier for all exposed memory, so no copy moves across the pin that protects it. `memcpy` must be called
// inside `asm!` as well: the compiler knows the function by name and would assume that no other thread touches
// the bytes.
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
))]
#[inline(always)]
pub(super) unsafe fn copy(dst: NonNull<u8>, src: NonNull<u8>, len: usize) -> Result<(), Unmapped> {
    let (d, s) = (dst.as_ptr(), src.as_ptr());
    // SAFETY: the caller's promise covers the `len` bytes on both sides, and each arm accesses exactly those.
    unsafe {
        match len {
            8 => short::move_8(d, s),
            0..=SHORT => short::move_small(d, s, len),
            _ => machine::call_library(d, s, len),
        }
    }
}

/// Bytes that straight-line moves copy.
pub(super) const SHORT: usize = 64;

/// As [`copy`], for at most [`SHORT`] bytes; copies no more. It calls no function, so code around it keeps its
/// registers.
///
/// # Errors
/// As for [`copy`].
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_short(
    dst: NonNull<u8>,
    src: NonNull<u8>,
    len: usize,
) -> Result<(), Unmapped> {
    #[cfg(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, verbs_loom))
    ))]
    // SAFETY: the caller's promise covers the `len` bytes on both sides.
    unsafe {
        match len {
            8 => short::move_8(dst.as_ptr(), src.as_ptr()),
            0..=SHORT => short::move_small(dst.as_ptr(), src.as_ptr(), len),
            _ => Ok(()),
        }
    }
    #[cfg(not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, verbs_loom))
    )))]
    // SAFETY: the caller's promise covers the `len` bytes on both sides.
    unsafe {
        copy_by_byte(dst, src, len.min(SHORT));
        Ok(())
    }
}

/// As [`copy_short`], without a guard: a fault ends the process, so nothing has to be kept for the case that there is
/// one.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_short_unguarded(dst: NonNull<u8>, src: NonNull<u8>, len: usize) {
    #[cfg(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, verbs_loom))
    ))]
    // SAFETY: the caller's promise covers the `len` bytes on both sides.
    unsafe {
        match len {
            8 => short::move_8_plain(dst.as_ptr(), src.as_ptr()),
            0..=SHORT => short::move_small_plain(dst.as_ptr(), src.as_ptr(), len),
            _ => {}
        }
    }
    #[cfg(not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, verbs_loom))
    )))]
    // SAFETY: the caller's promise covers the `len` bytes on both sides.
    unsafe {
        copy_by_byte(dst, src, len.min(SHORT));
    }
}

/// Portable version: a loop of relaxed single-byte atomics.
///
/// # Safety
/// As for the other version.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
)))]
#[inline]
pub(super) unsafe fn copy(dst: NonNull<u8>, src: NonNull<u8>, len: usize) -> Result<(), Unmapped> {
    // SAFETY: the caller's promise is the same.
    unsafe { copy_by_byte(dst, src, len) }
    Ok(())
}

/// The portable loop; the tests compare the machine's version with it.
///
/// # Safety
/// As for [`copy`].
#[cfg(any(
    test,
    miri,
    verbs_loom,
    not(any(target_arch = "x86_64", target_arch = "aarch64"))
))]
unsafe fn copy_by_byte(dst: NonNull<u8>, src: NonNull<u8>, len: usize) {
    use crate::sync::plain::{AtomicU8, Ordering::Relaxed};

    let move_byte = |i: usize| {
        // SAFETY: `i < len`, and the caller vouches for `len` bytes on both sides; every access of
        // shared bytes in this build is atomic and one byte wide.
        unsafe {
            let from = AtomicU8::from_ptr(src.as_ptr().add(i));
            let to = AtomicU8::from_ptr(dst.as_ptr().add(i));
            to.store(from.load(Relaxed), Relaxed);
        }
    };
    // Overlapping ranges: start at the end that is not overwritten before it is read.
    if (dst.as_ptr() as usize).wrapping_sub(src.as_ptr() as usize) < len {
        (0..len).rev().for_each(move_byte);
    } else {
        (0..len).for_each(move_byte);
    }
}

// Each uses the macros of those before it.
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
))]
#[macro_use]
mod blocks;

#[cfg(all(target_arch = "x86_64", not(any(miri, verbs_loom))))]
#[macro_use]
#[path = "x86_64.rs"]
mod machine;

#[cfg(all(target_arch = "aarch64", not(any(miri, verbs_loom))))]
#[macro_use]
#[path = "aarch64.rs"]
mod machine;

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
))]
mod short;

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
))]
unsafe extern "C" {
    fn memcpy(dst: *mut u8, src: *const u8, len: usize) -> *mut u8;
    fn memmove(dst: *mut u8, src: *const u8, len: usize) -> *mut u8;
}

/// An aligned word of 8 bytes that peers and other threads may access at the same time.
///
/// Copies of the same bytes may race with it. All of both are in `asm!`, so the compiler sees no second access of
/// another size; the machine accesses aligned words atomically. After a fault, what is returned is no news.
pub(super) mod word {
    use std::ptr::NonNull;

    use super::guard::{self, Unmapped};
    #[cfg(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, verbs_loom))
    ))]
    use super::machine;
    #[cfg(not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, verbs_loom))
    )))]
    use super::portable as machine;

    /// # Safety
    /// Aligned, and valid for reads and writes without any references to it; so for all of them.
    #[inline(always)]
    pub(in super::super) unsafe fn fetch_add(
        word: NonNull<u64>,
        add: u64,
    ) -> Result<u64, Unmapped> {
        // SAFETY: the caller's promise.
        let old = unsafe { machine::fetch_add(word.as_ptr(), add) };
        guard::result().map(|()| old)
    }

    /// Returns what the word was.
    ///
    /// # Safety
    /// As for [`fetch_add`].
    #[inline(always)]
    pub(in super::super) unsafe fn compare_exchange(
        word: NonNull<u64>,
        old: u64,
        new: u64,
    ) -> Result<u64, Unmapped> {
        // SAFETY: the caller's promise.
        let found = unsafe { machine::compare_exchange(word.as_ptr(), old, new) };
        guard::result().map(|()| found)
    }

    /// # Safety
    /// As for [`fetch_add`].
    #[inline(always)]
    pub(in super::super) unsafe fn load(word: NonNull<u64>) -> Result<u64, Unmapped> {
        // SAFETY: the caller's promise.
        let found = unsafe { machine::load(word.as_ptr()) };
        guard::result().map(|()| found)
    }

    /// # Safety
    /// As for [`fetch_add`].
    #[inline(always)]
    pub(in super::super) unsafe fn store(word: NonNull<u64>, value: u64) -> Result<(), Unmapped> {
        // SAFETY: the caller's promise.
        unsafe { machine::store(word.as_ptr(), value) };
        guard::result()
    }
}

/// Words where copies are loops of the language.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
)))]
mod portable {
    use crate::sync::plain::{AtomicU64, Ordering};

    /// # Safety
    /// An aligned word, valid for reads and writes.
    pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> u64 {
        // SAFETY: the caller's promise; so in all of these.
        unsafe { AtomicU64::from_ptr(word) }.fetch_add(add, Ordering::AcqRel)
    }

    /// # Safety
    /// An aligned word, valid for reads and writes.
    pub(super) unsafe fn compare_exchange(word: *mut u64, old: u64, new: u64) -> u64 {
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found)
    }

    /// # Safety
    /// An aligned word, valid for reads and writes.
    pub(super) unsafe fn load(word: *mut u64) -> u64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
    }

    /// # Safety
    /// An aligned word, valid for reads and writes.
    pub(super) unsafe fn store(word: *mut u64, value: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    }
}

/// Whether two ranges of `len` bytes overlap.
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
))]
#[inline(always)]
fn overlap(dst: *mut u8, src: *const u8, len: usize) -> bool {
    (dst as usize).abs_diff(src as usize) < len
}

#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests {
    use super::*;

    const MARK: u8 = 0xa5;
    const ROOM: usize = 16;

    type Version = unsafe fn(NonNull<u8>, NonNull<u8>, usize);

    /// The machine's and the portable one.
    const VERSIONS: [Version; 2] = [
        |dst, src, len| {
            // SAFETY: the caller's promise is the same.
            let copied = unsafe { copy(dst, src, len) };
            assert_eq!(copied, Ok(()));
        },
        copy_by_byte,
    ];

    /// Runs one of the two versions within a buffer.
    fn within(f: Version, b: &mut [u8], to: usize, from: usize, len: usize) {
        assert!(to + len <= b.len() && from + len <= b.len());
        let base = NonNull::from(&mut *b).cast::<u8>();
        // SAFETY: both ranges are in `b`, which no other thread sees.
        unsafe { f(base.add(to), base.add(from), len) }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    /// Goal: every length up to more than a page is copied exactly, and not a byte more.
    #[test]
    fn copies_every_length_and_no_byte_more() {
        let longest = if cfg!(miri) { 200 } else { 5000 };
        let source = pattern(longest);
        for len in 0..=longest {
            for f in VERSIONS {
                let mut b = vec![MARK; ROOM + len + ROOM];
                b.extend_from_slice(&source[..len]);
                within(f, &mut b, ROOM, ROOM + len + ROOM, len);
                assert_eq!(b[ROOM..ROOM + len], source[..len], "length {len}");
                let rest = b[..ROOM].iter().chain(&b[ROOM + len..ROOM + len + ROOM]);
                assert!(rest.copied().all(|x| x == MARK), "overrun at length {len}");
            }
        }
    }

    /// Goal: ranges that overlap in either direction are copied as by `copy_within`.
    #[test]
    fn overlap_is_memmove() {
        for len in (0..140).chain([255, 256, 257, 1000, 4096]) {
            for shift in (0..=len.min(70)).chain([len]) {
                for (to, from) in [(shift, 0), (0, shift)] {
                    for f in VERSIONS {
                        let mut got = pattern(len + shift + 1);
                        let mut want = got.clone();
                        within(f, &mut got, to, from, len);
                        want.copy_within(from..from + len, to);
                        assert_eq!(got, want, "{len} bytes from {from} to {to}");
                    }
                }
            }
        }
    }
}
