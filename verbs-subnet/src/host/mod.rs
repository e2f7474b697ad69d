//! A subnet with programs in it: a client opens a port's service for management datagrams, or attaches an HCA.

mod adapters;
mod clients;
mod service;

use std::collections::{BTreeMap, VecDeque};

use verbs_core::Guid;
use verbs_core::mad::{AgentError, Time};

use crate::ipc::message::{Adapter, AdapterPort, MadMessage, Message, MessageError, Refusal};
use crate::subnet::{Subnet, SubnetConfig};
use crate::topology::{NodeId, PortRef, Topology};

use adapters::Adapters;
use clients::{Clients, Role};
use service::Service;

pub use clients::HostLimits;
pub use service::HostCounters;

/// A subnet and its clients.
///
/// - Commands: [`connect`](Self::connect), [`connect_operator`](Self::connect_operator),
///   [`disconnect`](Self::disconnect), [`set_sm`](Self::set_sm), [`answer_file`](Self::answer_file),
///   [`plug`](Self::plug).
/// - Inputs: [`handle`](Self::handle), [`handle_packets`](Self::handle_packets),
///   [`handle_timeout`](Self::handle_timeout).
/// - Outputs: after each call drain [`poll_transmit`](Self::poll_transmit), [`poll_closed`](Self::poll_closed),
///   [`poll_packets`](Self::poll_packets) and [`poll_file`](Self::poll_file), then look at [`poll_timeout`](Self::poll_timeout).
///
/// Sans-IO: it knows of no sockets. No message panics, and none makes a call wait.
///
/// # What a client can do, and what it cannot
/// A client is to the subnet what a program with the rights of root is on the host of an adapter:
///
/// - It opens any port, and asks and answers as that port's software: it may be a subnet manager, and switch links
///   off by management datagrams, where no M_Key forbids that. A method of a class belongs to the first client of the
///   port that registers for it, as long as it keeps the registration.
/// - It attaches an HCA to any port that no HCA is at, and pulls the cable of that port.
///
/// It can do nothing to other clients but by packets:
///
/// - A session (a port that is open) belongs to the connection that has opened it. Other connections can neither
///   register nor end a registration there, and the session ends with its connection.
/// - Cables, other than that of its own HCA, are pulled and put back by [operators](Self::connect_operator) only.
/// - The packets of an HCA come from the port's own LIDs and GIDs; others are dropped.
/// - What it may keep busy is its share: [`HostLimits`].
#[derive(Debug)]
pub struct Host {
    subnet: Subnet,
    topology: Topology,
    clients: Clients,
    services: BTreeMap<PortRef, Service>,
    transmits: VecDeque<(u32, Message)>,
    adapters: Adapters,
    /// Packets of HCAs that did not come from where they said.
    forged: u64,
    /// The packet that is handed on.
    scratch: Vec<u8>,
    /// Questions for the file that a subnet manager keeps open.
    files: VecDeque<(u32, PortRef)>,
}

impl Host {
    /// The subnet of that topology, without clients, and with the limits that are the default.
    pub fn new(topology: Topology, config: SubnetConfig) -> Self {
        Self::with_limits(topology, config, HostLimits::default())
    }

    /// The same with other limits.
    pub fn with_limits(topology: Topology, config: SubnetConfig, limits: HostLimits) -> Self {
        Self {
            subnet: Subnet::new(&topology, config),
            topology,
            clients: Clients::new(limits),
            services: BTreeMap::new(),
            transmits: VecDeque::new(),
            adapters: Adapters::default(),
            forged: 0,
            scratch: Vec::new(),
            files: VecDeque::new(),
        }
    }

    /// A client has connected. Returns its number; `None` when there are too many.
    pub fn connect(&mut self) -> Option<u32> {
        self.clients.connect(Role::New)
    }

