//! `rpoll`: sockets of this library and other descriptors together.

use std::ffi::c_int;
use std::mem::zeroed;
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
            // Programs take a hang-up for the end, so what has come is read first.
            let is_over = !stream.is_up && !stream.may_receive();
            set(&mut state, is_over, libc::POLLHUP);
            set(&mut state, stream.error.is_some(), libc::POLLERR);
            state
        }),
        Phase::Failed(_) => libc::POLLERR | libc::POLLHUP | libc::POLLIN | libc::POLLOUT,
        Phase::New | Phase::Bound | Phase::Connecting => 0,
    }
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
        // SAFETY: NULL, or a set of the program's.
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
    // SAFETY: so many descriptors.
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
