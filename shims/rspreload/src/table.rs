//! Which descriptors are rsockets, and which threads are inside librdmacm.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors that can be rsockets: more than programs have.
const FDS: usize = 1 << 16;

static OURS: [AtomicU64; FDS / 64] = [const { AtomicU64::new(0) }; FDS / 64];

thread_local! {
    /// This thread is inside librdmacm, whose calls of the C library are its own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether the program's call concerns an rsocket.
pub(crate) fn is_ours(fd: c_int) -> bool {
    !is_inside() && place(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// The descriptor is an rsocket. False for one beyond the table.
pub(crate) fn add(fd: c_int) -> bool {
    let place = place(fd);
    if let Some((word, bit)) = place {
        word.fetch_or(bit, Ordering::Release);
    }
    place.is_some()
}

/// It is no longer an rsocket.
pub(crate) fn remove(fd: c_int) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Release);
    }
}

/// Whether this thread is inside librdmacm.
pub(crate) fn is_inside() -> bool {
    // A thread that is ending has no such value any longer, and is in no call.
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Calls librdmacm.
pub(crate) fn inside<R>(call: impl FnOnce() -> R) -> R {
    let _ = INSIDE.try_with(|inside| inside.set(true));
    let result = call();
    let _ = INSIDE.try_with(|inside| inside.set(false));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_ours_from_their_making_to_their_close() {
        assert!(!is_ours(70) && !is_ours(-1));
        assert!(add(70) && !add(-1) && !add(c_int::MAX));
        assert!(is_ours(70) && !is_ours(71));
        inside(|| assert!(!is_ours(70), "librdmacm's own calls are not the program's"));
        remove(70);
        assert!(!is_ours(70));
    }
}
