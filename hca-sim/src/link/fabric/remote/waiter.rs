//! What a thread waits with for a socket to a host.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io;
use verbs_core::sync::Arc;
use verbs_core::sync::plain::{AtomicBool, Ordering::Relaxed};

use crate::link::Waiter;

#[derive(Debug)]
pub(super) struct SocketWaiter {
    wakes: OwnedFd,
    socket: Arc<OwnedFd>,
    /// The host has gone: its socket is always ready, and never has anything.
    is_closed: AtomicBool,
    /// Packets wait for room in the socket.
    is_full: AtomicBool,
}

impl SocketWaiter {
    pub(super) fn new(socket: Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            wakes: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            socket,
            is_closed: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
        })
    }

    /// Whether packets wait for room in the socket: the next wait ends when there is some.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Relaxed);
    }

    /// Whether the socket was full the last time, and still has no room to speak of.
    pub(super) fn is_still_full(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut polled = [PollFd::from_borrowed_fd(
            self.socket.as_fd(),
            PollFlags::OUT,
        )];
        self.is_full.load(Relaxed) && poll(&mut polled, Some(&now)) == Ok(0)
    }

    /// Nothing comes any more. Whether that is news.
    pub(super) fn close(&self) -> bool {
        !self.is_closed.swap(true, Relaxed)
    }
}

impl Waiter for SocketWaiter {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        let wanted = if packets && !self.is_closed.load(Relaxed) {
            2
        } else {
            1
        };
        let mut asked = PollFlags::IN;
        asked.set(PollFlags::OUT, self.is_full.load(Relaxed));
        let mut polled = [
            PollFd::new(&self.wakes, PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), asked),
        ];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An error, such as a signal, is an early return.
        let ready = poll(&mut polled[..wanted], timeout.as_ref());
        if ready.is_ok() && !polled[0].revents().is_empty() {
            let mut count = [0; 8];
            // Somebody else may have been quicker: then there is nothing to take back.
            let _ = io::read(&self.wakes, &mut count);
        }
    }

    fn wake(&self) {
        // Fails only when 2^64 - 2 wakes wait already.
        let _ = io::write(&self.wakes, &1_u64.to_ne_bytes());
    }
}
