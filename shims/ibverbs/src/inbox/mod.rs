//! A queue of events with a descriptor that is readable while there are some: used for completion channels and for the
//! asynchronous events of a device.
//!
//! Programs poll the descriptor, and set `O_NONBLOCK` on it. A blocking take waits at the port for packets, if it may, or
//! on a futex. A signal interrupts it as it interrupts a `read`: with `EINTR`, unless its handler restarts calls.

pub(crate) mod event;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::thread::futex;

use crate::call::Errno;

/// Events of one descriptor.
pub(crate) struct Inbox<T> {
    /// Counts the events. Both are changed under the lock, so that they agree.
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
    /// Changes with every event.
    turn: AtomicU32,
    sleepers: AtomicU32,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?,
            events: Mutex::new(VecDeque::with_capacity(16)),
            turn: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, event: T) {
        self.push_if(event, || true);
    }

    /// Adds an event if `wanted` says so, which sees what was written before a [`purge`](Self::purge) that is over.
    pub(crate) fn push_if(&self, event: T, wanted: impl Fn() -> bool) {
        {
            let mut events = self.events.lock();
            if !wanted() {
                return;
            }
            events.push_back(event);
            // The counter can hold more than fits in memory, so the write does not block.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
        self.turn.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.turn, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.lock().is_empty()
    }

    /// Takes the oldest event; `taken` sees it before a [`purge`](Self::purge) can run. Waits for one, unless the
    /// program has set `O_NONBLOCK`.
    pub(crate) fn take(&self, taken: impl Fn(&T)) -> Result<T, Errno> {
        self.take_beside(taken, |_| None)
    }

    /// The same. `sleep` waits until the descriptor is readable, and may return early; `None`: it does not.
    pub(crate) fn take_beside(
        &self,
        taken: impl Fn(&T),
        sleep: impl Fn(BorrowedFd<'_>) -> Option<io::Result<()>>,
    ) -> Result<T, Errno> {
        loop {
            let turn = self.turn.load(Ordering::SeqCst);
            if let Some(event) = self.pop(&taken) {
                return Ok(event);
            }
            if fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
                return Err(Errno(libc::EAGAIN));
            }
            match sleep(self.fd.as_fd()) {
                None => {}
                Some(Ok(())) => continue,
                Some(Err(error)) => match error.raw_os_error().unwrap_or(libc::EIO) {
                    libc::EINTR if restarts() => continue,
                    code => return Err(Errno(code)),
                },
            }
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let slept = futex::wait(&self.turn, futex::Flags::PRIVATE, turn, None);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            match slept {
                Ok(()) | Err(rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn pop(&self, taken: impl Fn(&T)) -> Option<T> {
        let mut events = self.events.lock();
        let event = events.pop_front()?;
        self.count_down();
        taken(&event);
        Some(event)
    }

    /// Takes out the events that must no longer be delivered here, in their order.
    pub(crate) fn purge(&self, unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = self.events.lock();
        let mut out = Vec::new();
        for _ in 0..events.len() {
            match events.pop_front() {
                Some(event) if unwanted(&event) => out.push(event),
                Some(event) => events.push_back(event),
                None => {}
            }
        }
        for _ in &out {
            self.count_down();
        }
        out
    }

    /// The caller holds the lock and has taken an event out, so the count is above 0 and the read does not block.
    fn count_down(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }
}

/// Whether handlers of signals restart calls (`SA_RESTART`). `poll` is interrupted by all of them, and does not tell
/// which one it was: so one handler that does not restart decides for all. Those of faults interrupt no call.
fn restarts() -> bool {
    const FAULTS: [c_int; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
    ];
    let restarts_after = |signal| {
        // SAFETY: plain numbers, and a handler that is not called.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: it only reads.
        let code = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        code != 0 || !is_handled || action.sa_flags & libc::SA_RESTART != 0
    };
    (1..=libc::SIGRTMAX()).all(|signal| FAULTS.contains(&signal) || restarts_after(signal))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::fcntl_setfl;

    use super::*;

    fn is_readable(inbox: &Inbox<u32>) -> bool {
        let mut fds = [PollFd::new(&inbox.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("it polls") == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events() {
        let inbox = Inbox::new().expect("a descriptor");
        fcntl_setfl(&inbox.fd, OFlags::NONBLOCK).expect("it is set");
        assert_eq!(inbox.take(|_| ()), Err(Errno(libc::EAGAIN)));
        for n in 0..4 {
            inbox.push(n);
        }
        assert_eq!(inbox.take(|_| ()), Ok(0));
        inbox.purge(|&n| n < 3);
        assert!(is_readable(&inbox));
        assert_eq!(inbox.take(|_| ()), Ok(3));
        assert!(!is_readable(&inbox));
        assert_eq!(inbox.take(|_| ()), Err(Errno(libc::EAGAIN)));
    }

    #[test]
    fn an_event_that_is_not_wanted_any_longer_does_not_wait() {
        let inbox = Inbox::new().expect("a descriptor");
        inbox.push_if(1, || false);
        assert!(!is_readable(&inbox) && inbox.is_empty());
        inbox.push_if(2, || true);
        assert_eq!(inbox.take(|_| ()), Ok(2));
    }

    #[test]
    fn whoever_waits_gets_what_comes() {
        let inbox = Inbox::new().expect("a descriptor");
        std::thread::scope(|scope| {
            let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| inbox.take(|_| ()))).collect();
            std::thread::sleep(Duration::from_millis(20));
            for n in 0..3 {
                inbox.push(n);
            }
            let mut got: Vec<_> = waits
                .into_iter()
                .map(|wait| wait.join().expect("no panic").expect("an event"))
                .collect();
            got.sort_unstable();
            assert_eq!(got, [0, 1, 2]);
        });
    }

    /// Goal: threads that take, push and purge at once lose nothing, and leave no count behind. Method: every event is
    /// either taken or purged, once.
    #[test]
    fn a_purge_beside_takes_loses_nothing() {
        const EVENTS: u32 = 4000;
        let inbox = Inbox::new().expect("a descriptor");
        let (mut got, mut purged) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let waits: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut got = Vec::new();
                        loop {
                            match inbox.take(|_| ()).expect("an event") {
                                u32::MAX => return got,
                                n => got.push(n),
                            }
                        }
                    })
                })
                .collect();
            for n in 0..EVENTS {
                inbox.push(n);
                if n % 7 == 0 {
                    purged.extend(inbox.purge(|n| n % 2 == 0));
                }
            }
            (0..2).for_each(|_| inbox.push(u32::MAX));
            for wait in waits {
                got.extend(wait.join().expect("no panic"));
            }
        });
        assert!(!is_readable(&inbox) && inbox.is_empty());
        let mut all = [got, purged].concat();
        all.sort_unstable();
        assert_eq!(all, (0..EVENTS).collect::<Vec<_>>());
    }
}
