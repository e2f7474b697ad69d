//! A socket as the node knows it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::task::Waker;

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::AtomicBool;

use super::id::LinkId;
use crate::datagram::{Counters, Datagram};
use crate::rdma::{Mapped, Notification};

/// A socket.
pub(crate) struct Socket {
    pub(crate) addr: SocketAddr,
    pub(crate) queue: VecDeque<Datagram>,
    /// Whether there is one, for a program that polls: changed under the lock, and looked at without it.
    pub(crate) is_filled: Arc<AtomicBool>,
    /// Bytes in the queue, with the charge for each datagram; whether peers were told that they are too many.
    pub(super) queued: usize,
    pub(super) congested: bool,
    /// Bytes and messages that wait for acknowledgement.
    pub(super) unacked: (usize, usize),
    /// The connection of the last datagram that came; whether a task was woken for what is in the queue.
    pub(super) near: Option<LinkId>,
    pub(super) is_woken: bool,
    /// The connection to where it has sent last.
    pub(super) route: Option<(IpAddr, LinkId)>,
    /// Tasks that wait.
    pub(super) readers: Vec<Waker>,
    pub(super) writers: Vec<Waker>,
    /// Groups of ports that are monitored, and those that became free.
    pub(crate) monitored: u64,
    pub(crate) freed: u64,
    pub(crate) counters: Counters,
    /// The type of service of what it sends.
    pub(super) tos: u8,
    /// Ends of operations that the program has not asked for yet, and operations that have not ended.
    pub(super) notifications: VecDeque<Notification>,
    pub(super) operations: usize,
    /// Mappings that end when a peer has used them.
    pub(crate) once: Vec<Arc<Mapped>>,
}

impl Socket {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            queue: VecDeque::new(),
            is_filled: Arc::default(),
            queued: 0,
            congested: false,
            unacked: (0, 0),
            near: None,
            is_woken: false,
            route: None,
            readers: Vec::new(),
            writers: Vec::new(),
            monitored: 0,
            freed: 0,
            counters: Counters::default(),
            tos: 0,
            notifications: VecDeque::new(),
            operations: 0,
            once: Vec::new(),
        }
    }

    /// Whether there is something for the program to take.
    pub(crate) fn has_news(&self) -> bool {
        !self.queue.is_empty() || !self.notifications.is_empty() || self.freed != 0
    }

    /// Chooses the type of service, before it has sent anything. Returns whether that is so.
    pub(crate) fn serve(&mut self, tos: u8) -> bool {
        let is_new = self.counters.sent == 0;
        if is_new {
            (self.tos, self.route) = (tos, None);
        }
        is_new
    }
}
