//! The host of a subnet: hostile programs connect to it, send anything, and leave.

use std::time::Duration;

use hca_sim::link::fabric::message::{MadMessage, Message, Registration};
use hca_sim::link::fabric::{Host, SubnetConfig, Topology};
use verbs_core::mad::header::emit_header;
use verbs_core::mad::sm::{self, PERMISSIVE_LID};
use verbs_core::mad::{AttributeId, Class, MadHeader, Method, TransactionId};
use verbs_core::time::Instant;
use verbs_core::{Gid, Lid, Qpn};

use crate::Script;

const TOPOLOGY: &str = "Switch 6 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n[3] \"c\"[1]\n[4] \"c\"[2]\n\
                        Hca 1 \"a\"\nHca 1 \"b\"\nHca 2 \"c\"\n";

const NODES: [&str; 3] = ["a", "b", "c"];

/// The most clients at a time, and with them their sessions.
const CLIENTS: usize = 12;
const SPEAKERS: usize = 4 * CLIENTS;

/// The most messages that one message may cause: each is sent to one client for each registration.
const ANSWERS_MAX: usize = 4096;

/// Messages of all kinds, packets, connects and disconnects at a host. Its answers are bounded, everything that it
/// sends can be read, the subnet keeps its nodes, a program that has been connected from the start is served all the
/// time, and so is a new one.
pub(crate) fn host(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let mut world = World::new();
    while let Some(what) = script.step(400) {
        world.step(what, &mut script);
    }
    world.end();
    script.steps()
}

/// A program that follows the protocol, with a session of its own.
struct Honest {
    client: u32,
    session: u32,
    agent: u32,
}

struct World {
    host: Host,
    now: Instant,
    /// Hostile clients, and the sessions that they have opened.
    clients: Vec<u32>,
    operator: u32,
    /// One for each node.
    honest: Vec<Honest>,
    /// Datagrams that clients received, to be answered.
    heard: Vec<(u32, MadMessage)>,
}

impl World {
    fn new() -> Self {
        let topology = Topology::parse(TOPOLOGY).expect("a topology");
        let mut host = Host::new(topology, SubnetConfig::default());
        let operator = host.connect_operator().expect("there is room");
        let mut world = Self {
            host,
            now: Instant::ZERO,
            clients: Vec::new(),
            operator,
            honest: Vec::new(),
            heard: Vec::new(),
        };
        world.honest = NODES.map(|node| world.register(node)).into();
        world
    }

    fn step(&mut self, what: u8, script: &mut Script<'_>) {
        match what % 16 {
            0 => self.come(),
            1 if !self.clients.is_empty() => {
                let at = script.below(self.clients.len());
                let client = self.clients.swap_remove(at);
                self.host.disconnect(self.now, client);
            }
            2 | 3 => self.packets(script),
            4 => {
                let micros = script.pick(&[10, 1_000, 200_000, 30_000_000]);
                self.now += Duration::from_micros(micros);
                self.host.handle_timeout(self.now);
            }
            5 => self.check(script.below(NODES.len())),
            6 => self.reply(script),
            7 => self.operate(script),
            _ => self.say(script),
        }
        self.drain();
    }

    fn come(&mut self) {
        if self.clients.len() < CLIENTS
            && let Some(client) = self.host.connect()
        {
            self.clients.push(client);
        }
    }

    fn client(&mut self, script: &mut Script<'_>) -> Option<u32> {
        if self.clients.len() < 2 {
            self.come();
        }
        let at = script.below(self.clients.len().max(1));
        self.clients.get(at).copied()
    }

    fn say(&mut self, script: &mut Script<'_>) {
        let Some(client) = self.client(script) else {
            return;
        };
        let other = self.client(script).unwrap_or(client);
        let mut bytes = a_message(script, other).encode();
        if script.once_in(5) {
            script.change(&mut bytes);
        }
        if self.host.handle(self.now, client, &bytes).is_err() {
            // As the server does with a client that does not follow the protocol.
            self.clients.retain(|&other| other != client);
            self.host.disconnect(self.now, client);
        }
    }

    /// Answers a datagram that a client has received.
    fn reply(&mut self, script: &mut Script<'_>) {
        let Some((client, mut mad)) = self.heard.pop() else {
            return;
        };
        if let Some(method) = mad.bytes.get_mut(3) {
            *method |= 0x80;
        }
        script.change(&mut mad.bytes);
        mad.timeout_ms = script.pick(&[0, 0, 1, 1000]);
        // A client that has left in the meantime is unknown, which is not an error.
        let _said = self
            .host
            .handle(self.now, client, &Message::Mad(mad).encode());
    }

