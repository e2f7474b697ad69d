//! The machine over a topology: nodes, links, and packets on their way.

mod forward;
mod links;
mod paths;
mod record;
mod smi;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use verbs_core::mad::sm::{BadKey, CapabilityMask, LinkState, LinkWidth, PortInfo};
use verbs_core::time::Instant;
use verbs_core::{Gid, Lid, Qpn};

use crate::agent::pma::{Pma, PortCounts};
use crate::agent::sma::{NodeConfig, PortConfig, Sma, SmaChange, SwitchConfig};
use verbs_link::rng::Rng;

use crate::packet::Packet;
use crate::topology::{LinkSpec, NodeId, NodeSpec, PortRef, Topology};

use paths::Ways;

pub use links::LinkFault;
pub use paths::Bound;
pub use record::{Carried, Record};

/// How a subnet behaves.
#[derive(Clone, Copy, Debug)]
pub struct SubnetConfig {
    /// Time from one end of a link to the other; zero by default, so a packet has arrived when the call that
    /// sends it returns.
    pub link_delay: Duration,
    /// Decides which packets a bad link loses.
    pub seed: u64,
    /// Links that a packet passes at most; 64 by default, the maximum of a directed route. Packets that loop
    /// because of wrong tables end there.
    pub hops_max: u8,
    /// Entries of the P_Key table of each adapter's port; 32 by default.
    pub pkey_capacity: u16,
    /// The sizes of each switch's tables.
    pub switch: SwitchConfig,
    /// The capabilities of each port, except width and speed, which its link bounds.
    pub port: PortConfig,
}

impl Default for SubnetConfig {
    fn default() -> Self {
        Self {
            link_delay: Duration::ZERO,
            seed: 0,
            hops_max: 64,
            pkey_capacity: 32,
            switch: SwitchConfig::default(),
            port: PortConfig::default(),
        }
    }
}

/// A change of a port, for the HCA or program attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetEvent {
    /// The port.
    pub at: PortRef,
    /// The change.
    pub change: SmaChange,
}

/// One end of a link.
#[derive(Debug)]
struct End {
    peer: PortRef,
    /// The cable is in.
    is_plugged: bool,
    /// Management has switched this end off.
    is_disabled: bool,
    /// The faults of packets that leave here.
    fault: LinkFault,
}

#[derive(Debug)]
struct Node {
    sma: Sma,
    pma: Pma,
    /// By port number; port 0 has none.
    ends: Vec<Option<End>>,
}

/// A running subnet, described by a [`Topology`].
///
/// - Commands: [`send`](Self::send), [`plug`](Self::plug), [`set_fault`](Self::set_fault),
///   [`set_sm`](Self::set_sm).
/// - Inputs: [`handle_timeout`](Self::handle_timeout).
/// - Outputs: after each call drain [`poll_delivery`](Self::poll_delivery) and
///   [`poll_event`](Self::poll_event), then look at [`poll_timeout`](Self::poll_timeout).
///
/// Nothing blocks. No packet makes it panic, whatever its content. A link that comes up is trained at once; a
/// packet that is in flight when its link goes down still arrives.
#[derive(Debug)]
pub struct Subnet {
    config: SubnetConfig,
    nodes: Vec<Node>,
    /// Packets on links, by the time and the order of their arrival.
    flying: BTreeMap<(Instant, u64), (PortRef, Packet)>,
    /// Packets that have left so far.
    sent: u64,
    deliveries: VecDeque<(PortRef, Packet)>,
    events: VecDeque<SubnetEvent>,
    /// Queue pairs 0 and 1 whose hosts take all arrivals, and call the agents for answers.
    attended: BTreeSet<(PortRef, Qpn)>,
    ways: Ways,
    /// The port of each GID; empty until it is needed, and after a change.
    gids: BTreeMap<Gid, PortRef>,
    /// Nodes whose agents may have timers.
    waiting: BTreeSet<NodeId>,
    rng: Rng,
    record: Record,
}

impl Subnet {
    /// The subnet of that topology, with all cables in: every link is up, no port is in service.
    pub fn new(topology: &Topology, config: SubnetConfig) -> Self {
        let links = topology.links();
        let mut by_end = BTreeMap::new();
        for link in links {
            let [a, b] = link.ends;
            by_end.insert(a, (b, link));
            by_end.insert(b, (a, link));
        }
        let ids = (0..).map(NodeId);
        let nodes = ids.zip(topology.nodes());
        let nodes = nodes.map(|(id, spec)| node(id, spec, &by_end, &config));
        let mut subnet = Self {
            config,
            nodes: nodes.collect(),
            flying: BTreeMap::new(),
            sent: 0,
            deliveries: VecDeque::new(),
            events: VecDeque::new(),
            attended: BTreeSet::new(),
            ways: Ways::default(),
            gids: BTreeMap::new(),
            waiting: BTreeSet::new(),
            rng: Rng::new(config.seed),
            record: Record::default(),
        };
        for link in links {
            subnet.train(Instant::ZERO, link.ends[0]);
        }
        subnet
    }

