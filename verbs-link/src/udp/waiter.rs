//! How a thread waits: for packets, for changes of interfaces, and for being woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io;
use verbs_core::sync::{Arc, plain};

use super::interfaces::News;
use crate::Waiter;
use crate::time::{ALSO_MAX, Wakes};

/// Sockets that one link may have.
pub(super) const SOCKETS_MAX: usize = 320;

/// Waits with `poll`.
#[derive(Debug)]
pub(super) struct Poller {
    wakes: Wakes,
    /// Written when the sockets change: a thread that waits in the place of the engine's begins again with them.
    changes: Wakes,
    news: Arc<News>,
    /// The link's sockets. A wait in progress keeps the old ones alive when they change.
    sockets: plain::Mutex<Arc<[Arc<OwnedFd>]>>,
}

impl Poller {
    pub(super) fn new(news: Arc<News>, sockets: Arc<[Arc<OwnedFd>]>) -> io::Result<Self> {
        Ok(Self {
            wakes: Wakes::new()?,
            changes: Wakes::new()?,
            news,
            sockets: plain::Mutex::new(sockets),
        })
    }

    /// The link has other sockets now; a waiting thread begins again with them.
    pub(super) fn replace(&self, sockets: Arc<[Arc<OwnedFd>]>) {
        *self.sockets.lock() = sockets;
        self.changes.ring();
        self.wake();
    }
}

impl Waiter for Poller {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        let sockets = Arc::clone(&self.sockets.lock());
        // In place: a program that sleeps waits for every message.
        let mut polled = ArrayVec::<_, { SOCKETS_MAX + 2 }>::new();
        polled.push(PollFd::new(&self.wakes, PollFlags::IN));
        polled.push(PollFd::from_borrowed_fd(self.news.socket(), PollFlags::IN));
        if packets {
            let sockets = sockets.iter().take(SOCKETS_MAX);
            polled.extend(
                sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
            );
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An error, such as a signal, is an early return.
        if poll(&mut polled, timeout.as_ref()).is_err() {
            return;
        }
        self.news.waited(!polled[1].revents().is_empty());
        if !polled[0].revents().is_empty() {
            self.wakes.take();
        }
    }

    fn wake(&self) {
        self.wakes.ring();
    }

    fn has_place(&self, also: usize) -> bool {
        also <= ALSO_MAX
    }

    fn wait_beside(
        &self,
        also: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Option<std::io::Result<()>> {
        if !self.has_place(also.len()) {
            return None;
        }
        // Read before: a change from now on ends the wait.
        let sockets = Arc::clone(&self.sockets.lock());
        let mut polled = ArrayVec::<_, { SOCKETS_MAX + ALSO_MAX + 2 }>::new();
        polled.push(PollFd::new(&self.changes, PollFlags::IN));
        polled.push(PollFd::from_borrowed_fd(self.news.socket(), PollFlags::IN));
        let sockets = sockets
            .iter()
            .take(SOCKETS_MAX)
            .map(|socket| socket.as_fd());
        let all = also.iter().copied().chain(sockets);
        polled.extend(all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let waited = poll(&mut polled, timeout.as_ref());
        if waited.is_ok() {
            self.news.waited(!polled[1].revents().is_empty());
            if !polled[0].revents().is_empty() {
                self.changes.take();
            }
        }
        Some(waited.map(drop).map_err(Into::into))
    }
}
