//! Peers whose TCP port another number stands for: an RNIC's host whose `iwpmd` maps ports, for example. Who connects asks that
//! host's port mapper first, and who listens answers those who ask ([`crate::port_space::mapper`]).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use verbs_core::sync::{Arc, Mutex};
use verbs_wire::iwarp::{MAPPER_PORT, MapperMessage};

use super::drawn;
use super::poller::Poller;
use super::socket::Socket;
use crate::port_space::mapper::{MapperEvent, MapperSocket, PortMapper};
use crate::port_space::{BoundPort, TcpPortSpace};
use crate::stream::{Interest, Stream, Token};
use crate::time::Clock;

/// How long a mapper has for each of four answers: a host that says nothing costs two seconds. A connect has ten.
const WAIT: Duration = Duration::from_millis(500);

/// What the sockets of [`Answers`] are watched under; no owner's token.
pub(super) const ANSWERS: Token = Token(u64::MAX);

/// A connect that waits for the peer's mapper.
struct Asking {
    port: BoundPort,
    /// That of the peer, which alone may answer.
    peers_mapper: SocketAddr,
    socket: UdpSocket,
    mapper: PortMapper,
    timer: OwnedFd,
    clock: Clock,
    remote: SocketAddr,
    token: Token,
}

impl Asking {
    /// # Errors
    /// The system's.
    fn begin(
        port: BoundPort,
        remote: SocketAddr,
        poller: &Poller,
        token: Token,
    ) -> io::Result<Self> {
        let mut peers_mapper = remote;
        peers_mapper.set_port(MAPPER_PORT);
        let from = match (port.local().ip(), remote) {
            (any, SocketAddr::V4(_)) if any.is_unspecified() => Ipv4Addr::UNSPECIFIED.into(),
            (any, SocketAddr::V6(_)) if any.is_unspecified() => Ipv6Addr::UNSPECIFIED.into(),
            (own, _) => own,
        };
        let mut at = port.local();
        at.set_ip(from);
        at.set_port(0);
        let socket = UdpSocket::bind(at)?;
        socket.set_nonblocking(true)?;
        socket.connect(peers_mapper)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let clock = Clock::wall();
        let space = TcpPortSpace::of([]);
        let mut mapper = PortMapper::new(space, u64::from_ne_bytes(drawn())).waiting(WAIT);
        let mut local = socket.local_addr()?;
        local.set_port(port.local().port());
        let asked = mapper
            .map_to_itself(local)
            .and_then(|()| mapper.ask_at(peers_mapper, local, remote, clock.now()));
        asked.map_err(io::Error::other)?;
        poller.watch(&socket, false, token, Interest::Receive)?;
        poller.watch(&timer, false, token, Interest::Receive)?;
        Ok(Self {
            port,
            peers_mapper,
            socket,
            mapper,
            timer,
            clock,
            remote,
            token,
        })
    }

    /// Where to connect to, once that is known. A host without a mapper, one whose mapper knows nothing of the number, and one that
    /// does not answer mean what they say.
    fn turn(&mut self) -> Option<SocketAddr> {
        let mut datagram = [0; MapperMessage::REQUEST_LEN];
        loop {
            match self.socket.recv(&mut datagram) {
                Ok(len) => {
                    let now = self.clock.now();
                    self.mapper
                        .handle_datagram(self.peers_mapper, &datagram[..len], now);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    // Nobody is at that port.
                    _ => return Some(self.remote),
                },
            }
        }
        self.mapper.handle_timeout(self.clock.now());
        while let Some((_, message)) = self.mapper.poll_output() {
            if let Ok(len) = message.emit(&mut datagram) {
                // What is lost is sent again; what is refused is learned by receiving.
                let _ = self.socket.send(&datagram[..len]);
            }
        }
        let remote = self.remote;
        let answer = match self.mapper.poll_event() {
            // A mapper speaks for its own host.
            Some(MapperEvent::Mapped { mapped, .. }) if mapped.ip() == remote.ip() => {
                tracing::debug!(target: "verbs::cm", %remote, port = mapped.port(), "the peer's port mapper has named a port");
                let mut mapped_at = remote;
                mapped_at.set_port(mapped.port());
                Some(mapped_at)
            }
            Some(event) => {
                tracing::debug!(target: "verbs::cm", %remote, ?event, "the peer's port mapper has named no port");
                Some(remote)
            }
            None => None,
        };
        if answer.is_none() {
            self.set_timer();
        }
        answer
    }

    fn set_timer(&self) {
        let Some(at) = self.mapper.poll_timeout() else {
            return;
        };
        let left = at.since(self.clock.now());
        let value = Timespec::try_from(left.max(Duration::from_millis(1)));
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value.unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            }),
        };
        // Setting it takes back what has run out. No argument is wrong.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

/// A connection that is made where the peer's mapper says.
pub(super) struct MappedStream {
    state: State,
    poller: Arc<Poller>,
    local: SocketAddr,
    remote: SocketAddr,
}

