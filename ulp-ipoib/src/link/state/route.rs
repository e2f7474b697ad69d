//! Routing packets of the stack behind the face.

use std::net::IpAddr;

use verbs_core::PKey;
use verbs_core::time::Instant;

use super::State;
use super::action::Verdict;
use crate::config::Mode;
use crate::face::LinkInfo;
use crate::link::buffers::Packet;
use crate::wire::{CONNECTED_MTU, Ip, Wishes, broadcast, group_of};

impl State {
    /// Sends a packet towards its destination.
    pub(in crate::link) fn route(&mut self, ip: &Ip, packet: Packet, now: Instant) -> Verdict {
        let scope = self.config.scope;
        let group = match ip.destination {
            IpAddr::V4(addr) if self.config.is_broadcast(addr) => {
                Some(broadcast(self.partition.0, scope))
            }
            addr => group_of(addr, self.partition.0, scope),
        };
        match group {
            Some(mgid) => self.send_to_group(mgid, packet, now),
            None => {
                let hop = self.config.next_hop(ip.destination);
                self.send_to_neighbour(hop, packet, now)
            }
        }
    }

    /// Follows the groups that a stack reports, if the packet is such a report.
    pub(in crate::link) fn follow_report(&mut self, bytes: &[u8], ip: &Ip, now: Instant) {
        // Reports are sent to groups; nearly nothing else is.
        if !self.config.follows_reports || !ip.destination.is_multicast() {
            return;
        }
        let (pkey, scope) = (self.config.pkey, self.config.scope);
        for wish in Wishes::parse(bytes).into_iter().flatten() {
            if let Some(mgid) = group_of(wish.group, pkey, scope) {
                self.follow(mgid, wish.is_wanted, now);
            }
        }
    }

    pub(in crate::link) fn info(&self) -> LinkInfo {
        let datagram_mtu = self.datagram_mtu();
        LinkInfo {
            is_up: self.link.is_some(),
            mtu: match self.config.mode {
                Mode::Connected => CONNECTED_MTU,
                Mode::Datagram => datagram_mtu,
            },
            datagram_mtu,
            hardware: self.own,
            pkey: PKey(self.partition.0.0),
        }
    }
}
