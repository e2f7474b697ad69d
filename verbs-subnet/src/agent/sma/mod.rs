//! The subnet management agent: a node's answers to its subnet manager (IBTA vol. 1, 14.3).

mod attributes;
mod port;
mod switch;
mod traps;

use std::collections::VecDeque;

use verbs_core::mad::field::Blob;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{
    self, BadKey, CapabilityMask, LinkState, MKeyProtect, NodeDescription, NodeInfo, NodeType,
    Notice, PhysState, PortInfo, SmpHeader,
};
use verbs_core::mad::{AttributeId, Class, MadBytes, MadHeader, Method, Status};
use verbs_core::time::Instant;
use verbs_core::{Guid, Lid, PKey};

use crate::agent::{Arrival, Processed};

use switch::Switch;
use traps::Traps;

pub use port::{PortConfig, SmaPort};
pub use switch::{DISCARD, SwitchConfig};
pub use traps::Trap;

/// The description of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Adapter or switch.
    pub node_type: NodeType,
    /// Text of the node; it is cut to 64 bytes.
    pub description: String,
    /// The node.
    pub guid: Guid,
    /// Shared by all nodes of one box.
    pub system_guid: Guid,
    /// IEEE number of the vendor.
    pub vendor_id: u32,
    /// Kind of device.
    pub device_id: u16,
    /// Entries of each P_Key table of an adapter, or of a switch's port 0; at least 1.
    pub pkey_capacity: u16,
    /// The ports: of an adapter its ports from 1 on, of a switch those from 0 on.
    pub ports: Vec<PortConfig>,
    /// The tables of a switch.
    pub switch: SwitchConfig,
}

/// A change that an agent reports to the node's owner; events are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmaEvent {
    /// The port.
    pub port: u8,
    /// The change.
    pub change: SmaChange,
}

/// A change of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmaChange {
    /// Its link has changed its state.
    State(LinkState),
    /// Its LIDs have changed.
    Lid,
    /// Its subnet manager has moved.
    SubnetManager,
    /// Its clients must register with the subnet manager again.
    Reregister,
    /// Its P_Key table has changed.
    PKeys,
    /// Its GIDs have changed.
    Gids,
    /// The link must go down and, unless the state is [`PhysState::DISABLED`], come back.
    Restart(PhysState),
}

/// The agent of one node, with all values that the subnet manager sets.
///
/// - Commands: [`link_up`](Self::link_up), [`link_down`](Self::link_down), [`set_sm`](Self::set_sm).
/// - Inputs: [`process`](Self::process), [`handle_timeout`](Self::handle_timeout).
/// - Outputs: after each call drain [`poll_event`](Self::poll_event) and
///   [`poll_trap`](Self::poll_trap), then look at [`poll_timeout`](Self::poll_timeout).
///
/// Nothing blocks, and nothing waits for another thread: the call that delivers a datagram returns its answer. No
/// input panics.
#[derive(Debug)]
pub struct Sma {
    info: NodeInfo,
    description: NodeDescription,
    ports: Vec<SmaPort>,
    /// For a switch.
    switch: Option<Switch>,
    events: VecDeque<SmaEvent>,
    traps: Traps,
}

impl Sma {
    /// A node whose links are all down.
    pub fn new(config: NodeConfig) -> Self {
        let is_switch = config.node_type == NodeType::SWITCH;
        let physical = config.ports.len() - usize::from(is_switch && !config.ports.is_empty());
        let info = NodeInfo {
            base_version: 1,
            class_version: sm::CLASS_VERSION,
            node_type: config.node_type,
            ports: u8::try_from(physical).unwrap_or(u8::MAX),
            system_guid: config.system_guid,
            node_guid: config.guid,
            pkey_capacity: config.pkey_capacity.max(1),
            device_id: config.device_id,
            vendor_id: config.vendor_id,
            ..NodeInfo::default()
        };
        let text = config.description.as_bytes();
        let text = text.get(..text.len().min(Blob::<64>::LEN));
        let external = config.switch.enforcement_cap;
        let ports = config.ports.iter().zip(u8::from(!is_switch)..);
        let ports = ports.map(|(port, number)| {
            let is_external = is_switch && number != 0;
            let keys = if is_external {
                external
            } else {
                info.pkey_capacity
            };
            SmaPort::new(port, is_switch, is_external, keys)
        });
        Self {
            info,
            description: text.and_then(|t| Blob::new(t).ok()).unwrap_or_default(),
            ports: ports.collect(),
            switch: is_switch.then(|| Switch::new(config.switch)),
            events: VecDeque::new(),
            traps: Traps::default(),
        }
    }

