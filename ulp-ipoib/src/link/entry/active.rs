//! Entries for connections that this end makes.

use arrayvec::ArrayVec;
use verbs_cm::Connection;
use verbs_core::time::Instant;
use verbs_core::{Gid, Qpn};

use crate::config::CONNECT_QUEUE;
use crate::link::buffers::Packet;

/// The neighbour of a connection.
pub(in crate::link) type Key = (Qpn, Gid);

/// A connection to a neighbour.
pub(in crate::link) struct Active {
    pub(in crate::link) phase: Phase,
    pub(in crate::link) used: Instant,
    /// Packets too long for a datagram, while the connection is being made.
    pub(in crate::link) queue: ArrayVec<Packet, CONNECT_QUEUE>,
}

pub(in crate::link) enum Phase {
    Connecting,
    Up {
        connection: Connection,
        qpn: Option<Qpn>,
        /// Bytes of the longest packet that the neighbour accepts.
        mtu: usize,
    },
    /// Packets are sent as datagrams, and no connection is attempted before then.
    Failed(Instant),
}
