//! Settings and limits.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// What a node is opened with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Addresses of the device that sockets may be bound to.
    pub addresses: Vec<IpAddr>,
    /// Port of the connection manager for IPv4. 18634, as Linux has it.
    pub port_v4: u16,
    /// The same for IPv6. 16385.
    pub port_v6: u16,
    /// Receive buffers of a connection, 4160 bytes each. 64: a message of 256 KiB without a pause.
    pub receives: u32,
    /// Packets of a connection that may be on the send queue, 4160 bytes each. 32.
    pub sends: u32,
    /// Bytes of a socket that may wait for acknowledgement before it has to wait, and the longest message that it can send: one
    /// that is sent while fewer wait is taken, so that nearly twice as many are the most. 1 MiB.
    pub send_buffer: usize,
    /// Bytes in a socket's receive queue from which on its port is congested. 1 MiB.
    pub receive_buffer: usize,
    /// Bytes in a socket's receive queue beyond which datagrams are discarded. Only peers that ignore congestion, or
    /// very many at once, can reach it. 64 MiB.
    pub receive_max: usize,
    /// Sockets of the node. 1024.
    pub sockets_max: usize,
    /// Connections of the node, those that are lost and not forgotten among them. 1024.
    pub connections_max: usize,
    /// The same between the node and one address: more of them, one for each type of service, are refused when that peer asks. 64,
    /// so that no one peer, nor a few, can take the places of all others.
    pub connections_per_address_max: usize,
    /// Connections that were asked for and that are not established; the oldest gives way. Each has a queue pair with
    /// its buffers. 128: a peer keeps its place unless as many requests come before its confirmation.
    pub half_open_max: usize,
    /// The same in the name of one address. 16.
    pub half_open_per_address_max: usize,
    /// Mappings that have a key of the node's pool; more are registered, as all are where the device has no pools. The first
    /// mapping makes the pool, which takes about 16 KiB for each of its keys. 32; 0 for no pool.
    pub pooled_mappings: u32,
    /// How long a connection that is lost, and over which no socket has anything to send, is remembered: by what it
    /// remembers, a datagram that has come is known when the peer sends it again. It is forgotten sooner if its place is wanted.
    /// 10 minutes, far longer than a peer that has something to send takes to connect again.
    pub forget_after: Duration,
    /// How long a peer has to answer a request for a connection. 2 s.
    pub connect_timeout: Duration,
    /// The number of this life of the node, not 0: peers take a node with another number for one that has forgotten everything,
    /// and one with the same number for the one that they know. Drawn by default; a simulation that is to be repeatable says
    /// it, as pauses and ports are drawn from it.
    pub generation: Option<NonZeroU32>,
}

impl Config {
    /// Defaults, with these addresses.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self {
            addresses: addresses.into_iter().collect(),
            port_v4: 18634,
            port_v6: 16385,
            receives: 64,
            sends: 32,
            send_buffer: 1 << 20,
            receive_buffer: 1 << 20,
            receive_max: 64 << 20,
            sockets_max: 1024,
            connections_max: 1024,
            connections_per_address_max: 64,
            half_open_max: 128,
            half_open_per_address_max: 16,
            pooled_mappings: 32,
            forget_after: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(2),
            generation: None,
        }
    }

    /// The port of the connection manager for a family of addresses.
    pub(crate) fn port(&self, addr: IpAddr) -> u16 {
        match addr {
            IpAddr::V4(_) => self.port_v4,
            IpAddr::V6(_) => self.port_v6,
        }
    }
}

/// Messages of a socket that may wait for acknowledgement, however short they are.
pub const SEND_MESSAGES_MAX: usize = 4096;

/// Bytes that every datagram in a receive queue counts beside its payload, so that empty ones cannot fill the memory.
pub const DATAGRAM_CHARGE: usize = 64;
