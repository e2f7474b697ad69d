//! A listening socket whose loop goes on when a connection cannot be taken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hca_sim::link::fabric::socket::accept_from;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use verbs_core::time::Instant;

/// Connections taken in a row before clients have their turn.
const TURN: usize = 16;

/// How long nothing is accepted after the system has refused. The listener is readable all that time, so that a loop
/// that looked at it would do nothing else; nginx and Go's net/http do the same.
const BREATH: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(in crate::daemons) struct Door {
    listener: OwnedFd,
    /// Nothing is accepted before.
    rests_until: Option<Instant>,
}

impl Door {
    pub(in crate::daemons) fn new(listener: OwnedFd) -> Self {
        Self {
            listener,
            rests_until: None,
        }
    }

    /// The listener, to be waited for while the door does not [rest](Self::rests_until).
    pub(in crate::daemons) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// What to wait for.
    pub(in crate::daemons) fn entry(&self) -> PollFd<'_> {
        let wanted = match self.rests_until {
            None => PollFlags::IN,
            Some(_) => PollFlags::empty(),
        };
        PollFd::new(&self.listener, wanted)
    }

    /// When it is to be looked at again, ready or not.
    pub(in crate::daemons) fn rests_until(&self) -> Option<Instant> {
        self.rests_until
    }

    /// Clients that have connected, if there are some: poll tells, but of a door that rests.
    pub(in crate::daemons) fn accept(&mut self, now: Instant, is_ready: bool) -> Vec<OwnedFd> {
        if !is_ready && self.rests_until.is_none() {
            return Vec::new();
        }
        self.accept_by(now, |listener| accept_from(listener.as_fd()))
    }

    fn accept_by(
        &mut self,
        now: Instant,
        accept: impl Fn(&OwnedFd) -> Result<OwnedFd, Errno>,
    ) -> Vec<OwnedFd> {
        if self.rests_until.is_some_and(|end| now < end) {
            return Vec::new();
        }
        self.rests_until = None;
        let mut clients = Vec::new();
        for _ in 0..TURN {
            match accept(&self.listener) {
                Ok(client) => clients.push(client),
                Err(Errno::AGAIN) => break,
                // It has gone again.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // Descriptors or memory are short, mostly. It passes.
                Err(_) => {
                    self.rests_until = Some(now + BREATH);
                    break;
                }
            }
        }
        clients
    }
}

#[cfg(test)]
mod tests {
    use hca_sim::link::fabric::socket::{connect_to, listen_at};

    use super::*;

    /// Goal: a system that refuses is not asked again at once, and clients that wait are taken later. Method: each
    /// error that accept has when something is short.
    #[test]
    fn a_door_rests_when_nobody_can_be_let_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let mut door = Door::new(listen_at(&path).expect("a socket"));
        let _client = connect_to(&path).expect("somebody listens");
        let mut now = Instant::ZERO;
        for error in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(door.accept_by(now, |_| Err(error)).is_empty());
            let end = door.rests_until().expect("it rests");
            assert_eq!(end, now + BREATH);
            let asked = std::cell::Cell::new(false);
            let refuse = |_: &OwnedFd| {
                asked.set(true);
                Err(error)
            };
            assert!(door.accept_by(now, refuse).is_empty());
            assert!(!asked.get(), "it rests");
            now = end;
        }
        assert_eq!(door.accept(now, false).len(), 1, "it has rested");
        assert_eq!(door.rests_until(), None);
        assert!(door.accept(now, true).is_empty());
        assert!(door.accept_by(now, |_| Err(Errno::CONNABORTED)).is_empty());
        assert_eq!(
            door.rests_until(),
            None,
            "that client has gone, others come"
        );
    }
}
