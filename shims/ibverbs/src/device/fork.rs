//! Processes that fork. The parent continues. The child has the parent's objects in its memory and none of the threads
//! that serve them, so it may not use them; it may open the device again, on an address of its own.

use std::ffi::c_int;
use std::sync::Once;

use super::HCA;
use crate::call::live;
use crate::{rdmacm, rsocket};

/// Lets the child of a fork begin without a device.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions of this library, which is never unloaded. If there is no memory for them, they are not
        // registered.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// No other thread holds a lock of this library while the memory is copied.
extern "C" fn before() {
    rsocket::before_fork();
    rdmacm::before_fork();
    std::mem::forget(HCA.lock());
    live::lock_for_fork();
}

extern "C" fn in_parent() {
    live::unlock_after_fork();
    // SAFETY: this thread has locked it in `before`.
    unsafe { HCA.force_unlock() }
    rdmacm::after_fork_in_parent();
    rsocket::after_fork_in_parent();
}

extern "C" fn in_child() {
    live::unlock_after_fork_in_child();
    // SAFETY: as in the parent, whose thread this is a copy of.
    unsafe { HCA.force_unlock() }
    // It stays in memory: ending it would wait for threads that do not exist.
    std::mem::forget(HCA.lock().take());
    rsocket::after_fork_in_child();
    rdmacm::after_fork_in_child();
}

/// `ibv_fork_init`: there is nothing to do, because no memory is pinned.
pub(crate) unsafe extern "C" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED`.
pub(crate) unsafe extern "C" fn is_fork_initialized() -> c_int {
    2
}
