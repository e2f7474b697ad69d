//! Sockets: a connection, and an address that is taken.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use rustix::net::sockopt;
use verbs_core::sync::Arc;

use super::mapped::{Answered, Answers, MappedStream};
use super::poller::Poller;
use crate::port_space::{Accepted, BoundPort, PortError};
use crate::stream::{Bound, Interest, Stream, Token};
use crate::sys;

/// The maximum segment size of a connection that does not say one: that of Ethernet over IPv6.
pub(super) const SEGMENT: usize = 1440;

/// A connection, or one that is being made.
pub(super) struct Socket {
    stream: TcpStream,
    poller: Arc<Poller>,
    local: SocketAddr,
    peer: SocketAddr,
    is_connected: bool,
    watched: Option<(Token, Interest)>,
    /// The number of a connection that was made from here is held as long as it; closed after its socket.
    _port: Option<BoundPort>,
}

impl Socket {
    /// A connection that is there.
    pub(super) fn of(stream: TcpStream, poller: &Arc<Poller>) -> io::Result<Self> {
        let (local, remote) = (stream.local_addr()?, stream.peer_addr()?);
        stream.set_nonblocking(true)?;
        let there = Accepted {
            stream,
            local,
            remote,
        };
        Self::accepted(there, poller)
    }

    /// A connection that is being made from that port.
    pub(super) fn connect(
        mut port: BoundPort,
        remote: SocketAddr,
        poller: Arc<Poller>,
        token: Token,
    ) -> io::Result<Self> {
        let stream = port.connect(remote)?;
        stream.set_nodelay(true)?;
        let mut socket = Self {
            stream,
            poller,
            local: port.local(),
            peer: remote,
            is_connected: false,
            watched: None,
            _port: Some(port),
        };
        socket.watch(token, Interest::Both)?;
        Ok(socket)
    }

    /// A connection that a peer has made, whose calls do not block.
    fn accepted(accepted: Accepted, poller: &Arc<Poller>) -> io::Result<Self> {
        let Accepted {
            stream,
            local,
            remote: peer,
        } = accepted;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            poller: Arc::clone(poller),
            local: canonical(local),
            peer: canonical(peer),
            is_connected: true,
            watched: None,
            _port: None,
        })
    }
}

impl Stream for Socket {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn finish(&mut self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn connected(&mut self) -> io::Result<bool> {
        if self.is_connected {
            return Ok(true);
        }
        if let Err(error) = sockopt::socket_error(&self.stream)? {
            return Err(error.into());
        }
        match self.stream.peer_addr() {
            Ok(peer) => {
                self.peer = canonical(peer);
                self.local = canonical(self.stream.local_addr()?);
                self.is_connected = true;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn watch(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        if self.watched == Some((token, interest)) {
            return Ok(());
        }
        let known = matches!(self.watched, Some((_, watched)) if watched != Interest::Nothing);
        self.poller.watch(&self.stream, known, token, interest)?;
        self.watched = Some((token, interest));
        Ok(())
    }

    fn segment_max(&self) -> usize {
        let segment = sys::option(self.stream.as_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG);
        let segment = segment.ok().and_then(|bytes| usize::try_from(bytes).ok());
        segment.filter(|&bytes| bytes != 0).unwrap_or(SEGMENT)
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({} to {})", self.local, self.peer)
    }
}

/// A port number with sockets of this host that have no peer.
pub(super) struct Port {
    port: BoundPort,
    poller: Arc<Poller>,
    /// With a port mapper.
    answers: Option<Arc<Answers>>,
    /// It listens, and the mapper answers for it.
    answered: Option<Answered>,
}

impl Port {
    pub(super) fn new(
        port: BoundPort,
        poller: &Arc<Poller>,
        answers: Option<&Arc<Answers>>,
    ) -> Self {
        Self {
            port,
            poller: Arc::clone(poller),
            answers: answers.cloned(),
            answered: None,
        }
    }
}

impl Bound for Port {
    fn local(&self) -> SocketAddr {
        self.port.local()
    }

    fn listen(&mut self, backlog: u32, token: Token) -> Result<(), PortError> {
        self.port.listen(backlog.max(1))?;
        for socket in self.port.sockets() {
            let watched = self.poller.watch(socket, false, token, Interest::Receive);
            watched.map_err(|error| PortError::System {
                call: "epoll_ctl",
                addr: self.port.local(),
                error,
            })?;
        }
        let local = self.port.local();
        self.answered = self.answers.as_ref().map(|answers| answers.listen(local));
        Ok(())
    }

    fn rest(&mut self, token: Token, rests: bool) -> io::Result<()> {
        let interest = match rests {
            true => Interest::Nothing,
            false => Interest::Receive,
        };
        for socket in self.port.sockets() {
            self.poller.watch(socket, rests, token, interest)?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let accepted = self.port.accept()?.ok_or(io::ErrorKind::WouldBlock)?;
        Ok(Box::new(Socket::accepted(accepted, &self.poller)?))
    }

    fn connect(self: Box<Self>, remote: SocketAddr, token: Token) -> io::Result<Box<dyn Stream>> {
        let Self {
            port,
            poller,
            answers,
            ..
        } = *self;
        // It is one of those whose peers have a mapper.
        if answers.is_some() {
            let stream = MappedStream::connect(port, remote, poller, token)?;
            return Ok(Box::new(stream));
        }
        Ok(Box::new(Socket::connect(port, remote, poller, token)?))
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.port.fmt(f)
    }
}

/// IPv4 addresses that come through an IPv6 socket are IPv4 addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}
