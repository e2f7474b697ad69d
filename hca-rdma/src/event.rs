//! The thread that waits for events: of completion queues, of the device, and for its end.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use verbs_core::collect;
use verbs_core::sync::Arc;

use crate::lane::shielded;
use crate::shared::Shared;

/// Ends the thread.
pub(crate) struct Stop(OwnedFd);

impl Stop {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Arc::new(Self(eventfd(0, flags)?)))
    }

    pub(crate) fn now(&self) {
        // The counter has room for more than one.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// The thread: tells of events until it is told to stop.
pub(crate) fn run(nic: &Shared, stop: &Stop) {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(nic.channel.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(nic.context.async_fd(), PollFlags::IN),
            PollFd::new(&stop.0, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "cannot wait for events of the device any more");
                nic.remove();
                return;
            }
        }
        let [completions, device, end] = fds.map(|fd| fd.revents());
        if end.contains(PollFlags::IN) {
            return;
        }
        // Handlers run when all that has come has been looked at.
        shielded(|| {
            collect(|| {
                while let Some(number) = nic.channel.next() {
                    nic.fire(number);
                }
                while let Some(event) = nic.context.next_event() {
                    nic.raise(event);
                }
            });
        });
        let broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if (completions | device).intersects(broken)
            && !(completions | device).contains(PollFlags::IN)
        {
            // The kernel has taken the device away, and there will be no events.
            nic.remove();
            return;
        }
    }
}
