//! A simulated subnet against recorded requests of OpenSM to another subnet: see `data/opensm`.

#![cfg(not(verbs_loom))]

use hca_sim::link::fabric::message::{MadMessage, Message, Registration};
use hca_sim::link::fabric::{Body, Host, Packet, PortRef, Subnet, SubnetConfig, Topology};
use hca_sim::port::sma::SwitchConfig;
use verbs_core::Lid;
use verbs_core::addr::{QKey, Qpn};
use verbs_core::mad::header::{Class, MAD_LEN, MadBytes, header_of};
use verbs_core::mad::sm::{
    self, NodeInfo, NodeInfoView, PortInfo, PortInfoView, SwitchInfo, SwitchInfoView,
};
use verbs_core::mad::{AttributeId, Method, Status};
use verbs_core::time::Instant;

/// A row of a trace: sender and receiver, the datagram, and its meaning.
struct Row {
    direction: String,
    mad: MadBytes,
    meaning: String,
}

fn rows(text: &str) -> Vec<Row> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<_> = line.split('\t').collect();
            let mut mad = [0; MAD_LEN];
            for (byte, digits) in mad.iter_mut().zip(columns[4].as_bytes().chunks(2)) {
                let digits = std::str::from_utf8(digits).expect("digits");
                *byte = u8::from_str_radix(digits, 16).expect("hexadecimal");
            }
            Row {
                direction: columns[0].into(),
                mad,
                meaning: columns[5].into(),
            }
        })
        .collect()
}

/// The subnet that the traces were recorded in, with the tables that ibsim gives its nodes.
fn subnet() -> (Subnet, PortRef) {
    let topology = Topology::parse(include_str!("data/opensm/net-1sw-2ca")).expect("a topology");
    let config = SubnetConfig {
        pkey_capacity: 64,
        switch: SwitchConfig {
            linear_cap: 30_720,
            multicast_cap: 1024,
            enforcement_cap: 64,
        },
        ..SubnetConfig::default()
    };
    let at = PortRef {
        node: topology.find("HcaA").expect("it is in the file"),
        port: 1,
    };
    (Subnet::new(&topology, config), at)
}

/// Sends a datagram of subnet management from a port and returns what comes back there.
fn ask(subnet: &mut Subnet, at: PortRef, mad: &MadBytes) -> Option<MadBytes> {
    let packet = Packet::smp(sm::PERMISSIVE_LID, sm::PERMISSIVE_LID, Box::new(*mad));
    subnet.send(Instant::ZERO, at, packet);
    let (to, packet) = subnet.poll_delivery()?;
    assert_eq!(to, at, "answers come back to who asked");
    match packet.body {
        Body::Mad(datagram) => Some(*datagram.mad),
        Body::Transport(_) => None,
    }
}

/// The parts of an answer that do not depend on the make of the nodes.
fn essence(mad: &MadBytes) -> String {
    let data = sm::attribute(mad);
    match header_of(mad).attribute() {
        AttributeId::NODE_INFO => {
            let info = NodeInfo::parse(NodeInfoView::new(data).expect("64 bytes"));
            format!(
                "{:?} {} ports, node {:?} port {:?} here {}",
                info.node_type, info.ports, info.node_guid, info.port_guid, info.local_port
            )
        }
        AttributeId::PORT_INFO => {
            let info = PortInfo::parse(PortInfoView::of(data));
            format!(
                "{:?} {:?} lid {} sm {} lmc {:?} here {}",
                info.state, info.phys_state, info.lid, info.sm_lid, info.lmc, info.local_port
            )
        }
        AttributeId::SWITCH_INFO => {
            let info = SwitchInfo::parse(SwitchInfoView::new(data).expect("64 bytes"));
            format!(
                "caps {} {} {} top {} life {:?} change {}",
                info.linear_cap,
                info.multicast_cap,
                info.enforcement_cap,
                info.linear_top,
                info.life_time,
                info.port_state_change
            )
        }
        _ => format!("{data:02x?}"),
    }
}

