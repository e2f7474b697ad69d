//! The daemon of a host: hostile programs join it, send anything, never read, and die.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use verbs_core::host::channel::FEATURE;
use verbs_core::host::command::{decode_result, encode_call};
use verbs_core::host::list::Cursor;
use verbs_core::host::message::{
    Hello, MESSAGE_MAX, Packets, PortNews, SOCKETS, Service, VERSION, VERSION_LEAST,
};
use verbs_core::host::{Block, Handle, Message};
use verbs_core::testing::Null;
use verbs_core::time::Instant;
use verbs_core::{Mtu, Qpn};
use verbs_host::{ClientId, Daemon, Ended, Session, User};

use crate::Script;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const AWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The most hostile clients at a time.
const CLIENTS: usize = 12;

/// The most bytes that wait for hostile clients: for each a MiB of messages, 4 MiB of packets and a datagram.
const WAITING_MAX: usize = CLIENTS * ((5 << 20) + MESSAGE_MAX);

/// Bytes of packets of clients that have ended.
const LAST_WORDS_MAX: usize = 1 << 20;

/// Whatever clients send, an honest one gets its packets, is informed of the blocks that no longer exist, and is
/// welcomed again at the end; memory is bounded, and nothing is left of clients that have ended.
pub(crate) fn daemon(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let mut world = World::new();
    while let Some(what) = script.step(600) {
        world.step(what, &mut script);
        world.check();
    }
    world.end();
    script.steps()
}

struct World {
    daemon: Daemon,
    now: Instant,
    hostile: Vec<ClientId>,
    sessions: BTreeMap<ClientId, Session>,
    honest: (ClientId, Block),
    /// Messages that hostile clients may send again.
    heard: Vec<Vec<u8>>,
}

fn hello() -> Vec<u8> {
    let hello = Hello {
        lowest: VERSION_LEAST,
        highest: VERSION,
        features: FEATURE | SOCKETS,
        addresses: Vec::new(),
        name: "program".into(),
        token: [0; 16],
        blocks: Vec::new(),
    };
    Message::Hello(hello).encode()
}

/// A packet to a queue pair.
fn packet(qpn: Qpn, len: usize) -> Vec<u8> {
    let [_, a, b, c] = qpn.value().to_be_bytes();
    let mut packet = vec![4, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 0];
    packet.resize(16 + len, 0x5a);
    packet
}

fn burst(dst: IpAddr, bytes: &[u8], segment: u16) -> Packets<'_> {
    Packets {
        src: HERE,
        dst,
        tclass: 0,
        hop_limit: 64,
        sport: 4791,
        ident: Some(0),
        segment,
        bytes,
    }
}

impl World {
    fn new() -> Self {
        let port = PortNews {
            addresses: vec![HERE],
            mtu: Mtu::B4096,
            is_up: true,
        };
        let mut daemon = Daemon::new(port, 1);
        let now = Instant::from_nanos(1);
        let honest = welcome(&mut daemon, now);
        Self {
            daemon,
            now,
            hostile: Vec::new(),
            sessions: BTreeMap::new(),
            honest,
            heard: Vec::new(),
        }
    }

    fn step(&mut self, what: u8, script: &mut Script<'_>) {
        match what % 14 {
            0 => self.join(script.once_in(8)),
            1 => self.leave(script),
            2 => self.say_any(script),
            3 => self.say_again(script),
            4 => self.packets(script),
            5 => self.management(script),
            6 => self.command(script),
            7 => self.listen(script),
            8 => {
                let tag = script.u64();
                self.say(script, &Message::Lease(tag).encode());
            }
            9 => self.read(script),
            11 => self.channel(script),
            13 => self.list(script),
            10 => {
                self.now += Duration::from_millis(script.u16().into());
                self.daemon.expire(self.now);
            }
            _ => self.network(script),
        }
        self.drain();
    }

