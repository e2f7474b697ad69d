//! A port number with sockets of the host.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SocketFlags;

use super::error::PortError;
use super::host::{self, BindFlags};
use super::table::ClaimId;
use super::{PortUse, TcpPortSpace};

/// A TCP port number at one address, or at all that a wildcard stands for. Dropping it unbinds it: its sockets
/// are closed and the number is free, unless a stream that came from it still lives.
pub struct BoundPort {
    space: TcpPortSpace,
    /// Until it is kept by a reservation.
    claim: Option<ClaimId>,
    usage: PortUse,
    /// What was asked for, with the number.
    local: SocketAddr,
    sockets: Vec<Socket>,
    /// Connections that may wait at each address, if it listens.
    backlog: Option<i32>,
    /// Which socket [`BoundPort::accept`] looks at first.
    turn: usize,
}

/// One address of a bound port.
pub(super) struct Socket {
    pub(super) addr: SocketAddr,
    /// Gone when it has become a connection.
    pub(super) fd: Option<OwnedFd>,
}

/// A connection that a peer has made to a listening port.
#[derive(Debug)]
pub struct Accepted {
    /// The stream; its calls do not block.
    pub stream: TcpStream,
    /// The address that the peer connected to.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

impl BoundPort {
    pub(super) fn new(
        space: TcpPortSpace,
        claim: ClaimId,
        usage: PortUse,
        local: SocketAddr,
        sockets: Vec<Socket>,
    ) -> Self {
        Self {
            space,
            claim: Some(claim),
            usage,
            local,
            sockets,
            backlog: None,
            turn: 0,
        }
    }

    /// The address that was asked for, with the number that it got. A wildcard stays one.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// What the sockets are for.
    pub fn usage(&self) -> PortUse {
        self.usage
    }

    /// The addresses that are bound: one, or those that a wildcard stands for. A wildcard over a whole host is
    /// one socket at the wildcard itself.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.sockets.iter().map(|socket| socket.addr)
    }

