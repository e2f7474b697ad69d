//! A sweep: query everything, elect the master, configure everything.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::mad::sm::{
    LinkState, NodeDescription, NodeInfo, NodeInfoView, PKeyBlock, PKeyBlockView, PhysState,
    PortInfo, PortInfoView, SlToVl, SmInfo, SmInfoView, SmState, SwitchInfo, SwitchInfoView,
};
use verbs_core::mad::{AttributeId, Bits};
use verbs_core::time::Instant;
use verbs_core::{Guid, Mtu, PKey};

use crate::config::{Partition, mtu_code};
use crate::elect;
use crate::fabric::{End, Fabric, Node, Port, Route};
use crate::manager::{Phase, Purpose, SubnetManager};
use crate::routing::forward;
use crate::sa::membership;
use crate::smp::Smp;

pub(crate) mod fabric;
pub(crate) mod smp;
#[cfg(test)]
mod tests;

impl SubnetManager {
    /// All requests are answered: starts the next phase. Returns whether there is one.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Idle => return self.begin(now),
            Phase::Discover => {
                self.phase = Phase::Ask;
                elect::ask_managers(self);
            }
            Phase::Ask => {
                if elect::decide(self, now) {
                    self.phase = Phase::Configure;
                    self.forget_absent();
                    self.configure();
                }
            }
            Phase::Configure => {
                self.phase = Phase::Tables;
                self.sa.groups.limit(forward::groups_max(self));
                membership::keep_members(&mut self.sa, &self.found);
                forward::write_tables(self);
            }
            Phase::Tables => {
                // From here on the administrator answers: clients send requests as soon as their port is up.
                self.sa.compare(&self.view, &self.found);
                self.view = self.found.clone();
                self.phase = Phase::Arm;
                self.bring(LinkState::INIT, LinkState::ARMED);
            }
            Phase::Arm => {
                self.phase = Phase::Activate;
                self.bring(LinkState::ARMED, LinkState::ACTIVE);
            }
            Phase::Activate => {
                self.counters.sweeps += 1;
                self.rest(now);
            }
            Phase::Light => {
                self.counters.light_sweeps += 1;
                self.rest(now);
            }
            Phase::Groups => self.phase = Phase::Idle,
            Phase::Poll => {
                self.phase = Phase::Idle;
                self.due = Some(now + self.config.poll_interval);
            }
        }
        true
    }

    /// Nothing is in flight: starts the work that is due.
    fn begin(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if self.is_stale && self.state != SmState::NOT_ACTIVE && self.state != SmState::STANDBY {
            self.is_stale = false;
            self.is_incomplete = false;
            self.due = None;
            self.found = Fabric::default();
            self.phase = Phase::Discover;
            self.look(Route::new(), None);
            return true;
        }
        if self.state == SmState::STANDBY && is_due {
            self.due = None;
            self.phase = Phase::Poll;
            elect::poll_master(self);
            return true;
        }
        if self.state != SmState::MASTER {
            return false;
        }
        if self.sa.groups.has_changed() {
            self.phase = Phase::Groups;
            forward::write_changed_groups(self);
            return true;
        }
        if !is_due {
            return false;
        }
        self.due = None;
        if self.is_incomplete || self.view.switches().next().is_none() {
            self.is_stale = true;
            return true;
        }
        self.phase = Phase::Light;
        self.look_for_changes();
        true
    }

    /// The sweep is over; sets the time of the next.
    fn rest(&mut self, now: Instant) {
        self.phase = Phase::Idle;
        let wait = if self.is_incomplete {
            self.config.poll_interval
        } else {
            self.config.sweep_interval
        };
        self.due = Some(now + wait);
    }

    /// Queries the node at the end of that route.
    fn look(&mut self, route: Route, via: Option<End>) {
        self.get(&route, AttributeId::NODE_INFO, 0, Purpose::Node(via));
    }

    /// Asks each switch whether its ports have changed, and polls other managers.
    fn look_for_changes(&mut self) {
        let routes: Vec<_> = self
            .view
            .switches()
            .map(|(_, node)| node.route.clone())
            .collect();
        for route in routes {
            self.get(&route, AttributeId::SWITCH_INFO, 0, Purpose::Light);
        }
        elect::ask_managers(self);
    }

    /// A node has answered.
    pub(crate) fn learn(&mut self, smp: &Smp, purpose: &Purpose, bytes: &[u8]) {
        match *purpose {
            Purpose::Node(via) => {
                if let Some(info) = NodeInfoView::new(bytes).map(NodeInfo::parse) {
                    self.node_found(&smp.route, via, info);
                }
            }
            Purpose::Description(guid) => {
                if let Some(node) = self.found.nodes.get_mut(&guid) {
                    node.description = NodeDescription::new(bytes).unwrap_or_default();
                }
            }
            Purpose::Switch(guid) => {
                let info = SwitchInfoView::new(bytes).map(SwitchInfo::parse);
                if let Some(node) = self.found.nodes.get_mut(&guid) {
                    node.switch = info;
                }
                // A switch that was restarted has lost its tables.
                if info.is_some_and(|info| info.linear_top == 0) {
                    self.tables.forget_switch(guid);
                }
            }
            Purpose::Port(end) | Purpose::SetPort(end) => {
                if let Some(info) = PortInfoView::new(bytes).map(PortInfo::parse) {
                    self.port_found(end, info, matches!(purpose, Purpose::Port(_)));
                }
            }
            Purpose::PKeys(end) | Purpose::SetPKeys(end) => {
                if let Some(port) = self.found.port_mut(end) {
                    port.pkeys = PKeyBlockView::new(bytes).map(PKeyBlock::parse);
                }
            }
            Purpose::Manager(end) => elect::manager_found(self, end, bytes),
            Purpose::Light => {
                let info = SwitchInfoView::new(bytes).map(SwitchInfo::parse);
                self.is_stale |= info.is_none_or(|info| info.port_state_change);
            }
            Purpose::Poll => elect::polled(self, SmInfoView::new(bytes).map(SmInfo::parse)),
            Purpose::Set | Purpose::SetTable(_) | Purpose::Handover => {}
        }
    }

    /// A node has not answered, or has refused.
    pub(crate) fn miss(&mut self, purpose: &Purpose) {
        match *purpose {
            Purpose::Light => self.is_stale = true,
            Purpose::Poll => elect::polled(self, None),
            Purpose::SetTable(guid) => {
                self.tables.forget_switch(guid);
                self.is_incomplete = true;
            }
            // A manager that does not answer does not count.
            Purpose::Manager(_) | Purpose::Handover => {}
            _ => self.is_incomplete = true,
        }
    }

    /// A node was found at the end of a route.
    fn node_found(&mut self, route: &Route, via: Option<End>, info: NodeInfo) {
        let (guid, number) = (info.node_guid, info.local_port);
        match via {
            Some(from) => self.found.link(from, (guid, number)),
            None => {
                self.found.own = Some((guid, number));
                self.own_guid = info.port_guid;
            }
        }
        let is_new = !self.found.nodes.contains_key(&guid);
        if is_new && self.found.nodes.len() >= self.config.nodes_max {
            self.counters.unreached += 1;
            return;
        }
        let node = self.found.nodes.entry(guid).or_insert_with(|| Node {
            info,
            description: NodeDescription::default(),
            route: route.clone(),
            switch: None,
            ports: BTreeMap::new(),
        });
        let is_switch = node.is_switch();
        let numbers = match (is_switch, is_new) {
            (true, true) => 0..=info.ports,
            (true, false) => return,
            (false, _) if node.ports.contains_key(&number) => return,
            (false, _) => number..=number,
        };
        for number in numbers.clone() {
            let port = Port {
                guid: info.port_guid,
                route: route.clone(),
                info: PortInfo::default(),
                pkeys: None,
                manager: None,
            };
            node.ports.insert(number, port);
        }
        for number in numbers {
            let what = AttributeId::PORT_INFO;
            self.get(route, what, number.into(), Purpose::Port((guid, number)));
            if !is_switch || number == 0 {
                let what = AttributeId::PKEY_TABLE;
                self.get(route, what, 0, Purpose::PKeys((guid, number)));
            }
        }
        if is_new {
            let what = AttributeId::NODE_DESCRIPTION;
            self.get(route, what, 0, Purpose::Description(guid));
            if is_switch {
                self.get(route, AttributeId::SWITCH_INFO, 0, Purpose::Switch(guid));
            }
        }
    }

    /// A port was found with that information; `is_first`: its link is followed.
    fn port_found(&mut self, end: End, info: PortInfo, is_first: bool) {
        let own = self.found.own;
        let Some(node) = self.found.nodes.get(&end.0) else {
            return;
        };
        let leads_on = node.is_switch() && end.1 != 0 || own == Some(end) && !node.is_switch();
        let Some(port) = self.found.port_mut(end) else {
            return;
        };
        port.info = info;
        let mut route = port.route.clone();
        let is_up = port.is_up();
        if let Some(seen) = self.view.port_mut(end).filter(|_| !is_first) {
            seen.info = info;
        }
        if is_first && leads_on && is_up && !self.found.links.contains_key(&end) {
            route.push(end.1);
            self.look(route, Some(end));
        }
    }

    /// Sets LIDs, the manager's LID, partitions and the common values of links.
    fn configure(&mut self) {
        let ports: Vec<_> = self
            .found
            .end_ports()
            .map(|(_, port)| (port.guid, port.info.lid))
            .collect();
        let given = self.lids.assign(&ports, forward::lid_max(self));
        let own = given.get(&self.own_guid).copied().unwrap_or_default();
        let ends: Vec<End> = self
            .found
            .nodes
            .iter()
            .flat_map(|(&guid, node)| node.ports.keys().map(move |&number| (guid, number)))
            .collect();
        for end in ends {
            let Some(port) = self.found.port(end) else {
                continue;
            };
            let is_switch = self.found.node(end.0).is_some_and(Node::is_switch);
            let is_end = !is_switch || end.1 == 0;
            let mut wanted = PortInfo {
                state: LinkState::NO_CHANGE,
                phys_state: PhysState::NO_CHANGE,
                client_reregister: false,
                ..port.info
            };
            if is_end {
                wanted.lid = given.get(&port.guid).copied().unwrap_or_default();
                wanted.sm_lid = own;
                wanted.sm_sl = Bits::default();
                wanted.lmc = Bits::default();
                wanted.gid_prefix = self.config.gid_prefix;
                wanted.m_key = self.config.m_key;
                wanted.m_key_protect = self.config.m_key_protect;
                wanted.m_key_lease_s = self.config.m_key_lease_s;
                wanted.subnet_timeout = self.config.subnet_timeout;
            }
            if (!is_switch || end.1 != 0) && port.is_up() {
                wanted.neighbor_mtu = self.link_mtu(end);
                wanted.operational_vls = self.link_vls(end);
            }
            let unchanged = PortInfo {
                state: LinkState::NO_CHANGE,
                phys_state: PhysState::NO_CHANGE,
                client_reregister: false,
                ..port.info
            };
            let route = port.route.clone();
            if wanted != unchanged {
                self.set_port(&route, end, &wanted);
            }
            if is_end {
                self.set_partitions(&route, end);
            }
            if self.config.maps_service_levels && (!is_switch || end.1 != 0) {
                self.map_service_levels(&route, end, wanted.operational_vls);
            }
        }
    }

    /// Spreads service levels over the lanes of a port; for a switch, for packets from each of its other ports.
    fn map_service_levels(&mut self, route: &Route, end: End, lanes: Bits<4>) {
        if !self.found.links.contains_key(&end) {
            return;
        }
        let count = match lanes.value() {
            0 | 1 => 1,
            5 => 15,
            code => 1 << (code - 1).min(3),
        };
        let mut map = SlToVl::default();
        for (vl, sl) in map.vls.iter_mut().zip(0_u32..) {
            *vl = Bits::truncated(sl % count);
        }
        let mut bytes = [0; SlToVl::LEN];
        map.emit(&mut bytes);
        let node = self.found.node(end.0).filter(|node| node.is_switch());
        let modifiers = match node {
            None => vec![0],
            Some(node) => {
                let others = node
                    .ports
                    .keys()
                    .filter(|&&port| port != 0 && port != end.1);
                let others = others.filter(|&&port| self.found.links.contains_key(&(end.0, port)));
                let into = others.map(|&port| u32::from(port) << 8 | u32::from(end.1));
                into.collect()
            }
        };
        for modifier in modifiers {
            let smp = Smp::set(route, AttributeId::SL_TO_VL, modifier, &bytes);
            self.ask(smp, Purpose::Set);
        }
    }

    fn set_port(&mut self, route: &Route, end: End, wanted: &PortInfo) {
        let mut bytes = [0; PortInfo::LEN];
        wanted.emit(&mut bytes);
        let smp = Smp::set(route, AttributeId::PORT_INFO, end.1.into(), &bytes);
        self.ask(smp, Purpose::SetPort(end));
    }

    /// Sets the configured partitions, as far as there is room, and removes all others from the port.
    fn set_partitions(&mut self, route: &Route, end: End) {
        let Some(node) = self.found.node(end.0) else {
            return;
        };
        let room = usize::from(node.info.pkey_capacity).min(32);
        let mut keys = [PKey(0); 32];
        let wanted = self.config.partitions.iter().map(Partition::full);
        for (place, key) in keys.iter_mut().take(room).zip(wanted) {
            *place = key;
        }
        let block = PKeyBlock { keys };
        if self
            .found
            .port(end)
            .is_some_and(|port| port.pkeys == Some(block))
        {
            return;
        }
        let mut bytes = [0; PKeyBlock::LEN];
        block.emit(&mut bytes);
        let smp = Smp::set(route, AttributeId::PKEY_TABLE, 0, &bytes);
        self.ask(smp, Purpose::SetPKeys(end));
    }

    /// The MTU that both ends of a link support, by its code.
    fn link_mtu(&self, end: End) -> Bits<4> {
        self.least(end, mtu_code(self.config.mtu_max), |port| port.info.mtu_cap)
            .max(Bits::truncated(mtu_code(Mtu::B256)))
    }

    /// The lanes that both ends of a link support, by the code of port information.
    fn link_vls(&self, end: End) -> Bits<4> {
        self.least(end, self.config.vls_max.value(), |port| port.info.vl_cap)
            .max(Bits::truncated(1))
    }

    fn least(&self, end: End, most: u32, what: impl Fn(&Port) -> Bits<4>) -> Bits<4> {
        let other = self.found.links.get(&end).copied();
        let both = [Some(end), other].into_iter().flatten();
        let both = both.filter_map(|end| self.found.port(end));
        both.map(what)
            .min()
            .unwrap_or_default()
            .min(Bits::saturating(most))
    }

    /// Moves all ports from one state to the next. At the last step, clients are notified that there is an
    /// administrator that does not know them yet.
    fn bring(&mut self, from: LinkState, to: LinkState) {
        let mut sets = Vec::new();
        for (&guid, node) in &self.found.nodes {
            for (&number, port) in &node.ports {
                let is_linked = self.found.links.contains_key(&(guid, number));
                let is_due = is_linked && port.info.state == from;
                let is_client = !node.is_switch();
                let greets = to == LinkState::ACTIVE
                    && is_client
                    && (is_due || !self.greeted.contains(&port.guid));
                if !is_due && !greets {
                    continue;
                }
                let wanted = PortInfo {
                    state: if is_due { to } else { LinkState::NO_CHANGE },
                    phys_state: PhysState::NO_CHANGE,
                    client_reregister: greets,
                    ..port.info
                };
                sets.push((
                    port.route.clone(),
                    (guid, number),
                    wanted,
                    greets.then_some(port.guid),
                ));
            }
        }
        for (route, end, wanted, greeted) in sets {
            self.greeted.extend(greeted);
            self.set_port(&route, end, &wanted);
        }
    }

    /// Ports that have disappeared are notified again when they come back.
    fn forget_absent(&mut self) {
        let ports = self.found.end_ports();
        let here: BTreeSet<Guid> = ports.map(|(_, port)| port.guid).collect();
        self.greeted.retain(|guid| here.contains(guid));
    }
}
