use verbs_core::addr::Qpn;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, PERMISSIVE_LID, SmpHeader};
use verbs_core::mad::{AttributeId, Class, MadBytes, MadHeader, Method, TransactionId};

use crate::ipc::message::Registration;

use super::*;

const TWO: &str = "Switch 2 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\nHca 1 \"a\"\nHca 1 \"b\"\n";

struct World {
    host: Host,
    now: Instant,
    /// The client that has opened each session.
    owners: BTreeMap<u32, u32>,
}

impl World {
    fn new() -> Self {
        Self::with_limits(HostLimits::default())
    }

    fn with_limits(limits: HostLimits) -> Self {
        let topology = Topology::parse(TWO).expect("a topology");
        Self {
            host: Host::with_limits(topology, SubnetConfig::default(), limits),
            now: Instant::ZERO,
            owners: BTreeMap::new(),
        }
    }

    fn connect(&mut self) -> u32 {
        self.host.connect().expect("there is room")
    }

    fn say(&mut self, client: u32, message: &Message) -> Option<Message> {
        let bytes = message.encode();
        self.host
            .handle(self.now, client, &bytes)
            .expect("it is a message");
        self.heard(client)
    }

    fn heard(&mut self, client: u32) -> Option<Message> {
        let (to, message) = self.host.poll_transmit()?;
        assert_eq!(to, client);
        Some(message)
    }

    /// A session at the port of that adapter, opened by a new client.
    fn open(&mut self, node: &str) -> u32 {
        let client = self.connect();
        match self.say(client, &open(node)) {
            Some(Message::Opened { session }) => {
                self.owners.insert(session, client);
                session
            }
            other => panic!("not opened but {other:?}"),
        }
    }

    fn register(&mut self, session: u32, class: Class, methods: u128) -> Option<Message> {
        let client = self.owners.get(&session).copied().unwrap_or(session);
        self.register_by(client, session, class, methods)
    }

    fn register_by(
        &mut self,
        client: u32,
        session: u32,
        class: Class,
        methods: u128,
    ) -> Option<Message> {
        let registration = Registration {
            class: class.0,
            version: 1,
            methods,
            ..Registration::default()
        };
        let question = Message::Register {
            session,
            registration,
        };
        self.say(client, &question)
    }
}

fn open(node: &str) -> Message {
    Message::Open {
        host: node.into(),
        adapter: 0,
        port: 1,
    }
}

fn question(attribute: AttributeId, path: &[u8], tid: u64) -> MadBytes {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: 1,
        class: Class::SUBN_DIRECTED,
        class_version: 1,
        method: Method::GET,
        tid: TransactionId(tid),
        attribute,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    SmpHeader::directed(0).put(&mut mad);
    sm::Hops::put_path(&mut mad, path).expect("a short path");
    mad
}

fn send(mad: &MadBytes, timeout_ms: u32) -> Message {
    Message::Mad(MadMessage {
        agent: 0,
        timeout_ms,
        retries: 1,
        lid: PERMISSIVE_LID,
        qpn: Qpn::new(0),
        bytes: mad.to_vec(),
        ..MadMessage::default()
    })
}

fn heard_mad(message: Option<Message>) -> MadMessage {
    match message {
        Some(Message::Mad(mad)) => mad,
        other => panic!("no datagram but {other:?}"),
    }
}

/// Goal: a client's request is answered under its own transaction id; an unanswered one is returned after its
/// retries, and not before. Method: a node that exists, and a hop that does not.
#[test]
fn questions_are_answered_or_come_back() {
    let mut world = World::new();
    let client = world.open("a");
    let registered = world.register(client, Class::SUBN_DIRECTED, 0);
    assert_eq!(registered, Some(Message::Registered { agent: 0 }));
    let asked = question(
        AttributeId::NODE_DESCRIPTION,
        &[1, 2],
        0xdead_beef_0000_0007,
    );
    let got = heard_mad(world.say(client, &send(&asked, 100)));
    let mad: MadBytes = got.bytes.try_into().expect("256 bytes");
    assert_eq!((got.status, got.agent), (0, 0));
    assert_eq!(header_of(&mad).tid(), TransactionId(0xdead_beef_0000_0007));
    assert_eq!(&sm::attribute(&mad)[..2], b"b\0");

    let lost = question(AttributeId::NODE_INFO, &[1, 2, 1], 9);
    assert_eq!(world.say(client, &send(&lost, 100)), None);
    let first = world.host.poll_timeout().expect("it waits");
    assert_eq!(first.as_nanos(), 100_000_000);
    world.now = first;
    world.host.handle_timeout(first);
    assert_eq!(world.heard(client), None, "it is asked again");
    world.now = world.host.poll_timeout().expect("it waits");
    world.host.handle_timeout(world.now);
    let got = heard_mad(world.heard(client));
    assert_eq!((got.status, got.bytes.len()), (110, 24));
    assert_eq!(got.bytes[..], lost[..24]);
    assert_eq!(world.host.poll_timeout(), None);
}

