//! The system calls: sockets that are bound, listen and connect.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, socket_with};

/// How a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BindFlags {
    /// An IPv6 wildcard leaves IPv4 alone.
    pub(super) v6_only: bool,
    /// Connections of the past that the kernel still keeps at the number are no conflict (`SO_REUSEADDR`).
    pub(super) reuse: bool,
}

/// Where sockets come from: the host, but for tests that bring about conflicts.
pub(super) trait Sockets: Send + Sync + fmt::Debug {
    /// A socket that is bound to that address, and the address with the number it got.
    fn bind(&self, addr: SocketAddr, flags: BindFlags) -> io::Result<(OwnedFd, SocketAddr)>;
}

/// The host.
#[derive(Debug)]
pub(super) struct HostSockets;

impl Sockets for HostSockets {
    fn bind(&self, addr: SocketAddr, flags: BindFlags) -> io::Result<(OwnedFd, SocketAddr)> {
        let family = match addr.ip() {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let kind = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, kind, None)?;
        if addr.is_ipv6() {
            set_ipv6_v6only(&socket, flags.v6_only)?;
        }
        // Off by default: two sockets that both have it share a number until one of them listens.
        set_socket_reuseaddr(&socket, flags.reuse)?;
        rustix::net::bind(&socket, &addr)?;
        let got = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok((socket, got))
    }
}

/// Has a bound socket listen. Its connections of the past will not keep the next listener from the number, as
/// those of ordinary servers do not.
pub(super) fn listen(socket: &OwnedFd, backlog: i32) -> io::Result<()> {
    set_socket_reuseaddr(socket, true)?;
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Begins to connect a bound socket. `Ok` when the connection is under way or there already.
pub(super) fn connect(socket: &OwnedFd, remote: SocketAddr) -> io::Result<()> {
    match rustix::net::connect(socket.as_fd(), &remote) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The address from which the host would send to a peer; none without a route. Sends nothing.
pub(super) fn source_for(local: Option<IpAddr>, remote: SocketAddr) -> Option<IpAddr> {
    let any = match remote {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = std::net::UdpSocket::bind((local.unwrap_or(any), 0)).ok()?;
    // Any number does: datagrams have a port space of their own, and none is sent.
    let mut question = remote;
    question.set_port(9);
    socket.connect(question).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
