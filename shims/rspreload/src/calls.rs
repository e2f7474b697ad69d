//! The functions that a program calls instead of the C library's: for an rsocket librdmacm's, otherwise the C
//! library's.
//!
//! The safety requirements of each are those of the function of the same name.

use std::ffi::{c_int, c_long, c_ulong, c_void};

use libc::{fd_set, iovec, msghdr, nfds_t, pollfd, sockaddr, socklen_t, timeval};

use crate::next::next;
use crate::table::{add, inside, is_given_back, is_inside, is_ours, ours_between, remove};

/// Calls the C library's function.
macro_rules! below {
    ($name:literal: fn($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {
        match next!(of_libc $name: fn($($kind),*) -> $result) {
            // SAFETY: guaranteed by the caller.
            Some(function) => unsafe { function($($argument),*) },
            None => unimplemented_here(),
        }
    };
}

/// Calls librdmacm's function.
macro_rules! rdmacm {
    ($name:literal: fn($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {
        match next!(of_rdmacm $name: fn($($kind),*) -> $result) {
            // SAFETY: guaranteed by the caller.
            Some(function) => inside(|| keeps_errno(|| unsafe { function($($argument),*) })),
            None => unimplemented_here(),
        }
    };
}

/// -1, with `ENOSYS`.
trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

/// What succeeds leaves `errno` as it was, as calls of the system do: programs close a socket before they say what has failed.
fn keeps_errno<T: Failed + PartialEq>(call: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = call();
    if result != T::FAILED {
        set_errno(before);
    }
    result
}

fn unimplemented_here<T: Failed>() -> T {
    set_errno(libc::ENOSYS);
    T::FAILED
}

fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's own errno.
    unsafe { *libc::__errno_location() = errno }
}

fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Functions with the same arguments in both libraries: for an rsocket librdmacm's, otherwise the C library's.
macro_rules! dispatched {
    ($($name:ident $system:literal $own:literal ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => { $(
        #[doc = concat!("`", $system, "`, or `", $own, "`.")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(fd: c_int $(, $argument: $kind)*) -> $result {
            if is_ours(fd) {
                rdmacm!($own: fn(c_int $(, $kind)*) -> $result, fd $(, $argument)*)
            } else {
                below!($system: fn(c_int $(, $kind)*) -> $result, fd $(, $argument)*)
            }
        }
    )* };
}

dispatched! {
    bind "bind" "rbind" (addr: *const sockaddr, len: socklen_t) -> c_int;
    listen "listen" "rlisten" (backlog: c_int) -> c_int;
    recv "recv" "rrecv" (data: *mut c_void, len: usize, flags: c_int) -> isize;
    recvfrom "recvfrom" "rrecvfrom" (
        data: *mut c_void, len: usize, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t
    ) -> isize;
    recvmsg "recvmsg" "rrecvmsg" (message: *mut msghdr, flags: c_int) -> isize;
    read "read" "rread" (data: *mut c_void, len: usize) -> isize;
    readv "readv" "rreadv" (list: *const iovec, count: c_int) -> isize;
    send "send" "rsend" (data: *const c_void, len: usize, flags: c_int) -> isize;
    sendto "sendto" "rsendto" (
        data: *const c_void, len: usize, flags: c_int, addr: *const sockaddr, addrlen: socklen_t
    ) -> isize;
    sendmsg "sendmsg" "rsendmsg" (message: *const msghdr, flags: c_int) -> isize;
    write "write" "rwrite" (data: *const c_void, len: usize) -> isize;
    writev "writev" "rwritev" (list: *const iovec, count: c_int) -> isize;
    shutdown "shutdown" "rshutdown" (how: c_int) -> c_int;
    getpeername "getpeername" "rgetpeername" (addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname "getsockname" "rgetsockname" (addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    setsockopt "setsockopt" "rsetsockopt" (
        level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> c_int;
    getsockopt "getsockopt" "rgetsockopt" (
        level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int;
    // One argument more than it takes: whether there is one depends on the command.
    fcntl "fcntl" "rfcntl" (command: c_int, argument: c_long) -> c_int;
    fcntl64 "fcntl64" "rfcntl" (command: c_int, argument: c_long) -> c_int;
}

/// Functions that check the length of a buffer that the compiler knows, and then do what the plain ones do.
macro_rules! checked {
    ($($name:ident $plain:ident ($($argument:ident: $kind:ty),*; $room:ident $($more:ident: $last:ty),*) -> $result:ty;)*) => { $(
        #[doc = concat!("`", stringify!($plain), "` of a program that was compiled with checks of buffers.")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            fd: c_int $(, $argument: $kind)*, $room: usize $(, $more: $last)*
        ) -> $result {
            if checked_len($($argument.as_len(),)*) > $room {
                // As the C library does in this case.
                std::process::abort();
            }
            // SAFETY: guaranteed by the caller.
            unsafe { $plain(fd $(, $argument)* $(, $more)*) }
        }
    )* };
}

/// The length among arguments.
trait Len {
    fn as_len(&self) -> usize;
}

impl Len for *mut c_void {
    fn as_len(&self) -> usize {
        0
    }
}

impl Len for usize {
    fn as_len(&self) -> usize {
        *self
    }
}

fn checked_len(one: usize, other: usize) -> usize {
    one.max(other)
}

checked! {
    __read_chk read (data: *mut c_void, len: usize; room) -> isize;
    __recv_chk recv (data: *mut c_void, len: usize; room flags: c_int) -> isize;
    __recvfrom_chk recvfrom (
        data: *mut c_void, len: usize; room flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t
    ) -> isize;
}

/// `socket`: an rsocket for a stream over IPv4 or IPv6, if librdmacm has one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let plain = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_stream = plain == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if !is_inside() && is_stream && matches!(domain, libc::AF_INET | libc::AF_INET6) {
        let fd = rdmacm!("rsocket": fn(c_int, c_int, c_int) -> c_int, domain, kind, protocol);
        if fd >= 0 {
            if add(fd) {
                return fd;
            }
            rdmacm!("rclose": fn(c_int) -> c_int, fd);
        }
    }
    below!("socket": fn(c_int, c_int, c_int) -> c_int, domain, kind, protocol)
}

/// `accept`, or `raccept`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if !is_ours(fd) {
        return below!("accept": fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int, fd, addr, len);
    }
    let accepted =
        rdmacm!("raccept": fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int, fd, addr, len);
    if accepted >= 0 && !add(accepted) {
        rdmacm!("rclose": fn(c_int) -> c_int, accepted);
        set_errno(libc::EMFILE);
        return -1;
    }
    accepted
}

/// `accept4`, or `raccept` and the flags.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if !is_ours(fd) {
        return below!(
            "accept4": fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int, fd, addr, len, flags
        );
    }
    // SAFETY: guaranteed by the caller.
    let accepted = unsafe { accept(fd, addr, len) };
    if accepted >= 0 && flags & libc::SOCK_NONBLOCK != 0 {
        set_nonblocking(accepted, true);
    }
    accepted
}

fn set_nonblocking(fd: c_int, is_so: bool) -> c_int {
    let flags = if is_so {
        c_long::from(libc::O_NONBLOCK)
    } else {
        0
    };
    rdmacm!("rfcntl": fn(c_int, c_int, c_long) -> c_int, fd, libc::F_SETFL, flags)
}

/// `connect`, or `rconnect`, and then TCP if there is no peer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if is_ours(fd) {
        let code =
            rdmacm!("rconnect": fn(c_int, *const sockaddr, socklen_t) -> c_int, fd, addr, len);
        let is_under_way = matches!(
            errno(),
            libc::EINPROGRESS | libc::EALREADY | libc::EISCONN | libc::EINTR
        );
        if code == 0 || is_under_way {
            return code;
        }
        // SAFETY: guaranteed by the caller.
        if !unsafe { becomes_tcp(fd, addr) } {
            return -1;
        }
    }
    below!("connect": fn(c_int, *const sockaddr, socklen_t) -> c_int, fd, addr, len)
}

