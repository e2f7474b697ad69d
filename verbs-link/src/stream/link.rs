//! What carries streams: the traits of sockets and of what makes them.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use verbs_core::Seed;
use verbs_core::sync::{Arc, Weak};

use crate::port_space::{PortError, TcpPortSpace};
use crate::time::{Due, Waiter};

/// Names a socket that is watched: the owner's number, which comes back in [`StreamLink::ready`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What a watched socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Nothing: it is not told of, even if the connection is lost.
    Nothing,
    /// Room for bytes to be sent, or the loss of the connection.
    Send,
    /// Bytes, a connection, or the end.
    Receive,
    /// Either; also the end of a connect.
    Both,
}

/// A stream of bytes in order, both ways. Nothing here blocks: what cannot be done now is
/// [`WouldBlock`](io::ErrorKind::WouldBlock). Dropping it closes it; what was sent still arrives if nothing was left
/// unread.
pub trait Stream: Send + fmt::Debug {
    /// Reads what has come, as much as fits; 0 if the peer sends nothing further.
    ///
    /// # Errors
    /// The system's; [`ConnectionReset`](io::ErrorKind::ConnectionReset) and others if the connection is lost.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Sends as many of the bytes as there is room for; at least one.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends nothing further: the peer reads the end behind what was sent.
    fn finish(&mut self);

    /// Whether a connect has ended: `false` while it goes on.
    ///
    /// # Errors
    /// Why there is no connection.
    fn connected(&mut self) -> io::Result<bool>;

    /// Has [`StreamLink::ready`] tell of it under that token from now on.
    ///
    /// # Errors
    /// The system's.
    fn watch(&mut self, token: Token, interest: Interest) -> io::Result<()>;

    /// Bytes of the longest piece that the peer gets as one, as far as is known: the maximum segment size.
    fn segment_max(&self) -> usize;

    /// The address of this end.
    fn local(&self) -> SocketAddr;

    /// The address of the peer.
    fn peer(&self) -> SocketAddr;
}

/// A local address that is taken, for one connection or for those that peers ask for.
pub trait Bound: Send + fmt::Debug {
    /// The address, with the port number that was given to it.
    fn local(&self) -> SocketAddr;

    /// Takes connections from now on: as many as `backlog` wait.
    ///
    /// # Errors
    /// As [`BoundPort::listen`](crate::port_space::BoundPort::listen). The address is then only good for being
    /// dropped.
    fn listen(&mut self, backlog: u32, token: Token) -> Result<(), PortError>;

    /// Says whether connections that peers make are told of. They are not while they cannot be taken, for want of
    /// descriptors: who waits would be woken again and again.
    ///
    /// # Errors
    /// The system's.
    fn rest(&mut self, _token: Token, _rests: bool) -> io::Result<()> {
        Ok(())
    }

    /// The next connection that a peer has made.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is none; the system's.
    fn accept(&mut self) -> io::Result<Box<dyn Stream>>;

    /// Begins a connection; [`Stream::connected`] says when it is there. The address stays taken by it.
    ///
    /// # Errors
    /// The system's.
    fn connect(self: Box<Self>, remote: SocketAddr, token: Token) -> io::Result<Box<dyn Stream>>;
}

/// What streams are made on. Nothing here blocks, but for [`Waiter::wait`].
pub trait StreamLink: Send + Sync + fmt::Debug {
    /// The addresses of the port; the index of each is its GID index.
    fn addresses(&self) -> Vec<IpAddr>;

    /// Takes a local address; port number 0 for any that is free. A wildcard stands for all addresses of the port,
    /// of which all are taken or none.
    ///
    /// # Errors
    /// As [`TcpPortSpace::bind`].
    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError>;

    /// The port numbers that its endpoints hold, if they are the host's.
    fn port_space(&self) -> Option<&TcpPortSpace> {
        None
    }

    /// Whether the streams are not this host's TCP: what carries them has a TCP of its own.
    fn is_offloaded(&self) -> bool {
        true
    }

    /// Adds the tokens of sockets that have something, a bounded number of them. A socket whose bytes were not read
    /// is named again.
    fn ready(&self, tokens: &mut Vec<Token>);

    /// Makes a stream of a TCP connection that is there, and says how many bytes it has sent that the peer has not
    /// acknowledged.
    ///
    /// # Errors
    /// The system's; [`Unsupported`](io::ErrorKind::Unsupported) of links that are not this host's TCP.
    fn adopt(&self, _stream: TcpStream) -> io::Result<(Box<dyn Stream>, usize)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What a thread waits with; `None` if there is nothing to wait for, as in virtual time.
    fn waiter(&self) -> Option<Arc<dyn Waiter>>;

    /// Names whom a link in virtual time calls when a socket has something, as no thread waits for that.
    fn attach(&self, _listener: Weak<dyn Due>) {}

    /// What keys and queue pair numbers are drawn from: a secret, or one drawn from the seed of a simulation.
    fn seed(&self) -> Seed;
}
