//! The path of a packet: out of a port, into a node, through a switch.

use verbs_core::PKey;
use verbs_core::addr::{QKey, Qpn};
use verbs_core::mad::header::header_of;
use verbs_core::mad::sm::{self, LinkState, PERMISSIVE_LID};
use verbs_core::mad::{AttributeId, Class, GSI_QKEY, MadBytes};
use verbs_core::time::Instant;

use super::Subnet;
use super::links::Fate;
use super::smi::{self, Step};
use crate::agent::{Arrival, Processed};
use crate::packet::{Body, MadPacket, Packet, VL15};
use crate::topology::{NodeId, PortRef};
use verbs_wire::Grh;

impl Subnet {
    /// A packet leaves the host of a port, or the agent there.
    pub(super) fn originate(&mut self, now: Instant, at: PortRef, packet: Packet) {
        let Some(sma) = self.node(at.node) else {
            return;
        };
        let is_switch = sma.is_switch();
        let Some(info) = sma.port(at.port).map(|port| *port.info()) else {
            return;
        };
        if packet.is_directed() && packet.dlid == PERMISSIVE_LID {
            self.direct(now, at, None, packet);
        } else if packet.dlid == PERMISSIVE_LID || info.has_lid(packet.dlid) {
            self.accept(now, at, packet);
        } else if is_switch {
            self.forward(now, at, packet);
        } else {
            // Switches do not send a packet back out of its input port: an adapter makes copies for its own queue
            // pairs (IBTA vol. 1, 10.5.2).
            if packet.dlid.is_multicast() && info.state == LinkState::ACTIVE {
                self.deliver(at, packet.clone());
            }
            self.emit(now, at, at.port, packet);
        }
    }

    /// Sends a datagram along its directed route. `came` is the port of arrival.
    fn direct(&mut self, now: Instant, at: PortRef, came: Option<u8>, mut packet: Packet) {
        let is_switch = self.node(at.node).is_some_and(|sma| sma.is_switch());
        let Body::Mad(MadPacket { mad, .. }) = &mut packet.body else {
            return;
        };
        match smi::step(mad, is_switch, came) {
            Step::Here => self.accept(now, at, packet),
            Step::Out(port) if is_switch || port == at.port => {
                (packet.slid, packet.dlid) = (PERMISSIVE_LID, PERMISSIVE_LID);
                if port == 0 {
                    self.dropped_smp(at);
                } else {
                    let out = PortRef { port, ..at };
                    self.emit(now, out, at.port, packet);
                }
            }
            Step::ToLid(lid) => {
                (packet.slid, packet.dlid) = (self.lid(at), lid);
                // From here on it is the switch's own, which may leave by its input port.
                self.forward(now, PortRef { port: 0, ..at }, packet);
            }
            Step::Out(_) | Step::Drop => self.dropped_smp(at),
        }
    }

    fn dropped_smp(&mut self, at: PortRef) {
        self.count(at, |counts| counts.vl15_dropped += 1);
    }

    fn count(&mut self, at: PortRef, count: impl FnOnce(&mut crate::agent::pma::PortCounts)) {
        let node = self.node_mut(at.node);
        if let Some(counts) = node.and_then(|node| node.pma.counts_mut(at.port)) {
            count(counts);
        }
    }

