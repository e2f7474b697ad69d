//! Making, connecting and configuring sockets: each call does what the socket call of its name does.

use std::ffi::{c_int, c_long, c_void};
use std::net::SocketAddr;

use super::datagram;
use super::options::Linger;
use super::socket::{self, Any, Inner, Phase};
use super::wait::Progress;
use crate::call::{Errno, number};
use crate::rdmacm::address::sockaddr;

/// `rsocket`: streams and datagrams over IPv4 and IPv6.
pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(|| {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(Errno::NOTSUP);
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                let fd = socket::create()?;
                socket::of(fd)?.inner.lock().is_nonblocking = is_nonblocking;
                Ok(fd)
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => datagram::create(domain, is_nonblocking),
            _ => Err(Errno::NOTSUP),
        }
    })
}

/// `rbind`.
pub(crate) unsafe extern "C" fn rbind(
    fd: c_int,
    addr: *const libc::sockaddr,
    _length: u32,
) -> c_int {
    number(|| {
        match socket::any(fd)? {
            // SAFETY: the program passes valid arguments.
            Any::Stream(socket) => unsafe { socket.inner.lock().bind(addr) }?,
            Any::Datagrams(socket) => {
                // SAFETY: as above.
                let addr = unsafe { sockaddr::from_c(addr) }?;
                socket.inner.lock().bind(addr)?;
            }
        }
        Ok(0)
    })
}

/// `rlisten`.
pub(crate) unsafe extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    number(|| socket::listen(fd, backlog).map(|()| 0))
}

/// `raccept`.
pub(crate) unsafe extern "C" fn raccept(
    fd: c_int,
    addr: *mut libc::sockaddr,
    length: *mut u32,
) -> c_int {
    number(|| {
        let accepted = socket::of(fd)?.accept()?;
        let [_, remote] = socket::of(accepted)?.inner.lock().addresses();
        // SAFETY: the program passes the place for the result.
        unsafe { tell(remote?, addr, length) };
        Ok(accepted)
    })
}

/// `rconnect`.
pub(crate) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const libc::sockaddr,
    _length: u32,
) -> c_int {
    number(|| {
        match socket::any(fd)? {
            // SAFETY: the program passes valid arguments.
            Any::Stream(socket) => unsafe { socket.connect(addr) }?,
            Any::Datagrams(socket) => {
                // SAFETY: as above.
                let addr = unsafe { sockaddr::from_c(addr) }?;
                socket.inner.lock().connect(addr)?;
            }
        }
        Ok(0)
    })
}

/// `rshutdown`.
pub(crate) unsafe extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    number(|| {
        match socket::any(fd)? {
            Any::Stream(socket) => socket.shutdown(how)?,
            // A peer is not informed of anything.
            Any::Datagrams(socket) => socket.flush()?,
        }
        Ok(0)
    })
}

/// `rclose`: what was sent arrives afterwards, unless the program has said with `SO_LINGER` that it waits, or does not care.
pub(crate) unsafe extern "C" fn rclose(fd: c_int) -> c_int {
    number(|| socket::close(fd).map(|()| 0))
}

/// # Safety
/// NULL, or as many bytes as the length says.
pub(super) unsafe fn tell(addr: SocketAddr, to: *mut libc::sockaddr, length: *mut u32) {
    let (storage, whole) = sockaddr::to_c(addr);
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let (false, Some(length)) = (to.is_null(), length.as_mut()) {
            let room = (*length as usize).min(whole);
            to.cast::<u8>()
                .copy_from_nonoverlapping(storage.0.as_ptr(), room);
            *length = whole as u32;
        }
    }
}

/// `rgetpeername`.
pub(crate) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut libc::sockaddr,
    length: *mut u32,
) -> c_int {
    number(|| {
        let remote = match socket::any(fd)? {
            Any::Stream(socket) => {
                let [_, remote] = socket.inner.lock().addresses();
                remote.ok()
            }
            Any::Datagrams(socket) => socket.inner.lock().remote(),
        };
        // SAFETY: the program passes the place for the result.
        unsafe { tell(remote.ok_or(Errno(libc::ENOTCONN))?, addr, length) };
        Ok(0)
    })
}

/// `rgetsockname`.
pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut libc::sockaddr,
    length: *mut u32,
) -> c_int {
    number(|| {
        let local = match socket::any(fd)? {
            Any::Stream(socket) => {
                let [local, _] = socket.inner.lock().addresses();
                local.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
            }
            Any::Datagrams(socket) => socket.inner.lock().local(),
        };
        // SAFETY: the program passes the place for the result.
        unsafe { tell(local, addr, length) };
        Ok(0)
    })
}

