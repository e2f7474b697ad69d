//! What a thread waits with for a host: its bell, and what else it says over the socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io;
use rustix::thread::sched_yield;
use verbs_core::sync::Arc;
use verbs_core::sync::plain::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::ipc::ring::{Mapped, Watch};
use verbs_link::Waiter;

/// How often a thread that has had packets looks for more before it sleeps, and lets others go on in between. Where
/// they have nothing to do that is some 30 us, about what it costs to ring for a thread on another processor and to
/// have it wake; where they have, they are who sends the next packets, or takes those that were sent.
const LINGERS: usize = 100;

#[derive(Debug)]
pub(super) struct SocketWaiter {
    wakes: OwnedFd,
    socket: Arc<OwnedFd>,
    packets: Watch<Mapped>,
    /// The host has gone: its socket is always ready, and never has anything.
    is_closed: AtomicBool,
    /// How far packets were read when somebody last waited for more.
    seen: AtomicU64,
    /// There is something in the socket.
    was_rung: AtomicBool,
}

impl SocketWaiter {
    pub(super) fn new(socket: Arc<OwnedFd>, packets: Watch<Mapped>) -> io::Result<Self> {
        Ok(Self {
            wakes: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            socket,
            packets,
            is_closed: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            was_rung: AtomicBool::new(false),
        })
    }

    /// Whether there was something in the socket since the last time.
    pub(super) fn was_rung(&self) -> bool {
        // Most often not, and this is asked whenever somebody polls.
        self.was_rung.load(Relaxed) && self.was_rung.swap(false, Relaxed)
    }

    /// Whether there are packets, now or in a moment; if not, a bell is rung when there are.
    fn has_packets(&self) -> bool {
        let head = self.packets.head();
        let has_read = self.seen.swap(head, Relaxed) != head;
        if !has_read && self.packets.has_message() {
            // Somebody else is at work, and will have them: that is not to be waited for, and not to be hindered.
            sched_yield();
            return true;
        }
        for _ in 0..if has_read { LINGERS } else { 0 } {
            if self.packets.has_message() {
                return true;
            }
            sched_yield();
        }
        !self.packets.sleep()
    }

    /// Whether nothing comes any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Nothing comes any more. Whether that is news.
    pub(super) fn close(&self) -> bool {
        !self.is_closed.swap(true, Relaxed)
    }
}

impl Waiter for SocketWaiter {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        let packets = packets && !self.is_closed();
        if packets && self.has_packets() {
            return;
        }
        let mut polled = [
            PollFd::new(&self.wakes, PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
        ];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let wanted = if packets { 2 } else { 1 };
        // An error, such as a signal, is an early return.
        let ready = poll(&mut polled[..wanted], timeout.as_ref());
        if packets {
            self.packets.wake();
        }
        if ready.is_ok() {
            if !polled[1].revents().is_empty() {
                self.was_rung.store(true, Relaxed);
            }
            if !polled[0].revents().is_empty() {
                let mut count = [0; 8];
                // Somebody else may have been quicker: then there is nothing to take back.
                let _ = io::read(&self.wakes, &mut count);
            }
        }
    }

    fn wake(&self) {
        // Fails only when 2^64 - 2 wakes wait already.
        let _ = io::write(&self.wakes, &1_u64.to_ne_bytes());
    }
}
