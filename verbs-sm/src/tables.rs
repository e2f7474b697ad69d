//! Forwarding tables: what is in the switches, as far as was written, and what belongs there.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::mad::sm::{MulticastBlock, SwitchInfo};
use verbs_core::mad::{AttributeId, Bits};
use verbs_core::{Guid, Lid};

use crate::fabric::{Fabric, Node, Route};
use crate::manager::{Purpose, SubnetManager};
use crate::route;
use crate::smp::Smp;

/// LIDs of a block of a linear table, and of a multicast table.
const LINEAR_BLOCK: u16 = 64;
const GROUP_BLOCK: u16 = 32;

/// Ports of one mask of a multicast table.
const MASK_PORTS: u8 = 16;

/// The first LID of groups.
pub(crate) const GROUPS_AT: u16 = 0xc000;

/// A port that stands for none.
const NOWHERE: u8 = 0xff;

/// What was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    linear: BTreeMap<(Guid, u16), [u8; 64]>,
    /// By switch, block, sixteen ports.
    groups: BTreeMap<(Guid, u16, u8), [u16; 32]>,
    /// By group's LID: what belongs to it at each switch.
    trees: BTreeMap<u16, BTreeMap<Guid, BTreeSet<u8>>>,
}

impl Tables {
    /// Everything has to be written again.
    pub(crate) fn forget(&mut self) {
        self.linear.clear();
        self.groups.clear();
    }

    /// The port through which packets for a LID leave a switch.
    pub(crate) fn next(&self, guid: Guid, lid: Lid) -> Option<u8> {
        let block = self.linear.get(&(guid, lid.0 / LINEAR_BLOCK))?;
        let port = block.get(usize::from(lid.0 % LINEAR_BLOCK)).copied();
        port.filter(|&port| port != NOWHERE)
    }

    /// Everything of that switch has to be written again.
    pub(crate) fn forget_switch(&mut self, guid: Guid) {
        self.linear.retain(|key, _| key.0 != guid);
        self.groups.retain(|key, _| key.0 != guid);
    }

    /// The blocks of a switch's linear table that are to be written, which count as written.
    pub(crate) fn linear(
        &mut self,
        guid: Guid,
        table: &BTreeMap<u16, u8>,
        top: u16,
    ) -> Vec<(u16, [u8; 64])> {
        let mut blocks = Vec::new();
        for block in 0..=top / LINEAR_BLOCK {
            let mut ports = [NOWHERE; 64];
            let first = block * LINEAR_BLOCK;
            for (&lid, &port) in table.range(first..=first + (LINEAR_BLOCK - 1)) {
                if let Some(place) = ports.get_mut(usize::from(lid - first)) {
                    *place = port;
                }
            }
            if self.linear.get(&(guid, block)) != Some(&ports) {
                self.linear.insert((guid, block), ports);
                blocks.push((block, ports));
            }
        }
        blocks
    }

    /// The blocks of a switch's multicast table that are to be written, which count as written.
    fn groups(&mut self, guid: Guid, ports: u8) -> Vec<(u16, u8, [u16; 32])> {
        let mut wanted: BTreeMap<(u16, u8), [u16; 32]> = BTreeMap::new();
        // Blocks that were written once are looked at even if no group is there any more.
        for &(_, block, position) in self.groups.keys().filter(|key| key.0 == guid) {
            wanted.insert((block, position), [0; 32]);
        }
        for (&mlid, tree) in &self.trees {
            let Some(members) = tree.get(&guid) else {
                continue;
            };
            let at = mlid - GROUPS_AT;
            for &port in members.iter().filter(|&&port| port <= ports) {
                let masks = wanted.entry((at / GROUP_BLOCK, port / MASK_PORTS));
                let masks = masks.or_insert([0; 32]);
                if let Some(mask) = masks.get_mut(usize::from(at % GROUP_BLOCK)) {
                    *mask |= 1 << (port % MASK_PORTS);
                }
            }
        }
        let mut blocks = Vec::new();
        for ((block, position), masks) in wanted {
            let before = self.groups.insert((guid, block, position), masks);
            if before != Some(masks) {
                blocks.push((block, position, masks));
            }
        }
        blocks
    }
}

