//! Goal: connections, resolutions and questions to the subnet administrator share one port's service
//! for management datagrams, and none gets the other's. Method: two ports, each with the bookkeeping
//! of such a service ([`Agents`]) and a connection manager as one of its agents; what a device would
//! carry is carried by hand.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use std::net::Ipv4Addr;

use verbs_cm::wire::{self, PortSpace, ServiceId};
use verbs_cm::{Accept, Cm, Config, Connect, Event, Listen, Port, Route};
use verbs_core::addr::{Gid, Guid, Lid, Mtu, Qpn};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sa::{self, PathMask, PathRecord, PathRecordView, SaHeader};
use verbs_core::mad::{
    Address, AgentConfig, AgentId, Agents, AttributeId, Bits, Class, Delivery, MadBytes, MadHeader,
    Method, Retry, Status, TimeCode,
};
use verbs_core::time::Instant;
use verbs_core::{Av, LinkLayer};

const SERVICE: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7174);

struct Node {
    agents: Agents,
    cm_agent: AgentId,
    cm: Cm,
    events: Vec<Event>,
}

fn gid(host: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, host))
}

fn port(host: u8) -> Port {
    Port {
        number: 1,
        ca_guid: Guid(host.into()),
        link_layer: LinkLayer::Ethernet,
        lid: Lid(0),
        gids: vec![(0, gid(host))],
        mtu: Mtu::B1024,
        ack_delay: TimeCode::new(15),
        migrates: false,
    }
}

impl Node {
    fn new(host: u8) -> Self {
        let mut agents = Agents::new(AgentConfig::default(), 0x100 * u32::from(host));
        let cm_agent = agents
            .register(Class::CM, wire::CLASS_VERSION, &[Method::SEND])
            .unwrap();
        let again = agents.register(Class::CM, wire::CLASS_VERSION, &[Method::SEND]);
        assert!(again.is_err(), "the class has one owner");
        let cm = Cm::new(
            Config::default(),
            port(host),
            u32::from(host),
            u64::from(host),
        );
        Self {
            agents,
            cm_agent,
            cm,
            events: Vec::new(),
        }
    }

    /// A received datagram, from the host with that number.
    fn receive(&mut self, from: u8, mad: &MadBytes) -> Option<Delivery> {
        let from = Address::gsi(Av::to_gid(1, 0, gid(from)));
        self.agents.handle(Instant::ZERO, from, mad);
        match self.agents.poll_delivery()? {
            Delivery::Request { agent, from, mad } if agent == self.cm_agent => {
                self.cm.handle(Instant::ZERO, from, &mad);
                None
            }
            other => Some(other),
        }
    }

    /// What is to be sent: the service's datagrams and the connection manager's.
    fn send(&mut self) -> Vec<MadBytes> {
        while let Some(change) = self.cm.poll_qp_change() {
            self.cm.qp_modified(Instant::ZERO, change.conn, Ok(()));
        }
        self.events
            .extend(std::iter::from_fn(|| self.cm.poll_event()));
        let service = std::iter::from_fn(|| self.agents.poll_transmit().map(|(_, mad)| mad));
        let service: Vec<_> = service.collect();
        let cm = std::iter::from_fn(|| self.cm.poll_transmit().map(|(_, mad)| mad));
        service.into_iter().chain(cm).collect()
    }
}

/// A question to the subnet administrator for a path.
fn path_question() -> MadBytes {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: Class::SA,
        class_version: sa::CLASS_VERSION,
        method: Method::GET,
        attribute: AttributeId::PATH_RECORD,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    let mask = (PathMask::SGID | PathMask::DGID).bits();
    SaHeader {
        component_mask: mask,
        ..SaHeader::default()
    }
    .put(&mut mad);
    let wish = PathRecord {
        sgid: gid(1),
        dgid: gid(2),
        ..PathRecord::default()
    };
    let mut bytes = [0; PathRecord::LEN];
    wish.emit(&mut bytes);
    sa::put_record(&mut mad, &bytes);
    mad
}

/// What an administrator answers.
fn path_answer(question: &MadBytes) -> MadBytes {
    let mut answer = *question;
    let header = MadHeader::parse(header_of(question));
    emit_header(&header.response(Status::OK), &mut answer);
    let asked = PathRecord::parse(PathRecordView::new(sa::record(question)).unwrap());
    let found = PathRecord {
        mtu: Bits::truncated(3),
        hop_limit: 64,
        packet_lifetime: Bits::truncated(16),
        ..asked
    };
    let mut bytes = [0; PathRecord::LEN];
    found.emit(&mut bytes);
    sa::put_record(&mut answer, &bytes);
    answer
}

#[test]
fn a_path_is_asked_for_and_a_connection_made_along_it() {
    let (mut client, mut server) = (Node::new(1), Node::new(2));
    let sa_client = client
        .agents
        .register(Class::SA, sa::CLASS_VERSION, &[])
        .unwrap();
    let sa_methods = [Method::GET];
    let sa_server = server
        .agents
        .register(Class::SA, sa::CLASS_VERSION, &sa_methods)
        .unwrap();
    server.cm.listen(Listen::new(SERVICE)).unwrap();

    let administrator = Address::gsi(Av::to_gid(1, 0, gid(2)));
    let retry = Retry::default();
    let question = path_question();
    let asked = client
        .agents
        .request(Instant::ZERO, sa_client, administrator, &question, retry);
    let asked = asked.unwrap();
    let Some(Delivery::Request { agent, mad, .. }) = server.receive(1, &client.send()[0]) else {
        panic!("nobody got the question");
    };
    assert_eq!(agent, sa_server);
    let Some(Delivery::Response { tid, mad, .. }) = client.receive(2, &path_answer(&mad)) else {
        panic!("nobody got the answer");
    };
    assert_eq!(tid, asked);
    let path = PathRecord::parse(PathRecordView::new(sa::record(&mad)).unwrap());

    let route = Route::from_record(&port(1), &path, 0).unwrap();
    client
        .cm
        .connect(Instant::ZERO, Connect::new(SERVICE, Qpn::new(5), route))
        .unwrap();
    for _ in 0..4 {
        for mad in client.send() {
            assert_eq!(server.receive(1, &mad), None);
        }
        for mad in server.send() {
            assert_eq!(client.receive(2, &mad), None);
        }
        if let Some(Event::ConnectRequest { conn, .. }) = server.events.pop() {
            server
                .cm
                .accept(Instant::ZERO, conn, &Accept::default())
                .unwrap();
        }
    }
    assert!(
        matches!(client.events[..], [Event::Established { .. }]),
        "{:?}",
        client.events
    );
    assert_eq!(
        (client.agents.pending(), client.agents.counters().unclaimed),
        (0, 0)
    );
}
