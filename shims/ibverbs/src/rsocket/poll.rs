//! `rpoll`: sockets of this library and other descriptors together.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::socket::{self, Phase, Socket, poll, readable};
use crate::call::{Errno, number};

/// As for a socket's own waits.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// `rpoll`.
pub(crate) unsafe extern "C" fn rpoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    number(|| {
        let fds = match (fds.is_null(), count) {
            (_, 0) => &mut [],
            (true, _) => return Err(Errno(libc::EFAULT)),
            // SAFETY: so many of the program's.
            _ => unsafe { std::slice::from_raw_parts_mut(fds, count as usize) },
        };
        let until = u64::try_from(timeout)
            .ok()
            .map(|ms| Instant::now() + Duration::from_millis(ms));
        let ready = wait(fds, until)?;
        Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
    })
}

fn wait(fds: &mut [libc::pollfd], until: Option<Instant>) -> Result<usize, Errno> {
    loop {
        let ready = look(fds, false)?;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if ready > 0 || left == Some(Duration::ZERO) {
            return Ok(ready);
        }
        // Once more, with all of them armed: nothing that happens from now on is missed.
        let ready = look(fds, true)?;
        if ready > 0 {
            return Ok(ready);
        }
        let mut below: Vec<libc::pollfd> = Vec::with_capacity(fds.len() * 2);
        for fd in fds.iter() {
            match socket::of(fd.fd) {
                Ok(socket) => below.extend(socket.inner.lock().descriptors(fd.fd).map(readable)),
                Err(_) => below.push(libc::pollfd { revents: 0, ..*fd }),
            }
        }
        let slice = left
            .map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))
            .max(Duration::from_millis(1));
        poll(&mut below, Some(slice))?;
    }
}

/// What is so now, of all of them; how many have something.
fn look(fds: &mut [libc::pollfd], arms: bool) -> Result<usize, Errno> {
    let mut ready = 0;
    for fd in fds {
        fd.revents = match socket::of(fd.fd) {
            Ok(socket) => state_of(&socket, arms) & (fd.events | libc::POLLHUP | libc::POLLERR),
            Err(_) => {
                poll(std::slice::from_mut(fd), Some(Duration::ZERO))?;
                fd.revents
            }
        };
        ready += usize::from(fd.revents != 0);
    }
    Ok(ready)
}

/// What may be done with a socket without waiting.
fn state_of(socket: &Socket, arms: bool) -> i16 {
    let mut inner = socket.inner.lock();
    if arms && let Ok(stream) = inner.open() {
        stream.arm();
    }
    socket.advance(&mut inner);
    match inner.phase {
        Phase::Listening => {
            let mut own = [readable(socket.fd)];
            match poll(&mut own, Some(Duration::ZERO)) {
                Ok(1..) => libc::POLLIN,
                _ => 0,
            }
        }
        Phase::Open => inner.open().map_or(0, |stream| {
            let mut state = 0;
            let set = |state: &mut i16, is: bool, bit: i16| *state |= if is { bit } else { 0 };
            set(
                &mut state,
                stream.may_receive() || !stream.readable,
                libc::POLLIN,
            );
            set(
                &mut state,
                stream.may_send() && stream.writable,
                libc::POLLOUT,
            );
            set(&mut state, !stream.is_up, libc::POLLHUP);
            set(&mut state, stream.error.is_some(), libc::POLLERR);
            state
        }),
        Phase::Failed(_) => libc::POLLERR | libc::POLLHUP | libc::POLLIN | libc::POLLOUT,
        Phase::New | Phase::Bound | Phase::Connecting => 0,
    }
}
