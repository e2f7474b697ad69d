//! Copies and atomic words by the machine's instructions.

use std::arch::asm;

use super::guard::Unmapped;

/// A word by that kind of block.
macro_rules! word {
    ($block:ident, $d:ident, $s:ident) => {
        $block!(
            [
                "ldr {t}, [{s}]",
                "str {t}, [{d}]",
            ]
            t = out(reg) _, s = in(reg) $s, d = in(reg) $d,
            options(nostack, preserves_flags)
        )
    };
}

/// Up to 64 bytes by that kind of block, all loads before all stores, as on x86_64.
macro_rules! small {
    ($block:ident, $d:ident, $s:ident, $n:ident) => {{
        // Only used to form addresses below; wrapping arithmetic needs no promise.
        let (s_end, d_end) = ($s.wrapping_add($n), $d.wrapping_add($n));
        match $n {
            0 => {}
            1..4 => $block!(
                [
                    "ldrb {a:w}, [{s}]",
                    "ldrb {b:w}, [{s}, {h}]",
                    "ldrb {c:w}, [{se}, #-1]",
                    "strb {a:w}, [{d}]",
                    "strb {b:w}, [{d}, {h}]",
                    "strb {c:w}, [{de}, #-1]",
                ]
                a = out(reg) _, b = out(reg) _, c = out(reg) _,
                s = in(reg) $s, d = in(reg) $d, se = in(reg) s_end, de = in(reg) d_end,
                h = in(reg) $n / 2,
                options(nostack, preserves_flags)
            ),
            4..8 => $block!(
                [
                    "ldr {a:w}, [{s}]",
                    "ldur {b:w}, [{se}, #-4]",
                    "str {a:w}, [{d}]",
                    "stur {b:w}, [{de}, #-4]",
                ]
                a = out(reg) _, b = out(reg) _,
                s = in(reg) $s, d = in(reg) $d, se = in(reg) s_end, de = in(reg) d_end,
                options(nostack, preserves_flags)
            ),
            8..16 => $block!(
                [
                    "ldr {a}, [{s}]",
                    "ldur {b}, [{se}, #-8]",
                    "str {a}, [{d}]",
                    "stur {b}, [{de}, #-8]",
                ]
                a = out(reg) _, b = out(reg) _,
                s = in(reg) $s, d = in(reg) $d, se = in(reg) s_end, de = in(reg) d_end,
                options(nostack, preserves_flags)
            ),
            16..32 => $block!(
                [
                    "ldr {a:q}, [{s}]",
                    "ldur {b:q}, [{se}, #-16]",
                    "str {a:q}, [{d}]",
                    "stur {b:q}, [{de}, #-16]",
                ]
                a = out(vreg) _, b = out(vreg) _,
                s = in(reg) $s, d = in(reg) $d, se = in(reg) s_end, de = in(reg) d_end,
                options(nostack, preserves_flags)
            ),
            _ => $block!(
                [
                    "ldp {a:q}, {b:q}, [{s}]",
                    "ldp {c:q}, {e:q}, [{se}, #-32]",
                    "stp {a:q}, {b:q}, [{d}]",
                    "stp {c:q}, {e:q}, [{de}, #-32]",
                ]
                a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, e = out(vreg) _,
                s = in(reg) $s, d = in(reg) $d, se = in(reg) s_end, de = in(reg) d_end,
                options(nostack, preserves_flags)
            ),
        }
    }};
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
                ["bl {f}"]
                f = sym super::memmove,
                inout("x0") d => _, inout("x1") s => _, inout("x2") n => _, clobber_abi("C")
            );
        }
    } else {
        // SAFETY: as above, and the ranges are disjoint as `memcpy` wants them.
        unsafe {
            called!(
                ["bl {f}"]
                f = sym super::memcpy,
                inout("x0") d => _, inout("x1") s => _, inout("x2") n => _, clobber_abi("C")
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
    // SAFETY: atomic accesses of the word that the caller vouches for.
    unsafe {
        checked!(
            [
                "4:",
                "ldaxr {old}, [{p}]",
                "add {sum}, {old}, {v}",
                "stlxr {lost:w}, {sum}, [{p}]",
                "cbnz {lost:w}, 4b",
            ]
            p = in(reg) word, v = in(reg) add, old = inout(reg) 0_u64 => old,
            sum = out(reg) _, lost = out(reg) _,
            options(nostack, preserves_flags)
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
            [
                "4:",
                "ldaxr {found}, [{p}]",
                "cmp {found}, {old}",
                "b.ne 5f",
                "stlxr {lost:w}, {new}, [{p}]",
                "cbnz {lost:w}, 4b",
                "5:",
            ]
            p = in(reg) word, old = in(reg) old, new = in(reg) new, found = inout(reg) 0_u64 => found,
            lost = out(reg) _,
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
    // SAFETY: as in `fetch_add`.
    unsafe {
        checked!(
            ["ldar {v}, [{p}]"]
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
    // SAFETY: as in `fetch_add`.
    unsafe {
        checked!(
            ["stlr {v}, [{p}]"]
            p = in(reg) word, v = in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}
