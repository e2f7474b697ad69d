//! The thread that serves sockets while their program does something else: it answers the requests of listeners, and
//! finishes sockets that were closed with data under way.
//!
//! It starts with the first of them. It takes no signals: those are the program's.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use verbs_core::process::spawn_without_signals;

use super::ends::Channel;
use crate::call::{Errno, caught};
use crate::rsocket::wait::{poll, readable};

/// The service, once a socket has needed it.
static SERVICE: Mutex<Option<Arc<Service>>> = Mutex::new(None);

/// What the thread serves.
pub(super) trait Served: Send + Sync {
    /// Does what is due, and says what to wait for; `None` when it is over, and is not served again. It does not block.
    fn serve(&self, now: Instant) -> Option<Waits>;
}

/// What one of them waits for.
#[derive(Default)]
pub(super) struct Waits {
    /// Descriptors that are readable when there is something to do.
    pub(super) fds: Vec<c_int>,
    /// When there is something to do in any case.
    pub(super) until: Option<Instant>,
}

/// What the thread has in common with those who give it work.
pub(super) struct Service {
    /// Readable when the list has changed, or when one of it has something to do.
    wake: OwnedFd,
    list: Mutex<List>,
    /// One of the list is over.
    over: Condvar,
    /// See [`Service::sink`].
    sink: OnceLock<Channel>,
}

/// What is served, by numbers that grow.
#[derive(Default)]
struct List {
    listeners: BTreeMap<u64, Arc<dyn Served>>,
    closed: BTreeMap<u64, Arc<dyn Served>>,
    next: u64,
}

impl List {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The service; starts it if there is none. `EAGAIN` if the process may have no more threads, or descriptors.
pub(super) fn service() -> Result<Arc<Service>, Errno> {
    let mut place = SERVICE.lock();
    if let Some(service) = &*place {
        return Ok(Arc::clone(service));
    }
    let service = Arc::new(Service {
        wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        list: Mutex::default(),
        over: Condvar::new(),
        sink: OnceLock::new(),
    });
    let its = Arc::clone(&service);
    let started = spawn_without_signals("rsockets", move || its.run());
    started.map_err(|_| Errno(libc::EAGAIN))?;
    Ok(Arc::clone(place.insert(service)))
}

/// The service, if it has been started.
pub(super) fn existing() -> Option<Arc<Service>> {
    SERVICE.lock().clone()
}

impl Service {
    /// Serves a listener.
    pub(super) fn add_listener(&self, one: Arc<dyn Served>) {
        {
            let mut list = self.list.lock();
            let number = list.number();
            list.listeners.insert(number, one);
        }
        self.wake();
    }

    /// Serves a socket that is closed. If there are `most` already, the oldest of them ends.
    pub(super) fn add_closed(&self, one: Arc<dyn Served>, most: usize) {
        let ended = {
            let mut list = self.list.lock();
            let is_full = list.closed.len() >= most;
            let ended = is_full.then(|| list.closed.pop_first());
            let number = list.number();
            list.closed.insert(number, one);
            ended
        };
        drop(ended);
        self.wake();
    }

    /// A channel for ids whose events nobody wants to know. They go with their ids.
    pub(super) fn sink(&self) -> Result<&Channel, Errno> {
        if self.sink.get().is_none() {
            let channel = Channel::new()?;
            // Another thread may have been faster.
            let _ = self.sink.set(channel);
        }
        self.sink.get().ok_or(Errno(libc::EIO))
    }

    /// Has all of them served at once.
    pub(super) fn wake(&self) {
        // Not through the C library, whose functions `--rsocket` replaces. A counter that is full is readable too.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits until no socket that is closed is left, or until then.
    pub(super) fn wait_closed(&self, until: Instant) {
        let mut list = self.list.lock();
        while !list.closed.is_empty() {
            if self.over.wait_until(&mut list, until).timed_out() {
                return;
            }
        }
    }

    fn run(&self) {
        loop {
            let mut fds = vec![readable(self.wake.as_raw_fd())];
            let until = self.turn(&mut fds);
            let left = until.map(|until| {
                // Rounded up, so that it is over then.
                until.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
            });
            // An interrupted wait, or a descriptor that was closed in the meantime, is a turn too many.
            let _ = poll(&mut fds, left);
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// Serves each of them once. Adds what they wait for, and returns when the first of them has to be served.
    fn turn(&self, fds: &mut Vec<libc::pollfd>) -> Option<Instant> {
        let all: Vec<_> = {
            let list = self.list.lock();
            let entry = |(number, one): (&u64, &Arc<dyn Served>)| (*number, Arc::clone(one));
            list.listeners
                .iter()
                .chain(&list.closed)
                .map(entry)
                .collect()
        };
        let (now, mut first) = (Instant::now(), None::<Instant>);
        let mut over = Vec::new();
        for (number, one) in all {
            match caught(|| Ok(one.serve(now))) {
                Ok(Some(waits)) => {
                    fds.extend(waits.fds.into_iter().map(readable));
                    first = [first, waits.until].into_iter().flatten().min();
                }
                // One that has panicked is not served again.
                Ok(None) | Err(_) => over.push(number),
            }
        }
        if !over.is_empty() {
            let mut list = self.list.lock();
            let gone: Vec<_> = over
                .iter()
                .flat_map(|number| [list.listeners.remove(number), list.closed.remove(number)])
                .collect();
            drop(list);
            drop(gone);
            self.over.notify_all();
        }
        first
    }
}

/// No other thread starts it while the process forks.
pub(super) fn before_fork() {
    std::mem::forget(SERVICE.lock());
}

pub(super) fn after_fork_in_parent() {
    // SAFETY: this thread has locked it in `before_fork`.
    unsafe { SERVICE.force_unlock() }
}

/// The child has no such thread. What the parent's serves stays in its memory.
pub(super) fn after_fork_in_child() {
    // SAFETY: as in the parent, whose thread this is a copy of.
    unsafe { SERVICE.force_unlock() }
    std::mem::forget(SERVICE.lock().take());
}