    /// The sockets, to wait for connections on: readable when [`BoundPort::accept`] has something.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> + '_ {
        let held = self.sockets.iter();
        held.filter_map(|socket| socket.fd.as_ref().map(AsFd::as_fd))
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        self.backlog.is_some()
    }

    /// Has the bound sockets listen: all of them or none. Listening ends when the port is unbound. The kernel keeps at most `backlog` connections that
    /// were not accepted yet, for each address.
    ///
    /// # Errors
    /// [`PortError::State`] for one that is reserved only, listens or has connected; [`PortError::AddrInUse`]
    /// when another socket of the host has begun to listen at the number, which only one with `SO_REUSEADDR`
    /// can; [`PortError::System`]. After a failed system call the sockets are closed: what is left is to bind
    /// another port.
    ///
    /// # Context
    /// Does not block.
    pub fn listen(&mut self, backlog: u32) -> Result<(), PortError> {
        self.check("listen")?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        let each = self.sockets.iter();
        let failed = each
            .filter_map(|socket| Some((socket.addr, socket.fd.as_ref()?)))
            .find_map(|(addr, fd)| Some((addr, host::listen(fd, backlog).err()?)));
        if let Some((addr, error)) = failed {
            // The kernel cannot end the listening of a socket and be sure to keep its number.
            self.sockets.clear();
            return Err(PortError::of("listen", addr, error));
        }
        self.backlog = Some(backlog);
        Ok(())
    }

    /// The next connection that a peer has made; `None` when there is none now.
    ///
    /// # Errors
    /// [`PortError::State`] for one that does not listen; [`PortError::System`], after which it may be called
    /// again: when descriptors ran out (`EMFILE`), when some are closed.
    ///
    /// # Context
    /// Does not block. Takes the addresses in turn, so that a flood at one does not hide the others.
    pub fn accept(&mut self) -> Result<Option<Accepted>, PortError> {
        if !self.is_listening() {
            return Err(self.state("accept", "it does not listen"));
        }
        for step in 0..self.sockets.len() {
            let at = (self.turn + step) % self.sockets.len();
            let socket = &self.sockets[at];
            let Some(fd) = &socket.fd else { continue };
            if let Some(accepted) = accept_one(fd, socket.addr)? {
                self.turn = at + 1;
                return Ok(Some(accepted));
            }
        }
        Ok(None)
    }

    /// Begins to connect: the bound socket becomes the connection, whose calls do not block. The connection is
    /// there when it is writable and has no error (`SO_ERROR`). The number stays held until both this and the
    /// stream are dropped.
    ///
    /// Of a wildcard, the socket whose address the host would send from is the one.
    ///
    /// # Errors
    /// [`PortError::State`] for one that is reserved only, listens or has connected; [`PortError::NoRoute`];
    /// [`PortError::System`], also for what the kernel says at once, as it may on loopback
    /// (`ECONNREFUSED`). The socket is closed then; the number stays held.
    ///
    /// # Context
    /// Does not block.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<TcpStream, PortError> {
        self.check("connect")?;
        let at = self
            .socket_for(remote)
            .ok_or(PortError::NoRoute { remote })?;
        let Some(fd) = self.sockets[at].fd.take() else {
            return Err(self.state("connect", "it has connected"));
        };
        host::connect(&fd, remote).map_err(|error| match error.kind() {
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                PortError::NoRoute { remote }
            }
            _ => PortError::System {
                call: "connect",
                addr: remote,
                error,
            },
        })?;
        Ok(TcpStream::from(fd))
    }

    /// Binds the number at one more address, of an interface that has come up say; if it listens, that address
    /// does too. Nothing has changed after an error.
    ///
    /// # Errors
    /// [`PortError::State`] for an address that the wildcard does not stand for; as
    /// [`TcpPortSpace::bind`].
    pub fn extend(&mut self, address: IpAddr) -> Result<(), PortError> {
        let addr = self.space.at(address, self.local.port());
        if self.addresses().any(|own| own == addr) {
            return Ok(());
        }
        if !self.local.ip().is_unspecified() || self.local.is_ipv4() != address.is_ipv4() {
            return Err(self.state("extend", "it does not stand for that address"));
        }
        let flags = BindFlags {
            v6_only: true,
            reuse: self.is_listening(),
        };
        let bound = self.space.sockets().bind(addr, flags);
        let (fd, addr) = bound.map_err(|error| PortError::of("bind", addr, error))?;
        if let Some(backlog) = self.backlog {
            host::listen(&fd, backlog).map_err(|error| PortError::of("listen", addr, error))?;
        }
        self.sockets.push(Socket { addr, fd: Some(fd) });
        Ok(())
    }

    /// Unbinds it, as dropping does.
    pub fn unbind(self) {}

    /// Closes the sockets and keeps the number.
    pub(super) fn into_claim(mut self) -> (TcpPortSpace, ClaimId, SocketAddr) {
        let claim = self
            .claim
            .take()
            .expect("taken by this and by nothing else");
        (self.space.clone(), claim, self.local)
    }

    /// The socket that a connection to that peer leaves from.
    fn socket_for(&self, remote: SocketAddr) -> Option<usize> {
        let fits = |socket: &Socket| socket.addr.is_ipv4() == remote.is_ipv4();
        if let [only] = &self.sockets[..] {
            let is_dual = only.addr.ip().is_unspecified();
            return (fits(only) || is_dual).then_some(0);
        }
        let at = |ip| self.sockets.iter().position(|own| own.addr.ip() == ip);
        if let Some(found) = host::source_for(None, remote).and_then(at) {
            return Some(found);
        }
        self.sockets.iter().position(|socket| {
            fits(socket) && host::source_for(Some(socket.addr.ip()), remote).is_some()
        })
    }

    /// That the sockets may become something.
    fn check(&self, what: &'static str) -> Result<(), PortError> {
        if self.usage == PortUse::Reserve {
            return Err(self.state(what, "it is only reserved"));
        }
        if self.is_listening() {
            return Err(self.state(what, "it listens"));
        }
        if self.sockets.iter().any(|socket| socket.fd.is_none()) {
            return Err(self.state(what, "it has connected"));
        }
        if self.sockets.is_empty() {
            return Err(self.state(what, "listening failed, which closed its sockets"));
        }
        Ok(())
    }

    fn state(&self, what: &'static str, why: &'static str) -> PortError {
        let addr = self.local;
        PortError::State { addr, what, why }
    }
}

/// Accepts from one socket.
fn accept_one(fd: &OwnedFd, addr: SocketAddr) -> Result<Option<Accepted>, PortError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        return match rustix::net::acceptfrom_with(fd, flags) {
            Ok((stream, Some(remote))) => {
                let stream = TcpStream::from(stream);
                // A stream whose peer is gone already has no addresses.
                let (Ok(remote), Ok(local)) = (SocketAddr::try_from(remote), stream.local_addr())
                else {
                    continue;
                };
                Ok(Some(Accepted {
                    stream,
                    local,
                    remote,
                }))
            }
            // The peer took it back before it was accepted: the next one.
            Ok((_, None))
            | Err(
                rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR | rustix::io::Errno::PROTO,
            ) => {
                continue;
            }
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(PortError::of("accept", addr, error.into())),
        };
    }
}

impl Drop for BoundPort {
    fn drop(&mut self) {
        // Sockets first: the number is free for others here when it is free in the kernel.
        self.sockets.clear();
        if let Some(claim) = self.claim {
            self.space.release(claim);
        }
    }
}

impl fmt::Debug for BoundPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundPort")
            .field("local", &self.local)
            .field("usage", &self.usage)
            .field("backlog", &self.backlog)
            .finish_non_exhaustive()
    }
}