    /// Packets of an HCA, whether the client has one or not.
    fn packets(&mut self, script: &mut Script<'_>) {
        let Some(client) = self.client(script) else {
            return;
        };
        let mut message = Vec::new();
        for _ in 0..1 + script.below(5) {
            let at = message.len();
            let len = 4 * (6 + script.below(64));
            message.resize(at + len, 0x55);
            let words = len as u16 / 4;
            let [high, low] = words.to_be_bytes();
            let header = [
                script.byte() & 0xf0,
                script.pick(&[2, 3, 0x12, 1]),
                0,
                script.pick(&[0, 1, 2, 3, 4, 5, 0xff, 0xc0]),
                high,
                low,
                0,
                script.below(6) as u8,
            ];
            message[at..at + 8].copy_from_slice(&header);
            let bth = [
                0x64,
                0,
                0xff,
                0xff,
                0,
                0,
                0,
                script.below(4) as u8,
                0,
                0,
                0,
                0,
            ];
            message[at + 8..at + 20].copy_from_slice(&bth);
            if script.once_in(4) {
                let change = at + usize::from(script.u16()) % len;
                message[change] = script.byte();
            }
        }
        let said = match script.below(8) {
            7 => message.len() + script.below(64),
            6 => message.len() - script.below(24),
            _ => message.len(),
        };
        // Invalid packets are refused.
        let _refused = self
            .host
            .handle_packets(self.now, client, &mut message, said);
    }

    /// Takes the host's messages.
    fn drain(&mut self) {
        let mut answers = 0;
        while let Some((client, message)) = self.host.poll_transmit() {
            answers += 1;
            assert!(answers <= ANSWERS_MAX, "messages without end");
            let again = Message::decode(&message.encode());
            assert_eq!(
                again.as_ref(),
                Ok(&message),
                "a message that cannot be read"
            );
            if let Message::Opened { session } = message
                && self.clients.len() < SPEAKERS
            {
                self.clients.push(session);
            }
            if let Message::Mad(mad) = message {
                self.heard.push((client, mad));
                let excess = self.heard.len().saturating_sub(16);
                self.heard.drain(..excess);
            }
        }
        while let Some((_, packets)) = self.host.poll_packets() {
            answers += 1;
            assert!(answers <= ANSWERS_MAX, "packets without end");
            self.host.recycle(packets);
        }
        while let Some((client, _)) = self.host.poll_file() {
            self.host.answer_file(client, None);
        }
        let due = self.host.poll_timeout();
        assert!(due.is_none_or(|due| due.as_nanos() > 0 || self.now == Instant::ZERO));
        assert_eq!(self.host.subnet().len(), 4, "nodes of the subnet");
    }

    /// A program connects, opens a port and registers.
    fn register(&mut self, node: &str) -> Honest {
        let client = self.host.connect().expect("there is room for a client");
        let open = Message::Open {
            host: node.into(),
            adapter: 0,
            port: 1,
        };
        let opened = self.ask(client, &open);
        let Some(Message::Opened { session }) = opened else {
            panic!("an honest program is not let in: {opened:?}");
        };
        let registration = Registration {
            class: Class::SUBN_DIRECTED.0,
            version: sm::CLASS_VERSION,
            methods: 0,
            oui: 0,
            has_transfers: false,
        };
        let register = Message::Register {
            session,
            registration,
        };
        let registered = self.ask(client, &register);
        let Some(Message::Registered { agent }) = registered else {
            panic!("an honest program cannot register: {registered:?}");
        };
        Honest {
            client,
            session,
            agent,
        }
    }

    fn check(&mut self, at: usize) {
        let Honest { session, agent, .. } = self.honest[at];
        self.is_served(session, agent);
    }

    /// Checks that the port's own node answers with its identity.
    fn is_served(&mut self, session: u32, agent: u32) {
        let mut mad = [0; 256];
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SUBN_DIRECTED,
            class_version: sm::CLASS_VERSION,
            method: Method::GET,
            attribute: AttributeId::NODE_INFO,
            tid: TransactionId(0x77),
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        mad[28..32].copy_from_slice(&[0xff; 4]);
        let question = Message::Mad(MadMessage {
            agent,
            timeout_ms: 1000,
            lid: PERMISSIVE_LID,
            bytes: mad.to_vec(),
            ..MadMessage::default()
        });
        let answer = self.ask(session, &question);
        let Some(Message::Mad(answer)) = answer else {
            panic!("an honest program gets no answer: {answer:?}");
        };
        assert_eq!((answer.agent, answer.status), (agent, 0));
        assert_eq!(answer.bytes[64 + 2], 1, "its node is an adapter");
    }

    /// A new program is served, and leaves.
    fn visit(&mut self, node: &str) {
        let visitor = self.register(node);
        self.is_served(visitor.session, visitor.agent);
        self.host.disconnect(self.now, visitor.client);
        self.drain();
    }