    fn join(&mut self, is_silent: bool) {
        if self.hostile.len() == CLIENTS {
            return;
        }
        let id = self.daemon.enter(User { uid: 1, pid: 1 });
        if !is_silent {
            self.daemon.hear(self.now, id, &hello());
        }
        self.hostile.push(id);
        self.sessions
            .insert(id, Session::new(Arc::new(Null::default()), id));
    }

    fn speaker(&self, script: &mut Script<'_>) -> Option<ClientId> {
        (!self.hostile.is_empty()).then(|| script.pick(&self.hostile))
    }

    fn say(&mut self, script: &mut Script<'_>, bytes: &[u8]) {
        if let Some(id) = self.speaker(script) {
            self.daemon.hear(self.now, id, bytes);
        }
    }

    fn leave(&mut self, script: &mut Script<'_>) {
        if let Some(id) = self.speaker(script) {
            self.daemon.leave(self.now, id, Ended::Died);
            self.forget(id);
        }
    }

    fn forget(&mut self, id: ClientId) {
        self.hostile.retain(|&other| other != id);
        if let Some(session) = self.sessions.remove(&id) {
            session.end(Arc::new(|_, result| assert_eq!(result, Ok(()))));
            assert_eq!(session.objects(), 0);
        }
    }

    /// Asks for a list, from anywhere, once or without end.
    fn list(&mut self, script: &mut Script<'_>) {
        let from = Cursor {
            client: script.u32(),
            connections: script.u32(),
        };
        let message = Message::List(script.u64(), from).encode();
        let times = if script.once_in(16) { 20_000 } else { 1 };
        if let Some(id) = self.speaker(script) {
            for _ in 0..times {
                self.daemon.hear(self.now, id, &message);
            }
        }
    }

    /// One that has just connected reads the whole list, whatever there is.
    fn list_all(&mut self) {
        let asks = self.daemon.enter(User { uid: 1, pid: 1 });
        let (mut from, mut clients) = (Some(Cursor::default()), BTreeSet::new());
        while let Some(cursor) = from {
            let question = Message::List(3, cursor).encode();
            self.daemon.hear(self.now, asks, &question);
            let answer = self.daemon.next_for(asks).map(<[u8]>::to_vec);
            self.daemon.sent(asks);
            let answer = answer.expect("an answer");
            let Ok(Message::Listing(3, piece)) = Message::decode(&answer) else {
                panic!("a piece");
            };
            from = piece.as_ref().and_then(|piece| piece.next);
            assert!(from.is_none_or(|next| next > cursor), "it goes on");
            clients.extend(piece.map(|piece| piece.client));
        }
        self.daemon.leave(self.now, asks, Ended::Closed);
        assert_eq!(clients.len(), self.daemon.clients().len());
    }

    /// Bytes of the script as a message, with a header that is right or not.
    fn say_any(&mut self, script: &mut Script<'_>) {
        let kind = script.byte() % 26;
        let len = script.below(64);
        let body = script.take(len).to_vec();
        let mut bytes = vec![kind, 0, 0, 0];
        let told = if script.once_in(8) {
            script.u32()
        } else {
            body.len() as u32
        };
        bytes.extend(told.to_le_bytes());
        bytes.extend(script.u64().to_le_bytes());
        bytes.extend(body);
        self.heard.push(bytes.clone());
        self.heard.truncate(16);
        self.say(script, &bytes);
    }

    fn say_again(&mut self, script: &mut Script<'_>) {
        if self.heard.is_empty() {
            return;
        }
        let at = script.below(self.heard.len());
        let mut bytes = self.heard[at].clone();
        if !bytes.is_empty() {
            let at = script.below(bytes.len());
            bytes[at] ^= script.byte();
        }
        self.say(script, &bytes);
    }