impl SubnetManager {
    /// Has all tables of all switches written.
    pub(crate) fn write_tables(&mut self) {
        let routes = route::unicast(&self.found);
        self.counters.unordered_routes = routes.unordered;
        let lids = self.found.end_ports().map(|(_, port)| port.info.lid.0);
        let top = lids.max().unwrap_or(0);
        let switches: Vec<_> = self.found.switches().map(|(guid, _)| guid).collect();
        let empty = BTreeMap::new();
        for &guid in &switches {
            self.set_switch(guid, top);
            let table = routes.tables.get(&guid).unwrap_or(&empty);
            let blocks = self.tables.linear(guid, table, top);
            let Some(route) = self.found.node(guid).map(|node| node.route.clone()) else {
                continue;
            };
            for (block, ports) in blocks {
                let attribute = AttributeId::LINEAR_FORWARDING;
                let smp = Smp::set(&route, attribute, block.into(), &ports);
                self.ask(smp, Purpose::SetTable(guid));
            }
        }
        let mlids = self.sa.group_lids();
        self.tables.trees.clear();
        let found = std::mem::take(&mut self.found);
        for mlid in mlids {
            self.plant(&found, mlid);
        }
        self.found = found;
        self.write_groups(switches, false);
    }

    /// Has the tables of groups written whose members have changed.
    pub(crate) fn write_changed_groups(&mut self) {
        let changed = self.sa.take_changed();
        let view = std::mem::take(&mut self.view);
        for mlid in changed {
            self.plant(&view, mlid);
        }
        let switches = view.switches().map(|(guid, _)| guid).collect();
        self.view = view;
        self.write_groups(switches, true);
    }

    /// Finds the tree of a group.
    fn plant(&mut self, fabric: &Fabric, mlid: Lid) {
        let members = self.sa.members(mlid);
        let members = members.filter_map(|(gid, receives)| {
            let (end, _) = fabric.by_gid(gid)?;
            Some((end, receives))
        });
        let tree = route::multicast(fabric, members);
        if tree.is_empty() {
            self.tables.trees.remove(&mlid.0);
        } else {
            self.tables.trees.insert(mlid.0, tree);
        }
    }

    fn write_groups(&mut self, switches: Vec<Guid>, of_view: bool) {
        for guid in switches {
            let fabric = if of_view { &self.view } else { &self.found };
            let Some((ports, route)) = fabric.node(guid).map(ways) else {
                continue;
            };
            for (block, position, masks) in self.tables.groups(guid, ports) {
                let modifier = u32::from(block) | u32::from(position) << 28;
                let mut bytes = [0; MulticastBlock::LEN];
                MulticastBlock { masks }.emit(&mut bytes);
                let attribute = AttributeId::MULTICAST_FORWARDING;
                let smp = Smp::set(&route, attribute, modifier, &bytes);
                self.ask(smp, Purpose::SetTable(guid));
            }
        }
    }

    /// Sets the highest LID of a switch, and clears its mark of a change.
    fn set_switch(&mut self, guid: Guid, top: u16) {
        let Some(node) = self.found.node(guid) else {
            return;
        };
        let Some(info) = node.switch else {
            return;
        };
        if info.linear_top == top && !info.port_state_change {
            return;
        }
        let wanted = SwitchInfo {
            linear_top: top,
            port_state_change: true,
            life_time: Bits::saturating(self.config.packet_lifetime.code().into()),
            ..info
        };
        let mut bytes = [0; SwitchInfo::LEN];
        wanted.emit(&mut bytes);
        let smp = Smp::set(&node.route, AttributeId::SWITCH_INFO, 0, &bytes);
        self.ask(smp, Purpose::Set);
    }

    /// The highest LID that all switches can forward to.
    pub(crate) fn lid_max(&self) -> u16 {
        let caps = self.found.switches().filter_map(|(_, node)| node.switch);
        let caps = caps.map(|info| info.linear_cap.saturating_sub(1));
        caps.min().unwrap_or(u16::MAX)
    }

    /// How many groups all switches can forward to.
    pub(crate) fn groups_max(&self) -> usize {
        let caps = self.found.switches().filter_map(|(_, node)| node.switch);
        let least = caps.map(|info| usize::from(info.multicast_cap)).min();
        least.unwrap_or(usize::MAX).min(self.config.groups_max)
    }
}

/// How many ports it has, and the way to it.
fn ways(node: &Node) -> (u8, Route) {
    (node.info.ports, node.route.clone())
}
