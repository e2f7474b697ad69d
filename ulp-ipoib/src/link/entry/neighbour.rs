//! Entries for neighbours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::task::Waker;

use arrayvec::ArrayVec;
use verbs_core::time::Instant;

use crate::config::PATH_QUEUE;
use crate::link::buffers::Packet;
use crate::wire::HardwareAddress;

pub(in crate::link) type Neighbours = BTreeMap<IpAddr, Neighbour>;

/// What is known of a neighbour.
pub(in crate::link) struct Neighbour {
    pub(in crate::link) at: Option<HardwareAddress>,
    /// When it was last heard of.
    pub(in crate::link) confirmed: Instant,
    /// Its address is reported but not confirmed by itself: it is asked (RFC 4861, 7.2.5: STALE).
    pub(in crate::link) is_doubted: bool,
    /// When a packet was last sent to it.
    pub(in crate::link) used: Instant,
    /// How often it was asked since then, and when it is asked next.
    pub(in crate::link) asked: u32,
    pub(in crate::link) ask_at: Instant,
    pub(in crate::link) queue: ArrayVec<Packet, PATH_QUEUE>,
    pub(in crate::link) wakers: Vec<Waker>,
}

impl Neighbour {
    pub(in crate::link) fn new(now: Instant) -> Self {
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