    /// Packets to any client, including the honest one.
    fn packets(&mut self, script: &mut Script<'_>) {
        let qpn = match script.once_in(4) {
            true => Qpn::new(self.honest.1.qpns().start + u32::from(script.byte())),
            false => Qpn::new(script.u32()),
        };
        let bytes = packet(qpn, script.below(200) * 20);
        let times = if script.once_in(16) { 2000 } else { 1 };
        let dst = if script.once_in(3) { AWAY } else { HERE };
        let segment = if script.once_in(4) {
            script.u16().max(1)
        } else {
            bytes.len() as u16
        };
        let packets = burst(dst, &bytes, segment);
        // A third of those for other hosts come to the client's socket instead.
        let message = match dst == AWAY && bytes.len().is_multiple_of(3) {
            true => Message::Arrived(Packets {
                src: AWAY,
                dst: HERE,
                ..packets
            }),
            false => Message::Packets(packets),
        };
        let message = message.encode();
        for _ in 0..times {
            self.say(script, &message);
        }
    }

    /// A datagram for queue pair 1.
    fn management(&mut self, script: &mut Script<'_>) {
        let mut bytes = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend([0x80, 1, 0, 0, 0, 0, 0, 1]);
        // Of the connection manager, with any of its messages.
        bytes.extend([1, 7, 2, 3, 0, 0, 0, 0]);
        bytes.extend(script.u64().to_be_bytes());
        bytes.extend([0, 0x10 + script.byte() % 10, 0, 0, 0, 0, 0, 0]);
        // Few ids, so that they collide.
        bytes.extend([0, 0, 0, script.byte() % 4, 0, 0, 0, script.byte() % 4]);
        bytes.extend(script.take(40));
        bytes.resize(280, 0);
        match script.once_in(3) {
            true => {
                let packets = Packets {
                    src: AWAY,
                    ident: None,
                    ..burst(HERE, &bytes, 280)
                };
                self.daemon.arrive(self.now, &packets);
            }
            false => {
                let dst = if script.once_in(2) { AWAY } else { HERE };
                let message = Message::Packets(burst(dst, &bytes, 280)).encode();
                self.say(script, &message);
            }
        }
    }