    /// Sends a packet from a port: from an adapter's own, or from port 0 of a switch. A packet without a source
    /// LID gets the port's.
    pub fn send(&mut self, now: Instant, at: PortRef, mut packet: Packet) {
        if packet.slid == Lid(0) {
            packet.slid = self.lid(at);
        }
        self.originate(now, at, packet);
        self.handle_timeout(now);
    }

    /// Delivers packets whose time has come, and runs the agents' timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        let waiting: Vec<_> = self.waiting.iter().copied().collect();
        for id in waiting {
            let Some(node) = self.node_mut(id) else {
                continue;
            };
            if node.sma.poll_timeout().is_some_and(|due| due <= now) {
                node.sma.handle_timeout(now);
                self.settle(now, id);
            }
        }
        while let Some(first) = self.flying.first_entry()
            && first.key().0 <= now
        {
            let ((arrival, _), (at, packet)) = first.remove_entry();
            self.arrive(arrival, at, packet);
        }
    }

    /// A packet that has arrived at a port and is for its host: the port, and the packet.
    pub fn poll_delivery(&mut self) -> Option<(PortRef, Packet)> {
        self.deliveries.pop_front()
    }

    /// The next event of a port.
    pub fn poll_event(&mut self) -> Option<SubnetEvent> {
        self.events.pop_front()
    }

    /// The record of packets on links, which somebody may begin.
    pub fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flying = self.flying.first_key_value().map(|(&(at, _), _)| at);
        let agents = self.waiting.iter().filter_map(|id| {
            let node = self.nodes.get(id.index())?;
            node.sma.poll_timeout()
        });
        agents.chain(flying).min()
    }

    /// A subnet manager has started or stopped at a port.
    pub fn set_sm(&mut self, now: Instant, at: PortRef, is_here: bool) {
        if let Some(node) = self.node_mut(at.node) {
            node.sma.set_sm(now, at.port, is_here);
        }
        self.settle(now, at.node);
        self.handle_timeout(now);
    }

    /// The host of a port sets and clears capability bits of the port.
    pub fn offer(&mut self, now: Instant, at: PortRef, set: CapabilityMask, clear: CapabilityMask) {
        if let Some(node) = self.node_mut(at.node) {
            node.sma.offer(now, at.port, set, clear);
        }
        self.settle(now, at.node);
        self.handle_timeout(now);
    }

    /// The host of a port starts or stops taking all arrivals at queue pair 0 or 1, and calls
    /// [`process`](Self::process) for answers. Otherwise it gets only datagrams that the agents do not answer.
    pub fn attend(&mut self, at: PortRef, qpn: Qpn, attends: bool) {
        if attends {
            self.attended.insert((at, qpn));
        } else {
            self.attended.remove(&(at, qpn));
        }
    }

    /// A packet with a wrong key has arrived at a queue pair of a port's host.
    pub fn report(&mut self, now: Instant, at: PortRef, packet: &BadKey) {
        if let Some(node) = self.node_mut(at.node) {
            node.sma.report(now, at.port, packet);
        }
        self.settle(now, at.node);
        self.handle_timeout(now);
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The agent of a node; `None` if there is no such node.
    pub fn node(&self, id: NodeId) -> Option<&Sma> {
        self.nodes.get(id.index()).map(|node| &node.sma)
    }

    /// The settings of a port; `None` if there is no such port.
    pub fn port_info(&self, at: PortRef) -> Option<&PortInfo> {
        Some(self.node(at.node)?.port(at.port)?.info())
    }

    /// The counters of a port; `None` if there is no such port.
    pub fn counts(&self, at: PortRef) -> Option<PortCounts> {
        let node = self.nodes.get(at.node.index())?;
        node.pma.counts(at.port).copied()
    }

    /// The LID of a port; for a switch's ports that of port 0; 0 until a manager has set it.
    pub fn lid(&self, at: PortRef) -> Lid {
        self.node(at.node).map_or(Lid(0), |sma| sma.lid(at.port))
    }

    /// The port with that GID, whichever manager has set it. All GIDs are looked up once, as long as nothing
    /// changes: an HCA may ask with each packet.
    pub fn find_gid(&mut self, gid: Gid) -> Option<PortRef> {
        if self.gids.is_empty() {
            for (id, node) in (0..).map(NodeId).zip(&self.nodes) {
                let first = u8::from(!node.sma.is_switch());
                for port in first..=*node.sma.physical_ports().end() {
                    let at = PortRef { node: id, port };
                    let own = node.sma.port(port).into_iter();
                    let gids = own.flat_map(|port| (0..u8::MAX).map_while(|i| port.gid(i)));
                    for gid in gids {
                        // If several have it, the first is as good as any.
                        self.gids.entry(gid).or_insert(at);
                    }
                }
            }
        }
        self.gids.get(&gid).copied()
    }

    /// Linked ports, and how many of those are in service.
    pub fn port_counts(&self) -> (usize, usize) {
        let ports = self.nodes.iter().flat_map(|node| {
            let numbers = node.sma.physical_ports();
            numbers.filter_map(|number| Some(node.sma.port(number)?.info().state))
        });
        ports.fold((0, 0), |(linked, active), state| {
            let linked = linked + usize::from(state != LinkState::DOWN);
            (linked, active + usize::from(state == LinkState::ACTIVE))
        })
    }

    fn is_attended(&self, at: PortRef, qpn: Qpn) -> bool {
        self.attended.contains(&(at, qpn))
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id.index())
    }

    /// Carries out the requests of a node's agent, and their consequences at other nodes.
    fn settle(&mut self, now: Instant, id: NodeId) {
        self.ways.forget();
        self.gids.clear();
        let mut unsettled = vec![id];
        while let Some(id) = unsettled.pop() {
            while let Some(event) = self.node_mut(id).and_then(|node| node.sma.poll_event()) {
                let at = PortRef {
                    node: id,
                    port: event.port,
                };
                match event.change {
                    SmaChange::Restart(phys) => unsettled.extend(self.restart(now, at, phys)),
                    change => self.events.push_back(SubnetEvent { at, change }),
                }
            }
            self.send_traps(now, id);
        }
    }

    fn send_traps(&mut self, now: Instant, id: NodeId) {
        while let Some(trap) = self.node_mut(id).and_then(|node| node.sma.poll_trap(now)) {
            let at = PortRef {
                node: id,
                port: trap.port,
            };
            let mut packet = Packet::smp(trap.from, trap.to, trap.mad);
            packet.sl = trap.sl;
            self.originate(now, at, packet);
        }
        let waits = self
            .node(id)
            .is_some_and(|sma| sma.poll_timeout().is_some());
        if waits {
            self.waiting.insert(id);
        } else {
            self.waiting.remove(&id);
        }
    }
}