/// Replaces an rsocket by a socket of the system, under the same descriptor.
///
/// # Safety
/// The address is the program's.
unsafe fn becomes_tcp(fd: c_int, addr: *const sockaddr) -> bool {
    // SAFETY: guaranteed by the caller.
    let family = c_int::from(unsafe { (*addr).sa_family });
    let flags = rdmacm!("rfcntl": fn(c_int, c_int, c_long) -> c_int, fd, libc::F_GETFL, 0);
    let kind = match flags & libc::O_NONBLOCK {
        0 => libc::SOCK_STREAM,
        _ => libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
    };
    let tcp = below!("socket": fn(c_int, c_int, c_int) -> c_int, family, kind, 0);
    if tcp < 0 {
        return false;
    }
    remove(fd);
    rdmacm!("rclose": fn(c_int) -> c_int, fd);
    let moved = below!("dup2": fn(c_int, c_int) -> c_int, tcp, fd);
    below!("close": fn(c_int) -> c_int, tcp);
    moved == fd
}

/// `close`, or `rclose`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    // It is out of the table before its number is assigned again.
    if is_given_back(fd) {
        rdmacm!("rclose": fn(c_int) -> c_int, fd)
    } else {
        below!("close": fn(c_int) -> c_int, fd)
    }
}