    /// An authorised operator pulls cables and plugs them in again.
    fn operate(&mut self, script: &mut Script<'_>) {
        let message = a_message(script, self.operator).encode();
        // A port that does not exist is refused; the operator stays.
        let _refused = self.host.handle(self.now, self.operator, &message);
    }

    /// Sends a message, and takes the host's answer to that client.
    fn ask(&mut self, client: u32, message: &Message) -> Option<Message> {
        let said = self.host.handle(self.now, client, &message.encode());
        said.expect("it is a message");
        let mut got = None;
        while let Some((to, answer)) = self.host.poll_transmit() {
            if to == client {
                got = Some(answer);
            }
        }
        got
    }

    fn end(&mut self) {
        for (at, node) in NODES.into_iter().enumerate() {
            self.check(at);
            self.visit(node);
        }
        for client in std::mem::take(&mut self.clients) {
            self.host.disconnect(self.now, client);
        }
        for _ in 0..10_000 {
            let Some(due) = self.host.poll_timeout() else {
                break;
            };
            self.now = self.now.max(due);
            self.host.handle_timeout(self.now);
            self.drain();
            if self.now.as_nanos() > 3_600_000_000_000 {
                break;
            }
        }
        self.check(0);
        for honest in std::mem::take(&mut self.honest) {
            self.host.disconnect(self.now, honest.client);
        }
    }
}

/// A request or a datagram, mostly as programs send them.
fn a_message(script: &mut Script<'_>, other: u32) -> Message {
    let node = script
        .pick(&["a", "b", "c", "s", "", "x", "a,b,c"])
        .to_owned();
    let (adapter, port) = (script.below(3) as u8, script.below(3) as u8);
    match script.below(16) {
        0 => Message::Look { host: node },
        1 | 2 => Message::Open {
            host: node,
            adapter,
            port,
        },
        3 | 4 => Message::Register {
            session: if script.once_in(8) {
                script.u32()
            } else {
                other
            },
            registration: Registration {
                class: script.pick(&[0x81, 1, 3, 4, 7, 0x32, 0xff]),
                version: script.below(3) as u8,
                methods: u128::from(script.u16()) << (8 * script.below(15)),
                oui: 0,
                has_transfers: script.once_in(2),
            },
        },
        5 => Message::Unregister {
            session: other,
            agent: script.below(34) as u32,
        },
        6 => Message::Plug {
            node,
            port: script.below(6) as u8,
            is_in: script.once_in(2),
        },
        7 => Message::Attach {
            host: node,
            adapter,
            port,
        },
        8 => Message::Offer {
            set: script.u32(),
            clear: script.u32(),
        },
        9 => match script.below(4) {
            0 => Message::Leave,
            1 => Message::Count,
            2 => Message::ManagerFile {
                host: node,
                adapter,
                port,
            },
            _ => Message::PlugOwn {
                is_in: script.once_in(2),
            },
        },
        _ => Message::Mad(a_mad(script)),
    }
}

fn a_mad(script: &mut Script<'_>) -> MadMessage {
    let len = script.pick(&[256, 256, 256, 256, 24, 0, 64, 600, 2000]);
    let mut bytes = vec![0; len];
    let class = script.pick(&[0x81, 1, 3, 4, 7, 9, 0x32]);
    let header = [
        1,
        class,
        if matches!(class, 3 | 7) { 2 } else { 1 },
        script.pick(&[1, 2, 0x12, 0x81, 5, 3, 0x92]),
        0,
        0,
        script.below(66) as u8,
        script.below(66) as u8,
    ];
    let attribute = script.pick(&[
        0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x20, 0xff, 0x35, 0x38,
        0x31, 2, 3, 1,
    ]);
    for (to, from) in bytes.iter_mut().zip(header) {
        *to = from;
    }
    if let Some(place) = bytes.get_mut(17) {
        *place = attribute;
    }
    let start = script.pick(&[18, 24, 32, 64, 128]);
    let content = script.below(64);
    for (to, from) in bytes.iter_mut().skip(start).zip(script.take(content)) {
        *to = *from;
    }
    MadMessage {
        agent: script.below(4) as u32,
        status: 0,
        timeout_ms: script.pick(&[0, 1, 1000, u32::MAX]),
        retries: script.pick(&[0, 3, u32::MAX]),
        qpn: Qpn::new(script.below(3) as u32),
        lid: Lid(script.pick(&[0xffff, 0, 1, 2, 3, 0xc000, 0xbfff])),
        sl: script.byte(),
        path_bits: script.byte(),
        pkey_index: script.u16(),
        gid: script.once_in(3).then(|| Gid(script.array())),
        bytes,
        ..MadMessage::default()
    }
}
