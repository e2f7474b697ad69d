//! The built-in subnet manager in the program that hosts the subnet: a client like those of other programs,
//! but for the socket.

use std::collections::BTreeMap;
use std::time::Duration;

use hca_sim::link::fabric::message::{MadMessage, Message, MessageError, Registration};
use hca_sim::link::fabric::{Host, PortRef};
use verbs_core::Av;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::rmpp::{Kind, RmppFlags, RmppHeader, VERSION};
use verbs_core::mad::{
    Address, AgentId, Class, Delivery, MAD_LEN, MadBytes, MadHeader, Retry, TransactionId, sa,
};
use verbs_core::time::Instant;
use verbs_sm::{CLASSES, Config, Port, Seat, SubnetManager};

/// A manager at a port of a hosted subnet.
#[derive(Debug)]
pub(crate) struct BuiltIn {
    at: PortRef,
    client: u32,
    seat: Seat,
    service: Service,
}

/// The port's service, as messages to the host.
#[derive(Debug)]
struct Service {
    port: u8,
    /// Which registration each class has.
    agents: BTreeMap<Class, u32>,
    next: u32,
    messages: Vec<Message>,
    is_sm: Option<bool>,
}

impl BuiltIn {
    /// Seats a manager at a port of a node, which is named, and begins. `None` when the port is taken.
    pub(crate) fn new(
        host: &mut Host,
        now: Instant,
        at: PortRef,
        name: &str,
        config: Config,
    ) -> Result<Option<Self>, MessageError> {
        let Some(asker) = host.connect() else {
            return Ok(None);
        };
        let open = Message::Open {
            host: name.to_owned(),
            adapter: 0,
            port: at.port,
        };
        let Some(Message::Opened { session }) = ask(host, now, asker, &open)? else {
            return Ok(None);
        };
        let mut agents = BTreeMap::new();
        for (class, version, methods) in CLASSES {
            let bits = methods.iter().map(|method| 1_u128 << (method.0 & 0x7f));
            let registration = Registration {
                class: class.0,
                version,
                methods: bits.sum(),
                oui: 0,
                has_transfers: class == Class::SA,
            };
            let register = Message::Register {
                session,
                registration,
            };
            match ask(host, now, asker, &register)? {
                Some(Message::Registered { agent }) => agents.insert(class, agent),
                _ => return Ok(None),
            };
        }
        let mut manager = Self {
            at,
            // It ends with its asker, which never goes.
            client: session,
            seat: Seat::new(SubnetManager::new(config, at.port)),
            service: Service {
                port: at.port,
                agents,
                next: 1,
                messages: Vec::new(),
                is_sm: None,
            },
        };
        manager.with(host, now, SubnetManager::start)?;
        Ok(Some(manager))
    }

    /// The client that it is.
    pub(crate) fn client(&self) -> u32 {
        self.client
    }

    /// When it wants to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.seat.manager().poll_timeout()
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(
        &mut self,
        host: &mut Host,
        now: Instant,
    ) -> Result<(), MessageError> {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return Ok(());
        }
        self.with(host, now, SubnetManager::handle_timeout)
    }

    /// A message for the manager.
    pub(crate) fn handle(
        &mut self,
        host: &mut Host,
        now: Instant,
        message: &Message,
    ) -> Result<(), MessageError> {
        if let Message::Mad(message) = message
            && let Some(delivery) = delivery(message, self.service.port)
        {
            self.seat.deliver(now, &mut self.service, &delivery);
        }
        self.flush(host, now)
    }

    fn with(
        &mut self,
        host: &mut Host,
        now: Instant,
        call: impl FnOnce(&mut SubnetManager, Instant),
    ) -> Result<(), MessageError> {
        let service = &mut self.service;
        self.seat.with(now, service, |manager| call(manager, now));
        self.flush(host, now)
    }

    fn flush(&mut self, host: &mut Host, now: Instant) -> Result<(), MessageError> {
        if let Some(is_here) = self.service.is_sm.take() {
            host.set_sm(now, self.at, is_here);
        }
        for message in std::mem::take(&mut self.service.messages) {
            host.handle(now, self.client, &message.encode())?;
        }
        Ok(())
    }
}

/// Asks the host, and takes its answer before any other message.
fn ask(
    host: &mut Host,
    now: Instant,
    client: u32,
    question: &Message,
) -> Result<Option<Message>, MessageError> {
    host.handle(now, client, &question.encode())?;
    let answer = host.poll_transmit();
    Ok(answer.and_then(|(whom, message)| (whom == client).then_some(message)))
}

impl Service {
    fn message(&self, to: Address, mad: &[u8], class: Class) -> Option<MadMessage> {
        Some(MadMessage {
            agent: *self.agents.get(&class)?,
            qpn: to.qpn,
            lid: to.av.dlid,
            sl: to.av.sl,
            path_bits: to.av.src_path_bits,
            pkey_index: to.pkey_index,
            bytes: mad.to_vec(),
            ..MadMessage::default()
        })
    }
}

impl Port for Service {
    fn request(&mut self, to: Address, mad: &MadBytes, retry: Retry) -> Option<TransactionId> {
        let header = MadHeader::parse(header_of(mad));
        let tid = TransactionId::new(0, self.next);
        self.next = self.next.wrapping_add(1).max(1);
        let mut mad = *mad;
        emit_header(&MadHeader { tid, ..header }, &mut mad);
        let message = self.message(to, &mad, header.class)?;
        self.messages.push(Message::Mad(MadMessage {
            timeout_ms: millis(retry.timeout),
            retries: retry.retries,
            ..message
        }));
        Some(tid)
    }

    fn send(&mut self, to: Address, mad: &MadBytes) {
        if let Some(message) = self.message(to, mad, header_of(mad).class()) {
            self.messages.push(Message::Mad(message));
        }
    }

    fn respond(&mut self, to: Address, template: &MadBytes, payload: Vec<u8>) {
        let mut template = *template;
        RmppHeader {
            version: VERSION,
            kind: Kind::DATA,
            flags: RmppFlags::ACTIVE,
            ..RmppHeader::default()
        }
        .put(&mut template);
        let class = header_of(&template).class();
        let headers = template.get(..sa::DATA_AT).unwrap_or_default();
        let bytes = [headers, &payload].concat();
        if let Some(message) = self.message(to, &bytes, class) {
            self.messages.push(Message::Mad(message));
        }
    }

    fn is_sm(&mut self, is_here: bool) {
        self.is_sm = Some(is_here);
    }
}

/// What a message of the host says; `None` for one that says nothing.
fn delivery(message: &MadMessage, port: u8) -> Option<Delivery> {
    let mut mad = [0; MAD_LEN];
    for (to, from) in mad.iter_mut().zip(&message.bytes) {
        *to = *from;
    }
    let header = MadHeader::parse(header_of(&mad));
    let agent = AgentId::default();
    if message.status != 0 {
        return Some(Delivery::TimedOut {
            agent,
            tid: header.tid,
        });
    }
    if header.method.is_response() {
        return Some(Delivery::Response {
            agent,
            tid: header.tid,
            mad,
            payload: None,
        });
    }
    let from = Address {
        av: Av {
            sl: message.sl,
            src_path_bits: message.path_bits,
            ..Av::to_lid(port, message.lid)
        },
        qpn: message.qpn,
        pkey_index: message.pkey_index,
    };
    Some(Delivery::Request { agent, from, mad })
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
