//! How sockets and connections are called.

use std::net::IpAddr;

/// Which connection: the address here, the peer's, the type of service.
pub(crate) type Key = (IpAddr, IpAddr, u8);

/// A socket's number, which is given to another one when it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketId(pub(super) usize);

/// A connection's number, which is given to another one when it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(pub(super) usize);
