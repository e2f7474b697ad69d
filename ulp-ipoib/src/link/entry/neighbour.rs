//! Entries of neighbours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::task::Waker;

use arrayvec::ArrayVec;
use verbs_core::mad::Time;

use crate::config::PATH_QUEUE;
use crate::link::buffers::Packet;
use crate::wire::HardwareAddress;

pub(in crate::link) type Neighbours = BTreeMap<IpAddr, Neighbour>;

/// What is known of a neighbour.
pub(in crate::link) struct Neighbour {
    pub(in crate::link) at: Option<HardwareAddress>,
    /// When it was last heard of.
    pub(in crate::link) confirmed: Time,
    /// Something was said of it that it did not confirm: it is asked (RFC 4861, 7.2.5: STALE).
    pub(in crate::link) is_doubted: bool,
    /// When somebody last sent to it.
    pub(in crate::link) used: Time,
    /// How often it was asked since, and when it is asked again.
    pub(in crate::link) asked: u32,
    pub(in crate::link) ask_at: Time,
    pub(in crate::link) queue: ArrayVec<Packet, PATH_QUEUE>,
    pub(in crate::link) wakers: Vec<Waker>,
}

impl Neighbour {
    pub(in crate::link) fn new(now: Time) -> Self {
        Self {
            at: None,
            confirmed: now,
            is_doubted: false,
            used: now,
            asked: 0,
            ask_at: now,
            queue: ArrayVec::new(),
            wakers: Vec::new(),
        }
    }
}
