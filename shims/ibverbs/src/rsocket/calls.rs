//! The calls of rsockets, each as the call of sockets that it is named after.

use std::ffi::{c_int, c_long, c_void};
use std::mem::zeroed;
use std::net::SocketAddr;

use super::memory::Region;
use super::socket::{self, Inner, Phase, Socket};
use super::stream::Stream;
use crate::call::{Errno, caught, number, set_errno};
use crate::rdmacm::sockaddr;

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
unsafe fn slice<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Errno> {
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
        unsafe { send_list(fd, message.msg_iov, message.msg_iovlen as usize, flags) }
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

/// `riomap`: memory that the peer may write by `riowrite`. It is told of it before the next data.
pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    at: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: i64,
) -> i64 {
    let mapped = caught(|| {
        if at.is_null() || protection & !libc::PROT_WRITE != 0 || u32::try_from(len).is_err() {
            return Err(Errno::INVAL);
        }
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        let pd = inner.pd();
        let maps = inner.open()?.peer_maps();
        let index =
            (0..maps).find(|index| inner.regions.iter().all(|region| region.index != *index));
        let index = index.ok_or(Errno::NOMEM)?;
        let offset = if offset == -1 {
            at.addr() as i64
        } else {
            offset
        };
        // SAFETY: the program's memory, until it unmaps it.
        inner
            .regions
            .push(unsafe { Region::new(pd, at, len, index, offset.cast_unsigned()) }?);
        Ok(offset)
    });
    mapped.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// `riounmap`.
pub(crate) unsafe extern "C" fn riounmap(fd: c_int, at: *mut c_void, len: usize) -> c_int {
    number(|| {
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        let place = inner
            .regions
            .iter()
            .position(|region| (region.at, region.len) == (at.addr(), len));
        inner.regions.swap_remove(place.ok_or(Errno::INVAL)?);
        Ok(0)
    })
}

/// `riowrite`: writes into the peer's memory, which it is not told of.
pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    data: *const c_void,
    count: usize,
    offset: i64,
    flags: c_int,
) -> usize {
    let written = caught(|| {
        // SAFETY: what the program gives.
        let data = unsafe { slice(data, count) }?;
        let socket = socket::of(fd)?;
        let mut inner = socket.inner.lock();
        let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
        publish_regions(&socket, &mut inner, waits)?;
        let mut done = 0;
        while done < data.len() {
            socket.advance(&mut inner);
            let stream = inner.open()?;
            if !stream.writable {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno(libc::ECONNRESET))
                };
            }
            let at = offset.cast_unsigned() + done as u64;
            let Some(to) = stream.map_of(at) else {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::INVAL)
                };
            };
            let written = stream.write_at(&data[done..], to)?;
            done += written;
            if written == 0 {
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
        Ok(done)
    });
    written.unwrap_or_else(|errno| {
        set_errno(errno);
        usize::MAX
    })
}

/// The peer learns of memory that was mapped for it.
fn publish_regions(
    socket: &Socket,
    inner: &mut parking_lot::MutexGuard<'_, Inner>,
    waits: bool,
) -> Result<(), Errno> {
    while let Some(place) = inner.regions.iter().position(|region| !region.is_published) {
        let region = &inner.regions[place];
        let (index, offset, piece) = (region.index, region.offset, region.piece());
        if inner.open()?.publish_map(index, offset, piece)? {
            inner.regions[place].is_published = true;
            continue;
        }
        let may = |inner: &mut Inner| {
            inner
                .open()
                .is_ok_and(|stream| stream.may_send() || !stream.writable)
        };
        socket.wait(inner, waits, may)?;
        if !inner
            .open()
            .is_ok_and(|stream: &mut Stream| stream.writable)
        {
            return Err(Errno(libc::ECONNRESET));
        }
    }
    Ok(())
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
    let code = unsafe { super::poll::rpoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
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
