//! A step of the sweep: the forwarding tables of switches are computed and written.

use std::collections::BTreeMap;

use verbs_core::mad::sm::{MulticastBlock, SwitchInfo};
use verbs_core::mad::{AttributeId, Bits};
use verbs_core::{Guid, Lid};

use crate::fabric::{Fabric, Node, Route};
use crate::manager::{Purpose, SubnetManager};
use crate::route;
use crate::smp::Smp;

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
        self.tables.forget_trees();
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
        self.tables.plant(mlid, route::multicast(fabric, members));
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
