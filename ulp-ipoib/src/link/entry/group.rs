//! Entries of multicast groups.

use arrayvec::ArrayVec;
use verbs_core::mad::Time;
use verbs_core::mad::sa::McMemberRecord;
use verbs_core::wr::Datagram;
use verbs_core::{Ah, Mcast};

use crate::admin::Membership;
use crate::config::GROUP_QUEUE;
use crate::link::buffers::Packet;

/// A group that packets are sent to, or come from.
pub(in crate::link) struct Group {
    pub(in crate::link) phase: Phase,
    /// Subscriptions; without one it is only sent to.
    pub(in crate::link) subscribers: u32,
    /// One of the subscriptions is what the stack behind the face has reported.
    pub(in crate::link) is_reported: bool,
    /// When a packet was last sent to it.
    pub(in crate::link) used: Time,
    pub(in crate::link) queue: ArrayVec<Packet, GROUP_QUEUE>,
}

/// How far a group is.
pub(in crate::link) enum Phase {
    /// The administrator has been asked.
    Joining,
    /// Packets can be sent, and come if there are subscribers.
    Joined(Joined),
    /// It cannot be joined, and nobody is asked again before then.
    Refused(Time),
}

/// A group that is joined. What it holds is let go of in this order.
pub(in crate::link) struct Joined {
    /// While it lives, packets come.
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
            used: Time::ZERO,
            queue: ArrayVec::new(),
        }
    }

    /// A group that is being left.
    pub(in crate::link) fn parting(joined: Joined) -> Self {
        Self::new(Phase::Joined(joined), 0)
    }
}
