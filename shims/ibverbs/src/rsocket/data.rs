//! Sending and receiving.

use std::ffi::{c_int, c_void};

use super::calls::rgetpeername;
use super::maps::publish_regions;
use super::socket::{self, Inner, Phase, Socket};
use crate::call::{Errno, caught, set_errno};

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

/// Sends all, or what there is room for if it does not wait.
fn send(socket: &Socket, data: &[u8], flags: c_int) -> Result<usize, Errno> {
    let mut inner = socket.inner.lock();
    let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
    socket.wait(&mut inner, waits, |inner| inner.phase != Phase::Connecting)?;
    publish_regions(socket, &mut inner, waits)?;
    let mut done = 0;
    loop {
        socket.advance(&mut inner);
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
                .is_ok_and(|stream| stream.may_send() || !stream.writable)
        };
        match socket.wait(&mut inner, waits, may) {
            Err(_) if done > 0 => return Ok(done),
            waited => waited?,
        }
    }
}

/// Reads what has come.
fn receive(socket: &Socket, into: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    let mut inner = socket.inner.lock();
    let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
    let (peeks, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    socket.wait(&mut inner, waits, |inner| inner.phase != Phase::Connecting)?;
    let mut done = 0;
    loop {
        socket.advance(&mut inner);
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
                .is_ok_and(|stream| stream.may_receive() || !stream.readable)
        };
        match socket.wait(&mut inner, waits, may) {
            Err(_) if done > 0 => return Ok(done),
            waited => waited?,
        }
    }
}

/// # Safety
/// NULL with a length of 0, or so many bytes.
pub(super) unsafe fn slice<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Errno> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
    }
}

/// # Safety
/// As [`slice`].
unsafe fn slice_mut<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8], Errno> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's.
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
    // SAFETY: what the program gives.
    length(|| send(&*socket::of(fd)?, unsafe { slice(data, len) }?, flags))
}

/// `rsendto`: a stream has one peer.
pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    _addr: *const libc::sockaddr,
    _addrlen: u32,
) -> isize {
    // SAFETY: the caller's.
    unsafe { rsend(fd, data, len, flags) }
}

/// `rwrite`.
pub(crate) unsafe extern "C" fn rwrite(fd: c_int, data: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { rsend(fd, data, len, 0) }
}

/// `rwritev`.
pub(crate) unsafe extern "C" fn rwritev(
    fd: c_int,
    list: *const libc::iovec,
    count: c_int,
) -> isize {
    // SAFETY: what the program gives.
    length(|| unsafe {
        send_list(
            fd,
            list,
            usize::try_from(count).map_err(|_| Errno::INVAL)?,
            0,
        )
    })
}

/// `rsendmsg`. There is no control data.
pub(crate) unsafe extern "C" fn rsendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    length(|| {
        // SAFETY: what the program gives.
        let message = unsafe { message.as_ref() }.ok_or(Errno::INVAL)?;
        if message.msg_controllen != 0 {
            return Err(Errno::NOTSUP);
        }
        // SAFETY: as above.
        unsafe { send_list(fd, message.msg_iov, message.msg_iovlen, flags) }
    })
}

/// # Safety
/// So many pieces of the program's.
unsafe fn send_list(
    fd: c_int,
    list: *const libc::iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let socket = socket::of(fd)?;
    let mut done = 0;
    for index in 0..count {
        // SAFETY: the caller's.
        let part = unsafe {
            let piece = &*list.add(index);
            slice(piece.iov_base, piece.iov_len)?
        };
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
    // SAFETY: what the program gives.
    length(|| receive(&*socket::of(fd)?, unsafe { slice_mut(data, len) }?, flags))
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
    // SAFETY: the caller's.
    let got = unsafe { rrecv(fd, data, len, flags) };
    if got > 0 && !addr.is_null() {
        // SAFETY: as above.
        unsafe { rgetpeername(fd, addr, addrlen) };
    }
    got
}

/// `rread`.
pub(crate) unsafe extern "C" fn rread(fd: c_int, data: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { rrecv(fd, data, len, 0) }
}

/// `rreadv`: into the first piece, as librdmacm does.
pub(crate) unsafe extern "C" fn rreadv(fd: c_int, list: *const libc::iovec, count: c_int) -> isize {
    if count < 1 || list.is_null() {
        set_errno(Errno::INVAL);
        return -1;
    }
    // SAFETY: what the program gives.
    unsafe { rrecv(fd, (*list).iov_base, (*list).iov_len, 0) }
}

/// `rrecvmsg`: into the first piece, as librdmacm does.
pub(crate) unsafe extern "C" fn rrecvmsg(
    fd: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: what the program gives.
    let Some(message) = (unsafe { message.as_ref() }) else {
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
        rrecv(
            fd,
            (*message.msg_iov).iov_base,
            (*message.msg_iov).iov_len,
            flags,
        )
    }
}
