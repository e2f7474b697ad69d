//! A daemon, and the messages that its clients send and read.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use verbs_cm::wire::{CommId, Message as CmMessage, PortSpace, Rep, Req, Rtu, ServiceId};
use verbs_core::host::message::{
    Hello, No, Packets, PortNews, Service, Token, VERSION, VERSION_LEAST,
};
use verbs_core::host::{Block, Message};
use verbs_core::mad::TransactionId;
use verbs_core::time::Instant;
use verbs_core::{Mtu, Qpn};
use verbs_host::{ClientId, Daemon, Ended, User};

/// The port's address.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));

/// Of a namespace of processes that the daemon does not see.
pub(crate) const USER: User = User { uid: 1, pid: 0 };

pub(crate) struct Bed {
    pub(crate) daemon: Daemon,
    pub(crate) now: Instant,
}

/// A client, and its first block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) block: Block,
    pub(crate) token: Token,
}

pub(crate) fn hello(lowest: u16, highest: u16) -> Message<'static> {
    hello_again(lowest, highest, [0; 16], &[])
}

/// The first message of a client that has blocks of another daemon.
pub(crate) fn hello_again(
    lowest: u16,
    highest: u16,
    token: Token,
    blocks: &[u16],
) -> Message<'static> {
    Message::Hello(Hello {
        lowest,
        highest,
        token,
        blocks: blocks.to_vec(),
        ..first_words()
    })
}

/// What a client says first that knows no features.
pub(crate) fn first_words() -> Hello {
    Hello {
        lowest: VERSION_LEAST,
        highest: VERSION,
        features: 0,
        addresses: vec![HERE],
        name: "test".into(),
        token: [0; 16],
        blocks: Vec::new(),
    }
}

/// A packet of RC to that queue pair, its ICRC left out.
pub(crate) fn packet(qpn: Qpn, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = qpn.value().to_be_bytes();
    let mut packet = vec![4, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 0];
    packet.extend(payload);
    packet.extend([0; 4]);
    packet
}

/// A message of the connection manager as a packet.
pub(crate) fn cm_packet(message: &CmMessage) -> Vec<u8> {
    let mut packet = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
    packet.extend([0x80, 1, 0, 0, 0, 0, 0, 1]);
    packet.extend(message.emit(TransactionId::new(1, 1)));
    packet.extend([0; 4]);
    packet
}

pub(crate) fn service_of(port: u16) -> Service {
    Service {
        id: ServiceId::rdma_cm(PortSpace::Tcp, port).0,
        addr: None,
    }
}

pub(crate) fn req(local_id: CommId, port: u16, qpn: Qpn) -> CmMessage {
    CmMessage::Req(Req {
        local_id,
        service_id: ServiceId::rdma_cm(PortSpace::Tcp, port),
        qpn,
        ..Req::default()
    })
}

pub(crate) fn rep(local_id: CommId, remote_id: CommId, qpn: Qpn) -> CmMessage {
    CmMessage::Rep(Rep {
        local_id,
        remote_id,
        qpn,
        ..Rep::default()
    })
}

pub(crate) fn rtu(local_id: CommId, remote_id: CommId) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_id,
        remote_id,
        ..Rtu::default()
    })
}

pub(crate) fn burst(dst: IpAddr, segment: u16, bytes: &[u8]) -> Packets<'_> {
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

impl Bed {
    pub(crate) fn new() -> Self {
        Self::of(7)
    }

    /// With a daemon of that seed.
    pub(crate) fn of(seed: u64) -> Self {
        let port = PortNews {
            addresses: vec![HERE],
            mtu: Mtu::B4096,
            is_up: true,
        };
        Self {
            daemon: Daemon::new(port, seed),
            now: Instant::from_nanos(1),
        }
    }

    /// One more client.
    pub(crate) fn join(&mut self) -> Client {
        self.join_as(USER, &hello(VERSION, VERSION))
            .expect("it is welcome")
    }

