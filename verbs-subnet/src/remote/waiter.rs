//! How a thread waits for a host: for its bell, and for its other messages on the socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io;
use rustix::thread::sched_yield;
use verbs_core::sync::Arc;
use verbs_core::sync::plain::{AtomicBool, AtomicU64, Ordering::Relaxed};

use verbs_link::Waiter;
use verbs_link::ring::{Mapped, Watch};
use verbs_link::time::Wakes;

/// How often a thread that has had packets checks for more before it sleeps, yielding to others in between. If
/// the others have nothing to do, that is about 30 us, roughly the cost of waking a thread on another processor;
/// if they have, they send the next packets, or take those that were sent.
const LINGERS: usize = 100;

#[derive(Debug)]
pub(super) struct SocketWaiter {
    wakes: Wakes,
    socket: Arc<OwnedFd>,
    packets: Watch<Mapped>,
    /// The host has ended: its socket is always ready, and never has a message.
    is_closed: AtomicBool,
    /// The read position when a thread last waited for more.
    seen: AtomicU64,
    /// There is a message in the socket.
    was_rung: AtomicBool,
    /// Packets were read from the ring that were not handed up yet.
    keeps: AtomicBool,
}

impl SocketWaiter {
    pub(super) fn new(socket: Arc<OwnedFd>, packets: Watch<Mapped>) -> io::Result<Self> {
        Ok(Self {
            wakes: Wakes::new()?,
            socket,
            packets,
            is_closed: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            was_rung: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
        })
    }

    /// Whether there was a message in the socket since the last call.
    pub(super) fn was_rung(&self) -> bool {
        // Usually not, and every poll asks this.
        self.was_rung.load(Relaxed) && self.was_rung.swap(false, Relaxed)
    }

    /// Whether packets were read from the ring that were not handed up yet: no bell is rung for them.
    pub(super) fn keeps(&self, keeps: bool) {
        self.keeps.store(keeps, Relaxed);
    }

    /// Whether there are packets, now or within a moment; if not, a bell is rung when there are.
    fn has_packets(&self) -> bool {
        if self.keeps.load(Relaxed) {
            return true;
        }
        let head = self.packets.head();
        let has_read = self.seen.swap(head, Relaxed) != head;
        if !has_read && self.packets.has_message() {
            // Another thread is working, and will take them: neither wait for it nor hinder it.
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

    /// Whether nothing more can arrive.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Nothing more can arrive. Returns whether this is new.
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
                self.wakes.take();
            }
        }
    }

    fn wake(&self) {
        self.wakes.ring();
    }
}
