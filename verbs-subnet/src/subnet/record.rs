//! A record of all packets on links, for captures.

use std::collections::VecDeque;

use verbs_core::time::Instant;
use verbs_wire::Frame;

use super::links::Fate;
use crate::packet::Packet;
use crate::topology::PortRef;

/// A packet that has left a node through a port.
#[derive(Debug)]
pub struct Carried {
    /// When.
    pub at: Instant,
    /// The port that it left through.
    pub from: PortRef,
    packet: Packet,
    fate: Fate,
}

impl Carried {
    /// Its route headers.
    pub fn frame(&self) -> Frame {
        self.packet.frame()
    }

    /// The packet from its BTH to its ICRC; empty if no header can represent it.
    pub fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.packet.transport(&mut bytes) {
            Some(transport) => transport.to_vec(),
            None => Vec::new(),
        }
    }

    /// What becomes of it, in words; empty if it arrives.
    pub fn fate(&self) -> &'static str {
        match self.fate {
            Fate::Arrives => "",
            Fate::Lost => "lost on purpose",
            Fate::Damaged => "damaged on purpose",
        }
    }
}

/// Packets that have left through ports, from the moment on at which somebody wants to see them.
#[derive(Debug, Default)]
pub struct Record(Option<VecDeque<Carried>>);

impl Record {
    /// Begins. Whoever does that takes all packets with [`poll`](Self::poll) after each call of the subnet, because none is
    /// forgotten.
    pub fn begin(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Whether it has begun.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The next packet.
    pub fn poll(&mut self) -> Option<Carried> {
        self.0.as_mut().and_then(VecDeque::pop_front)
    }

    /// A packet leaves through a port.
    pub(super) fn note(&mut self, at: Instant, from: PortRef, packet: &Packet, fate: Fate) {
        if let Some(packets) = &mut self.0 {
            packets.push_back(Carried {
                at,
                from,
                packet: packet.clone(),
                fate,
            });
        }
    }
}
