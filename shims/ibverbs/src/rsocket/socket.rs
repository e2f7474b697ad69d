//! Sockets: from their creation to their close, and the waits in between.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use verbs_abi::rdmacm::{CmEvent, CmId, ConnParam, EventChannel, event};

use super::datagram::Datagrams;
use super::memory::Region;
use super::options::Options;
use super::stream::Stream;
use super::stream::wire::{HELLO, Hello, Message};
use super::wait::{Awaited, LOOK_AGAIN, Progress, poll, readable};
use crate::call::Errno;
use crate::rdmacm::{self, sockaddr};

/// Sockets by their descriptors.
static SOCKETS: Mutex<BTreeMap<c_int, Any>> = Mutex::new(BTreeMap::new());

/// A socket of either kind.
#[derive(Clone)]
pub(super) enum Any {
    Stream(Arc<Socket>),
    Datagrams(Arc<Datagrams>),
}

/// A socket for a stream.
pub(super) struct Socket {
    /// The descriptor: that of its events. The program may only `rpoll` it.
    pub(super) fd: c_int,
    pub(super) inner: Awaited<Inner>,
}

/// The variable state.
pub(super) struct Inner {
    id: *mut CmId,
    channel: *mut EventChannel,
    pub(super) phase: Phase,
    pub(super) options: Options,
    pub(super) is_nonblocking: bool,
    pub(super) stream: Option<Stream>,
    pub(super) regions: Vec<Region>,
}

// SAFETY: the pointers are to objects of this library, which lives as long as the process.
unsafe impl Send for Inner {}

/// The progress of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Bound,
    Listening,
    Connecting,
    Open,
    Failed(Errno),
}

/// The socket of that descriptor.
pub(super) fn any(fd: c_int) -> Result<Any, Errno> {
    SOCKETS.lock().get(&fd).cloned().ok_or(Errno(libc::EBADF))
}

/// The stream of that descriptor; `EOPNOTSUPP` for a socket for datagrams.
pub(super) fn of(fd: c_int) -> Result<Arc<Socket>, Errno> {
    match any(fd)? {
        Any::Stream(socket) => Ok(socket),
        Any::Datagrams(_) => Err(Errno::NOTSUP),
    }
}

/// Makes a socket known by its descriptor.
pub(super) fn add(fd: c_int, socket: Any) {
    SOCKETS.lock().insert(fd, socket);
}

/// A new socket's descriptor.
pub(super) fn create() -> Result<c_int, Errno> {
    // SAFETY: there are no arguments.
    let channel = unsafe { rdmacm::create_event_channel() };
    if channel.is_null() {
        return Err(Errno::last());
    }
    let mut id = null_mut();
    // SAFETY: the channel was made just now.
    if unsafe { rdmacm::create_id(channel, &raw mut id, null_mut(), 0x106) } != 0 {
        return Err(Errno::last());
    }
    Ok(publish(channel, id, Phase::New, None, Options::default()))
}

fn publish(
    channel: *mut EventChannel,
    id: *mut CmId,
    phase: Phase,
    stream: Option<Stream>,
    options: Options,
) -> c_int {
    // SAFETY: it exists as long as the socket.
    let fd = unsafe { (*channel).fd };
    // Only this library reads it.
    // SAFETY: an open descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    let inner = Inner {
        id,
        channel,
        phase,
        options,
        is_nonblocking: false,
        stream,
        regions: Vec::new(),
    };
    let inner = Awaited::new(inner);
    add(fd, Any::Stream(Arc::new(Socket { fd, inner })));
    fd
}

impl Inner {
    /// The addresses of both ends.
    pub(super) fn addresses(&self) -> [Result<SocketAddr, Errno>; 2] {
        // SAFETY: the id belongs to this socket; the addresses are complete.
        unsafe {
            let addr = &raw const (*self.id).route.addr;
            [
                (&raw const (*addr).src).cast(),
                (&raw const (*addr).dst).cast(),
            ]
            .map(|addr| sockaddr::from_c(addr))
        }
    }