    /// Answers a datagram of subnet management. May be called from a routine.
    pub fn process(&mut self, arrival: Arrival, mad: &MadBytes) -> Processed {
        let header = MadHeader::parse(header_of(mad));
        let ours = match header.method {
            // Managers handle these themselves.
            _ if header.attribute == AttributeId::SM_INFO => false,
            Method::GET | Method::SET | Method::TRAP_REPRESS => true,
            _ => false,
        };
        if !sm::is_smp(mad) || !ours {
            return Processed::NotMine;
        }
        if header.base_version != MadHeader::BASE_VERSION {
            return Processed::Consumed;
        }
        let Some(key_port) = self.key_port(arrival) else {
            return Processed::Consumed;
        };
        let Some(is_trusted) = self.check_key(key_port, arrival, &header, mad) else {
            return Processed::Consumed;
        };
        if header.method == Method::TRAP_REPRESS {
            self.traps.repress(header.tid);
            return Processed::Consumed;
        }
        let result = if header.class_version == sm::CLASS_VERSION {
            self.attribute(arrival, &header, sm::attribute(mad))
        } else {
            Err(Status::BAD_VERSION)
        };
        let mut reply = Box::new(*mad);
        let status = match result {
            Ok(mut data) => {
                if header.attribute == AttributeId::PORT_INFO && !is_trusted {
                    // The key is hidden from requesters that do not have it.
                    data.iter_mut().take(8).for_each(|byte| *byte = 0);
                }
                sm::put_attribute(&mut reply, &data);
                Status::OK
            }
            Err(status) => status,
        };
        let direction = match header.class {
            Class::SUBN_DIRECTED => sm::DIRECTION,
            _ => Status::OK,
        };
        emit_header(&header.response(status | direction), &mut reply);
        Processed::Reply(reply)
    }

    /// IBTA vol. 1, 14.2.4: compares the key of a request with the port's. `None` if the request must be dropped;
    /// otherwise whether the key may be shown.
    fn check_key(
        &mut self,
        number: u8,
        arrival: Arrival,
        header: &MadHeader,
        mad: &MadBytes,
    ) -> Option<bool> {
        let shown = SmpHeader::of(mad).m_key;
        let producer = self.info.node_type;
        let port = self.port_mut(number)?;
        let info = port.info();
        if info.m_key == 0 || info.m_key == shown {
            port.lease_ends = None;
            return Some(true);
        }
        match (header.method, info.m_key_protect) {
            (Method::GET, MKeyProtect::WRITES) => return Some(true),
            (Method::GET, MKeyProtect::HIDDEN) => return Some(false),
            _ => {}
        }
        let (lid, lease) = (info.lid, info.m_key_lease_s);
        port.count_key_violation(arrival.now, lease);
        let notice = Notice::bad_m_key(producer, lid, arrival.slid, header.method.0, shown);
        self.trap(number, notice, arrival.now);
        None
    }

    /// The port whose key protects arrivals there.
    fn key_port(&self, arrival: Arrival) -> Option<u8> {
        let number = if self.switch.is_some() {
            0
        } else {
            arrival.port
        };
        self.port(number).map(|_| number)
    }

    /// A link has come up, with the best values that both ends support. The port is then in [`LinkState::INIT`].
    pub fn link_up(&mut self, now: Instant, number: u8, peer: &PortInfo) {
        if let Some(port) = self.port_mut(number) {
            port.train(peer);
        }
        self.state_changed(now, number);
    }

    /// A link has gone down.
    pub fn link_down(&mut self, now: Instant, number: u8, phys: PhysState) {
        let Some(port) = self.port_mut(number) else {
            return;
        };
        let was = port.info().state;
        port.go_down(phys);
        if was != LinkState::DOWN {
            self.state_changed(now, number);
        }
    }

    /// A port has changed its state by itself: reports it to the host, and to a switch's manager.
    fn state_changed(&mut self, now: Instant, number: u8) {
        let Some(state) = self.port(number).map(|port| port.info().state) else {
            return;
        };
        self.event(number, SmaChange::State(state));
        if let Some(switch) = &mut self.switch {
            switch.info.port_state_change = true;
            let lid = self.lid(0);
            self.trap(0, Notice::link_state_changed(lid), now);
        }
    }

    /// A subnet manager has started or stopped at a port.
    pub fn set_sm(&mut self, now: Instant, number: u8, is_here: bool) {
        let (is_sm, none) = (CapabilityMask::IS_SM, CapabilityMask::empty());
        let (set, clear) = if is_here {
            (is_sm, none)
        } else {
            (none, is_sm)
        };
        self.offer(now, number, set, clear);
    }

    /// The host of a port sets and clears capability bits of the port; the manager is notified.
    pub fn offer(&mut self, now: Instant, number: u8, set: CapabilityMask, clear: CapabilityMask) {
        let producer = self.info.node_type;
        let Some(port) = self.port_mut(number) else {
            return;
        };
        if let Some(mask) = port.offer(set, clear) {
            let notice = Notice::capabilities_changed(producer, self.lid(number), mask);
            self.trap(number, notice, now);
        }
    }

    /// Changes the node's text; its manager is notified.
    pub fn describe(&mut self, now: Instant, text: &NodeDescription) {
        self.description = *text;
        let number = u8::from(self.switch.is_none());
        if let Some(port) = self.port(number) {
            let (lid, mask) = (port.info().lid, port.info().capability_mask);
            let notice = Notice::other_changes(self.info.node_type, lid, mask, 1);
            self.trap(number, notice, now);
        }
    }

