//! Entries for multicast groups.

use arrayvec::ArrayVec;
use verbs_core::mad::sa::McMemberRecord;
use verbs_core::time::Instant;
use verbs_core::wr::Datagram;
use verbs_core::{Ah, Mcast};

use crate::admin::Membership;
use crate::config::GROUP_QUEUE;
use crate::link::buffers::Packet;

/// A group that packets are sent to or received from.
pub(in crate::link) struct Group {
    pub(in crate::link) phase: Phase,
    /// Subscriptions; without one the interface only sends to the group.
    pub(in crate::link) subscribers: u32,
    /// One of the subscriptions is a report of the stack behind the face.
    pub(in crate::link) is_reported: bool,
    /// When a packet was last sent to it.
    pub(in crate::link) used: Instant,
    pub(in crate::link) queue: ArrayVec<Packet, GROUP_QUEUE>,
}

/// The phase of a group.
pub(in crate::link) enum Phase {
    /// The administrator has been asked.
    Joining,
    /// Packets can be sent, and are received if there are subscribers.
    Joined(Joined),
    /// The join was refused; it is not repeated before then.
    Refused(Instant),
}

/// A joined group. Fields are dropped in this order.
pub(in crate::link) struct Joined {
    /// While it exists, packets are received.
    pub(in crate::link) attached: Option<Mcast>,
    pub(in crate::link) ah: Ah,
    pub(in crate::link) to: Datagram,
    pub(in crate::link) record: McMemberRecord,
    pub(in crate::link) membership: Box<dyn Membership>,
}

impl Group {
    pub(in crate::link) fn new(phase: Phase, subscribers: u32) -> Self {
        Self {
            phase,
            subscribers,
            is_reported: false,
            used: Instant::ZERO,
            queue: ArrayVec::new(),
        }
    }

    /// A group that is being left.
    pub(in crate::link) fn parting(joined: Joined) -> Self {
        Self::new(Phase::Joined(joined), 0)
    }
}
