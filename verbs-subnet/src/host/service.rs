//! One port's service: its clients' registrations and requests, and their packets.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use verbs_core::Gid;
use verbs_core::addr::{PKey, QKey, Qpn};
use verbs_core::mad::header::{MAD_LEN, emit_header, header_of};
use verbs_core::mad::rmpp::{Layout, RmppHeader};
use verbs_core::mad::sm::{self, PERMISSIVE_LID};
use verbs_core::mad::{
    Address, AgentConfig, AgentError, AgentId, Agents, Class, Delivery, MadBytes, MadHeader,
    Method, Retry, TransactionId,
};
use verbs_core::qp_attr::Av;
use verbs_core::time::Instant;

use crate::ipc::message::{MadMessage, Registration};
use crate::packet::{Body, MadPacket, Packet};
use crate::subnet::Subnet;
use crate::topology::PortRef;
use verbs_wire::Grh;

use super::clients::HostLimits;
use crate::ipc::message::Message;

/// Registrations of one client at most, as with Linux's umad.
const AGENTS_MAX: usize = 32;

/// Agents for datagrams of another class than the registration's: one for each possible class.
const COMPANIONS_MAX: usize = 256;

/// The limits of a port's service: the sum of all its sessions' shares, so one that uses all of its share takes
/// nothing from others.
fn config(limits: &HostLimits) -> AgentConfig {
    AgentConfig {
        agents_max: limits.clients_max * AGENTS_MAX + COMPANIONS_MAX,
        requests_max: limits.clients_max * limits.requests_of_session_max,
        transfers_max: limits.clients_max * limits.transfers_of_session_max,
        ..AgentConfig::default()
    }
}

/// A request was not answered in time: `ETIMEDOUT`.
const TIMED_OUT: u32 = 110;

/// Routers that a datagram of a client may pass.
const HOP_LIMIT: u8 = 64;

/// Bytes of a header, which is returned for a request without an answer.
const HEADER_LEN: usize = 24;

/// The numbers of messages and packets that services have dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Responses that no request waits for.
    pub unmatched: u64,
    /// Requests without a registered receiver.
    pub unclaimed: u64,
    /// Requests that exceeded a limit.
    pub full: u64,
    /// Malformed messages of clients.
    pub bad_messages: u64,
    /// Packets of HCAs with a source LID or GID that is not their port's.
    pub forged: u64,
}

/// A registration.
#[derive(Debug)]
struct Agent {
    client: u32,
    /// The client's number for it.
    number: u32,
    registration: Registration,
}

/// A request that waits for its response.
#[derive(Debug)]
struct Asked {
    agent: AgentId,
    /// The client's own transaction id, and the start of its datagram.
    tid: TransactionId,
    header: Vec<u8>,
    to: Address,
}

/// The resources that a session uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    requests: usize,
    transfers: usize,
}

#[derive(Debug)]
pub(super) struct Service {
    at: PortRef,
    agents: Agents,
    registered: BTreeMap<AgentId, Agent>,
    by_number: BTreeMap<(u32, u32), AgentId>,
    /// For datagrams of another class than the agent's, as managers send them. Sessions share them: an answer is
    /// matched by its transaction id.
    companions: BTreeMap<Class, AgentId>,
    asked: BTreeMap<TransactionId, Asked>,
    limits: HostLimits,
    /// The resources in use, by session.
    loads: BTreeMap<u32, Load>,
    /// Outgoing transfers, by agent and transaction id, and their session.
    transfers: BTreeMap<(AgentId, TransactionId), u32>,
    packets: VecDeque<(Address, Box<MadBytes>, Extra)>,
    messages: VecDeque<(u32, Message)>,
    bad_messages: u64,
}

/// The values of a datagram besides its address.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    qkey: QKey,
    gid: Option<(u8, Gid)>,
}

impl Service {
    /// The service of a port. The number keeps the transaction ids of ports distinct.
    pub(super) fn new(at: PortRef, number: u32, limits: HostLimits) -> Self {
        Self {
            at,
            agents: Agents::new(config(&limits), (number & 0xffff) << 16 | 1),
            registered: BTreeMap::new(),
            by_number: BTreeMap::new(),
            companions: BTreeMap::new(),
            asked: BTreeMap::new(),
            limits,
            loads: BTreeMap::new(),
            transfers: BTreeMap::new(),
            packets: VecDeque::new(),
            messages: VecDeque::new(),
            bad_messages: 0,
        }
    }

