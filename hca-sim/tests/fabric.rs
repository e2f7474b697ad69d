//! A simulated subnet against what OpenSM asked of another one, recorded: see `data/opensm`.

#![cfg(not(verbs_loom))]

use hca_sim::link::fabric::{Body, Packet, PortRef, Subnet, SubnetConfig, Topology};
use hca_sim::port::sma::SwitchConfig;
use verbs_core::Lid;
use verbs_core::mad::header::{Class, MAD_LEN, MadBytes, header_of};
use verbs_core::mad::sm::{
    self, NodeInfo, NodeInfoView, PortInfo, PortInfoView, SwitchInfo, SwitchInfoView,
};
use verbs_core::mad::{AttributeId, Method, Status, Time};

/// A row of a trace: who to whom, the datagram, and what it means.
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
    subnet.send(Time::ZERO, at, packet);
    let (to, packet) = subnet.poll_delivery()?;
    assert_eq!(to, at, "answers come back to who asked");
    match packet.body {
        Body::Mad(datagram) => Some(*datagram.mad),
        Body::Transport(_) => None,
    }
}

/// What of an answer does not depend on the make of the nodes.
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

/// Goal: a subnet answers a sweep of OpenSM as OpenSM was content with. Method: every recorded request
/// in its order, its answer compared with the recorded one in all that the make of the nodes leaves
/// open; exactly, for tables.
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
    assert_eq!(subnet.census(), (4, 4), "all ports are in service");
    assert_eq!(subnet.lid(at), Lid(1));
}
