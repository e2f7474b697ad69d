//! Why something is refused.

use std::net::{IpAddr, SocketAddr};

/// Why a node is not opened, or a socket not bound.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device has no timer, which pauses between attempts need.
    #[error("the device has no timer")]
    NoTimer,
    /// No address was given, or a setting is zero.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// The address is not one of the node's.
    #[error("{0} is not an address of this node: bind to one of those that it was opened with")]
    AddressNotAvailable(IpAddr),
    /// Another socket has it.
    #[error("{0} is bound by another socket")]
    AddressInUse(SocketAddr),
    /// Port 1 is where handshake probes come from.
    #[error("port 1 is kept for handshake probes: bind another one, or 0 for any that is free")]
    ProbePort,
    /// All ports of the address are bound, or the node has as many sockets as it may have.
    #[error("the node has {0} sockets, as many as it may have")]
    Sockets(usize),
    /// A socket's type of service is chosen before it sends.
    #[error("{0} has sent already, and its type of service cannot change any more")]
    HasSent(SocketAddr),
    /// The device refused something.
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    /// The peer's answer is not one of RDS 3.1.
    #[error(transparent)]
    Peer(#[from] crate::wire::HandshakeError),
    /// A connection that the peer asked for was made first.
    #[error("the peer's own request for a connection was first")]
    Superseded,
    /// The connection manager refused something.
    #[error(transparent)]
    Cm(#[from] verbs_cm::Error),
}

/// Why a datagram is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// It is longer than the socket's send buffer.
    #[error("a message of {len} bytes is longer than the {max} that the socket may send at a time")]
    TooLong {
        /// Its bytes.
        len: usize,
        /// The most that can be sent.
        max: usize,
    },
    /// Too much waits for acknowledgement: send again when some of it was acknowledged.
    #[error("the socket's send buffer is full")]
    WouldBlock,
    /// The destination's port is congested (ENOBUFS): its program does not read fast enough.
    #[error("{0} is congested")]
    Congested(SocketAddr),
    /// An unspecified or multicast address, or one of another family than the socket's.
    #[error(
        "{0} is no destination for this socket: it must be a unicast address of the socket's family"
    )]
    Destination(SocketAddr),
    /// The node has as many connections as it may have.
    #[error("the node has {0} connections, as many as it may have")]
    Connections(usize),
    /// RDMA goes over a connection, and there is none within a node.
    #[error("{0} is an address of this node, and RDMA needs a connection")]
    RdmaWithinNode(SocketAddr),
    /// The device has no atomics, or no masked ones.
    #[error(
        "the device has no {0}: read, change and write the memory under a lock of the programs' own"
    )]
    Unsupported(&'static str),
    /// The near end of an operation is not within its region, or an atomic's is not 8 bytes long.
    #[error(
        "bytes {start} to {end} are no near end of this operation: the region has {len}, and an atomic takes 8"
    )]
    RdmaLocal {
        /// The first byte.
        start: usize,
        /// The byte behind the last.
        end: usize,
        /// Bytes of the region.
        len: usize,
    },
    /// The socket is closed.
    #[error("the socket is closed")]
    Closed,
}
