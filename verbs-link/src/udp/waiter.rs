//! What a thread waits with: for packets, for news of interfaces, and for being woken.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io;
use verbs_core::sync::{Arc, plain};

use super::interfaces::News;
use crate::Waiter;

/// Waits with `poll`.
#[derive(Debug)]
pub(super) struct Poller {
    wakes: OwnedFd,
    news: Arc<News>,
    /// The link's sockets. A wait that is going on keeps the old ones alive when they change.
    sockets: plain::Mutex<Arc<[Arc<OwnedFd>]>>,
}

impl Poller {
    pub(super) fn new(news: Arc<News>, sockets: Arc<[Arc<OwnedFd>]>) -> io::Result<Self> {
        Ok(Self {
            wakes: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            news,
            sockets: plain::Mutex::new(sockets),
        })
    }

    /// The link has other sockets now; whoever waits begins anew with them.
    pub(super) fn replace(&self, sockets: Arc<[Arc<OwnedFd>]>) {
        *self.sockets.lock() = sockets;
        self.wake();
    }
}

impl Waiter for Poller {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        let sockets = Arc::clone(&self.sockets.lock());
        let mut polled = vec![
            PollFd::new(&self.wakes, PollFlags::IN),
            PollFd::from_borrowed_fd(self.news.socket(), PollFlags::IN),
        ];
        if packets {
            polled.extend(
                sockets
                    .iter()
                    .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
            );
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An error, such as a signal, is an early return.
        let woken =
            poll(&mut polled, timeout.as_ref()).is_ok_and(|_| !polled[0].revents().is_empty());
        if woken {
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
