//! A step of the sweep: computes and writes the forwarding tables of switches.

use std::collections::BTreeMap;

use verbs_core::mad::sm::{MulticastBlock, SwitchInfo};
use verbs_core::mad::{AttributeId, Bits};
use verbs_core::{Guid, Lid};

use crate::fabric::{Fabric, Node, Route};
use crate::manager::{Purpose, SubnetManager};
use crate::route;
use crate::smp::Smp;

/// Writes all tables of all switches.
pub(crate) fn write_tables(manager: &mut SubnetManager) {
    let routes = route::unicast(&manager.found);
    manager.counters.unordered_routes = routes.unordered;
    let lids = manager.found.end_ports().map(|(_, port)| port.info.lid.0);
    let top = lids.max().unwrap_or(0);
    let switches: Vec<_> = manager.found.switches().map(|(guid, _)| guid).collect();
    let empty = BTreeMap::new();
    for &guid in &switches {
        set_switch(manager, guid, top);
        let table = routes.tables.get(&guid).unwrap_or(&empty);
        let blocks = manager.tables.linear(guid, table, top);
        let Some(route) = manager.found.node(guid).map(|node| node.route.clone()) else {
            continue;
        };
        for (block, ports) in blocks {
            let attribute = AttributeId::LINEAR_FORWARDING;
            let smp = Smp::set(&route, attribute, block.into(), &ports);
            manager.ask(smp, Purpose::SetTable(guid));
        }
    }
    let mlids = manager.sa.groups.lids();
    manager.tables.forget_trees();
    let found = std::mem::take(&mut manager.found);
    for mlid in mlids {
        plant(manager, &found, mlid);
    }
    manager.found = found;
    write_groups(manager, switches, false);
}

/// Writes the tables of groups whose members have changed.
pub(crate) fn write_changed_groups(manager: &mut SubnetManager) {
    let changed = manager.sa.groups.take_changed();
    let view = std::mem::take(&mut manager.view);
    for mlid in changed {
        plant(manager, &view, mlid);
    }
    let switches = view.switches().map(|(guid, _)| guid).collect();
    manager.view = view;
    write_groups(manager, switches, true);
}

/// Computes the tree of a group.
fn plant(manager: &mut SubnetManager, fabric: &Fabric, mlid: Lid) {
    let members = manager.sa.groups.members(mlid);
    let members = members.filter_map(|(gid, receives)| {
        let (end, _) = fabric.by_gid(gid)?;
        Some((end, receives))
    });
    manager
        .tables
        .plant(mlid, route::multicast(fabric, members));
}

fn write_groups(manager: &mut SubnetManager, switches: Vec<Guid>, of_view: bool) {
    for guid in switches {
        let fabric = if of_view {
            &manager.view
        } else {
            &manager.found
        };
        let Some((ports, route)) = fabric.node(guid).map(ways) else {
            continue;
        };
        for (block, position, masks) in manager.tables.groups(guid, ports) {
            let modifier = u32::from(block) | u32::from(position) << 28;
            let mut bytes = [0; MulticastBlock::LEN];
            MulticastBlock { masks }.emit(&mut bytes);
            let attribute = AttributeId::MULTICAST_FORWARDING;
            let smp = Smp::set(&route, attribute, modifier, &bytes);
            manager.ask(smp, Purpose::SetTable(guid));
        }
    }
}

/// Sets the highest LID of a switch, and clears its mark of a change.
fn set_switch(manager: &mut SubnetManager, guid: Guid, top: u16) {
    let Some(node) = manager.found.node(guid) else {
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
        life_time: Bits::saturating(manager.config.packet_lifetime.code().into()),
        ..info
    };
    let mut bytes = [0; SwitchInfo::LEN];
    wanted.emit(&mut bytes);
    let smp = Smp::set(&node.route, AttributeId::SWITCH_INFO, 0, &bytes);
    manager.ask(smp, Purpose::Set);
}

/// The highest LID that all switches can forward to.
pub(crate) fn lid_max(manager: &SubnetManager) -> u16 {
    let caps = manager.found.switches().filter_map(|(_, node)| node.switch);
    let caps = caps.map(|info| info.linear_cap.saturating_sub(1));
    caps.min().unwrap_or(u16::MAX)
}

/// The number of groups that all switches can forward to.
pub(crate) fn groups_max(manager: &SubnetManager) -> usize {
    let caps = manager.found.switches().filter_map(|(_, node)| node.switch);
    let least = caps.map(|info| usize::from(info.multicast_cap)).min();
    least.unwrap_or(usize::MAX).min(manager.config.groups_max)
}

/// The number of its ports, and the route to it.
fn ways(node: &Node) -> (u8, Route) {
    (node.info.ports, node.route.clone())
}