/// Goal: a subnet answers a sweep of OpenSM in a manner that OpenSM accepted. Method: every recorded request in its
/// order, its answer compared with the recorded one in all that does not depend on the make of the nodes; exactly, for
/// tables.
#[test]
fn a_recorded_sweep_is_answered_as_it_was() {
    let (mut subnet, at) = subnet();
    let mut compared = 0;
    for trace in [
        include_str!("data/opensm/sweep.trace"),
        include_str!("data/opensm/sweep-qos.trace"),
    ] {
        let rows = rows(trace);
        for pair in rows.chunks(2) {
            let [asked, answered] = pair else {
                panic!("a request without an answer");
            };
            assert_eq!(
                (asked.direction.as_str(), answered.direction.as_str()),
                ("SM>SMA", "SMA>SM")
            );
            let got = ask(&mut subnet, at, &asked.mad).expect("an answer");
            let (ours, theirs) = (header_of(&got), header_of(&answered.mad));
            let meaning = &asked.meaning;
            assert_eq!(ours.method(), Method::GET_RESP, "{meaning}");
            assert_eq!(ours.status(), Status::OK | sm::DIRECTION, "{meaning}");
            assert_eq!(ours.class(), Class::SUBN_DIRECTED);
            assert_eq!(
                (ours.tid(), ours.attribute(), ours.modifier()),
                (theirs.tid(), theirs.attribute(), theirs.modifier()),
                "{meaning}"
            );
            assert_eq!(essence(&got), essence(&answered.mad), "{meaning}");
            compared += 1;
        }
    }
    assert_eq!(compared, 43 + 20);
    assert_eq!(subnet.port_counts(), (4, 4), "all ports are in service");
    assert_eq!(subnet.lid(at), Lid(1));
}

/// Repeats what OpenSM did in a recorded sweep.
fn sweep(subnet: &mut Subnet, at: PortRef) {
    for row in rows(include_str!("data/opensm/sweep.trace")) {
        if row.direction == "SM>SMA" {
            ask(subnet, at, &row.mad).expect("an answer");
        }
    }
}

/// Goal: groups are programmed as OpenSM did when members joined and left. Method: the recorded Sets, and a
/// packet to the group after each.
#[test]
fn recorded_joins_and_leaves_change_what_is_forwarded() {
    let (mut subnet, at) = subnet();
    sweep(&mut subnet, at);
    let mut reached = Vec::new();
    for row in rows(include_str!("data/opensm/sa.trace")) {
        if row.direction != "SM>SMA" {
            continue;
        }
        let got = ask(&mut subnet, at, &row.mad).expect("an answer");
        assert_eq!(
            sm::attribute(&got),
            sm::attribute(&row.mad),
            "{}",
            row.meaning
        );
        let packet = Packet::new(
            Lid(1),
            Lid(0xc000),
            0,
            Body::Transport(vec![4, 0, 0xff, 0xff]),
        );
        subnet.send(Instant::ZERO, at, packet);
        let mut reaches = false;
        while let Some((to, _)) = subnet.poll_delivery() {
            // The sender's adapter has a copy for its own queue pairs.
            reaches |= to != at;
        }
        reached.push(reaches);
    }
    assert_eq!(reached, [true, false], "two members, then one");
}

/// Goal: notices are those that OpenSM acted on. Method: what was recorded of ibsim's traps, byte for byte except for
/// the capabilities, which are the node's own; the recorded TrapRepress ends ours.
#[test]
fn traps_are_those_that_were_recorded() {
    let (mut subnet, at) = subnet();
    sweep(&mut subnet, at);
    let topology = Topology::parse(include_str!("data/opensm/net-1sw-2ca")).expect("a topology");
    let other = PortRef {
        node: topology.find("HcaB").expect("it is in the file"),
        port: 1,
    };
    let recorded = rows(include_str!("data/opensm/traps-sminfo.trace"));
    for (number, is_manager) in [(144, true), (128, false)] {
        if is_manager {
            subnet.set_sm(Instant::ZERO, other, true);
        } else {
            assert!(subnet.plug(Instant::ZERO, other, false));
        }
        let of = |method, row: &&Row| {
            let trap = sm::attribute(&row.mad)[5];
            header_of(&row.mad).method() == method && trap == number
        };
        let trap = recorded
            .iter()
            .find(|row| of(Method::TRAP, row))
            .expect("it was recorded");
        let (to, packet) = subnet.poll_delivery().expect("a trap");
        let Body::Mad(datagram) = packet.body else {
            panic!("a trap is a datagram");
        };
        assert_eq!(to, at, "the manager gets it");
        let (mut ours, mut theirs) = (*sm::attribute(&datagram.mad), *sm::attribute(&trap.mad));
        if number == 144 {
            ours[16..20].fill(0);
            theirs[16..20].fill(0);
        }
        assert_eq!(ours, theirs, "{}", trap.meaning);
        let heard = recorded.iter().find(|row| of(Method::TRAP_REPRESS, row));
        let mut heard = heard.expect("it was recorded").mad;
        heard[8..16].copy_from_slice(&datagram.mad[8..16]);
        subnet.send(
            Instant::ZERO,
            at,
            Packet::smp(Lid(1), packet.slid, Box::new(heard)),
        );
        assert_eq!(subnet.poll_timeout(), None, "it is not repeated");
    }
}

/// A client of a host, and its session.
struct Client {
    asker: u32,
    session: u32,
}

