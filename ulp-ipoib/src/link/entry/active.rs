//! Entries of connections that this end makes.

use arrayvec::ArrayVec;
use verbs_cm::Connection;
use verbs_core::mad::Time;
use verbs_core::{Gid, Qpn};

use crate::config::CONNECT_QUEUE;
use crate::link::buffers::Packet;

/// Whom a connection is to.
pub(in crate::link) type Key = (Qpn, Gid);

/// A connection to a neighbour.
pub(in crate::link) struct Active {
    pub(in crate::link) phase: Phase,
    pub(in crate::link) used: Time,
    /// Packets that no datagram can carry, while it is being made.
    pub(in crate::link) queue: ArrayVec<Packet, CONNECT_QUEUE>,
}

pub(in crate::link) enum Phase {
    Connecting,
    Up {
        connection: Connection,
        qpn: Option<Qpn>,
        /// Bytes of the longest packet that the neighbour takes.
        mtu: usize,
    },
    /// Datagrams are sent, and nobody is asked again before then.
    Failed(Time),
}
