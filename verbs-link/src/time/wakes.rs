//! What ends a wait of a thread: a descriptor that another thread makes readable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

/// Wakes for a thread that waits for descriptors: an `eventfd`. A wake stays until it is taken.
#[derive(Debug)]
pub struct Wakes(OwnedFd);

impl Wakes {
    /// Without a wake.
    ///
    /// # Errors
    /// The system's: there is no descriptor.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Makes the descriptor readable. Never blocks.
    pub fn ring(&self) {
        // Fails only when 2^64 - 2 wakes wait already.
        let _ = io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes all wakes. Never blocks.
    pub fn take(&self) {
        // Another thread may have been faster: then there is nothing to read.
        let _ = io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wakes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
