//! Wakes the thread that waits for events.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

/// Wakes the thread: to look at the time again, or to end.
pub(crate) struct Bell {
    fd: OwnedFd,
    is_end: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Arc::new(Self {
            fd: eventfd(0, flags)?,
            is_end: AtomicBool::new(false),
        }))
    }

    pub(crate) fn ring(&self) {
        // The counter has room for more than one.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.is_end.store(true, Release);
        self.ring();
    }

    /// The descriptor that becomes readable when the bell rings.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the thread has to end; otherwise the bell is silent until it rings again.
    pub(crate) fn is_end(&self) -> bool {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.is_end.load(Acquire)
    }
}
