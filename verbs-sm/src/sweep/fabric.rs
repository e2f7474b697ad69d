//! The result of a sweep: nodes, their ports, and the links between them.

use std::collections::BTreeMap;

use verbs_core::mad::Bits;
use verbs_core::mad::sm::{
    LinkState, LinkWidth, NodeDescription, NodeInfo, NodeType, PKeyBlock, PortInfo, SmInfo,
    SwitchInfo,
};
use verbs_core::{Gid, Guid, Lid, PKey};

/// Ports to leave through, hop by hop.
pub(crate) type Route = Vec<u8>;

/// A port of a node.
pub(crate) type End = (Guid, u8);

/// The subnet as a sweep found it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fabric {
    pub(crate) nodes: BTreeMap<Guid, Node>,
    /// The other end of each link, from both its ends.
    pub(crate) links: BTreeMap<End, End>,
    /// The manager's own port.
    pub(crate) own: Option<End>,
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) info: NodeInfo,
    pub(crate) description: NodeDescription,
    /// The route to it; for an adapter, to its first port that was found.
    pub(crate) route: Route,
    /// The switch's information, for a switch.
    pub(crate) switch: Option<SwitchInfo>,
    /// By number: for a switch all ports, including port 0; for an adapter those that were found.
    pub(crate) ports: BTreeMap<u8, Port>,
}

/// A port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// For an adapter's port, or a switch's port 0.
    pub(crate) guid: Guid,
    pub(crate) route: Route,
    pub(crate) info: PortInfo,
    /// The first block of its partitions.
    pub(crate) pkeys: Option<PKeyBlock>,
    /// The manager there, if there is one.
    pub(crate) manager: Option<SmInfo>,
}

impl Node {
    pub(crate) fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::SWITCH
    }
}

impl Port {
    /// Whether there is a link.
    pub(crate) fn is_up(&self) -> bool {
        !matches!(self.info.state, LinkState::DOWN | LinkState::NO_CHANGE)
    }

    /// The rate of its link, by the code used in paths (IBTA vol. 1, 15.2.5.16).
    pub(crate) fn rate(&self) -> Bits<6> {
        let width = match self.info.link_width_active {
            LinkWidth::X12 => 12,
            LinkWidth::X8 => 8,
            LinkWidth::X4 => 4,
            _ => 1,
        };
        let speed = match (
            self.info.link_speed_ext_active.value(),
            self.info.link_speed_active.value(),
        ) {
            (2, _) => 26,
            (1, _) => 14,
            (_, 4) => 10,
            (_, 2) => 5,
            _ => 2,
        };
        Bits::truncated(rate_code(width, speed))
    }

    pub(crate) fn has_pkey(&self, pkey: PKey) -> bool {
        let Some(block) = &self.pkeys else {
            return pkey == PKey::DEFAULT;
        };
        block.keys.iter().any(|own| own.matches(pkey))
    }
}

/// The rate code of that many lanes at that speed in Gb/s.
const fn rate_code(width: u32, speed: u32) -> u32 {
    match (width, speed) {
        (1, 5) => 5,
        (1, 10) => 3,
        (4, 2) => 3,
        (4, 5) => 6,
        (4, 10) => 7,
        (8, 2) => 6,
        (8, 5) => 7,
        (8, 10) => 9,
        (12, 2) => 4,
        (12, 5) => 8,
        (12, 10) => 10,
        (1, 14) => 11,
        (4, 14) => 12,
        (8, 14) => 13,
        (12, 14) => 14,
        (1, 26) => 15,
        (4, 26) => 16,
        (8, 26) => 17,
        (12, 26) => 18,
        _ => 2,
    }
}

/// Codes of rates, slowest first.
const BY_SPEED: [u32; 17] = [2, 5, 3, 11, 6, 15, 4, 7, 8, 12, 9, 16, 10, 13, 14, 17, 18];

/// The index of a rate in ascending order: codes are not in order.
pub(crate) fn rate_order(code: Bits<6>) -> usize {
    let place = BY_SPEED.iter().position(|&known| known == code.value());
    place.unwrap_or(0)
}

/// Whether a code is a valid rate.
pub(crate) fn is_rate(code: Bits<6>) -> bool {
    BY_SPEED.contains(&code.value())
}

/// The slower of two rates.
pub(crate) fn slower_of(one: Bits<6>, other: Bits<6>) -> Bits<6> {
    match rate_order(one) <= rate_order(other) {
        true => one,
        false => other,
    }
}

/// The fastest rate that is slower than that one, if there is one.
pub(crate) fn rate_below(code: Bits<6>) -> Option<Bits<6>> {
    let before = rate_order(code).checked_sub(1)?;
    BY_SPEED.get(before).copied().map(Bits::truncated)
}

impl Fabric {
    pub(crate) fn node(&self, guid: Guid) -> Option<&Node> {
        self.nodes.get(&guid)
    }

    pub(crate) fn port(&self, end: End) -> Option<&Port> {
        self.nodes.get(&end.0)?.ports.get(&end.1)
    }

    pub(crate) fn port_mut(&mut self, end: End) -> Option<&mut Port> {
        self.nodes.get_mut(&end.0)?.ports.get_mut(&end.1)
    }

    pub(crate) fn switches(&self) -> impl Iterator<Item = (Guid, &Node)> {
        let nodes = self.nodes.iter();
        nodes
            .filter(|(_, node)| node.is_switch())
            .map(|(&guid, node)| (guid, node))
    }

    /// Ports that have a LID of their own: those of adapters, and port 0 of switches.
    pub(crate) fn end_ports(&self) -> impl Iterator<Item = (End, &Port)> {
        self.nodes.iter().flat_map(|(&guid, node)| {
            let own = move |number: u8| !node.is_switch() || number == 0;
            let ports = node.ports.iter().filter(move |&(&number, _)| own(number));
            ports.map(move |(&number, port)| ((guid, number), port))
        })
    }

    pub(crate) fn by_lid(&self, lid: Lid) -> Option<(End, &Port)> {
        self.end_ports().find(|(_, port)| port.info.has_lid(lid))
    }

    /// The port with that GID, under any possible prefix.
    pub(crate) fn by_gid(&self, gid: Gid) -> Option<(End, &Port)> {
        self.end_ports().find(|(_, port)| port_gid(port) == gid)
    }

    /// The switch of an end port: itself, or the one at its link; and the port there to which it is linked, 0 for
    /// itself.
    pub(crate) fn switch_of(&self, end: End) -> Option<End> {
        if self.node(end.0)?.is_switch() {
            return Some((end.0, 0));
        }
        let &(guid, port) = self.links.get(&end)?;
        self.node(guid)?.is_switch().then_some((guid, port))
    }

    /// The LID of a node: of an adapter's port, of all ports of a switch.
    pub(crate) fn lid(&self, end: End) -> Lid {
        let number = match self.node(end.0) {
            Some(node) if node.is_switch() => 0,
            _ => end.1,
        };
        self.port((end.0, number))
            .map_or(Lid(0), |port| port.info.lid)
    }

    /// Adds a link, from both its ends.
    pub(crate) fn link(&mut self, one: End, other: End) {
        self.links.insert(one, other);
        self.links.insert(other, one);
    }
}

/// The first GID of an end port.
pub(crate) fn port_gid(port: &Port) -> Gid {
    Gid::from_parts(port.info.gid_prefix, port.guid)
}