/// `rfcntl`: `F_GETFL` and `F_SETFL`, of which only `O_NONBLOCK` has an effect; `F_GETFD` and `F_SETFD` of the descriptor.
pub(crate) unsafe extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    number(|| match socket::any(fd)? {
        _ if matches!(command, libc::F_GETFD | libc::F_SETFD) => {
            // SAFETY: it is open, and is closed when a program is executed unless this one says otherwise.
            match unsafe { libc::fcntl(fd, command, argument) } {
                -1 => Err(Errno::last()),
                flags => Ok(flags),
            }
        }
        Any::Stream(socket) => flags_of(&mut socket.inner.lock().is_nonblocking, command, argument),
        Any::Datagrams(socket) => {
            flags_of(&mut socket.inner.lock().is_nonblocking, command, argument)
        }
    })
}

fn flags_of(is_nonblocking: &mut bool, command: c_int, argument: c_long) -> Result<c_int, Errno> {
    match command {
        libc::F_GETFL if *is_nonblocking => Ok(libc::O_RDWR | libc::O_NONBLOCK),
        libc::F_GETFL => Ok(libc::O_RDWR),
        libc::F_SETFL => {
            *is_nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
            Ok(0)
        }
        _ => Err(Errno::NOTSUP),
    }
}

/// `rsetsockopt`.
pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    size: u32,
) -> c_int {
    number(|| {
        let socket = socket::any(fd)?;
        let is_linger = (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER);
        let least = match is_linger {
            true => size_of::<libc::linger>(),
            false => size_of::<c_int>(),
        };
        if value.is_null() || (size as usize) < least {
            return Err(Errno::INVAL);
        }
        if is_linger {
            // SAFETY: the program passes that many bytes.
            let set = unsafe { value.cast::<libc::linger>().read_unaligned() };
            let linger = Linger {
                is_on: (set.l_onoff != 0).into(),
                seconds: set.l_linger,
            };
            match socket {
                Any::Stream(socket) => socket.inner.lock().options.linger = linger,
                Any::Datagrams(socket) => socket.inner.lock().options.linger = linger,
            }
            return Ok(0);
        }
        // SAFETY: the program passes that many bytes.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        match socket {
            Any::Stream(socket) => {
                let mut inner = socket.inner.lock();
                let is_fixed = !matches!(inner.phase, Phase::New | Phase::Bound | Phase::Listening);
                inner.options.set(level, name, value, is_fixed)?;
            }
            Any::Datagrams(socket) => {
                let mut inner = socket.inner.lock();
                let is_fixed = inner.is_bound();
                inner.options.set(level, name, value, is_fixed)?;
            }
        }
        Ok(0)
    })
}

/// `rgetsockopt`.
pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: *mut u32,
) -> c_int {
    number(|| {
        let socket = socket::any(fd)?;
        // SAFETY: the program passes valid arguments.
        let size = unsafe { size.as_mut() }.ok_or(Errno::INVAL)?;
        if value.is_null() || (*size as usize) < size_of::<c_int>() {
            return Err(Errno::INVAL);
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
            // There are no segments to report.
            let room = (*size as usize).min(size_of::<libc::tcp_info>());
            // SAFETY: there is room for that many bytes, as the size says.
            unsafe { value.cast::<u8>().write_bytes(0, room) };
            *size = room as u32;
            return Ok(0);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            let linger = match socket {
                Any::Stream(socket) => socket.inner.lock().options.linger,
                Any::Datagrams(socket) => socket.inner.lock().options.linger,
            };
            let answer = libc::linger {
                l_onoff: linger.is_on,
                l_linger: linger.seconds,
            };
            // As much as there is room for, as the system does.
            let room = (*size as usize).min(size_of::<libc::linger>());
            // SAFETY: there is room for that many bytes, as the size says.
            unsafe {
                let from = (&raw const answer).cast::<u8>();
                value.cast::<u8>().copy_from_nonoverlapping(from, room);
            }
            *size = room as u32;
            return Ok(0);
        }
        let answer = match socket {
            Any::Stream(socket) => option_of(&mut socket.inner.lock(), level, name)?,
            Any::Datagrams(socket) => match (level, name) {
                (libc::SOL_SOCKET, libc::SO_ERROR) => 0,
                (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_DGRAM,
                _ => socket.inner.lock().options.get(level, name)?,
            },
        };
        // SAFETY: there is room for it, as the size says.
        unsafe { value.cast::<c_int>().write_unaligned(answer) };
        *size = size_of::<c_int>() as u32;
        Ok(0)
    })
}

/// The value of an option of a stream.
fn option_of(inner: &mut Inner, level: c_int, name: c_int) -> Result<c_int, Errno> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            inner.advance();
            Ok(match inner.phase {
                Phase::Failed(errno) => errno.0,
                _ => {
                    let error = inner.open().ok().and_then(|stream| stream.error);
                    error.map_or(0, |errno| errno.0)
                }
            })
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(libc::SOCK_STREAM),
        _ => inner.options.get(level, name),
    }
}