    pub(super) fn register(
        &mut self,
        client: u32,
        registration: Registration,
    ) -> Result<u32, AgentError> {
        let methods: Vec<_> = (0..=0x7f)
            .filter(|bit| registration.methods >> bit & 1 == 1)
            .map(Method)
            .collect();
        let mut numbers = (0..).take(AGENTS_MAX);
        let free = numbers.find(|&number| !self.by_number.contains_key(&(client, number)));
        let number = free.ok_or(AgentError::Limit {
            what: "agents of a client",
            max: AGENTS_MAX,
        })?;
        let (class, version) = (Class(registration.class), registration.version);
        let id = self.agents.register(class, version, &methods)?;
        let agent = Agent {
            client,
            number,
            registration,
        };
        self.registered.insert(id, agent);
        self.by_number.insert((client, number), id);
        Ok(number)
    }

    pub(super) fn unregister(&mut self, client: u32, number: u32) -> Result<(), AgentError> {
        let id = self.by_number.remove(&(client, number));
        let id = id.ok_or(AgentError::NoAgent)?;
        self.registered.remove(&id);
        self.agents.unregister(id)?;
        let mut given_up = 0;
        self.asked.retain(|&tid, asked| {
            let is_other = asked.agent != id;
            if !is_other {
                self.agents.cancel(tid);
                given_up += 1;
            }
            is_other
        });
        let ended = (id, TransactionId(0))..=(id, TransactionId(u64::MAX));
        let ended = self.transfers.extract_if(ended, |_, _| true).count();
        self.change_load(client, |load| {
            load.requests -= given_up;
            load.transfers -= ended;
        });
        Ok(())
    }

    /// A session uses more or fewer resources.
    fn change_load(&mut self, client: u32, change: impl FnOnce(&mut Load)) {
        let load = self.loads.entry(client).or_default();
        change(load);
        if *load == Load::default() {
            self.loads.remove(&client);
        }
    }

    pub(super) fn forget(&mut self, client: u32) {
        let numbers = self.by_number.range((client, 0)..=(client, u32::MAX));
        let numbers: Vec<_> = numbers.map(|(&(_, number), _)| number).collect();
        for number in numbers {
            // It is in the table, so there is a registration to end.
            let _ended = self.unregister(client, number);
        }
    }

    /// A client sends a datagram, or a transfer.
    pub(super) fn send(&mut self, now: Instant, client: u32, message: &MadMessage) {
        let id = self.by_number.get(&(client, message.agent)).copied();
        let Some((id, agent)) = id.and_then(|id| Some((id, self.registered.get(&id)?))) else {
            self.bad_messages += 1;
            return;
        };
        let mut mad = Box::new([0; MAD_LEN]);
        for (to, from) in mad.iter_mut().zip(&message.bytes) {
            *to = *from;
        }
        let header = MadHeader::parse(header_of(&mad));
        let layout = Layout::of(header.class).filter(|_| agent.registration.has_transfers);
        let to = self.address(message, &mad);
        if let Some(layout) = layout
            && header.method.is_response()
            && RmppHeader::of(&mad).is_active()
        {
            let payload = message.bytes.get(layout.data_at()..).unwrap_or_default();
            // If it is not sent, the requester repeats its request.
            let is_sent = self.respond(now, (client, id), to, &mad, payload.to_vec());
            self.bad_messages += u64::from(!is_sent);
        } else if message.timeout_ms > 0 && !header.method.is_response() {
            self.ask(now, id, to, message, &mad);
        } else {
            let gid = message.gid.map(|gid| (message.gid_index, gid));
            let qkey = message.qkey;
            self.packets.push_back((to, mad, Extra { qkey, gid }));
        }
        self.take_deliveries();
    }

    /// Sends a transfer of a session's agent. Returns whether it was started.
    fn respond(
        &mut self,
        now: Instant,
        (client, id): (u32, AgentId),
        to: Address,
        mad: &MadBytes,
        payload: Vec<u8>,
    ) -> bool {
        let busy = self.loads.get(&client).map_or(0, |load| load.transfers);
        if busy >= self.limits.transfers_of_session_max {
            return false;
        }
        if self.agents.respond(now, id, to, mad, payload).is_err() {
            return false;
        }
        let tid = header_of(mad).tid();
        self.transfers.insert((id, tid), client);
        self.change_load(client, |load| load.transfers += 1);
        true
    }