    /// A packet leaves through a port; `from` is the port of the node that it came from.
    fn emit(&mut self, now: Instant, at: PortRef, from: u8, mut packet: Packet) {
        let Some(sma) = self.node(at.node) else {
            return;
        };
        let Some(state) = sma.port(at.port).map(|port| port.info().state) else {
            return;
        };
        let is_smp = packet.is_smp();
        let may_pass = match state {
            LinkState::ACTIVE => true,
            LinkState::INIT | LinkState::ARMED => is_smp,
            _ => false,
        };
        let lane = if is_smp {
            Some(VL15)
        } else {
            sma.lane(from, at.port, packet.sl)
        };
        let key = packet.pkey();
        let is_member = key.is_none_or(|key| sma.passes_partition(at.port, key, false));
        packet.hops = packet.hops.saturating_add(1);
        if !may_pass || lane.is_none() || packet.hops > self.config.hops_max {
            self.count(at, |counts| {
                counts.xmit_discards += 1;
                counts.vl15_dropped += u64::from(is_smp);
            });
            return;
        }
        if !is_member {
            self.count(at, |counts| counts.xmit_constraints += 1);
            return;
        }
        let (words, is_group) = (packet.words(), packet.dlid.is_multicast());
        self.count(at, |counts| {
            counts.xmit_packets += 1;
            counts.xmit_data += words;
            counts.multicast_xmit_packets += u64::from(is_group);
        });
        let Some(peer) = self.peer(at) else { return };
        let fate = self.fate(at);
        self.record.note(now, at, &packet, fate);
        match fate {
            Fate::Arrives => {
                let due = now + self.config.link_delay;
                self.sent += 1;
                self.flying.insert((due, self.sent), (peer, packet));
            }
            Fate::Lost => {}
            Fate::Damaged => self.count(peer, |counts| {
                counts.symbol_errors += 1;
                counts.rcv_errors += 1;
            }),
        }
    }

    /// A packet arrives through a port.
    pub(super) fn arrive(&mut self, now: Instant, at: PortRef, packet: Packet) {
        let Some(sma) = self.node(at.node) else {
            return;
        };
        let is_switch = sma.is_switch();
        let Some(info) = sma.port(at.port).map(|port| *port.info()) else {
            return;
        };
        let (is_smp, is_group) = (packet.is_smp(), packet.dlid.is_multicast());
        let words = packet.words();
        self.count(at, |counts| {
            counts.rcv_packets += 1;
            counts.rcv_data += words;
            counts.multicast_rcv_packets += u64::from(is_group);
        });
        // Until a port is armed, only subnet management enters.
        if !is_smp && !matches!(info.state, LinkState::ARMED | LinkState::ACTIVE) {
            return;
        }
        let key = packet.pkey();
        let sma = self.node(at.node);
        if key.is_some_and(|key| sma.is_some_and(|sma| !sma.passes_partition(at.port, key, true))) {
            self.count(at, |counts| counts.rcv_constraints += 1);
            return;
        }
        let own = if is_switch {
            PortRef { port: 0, ..at }
        } else {
            at
        };
        let is_own = self
            .port_info(own)
            .is_some_and(|info| info.has_lid(packet.dlid));
        if packet.is_directed() && (packet.dlid == PERMISSIVE_LID || is_own) {
            self.direct(now, at, Some(at.port), packet);
        } else if is_own || packet.dlid == PERMISSIVE_LID || is_group && !is_switch {
            self.accept(now, at, packet);
        } else if is_switch {
            self.forward(now, at, packet);
        }
    }

    /// A switch forwards a packet, by its tables.
    fn forward(&mut self, now: Instant, at: PortRef, packet: Packet) {
        let Some(sma) = self.node(at.node) else {
            return;
        };
        if packet.dlid.is_multicast() {
            let ports = 0..=*sma.physical_ports().end();
            let out: Vec<_> = ports
                .filter(|&port| port != at.port && sma.forwards_multicast(packet.dlid, port))
                .collect();
            for port in out {
                self.pass(now, at, port, packet.clone());
            }
            return;
        }
        match sma.forward(packet.dlid) {
            // Sent back out of its input port, it would loop.
            Some(port) if port != at.port || port == 0 => self.pass(now, at, port, packet),
            _ => self.count(at, |counts| counts.rcv_relay_errors += 1),
        }
    }

    fn pass(&mut self, now: Instant, at: PortRef, port: u8, packet: Packet) {
        let out = PortRef { port, ..at };
        if port == 0 {
            self.accept(now, at, packet);
        } else {
            self.emit(now, out, at.port, packet);
        }
    }

