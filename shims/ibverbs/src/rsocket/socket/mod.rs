//! Sockets: from their creation to their close, and the waits in between.
//!
//! - `ends` are the id and the channel of a socket, `listen` is what a listener has besides.
//! - `service` is the thread that answers the requests of listeners, and finishes what `close` has left to it.

mod close;
mod ends;
mod listen;
mod service;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use verbs_abi::rdmacm::{CmEvent, ConnParam, event};

pub(super) use self::close::close;
use self::ends::{Channel, OwnId, check, hello_of};
use self::listen::{Child, Listening};
use self::service::{Served, Waits, service};
use super::datagram::Datagrams;
use super::memory::Region;
use super::options::Options;
use super::stream::Stream;
use super::stream::wire::{HELLO, Message};
use super::wait::{Awaited, LOOK_AGAIN, Progress, poll, readable};
use crate::call::Errno;
use crate::rdmacm;
use crate::rdmacm::address::sockaddr;

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

/// The variable state. Fields are dropped in this order.
pub(super) struct Inner {
    pub(super) phase: Phase,
    pub(super) options: Options,
    pub(super) is_nonblocking: bool,
    listening: Option<Listening>,
    pub(super) stream: Option<Stream>,
    pub(super) regions: Vec<Region>,
    /// `None` once it is closed, as the channel.
    id: Option<OwnId>,
    channel: Option<Channel>,
}

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

/// Takes a socket out, for its close.
fn remove(fd: c_int) -> Result<Any, Errno> {
    SOCKETS.lock().remove(&fd).ok_or(Errno(libc::EBADF))
}

/// A new socket's descriptor.
pub(super) fn create() -> Result<c_int, Errno> {
    let channel = Channel::new()?;
    let id = channel.create_id()?;
    Ok(publish(channel, id, Phase::New, None, Options::default()))
}

fn publish(
    channel: Channel,
    id: OwnId,
    phase: Phase,
    stream: Option<Stream>,
    options: Options,
) -> c_int {
    let fd = channel.fd();
    let inner = Inner {
        phase,
        options,
        is_nonblocking: false,
        listening: None,
        stream,
        regions: Vec::new(),
        id: Some(id),
        channel: Some(channel),
    };
    let inner = Awaited::new(inner);
    add(fd, Any::Stream(Arc::new(Socket { fd, inner })));
    fd
}

/// Makes a socket listen, or changes its backlog.
pub(super) fn listen(fd: c_int, backlog: c_int) -> Result<(), Errno> {
    let socket = of(fd)?;
    let service = service()?;
    {
        let mut inner = socket.inner.lock();
        if let Some(listening) = &mut inner.listening {
            listening.extend(backlog);
            return Ok(());
        }
        inner.listen(fd, backlog)?;
    }
    service.add_listener(socket);
    Ok(())
}