impl Client {
    fn open(host: &mut Host, node: &str) -> Self {
        let asker = host.connect().expect("there is room");
        let open = Message::Open {
            host: node.into(),
            adapter: 0,
            port: 1,
        };
        match say(host, asker, &open) {
            Some(Message::Opened { session }) => Self { asker, session },
            other => panic!("not opened but {other:?}"),
        }
    }

    fn say(&self, host: &mut Host, message: &Message) -> Option<Message> {
        say(host, self.session, message)
    }

    fn heard(&self, host: &mut Host) -> Option<Message> {
        heard(host, self.session)
    }

    fn register(&self, host: &mut Host, class: Class, version: u8, methods: u128) -> u32 {
        let registration = Registration {
            class: class.0,
            version,
            methods,
            oui: 0,
            has_transfers: class == Class::SA,
        };
        let question = Message::Register {
            session: self.session,
            registration,
        };
        match say(host, self.asker, &question) {
            Some(Message::Registered { agent }) => agent,
            other => panic!("not registered but {other:?}"),
        }
    }

    /// Repeats what OpenSM did in a recorded sweep.
    fn sweep(&self, host: &mut Host) {
        let smp = self.register(host, Class::SUBN_DIRECTED, 1, 0);
        for row in rows(include_str!("data/opensm/sweep.trace")) {
            // This host's nodes have shorter tables than the recorded ones.
            let is_missing = row.meaning.contains("P_KeyTable");
            if row.direction != "SM>SMA" || is_missing {
                continue;
            }
            let question = Message::Mad(MadMessage {
                agent: smp,
                timeout_ms: 100,
                lid: sm::PERMISSIVE_LID,
                bytes: row.mad.to_vec(),
                ..MadMessage::default()
            });
            assert!(self.say(host, &question).is_some(), "{}", row.meaning);
        }
    }
}

fn say(host: &mut Host, client: u32, message: &Message) -> Option<Message> {
    let said = host.handle(Instant::ZERO, client, &message.encode());
    said.expect("it is a message");
    heard(host, client)
}

fn heard(host: &mut Host, client: u32) -> Option<Message> {
    let (to, message) = host.poll_transmit()?;
    assert_eq!(to, client);
    Some(message)
}

/// Goal: tables of OpenSM's administrator that are longer than one datagram arrive whole. Method: the recorded answers
/// that it handed to umad, sent through a hosted subnet to a client that asks for them.
#[test]
fn recorded_tables_arrive_whole() {
    let topology = Topology::parse(include_str!("data/opensm/net-1sw-2ca")).expect("a topology");
    let mut host = Host::new(topology, SubnetConfig::default());
    let (manager, asker) = (
        Client::open(&mut host, "HcaA"),
        Client::open(&mut host, "HcaB"),
    );
    manager.sweep(&mut host);
    let serving = manager.register(&mut host, Class::SA, 2, 1 << 0x12);
    let asking = asker.register(&mut host, Class::SA, 2, 0);
    let text = include_str!("data/opensm/sa-rmpp.trace");
    let lines = text.lines().filter(|line| line.starts_with("SA>UMAD"));
    let mut lengths = Vec::new();
    for line in lines {
        let digits = line.split('\t').nth(7).expect("eight columns").as_bytes();
        let answer: Vec<u8> = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16))
            .collect::<Result<_, _>>()
            .expect("hexadecimal");
        // The question has the answer's headers, except for the method.
        let mut asked = vec![0; MAD_LEN];
        asked[..24].copy_from_slice(&answer[..24]);
        asked[3] = Method::GET_TABLE.0;
        let mut message = MadMessage {
            agent: asking,
            timeout_ms: 1000,
            qpn: Qpn::new(1),
            qkey: QKey(0x8001_0000),
            lid: Lid(1),
            bytes: asked,
            ..MadMessage::default()
        };
        let question = Message::Mad(message.clone());
        let said = host.handle(Instant::ZERO, asker.session, &question.encode());
        said.expect("it is a message");
        let Some(Message::Mad(got)) = manager.heard(&mut host) else {
            panic!("the administrator is asked");
        };
        message.bytes = answer.clone();
        // The upper half of the transaction id belongs to the service.
        message.bytes[8..16].copy_from_slice(&got.bytes[8..16]);
        (message.agent, message.timeout_ms, message.lid) = (serving, 0, got.lid);
        let said = host.handle(
            Instant::ZERO,
            manager.session,
            &Message::Mad(message).encode(),
        );
        said.expect("it is a message");
        let Some(Message::Mad(table)) = asker.heard(&mut host) else {
            panic!("the table arrives");
        };
        assert_eq!(
            (table.status, table.bytes.len()),
            (0, answer.len()),
            "{line}"
        );
        assert_eq!(table.bytes[56..], answer[56..]);
        assert_eq!(table.bytes[..24], answer[..24]);
        lengths.push(answer.len());
    }
    assert_eq!(lengths, [392, 632, 560, 88]);
}