    /// One of that user, with that first message.
    pub(crate) fn join_as(&mut self, user: User, hello: &Message<'_>) -> Result<Client, No> {
        let id = self.daemon.enter(user);
        self.daemon.hear(self.now, id, &hello.encode());
        let welcome = match &self.told_of(id)[..] {
            [Message::Welcome(welcome)] => welcome.clone(),
            [Message::No(no)] => {
                assert_eq!(self.daemon.poll_ended(), Some((id, Ended::Refused(*no))));
                self.daemon.leave(self.now, id, Ended::Refused(*no));
                return Err(*no);
            }
            told => panic!("{told:?}"),
        };
        assert_eq!(welcome.client, id.number());
        let block = Block::new(welcome.block).expect("a block");
        let token = welcome.token;
        Ok(Client { id, block, token })
    }

    pub(crate) fn is_there(&self, client: Client) -> bool {
        self.daemon.is_member(client.id)
    }

    pub(crate) fn say(&mut self, client: Client, message: &Message<'_>) {
        self.say_bytes(client, &message.encode());
    }

    pub(crate) fn say_bytes(&mut self, client: Client, bytes: &[u8]) {
        self.daemon.hear(self.now, client.id, bytes);
    }

    pub(crate) fn send(&mut self, client: Client, dst: IpAddr, packet: &[u8]) {
        self.send_burst(client, dst, packet.len() as u16, packet);
    }

    pub(crate) fn send_burst(&mut self, client: Client, dst: IpAddr, segment: u16, bytes: &[u8]) {
        self.say(client, &Message::Packets(burst(dst, segment, bytes)));
    }

    pub(crate) fn send_cm(&mut self, client: Client, dst: IpAddr, message: &CmMessage) {
        self.send(client, dst, &cm_packet(message));
    }

    /// A packet of the network.
    pub(crate) fn arrive(&mut self, src: IpAddr, packet: &[u8]) {
        self.arrive_at(src, HERE, packet);
    }

    pub(crate) fn arrive_at(&mut self, src: IpAddr, dst: IpAddr, packet: &[u8]) {
        let packets = Packets {
            src,
            ident: None,
            ..burst(dst, packet.len() as u16, packet)
        };
        self.daemon.arrive(self.now, &packets);
    }

    pub(crate) fn arrive_cm(&mut self, src: IpAddr, message: &CmMessage) {
        self.arrive(src, &cm_packet(message));
    }

    /// Ends that only neighbours have heard of are told to the others, which may be so late where there are 250.
    pub(crate) fn others_hear(&mut self) {
        self.now += Duration::from_millis(250);
        self.daemon.expire(self.now);
    }

    /// All messages that wait for a client.
    pub(crate) fn told(&mut self, client: Client) -> Vec<Message<'static>> {
        self.told_of(client.id)
    }

    pub(crate) fn told_of(&mut self, id: ClientId) -> Vec<Message<'static>> {
        let mut told = Vec::new();
        while let Some(bytes) = self.daemon.next_for(id) {
            let bytes: &'static [u8] = bytes.to_vec().leak();
            told.push(Message::decode(bytes).expect("a message"));
            self.daemon.sent(id);
        }
        told
    }

    /// The packets that wait for a client, with their identifications.
    pub(crate) fn packets(&mut self, client: Client) -> Vec<(Option<u16>, Vec<u8>)> {
        let mut got = Vec::new();
        for message in self.told(client) {
            let Message::Packets(packets) = message else {
                panic!("{message:?}");
            };
            for (k, packet) in (0..).zip(packets.packets()) {
                got.push((packets.ident.map(|ident| ident + k), packet.to_vec()));
            }
        }
        got
    }

    /// The messages of the connection manager among them.
    pub(crate) fn messages(&mut self, client: Client) -> Vec<CmMessage> {
        let packets = self.packets(client);
        let mads = packets
            .iter()
            .filter_map(|(_, packet)| packet[20..].first_chunk());
        mads.map(|mad| CmMessage::parse(mad).expect("a message").1)
            .collect()
    }
}
