//! Which sockets have something, and what a thread waits for that with.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stream::{Interest, Token};
use crate::time::{Waiter, Wakes};

/// Sockets that one look names at most; the others are named by the next one.
const READY_MAX: usize = 64;

/// Level-triggered `epoll`, and what ends a wait.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    wakes: Wakes,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            wakes: Wakes::new()?,
        })
    }

    /// Has that socket named from now on. `known`: it is named already, for something else perhaps.
    pub(super) fn watch(
        &self,
        socket: impl AsFd,
        known: bool,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        let flags = match interest {
            Interest::Nothing if known => return Ok(epoll::delete(&self.epoll, socket)?),
            Interest::Nothing => return Ok(()),
            Interest::Send => EventFlags::OUT,
            Interest::Receive => EventFlags::IN,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
        };
        let data = EventData::new_u64(token.0);
        if known {
            epoll::modify(&self.epoll, socket, data, flags)?;
        } else {
            epoll::add(&self.epoll, socket, data, flags)?;
        }
        Ok(())
    }

    pub(super) fn ready(&self, tokens: &mut Vec<Token>) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; READY_MAX];
        // An error, such as a signal, is a look in vain.
        let named = epoll::wait(&self.epoll, &mut events, Some(&now)).unwrap_or(0);
        tokens.extend(events[..named].iter().map(|event| {
            let data = event.data;
            Token(data.u64())
        }));
    }
}

impl Waiter for Poller {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        let wakes = PollFd::new(&self.wakes, PollFlags::IN);
        let mut polled = ArrayVec::<_, 2>::from_iter([wakes]);
        if packets {
            polled.push(PollFd::new(&self.epoll, PollFlags::IN));
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An error, such as a signal, is an early return.
        let woken =
            poll(&mut polled, timeout.as_ref()).is_ok_and(|_| !polled[0].revents().is_empty());
        if woken {
            self.wakes.take();
        }
    }

    fn wake(&self) {
        self.wakes.ring();
    }
}
