//! Waiting on a socket: one thread waits at its descriptors and wakes the others.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::call::Errno;
use crate::device;

/// How long a thread waits before it looks again: another thread may have taken the event that it waits for.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a thread polls before it sleeps, as in librdmacm: waking it takes longer.
const SPIN: Duration = Duration::from_micros(10);

/// The state of a socket, as threads wait for it to change.
pub(super) trait Progress {
    /// Handles what has happened.
    fn advance(&mut self);

    /// Makes the descriptors readable with the next event.
    fn arm(&mut self);

    /// The descriptors to wait at for the next event.
    fn descriptors(&self) -> Vec<c_int>;
}

/// The state of a socket behind its lock, and the threads that wait for it to change.
pub(super) struct Awaited<T> {
    inner: Mutex<T>,
    /// A thread waits at the descriptors, and wakes the others. Changes under the lock.
    is_watched: AtomicBool,
    changed: Condvar,
}

impl<T: Progress> Awaited<T> {
    pub(super) fn new(inner: T) -> Self {
        Self {
            inner: Mutex::new(inner),
            is_watched: AtomicBool::new(false),
            changed: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.inner.lock()
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock()
    }

    /// Has threads look again that another one would wake.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until `is_so` holds; `EAGAIN` at once if the caller does not block.
    pub(super) fn wait(
        &self,
        inner: &mut MutexGuard<'_, T>,
        waits: bool,
        is_so: impl Fn(&mut T) -> bool,
    ) -> Result<(), Errno> {
        inner.advance();
        if is_so(inner) {
            return Ok(());
        }
        if !waits {
            return Err(Errno(libc::EAGAIN));
        }
        let until = Instant::now() + SPIN;
        loop {
            inner.advance();
            if is_so(inner) {
                return Ok(());
            }
            if Instant::now() < until {
                // Lets other threads have their turn.
                MutexGuard::bump(inner);
                continue;
            }
            if self.is_watched.load(Ordering::Relaxed) {
                self.changed.wait_for(inner, LOOK_AGAIN);
                continue;
            }
            inner.arm();
            // What has completed before it was armed.
            inner.advance();
            if is_so(inner) {
                return Ok(());
            }
            let mut fds: Vec<_> = inner.descriptors().into_iter().map(readable).collect();
            self.is_watched.store(true, Ordering::Relaxed);
            let waited = MutexGuard::unlocked(inner, || sleep(&mut fds, LOOK_AGAIN));
            self.is_watched.store(false, Ordering::Relaxed);
            self.changed.notify_all();
            waited?;
        }
    }
}

pub(super) fn readable(fd: c_int) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Waits until one of the descriptors is ready, and takes in packets that arrive, if it may; may return early.
pub(super) fn sleep(fds: &mut [libc::pollfd], timeout: Duration) -> Result<(), Errno> {
    let is_plain = |fd: &libc::pollfd| fd.fd >= 0 && fd.events & !libc::POLLIN == 0;
    if fds.iter().all(is_plain) {
        // SAFETY: they are open: this library's, or named by a program that waits for them.
        let also = fds
            .iter()
            .map(|fd| unsafe { BorrowedFd::borrow_raw(fd.fd) });
        let also: Vec<_> = also.collect();
        if let Some(slept) = device::sleep(&also, Some(timeout)) {
            let code = |error: io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
            return slept.map_err(code);
        }
    }
    poll(fds, Some(timeout)).map(drop)
}

/// Waits at descriptors. Returns how many are ready.
pub(super) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let timeout = timeout.map_or(-1, |timeout| {
        c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
    });
    // SAFETY: there are that many descriptors.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    usize::try_from(count).map_err(|_| Errno::last())
}
