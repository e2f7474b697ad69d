//! A subnet with programs in it: whoever connects gets a port's service for management datagrams.

mod adapters;
mod service;

use std::collections::{BTreeMap, VecDeque};

use verbs_core::Guid;
use verbs_core::mad::{AgentError, Time};

use super::message::{Adapter, AdapterPort, MadMessage, Message, MessageError, Refusal};
use super::subnet::{Subnet, SubnetConfig};
use super::topology::{NodeId, PortRef, Topology};

use adapters::Adapters;
use service::Service;

pub use service::HostCounters;

/// Clients at a time; each of them is a connection.
const CLIENTS_MAX: usize = 4096;

/// What a client's connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Questions.
    New,
    /// Datagrams of a port's service.
    Open(PortRef),
    /// An HCA at a port.
    Attached(PortRef),
}

/// A subnet and its clients.
///
/// - Commands: [`connect`](Self::connect), [`disconnect`](Self::disconnect),
///   [`set_sm`](Self::set_sm), [`answer_file`](Self::answer_file), [`plug`](Self::plug).
/// - Inputs: [`handle`](Self::handle), [`handle_packets`](Self::handle_packets),
///   [`handle_timeout`](Self::handle_timeout).
/// - Outputs: after each call drain [`poll_transmit`](Self::poll_transmit),
///   [`poll_packets`](Self::poll_packets) and [`poll_file`](Self::poll_file), then look at [`poll_timeout`](Self::poll_timeout).
///
/// Sans-IO: it knows of no sockets, and what a client sends cannot harm another.
#[derive(Debug)]
pub struct Host {
    subnet: Subnet,
    topology: Topology,
    clients: BTreeMap<u32, Role>,
    next_client: u32,
    services: BTreeMap<PortRef, Service>,
    transmits: VecDeque<(u32, Message)>,
    adapters: Adapters,
    /// The packet that is handed on.
    scratch: Vec<u8>,
    /// Questions for the file that a subnet manager keeps open.
    files: VecDeque<(u32, PortRef)>,
}

impl Host {
    /// The subnet of that topology, without clients.
    pub fn new(topology: Topology, config: SubnetConfig) -> Self {
        Self {
            subnet: Subnet::new(&topology, config),
            topology,
            clients: BTreeMap::new(),
            next_client: 1,
            services: BTreeMap::new(),
            transmits: VecDeque::new(),
            adapters: Adapters::default(),
            scratch: Vec::new(),
            files: VecDeque::new(),
        }
    }

    /// A client has connected. Returns its number; `None` when there are too many.
    pub fn connect(&mut self) -> Option<u32> {
        if self.clients.len() >= CLIENTS_MAX {
            return None;
        }
        while self.clients.contains_key(&self.next_client) {
            self.next_client = self.next_client.wrapping_add(1);
        }
        self.clients.insert(self.next_client, Role::New);
        Some(self.next_client)
    }

    /// A client is gone, and with it its registrations and what it waits for. The link of an HCA's port
    /// goes down.
    pub fn disconnect(&mut self, now: Time, client: u32) {
        match self.clients.remove(&client) {
            Some(Role::Open(at)) => {
                if let Some(service) = self.services.get_mut(&at) {
                    service.forget(client);
                }
            }
            Some(Role::Attached(at)) => {
                self.detach(now, at, false);
                self.advance(now);
            }
            Some(Role::New) | None => {}
        }
    }

