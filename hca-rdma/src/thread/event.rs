//! The thread that waits for events: of completion queues, of the device, and of its own end.

use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use verbs_abi::rdmacm::event::DEVICE_REMOVAL;
use verbs_core::collect;

use crate::bell::Bell;
use crate::cm::table::{Connections, Step};
use crate::lane::shielded;
use crate::shared::Shared;

/// The thread: reports events until it has to stop.
pub(crate) fn run(nic: &Shared, bell: &Bell) {
    let connections = nic.cm.as_ref().map(|cm| cm.channel.fd());
    loop {
        let mut fds = ArrayVec::<_, 4>::from_iter([
            PollFd::from_borrowed_fd(nic.channel.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(nic.context.async_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN),
        ]);
        fds.extend(connections.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let patience = nic.clock.until_next().map(timespec);
        match poll(&mut fds, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "cannot wait for events of the device any more");
                nic.remove();
                return;
            }
        }
        let [completions, device, rung] = [0, 1, 2].map(|at: usize| fds[at].revents());
        if rung.contains(PollFlags::IN) && bell.is_end() {
            return;
        }
        // Handlers run after all waiting events have been read.
        shielded(|| {
            collect(|| {
                while let Some(number) = nic.channel.next() {
                    nic.fire(number);
                }
                while let Some(event) = nic.context.next_event() {
                    nic.raise(event);
                }
                if let Some(cm) = &nic.cm {
                    read(nic, cm);
                }
                nic.clock.wake_due();
            });
        });
        let broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if (completions | device).intersects(broken)
            && !(completions | device).contains(PollFlags::IN)
        {
            // The kernel has removed the device, and there will be no events.
            nic.remove();
            return;
        }
    }
}

/// Events of connections are for the command thread; a removal is not.
fn read(nic: &Shared, cm: &Connections) {
    while let Some(arrival) = cm.channel.next(|| nic.number()) {
        match arrival.kind {
            DEVICE_REMOVAL => nic.remove(),
            _ => nic.lanes.step(Step::Event(arrival)),
        }
    }
}

/// Rounded up to the next microsecond, so that the deadline has passed when the wait ends.
fn timespec(span: Duration) -> Timespec {
    let span = span.saturating_add(Duration::from_micros(1));
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}
