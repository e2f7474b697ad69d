//! One port's service: its clients' registrations and requests, and the packets of these.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use verbs_core::addr::{PKey, QKey, Qpn};
use verbs_core::mad::header::{MAD_LEN, emit_header, header_of};
use verbs_core::mad::rmpp::{Layout, RmppHeader};
use verbs_core::mad::sm::{self, PERMISSIVE_LID};
use verbs_core::mad::{
    Address, AgentConfig, AgentError, AgentId, Agents, Class, Delivery, MadBytes, MadHeader,
    Method, Retry, Time, TransactionId,
};
use verbs_core::qp_attr::Av;
use verbs_core::{Gid, Lid};

use crate::link::fabric::message::{MadMessage, Registration};
use crate::link::fabric::packet::{Body, MadPacket, Packet};
use crate::link::fabric::subnet::Subnet;
use crate::link::fabric::topology::PortRef;
use crate::wire::Grh;

use super::super::message::Message;

/// Registrations of one client at most, as with Linux's umad.
const AGENTS_MAX: usize = 32;

/// What a port's service keeps at most: agents of many programs, and the tables of large subnets.
fn config() -> AgentConfig {
    AgentConfig {
        agents_max: 1024,
        requests_max: 16_384,
        ..AgentConfig::default()
    }
}

/// A request was not answered in time: `ETIMEDOUT`.
const TIMED_OUT: u32 = 110;

/// Routers that a datagram of a client may pass.
const HOP_LIMIT: u8 = 64;

/// Bytes of a header, which is what comes back of a request without an answer.
const HEADER_LEN: usize = 24;

/// What services have dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Responses that no request waits for.
    pub unmatched: u64,
    /// Requests that nobody registered for.
    pub unclaimed: u64,
    /// Requests that could not be kept.
    pub full: u64,
    /// Messages of clients that made no sense.
    pub bad_messages: u64,
}

/// A registration.
#[derive(Debug)]
struct Agent {
    client: u32,
    /// What the client calls it.
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

#[derive(Debug)]
pub(super) struct Service {
    at: PortRef,
    agents: Agents,
    registered: BTreeMap<AgentId, Agent>,
    by_number: BTreeMap<(u32, u32), AgentId>,
    /// For datagrams of another class than the agent's, as managers send them.
    companions: BTreeMap<(AgentId, Class), AgentId>,
    asked: BTreeMap<TransactionId, Asked>,
    packets: VecDeque<(Address, Box<MadBytes>, Extra)>,
    messages: VecDeque<(u32, Message)>,
    bad_messages: u64,
}

/// What a datagram has beside its address.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    qkey: QKey,
    gid: Option<(u8, Gid)>,
}

impl Service {
    /// The service of a port. The number keeps the transaction ids of ports apart.
    pub(super) fn new(at: PortRef, number: u32) -> Self {
        Self {
            at,
            agents: Agents::new(config(), (number & 0xffff) << 16 | 1),
            registered: BTreeMap::new(),
            by_number: BTreeMap::new(),
            companions: BTreeMap::new(),
            asked: BTreeMap::new(),
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
        let companions: Vec<_> = self
            .companions
            .extract_if((id, Class(0))..=(id, Class(0xff)), |_, _| true)
            .map(|(_, companion)| companion)
            .collect();
        for id in companions.into_iter().chain([id]) {
            self.agents.unregister(id)?;
        }
        self.asked.retain(|_, asked| asked.agent != id);
        Ok(())
    }

    pub(super) fn forget(&mut self, client: u32) {
        let numbers = self.by_number.range((client, 0)..=(client, u32::MAX));
        let numbers: Vec<_> = numbers.map(|(&(_, number), _)| number).collect();
        for number in numbers {
            // It is in the table, so that there is something to end.
            let _ended = self.unregister(client, number);
        }
    }

    /// A client sends a datagram, or a transfer.
    pub(super) fn send(&mut self, now: Time, client: u32, message: &MadMessage) {
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
            let sent = self.agents.respond(now, id, to, &mad, payload.to_vec());
            // Whoever asked asks again.
            self.bad_messages += u64::from(sent.is_err());
        } else if message.timeout_ms > 0 && !header.method.is_response() {
            self.ask(now, id, to, message, &mad);
        } else {
            let gid = message.gid.map(|gid| (message.gid_index, gid));
            let qkey = message.qkey;
            self.packets.push_back((to, mad, Extra { qkey, gid }));
        }
        self.take_deliveries();
    }

