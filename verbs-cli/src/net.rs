//! TCP, as far as commands need it: connections with deadlines on every step; and how to find a peer.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs,
    UdpSocket,
};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use verbs_core::sync::Arc;

use crate::connecting::ConnectArgs;

pub(crate) mod address;
pub(crate) mod connecting;
pub(crate) mod published;
pub(crate) mod wire;

/// How long a peer may take to accept a connection, or to send or take one message.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Connections that say nothing beside each other: far fewer than a process may have descriptors.
const SILENT_MAX: usize = 128;

/// How long a peer that is sent away may take to read why.
const PARTING: Duration = Duration::from_millis(200);

/// A connection whose peer's host has vanished is given up after this much silence, and as many
/// probes a second apart.
const KEEPALIVE_SECONDS: u32 = 5;

/// A connection failed. One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetError {
    #[error("cannot listen on {address}: {error}")]
    Listen { address: String, error: io::Error },
    #[error("cannot connect to {host} port {port}: {error}")]
    Connect {
        host: String,
        port: u16,
        error: io::Error,
    },
    #[error("cannot connect to {host} port {port}: {error}")]
    Manager {
        host: String,
        port: u16,
        error: Box<verbs_cm::Error>,
    },
    #[error("cannot listen on {address}: {error}")]
    Service {
        address: SocketAddr,
        error: Box<verbs_cm::Error>,
    },
    #[error("cannot {doing}: {error}")]
    Verb {
        doing: &'static str,
        error: verbs_core::Error,
    },
    #[error("the connection to {peer} failed: {error}")]
    Broken { peer: SocketAddr, error: io::Error },
    #[error("{0} ended the connection")]
    Ended(SocketAddr),
    #[error("{peer} did not answer within {} s", PATIENCE.as_secs())]
    Silent { peer: SocketAddr },
    #[error("{peer} speaks another protocol: {what}")]
    Foreign { peer: SocketAddr, what: String },
}

/// A connection and the address of its other end. Clones are the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    stream: Arc<TcpStream>,
    peer: SocketAddr,
    local: SocketAddr,
}

impl Connection {
    /// Connects to the first of the host's addresses that accepts in time. Blocks.
    pub(crate) fn open(host: &str, port: u16, connect: ConnectArgs) -> Result<Self, NetError> {
        let failed = |error| NetError::Connect {
            host: host.into(),
            port,
            error,
        };
        let mut last = no_address();
        for address in lookup(host, port)? {
            match connect.connect_tcp(&address) {
                Ok(stream) => return Self::new(stream).map_err(failed),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// Takes a connection that was accepted.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        sockopt::set_socket_keepalive(&stream, true)?;
        let pause = Duration::from_secs(1);
        sockopt::set_tcp_keepidle(&stream, pause * KEEPALIVE_SECONDS)?;
        sockopt::set_tcp_keepintvl(&stream, pause)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_SECONDS)?;
        let (peer, local) = (
            canonical(stream.peer_addr()?),
            canonical(stream.local_addr()?),
        );
        Ok(Self {
            stream: Arc::new(stream),
            peer,
            local,
        })
    }

    /// The other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends all bytes, in one piece if the system can.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), NetError> {
        (&*self.stream)
            .write_all(bytes)
            .map_err(|error| self.broken(error))
    }

    /// Fills `into` before the deadline, however slowly the peer sends.
    pub(crate) fn receive(&mut self, into: &mut [u8], deadline: Instant) -> Result<(), NetError> {
        let mut done = 0;
        while done < into.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NetError::Silent { peer: self.peer });
            }
            done += self.read_some(&mut into[done..], left)?.unwrap_or(0);
        }
        Ok(())
    }

    /// Waits so long for the first byte of a message; `None` if there was none.
    pub(crate) fn receive_first(&mut self, wait: Duration) -> Result<Option<u8>, NetError> {
        let mut byte = [0];
        Ok(self.read_some(&mut byte, wait)?.map(|_| byte[0]))
    }

    /// Whether the peer has said something that was not received, or has ended the connection. Does not wait.
    pub(crate) fn has_news(&self) -> bool {
        let mut polled = [PollFd::new(&*self.stream, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1..))
    }

    /// Ends what this end sends and reads, for a moment and up to so many bytes, what the peer has sent:
    /// a connection that is closed with bytes unread takes back what it said last.
    pub(crate) fn drain(&mut self, bytes_max: usize) {
        let until = Instant::now() + PARTING;
        // The peer may have ended it already.
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.receive(&mut vec![0; bytes_max], until);
    }

    /// Ends the reading side: a reader, through any handle, finds the end.
    pub(crate) fn deafen(&self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection: a reader or writer, through any handle, finds the end.
    pub(crate) fn hang_up(&self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn read_some(&mut self, into: &mut [u8], wait: Duration) -> Result<Option<usize>, NetError> {
        let read = self
            .stream
            .set_read_timeout(Some(wait))
            .and_then(|()| (&*self.stream).read(into));
        match read {
            Ok(0) => Err(NetError::Ended(self.peer)),
            Ok(n) => Ok(Some(n)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(self.broken(error)),
            },
        }
    }

    fn broken(&self, error: io::Error) -> NetError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                NetError::Ended(self.peer)
            }
            io::ErrorKind::WouldBlock => NetError::Silent { peer: self.peer },
            _ => NetError::Broken {
                peer: self.peer,
                error,
            },
        }
    }
}