    /// An operator has connected: a client that may pull cables and put them back, and opens and attaches nothing. Who
    /// may be one is for the caller to decide. Returns its number; `None` when there are too many.
    pub fn connect_operator(&mut self) -> Option<u32> {
        self.clients.connect(Role::Operator)
    }

    /// A client is gone, and with it its sessions, their registrations and what they wait for. The link of an HCA's
    /// port goes down. A session can go alone, by its own number.
    pub fn disconnect(&mut self, now: Time, client: u32) {
        let Some(role) = self.clients.remove(client) else {
            return;
        };
        match role {
            Role::Session { at, .. } => self.forget(at, client),
            Role::Attached(at) => self.detach(now, at, false),
            Role::New => {
                for (session, at) in self.clients.end_sessions(client) {
                    self.forget(at, session);
                }
            }
            Role::Operator => {}
        }
        self.advance(now);
    }

    fn forget(&mut self, at: PortRef, session: u32) {
        if let Some(service) = self.services.get_mut(&at) {
            service.forget(session);
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
                let session = self.clients.open(client, at)?;
                let number = u32::try_from(self.services.len()).unwrap_or(u32::MAX);
                let limits = self.clients.limits();
                self.services
                    .entry(at)
                    .or_insert_with(|| Service::new(at, number, limits));
                Ok(Message::Opened { session })
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
                let service = self.session(client, session)?;
                let agent = service.register(session, registration).map_err(refusal)?;
                Ok(Message::Registered { agent })
            }
            Message::Unregister { session, agent } => {
                let service = self.session(client, session)?;
                service
                    .unregister(session, agent)
                    .map(|()| Message::Done)
                    .map_err(refusal)
            }
            Message::Plug { node, port, is_in } => {
                if self.clients.role(client) != Some(Role::Operator) {
                    return Err(Refusal::Denied);
                }
                let node = self.topology.find(&node).ok_or(Refusal::Missing)?;
                let is_there = self.plug(now, PortRef { node, port }, is_in);
                is_there.then_some(Message::Done).ok_or(Refusal::Missing)
            }
            Message::Count => Ok(self.census()),
            _ => Err(Refusal::Invalid),
        }
    }

    fn census(&self) -> Message {
        let (linked, active) = self.subnet.census();
        let [nodes, linked, active] = [self.subnet.len(), linked, active]
            .map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        Message::Census {
            nodes,
            linked,
            active,
        }
    }

    fn handle_mad(&mut self, now: Time, client: u32, mad: &MadMessage) {
        let Some(Role::Session { at, .. }) = self.clients.role(client) else {
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

    /// A session that has ended because the client that had opened it is gone: its own connection is of no use any
    /// more.
    pub fn poll_closed(&mut self) -> Option<u32> {
        self.clients.poll_closed()
    }

    /// A message for a client. Before [`Message::Opened`] is handed to a client, the connection that carries the
    /// session's datagrams has to be there: the session's number is the client's number of that connection.
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

    /// What the host and its ports' services have dropped, of all ports together.
    pub fn counters(&self) -> HostCounters {
        let mut sum = HostCounters {
            forged: self.forged,
            ..HostCounters::default()
        };
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

    /// The service of a session, for the client that has opened it.
    fn session(&mut self, client: u32, session: u32) -> Result<&mut Service, Refusal> {
        let Some(Role::Session { at, owner }) = self.clients.role(session) else {
            return Err(Refusal::Missing);
        };
        // Of the sessions of others, it is not even told that they are there.
        if owner != client {
            return Err(Refusal::Missing);
        }
        self.services.get_mut(&at).ok_or(Refusal::Missing)
    }

    /// The nodes of a host.
    fn nodes(&self, host: &str) -> Result<Vec<NodeId>, Refusal> {
        if host.is_empty() {
            let first = self.topology.first_hca();
            return first.map(|id| vec![id]).ok_or(Refusal::Missing);
        }
        let names = host.split(',').map(str::trim);
        if names.clone().count() > self.clients.limits().nodes_of_host_max {
            return Err(Refusal::Full);
        }
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
