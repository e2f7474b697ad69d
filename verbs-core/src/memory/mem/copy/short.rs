//! Straight-line moves of up to 64 bytes, with a guard and without one.

use std::arch::asm;

use super::guard::Unmapped;

/// # Safety
/// 8 bytes valid on both sides.
#[inline(always)]
pub(super) unsafe fn move_8(d: *mut u8, s: *const u8) -> Result<(), Unmapped> {
    // SAFETY: one 8-byte load and one 8-byte store, which the caller vouches for.
    unsafe { word!(guarded, d, s) }
    Ok(())
}

/// # Safety
/// 8 bytes valid on both sides.
#[inline(always)]
pub(super) unsafe fn move_8_plain(d: *mut u8, s: *const u8) {
    // SAFETY: one 8-byte load and one 8-byte store, which the caller vouches for.
    unsafe { word!(plain, d, s) }
}

/// # Safety
/// `n <= 64` bytes valid on both sides.
#[inline(always)]
pub(super) unsafe fn move_small(d: *mut u8, s: *const u8, n: usize) -> Result<(), Unmapped> {
    // SAFETY: every operand is between the first and the last byte of the `n` that the caller vouches for: the offsets from
    // the front are at most half the arm's smallest `n`, and those from the back are counted down from `n`.
    unsafe { small!(guarded, d, s, n) }
    Ok(())
}

/// # Safety
/// `n <= 64` bytes valid on both sides.
#[inline(always)]
pub(super) unsafe fn move_small_plain(d: *mut u8, s: *const u8, n: usize) {
    // SAFETY: every operand is between the first and the last byte of the `n` that the caller vouches for: the offsets from
    // the front are at most half the arm's smallest `n`, and those from the back are counted down from `n`.
    unsafe { small!(plain, d, s, n) }
}