/// The addresses of a host. Blocks while the name is looked up.
pub(crate) fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, NetError> {
    let found = (host, port).to_socket_addrs().and_then(|all| {
        let all: Vec<_> = all.collect();
        match all.is_empty() {
            true => Err(no_address()),
            false => Ok(all),
        }
    });
    found.map_err(|error| NetError::Connect {
        host: host.into(),
        port,
        error,
    })
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

/// Where the system sends from to reach that address. Sends nothing.
pub(crate) fn sends_from(peer: SocketAddr) -> io::Result<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// Listens on that address, or else on all of this host.
pub(crate) fn listen(address: Option<SocketAddr>, port: u16) -> Result<TcpListener, NetError> {
    let listen = |address: SocketAddr| {
        TcpListener::bind(address).map_err(|error| NetError::Listen {
            address: address.to_string(),
            error,
        })
    };
    match address {
        Some(address) => listen(address),
        None => listen((Ipv6Addr::UNSPECIFIED, port).into())
            // Some hosts have no IPv6.
            .or_else(|_| listen((Ipv4Addr::UNSPECIFIED, port).into())),
    }
}

/// The first connection that has something to say. Blocks until there is one. Connections that are silent wait
/// beside each other, [`SILENT_MAX`] at most: beyond that the oldest is closed, as are those that end.
pub(crate) fn accept_first_to_speak(listener: &TcpListener) -> io::Result<Connection> {
    let mut silent: VecDeque<TcpStream> = VecDeque::new();
    loop {
        let ready: Vec<bool> = {
            let sockets = silent.iter().map(AsFd::as_fd);
            let sockets = [listener.as_fd()].into_iter().chain(sockets);
            let mut polled: Vec<_> = sockets
                .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN))
                .collect();
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            let has_news = |socket: &PollFd<'_>| !socket.revents().is_empty();
            polled.iter().map(has_news).collect()
        };
        for at in (0..silent.len()).rev().filter(|at| ready[at + 1]) {
            // One that has ended or failed is dropped.
            let stream = silent.remove(at);
            let speaks = |stream: &TcpStream| matches!(stream.peek(&mut [0]), Ok(1));
            if let Some(stream) = stream.filter(speaks) {
                return Connection::new(stream);
            }
        }
        if ready[0] {
            let (stream, _) = listener.accept()?;
            if silent.len() == SILENT_MAX {
                silent.pop_front();
            }
            silent.push_back(stream);
        }
    }
}

/// The connection that comes from there. Blocks, no longer than [`PATIENCE`]; others that come are closed.
pub(crate) fn accept_from(listener: &TcpListener, from: SocketAddr) -> io::Result<TcpStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
            Err(Errno::INTR) => continue,
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            polled => polled?,
        };
        let (stream, peer) = listener.accept()?;
        let peer = canonical(peer);
        if (peer.ip(), peer.port()) == (from.ip(), from.port()) {
            return Ok(stream);
        }
    }
}

/// IPv4 addresses that came through an IPv6 socket are IPv4 addresses.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::sync::thread;

    use super::*;

    /// Goal: a client that says nothing does not keep a server of one client from its client. Method: more silent ones
    /// than are kept, one that has ended, and then one that speaks.
    #[test]
    fn the_first_to_speak_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        thread::scope(|scope| {
            let accepted = scope.spawn(|| accept_first_to_speak(&listener));
            let connect = || TcpStream::connect(address).expect("it listens");
            drop(connect());
            let silent: Vec<_> = (0..SILENT_MAX + 10).map(|_| connect()).collect();
            let mut client = connect();
            client.write_all(b"hello").expect("open");
            let mut accepted = accepted.join().expect("no panic").expect("a client");
            let mut said = [0; 5];
            let deadline = Instant::now() + PATIENCE;
            accepted.receive(&mut said, deadline).expect("five bytes");
            assert_eq!(&said, b"hello");
            drop(silent);
        });
    }
}
