//! Solicitations for addresses, and their answers: ARP and neighbour discovery.

use std::net::{IpAddr, Ipv6Addr};

use verbs_core::time::Instant;

use super::State;
use super::action::Verdict;
use crate::link::buffers::Packet;
use crate::wire::{
    Advertisement, Arp, ArpOperation, HardwareAddress, Nd, Protocol, all_nodes, broadcast,
    group_of, link_local, solicited_node,
};

impl State {
    /// Asks for the owner of an address: all neighbours, or only the last known owner.
    pub(in crate::link) fn send_question(
        &mut self,
        hop: IpAddr,
        known: Option<HardwareAddress>,
        now: Instant,
    ) {
        let Some(source) = self.own_address(hop) else {
            return;
        };
        let (protocol, group, packet) = match (hop, source) {
            (IpAddr::V4(target), IpAddr::V4(source)) => {
                let arp = Arp {
                    operation: ArpOperation::Request,
                    sender: (self.own, source),
                    target: (known.unwrap_or_default(), target),
                };
                let group = broadcast(self.partition.0, self.config.scope);
                (
                    Protocol::Arp,
                    Some(group),
                    self.message(Protocol::Arp, &arp.emit()),
                )
            }
            (IpAddr::V6(target), IpAddr::V6(source)) => {
                let nd = Nd::solicit(source, target, self.own, known.is_some());
                let group = IpAddr::V6(solicited_node(target));
                let group = group_of(group, self.partition.0, self.config.scope);
                (Protocol::Ipv6, group, self.message(Protocol::Ipv6, &nd))
            }
            _ => return,
        };
        let Some(packet) = packet else { return };
        let verdict = match (known, group) {
            (Some(at), _) if self.has_path(at.gid, now) => self.send_datagram(at, packet),
            (_, Some(group)) => self.send_to_group(group, packet, now),
            _ => Verdict::Full,
        };
        tracing::trace!(%hop, ?protocol, ?verdict, "asked who has an address");
        self.settle(packet, verdict);
    }

    /// Handles an ARP request or reply.
    pub(in crate::link) fn take_arp(&mut self, bytes: &[u8], now: Instant) {
        let Ok(arp) = Arp::parse(bytes) else {
            self.counters.unknown += 1;
            return;
        };
        let (from, sender) = arp.sender;
        let is_mine = self.is_own(arp.target.1.into());
        if from == self.own || sender.is_unspecified() || from.gid == Default::default() {
            return;
        }
        let asks = arp.operation == ArpOperation::Request && is_mine;
        if asks || self.neighbours.contains_key(&sender.into()) {
            self.learn(sender.into(), from, now);
        }
        if asks {
            let reply = arp.reply(self.own).emit();
            self.answer(sender.into(), Protocol::Arp, &reply, now);
        }
    }

    /// Handles neighbour discovery. Returns whether the packet belongs to it.
    pub(in crate::link) fn take_nd(&mut self, packet: &[u8], now: Instant) -> bool {
        let nd = match Nd::parse(packet) {
            Ok(nd) => nd,
            Err(crate::wire::NdError::Other) => return false,
            Err(_) => {
                self.counters.unknown += 1;
                return true;
            }
        };
        match nd {
            Nd::Solicitation {
                source,
                target,
                from,
            } => self.asked(source, target, from, now),
            Nd::Advertisement(told) => self.told(&told, now),
        }
        true
    }

    /// A message says where an address is (RFC 4861, 7.2.5). Only an answer proves that it can be reached; a
    /// changed address is adopted if the Override flag is set, and doubted otherwise.
    fn told(&mut self, told: &Advertisement, now: Instant) {
        let hop = told.target.into();
        let known = self.neighbours.get(&hop).map(|neighbour| neighbour.at);
        let (Some(known), Some(at)) = (known, told.at) else {
            return;
        };
        let is_same = known == Some(at);
        let is_taken = known.is_none() || told.overrides || is_same;
        if is_taken && (told.solicited || !is_same) {
            self.learn(hop, at, now);
        }
        let is_proven = is_taken && told.solicited;
        if !(is_same || is_proven) {
            self.doubt(hop);
        }
    }

    fn asked(
        &mut self,
        source: Ipv6Addr,
        target: Ipv6Addr,
        from: Option<HardwareAddress>,
        now: Instant,
    ) {
        if !self.is_own(target.into()) || from == Some(self.own) {
            return;
        }
        let mut told = Advertisement {
            source: target,
            destination: source,
            target,
            at: Some(self.own),
            solicited: true,
            overrides: true,
        };
        if source.is_unspecified() {
            // A host checks whether the address is taken: the answer goes to all nodes.
            (told.destination, told.solicited) = (all_nodes(), false);
            let group = group_of(all_nodes().into(), self.partition.0, self.config.scope);
            let packet = self.message(Protocol::Ipv6, &told.emit());
            if let (Some(group), Some(packet)) = (group, packet) {
                self.counters.answered += 1;
                let verdict = self.send_to_group(group, packet, now);
                self.settle(packet, verdict);
            }
            return;
        }
        if let Some(from) = from {
            self.learn(source.into(), from, now);
        }
        self.answer(source.into(), Protocol::Ipv6, &told.emit(), now);
    }

    fn answer(&mut self, to: IpAddr, protocol: Protocol, message: &[u8], now: Instant) {
        if let Some(packet) = self.message(protocol, message) {
            self.counters.answered += 1;
            let verdict = self.send_to_neighbour(to, packet, now);
            self.settle(packet, verdict);
        }
    }

    /// Frees the buffer of a packet that is not sent after all.
    fn settle(&mut self, packet: Packet, verdict: Verdict) {
        if verdict != Verdict::Taken {
            self.give_back(packet.slot);
        }
    }

    fn message(&mut self, protocol: Protocol, body: &[u8]) -> Option<Packet> {
        self.compose(&[&protocol.header(), body])
    }

    /// Whether packets for that address are for this interface.
    pub(in crate::link) fn is_own(&self, addr: IpAddr) -> bool {
        let is_local = || addr == IpAddr::V6(link_local(self.own.gid));
        self.config.addresses.iter().any(|&(own, _)| own == addr) || is_local()
    }

    /// The source address for solicitations to a neighbour.
    pub(in crate::link) fn own_address(&self, hop: IpAddr) -> Option<IpAddr> {
        let local = link_local(self.own.gid);
        match hop {
            IpAddr::V6(addr) if addr.is_unicast_link_local() => Some(local.into()),
            IpAddr::V6(_) => self.config.source_for(hop).or(Some(local.into())),
            IpAddr::V4(_) => self.config.source_for(hop),
        }
    }
}