    fn ask(
        &mut self,
        now: Instant,
        id: AgentId,
        to: Address,
        message: &MadMessage,
        mad: &MadBytes,
    ) {
        let header = MadHeader::parse(header_of(mad));
        let retry = Retry {
            timeout: Duration::from_millis(message.timeout_ms.into()),
            retries: message.retries,
        };
        let header_bytes = message.bytes.iter().copied().take(HEADER_LEN).collect();
        let asked_of = Asked {
            agent: id,
            tid: header.tid,
            header: header_bytes,
            to,
        };
        let client = self.registered.get(&id).map(|agent| agent.client);
        let load = client.and_then(|client| self.loads.get(&client));
        let is_full = load.is_some_and(|load| load.requests >= self.limits.requests_of_session_max);
        let (Some(client), false) = (client, is_full) else {
            return self.give_up(&asked_of);
        };
        let asked = match self.agents.request(now, id, to, mad, retry) {
            Err(AgentError::WrongClass { .. }) => self
                .companion(header.class)
                .and_then(|companion| self.agents.request(now, companion, to, mad, retry)),
            other => other,
        };
        match asked {
            Ok(tid) => {
                self.asked.insert(tid, asked_of);
                self.change_load(client, |load| load.requests += 1);
            }
            // A request that exceeds a limit will not be answered.
            Err(_) => self.give_up(&asked_of),
        }
    }

    /// The request no longer waits for its response.
    fn take_asked(&mut self, tid: TransactionId) -> Option<Asked> {
        let asked = self.asked.remove(&tid)?;
        if let Some(agent) = self.registered.get(&asked.agent) {
            self.change_load(agent.client, |load| load.requests -= 1);
        }
        Some(asked)
    }

    /// An agent for another class.
    fn companion(&mut self, class: Class) -> Result<AgentId, AgentError> {
        if let Some(&companion) = self.companions.get(&class) {
            return Ok(companion);
        }
        let companion = self.agents.register(class, 1, &[])?;
        self.companions.insert(class, companion);
        Ok(companion)
    }

    fn address(&self, message: &MadMessage, mad: &MadBytes) -> Address {
        let qpn = if sm::is_smp(mad) {
            Qpn::new(0)
        } else {
            message.qpn
        };
        Address {
            av: Av {
                sl: message.sl & 15,
                src_path_bits: message.path_bits,
                ..Av::to_lid(self.at.port, message.lid)
            },
            qpn,
            pkey_index: message.pkey_index,
        }
    }

    /// Whether a packet is for a client here, if others share the port's queue pairs: the answer to a request, or
    /// a request with a registered receiver.
    pub(super) fn wants(&self, packet: &Packet) -> bool {
        let Body::Mad(datagram) = &packet.body else {
            return false;
        };
        let header = MadHeader::parse(header_of(&datagram.mad));
        if header.method.is_response() || header.method == Method::TRAP_REPRESS {
            return self.asked.contains_key(&header.tid);
        }
        let bit = 1 << (header.method.0 & 0x7f);
        self.registered.values().any(|agent| {
            let asked_for = &agent.registration;
            asked_for.class == header.class.0 && asked_for.methods & bit != 0
        })
    }

