//! Subnets as a sweep finds them, for tests of routes and of the administrator.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::mad::Bits;
use verbs_core::mad::sm::{
    LinkState, LinkWidth, NodeDescription, NodeInfo, NodeType, PKeyBlock, PortInfo, SwitchInfo,
};
use verbs_core::{Gid, Guid, Lid, PKey};

use crate::fabric::{End, Fabric, Node, Port, Route, port_gid};
use crate::route::{self, Routes};
use crate::tables::Tables;

/// A subnet under construction. A node's GUID is also the LID of its port.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) fabric: Fabric,
}

impl Plan {
    pub(crate) fn switch(&mut self, guid: u64) {
        self.node(guid, NodeType::SWITCH);
        self.port(guid, 0);
    }

    /// Adds an adapter at a switch.
    pub(crate) fn host(&mut self, guid: u64, at: u64) -> End {
        self.node(guid, NodeType::CA);
        self.link(guid, at).0
    }

    /// Links two nodes at their next ports.
    pub(crate) fn link(&mut self, one: u64, other: u64) -> (End, End) {
        let next = |fabric: &Fabric, guid: u64| {
            let ports = &fabric.nodes[&Guid(guid)].ports;
            ports.keys().max().copied().unwrap_or(0) + 1
        };
        let (a, b) = (next(&self.fabric, one), next(&self.fabric, other));
        self.port(one, a);
        self.port(other, b);
        let ends = ((Guid(one), a), (Guid(other), b));
        self.fabric.link(ends.0, ends.1);
        ends
    }

    /// Changes the information about both ends of a link.
    pub(crate) fn change(&mut self, ends: (End, End), change: impl Fn(&mut PortInfo)) {
        for end in [ends.0, ends.1] {
            change(&mut self.fabric.port_mut(end).expect("a port").info);
        }
    }

    /// Gives a port other partitions.
    pub(crate) fn partitions(&mut self, end: End, own: &[PKey]) {
        let mut keys = [PKey(0); 32];
        keys[..own.len()].copy_from_slice(own);
        self.fabric.port_mut(end).expect("a port").pkeys = Some(PKeyBlock { keys });
    }

    fn node(&mut self, guid: u64, node_type: NodeType) {
        let is_switch = node_type == NodeType::SWITCH;
        let node = Node {
            info: NodeInfo {
                node_type,
                node_guid: Guid(guid),
                port_guid: Guid(guid),
                ports: 36,
                ..NodeInfo::default()
            },
            description: NodeDescription::default(),
            route: Route::new(),
            switch: is_switch.then(SwitchInfo::default),
            ports: BTreeMap::new(),
        };
        self.fabric.nodes.insert(Guid(guid), node);
    }

    fn port(&mut self, guid: u64, number: u8) {
        let node = self.fabric.nodes.get_mut(&Guid(guid)).expect("a node");
        let has_lid = !node.is_switch() || number == 0;
        let lid = u16::try_from(guid)
            .expect("small")
            .checked_mul(has_lid.into());
        let info = PortInfo {
            lid: Lid(lid.expect("small")),
            gid_prefix: Gid::LINK_LOCAL_PREFIX,
            state: LinkState::ACTIVE,
            neighbor_mtu: Bits::truncated(5),
            link_width_active: LinkWidth::X4,
            link_speed_active: Bits::truncated(4),
            ..PortInfo::default()
        };
        let port = Port {
            guid: Guid(guid),
            route: Route::new(),
            info,
            pkeys: None,
            manager: None,
        };
        node.ports.insert(number, port);
    }
}

/// The first GID of an end port.
pub(crate) fn gid(fabric: &Fabric, end: End) -> Gid {
    port_gid(fabric.port(end).expect("a port"))
}

/// The links from an adapter to a LID by these routes, each by the end at which packets leave. `None` if packets
/// do not arrive.
pub(crate) fn walk(fabric: &Fabric, routes: &Routes, from: End, to: End) -> Option<Vec<End>> {
    let lid = fabric.port(to)?.info.lid.0;
    let mut passed = vec![from];
    let mut at = *fabric.links.get(&from)?;
    let is_there = |at: End| at == to || (to.1 == 0 && at.0 == to.0);
    while !is_there(at) {
        let out = (at.0, *routes.tables.get(&at.0)?.get(&lid)?);
        if out.1 == 0 || passed.contains(&out) {
            return None;
        }
        passed.push(out);
        at = *fabric.links.get(&out)?;
    }
    Some(passed)
}

/// All adapters' ports.
pub(crate) fn hosts(fabric: &Fabric) -> Vec<End> {
    let hosts = fabric.end_ports().map(|(end, _)| end);
    hosts
        .filter(|end| !fabric.nodes[&end.0].is_switch())
        .collect()
}

/// Sends a packet to a group from an adapter, and returns the ports that receive it.
///
/// # Panics
/// If a switch receives it twice: then it would loop.
pub(crate) fn flood(
    fabric: &Fabric,
    tree: &BTreeMap<Guid, BTreeSet<u8>>,
    from: End,
) -> BTreeSet<End> {
    let mut got = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut queue = vec![fabric.links[&from]];
    while let Some((guid, into)) = queue.pop() {
        if !fabric.nodes[&guid].is_switch() {
            assert!(got.insert((guid, into)), "{guid:?} gets it twice");
            continue;
        }
        assert!(seen.insert(guid), "{guid:?} gets it twice");
        let out = tree.get(&guid).into_iter().flatten();
        for &port in out.filter(|&&port| port != into) {
            match port {
                0 => assert!(got.insert((guid, 0))),
                port => queue.push(fabric.links[&(guid, port)]),
            }
        }
    }
    got
}

/// Tables with the routes of a subnet, as if they were written.
pub(crate) fn tables(fabric: &Fabric) -> Tables {
    let mut tables = Tables::default();
    for (guid, table) in &route::unicast(fabric).tables {
        tables.linear(*guid, table, 0xbfff);
    }
    tables
}