    fn ask(&mut self, now: Time, id: AgentId, to: Address, message: &MadMessage, mad: &MadBytes) {
        let header = MadHeader::parse(header_of(mad));
        let retry = Retry {
            timeout: Duration::from_millis(message.timeout_ms.into()),
            retries: message.retries,
        };
        let asked = match self.agents.request(now, id, to, mad, retry) {
            Err(AgentError::WrongClass { .. }) => self
                .companion(id, header.class)
                .and_then(|companion| self.agents.request(now, companion, to, mad, retry)),
            other => other,
        };
        let header_bytes = message.bytes.iter().copied().take(HEADER_LEN).collect();
        let asked_of = Asked {
            agent: id,
            tid: header.tid,
            header: header_bytes,
            to,
        };
        match asked {
            Ok(tid) => {
                self.asked.insert(tid, asked_of);
            }
            // A request that cannot be kept will not be answered.
            Err(_) => self.give_up(&asked_of),
        }
    }

    /// An agent for another class, for the same client.
    fn companion(&mut self, id: AgentId, class: Class) -> Result<AgentId, AgentError> {
        if let Some(&companion) = self.companions.get(&(id, class)) {
            return Ok(companion);
        }
        let companion = self.agents.register(class, 1, &[])?;
        self.companions.insert((id, class), companion);
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

    /// A packet for the port.
    pub(super) fn receive(&mut self, now: Time, subnet: &Subnet, packet: Packet) {
        let Body::Mad(datagram) = packet.body else {
            return;
        };
        let keys = subnet
            .node(self.at.node)
            .and_then(|sma| sma.port(self.at.port));
        let index = keys.and_then(|port| {
            let mut keys = port.pkeys().iter();
            keys.position(|own| own.0 & 0x7fff == datagram.pkey.0 & 0x7fff)
        });
        let from = Address {
            av: Av {
                sl: packet.sl,
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

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.agents.handle_timeout(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.agents.poll_timeout()
    }

    /// A packet for the subnet.
    pub(super) fn poll_packet(&mut self, subnet: &Subnet) -> Option<Packet> {
        let (to, mad, extra) = match self.agents.poll_transmit() {
            Some((to, mad)) => (to, Box::new(mad), Extra::default()),
            None => {
                self.take_deliveries();
                self.packets.pop_front()?
            }
        };
        let port = subnet.node(self.at.node)?.port(self.at.port)?;
        let lid = Lid(port.info().lid.0 | u16::from(to.av.src_path_bits));
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

    /// A message for a client.
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
                    if let Some(asked) = self.asked.remove(&tid) {
                        self.give_up(&asked);
                    }
                }
                // The client was told nothing when it began, and has nothing to free.
                Delivery::Responded { .. } => {}
            }
        }
    }

    fn take_request(&mut self, id: AgentId, from: &Address, mad: &MadBytes) {
        let Some(agent) = self.registered.get(&id) else {
            return;
        };
        // Vendor classes with an OUI have it behind the RMPP header.
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
        let Some(asked) = self.asked.remove(&tid) else {
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

    /// Tells a client that its request was not answered.
    fn give_up(&mut self, asked: &Asked) {
        let Some(agent) = self.registered.get(&asked.agent) else {
            return;
        };
        let header = asked.header.clone();
        let message = message(agent.number, TIMED_OUT, &asked.to, header);
        self.messages.push_back((agent.client, message));
    }
}

/// What a client gets.
fn message(agent: u32, status: u32, with: &Address, bytes: Vec<u8>) -> Message {
    Message::Mad(MadMessage {
        agent,
        status,
        qpn: with.qpn,
        lid: with.av.dlid,
        sl: with.av.sl,
        pkey_index: with.pkey_index,
        bytes,
        ..MadMessage::default()
    })
}
