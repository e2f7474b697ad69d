//! Sending and receiving.

use std::ffi::{c_int, c_void};

use super::calls::{rgetpeername, tell};
use super::socket::{self, Any, Inner, Phase, Socket};
use super::stream::publish_regions;
use super::wait::Progress;
use crate::call::{Errno, caught, set_errno};
use crate::rdmacm::address::sockaddr;

/// A call that returns a length, or -1 and sets `errno`.
fn length(call: impl FnOnce() -> Result<usize, Errno>) -> isize {
    match caught(call) {
        Ok(length) => length.cast_signed(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Sends on a socket of either kind.
fn send_on(fd: c_int, data: &[u8], flags: c_int) -> Result<usize, Errno> {
    match socket::any(fd)? {
        Any::Stream(socket) => send(&socket, data, flags),
        Any::Datagrams(socket) => socket.send(data, flags, None),
    }
}

/// Sends all, or as much as there is room for if it does not block.
fn send(socket: &Socket, data: &[u8], flags: c_int) -> Result<usize, Errno> {
    let mut inner = socket.inner.lock();
    let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
    socket
        .inner
        .wait(&mut inner, waits, |inner| inner.phase != Phase::Connecting)?;
    publish_regions(socket, &mut inner, waits)?;
    let mut done = 0;
    loop {
        inner.advance();
        let stream = inner.open()?;
        if !stream.writable {
            let errno = stream.error.unwrap_or(Errno(libc::ECONNRESET));
            return if done > 0 { Ok(done) } else { Err(errno) };
        }
        done += stream.send(&data[done..])?;
        if done == data.len() {
            return Ok(done);
        }
        let may = |inner: &mut Inner| {
            inner
                .open()
                .map_or(true, |stream| stream.may_send() || !stream.writable)
        };
        match socket.inner.wait(&mut inner, waits, may) {
            Err(_) if done > 0 => return Ok(done),
            waited => waited?,
        }
    }
}

/// Reads what has arrived.
fn receive(socket: &Socket, into: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    let mut inner = socket.inner.lock();
    let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
    let (peeks, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    socket
        .inner
        .wait(&mut inner, waits, |inner| inner.phase != Phase::Connecting)?;
    let mut done = 0;
    loop {
        inner.advance();
        let stream = inner.open()?;
        done += stream.receive(&mut into[done..], peeks);
        if done == into.len() || done > 0 && (!all || peeks) {
            return Ok(done);
        }
        if !stream.readable && !stream.may_receive() {
            return match stream.error.take() {
                Some(errno) if done == 0 => Err(errno),
                _ => Ok(done),
            };
        }
        let may = |inner: &mut Inner| {
            inner
                .open()
                .map_or(true, |stream| stream.may_receive() || !stream.readable)
        };
        match socket.inner.wait(&mut inner, waits, may) {
            Err(_) if done > 0 => return Ok(done),
            waited => waited?,
        }
    }
}

/// # Safety
/// NULL with a length of 0, or that many bytes.
pub(super) unsafe fn slice<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Errno> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
    }
}

/// # Safety
/// As for `slice`.
unsafe fn slice_mut<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8], Errno> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) }),
    }
}

/// `rsend`.
pub(crate) unsafe extern "C" fn rsend(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the program passes valid arguments.
    length(|| send_on(fd, unsafe { slice(data, len) }?, flags))
}

/// `rsendto`: a stream has one peer, which is not named again.
pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const libc::sockaddr,
    addrlen: u32,
) -> isize {
    length(|| {
        // SAFETY: the program passes valid arguments.
        let data = unsafe { slice(data, len) }?;
        match socket::any(fd)? {
            Any::Stream(_) if !addr.is_null() || addrlen != 0 => Err(Errno(libc::EISCONN)),
            Any::Stream(socket) => send(&socket, data, flags),
            // SAFETY: as above.
            Any::Datagrams(socket) => socket.send(data, flags, unsafe { named(addr) }?),
        }
    })
}

/// # Safety
/// NULL, or a complete address.
unsafe fn named(addr: *const libc::sockaddr) -> Result<Option<std::net::SocketAddr>, Errno> {
    match addr.is_null() {
        true => Ok(None),
        // SAFETY: guaranteed by the caller.
        false => unsafe { sockaddr::from_c(addr) }.map(Some),
    }
}

/// `rwrite`.
pub(crate) unsafe extern "C" fn rwrite(fd: c_int, data: *const c_void, len: usize) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { rsend(fd, data, len, 0) }
}

