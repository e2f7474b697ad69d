//! A subnet for programs: a client opens a port's service for management datagrams, or attaches an HCA.

mod adapters;
mod clients;
mod service;

use std::collections::{BTreeMap, VecDeque};

use verbs_core::Guid;
use verbs_core::mad::AgentError;
use verbs_core::time::Instant;

use crate::ipc::message::{Adapter, AdapterPort, MadMessage, Message, MessageError, Refusal};
use crate::subnet::{Record, Subnet, SubnetConfig};
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
///   [`poll_packets`](Self::poll_packets) and [`poll_file`](Self::poll_file), then look at
///   [`poll_timeout`](Self::poll_timeout).
///
/// Sans-IO: it has no sockets. No message makes it panic or wait.
///
/// # What a client can do, and what it cannot
/// A client has the rights on the subnet that a program of root has on the host of an adapter:
///
/// - It opens any port, and sends requests and answers as that port's software: it may be a subnet manager, and
///   switch links off by management datagrams, unless an M_Key forbids that. A method of a class belongs to the
///   first client of the port that registers for it, as long as it keeps the registration.
/// - It attaches an HCA to any port that has none, and pulls the cable of that port.
///
/// It affects other clients only by packets:
///
/// - A session (an open port) belongs to the connection that has opened it. Other connections can neither
///   register nor end a registration there, and the session ends with its connection.
/// - Only [operators](Self::connect_operator) pull cables and put them back, except that of a client's own HCA.
/// - The packets of an HCA must have the port's own LIDs and GIDs as source; others are dropped.
/// - Its use of resources is limited to its share: [`HostLimits`].
#[derive(Debug)]
pub struct Host {
    subnet: Subnet,
    topology: Topology,
    clients: Clients,
    services: BTreeMap<PortRef, Service>,
    transmits: VecDeque<(u32, Message)>,
    adapters: Adapters,
    /// Packets of HCAs with a false source.
    forged: u64,
    /// The packet that is being passed on.
    scratch: Vec<u8>,
    /// Requests for the file that a subnet manager keeps open.
    files: VecDeque<(u32, PortRef)>,
}

impl Host {
    /// The subnet of that topology, without clients, and with default limits.
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

    /// An operator has connected: a client that may pull cables and put them back, but not open or attach
    /// anything. The caller decides which connections are operators. Returns its number; `None` if there are too
    /// many.
    pub fn connect_operator(&mut self) -> Option<u32> {
        self.clients.connect(Role::Operator)
    }

    /// A client has disconnected, which ends its sessions, their registrations and their requests. The link of an
    /// HCA's port goes down. A session can be disconnected alone, by its own number.
    pub fn disconnect(&mut self, now: Instant, client: u32) {
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

    /// Handles a message from a client, other than one with packets.
    ///
    /// # Errors
    /// [`MessageError`] for a malformed message; the caller should disconnect the client.
    pub fn handle(&mut self, now: Instant, client: u32, bytes: &[u8]) -> Result<(), MessageError> {
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

    fn answer(&mut self, now: Instant, client: u32, asked: Message) -> Result<Message, Refusal> {
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
            Message::Count => Ok(self.counts()),
            _ => Err(Refusal::Invalid),
        }
    }

    fn counts(&self) -> Message {
        let (linked, active) = self.subnet.port_counts();
        let [nodes, linked, active] = [self.subnet.len(), linked, active]
            .map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        Message::Counts {
            nodes,
            linked,
            active,
        }
    }

    fn handle_mad(&mut self, now: Instant, client: u32, mad: &MadMessage) {
        let Some(Role::Session { at, .. }) = self.clients.role(client) else {
            return;
        };
        if let Some(service) = self.services.get_mut(&at) {
            service.send(now, client, mad);
        }
    }

    /// Advances time: packets arrive, requests are repeated or given up.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.subnet.handle_timeout(now);
        for service in self.services.values_mut() {
            service.handle_timeout(now);
        }
        self.advance(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let services = self.services.values().filter_map(Service::poll_timeout);
        services.chain(self.subnet.poll_timeout()).min()
    }

    /// A session that has ended because the client that had opened it disconnected: its own connection is of no
    /// use any longer.
    pub fn poll_closed(&mut self) -> Option<u32> {
        self.clients.poll_closed()
    }

    /// A message for a client. Before the caller delivers [`Message::Opened`], it must create the connection for
    /// the session's datagrams: the session's number is the client number of that connection.
    pub fn poll_transmit(&mut self) -> Option<(u32, Message)> {
        self.transmits.pop_front()
    }

    /// A client requests the file that a subnet manager at that port keeps open while it manages;
    /// [`answer_file`](Self::answer_file) answers.
    pub fn poll_file(&mut self) -> Option<(u32, PortRef)> {
        self.files.pop_front()
    }

    /// Answers a request for a file; `None` if there is none.
    pub fn answer_file(&mut self, client: u32, path: Option<&str>) {
        let answer = path.map(|path| Message::Path(path.to_owned()));
        let answer = answer.unwrap_or(Message::Refused(Refusal::Missing));
        self.transmits.push_back((client, answer));
    }

    /// A subnet manager has started or stopped at a port.
    pub fn set_sm(&mut self, now: Instant, at: PortRef, is_here: bool) {
        self.subnet.set_sm(now, at, is_here);
        self.advance(now);
    }

    /// Pulls the cable out of a port, or puts it back. Returns whether there is a cable.
    pub fn plug(&mut self, now: Instant, at: PortRef, is_in: bool) -> bool {
        let is_there = self.subnet.plug(now, at, is_in);
        self.advance(now);
        is_there
    }

    /// The subnet's record of packets on links.
    pub fn record(&mut self) -> &mut Record {
        self.subnet.record()
    }

    /// The subnet.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// The numbers of dropped messages and packets of the host and its ports' services, summed over all ports.
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

    /// Carries datagrams between services and subnet until none is left.
    fn advance(&mut self, now: Instant) {
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
        // A client that wants to know about other ports asks.
        while let Some(event) = self.subnet.poll_event() {
            self.tell(event);
        }
    }

    /// The service of a session, for the client that has opened it.
    fn session(&mut self, client: u32, session: u32) -> Result<&mut Service, Refusal> {
        let Some(Role::Session { at, owner }) = self.clients.role(session) else {
            return Err(Refusal::Missing);
        };
        // The client is not even told that other clients' sessions exist.
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
            .filter_map(|id| adapter(&self.topology, &self.subnet, id))
            .collect())
    }
}

/// What a client hears of a node.
fn adapter(topology: &Topology, subnet: &Subnet, id: NodeId) -> Option<Adapter> {
    let spec = topology.nodes().get(id.index())?;
    let sma = subnet.node(id)?;
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