    /// Binds it.
    ///
    /// # Safety
    /// The address is the program's.
    pub(super) unsafe fn bind(&mut self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        if self.phase != Phase::New {
            return Err(Errno::INVAL);
        }
        let mut reuse: c_int = self.options.reuse_address.into();
        // SAFETY: the id belongs to this socket; the caller guarantees the address.
        unsafe {
            rdmacm::set_option(self.id, 0, 1, (&raw mut reuse).cast(), 4);
            check(rdmacm::bind_addr(self.id, addr.cast_mut()))?;
        }
        self.phase = Phase::Bound;
        Ok(())
    }

    pub(super) fn listen(&mut self, backlog: c_int) -> Result<(), Errno> {
        if !matches!(self.phase, Phase::New | Phase::Bound | Phase::Listening) {
            return Err(Errno::INVAL);
        }
        if self.phase != Phase::Listening {
            // SAFETY: the id belongs to this socket.
            check(unsafe { rdmacm::listen(self.id, backlog) })?;
        }
        self.phase = Phase::Listening;
        Ok(())
    }

    /// Asks for the way to the peer, which gets a request when it is known.
    ///
    /// # Safety
    /// The address is the program's.
    unsafe fn ask(&mut self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        let channel = self.channel;
        // SAFETY: the id belongs to this socket; the caller guarantees the address.
        unsafe {
            check(rdmacm::resolve_addr(
                self.id,
                null_mut(),
                addr.cast_mut(),
                2000,
            ))?;
            expect(channel, event::ADDR_RESOLVED)?;
            check(rdmacm::resolve_route(self.id, 2000))?;
        }
        self.phase = Phase::Connecting;
        self.advance();
        match self.phase {
            Phase::Failed(errno) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Sends the peer a request.
    fn request(&mut self) -> Result<(), Errno> {
        let stream = Stream::new(self.id, self.options.sizes)?;
        let hello = stream.hello().emit();
        self.stream = Some(stream);
        let mut param = ConnParam {
            responder_resources: 0,
            initiator_depth: 0,
            ..with(&hello)
        };
        // SAFETY: the id belongs to this socket.
        check(unsafe { rdmacm::connect(self.id, &raw mut param) })
    }

    fn hear(&mut self, told: *mut CmEvent) {
        // SAFETY: it was taken just now, and is acknowledged at the end.
        unsafe {
            let (kind, status) = ((*told).event, (*told).status);
            match (kind, self.phase) {
                (event::ESTABLISHED, Phase::Connecting) => match (hello_of(told), &mut self.stream)
                {
                    (Some(hello), Some(stream)) => {
                        stream.begin(&hello);
                        self.phase = Phase::Open;
                    }
                    _ => self.phase = Phase::Failed(Errno(libc::ENOTSUP)),
                },
                (event::ROUTE_RESOLVED, Phase::Connecting) => {
                    if let Err(errno) = self.request() {
                        self.phase = Phase::Failed(errno);
                    }
                }
                (event::REJECTED, _) => self.phase = Phase::Failed(Errno(libc::ECONNREFUSED)),
                (
                    event::UNREACHABLE
                    | event::CONNECT_ERROR
                    | event::ADDR_ERROR
                    | event::ROUTE_ERROR,
                    Phase::Connecting,
                ) => {
                    self.phase = Phase::Failed(if status < 0 {
                        Errno(-status)
                    } else {
                        Errno(libc::ETIMEDOUT)
                    });
                }
                (event::DISCONNECTED, Phase::Open) => {
                    if let Some(stream) = &mut self.stream {
                        // Data that arrived before are taken first.
                        stream.advance();
                        stream.end();
                    }
                }
                _ => {}
            }
            rdmacm::ack_cm_event(told);
        }
    }

    /// The domain of its memory.
    pub(super) fn pd(&self) -> *mut verbs_abi::Pd {
        // SAFETY: the id belongs to this socket.
        unsafe { (*self.id).pd }
    }

    /// The stream, if there is one; the error of a socket that has none.
    pub(super) fn open(&mut self) -> Result<&mut Stream, Errno> {
        match (self.phase, &mut self.stream) {
            (Phase::Open, Some(stream)) => Ok(stream),
            (Phase::Failed(errno), _) => Err(errno),
            (Phase::Connecting, _) => Err(Errno(libc::EAGAIN)),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }
}

impl Progress for Inner {
    fn advance(&mut self) {
        // The requests of a listener wait for `raccept`.
        while self.phase != Phase::Listening
            && let Some(told) = next(self.channel)
        {
            self.hear(told);
        }
        if let Some(stream) = &mut self.stream
            && self.phase == Phase::Open
        {
            stream.advance();
        }
    }

    fn arm(&mut self) {
        if let Ok(stream) = self.open() {
            stream.arm();
        }
    }

    fn descriptors(&self) -> Vec<c_int> {
        // SAFETY: it exists as long as the socket.
        let own = unsafe { (*self.channel).fd };
        let stream = self.stream.as_ref().filter(|_| self.phase == Phase::Open);
        std::iter::once(own).chain(stream.map(Stream::fd)).collect()
    }
}

impl Socket {
    /// Connects it; waits for that, unless it is non-blocking.
    ///
    /// # Safety
    /// The address is the program's.
    pub(super) unsafe fn connect(&self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        match inner.phase {
            Phase::New | Phase::Bound => {
                // SAFETY: guaranteed by the caller.
                let asked = unsafe { inner.ask(addr) };
                if let Err(errno) = asked {
                    inner.phase = Phase::Failed(errno);
                    return Err(errno);
                }
            }
            Phase::Connecting => {
                if inner.is_nonblocking {
                    return Err(Errno(libc::EALREADY));
                }
            }
            Phase::Open => return Err(Errno(libc::EISCONN)),
            Phase::Listening | Phase::Failed(_) => return Err(Errno::INVAL),
        }
        let waits = !inner.is_nonblocking;
        match self
            .inner
            .wait(&mut inner, waits, |inner| inner.phase != Phase::Connecting)
        {
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
            Err(errno) => Err(errno),
            Ok(()) => inner.open().map(|_| ()),
        }
    }

    /// The next connection of a listener, as a socket of its own.
    pub(super) fn accept(&self) -> Result<c_int, Errno> {
        let mut inner = self.inner.lock();
        if inner.phase != Phase::Listening {
            return Err(Errno::INVAL);
        }
        loop {
            if let Some(told) = next(inner.channel) {
                let accepted = accepted(told, &inner.options);
                // SAFETY: it was taken just now.
                unsafe { rdmacm::ack_cm_event(told) };
                match accepted {
                    Some(fd) => return Ok(fd),
                    None => continue,
                }
            }
            if inner.is_nonblocking {
                return Err(Errno(libc::EAGAIN));
            }
            let mut fds = [readable(self.fd)];
            MutexGuard::unlocked(&mut inner, || poll(&mut fds, Some(LOOK_AGAIN)))?;
        }
    }

    /// Ends one direction, or both: the peer is informed.
    pub(super) fn shutdown(&self, how: c_int) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        inner.advance();
        let stream = inner.open()?;
        let (reads, writes) = match how {
            libc::SHUT_RD => (false, stream.writable),
            libc::SHUT_WR => (stream.readable, false),
            libc::SHUT_RDWR => (false, false),
            _ => return Err(Errno::INVAL),
        };
        let message = match (reads, writes) {
            (false, false) => Some(Message::Disconnect),
            (true, false) => Some(Message::Shutdown),
            _ => None,
        };
        (stream.readable, stream.writable) = (reads, writes);
        let Some(message) = message else {
            return Ok(());
        };
        // Everything that was sent before is under way; a control message will soon have a place.
        while !inner.open()?.say(message)? {
            self.inner.wait(&mut inner, true, |inner| {
                inner.open().is_ok_and(|stream| stream.all_sent())
            })?;
        }
        if message == Message::Disconnect {
            self.inner.wait(&mut inner, true, |inner| {
                inner.open().is_ok_and(|stream| stream.all_sent())
            })?;
            inner.open()?.end();
        }
        Ok(())
    }
}

/// Closes a socket.
pub(super) fn close(fd: c_int) -> Result<(), Errno> {
    let socket = match any(fd)? {
        Any::Stream(socket) => socket,
        Any::Datagrams(socket) => {
            SOCKETS.lock().remove(&fd);
            return socket.close();
        }
    };
    // A peer that is gone is no reason to keep it.
    let _ = socket.shutdown(libc::SHUT_RDWR);
    SOCKETS.lock().remove(&fd);
    let mut inner = socket.inner.lock();
    inner.stream = None;
    inner.regions.clear();
    inner.phase = Phase::Failed(Errno(libc::EBADF));
    // SAFETY: the socket's own; the program no longer uses it.
    unsafe {
        rdmacm::destroy_id(inner.id);
        rdmacm::destroy_event_channel(inner.channel);
    }
    Ok(())
}

/// A socket for a request; `None` for a request that is refused, or for another event.
fn accepted(told: *mut CmEvent, options: &Options) -> Option<c_int> {
    // SAFETY: it was taken just now.
    let (kind, child) = unsafe { ((*told).event, (*told).id) };
    if kind != event::CONNECT_REQUEST {
        return None;
    }
    let accepted = accept(told, child, options);
    if accepted.is_none() {
        // SAFETY: the request's own id.
        unsafe {
            rdmacm::reject(child, std::ptr::null(), 0);
            rdmacm::destroy_id(child);
        }
    }
    accepted
}

fn accept(told: *mut CmEvent, child: *mut CmId, options: &Options) -> Option<c_int> {
    // SAFETY: the event was taken just now, and the id came with it.
    unsafe {
        let hello = hello_of(told)?;
        let wanted = (*told).param.conn;
        let channel = rdmacm::create_event_channel();
        if channel.is_null() || rdmacm::migrate_id(child, channel) != 0 {
            return None;
        }
        let mut stream = Stream::new(child, options.sizes).ok()?;
        stream.begin(&hello);
        let bytes = stream.hello().emit();
        let mut param = ConnParam {
            private_data: bytes.as_ptr().cast::<c_void>(),
            private_data_len: HELLO as u8,
            ..wanted
        };
        if rdmacm::accept(child, &raw mut param) != 0 {
            drop(stream);
            rdmacm::destroy_event_channel(channel);
            return None;
        }
        let options = options.of_listener();
        Some(publish(channel, child, Phase::Open, Some(stream), options))
    }
}

/// The peer's parameters in an event.
///
/// # Safety
/// An event that was taken and not acknowledged.
unsafe fn hello_of(told: *mut CmEvent) -> Option<Hello> {
    // SAFETY: guaranteed by the caller; as many bytes as it says.
    unsafe {
        let conn = (*told).param.conn;
        if conn.private_data.is_null() {
            return None;
        }
        let data = std::slice::from_raw_parts(
            conn.private_data.cast::<u8>(),
            conn.private_data_len.into(),
        );
        Hello::parse(data)
    }
}

fn with(hello: &[u8; HELLO]) -> ConnParam {
    ConnParam {
        private_data: hello.as_ptr().cast(),
        private_data_len: HELLO as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

/// The next event, if there is one.
fn next(channel: *mut EventChannel) -> Option<*mut CmEvent> {
    if !rdmacm::has_event(channel) {
        return None;
    }
    let mut told = null_mut();
    // SAFETY: the socket's channel, which does not block.
    (unsafe { rdmacm::get_cm_event(channel, &raw mut told) } == 0).then_some(told)
}

/// Checks that the next event is that one, and has arrived.
fn expect(channel: *mut EventChannel, kind: u32) -> Result<(), Errno> {
    let told = next(channel).ok_or(Errno(libc::EIO))?;
    // SAFETY: it was taken just now.
    let (got, status) = unsafe { ((*told).event, (*told).status) };
    // SAFETY: as above.
    unsafe { rdmacm::ack_cm_event(told) };
    match (got == kind, status) {
        (true, 0) => Ok(()),
        (_, ..0) => Err(Errno(-status)),
        _ => Err(Errno(libc::EHOSTUNREACH)),
    }
}

fn check(code: c_int) -> Result<(), Errno> {
    if code == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}

/// The child of a fork has none of its parent's sockets.
pub(crate) fn after_fork_in_child() {
    if let Some(mut sockets) = SOCKETS.try_lock() {
        std::mem::forget(std::mem::take(&mut *sockets));
    }
}