/// `rwritev`.
pub(crate) unsafe extern "C" fn rwritev(
    fd: c_int,
    list: *const libc::iovec,
    count: c_int,
) -> isize {
    // SAFETY: the program passes valid arguments.
    length(|| unsafe {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        send_list(fd, list, count, 0, std::ptr::null())
    })
}

/// `rsendmsg`. There is no control data.
pub(crate) unsafe extern "C" fn rsendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    length(|| {
        // SAFETY: the program passes valid arguments.
        let message = unsafe { message.as_ref() }.ok_or(Errno::INVAL)?;
        if message.msg_controllen != 0 {
            return Err(Errno::NOTSUP);
        }
        // SAFETY: as above.
        unsafe {
            let to = message.msg_name.cast_const().cast();
            send_list(fd, message.msg_iov, message.msg_iovlen, flags, to)
        }
    })
}

/// Sends pieces, one after the other on a stream, together in a datagram.
///
/// # Safety
/// The program passes that many pieces, and NULL or a complete address.
unsafe fn send_list(
    fd: c_int,
    list: *const libc::iovec,
    count: usize,
    flags: c_int,
    to: *const libc::sockaddr,
) -> Result<usize, Errno> {
    let mut parts = Vec::new();
    for index in 0..count {
        // SAFETY: guaranteed by the caller.
        parts.push(unsafe {
            let piece = &*list.add(index);
            slice(piece.iov_base, piece.iov_len)?
        });
    }
    let socket = match socket::any(fd)? {
        Any::Stream(socket) => socket,
        Any::Datagrams(socket) => {
            // SAFETY: guaranteed by the caller.
            let to = unsafe { named(to) }?;
            return socket.send(&parts.concat(), flags, to);
        }
    };
    let mut done = 0;
    for part in parts {
        match send(&socket, part, flags) {
            Ok(sent) => {
                done += sent;
                if sent < part.len() {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// `rrecv`.
pub(crate) unsafe extern "C" fn rrecv(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    length(|| {
        // SAFETY: the program passes valid arguments.
        let into = unsafe { slice_mut(data, len) }?;
        match socket::any(fd)? {
            Any::Stream(socket) => receive(&socket, into, flags),
            Any::Datagrams(socket) => Ok(socket.receive(into, flags)?.0),
        }
    })
}

/// `rrecvfrom`.
pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut libc::sockaddr,
    addrlen: *mut u32,
) -> isize {
    if let Ok(Any::Datagrams(socket)) = socket::any(fd) {
        // SAFETY: the program passes valid arguments.
        return length(|| unsafe {
            let (got, from) = socket.receive(slice_mut(data, len)?, flags)?;
            tell(from, addr, addrlen);
            Ok(got)
        });
    }
    // SAFETY: guaranteed by the caller.
    let got = unsafe { rrecv(fd, data, len, flags) };
    if got > 0 && !addr.is_null() {
        // SAFETY: as above.
        unsafe { rgetpeername(fd, addr, addrlen) };
    }
    got
}

/// `rread`.
pub(crate) unsafe extern "C" fn rread(fd: c_int, data: *mut c_void, len: usize) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { rrecv(fd, data, len, 0) }
}

/// `rreadv`: into the first piece, as librdmacm does.
pub(crate) unsafe extern "C" fn rreadv(fd: c_int, list: *const libc::iovec, count: c_int) -> isize {
    if count < 1 || list.is_null() {
        set_errno(Errno::INVAL);
        return -1;
    }
    // SAFETY: the program passes valid arguments.
    unsafe { rrecv(fd, (*list).iov_base, (*list).iov_len, 0) }
}

/// `rrecvmsg`: into the first piece, as librdmacm does.
pub(crate) unsafe extern "C" fn rrecvmsg(
    fd: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: the program passes valid arguments.
    let Some(message) = (unsafe { message.as_mut() }) else {
        set_errno(Errno::INVAL);
        return -1;
    };
    if message.msg_controllen != 0 {
        set_errno(Errno::NOTSUP);
        return -1;
    }
    if message.msg_iovlen == 0 {
        return 0;
    }
    // SAFETY: as above.
    unsafe {
        let first = &*message.msg_iov;
        match socket::any(fd) {
            Ok(Any::Datagrams(_)) => {
                let (name, room) = (message.msg_name.cast(), &raw mut message.msg_namelen);
                rrecvfrom(fd, first.iov_base, first.iov_len, flags, name, room)
            }
            _ => rrecv(fd, first.iov_base, first.iov_len, flags),
        }
    }
}