/// Closes the rsocket whose number a call gives to something else.
fn give_back(fd: c_int) {
    if is_given_back(fd) {
        let kept = errno();
        rdmacm!("rclose": fn(c_int) -> c_int, fd);
        set_errno(kept);
    }
}

fn is_open(fd: c_int) -> bool {
    below!("fcntl": fn(c_int, c_int, c_long) -> c_int, fd, libc::F_GETFD, 0) >= 0
}

/// `dup2`: an rsocket that has the new number is closed. A copy of an rsocket is not an rsocket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to && is_ours(to) && is_open(fd) {
        give_back(to);
    }
    below!("dup2": fn(c_int, c_int) -> c_int, fd, to)
}

/// `dup3`, as `dup2`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to && flags & !libc::O_CLOEXEC == 0 && is_ours(to) && is_open(fd) {
        give_back(to);
    }
    below!("dup3": fn(c_int, c_int, c_int) -> c_int, fd, to, flags)
}

/// `close_range`: rsockets among them are closed, unless it only marks them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    /// `CLOSE_RANGE_UNSHARE`, the one flag with which they are closed.
    const UNSHARE: c_int = 1 << 1;
    if first <= last && flags & !UNSHARE == 0 {
        ours_between(first, last).for_each(give_back);
    }
    below!("close_range": fn(u32, u32, c_int) -> c_int, first, last, flags)
}

/// `closefrom`: rsockets among them are closed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    let from = u32::try_from(first).unwrap_or(0);
    ours_between(from, u32::MAX).for_each(give_back);
    if let Some(function) = next!(of_libc "closefrom": fn(c_int) -> ()) {
        // SAFETY: guaranteed by the caller.
        unsafe { function(first) }
    }
}

/// `fclose`: a stream of the program over an rsocket closes it; the C library closes the number itself.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fclose(stream: *mut libc::FILE) -> c_int {
    // SAFETY: guaranteed by the caller. -1 of a stream without a descriptor.
    let fd = unsafe { libc::fileno(stream) };
    if is_ours(fd) {
        // A file of no account has the number until the C library closes it.
        // SAFETY: a C string.
        let nothing = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if nothing >= 0 {
            // SAFETY: descriptors.
            unsafe { dup2(nothing, fd) };
            below!("close": fn(c_int) -> c_int, nothing);
        }
    }
    below!("fclose": fn(*mut libc::FILE) -> c_int, stream)
}

/// `ioctl`: `FIONBIO` of an rsocket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !is_ours(fd) {
        return below!("ioctl": fn(c_int, c_ulong, *mut c_void) -> c_int, fd, request, argument);
    }
    if request != libc::FIONBIO || argument.is_null() {
        set_errno(libc::ENOTTY);
        return -1;
    }
    // SAFETY: the program passes a number.
    set_nonblocking(
        fd,
        unsafe { argument.cast::<c_int>().read_unaligned() } != 0,
    )
}

/// `poll`, or `rpoll` if one of them is an rsocket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let has_ours = !is_inside() && !fds.is_null() && {
        // SAFETY: the program passes that many.
        let fds = unsafe { std::slice::from_raw_parts(fds, count as usize) };
        fds.iter().any(|fd| is_ours(fd.fd))
    };
    if has_ours {
        rdmacm!("rpoll": fn(*mut pollfd, nfds_t, c_int) -> c_int, fds, count, timeout)
    } else {
        below!("poll": fn(*mut pollfd, nfds_t, c_int) -> c_int, fds, count, timeout)
    }
}

/// `poll` of a program that was compiled with buffer checks.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // As the C library does in this case.
        std::process::abort();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { poll(fds, count, timeout) }
}

/// `select`, or `rselect` if one of them is an rsocket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let is_set = |set: *mut fd_set, fd: c_int| {
        // SAFETY: NULL, or a set of the program.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    };
    let asks = |fd: c_int| [read, write, except].iter().any(|set| is_set(*set, fd));
    let has_ours = !is_inside() && (0..count).any(|fd| is_ours(fd) && asks(fd));
    type Set = *mut fd_set;
    if has_ours {
        rdmacm!("rselect": fn(c_int, Set, Set, Set, *mut timeval) -> c_int, count, read, write, except, timeout)
    } else {
        below!("select": fn(c_int, Set, Set, Set, *mut timeval) -> c_int, count, read, write, except, timeout)
    }
}