    /// Handles a packet for the port.
    pub(super) fn receive(&mut self, now: Instant, subnet: &Subnet, packet: Packet) {
        let Body::Mad(datagram) = packet.body else {
            return;
        };
        let keys = subnet
            .node(self.at.node)
            .and_then(|sma| sma.port(self.at.port));
        let path_bits = keys.map_or(0, |port| port.info().path_bits(packet.dlid));
        self.agents
            .set_lmc(keys.map_or(0, |port| port.info().lmc.byte()));
        let index = keys.and_then(|port| {
            let mut keys = port.pkeys().iter();
            keys.position(|own| own.0 & 0x7fff == datagram.pkey.0 & 0x7fff)
        });
        let from = Address {
            av: Av {
                sl: packet.sl,
                // The answer leaves from the LID that was asked.
                src_path_bits: path_bits,
                ..Av::to_lid(self.at.port, packet.slid)
            },
            qpn: datagram.src_qpn,
            pkey_index: index
                .and_then(|index| u16::try_from(index).ok())
                .unwrap_or(0),
        };
        self.agents.handle(now, from, &datagram.mad);
        self.take_deliveries();
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.agents.handle_timeout(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.agents.poll_timeout()
    }

    /// The next packet for the subnet.
    pub(super) fn poll_packet(&mut self, subnet: &Subnet) -> Option<Packet> {
        let (to, mad, extra) = match self.agents.poll_transmit() {
            Some((to, mad)) => (to, Box::new(mad), Extra::default()),
            None => {
                self.take_deliveries();
                self.packets.pop_front()?
            }
        };
        let port = subnet.node(self.at.node)?.port(self.at.port)?;
        let lid = port.info().lid_of(to.av.src_path_bits);
        let slid = if to.av.dlid == PERMISSIVE_LID {
            PERMISSIVE_LID
        } else {
            lid
        };
        let mut packet = if to.qpn.value() == 0 {
            Packet::smp(slid, to.av.dlid, mad)
        } else {
            let mut packet = Packet::gmp(slid, to.av.dlid, mad);
            if let Body::Mad(body) = &mut packet.body {
                let key = port.pkeys().get(usize::from(to.pkey_index)).copied();
                let asked = extra.qkey != QKey(0) && to.qpn.value() != 1;
                *body = MadPacket {
                    dst_qpn: to.qpn,
                    qkey: if asked { extra.qkey } else { body.qkey },
                    pkey: key.unwrap_or(PKey::DEFAULT),
                    ..body.clone()
                };
            }
            packet
        };
        packet.sl = to.av.sl;
        packet.grh = extra.gid.and_then(|(index, dgid)| {
            Some(Grh {
                hop_limit: HOP_LIMIT,
                sgid: port.gid(index)?,
                dgid,
                ..Grh::default()
            })
        });
        Some(packet)
    }

    /// The next message for a client.
    pub(super) fn poll_message(&mut self) -> Option<(u32, Message)> {
        self.messages.pop_front()
    }

    pub(super) fn count(&self, sum: &mut HostCounters) {
        let counters = self.agents.counters();
        sum.unmatched += counters.unmatched;
        sum.unclaimed += counters.unclaimed;
        sum.full += counters.inbox_full + counters.transfers_full;
        sum.bad_messages += self.bad_messages;
    }

    fn take_deliveries(&mut self) {
        while let Some(delivery) = self.agents.poll_delivery() {
            match delivery {
                Delivery::Request { agent, from, mad } => self.take_request(agent, &from, &mad),
                Delivery::Response {
                    tid, mad, payload, ..
                } => self.take_response(tid, &mad, payload.as_deref()),
                Delivery::TimedOut { tid, .. } | Delivery::TransferFailed { tid, .. } => {
                    if let Some(asked) = self.take_asked(tid) {
                        self.give_up(&asked);
                    }
                }
                // The client was not told when it started, and has nothing to free.
                Delivery::Responded { agent, tid, .. } => {
                    if let Some(client) = self.transfers.remove(&(agent, tid)) {
                        self.change_load(client, |load| load.transfers -= 1);
                    }
                }
            }
        }
    }

    fn take_request(&mut self, id: AgentId, from: &Address, mad: &MadBytes) {
        let Some(agent) = self.registered.get(&id) else {
            return;
        };
        // Vendor classes with an OUI have it after the RMPP header.
        let [_, _, _, a, b, c] = *mad
            .get(34..)
            .and_then(<[u8]>::first_chunk)
            .unwrap_or(&[0; 6]);
        let wanted = agent.registration.oui;
        let is_vendor = (0x30..=0x4f).contains(&agent.registration.class);
        if is_vendor && wanted != 0 && wanted != u32::from_be_bytes([0, a, b, c]) {
            return;
        }
        let message = message(agent.number, 0, from, mad.to_vec());
        self.messages.push_back((agent.client, message));
    }

    fn take_response(&mut self, tid: TransactionId, mad: &MadBytes, payload: Option<&[u8]>) {
        let Some(asked) = self.take_asked(tid) else {
            return;
        };
        let Some(agent) = self.registered.get(&asked.agent) else {
            return;
        };
        let mut mad = *mad;
        let header = MadHeader {
            tid: asked.tid,
            ..MadHeader::parse(header_of(&mad))
        };
        emit_header(&header, &mut mad);
        let bytes = match (payload, Layout::of(header.class)) {
            (Some(payload), Some(layout)) => {
                let headers = mad.get(..layout.data_at()).unwrap_or_default();
                [headers, payload].concat()
            }
            _ => mad.to_vec(),
        };
        let message = message(agent.number, 0, &asked.to, bytes);
        self.messages.push_back((agent.client, message));
    }

    /// Reports to a client that its request was not answered.
    fn give_up(&mut self, asked: &Asked) {
        let Some(agent) = self.registered.get(&asked.agent) else {
            return;
        };
        let header = asked.header.clone();
        let message = message(agent.number, TIMED_OUT, &asked.to, header);
        self.messages.push_back((agent.client, message));
    }
}

/// The message that a client gets.
fn message(agent: u32, status: u32, with: &Address, bytes: Vec<u8>) -> Message {
    Message::Mad(MadMessage {
        agent,
        status,
        qpn: with.qpn,
        lid: with.av.dlid,
        sl: with.av.sl,
        path_bits: with.av.src_path_bits,
        pkey_index: with.pkey_index,
        bytes,
        ..MadMessage::default()
    })
}
