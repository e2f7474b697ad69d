//! Groups on subnets with several levels of switches: packets reach members, and no other ports.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_sim::link::fabric::{Body, Packet, PortRef, Topology};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sa::{
    CLASS_VERSION, JoinState, McMemberMask, McMemberRecord, McMemberRecordView, SaHeader, SaStatus,
    put_record, record,
};
use verbs_core::mad::{AttributeId, Class, Delivery, MadHeader, Method};
use verbs_core::{Gid, Lid, PKey, QKey};
use verbs_sm::Config;

use crate::lab::Lab;
use crate::sweeps::adapters;

const GROUP: Gid = Gid([0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);

/// A tree of three levels below one switch, two adapters at each of four leaves; and a link between two leaves, on
/// which a flood without a spanning tree would circulate.
fn tree() -> Topology {
    let mut topology = Topology::new();
    let root = topology.switch("root", 4).unwrap();
    let mut leaves = Vec::new();
    for middle in 1..=2 {
        let at = topology.switch(&format!("m{middle}"), 4).unwrap();
        topology.link((root, middle), (at, 4)).unwrap();
        for leaf in 1..=2 {
            let below = topology.switch(&format!("l{middle}{leaf}"), 5).unwrap();
            topology.link((at, leaf), (below, 5)).unwrap();
            for port in 1..=2 {
                let host = topology.hca(&format!("h{middle}{leaf}{port}"), 1).unwrap();
                topology.link((below, port), (host, 1)).unwrap();
            }
            leaves.push(below);
        }
    }
    topology.link((leaves[1], 3), (leaves[2], 3)).unwrap();
    topology
}

/// Joins or leaves; the group is created if necessary.
fn ask(
    lab: &mut Lab,
    client: usize,
    method: Method,
    how: JoinState,
) -> Result<McMemberRecord, SaStatus> {
    let at = lab.stations[client].at;
    let info = lab.subnet.port_info(at).unwrap();
    let guid = lab
        .subnet
        .node(at.node)
        .unwrap()
        .port(at.port)
        .unwrap()
        .guid();
    let wanted = McMemberRecord {
        mgid: GROUP,
        port_gid: Gid::from_parts(info.gid_prefix, guid),
        join_state: how,
        qkey: QKey(7),
        pkey: PKey::DEFAULT,
        ..McMemberRecord::default()
    };
    let sm = info.sm_lid;
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: Class::SA,
        class_version: CLASS_VERSION,
        method,
        attribute: AttributeId::MC_MEMBER_RECORD,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    let component_mask = McMemberMask::CREATE.bits();
    SaHeader {
        component_mask,
        ..SaHeader::default()
    }
    .put(&mut mad);
    let mut bytes = [0; McMemberRecord::LEN];
    wanted.emit(&mut bytes);
    put_record(&mut mad, &bytes);
    let Some(Delivery::Response { mad, .. }) = lab.ask(client, sm, &mad) else {
        panic!("no answer");
    };
    match SaStatus::from_code((header_of(&mad).status().bits() >> 8) as u8) {
        Some(status) => Err(status),
        None => Ok(McMemberRecord::parse(
            McMemberRecordView::new(record(&mad)).unwrap(),
        )),
    }
}

/// The ports that get a packet that is sent to the group from there.
fn sent(lab: &mut Lab, from: PortRef, mlid: Lid) -> Vec<PortRef> {
    let bytes = [vec![4, 0, 0xff, 0xff], vec![0; 28]].concat();
    let packet = Packet::new(lab.subnet.lid(from), mlid, 0, Body::Transport(bytes));
    lab.subnet.send(lab.now, from, packet);
    let arrived = std::iter::from_fn(|| lab.subnet.poll_delivery());
    // The sender's own port delivers it to queue pairs that are attached there.
    arrived.map(|(at, _)| at).filter(|&at| at != from).collect()
}

/// Goal: a packet to a group reaches each member once, across three levels, whichever of them sends; not a member that
/// only sends, nor one that has left or been unplugged; a deleted group carries nothing, and members that come back
/// join again. Method: packets through the switches of a subnet, after each step.
#[test]
fn packets_get_to_members_and_to_nobody_else() {
    let topology = tree();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let sm = lab.manager(ports[0], Config::default());
    lab.settle();
    assert!(lab.state(sm).is_up());
    let clients: Vec<_> = [1, 2, 5, 7].map(|at| lab.client(ports[at])).into();
    let mlid = ask(&mut lab, clients[0], Method::SET, JoinState::FULL_MEMBER)
        .unwrap()
        .mlid;
    for &client in &clients[1..3] {
        ask(&mut lab, client, Method::SET, JoinState::FULL_MEMBER).unwrap();
    }
    ask(
        &mut lab,
        clients[3],
        Method::SET,
        JoinState::SEND_ONLY_NON_MEMBER,
    )
    .unwrap();
    let assert_reaches = |lab: &mut Lab, members: &[usize]| {
        for from in [1, 2, 5, 7] {
            let got = sent(lab, ports[from], mlid);
            let set: BTreeSet<_> = got.iter().copied().collect();
            assert_eq!(set.len(), got.len(), "twice: {got:?}");
            let expected = members
                .iter()
                .filter(|&&at| at != from)
                .map(|&at| ports[at]);
            // From a switch without members it reaches no port.
            if members.contains(&from) || from == 7 && members.len() == 3 {
                assert_eq!(set, expected.collect(), "from {from}");
            }
        }
    };
    assert_reaches(&mut lab, &[1, 2, 5]);
    // It is a receiver from the moment that it joins as one.
    ask(&mut lab, clients[3], Method::SET, JoinState::FULL_MEMBER).unwrap();
    assert_reaches(&mut lab, &[1, 2, 5, 7]);
    ask(&mut lab, clients[3], Method::DELETE, JoinState::FULL_MEMBER).unwrap();
    assert_reaches(&mut lab, &[1, 2, 5]);
    // A member in the middle is unplugged, and is no longer a member when it is plugged in again.
    lab.subnet.plug(lab.now, ports[2], false);
    lab.pass(Duration::from_secs(1));
    assert_reaches(&mut lab, &[1, 5]);
    lab.subnet.plug(lab.now, ports[2], true);
    lab.pass(Duration::from_secs(1));
    assert_reaches(&mut lab, &[1, 5]);
    ask(&mut lab, clients[1], Method::SET, JoinState::FULL_MEMBER).unwrap();
    assert_reaches(&mut lab, &[1, 2, 5]);
    for &client in &clients[..3] {
        ask(&mut lab, client, Method::DELETE, JoinState::FULL_MEMBER).unwrap();
    }
    for from in [1, 2, 5, 7] {
        assert!(
            sent(&mut lab, ports[from], mlid).is_empty(),
            "there is no group"
        );
    }
}

/// Goal: a change at a switch is read at once: its mark is cleared, and what follows are reads of marks alone. Method:
/// a link that is unplugged, found by the trap; one whose trap is lost, found by the mark at the next poll.
#[test]
fn a_change_is_looked_at_once() {
    let topology = tree();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let sm = lab.manager(ports[0], Config::default());
    lab.settle();
    for is_in in [false, true] {
        lab.subnet.plug(lab.now, ports[6], is_in);
        lab.settle();
        let before = lab.state(sm).counters();
        lab.pass(Duration::from_secs(60));
        let after = lab.state(sm).counters();
        assert_eq!(after.sweeps, before.sweeps, "nothing is new");
        assert!((5..=6).contains(&(after.light_sweeps - before.light_sweeps)));
        assert!(lab.state(sm).is_up());
    }
    // So many changes that the switch's traps are no longer accepted: the mark is still seen.
    for round in 0..12 {
        lab.subnet.plug(lab.now, ports[6], round % 2 == 1);
        lab.settle();
    }
    lab.subnet.plug(lab.now, ports[6], false);
    lab.settle();
    lab.pass(Duration::from_secs(25));
    assert_eq!(lab.state(sm).nodes(), 14);
    let before = lab.state(sm).counters();
    lab.pass(Duration::from_secs(60));
    assert_eq!(lab.state(sm).counters().sweeps, before.sweeps);
}