    /// A packet has reached its node: an agent answers it, or its host gets it.
    fn accept(&mut self, now: Instant, at: PortRef, packet: Packet) {
        let Body::Mad(datagram) = &packet.body else {
            return self.deliver(at, packet);
        };
        let is_general = datagram.dst_qpn.value() == 1;
        let (key, pkey) = (datagram.qkey, datagram.pkey);
        if is_general && !self.admits(at, key, pkey) {
            return;
        }
        let arrival = Arrival {
            port: at.port,
            slid: packet.slid,
            now,
        };
        let qpn = datagram.dst_qpn;
        if self.is_attended(at, qpn) {
            return self.deliver(at, packet);
        }
        match self.process(at.node, arrival, qpn, &datagram.mad) {
            Processed::NotMine => self.deliver(at, packet),
            Processed::Consumed => {}
            Processed::Reply(mad) => self.reply(now, at, packet, mad),
        }
    }

    /// Lets the agents of a node answer a datagram that has arrived at its queue pair 0 or 1. May be called from
    /// a routine.
    pub fn process(&mut self, id: NodeId, arrival: Arrival, qpn: Qpn, mad: &MadBytes) -> Processed {
        let Some(node) = self.node_mut(id) else {
            return Processed::NotMine;
        };
        let mut processed = match qpn.value() {
            0 => node.sma.process(arrival, mad),
            1 if header_of(mad).class() == Class::PERF => node.pma.process(arrival, mad),
            _ => Processed::NotMine,
        };
        if processed != Processed::NotMine {
            self.settle(arrival.now, id);
        }
        if let Processed::Reply(mad) = &mut processed {
            self.look_again(arrival, id, mad);
        }
        processed
    }

    /// A restarted link is already up again: updates the answer.
    fn look_again(&mut self, arrival: Arrival, id: NodeId, mad: &mut MadBytes) {
        let is_port = sm::is_smp(mad) && header_of(mad).attribute() == AttributeId::PORT_INFO;
        if is_port && let Some(node) = self.node_mut(id) {
            node.sma.refresh(arrival, mad);
        }
    }

    /// An agent's answer returns by the route of its request.
    fn reply(&mut self, now: Instant, at: PortRef, asked: Packet, mad: Box<MadBytes>) {
        let Body::Mad(question) = asked.body else {
            return;
        };
        let body = MadPacket {
            src_qpn: question.dst_qpn,
            dst_qpn: question.src_qpn,
            mad,
            ..question
        };
        // The answer to one of several LIDs has that LID as source.
        let own = if asked.dlid == PERMISSIVE_LID && asked.slid != PERMISSIVE_LID {
            self.lid(at)
        } else {
            asked.dlid
        };
        let mut answer = Packet::new(own, asked.slid, asked.sl, Body::Mad(body));
        answer.grh = asked.grh.map(|grh| Grh {
            sgid: grh.dgid,
            dgid: grh.sgid,
            ..grh
        });
        self.originate_from_agent(now, at, answer);
    }

    fn originate_from_agent(&mut self, now: Instant, at: PortRef, answer: Packet) {
        let is_switch = self.node(at.node).is_some_and(|sma| sma.is_switch());
        let at = if is_switch {
            PortRef { port: 0, ..at }
        } else {
            at
        };
        self.originate(now, at, answer);
    }

    /// Whether queue pair 1 of a port accepts a datagram with these keys.
    fn admits(&mut self, at: PortRef, key: QKey, pkey: PKey) -> bool {
        let is_switch = self.node(at.node).is_some_and(|sma| sma.is_switch());
        let own = if is_switch { 0 } else { at.port };
        let Some(node) = self.node_mut(at.node) else {
            return false;
        };
        let port = node.sma.port(own);
        let is_member = port.is_some_and(|port| port.is_member(pkey));
        if !is_member {
            node.sma.count_pkey_violation(own);
        } else if key != GSI_QKEY {
            node.sma.count_qkey_violation(own);
        } else {
            return true;
        }
        self.count(PortRef { port: own, ..at }, |counts| {
            counts.qp1_dropped += 1;
        });
        false
    }

    fn deliver(&mut self, at: PortRef, packet: Packet) {
        let is_switch = self.node(at.node).is_some_and(|sma| sma.is_switch());
        let at = if is_switch {
            PortRef { port: 0, ..at }
        } else {
            at
        };
        self.deliveries.push_back((at, packet));
    }
}
