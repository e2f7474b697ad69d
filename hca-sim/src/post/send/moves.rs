//! How the bytes of a message are copied by the paths of this folder.
//!
//! Memory that stays is copied without a guard: a copy that may end in an error has to keep what the long path would
//! need for the message. Memory of a program behind a C interface may turn out to be gone
//! ([`catch_faults`](verbs_core::mem::catch_faults)), so its copies have one.

use verbs_core::mem::Window;

/// A way to copy all of a message.
pub(crate) trait Moves {
    /// Messages longer than [`Window::SHORT`] are copied too.
    const ANY_LENGTH: bool;

    /// Copies `from` to as many bytes of `to`. `None`: some of the memory is gone.
    fn copy(to: Window<'_>, from: Window<'_>) -> Option<()>;

    /// As [`Moves::copy`], from private bytes.
    fn write(to: Window<'_>, from: &[u8]) -> Option<()>;
}

/// Short messages, in memory that stays.
pub(crate) struct Unguarded;

/// Short messages, in memory that may be gone.
pub(crate) struct Guarded;

/// Messages of any length, in memory that may be gone.
pub(super) struct AnyLength;

impl Moves for Unguarded {
    const ANY_LENGTH: bool = false;

    #[inline(always)]
    fn copy(to: Window<'_>, from: Window<'_>) -> Option<()> {
        to.copy_short_unguarded(from);
        Some(())
    }

    #[inline(always)]
    fn write(to: Window<'_>, from: &[u8]) -> Option<()> {
        to.write_short_unguarded(from);
        Some(())
    }
}

impl Moves for Guarded {
    const ANY_LENGTH: bool = false;

    #[inline(always)]
    fn copy(to: Window<'_>, from: Window<'_>) -> Option<()> {
        to.copy_short_from(from).ok()
    }

    #[inline(always)]
    fn write(to: Window<'_>, from: &[u8]) -> Option<()> {
        to.write_short_from(from).ok()
    }
}

impl Moves for AnyLength {
    const ANY_LENGTH: bool = true;

    #[inline(always)]
    fn copy(to: Window<'_>, from: Window<'_>) -> Option<()> {
        to.copy_from(from).ok().map(drop)
    }

    #[inline(always)]
    fn write(to: Window<'_>, from: &[u8]) -> Option<()> {
        to.write_from(from).ok().map(drop)
    }
}
