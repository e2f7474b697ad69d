//! A datagram, as a program has it, and what is counted of them.

use std::net::SocketAddr;

use crate::payload::Payload;

/// A datagram that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram {
    /// The socket that sent it.
    pub from: SocketAddr,
    /// What it sent.
    pub payload: Payload,
    /// Memory that the sender lets this program read or write, as the 64 bits of a
    /// [`Cookie`](crate::wire::Cookie).
    pub cookie: Option<u64>,
}

/// What a socket has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Datagrams that came.
    pub received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Datagrams that were discarded, because a peer sent to a congested port ([`Config::receive_max`]).
    ///
    /// [`Config::receive_max`]: crate::Config::receive_max
    pub discarded: u64,
}