impl Inner {
    /// The addresses of both ends.
    pub(super) fn addresses(&self) -> [Result<SocketAddr, Errno>; 2] {
        let Ok(id) = self.id() else {
            return [Err(Errno(libc::EBADF)); 2];
        };
        // SAFETY: the id belongs to this socket; the addresses are complete.
        unsafe {
            let addr = &raw const (*id.at()).route.addr;
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
        let id = self.id()?.at();
        // SAFETY: the id belongs to this socket; the caller guarantees the address.
        unsafe {
            rdmacm::set_option(id, 0, 1, (&raw mut reuse).cast(), 4);
            check(rdmacm::bind_addr(id, addr.cast_mut()))?;
        }
        self.phase = Phase::Bound;
        Ok(())
    }

    /// Requests arrive at a channel of their own; the socket's descriptor tells of connections that are ready.
    fn listen(&mut self, fd: c_int, backlog: c_int) -> Result<(), Errno> {
        /// Requests that wait for the service's thread: it has the program's backlog, and these come at once.
        const REQUESTS: c_int = 128;
        if !matches!(self.phase, Phase::New | Phase::Bound) {
            return Err(Errno::INVAL);
        }
        let channel = Channel::new()?;
        let id = self.id()?;
        id.move_to(&channel)?;
        // SAFETY: the id belongs to this socket.
        if let Err(errno) = check(unsafe { rdmacm::listen(id.at(), backlog.max(REQUESTS)) }) {
            if let Some(own) = &self.channel {
                id.move_to(own)?;
            }
            return Err(errno);
        }
        self.listening = Some(Listening::new(channel, fd, backlog));
        self.phase = Phase::Listening;
        Ok(())
    }

    fn id(&self) -> Result<&OwnId, Errno> {
        self.id.as_ref().ok_or(Errno(libc::EBADF))
    }

    /// The next event, if there is one.
    fn next(&self) -> Option<*mut CmEvent> {
        self.channel.as_ref()?.next()
    }

    /// Asks for the way to the peer, which gets a request when it is known.
    ///
    /// # Safety
    /// The address is the program's.
    unsafe fn ask(&mut self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        let id = self.id()?.at();
        // SAFETY: the id belongs to this socket; the caller guarantees the address.
        unsafe {
            let addr = addr.cast_mut();
            check(rdmacm::resolve_addr(id, null_mut(), addr, 2000))?;
            self.expect(event::ADDR_RESOLVED)?;
            check(rdmacm::resolve_route(id, 2000))?;
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
        let id = self.id()?.at();
        let stream = Stream::new(id, self.options.sizes)?;
        close::watch_exit();
        let hello = stream.hello().emit();
        self.stream = Some(stream);
        let mut param = ConnParam {
            responder_resources: 0,
            initiator_depth: 0,
            ..with(&hello)
        };
        // SAFETY: the id belongs to this socket.
        check(unsafe { rdmacm::connect(id, &raw mut param) })
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
    pub(super) fn pd(&self) -> Result<*mut verbs_abi::Pd, Errno> {
        let id = self.id()?.at();
        // SAFETY: the id belongs to this socket.
        Ok(unsafe { (*id).pd })
    }

    /// Checks that the next event is that one, and has arrived.
    fn expect(&self, kind: u32) -> Result<(), Errno> {
        let told = self.next().ok_or(Errno(libc::EIO))?;
        // SAFETY: it was taken just now, and is not used afterwards.
        let (got, status) = unsafe {
            let got = ((*told).event, (*told).status);
            rdmacm::ack_cm_event(told);
            got
        };
        match (got == kind, status) {
            (true, 0) => Ok(()),
            (_, ..0) => Err(Errno(-status)),
            _ => Err(Errno(libc::EHOSTUNREACH)),
        }
    }

    /// Whether a connection waits for `raccept`.
    pub(super) fn has_ready(&self) -> bool {
        self.listening.as_ref().is_some_and(Listening::has_ready)
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
        // Those of a listener arrive elsewhere.
        while let Some(told) = self.next() {
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
        let own = self.channel.as_ref().map(Channel::fd);
        let stream = self.stream.as_ref().filter(|_| self.phase == Phase::Open);
        own.into_iter().chain(stream.map(Stream::fd)).collect()
    }
}

impl Served for Socket {
    /// Of a listener: its requests.
    fn serve(&self, _now: Instant) -> Option<Waits> {
        let mut inner = self.inner.lock();
        let sizes = inner.options.sizes;
        let listening = inner.listening.as_mut()?;
        listening.serve(sizes);
        let fds = listening.descriptors();
        Some(Waits { fds, until: None })
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
        loop {
            let Inner {
                listening: Some(listening),
                options,
                ..
            } = &mut *inner
            else {
                return Err(match inner.phase {
                    Phase::Failed(errno) => errno,
                    _ => Errno::INVAL,
                });
            };
            if let Some(child) = listening.take() {
                let channel = Channel::new();
                let moved =
                    channel.and_then(|channel| child.id.move_to(&channel).map(|()| channel));
                let channel = match moved {
                    Ok(channel) => channel,
                    // It stays for the time when there are descriptors again.
                    Err(errno) => {
                        listening.put_back(child);
                        return Err(errno);
                    }
                };
                if listening.has_waiting()
                    && let Some(service) = service::existing()
                {
                    service.wake();
                }
                let Child { stream, id } = child;
                let options = options.of_listener();
                close::watch_exit();
                return Ok(publish(channel, id, Phase::Open, Some(stream), options));
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
        if let Some(message) = message {
            stream.say(message);
        }
        Ok(())
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

/// No other thread holds a lock of sockets while the process forks.
pub(crate) fn before_fork() {
    service::before_fork();
    std::mem::forget(SOCKETS.lock());
}

pub(crate) fn after_fork_in_parent() {
    // SAFETY: this thread has locked it in `before_fork`.
    unsafe { SOCKETS.force_unlock() }
    service::after_fork_in_parent();
}

/// The child of a fork has none of its parent's sockets.
pub(crate) fn after_fork_in_child() {
    // SAFETY: as in the parent, whose thread this is a copy of.
    unsafe { SOCKETS.force_unlock() }
    std::mem::forget(std::mem::take(&mut *SOCKETS.lock()));
    service::after_fork_in_child();
}