    /// A verb: bytes of the script after a valid number.
    fn command(&mut self, script: &mut Script<'_>) {
        let Some(id) = self.speaker(script) else {
            return;
        };
        let kind = u16::from(script.byte() % 60);
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0, 0]);
        match script.once_in(2) {
            true => bytes.extend(script.array::<8>()),
            false => {
                let open = verbs_core::host::command::Call::OpenDevice {};
                bytes.extend(&encode_call(Handle::DEVICE, &open)[4..]);
            }
        }
        let len = script.below(48);
        bytes.extend(script.take(len));
        let times = if script.once_in(16) { 400 } else { 1 };
        for tag in 0..times {
            self.daemon
                .hear(self.now, id, &Message::Command(tag, &bytes).encode());
        }
    }

    fn listen(&mut self, script: &mut Script<'_>) {
        let service = Service {
            id: u64::from(script.byte() % 4),
            addr: script.once_in(2).then_some(HERE),
        };
        let message = match script.once_in(4) {
            true => Message::Unlisten(service).encode(),
            false => Message::Listen(1, service).encode(),
        };
        self.say(script, &message);
    }

    /// A channel between any two, and what is said of one.
    fn channel(&mut self, script: &mut Script<'_>) {
        let block = match script.once_in(4) {
            true => self.honest.1.number(),
            // Those of clients follow it.
            false => self.honest.1.number() % 4000 + u16::from(script.byte() % 16),
        };
        let message = match script.below(4) {
            0 | 1 => Message::OpenChannel(block),
            2 => Message::ChangedOver(u32::from(script.byte() % 8)),
            _ => Message::Broken(block),
        };
        self.say(script, &message.encode());
    }

    fn read(&mut self, script: &mut Script<'_>) {
        let Some(id) = self.speaker(script) else {
            return;
        };
        while let Some(bytes) = self.daemon.next_for(id) {
            assert!(
                Message::decode(bytes).is_ok(),
                "what the daemon says can be read"
            );
            self.daemon.sent(id);
        }
    }

    /// The network takes what waits for it.
    fn network(&mut self, script: &mut Script<'_>) {
        for _ in 0..script.byte() {
            let Some(packets) = self.daemon.next_outward() else {
                break;
            };
            assert_eq!((packets.src, packets.dst), (HERE, AWAY));
            self.daemon.outward_sent();
        }
    }

    /// Carries out the daemon's requests.
    fn drain(&mut self) {
        while let Some((id, tag, bytes)) = self.daemon.poll_command() {
            let (sender, answers) = std::sync::mpsc::channel();
            if let Some(session) = self.sessions.get(&id) {
                let reply = move |bytes| drop(sender.send(bytes));
                session.command(&bytes, Box::new(reply));
            }
            // A request that waits for an event has no answer now.
            if let Ok(bytes) = answers.try_recv() {
                assert!(decode_result(&bytes).is_ok(), "a result can be read");
                self.daemon.answer(id, tag, &bytes);
            }
        }
        while let Some(channel) = self.daemon.poll_channel() {
            let _is_needed = self
                .daemon
                .channel_made(channel.number, channel.number % 8 != 0);
        }
        while let Some((id, _)) = self.daemon.poll_moved() {
            self.daemon.give_socket(id, HERE);
        }
        while self.daemon.poll_group().is_some() {}
        while self.daemon.poll_mad().is_some() {}
        while self.daemon.poll_ready().is_some() {}
        while let Some((id, why)) = self.daemon.poll_ended() {
            assert_ne!(id, self.honest.0, "{why}");
            self.daemon.leave(self.now, id, why);
            self.forget(id);
        }
    }

    fn check(&mut self) {
        let bytes = packet(Qpn::new(self.honest.1.qpns().end - 1), 7);
        // It reads what has come: behind 4 MiB that wait, packets are lost.
        self.honest_reads(&bytes);
        self.daemon
            .arrive(self.now, &burst(HERE, &bytes, bytes.len() as u16));
        assert!(self.honest_reads(&bytes), "the honest one is served");
        assert!(self.daemon.waiting() <= WAITING_MAX);
        self.list_all();
    }

    /// The client that follows the rules reads what waits for it; whether that packet is among it.
    fn honest_reads(&mut self, packet: &[u8]) -> bool {
        let (honest, block) = self.honest;
        let mut came = false;
        while let Some(datagram) = self.daemon.next_for(honest) {
            match Message::decode(datagram) {
                Ok(Message::Packets(packets)) => came |= packets.bytes == packet,
                Ok(Message::Gone(blocks)) => assert!(!blocks.contains(&block.number())),
                // It shares memory with every client that asks.
                Ok(Message::Channel(_) | Message::ChangedOver(_) | Message::Socket(_)) => {}
                other => panic!("{other:?}"),
            }
            self.daemon.sent(honest);
        }
        came
    }

    fn end(&mut self) {
        for id in std::mem::take(&mut self.hostile) {
            self.daemon.leave(self.now, id, Ended::Died);
            self.forget(id);
        }
        self.drain();
        self.check();
        assert_eq!(self.daemon.clients().len(), 1);
        // What those have sent that have ended still leaves, however many they were: as much as one client may have.
        let mut left = 0;
        while let Some(packets) = self.daemon.next_outward() {
            left += packets.bytes.len();
            self.daemon.outward_sent();
        }
        assert!(left <= LAST_WORDS_MAX, "{left} bytes");
        let rested = self.now + Duration::from_secs(121);
        assert_eq!(self.daemon.block_counts(rested), (1, 0));
        welcome(&mut self.daemon, rested);
    }
}

/// A client that follows the rules, and its block.
fn welcome(daemon: &mut Daemon, now: Instant) -> (ClientId, Block) {
    let id = daemon.enter(User { uid: 1, pid: 1 });
    daemon.hear(now, id, &hello());
    let told = daemon.next_for(id).map(<[u8]>::to_vec).expect("an answer");
    daemon.sent(id);
    match Message::decode(&told) {
        Ok(Message::Welcome(welcome)) => (id, Block::new(welcome.block).expect("a block")),
        other => panic!("{other:?}"),
    }
}