enum State {
    Asking(Box<Asking>),
    Made(Socket),
    /// The connection could not be begun.
    Failed,
}

impl MappedStream {
    /// # Errors
    /// The system's.
    pub(super) fn connect(
        port: BoundPort,
        remote: SocketAddr,
        poller: Arc<Poller>,
        token: Token,
    ) -> io::Result<Self> {
        let local = port.local();
        let asking = Asking::begin(port, remote, &poller, token)?;
        Ok(Self {
            state: State::Asking(Box::new(asking)),
            poller,
            local,
            remote,
        })
    }

    fn socket(&mut self) -> io::Result<&mut Socket> {
        match &mut self.state {
            State::Made(socket) => Ok(socket),
            State::Asking(_) | State::Failed => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Stream for MappedStream {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket()?.receive(into)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket()?.send(bytes)
    }

    fn finish(&mut self) {
        if let Ok(socket) = self.socket() {
            socket.finish();
        }
    }

    fn connected(&mut self) -> io::Result<bool> {
        if let State::Asking(asking) = &mut self.state {
            let Some(at) = asking.turn() else {
                return Ok(false);
            };
            if let State::Asking(asking) = std::mem::replace(&mut self.state, State::Failed) {
                let Asking { port, token, .. } = *asking;
                let socket = Socket::connect(port, at, Arc::clone(&self.poller), token)?;
                self.state = State::Made(socket);
            }
        }
        self.socket()?.connected()
    }

    fn watch(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        self.socket()?.watch(token, interest)
    }

    fn segment_max(&self) -> usize {
        match &self.state {
            State::Made(socket) => socket.segment_max(),
            State::Asking(_) | State::Failed => super::socket::SEGMENT,
        }
    }

    fn local(&self) -> SocketAddr {
        match &self.state {
            State::Made(socket) => socket.local(),
            State::Asking(_) | State::Failed => self.local,
        }
    }

    fn peer(&self) -> SocketAddr {
        match &self.state {
            State::Made(socket) => socket.peer(),
            State::Asking(_) | State::Failed => self.remote,
        }
    }
}

impl fmt::Debug for MappedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedStream({} to {})", self.local, self.remote)
    }
}

/// The port mapper of listeners: each is mapped to itself, for peers that ask before they connect. It has UDP port 3935 of each
/// address as long as there are listeners, unless another mapper of the host has it, which then answers.
pub(super) struct Answers {
    addresses: Vec<IpAddr>,
    poller: Arc<Poller>,
    open: Mutex<Open>,
}

/// Its sockets, as long as there are listeners.
#[derive(Default)]
struct Open {
    listeners: usize,
    sockets: Vec<MapperSocket>,
}

impl Answers {
    pub(super) fn new(addresses: Vec<IpAddr>, poller: Arc<Poller>) -> Arc<Self> {
        Arc::new(Self {
            addresses,
            poller,
            open: Mutex::default(),
        })
    }

    /// Answers for a listener from now on, as long as what is returned is kept.
    pub(super) fn listen(self: &Arc<Self>, local: SocketAddr) -> Answered {
        let mut open = self.open.lock();
        if open.listeners == 0 {
            let opened = self
                .addresses
                .iter()
                .filter_map(|&address| self.open(address));
            open.sockets = opened.collect();
        }
        open.listeners += 1;
        for socket in &mut open.sockets {
            // One that is there already is mapped to itself as well.
            let _ = socket.mapper.map_to_itself(local);
        }
        Answered {
            answers: Arc::clone(self),
            local,
        }
    }

    fn open(&self, address: IpAddr) -> Option<MapperSocket> {
        let mapper = PortMapper::new(TcpPortSpace::of([address]), u64::from_ne_bytes(drawn()));
        let opened = MapperSocket::on(address, mapper).and_then(|socket| {
            let watched = self
                .poller
                .watch(socket.socket(), false, ANSWERS, Interest::Receive);
            watched.map(|()| socket)
        });
        opened
            .inspect_err(|error| {
                tracing::debug!(target: "verbs::cm", %address, %error, "another port mapper answers here, or none");
            })
            .ok()
    }

    /// The sockets have something.
    pub(super) fn turn(&self) {
        for socket in &mut self.open.lock().sockets {
            if let Err(error) = socket.turn() {
                tracing::debug!(target: "verbs::cm", %error, "the port mapper does not answer");
            }
            while let Some(event) = socket.mapper.poll_event() {
                tracing::debug!(target: "verbs::cm", ?event, "a peer has asked the port mapper");
            }
        }
    }
}

/// A listener whose number is answered for.
pub(super) struct Answered {
    answers: Arc<Answers>,
    local: SocketAddr,
}

impl Drop for Answered {
    fn drop(&mut self) {
        let mut open = self.answers.open.lock();
        open.listeners -= 1;
        for socket in &mut open.sockets {
            // It was refused when there were too many.
            let _ = socket.mapper.unmap(self.local);
        }
        if open.listeners == 0 {
            // The next mapper of the host has the port.
            open.sockets.clear();
        }
    }
}
