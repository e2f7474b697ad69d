//! A socket as a descriptor, for epoll, mio and programs with a loop of their own.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};
use verbs_core::sync::Arc;
use verbs_core::task::OwnWaker;

use crate::socket::RdsSocket;

/// Tells by a descriptor that there is something for a socket: it is readable when a datagram, the end of an operation or
/// a group of ports that became free may wait, until [`clear`](Self::clear).
///
/// Clear it first, then take all there is with [`RdsSocket::try_recv`] and [`RdsSocket::try_notified`], then wait for the
/// descriptor: so nothing is overlooked. It may be readable once too often, and never too seldom.
///
/// ```no_run
/// use std::os::fd::AsFd;
/// # fn wait_for(_: impl AsFd) {}
/// # fn run(socket: &ulp_rds::RdsSocket) -> std::io::Result<()> {
/// let readiness = ulp_rds::Readiness::of(socket)?;
/// loop {
///     readiness.clear();
///     while let Some(datagram) = socket.try_recv() {
///         println!("{} bytes from {}", datagram.payload.len(), datagram.from);
///     }
///     wait_for(readiness.as_fd());
/// }
/// # }
/// ```
pub struct Readiness<'s> {
    socket: &'s RdsSocket,
    bell: Arc<Bell>,
}

/// An eventfd that is written to by wakers.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // The counter holds more than there is memory for wakers.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl<'s> Readiness<'s> {
    /// The readiness of a socket, which is readable at first.
    ///
    /// # Errors
    /// The system's: no descriptor can be had.
    pub fn of(socket: &'s RdsSocket) -> io::Result<Self> {
        let fd = eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let bell = Arc::new(Bell(fd));
        Ok(Self { socket, bell })
    }

    /// From now on it is readable when something has come, or is there already and was not taken. Never blocks.
    pub fn clear(&self) {
        // It was not readable if there is nothing to be read.
        let _ = rustix::io::read(&self.bell.0, &mut [0; 8]);
        let waker = Waker::from(Arc::clone(&self.bell));
        if self.socket.ring(OwnWaker::of(&waker)) {
            waker.wake();
        }
    }
}

impl AsFd for Readiness<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }
}

impl fmt::Debug for Readiness<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness")
            .field("socket", self.socket)
            .finish_non_exhaustive()
    }
}
