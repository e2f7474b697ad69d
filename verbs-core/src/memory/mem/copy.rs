//! The one function that copies registered memory.
//!
//! A peer may write the same bytes at the same time, so an ordinary copy would be a data race and therefore
//! undefined, `volatile` or not. Instead, every load and store of shared bytes is inside an `asm!` block: up to
//! 64 bytes by straight-line moves, more by calling the C library.

use std::ptr::NonNull;

/// Copies `len` bytes from `src` to `dst`; overlapping ranges are copied as `memmove` does.
///
/// Bytes that another thread changes during the copy arrive torn, each byte old or new; nothing else happens.
/// Never blocks, never allocates.
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
pub(super) unsafe fn copy(dst: NonNull<u8>, src: NonNull<u8>, len: usize) {
    let (d, s) = (dst.as_ptr(), src.as_ptr());
    // SAFETY: the caller's promise covers the `len` bytes on both sides, and each arm accesses exactly those.
    unsafe {
        match len {
            8 => machine::move_8(d, s),
            0..=SHORT => machine::move_small(d, s, len),
            _ => machine::call_library(d, s, len),
        }
    }
}

/// Bytes that straight-line moves copy.
pub(super) const SHORT: usize = 64;

/// As [`copy`], for at most [`SHORT`] bytes; copies no more. It calls no function, so code around it keeps its
/// registers.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_short(dst: NonNull<u8>, src: NonNull<u8>, len: usize) {
    #[cfg(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, verbs_loom))
    ))]
    // SAFETY: the caller's promise covers the `len` bytes on both sides.
    unsafe {
        match len {
            8 => machine::move_8(dst.as_ptr(), src.as_ptr()),
            0..=SHORT => machine::move_small(dst.as_ptr(), src.as_ptr(), len),
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
pub(super) unsafe fn copy(dst: NonNull<u8>, src: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { copy_by_byte(dst, src, len) }
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

#[cfg(all(target_arch = "x86_64", not(any(miri, verbs_loom))))]
mod machine {
    use std::arch::asm;

    /// # Safety
    /// 8 bytes valid on both sides.
    #[inline(always)]
    pub(super) unsafe fn move_8(d: *mut u8, s: *const u8) {
        // SAFETY: one 8-byte load and one 8-byte store, which the caller vouches for.
        unsafe {
            asm!("mov {t}, [{s}]", "mov [{d}], {t}", t = out(reg) _, s = in(reg) s, d = in(reg) d,
                 options(nostack, preserves_flags));
        }
    }

    /// Up to 64 bytes. All loads come before all stores, so overlap is harmless; lengths between
    /// two powers of two are covered by moves that overlap in the middle.
    ///
    /// # Safety
    /// `n <= 64` bytes valid on both sides.
    #[inline(always)]
    pub(super) unsafe fn move_small(d: *mut u8, s: *const u8, n: usize) {
        // SAFETY: every operand is between the first and the last byte of the `n` that the caller vouches for:
        // the offsets from the front are at most half the arm's smallest `n`, and those from the back are counted
        // down from `n`.
        unsafe {
            match n {
                0 => {}
                1..4 => asm!(
                    "movzx {a:e}, byte ptr [{s}]",
                    "movzx {b:e}, byte ptr [{s} + {h}]",
                    "movzx {c:e}, byte ptr [{s} + {n} - 1]",
                    "mov byte ptr [{d}], {a:l}",
                    "mov byte ptr [{d} + {h}], {b:l}",
                    "mov byte ptr [{d} + {n} - 1], {c:l}",
                    a = out(reg) _, b = out(reg) _, c = out(reg) _,
                    s = in(reg) s, d = in(reg) d, n = in(reg) n, h = in(reg) n / 2,
                    options(nostack, preserves_flags)
                ),
                4..8 => asm!(
                    "mov {a:e}, [{s}]",
                    "mov {b:e}, [{s} + {n} - 4]",
                    "mov [{d}], {a:e}",
                    "mov [{d} + {n} - 4], {b:e}",
                    a = out(reg) _, b = out(reg) _,
                    s = in(reg) s, d = in(reg) d, n = in(reg) n,
                    options(nostack, preserves_flags)
                ),
                8..16 => asm!(
                    "mov {a}, [{s}]",
                    "mov {b}, [{s} + {n} - 8]",
                    "mov [{d}], {a}",
                    "mov [{d} + {n} - 8], {b}",
                    a = out(reg) _, b = out(reg) _,
                    s = in(reg) s, d = in(reg) d, n = in(reg) n,
                    options(nostack, preserves_flags)
                ),
                16..32 => asm!(
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + {n} - 16], {b}",
                    a = out(xmm_reg) _, b = out(xmm_reg) _,
                    s = in(reg) s, d = in(reg) d, n = in(reg) n,
                    options(nostack, preserves_flags)
                ),
                _ => asm!(
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + 16]",
                    "movups {c}, [{s} + {n} - 32]",
                    "movups {e}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + 16], {b}",
                    "movups [{d} + {n} - 32], {c}",
                    "movups [{d} + {n} - 16], {e}",
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                    s = in(reg) s, d = in(reg) d, n = in(reg) n,
                    options(nostack, preserves_flags)
                ),
            }
        }
    }

    /// # Safety
    /// `n` bytes valid on both sides.
    #[inline(always)]
    pub(super) unsafe fn call_library(d: *mut u8, s: *const u8, n: usize) {
        if super::overlap(d, s, n) {
            // SAFETY: the C calling convention with the arguments of `memmove`; the block may use
            // the stack, so the compiler keeps it aligned for the call.
            unsafe {
                asm!("call qword ptr [rip + {f}@GOTPCREL]", f = sym super::memmove,
                     inout("rdi") d => _, inout("rsi") s => _, inout("rdx") n => _, clobber_abi("C"));
            }
        } else {
            // SAFETY: as above, and the ranges are disjoint as `memcpy` wants them.
            unsafe {
                asm!("call qword ptr [rip + {f}@GOTPCREL]", f = sym super::memcpy,
                     inout("rdi") d => _, inout("rsi") s => _, inout("rdx") n => _, clobber_abi("C"));
            }
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(any(miri, verbs_loom))))]
mod machine {
    use std::arch::asm;

    /// # Safety
    /// 8 bytes valid on both sides.
    #[inline(always)]
    pub(super) unsafe fn move_8(d: *mut u8, s: *const u8) {
        // SAFETY: one 8-byte load and one 8-byte store, which the caller vouches for.
        unsafe {
            asm!("ldr {t}, [{s}]", "str {t}, [{d}]", t = out(reg) _, s = in(reg) s, d = in(reg) d,
                 options(nostack, preserves_flags));
        }
    }

    /// Up to 64 bytes, all loads before all stores, as on x86_64.
    ///
    /// # Safety
    /// `n <= 64` bytes valid on both sides.
    #[inline(always)]
    pub(super) unsafe fn move_small(d: *mut u8, s: *const u8, n: usize) {
        // Only used to form addresses below; wrapping arithmetic needs no promise.
        let (s_end, d_end) = (s.wrapping_add(n), d.wrapping_add(n));
        // SAFETY: as on x86_64: every operand is within the `n` bytes that the caller vouches for.
        unsafe {
            match n {
                0 => {}
                1..4 => asm!(
                    "ldrb {a:w}, [{s}]",
                    "ldrb {b:w}, [{s}, {h}]",
                    "ldrb {c:w}, [{se}, #-1]",
                    "strb {a:w}, [{d}]",
                    "strb {b:w}, [{d}, {h}]",
                    "strb {c:w}, [{de}, #-1]",
                    a = out(reg) _, b = out(reg) _, c = out(reg) _,
                    s = in(reg) s, d = in(reg) d, se = in(reg) s_end, de = in(reg) d_end,
                    h = in(reg) n / 2,
                    options(nostack, preserves_flags)
                ),
                4..8 => asm!(
                    "ldr {a:w}, [{s}]",
                    "ldur {b:w}, [{se}, #-4]",
                    "str {a:w}, [{d}]",
                    "stur {b:w}, [{de}, #-4]",
                    a = out(reg) _, b = out(reg) _,
                    s = in(reg) s, d = in(reg) d, se = in(reg) s_end, de = in(reg) d_end,
                    options(nostack, preserves_flags)
                ),
                8..16 => asm!(
                    "ldr {a}, [{s}]",
                    "ldur {b}, [{se}, #-8]",
                    "str {a}, [{d}]",
                    "stur {b}, [{de}, #-8]",
                    a = out(reg) _, b = out(reg) _,
                    s = in(reg) s, d = in(reg) d, se = in(reg) s_end, de = in(reg) d_end,
                    options(nostack, preserves_flags)
                ),
                16..32 => asm!(
                    "ldr {a:q}, [{s}]",
                    "ldur {b:q}, [{se}, #-16]",
                    "str {a:q}, [{d}]",
                    "stur {b:q}, [{de}, #-16]",
                    a = out(vreg) _, b = out(vreg) _,
                    s = in(reg) s, d = in(reg) d, se = in(reg) s_end, de = in(reg) d_end,
                    options(nostack, preserves_flags)
                ),
                _ => asm!(
                    "ldp {a:q}, {b:q}, [{s}]",
                    "ldp {c:q}, {e:q}, [{se}, #-32]",
                    "stp {a:q}, {b:q}, [{d}]",
                    "stp {c:q}, {e:q}, [{de}, #-32]",
                    a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, e = out(vreg) _,
                    s = in(reg) s, d = in(reg) d, se = in(reg) s_end, de = in(reg) d_end,
                    options(nostack, preserves_flags)
                ),
            }
        }
    }

    /// # Safety
    /// `n` bytes valid on both sides.
    #[inline(always)]
    pub(super) unsafe fn call_library(d: *mut u8, s: *const u8, n: usize) {
        if super::overlap(d, s, n) {
            // SAFETY: the C calling convention with the arguments of `memmove`; the block may use
            // the stack, so the compiler keeps it aligned for the call.
            unsafe {
                asm!("bl {f}", f = sym super::memmove,
                     inout("x0") d => _, inout("x1") s => _, inout("x2") n => _, clobber_abi("C"));
            }
        } else {
            // SAFETY: as above, and the ranges are disjoint as `memcpy` wants them.
            unsafe {
                asm!("bl {f}", f = sym super::memcpy,
                     inout("x0") d => _, inout("x1") s => _, inout("x2") n => _, clobber_abi("C"));
            }
        }
    }
}

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
))]
unsafe extern "C" {
    fn memcpy(dst: *mut u8, src: *const u8, len: usize) -> *mut u8;
    fn memmove(dst: *mut u8, src: *const u8, len: usize) -> *mut u8;
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

    /// Runs one of the two versions within a buffer.
    fn within(
        f: unsafe fn(NonNull<u8>, NonNull<u8>, usize),
        b: &mut [u8],
        to: usize,
        from: usize,
        len: usize,
    ) {
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
            for f in [copy as unsafe fn(_, _, _), copy_by_byte] {
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
                    for f in [copy as unsafe fn(_, _, _), copy_by_byte] {
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
