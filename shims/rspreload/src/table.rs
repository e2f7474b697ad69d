//! Which descriptors are rsockets, and which threads are inside librdmacm.
//!
//! A number is an rsocket's until it is closed, by whichever call. A child of `fork` has the numbers of its parent's rsockets,
//! but not the rsockets: calls with them fail, and when one is closed its number is the system's. A child of `vfork`
//! is in the memory of its parent, whose table it leaves alone.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Descriptors that can be rsockets: more than programs have.
const FDS: usize = 1 << 16;

type Bits = [AtomicU64; FDS / 64];

static OURS: Bits = [const { AtomicU64::new(0) }; FDS / 64];

/// Those of them that are rsockets of the parent of this process.
static INHERITED: Bits = [const { AtomicU64::new(0) }; FDS / 64];

/// The process that the table is of, once it has an rsocket.
static OWNER: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// This thread is inside librdmacm, whose calls of the C library are its own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn place(bits: &Bits, fd: c_int) -> Option<(&AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((bits.get(fd / 64)?, 1 << (fd % 64)))
}

fn has(bits: &Bits, fd: c_int) -> bool {
    place(bits, fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Whether the program's call concerns an rsocket.
pub(crate) fn is_ours(fd: c_int) -> bool {
    !is_inside() && has(&OURS, fd)
}

/// The descriptor is an rsocket. False for one beyond the table.
pub(crate) fn add(fd: c_int) -> bool {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
    OWNER.store(own_process(), Ordering::Relaxed);
    let place = place(&OURS, fd);
    if let Some((word, bit)) = place {
        word.fetch_or(bit, Ordering::Release);
    }
    place.is_some()
}

/// It is no longer an rsocket.
pub(crate) fn remove(fd: c_int) {
    for bits in [&OURS, &INHERITED] {
        if let Some((word, bit)) = place(bits, fd) {
            word.fetch_and(!bit, Ordering::Release);
        }
    }
}

/// Its number is given back, or is about to be another file's: takes it out of the table. Whether it is an rsocket of this
/// process, which the caller closes first.
pub(crate) fn is_given_back(fd: c_int) -> bool {
    // A child of `vfork` closes descriptors that are its own in the kernel only.
    if !is_ours(fd) || OWNER.load(Ordering::Relaxed) != own_process() {
        return false;
    }
    let is_own = !has(&INHERITED, fd);
    remove(fd);
    is_own
}

/// The rsockets among those numbers.
pub(crate) fn ours_between(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let fds = FDS as u32;
    let all = first.min(fds)..last.saturating_add(1).min(fds);
    all.map(u32::cast_signed).filter(|&fd| is_ours(fd))
}

fn own_process() -> c_int {
    // SAFETY: there are no arguments.
    unsafe { libc::getpid() }
}

extern "C" fn after_fork_in_child() {
    for (ours, inherited) in OURS.iter().zip(&INHERITED) {
        inherited.store(ours.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    OWNER.store(own_process(), Ordering::Relaxed);
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

    /// Goal: a number that is given back is the system's, once; that of a parent's rsocket is nobody's to close but the
    /// kernel's; and a child in the memory of its parent changes nothing.
    #[test]
    fn numbers_change_hands_once() {
        for fd in [1070, 1071, 1300] {
            assert!(add(fd));
        }
        assert_eq!(
            ours_between(1070, u32::MAX).collect::<Vec<_>>(),
            [1070, 1071, 1300]
        );
        assert_eq!(ours_between(1071, 1299).collect::<Vec<_>>(), [1071]);
        assert_eq!(ours_between(u32::MAX, 3).count(), 0);
        assert!(is_given_back(1070) && !is_ours(1070));
        assert!(!is_given_back(1070) && !is_given_back(-1));
        OWNER.store(own_process() + 1, Ordering::Relaxed);
        assert!(
            !is_given_back(1071) && is_ours(1071),
            "as in a child of vfork"
        );
        after_fork_in_child();
        assert!(
            !is_given_back(1071) && !is_ours(1071),
            "as in a child of fork"
        );
        assert!(add(1071), "its own, at the same number");
        assert!(is_given_back(1071) && !is_given_back(1300));
    }
}
