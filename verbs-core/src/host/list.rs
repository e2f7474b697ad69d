//! What a daemon knows of its clients, for lists. The process that asks need not be a client.
//!
//! A list is asked for piece by piece, with the [`Cursor`] of the next piece: a piece is one message, and the daemon
//! keeps no state for the process that asks. What changes in the meantime may be missing from the list, or be in it twice.

use std::net::IpAddr;

use crate::addr::Qpn;
use crate::host::bytes::encode;
use crate::host::ports::Service;

/// The most connections in one piece.
pub const CONNECTIONS_MAX: usize = 256;

/// Where a piece of a list begins: the first one at the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The client, or the next one after that number.
    pub client: u32,
    /// How many of its connections have been listed.
    pub connections: u32,
}

/// A piece of a list: a client, and as many of its connections as fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub client: u32,
    /// Its user.
    pub uid: u32,
    /// Its process in the daemon's namespace; 0 if it is not visible there.
    pub pid: u32,
    /// The name of its program, as it reports it.
    pub name: String,
    /// Its blocks of queue pair numbers.
    pub blocks: Vec<u16>,
    /// What it listens for.
    pub services: Vec<Service>,
    /// The multicast groups that it is in.
    pub groups: Vec<IpAddr>,
    /// The clients with which it shares memory.
    pub shares: Vec<u32>,
    /// The connections that its connection manager has made, or is making.
    pub connections: Vec<ListedConnection>,
    /// The next piece; `None` after the last.
    pub next: Option<Cursor>,
}

/// A connection, as the messages of its connection manager show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedConnection {
    /// The client's address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// The service that was asked for.
    pub service: Option<u64>,
    /// The client has asked for it, not the peer.
    pub is_active: bool,
    /// The client's queue pair.
    pub qpn: Option<Qpn>,
    /// The peer's, once both are known.
    pub remote_qpn: Option<Qpn>,
}

encode! {
    struct Cursor { client, connections }
    struct Listed { client, uid, pid, name, blocks, services, groups, shares, connections, next }
    struct ListedConnection { local, remote, service, is_active, qpn, remote_qpn }
}
