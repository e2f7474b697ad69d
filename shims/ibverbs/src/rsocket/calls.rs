//! Making, connecting and setting sockets: each call as that of sockets that it is named after.

use std::ffi::{c_int, c_long, c_void};
use std::net::SocketAddr;

use super::socket::{self, Phase};
use crate::call::{Errno, number};
use crate::rdmacm::sockaddr;

/// `rsocket`: streams over IPv4 and IPv6. `EPROTONOSUPPORT` for datagrams.
pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(|| {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if kind & !flags != libc::SOCK_STREAM || !matches!(protocol, 0 | libc::IPPROTO_TCP) {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let fd = socket::create()?;
        socket::of(fd)?.inner.lock().is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        Ok(fd)
    })
}

/// `rbind`.
pub(crate) unsafe extern "C" fn rbind(
    fd: c_int,
    addr: *const libc::sockaddr,
    _length: u32,
) -> c_int {
    // SAFETY: what the program gives.
    number(|| unsafe { socket::of(fd)?.inner.lock().bind(addr) }.map(|()| 0))
}

/// `rlisten`.
pub(crate) unsafe extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    number(|| socket::of(fd)?.inner.lock().listen(backlog).map(|()| 0))
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
        // SAFETY: where the program wants it.
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
    // SAFETY: what the program gives.
    number(|| unsafe { socket::of(fd)?.connect(addr) }.map(|()| 0))
}

/// `rshutdown`.
pub(crate) unsafe extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    number(|| socket::of(fd)?.shutdown(how).map(|()| 0))
}

/// `rclose`: waits until all that was sent is there.
pub(crate) unsafe extern "C" fn rclose(fd: c_int) -> c_int {
    number(|| socket::close(fd).map(|()| 0))
}

/// # Safety
/// NULL, or as many bytes as the length says.
unsafe fn tell(addr: SocketAddr, to: *mut libc::sockaddr, length: *mut u32) {
    let (storage, whole) = sockaddr::to_c(addr);
    // SAFETY: the caller's.
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
        let [_, remote] = socket::of(fd)?.inner.lock().addresses();
        // SAFETY: where the program wants it.
        unsafe { tell(remote.map_err(|_| Errno(libc::ENOTCONN))?, addr, length) };
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
        let [local, _] = socket::of(fd)?.inner.lock().addresses();
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        // SAFETY: where the program wants it.
        unsafe { tell(local.unwrap_or(any), addr, length) };
        Ok(0)
    })
}

/// `rfcntl`: `F_GETFL` and `F_SETFL`, of which `O_NONBLOCK` counts.
pub(crate) unsafe extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    number(|| {
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        match command {
            libc::F_GETFL => Ok(libc::O_RDWR
                | if inner.is_nonblocking {
                    libc::O_NONBLOCK
                } else {
                    0
                }),
            libc::F_SETFL => {
                inner.is_nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
                Ok(0)
            }
            _ => Err(Errno::NOTSUP),
        }
    })
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
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            // A close waits for its peer in any case.
            return if size as usize >= size_of::<libc::linger>() {
                Ok(0)
            } else {
                Err(Errno::INVAL)
            };
        }
        if value.is_null() || (size as usize) < size_of::<c_int>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: so many bytes of the program's.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        let is_fixed = !matches!(inner.phase, Phase::New | Phase::Bound | Phase::Listening);
        inner.options.set(level, name, value, is_fixed)?;
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
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        // SAFETY: what the program gives.
        let size = unsafe { size.as_mut() }.ok_or(Errno::INVAL)?;
        if value.is_null() || (*size as usize) < size_of::<c_int>() {
            return Err(Errno::INVAL);
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
            // There are no segments to tell of.
            let room = (*size as usize).min(size_of::<libc::tcp_info>());
            // SAFETY: room for so many bytes, as the size says.
            unsafe { value.cast::<u8>().write_bytes(0, room) };
            *size = room as u32;
            return Ok(0);
        }
        let answer = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                socket.advance(&mut inner);
                match inner.phase {
                    Phase::Failed(errno) => errno.0,
                    _ => inner
                        .open()
                        .ok()
                        .and_then(|stream| stream.error)
                        .map_or(0, |errno| errno.0),
                }
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            _ => inner.options.get(level, name)?,
        };
        // SAFETY: room for it, as the size says.
        unsafe { value.cast::<c_int>().write_unaligned(answer) };
        *size = size_of::<c_int>() as u32;
        Ok(0)
    })
}
