//! Closing sockets. What was sent arrives all the same: the service's thread waits for that, for so long and no longer.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ends::{Channel, OwnId};
use super::service::{Served, Waits, existing, service};
use super::{Any, Inner, Phase, SOCKETS, remove};
use crate::call::Errno;
use crate::rsocket::stream::Stream;
use crate::rsocket::stream::wire::Message;
use crate::rsocket::wait::{LOOK_AGAIN, Progress, readable, sleep};

/// How long a closed socket stays for what was sent to arrive. A peer that takes nothing holds it no longer.
const LINGERS: Duration = Duration::from_secs(10);
/// How long the close of a socket that blocks waits for that itself: a peer that answers needs less.
const BRIEF: Duration = Duration::from_millis(5);
/// How long the end of the process waits for it.
const EXIT: Duration = Duration::from_secs(2);
/// Closed sockets that may stay at a time. Beyond it they end at once.
const CLOSING_MAX: usize = 1024;

/// A stream whose socket is closed.
struct Closing(Mutex<Option<Remains>>);

/// Dropped in this order.
struct Remains {
    stream: Stream,
    id: OwnId,
    until: Instant,
}

impl Remains {
    /// Whether everything has arrived, or the time is over.
    fn is_over(&mut self, now: Instant) -> bool {
        self.stream.advance();
        if self.stream.is_up {
            self.stream.arm();
            // What has completed before it was armed.
            self.stream.advance();
        }
        !self.stream.is_up || now >= self.until
    }

    /// Waits for that, so long at most; returns whether it is so.
    fn waits(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            let now = Instant::now();
            if self.is_over(now) || now >= until {
                return !self.stream.is_up || now >= self.until;
            }
            let slice = until.min(self.until) - now;
            if sleep(&mut [readable(self.stream.fd())], slice.min(LOOK_AGAIN)).is_err() {
                // A signal: the rest is left to the service.
                return false;
            }
        }
    }
}

impl Served for Closing {
    fn serve(&self, now: Instant) -> Option<Waits> {
        let mut place = self.0.lock();
        let remains = place.as_mut()?;
        if remains.is_over(now) {
            *place = None;
            return None;
        }
        Some(Waits {
            fds: vec![remains.stream.fd()],
            until: Some(remains.until),
        })
    }
}

/// Closes a socket.
pub(in crate::rsocket) fn close(fd: c_int) -> Result<(), Errno> {
    let socket = match remove(fd)? {
        Any::Stream(socket) => socket,
        Any::Datagrams(socket) => return socket.close(),
    };
    let mut inner = socket.inner.lock();
    inner.advance();
    let is_nonblocking = inner.is_nonblocking;
    let linger = inner.options.linger_time();
    let is_open = inner.phase == Phase::Open;
    inner.phase = Phase::Failed(Errno(libc::EBADF));
    let listening = inner.listening.take();
    let (channel, id, stream) = (inner.channel.take(), inner.id.take(), inner.stream.take());
    // The program may use its memory for something else afterwards.
    inner.regions.clear();
    drop(inner);
    // Threads that wait for it go on: the one at its descriptor, and those that this one would wake.
    // SAFETY: it is open as long as the channel.
    let shown = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = rustix::io::write(shown, &1_u64.to_ne_bytes());
    socket.inner.notify();
    drop(listening);
    if let Some((stream, id)) = stream.zip(id) {
        let mut remains = Remains {
            stream,
            id,
            until: Instant::now() + linger.unwrap_or_default().max(LINGERS),
        };
        if is_open && linger != Some(Duration::ZERO) {
            remains.stream.say(Message::Disconnect);
            let patience = linger.unwrap_or(BRIEF);
            if is_nonblocking || !remains.waits(patience) {
                leave(remains, channel, is_nonblocking);
            }
        }
    }
    if let Some(service) = existing() {
        // It no longer waits at descriptors whose numbers others may have now.
        service.wake();
    }
    Ok(())
}

/// Leaves it to the service. The socket's descriptor is free afterwards.
fn leave(mut remains: Remains, channel: Option<Channel>, is_nonblocking: bool) {
    let service = service().and_then(|service| {
        remains.id.move_to(service.sink()?)?;
        Ok(service)
    });
    drop(channel);
    match service {
        Ok(service) => {
            service.add_closed(Arc::new(Closing(Mutex::new(Some(remains)))), CLOSING_MAX);
        }
        // There is no thread for it, or no descriptor.
        Err(_) if !is_nonblocking => {
            remains.waits(LINGERS);
        }
        Err(_) => {}
    }
}

/// Has the process, when it ends, wait for what its sockets have sent. Called when the connection manager exists, whose own
/// farewell comes after this one.
pub(super) fn watch_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: a function of this library, which is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::atexit(farewell);
    });
}

extern "C" fn farewell() {
    let until = Instant::now() + EXIT;
    if let Some(service) = existing() {
        service.wait_closed(until);
    }
    let sockets: Vec<_> = match SOCKETS.try_lock() {
        Some(sockets) => sockets.values().cloned().collect(),
        None => return,
    };
    for socket in sockets {
        let Any::Stream(socket) = socket else {
            continue;
        };
        while !socket
            .inner
            .try_lock()
            .is_some_and(|mut inner| has_sent(&mut inner))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn has_sent(inner: &mut Inner) -> bool {
    inner.advance();
    inner.open().map_or(true, |stream| stream.all_sent())
}