/// Goal: a client's registration is its own until it disconnects, and requests for it arrive. Method: a manager
/// at b, asked for its information from a; another client that wants the same registration.
#[test]
fn clients_get_what_they_registered_for() {
    let mut world = World::new();
    let (asker, manager) = (world.open("a"), world.open("b"));
    world.register(asker, Class::SUBN_DIRECTED, 0);
    let wanted = 1 << 1 | 1 << 2;
    let registered = world.register(manager, Class::SUBN_DIRECTED, wanted);
    assert_eq!(registered, Some(Message::Registered { agent: 0 }));
    let rival = world.open("b");
    let refused = world.register(rival, Class::SUBN_DIRECTED, 1 << 2);
    assert_eq!(refused, Some(Message::Refused(Refusal::Taken)));

    let asked = question(AttributeId::SM_INFO, &[1, 2], 5);
    world
        .host
        .handle(world.now, asker, &send(&asked, 1000).encode())
        .expect("a message");
    let got = heard_mad(world.heard(manager));
    let mut reply: MadBytes = got.bytes.clone().try_into().expect("256 bytes");
    assert_eq!(header_of(&reply).attribute(), AttributeId::SM_INFO);
    let header = MadHeader::parse(header_of(&reply));
    emit_header(&header.response(sm::DIRECTION), &mut reply);
    sm::put_attribute(&mut reply, &[7; 21]);
    let answer = Message::Mad(MadMessage {
        timeout_ms: 0,
        bytes: reply.to_vec(),
        ..got
    });
    world
        .host
        .handle(world.now, manager, &answer.encode())
        .expect("a message");
    let got = heard_mad(world.heard(asker));
    assert_eq!((got.status, got.bytes[64]), (0, 7));

    // A registration ends with its client, and with its session.
    world.host.disconnect(world.now, world.owners[&manager]);
    assert_eq!(world.host.poll_closed(), Some(manager));
    let registered = world.register(rival, Class::SUBN_DIRECTED, wanted);
    assert_eq!(registered, Some(Message::Registered { agent: 0 }));
    world.host.disconnect(world.now, rival);
    assert_eq!(
        world.say(asker, &send(&asked, 1000)),
        None,
        "nobody is there"
    );
    assert_eq!(world.host.counters().unclaimed, 1);
}

/// Goal: a host sees its adapters, and malformed requests are refused without harm. Method: each request, with
/// something that does not exist.
#[test]
fn adapters_are_seen_and_nonsense_is_refused() {
    let mut world = World::new();
    let client = world.connect();
    let look = |host: &str| Message::Look { host: host.into() };
    let Some(Message::Adapters(adapters)) = world.say(client, &look("b, s")) else {
        panic!("two nodes");
    };
    assert_eq!((adapters[0].name.as_str(), adapters[1].node_type), ("b", 2));
    assert_eq!(
        (adapters[0].ports[0].state, adapters[0].ports[0].rate_mbps),
        (2, 40_000)
    );
    assert_eq!(adapters[1].ports[0].number, 0, "a switch has its port 0");
    let Some(Message::Adapters(first)) = world.say(client, &look("")) else {
        panic!("the first adapter");
    };
    assert_eq!(first[0].name, "a");

    let missing = Some(Message::Refused(Refusal::Missing));
    assert_eq!(world.say(client, &look("c")), missing);
    for (host, adapter, port) in [("a", 1, 1), ("a", 0, 2), ("a", 0, 0), ("s", 0, 1)] {
        let open = Message::Open {
            host: host.into(),
            adapter,
            port,
        };
        assert_eq!(world.say(client, &open), missing, "{open:?}");
    }
    assert_eq!(world.register(client, Class::SA, 0), missing);
    let unregister = Message::Unregister {
        session: client,
        agent: 1,
    };
    assert_eq!(world.say(client, &unregister), missing);
    let plug = |node: &str, port| Message::Plug {
        node: node.into(),
        port,
        is_in: false,
    };
    let operator = world.host.connect_operator().expect("there is room");
    assert_eq!(world.say(operator, &plug("s", 3)), missing);
    assert_eq!(world.say(operator, &plug("s", 2)), Some(Message::Done));
    let counts = Message::Counts {
        nodes: 3,
        linked: 2,
        active: 0,
    };
    assert_eq!(world.say(client, &Message::Count), Some(counts));
    let invalid = Some(Message::Refused(Refusal::Invalid));
    assert_eq!(world.say(client, &Message::Done), invalid);
    assert!(world.host.handle(world.now, client, &[99]).is_err());
    // A datagram over a connection that has opened nothing is dropped.
    let mad = question(AttributeId::NODE_INFO, &[], 1);
    assert_eq!(world.say(client, &send(&mad, 100)), None);
    let ask = Message::ManagerFile {
        host: "b".into(),
        adapter: 0,
        port: 1,
    };
    assert_eq!(world.say(client, &ask), None);
    let (asker, at) = world.host.poll_file().expect("a question");
    assert_eq!((asker, at.port), (client, 1));
    world.host.answer_file(client, Some("a file"));
    assert_eq!(world.heard(client), Some(Message::Path("a file".into())));
}

mod shares;
