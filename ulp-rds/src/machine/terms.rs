//! What a connection is made with, why one is refused, and what is counted.

use std::net::IpAddr;

use crate::wire::Handshake;

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The address here.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// The type of service.
    pub tos: u8,
    /// Receive buffers of a queue pair; 0 turns flow control by credits off.
    pub receives: u32,
    /// Packets after which an acknowledgement is asked for: no more than the caller can keep.
    pub ack_interval: u32,
    /// The number of this life of the node.
    pub generation: u32,
    /// Decides pauses.
    pub seed: u64,
}

impl Terms {
    /// Whether this end's request is the one that is answered if both ask at once.
    pub(super) fn has_precedence(&self) -> bool {
        self.local < self.remote
    }
}

/// Packets after which an acknowledgement is asked for at most: as many as after which a peer of this kind grants credits, which
/// then ride on it.
pub const ACK_INTERVAL_MAX: u32 = 16;

/// A request of the peer for a connection, until that is established.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// What the answer says.
    pub answer: Handshake,
    /// Connections that had been made when it came.
    pub(super) connects: u64,
}

/// Why a connection that a peer asks for is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An attempt of this end is under way, and has precedence: this end has the lower address.
    Busy,
    /// Another connection was made since the peer asked for this one, and has precedence.
    Older,
}

/// Counts of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages that came.
    pub received: u64,
    /// Messages that came again and were dropped.
    pub duplicates: u64,
    /// Packets transmitted.
    pub packets: u64,
    /// Connections that were made.
    pub connects: u64,
    /// Connections that were lost.
    pub losses: u64,
    /// Connections that the peer asked for and that were refused: this end was asking itself, or had made another one since.
    pub refused: u64,
    /// Pings that were not answered, because too many waited.
    pub pings_dropped: u64,
    /// Times that the peer had forgotten everything.
    pub peer_restarts: u64,
    /// Handshake probes that the peer has answered: one for each of its lives, if it announces them.
    pub probes: u64,
}
