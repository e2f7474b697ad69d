//! Copies and atomic words by the machine's instructions.

use std::arch::asm;

use super::guard::Unmapped;

/// A word by that kind of block.
macro_rules! word {
    ($block:ident, $d:ident, $s:ident) => {
        $block!(
            [
                "mov {t}, [{s}]",
                "mov [{d}], {t}",
            ]
            t = out(reg) _, s = in(reg) $s, d = in(reg) $d,
            options(nostack, preserves_flags)
        )
    };
}

/// Up to 64 bytes by that kind of block. All loads come before all stores, so overlap is harmless; lengths between
/// two powers of two are covered by moves that overlap in the middle.
macro_rules! small {
    ($block:ident, $d:ident, $s:ident, $n:ident) => {
        match $n {
            0 => {}
            1..4 => $block!(
                [
                    "movzx {a:e}, byte ptr [{s}]",
                    "movzx {b:e}, byte ptr [{s} + {h}]",
                    "movzx {c:e}, byte ptr [{s} + {n} - 1]",
                    "mov byte ptr [{d}], {a:l}",
                    "mov byte ptr [{d} + {h}], {b:l}",
                    "mov byte ptr [{d} + {n} - 1], {c:l}",
                ]
                a = out(reg) _, b = out(reg) _, c = out(reg) _,
                s = in(reg) $s, d = in(reg) $d, n = in(reg) $n, h = in(reg) $n / 2,
                options(nostack, preserves_flags)
            ),
            4..8 => $block!(
                [
                    "mov {a:e}, [{s}]", "mov {b:e}, [{s} + {n} - 4]",
                    "mov [{d}], {a:e}", "mov [{d} + {n} - 4], {b:e}",
                ]
                a = out(reg) _, b = out(reg) _,
                s = in(reg) $s, d = in(reg) $d, n = in(reg) $n,
                options(nostack, preserves_flags)
            ),
            8..16 => $block!(
                [
                    "mov {a}, [{s}]",
                    "mov {b}, [{s} + {n} - 8]",
                    "mov [{d}], {a}",
                    "mov [{d} + {n} - 8], {b}",
                ]
                a = out(reg) _, b = out(reg) _,
                s = in(reg) $s, d = in(reg) $d, n = in(reg) $n,
                options(nostack, preserves_flags)
            ),
            16..32 => $block!(
                [
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + {n} - 16], {b}",
                ]
                a = out(xmm_reg) _, b = out(xmm_reg) _,
                s = in(reg) $s, d = in(reg) $d, n = in(reg) $n,
                options(nostack, preserves_flags)
            ),
            _ => $block!(
                [
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + 16]",
                    "movups {c}, [{s} + {n} - 32]",
                    "movups {e}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + 16], {b}",
                    "movups [{d} + {n} - 32], {c}",
                    "movups [{d} + {n} - 16], {e}",
                ]
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                s = in(reg) $s, d = in(reg) $d, n = in(reg) $n,
                options(nostack, preserves_flags)
            ),
        }
    };
}

/// # Safety
/// `n` bytes valid on both sides.
#[inline(always)]
pub(super) unsafe fn call_library(d: *mut u8, s: *const u8, n: usize) -> Result<(), Unmapped> {
    if super::overlap(d, s, n) {
        // SAFETY: the C calling convention with the arguments of `memmove`; the block may use
        // the stack, so the compiler keeps it aligned for the call.
        unsafe {
            called!(
                ["call qword ptr [rip + {f}@GOTPCREL]"]
                f = sym super::memmove,
                inout("rdi") d => _, inout("rsi") s => _, inout("rdx") n => _, clobber_abi("C")
            );
        }
    } else {
        // SAFETY: as above, and the ranges are disjoint as `memcpy` wants them.
        unsafe {
            called!(
                ["call qword ptr [rip + {f}@GOTPCREL]"]
                f = sym super::memcpy,
                inout("rdi") d => _, inout("rsi") s => _, inout("rdx") n => _, clobber_abi("C")
            );
        }
    }
    Ok(())
}

/// Adds to a word, atomically, and returns what it was; after a fault, any number.
///
/// # Safety
/// An aligned word, valid for reads and writes.
#[inline(always)]
pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> u64 {
    let old;
    // SAFETY: one atomic access of the word that the caller vouches for.
    unsafe {
        checked!(
            ["lock xadd [{p}], {v}"]
            p = in(reg) word, v = inout(reg) add => old,
            options(nostack)
        );
    }
    old
}

/// Replaces a word that is `old` by `new`, atomically, and returns what it was; after a fault, any number.
///
/// # Safety
/// An aligned word, valid for reads and writes.
#[inline(always)]
pub(super) unsafe fn compare_exchange(word: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: as in `fetch_add`.
    unsafe {
        checked!(
            ["lock cmpxchg [{p}], {new}"]
            p = in(reg) word, new = in(reg) new, inout("rax") old => found,
            options(nostack)
        );
    }
    found
}

/// Loads a word whole; after a fault, 0. Acquire.
///
/// # Safety
/// An aligned word, valid for reads.
#[inline(always)]
pub(super) unsafe fn load(word: *const u64) -> u64 {
    let found;
    // SAFETY: as in `fetch_add`. A plain load acquires on this machine.
    unsafe {
        checked!(
            ["mov {v}, [{p}]"]
            p = in(reg) word, v = inout(reg) 0_u64 => found,
            options(nostack, preserves_flags)
        );
    }
    found
}

/// Stores a word whole. Release.
///
/// # Safety
/// An aligned word, valid for writes.
#[inline(always)]
pub(super) unsafe fn store(word: *mut u64, value: u64) {
    // SAFETY: as in `fetch_add`. A plain store releases on this machine.
    unsafe {
        checked!(
            ["mov [{p}], {v}"]
            p = in(reg) word, v = in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}
