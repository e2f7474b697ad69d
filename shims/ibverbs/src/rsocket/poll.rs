//! `rpoll`: sockets of this library and other descriptors together.

use std::ffi::c_int;
use std::mem::zeroed;
use std::time::{Duration, Instant};

use super::datagram::Datagrams;
use super::socket::{self, Any, Phase, Socket};
use super::wait::{LOOK_AGAIN, Progress, poll, readable, sleep};
use crate::call::{Errno, number};

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
            // SAFETY: the program passes that many.
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
            let own = match socket::any(fd.fd) {
                Ok(Any::Stream(socket)) => socket.inner.lock().descriptors(),
                Ok(Any::Datagrams(socket)) => socket.inner.lock().descriptors(),
                Err(_) => {
                    below.push(libc::pollfd { revents: 0, ..*fd });
                    continue;
                }
            };
            below.extend(own.into_iter().map(readable));
        }
        let slice = left
            .map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))
            .max(Duration::from_millis(1));
        sleep(&mut below, slice)?;
    }
}

/// The current state of all of them. Returns how many have something.
fn look(fds: &mut [libc::pollfd], arms: bool) -> Result<usize, Errno> {
    let mut ready = 0;
    for fd in fds {
        let asked = fd.events | libc::POLLHUP | libc::POLLERR;
        fd.revents = match socket::any(fd.fd) {
            Ok(Any::Stream(socket)) => state_of(&socket, arms) & asked,
            Ok(Any::Datagrams(socket)) => state_of_datagrams(&socket, arms) & asked,
            Err(_) => {
                poll(std::slice::from_mut(fd), Some(Duration::ZERO))?;
                fd.revents
            }
        };
        ready += usize::from(fd.revents != 0);
    }
    Ok(ready)
}

/// The operations that are possible on a socket without blocking.
fn state_of(socket: &Socket, arms: bool) -> i16 {
    let mut inner = socket.inner.lock();
    if arms {
        inner.arm();
    }
    inner.advance();
    match inner.phase {
        Phase::Listening if inner.has_ready() => libc::POLLIN,
        Phase::Listening => 0,
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
            // Programs take a hang-up as the end, so data that have arrived are read first.
            let is_over = !stream.is_up && !stream.may_receive();
            set(&mut state, is_over, libc::POLLHUP);
            set(&mut state, stream.error.is_some(), libc::POLLERR);
            state
        }),
        Phase::Failed(_) => libc::POLLERR | libc::POLLHUP | libc::POLLIN | libc::POLLOUT,
        Phase::New | Phase::Bound | Phase::Connecting => 0,
    }
}

/// The same for datagrams.
fn state_of_datagrams(socket: &Datagrams, arms: bool) -> i16 {
    let mut inner = socket.inner.lock();
    if arms {
        inner.arm();
    }
    inner.advance();
    let bits = [
        (inner.may_receive(), libc::POLLIN),
        (inner.may_send(), libc::POLLOUT),
    ];
    let held = bits.into_iter().filter(|(is_so, _)| *is_so);
    held.fold(0, |state, (_, bit)| state | bit)
}

/// `rselect`.
pub(crate) unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    let sets = [
        (read, libc::POLLIN),
        (write, libc::POLLOUT),
        (except, libc::POLLPRI),
    ];
    let mut fds = Vec::new();
    for fd in 0..count {
        // SAFETY: NULL, or a set of the program.
        let asks = |set: *mut libc::fd_set| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
        let events = sets
            .iter()
            .filter(|(set, _)| asks(*set))
            .fold(0, |events, (_, bit)| events | bit);
        if events != 0 {
            fds.push(libc::pollfd {
                fd,
                events,
                revents: 0,
            });
        }
    }
    // SAFETY: NULL, or the program's.
    let timeout = unsafe { timeout.as_ref() }.map_or(-1, |time| {
        let ms = time
            .tv_sec
            .saturating_mul(1000)
            .saturating_add(time.tv_usec / 1000);
        c_int::try_from(ms).unwrap_or(c_int::MAX)
    });
    // SAFETY: there are that many descriptors.
    let code = unsafe { rpoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    if code < 0 {
        return code;
    }
    let mut total = 0;
    for (set, bit) in sets {
        if set.is_null() {
            continue;
        }
        // SAFETY: a set of the program's, and an empty one.
        unsafe {
            let mut out: libc::fd_set = zeroed();
            let failed = libc::POLLHUP | libc::POLLERR;
            let is_set =
                |fd: &&libc::pollfd| fd.events & bit != 0 && fd.revents & (bit | failed) != 0;
            for fd in fds.iter().filter(is_set) {
                libc::FD_SET(fd.fd, &raw mut out);
                total += 1;
            }
            *set = out;
        }
    }
    total
}