/// A node of a topology, its links down.
fn node(
    id: NodeId,
    spec: &NodeSpec,
    links: &BTreeMap<PortRef, (PortRef, &LinkSpec)>,
    config: &SubnetConfig,
) -> Node {
    let port = |number: u8| {
        let link = links.get(&PortRef {
            node: id,
            port: number,
        });
        // A switch has one GUID for all of its ports.
        let offset = if spec.is_switch() { 0 } else { number };
        let mut port = PortConfig {
            guid: verbs_core::Guid(spec.guid.0.saturating_add(offset.into())),
            ..config.port
        };
        if let Some((_, link)) = link {
            port.widths = link.widths;
            port.speeds = link.speeds;
            port.speeds_extended = link.speeds_extended;
        }
        if spec.is_switch() && number == 0 {
            port.guids = 1;
            port.widths = LinkWidth::X1 | LinkWidth::X4;
        }
        port
    };
    let first = u8::from(!spec.is_switch());
    let sma = Sma::new(NodeConfig {
        node_type: spec.node_type,
        description: spec.description.clone(),
        guid: spec.guid,
        system_guid: spec.system_guid,
        vendor_id: spec.vendor_id,
        device_id: spec.device_id,
        pkey_capacity: config.pkey_capacity,
        ports: (first..=spec.ports).map(port).collect(),
        switch: config.switch,
    });
    let ends = (0..=spec.ports).map(|port| {
        let (peer, _) = links.get(&PortRef { node: id, port })?;
        Some(End {
            peer: *peer,
            is_plugged: true,
            is_disabled: false,
            fault: LinkFault::default(),
        })
    });
    Node {
        pma: Pma::new(spec.ports, spec.is_switch()),
        ends: ends.collect(),
        sma,
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests;