    /// A packet with a wrong key has arrived at one of the host's queue pairs: counts it, and notifies the
    /// manager.
    pub fn report(&mut self, now: Instant, number: u8, packet: &BadKey) {
        if packet.is_qkey {
            self.count_qkey_violation(number);
        } else {
            self.count_pkey_violation(number);
        }
        let notice = Notice::bad_key(self.lid(number), packet);
        self.trap(number, notice, now);
    }

    /// A packet of a partition that the port is not in has arrived.
    pub fn count_pkey_violation(&mut self, number: u8) {
        if let Some(port) = self.port_mut(number) {
            port.count_pkey_violation();
        }
    }

    /// A packet with a wrong Q_Key has arrived at a queue pair that management owns.
    pub fn count_qkey_violation(&mut self, number: u8) {
        if let Some(port) = self.port_mut(number) {
            port.count_qkey_violation();
        }
    }

    fn trap(&mut self, number: u8, notice: Notice, now: Instant) {
        let Some(info) = self.port(number).map(SmaPort::info) else {
            return;
        };
        // There is no manager to notify yet; a later manager queries everything.
        if info.lid != Lid(0) && info.sm_lid != Lid(0) {
            self.traps.raise(now, number, &notice);
        }
    }

    /// The next event of the last call.
    pub fn poll_event(&mut self) -> Option<SmaEvent> {
        self.events.pop_front()
    }

    /// The next trap for the subnet manager.
    pub fn poll_trap(&mut self, now: Instant) -> Option<Trap> {
        let (number, mad) = self.traps.poll(now)?;
        let info = self.port(number)?.info();
        Some(Trap {
            port: number,
            from: info.lid,
            to: info.sm_lid,
            sl: info.sm_sl.byte(),
            mad,
        })
    }

    /// Repeats traps that have not been repressed, and lifts protections whose lease has ended.
    pub fn handle_timeout(&mut self, now: Instant) {
        for port in &mut self.ports {
            port.end_lease(now);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_trap`](Self::poll_trap).
    pub fn poll_timeout(&self) -> Option<Instant> {
        let leases = self.ports.iter().filter_map(|port| port.lease_ends);
        leases.chain(self.traps.next()).min()
    }

    /// The node's information, as seen through that port.
    pub fn node_info(&self, number: u8) -> NodeInfo {
        let of = if self.switch.is_some() { 0 } else { number };
        NodeInfo {
            port_guid: self.port(of).map_or(Guid(0), SmaPort::guid),
            local_port: number,
            ..self.info
        }
    }

    /// The node's text.
    pub fn description(&self) -> &NodeDescription {
        &self.description
    }

    /// Whether it forwards packets.
    pub fn is_switch(&self) -> bool {
        self.switch.is_some()
    }

    /// The physical ports' numbers.
    pub fn physical_ports(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.info.ports
    }

    /// A port, by its number.
    pub fn port(&self, number: u8) -> Option<&SmaPort> {
        let first = u8::from(self.switch.is_none());
        self.ports.get(usize::from(number.checked_sub(first)?))
    }

    fn port_mut(&mut self, number: u8) -> Option<&mut SmaPort> {
        let first = u8::from(self.switch.is_none());
        self.ports.get_mut(usize::from(number.checked_sub(first)?))
    }

    /// The LID of a port; all ports of a switch have that of port 0.
    pub fn lid(&self, number: u8) -> Lid {
        let of = if self.switch.is_some() { 0 } else { number };
        self.port(of).map_or(Lid(0), |port| port.info().lid)
    }

    /// The port through which a switch forwards packets to that LID; `None` if it drops them.
    pub fn forward(&self, dlid: Lid) -> Option<u8> {
        self.switch.as_ref()?.forward(dlid)
    }

    /// Whether a switch forwards packets to that multicast LID through a port.
    pub fn forwards_multicast(&self, mlid: Lid, port: u8) -> bool {
        let switch = self.switch.as_ref();
        switch.is_some_and(|switch| switch.forwards_multicast(mlid, port))
    }

    /// The virtual lane of a packet with that service level from one port of the node to another (0 for the node
    /// itself); `None` if it is dropped.
    pub fn lane(&self, input: u8, output: u8, sl: u8) -> Option<u8> {
        let port = self.port(output)?;
        let vl = port.lane(if self.is_switch() { input } else { 0 }, sl);
        (vl < 15).then_some(vl)
    }

    /// Whether packets of that partition may pass a port of a switch in that direction.
    pub fn passes_partition(&self, number: u8, key: PKey, is_incoming: bool) -> bool {
        self.port(number)
            .is_none_or(|port| port.passes_partition(key, is_incoming))
    }

    fn event(&mut self, port: u8, change: SmaChange) {
        self.events.push_back(SmaEvent { port, change });
    }
}

/// Whether a LID can belong to a port.
fn is_unicast(lid: Lid) -> bool {
    (1..0xc000).contains(&lid.0)
}

#[cfg(all(test, not(verbs_loom)))]
mod tests;