    /// Takes a message from a client, other than one with packets.
    ///
    /// # Errors
    /// [`MessageError`] when it is none; the client is best disconnected then.
    pub fn handle(&mut self, now: Time, client: u32, bytes: &[u8]) -> Result<(), MessageError> {
        let answer = match Message::decode(bytes)? {
            Message::Mad(mad) => {
                self.handle_mad(now, client, &mad);
                None
            }
            Message::ManagerFile {
                host,
                adapter,
                port,
            } => match self.port(&host, adapter, port) {
                Ok(at) => {
                    self.files.push_back((client, at));
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            },
            own @ (Message::Offer { .. }
            | Message::Report(_)
            | Message::PlugOwn { .. }
            | Message::Leave) => {
                self.handle_own(now, client, &own);
                None
            }
            question => Some(self.answer(now, client, question)),
        };
        if let Some(answer) = answer {
            let answer = answer.unwrap_or_else(Message::Refused);
            self.transmits.push_back((client, answer));
        }
        self.advance(now);
        Ok(())
    }

    fn answer(&mut self, now: Time, client: u32, asked: Message) -> Result<Message, Refusal> {
        match asked {
            Message::Look { host } => self.adapters(&host).map(Message::Adapters),
            Message::Open {
                host,
                adapter,
                port,
            } => {
                let at = self.port(&host, adapter, port)?;
                let open = self.clients.get_mut(&client).ok_or(Refusal::Missing)?;
                if *open != Role::New {
                    return Err(Refusal::Invalid);
                }
                *open = Role::Open(at);
                let number = u32::try_from(self.services.len()).unwrap_or(u32::MAX);
                self.services
                    .entry(at)
                    .or_insert_with(|| Service::new(at, number));
                Ok(Message::Opened { session: client })
            }
            Message::Attach {
                host,
                adapter,
                port,
            } => {
                let at = self.port(&host, adapter, port)?;
                self.attach(now, client, at)
            }
            Message::Register {
                session,
                registration,
            } => {
                let service = self.session(session)?;
                let agent = service.register(session, registration).map_err(refusal)?;
                Ok(Message::Registered { agent })
            }
            Message::Unregister { session, agent } => {
                let service = self.session(session)?;
                service
                    .unregister(session, agent)
                    .map(|()| Message::Done)
                    .map_err(refusal)
            }
            Message::Plug { node, port, is_in } => {
                let node = self.topology.find(&node).ok_or(Refusal::Missing)?;
                let at = PortRef { node, port };
                if self.plug(now, at, is_in) {
                    Ok(Message::Done)
                } else {
                    Err(Refusal::Missing)
                }
            }
            Message::Count => {
                let (linked, active) = self.subnet.census();
                let [nodes, linked, active] = [self.subnet.len(), linked, active]
                    .map(|number| u32::try_from(number).unwrap_or(u32::MAX));
                Ok(Message::Census {
                    nodes,
                    linked,
                    active,
                })
            }
            _ => Err(Refusal::Invalid),
        }
    }

    fn handle_mad(&mut self, now: Time, client: u32, mad: &MadMessage) {
        let Some(&Role::Open(at)) = self.clients.get(&client) else {
            return;
        };
        if let Some(service) = self.services.get_mut(&at) {
            service.send(now, client, mad);
        }
    }

    /// Lets time pass: packets arrive, requests are sent again or given up.
    pub fn handle_timeout(&mut self, now: Time) {
        self.subnet.handle_timeout(now);
        for service in self.services.values_mut() {
            service.handle_timeout(now);
        }
        self.advance(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None` for no time.
    pub fn poll_timeout(&self) -> Option<Time> {
        let services = self.services.values().filter_map(Service::poll_timeout);
        services.chain(self.subnet.poll_timeout()).min()
    }

    /// A message for a client.
    pub fn poll_transmit(&mut self) -> Option<(u32, Message)> {
        self.transmits.pop_front()
    }

    /// A client asks for the file that a subnet manager at that port keeps open as long as it
    /// manages; [`answer_file`](Self::answer_file) answers.
    pub fn poll_file(&mut self) -> Option<(u32, PortRef)> {
        self.files.pop_front()
    }

    /// Answers a question for a file; `None` if there is none.
    pub fn answer_file(&mut self, client: u32, path: Option<&str>) {
        let answer = path.map(|path| Message::Path(path.to_owned()));
        let answer = answer.unwrap_or(Message::Refused(Refusal::Missing));
        self.transmits.push_back((client, answer));
    }

    /// A subnet manager has begun or ceased to run at a port.
    pub fn set_sm(&mut self, now: Time, at: PortRef, is_here: bool) {
        self.subnet.set_sm(now, at, is_here);
        self.advance(now);
    }

    /// Pulls the cable out of a port, or puts it back. Returns whether there is a cable.
    pub fn plug(&mut self, now: Time, at: PortRef, is_in: bool) -> bool {
        let is_there = self.subnet.plug(now, at, is_in);
        self.advance(now);
        is_there
    }

    /// The subnet.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// What the ports' services have dropped, of all ports together.
    pub fn counters(&self) -> HostCounters {
        let mut sum = HostCounters::default();
        for service in self.services.values() {
            service.count(&mut sum);
        }
        sum
    }

    /// Carries datagrams between services and subnet until nothing moves.
    fn advance(&mut self, now: Time) {
        let mut ports: Vec<_> = self.services.keys().copied().collect();
        loop {
            while let Some((at, packet)) = self.subnet.poll_delivery() {
                match self.services.get_mut(&at) {
                    Some(service) if !self.adapters.has(at) || service.wants(&packet) => {
                        service.receive(now, &self.subnet, packet);
                        ports.push(at);
                    }
                    _ => self.deliver(at, &packet),
                }
            }
            let Some(at) = ports.pop() else { break };
            let Some(service) = self.services.get_mut(&at) else {
                continue;
            };
            while let Some(packet) = service.poll_packet(&self.subnet) {
                self.subnet.send(now, at, packet);
            }
            while let Some(message) = service.poll_message() {
                self.transmits.push_back(message);
            }
        }
        // Of other ports, a client that wants to know asks.
        while let Some(event) = self.subnet.poll_event() {
            self.tell(event);
        }
    }

    fn session(&mut self, session: u32) -> Result<&mut Service, Refusal> {
        let Some(&Role::Open(at)) = self.clients.get(&session) else {
            return Err(Refusal::Missing);
        };
        self.services.get_mut(&at).ok_or(Refusal::Missing)
    }

    /// The nodes of a host.
    fn nodes(&self, host: &str) -> Result<Vec<NodeId>, Refusal> {
        if host.is_empty() {
            let first = self.topology.first_hca();
            return first.map(|id| vec![id]).ok_or(Refusal::Missing);
        }
        let names = host.split(',').map(str::trim);
        names
            .map(|name| self.topology.find(name).ok_or(Refusal::Missing))
            .collect()
    }

    fn port(&self, host: &str, adapter: u8, port: u8) -> Result<PortRef, Refusal> {
        let nodes = self.nodes(host)?;
        let node = nodes.get(usize::from(adapter)).copied();
        let at = PortRef {
            node: node.ok_or(Refusal::Missing)?,
            port,
        };
        let is_switch = self.subnet.node(at.node).is_some_and(|sma| sma.is_switch());
        // A switch has one host port, its port 0.
        let is_there = self.subnet.port_info(at).is_some() && is_switch == (port == 0);
        is_there.then_some(at).ok_or(Refusal::Missing)
    }

    fn adapters(&self, host: &str) -> Result<Vec<Adapter>, Refusal> {
        let nodes = self.nodes(host)?;
        Ok(nodes
            .into_iter()
            .filter_map(|id| self.adapter(id))
            .collect())
    }

    fn adapter(&self, id: NodeId) -> Option<Adapter> {
        let spec = self.topology.nodes().get(id.index())?;
        let sma = self.subnet.node(id)?;
        let numbers = if spec.is_switch() {
            0..=0
        } else {
            1..=spec.ports
        };
        let ports = numbers.filter_map(|number| {
            let port = sma.port(number)?;
            let info = port.info();
            Some(AdapterPort {
                number,
                guid: port.guid(),
                gid_prefix: info.gid_prefix,
                lid: info.lid,
                lmc: info.lmc.byte(),
                sm_lid: info.sm_lid,
                sm_sl: info.sm_sl.byte(),
                state: info.state.0,
                phys_state: info.phys_state.0,
                rate_mbps: port.rate_mbps(),
                capability_mask: info.capability_mask.bits(),
                pkeys: port.pkeys().to_vec(),
            })
        });
        Some(Adapter {
            name: spec.name.clone(),
            guid: Guid(spec.guid.0),
            system_guid: spec.system_guid,
            device_id: spec.device_id,
            node_type: spec.node_type.0,
            ports: ports.collect(),
        })
    }
}

fn refusal(error: AgentError) -> Refusal {
    match error {
        AgentError::Taken { .. } => Refusal::Taken,
        AgentError::Limit { .. } => Refusal::Full,
        AgentError::NoAgent => Refusal::Missing,
        _ => Refusal::Invalid,
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests;
