//! Sweeps, and what follows from changes.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_sim::link::fabric::{Body, FatTree, NodeId, Packet, PortRef, Topology};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, Hops, LinkState, PERMISSIVE_LID, SmState, SmpHeader, SwitchInfo};
use verbs_core::mad::{AttributeId, Bits, Class, MadHeader, Method};
use verbs_core::{Lid, Mtu, PKey};
use verbs_sm::{Config, Partition};

use crate::lab::Lab;

/// The first port of a node, by its name.
pub(crate) fn port(topology: &Topology, name: &str, port: u8) -> PortRef {
    let node = topology.find(name).unwrap();
    PortRef { node, port }
}

/// All adapters' ports.
pub(crate) fn adapters(topology: &Topology) -> Vec<PortRef> {
    let nodes = (0..).map(NodeId).zip(topology.nodes());
    let adapters = nodes.filter(|(_, node)| !node.is_switch());
    adapters
        .map(|(node, _)| PortRef { node, port: 1 })
        .collect()
}

fn data(from: Lid, to: Lid) -> Packet {
    let bytes = [vec![4, 0, 0xff, 0xff], vec![0; 28]].concat();
    Packet::new(from, to, 0, Body::Transport(bytes))
}

/// Checks that every adapter reaches every other one. A packet for a port without a service arrives where it was sent.
pub(crate) fn assert_connected(lab: &mut Lab, ports: &[PortRef]) {
    for &from in ports {
        for &to in ports {
            let (slid, dlid) = (lab.subnet.lid(from), lab.subnet.lid(to));
            lab.subnet.send(lab.now, from, data(slid, dlid));
            if from == to {
                while lab.subnet.poll_delivery().is_some() {}
                continue;
            }
            let arrived = lab.subnet.poll_delivery();
            assert_eq!(arrived.map(|(at, _)| at), Some(to), "{from:?} -> {to:?}");
        }
    }
}

/// Goal: a fat tree of 64 adapters comes up in one sweep, every adapter reaches every other, and the next sweep has
/// nothing to do. Method: every link's state, a packet for every pair, the counters.
#[test]
fn a_fat_tree_comes_up_in_one_sweep() {
    let topology = FatTree::SMALL.topology().unwrap();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let sm = lab.manager(ports[0], Config::default());
    lab.settle();
    assert_eq!(lab.state(sm).state(), SmState::MASTER);
    assert!(lab.state(sm).is_up(), "{:?}", lab.state(sm).counters());
    let (linked, active) = lab.subnet.port_counts();
    assert_eq!((linked, active), (144, 144));
    assert_eq!(lab.state(sm).nodes(), 72);
    let lids: BTreeSet<_> = ports.iter().map(|&at| lab.subnet.lid(at).0).collect();
    assert_eq!(lids.len(), 64, "everybody has a LID of its own");
    assert_connected(&mut lab, &ports);
    let info = lab.subnet.port_info(ports[9]).unwrap();
    assert_eq!(info.neighbor_mtu.value(), Mtu::B4096.shift() - 7);
    assert_eq!(info.sm_lid, lab.subnet.lid(ports[0]));
    assert!(info.operational_vls == Bits::truncated(1));

    // The next poll finds nothing: one request for each switch.
    let before = lab.state(sm).counters();
    lab.pass(Duration::from_secs(10));
    let after = lab.state(sm).counters();
    assert_eq!((after.sweeps, after.light_sweeps), (before.sweeps, 1));
    assert_eq!(after.smps - before.smps, 8);
    assert_eq!((after.timeouts, after.refusals), (0, 0));
}

/// Goal: an unplugged link is noticed at once, by the trap of a switch, and routes avoid it; a link that is plugged in
/// again is brought into service; adapters that are cut off keep their LIDs. Method: a spine's link, an adapter's link.
#[test]
fn links_that_go_and_come_are_followed() {
    let topology = FatTree::SMALL.topology().unwrap();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let sm = lab.manager(ports[0], Config::default());
    lab.settle();
    let sweeps = lab.state(sm).counters().sweeps;
    let lid = lab.subnet.lid(ports[5]);
    let cut = topology.links().iter().find(|link| {
        link.ends
            .iter()
            .all(|end| topology.nodes()[end.node.0 as usize].is_switch())
    });
    let inner = cut.unwrap().ends[0];
    for (at, is_cut_off) in [(inner, false), (ports[5], true)] {
        assert!(lab.subnet.plug(lab.now, at, false));
        lab.settle();
        assert!(lab.state(sm).is_up(), "{:?}", lab.state(sm).counters());
        let (linked, active) = lab.subnet.port_counts();
        assert_eq!((linked, active), (142, 142));
        let rest: Vec<_> = ports.iter().copied().filter(|&port| port != at).collect();
        // A tree without one of its links may be two.
        if is_cut_off {
            assert_connected(&mut lab, &rest);
        }
        assert!(lab.subnet.plug(lab.now, at, true));
        lab.settle();
        assert_eq!(lab.subnet.port_counts(), (144, 144));
        assert_connected(&mut lab, &ports);
    }
    assert_eq!(lab.subnet.lid(ports[5]), lid);
    // Both ends of a link report it, the second one maybe after the first report has been handled.
    let sweeps = lab.state(sm).counters().sweeps - sweeps;
    assert!((4..=8).contains(&sweeps), "{sweeps}");
    assert!(lab.state(sm).counters().traps >= 4);
}

/// Goal: a manager that is started again finds the LIDs that were assigned, whatever order it looks in. Method: all
/// LIDs before and after, the second manager elsewhere.
#[test]
fn a_manager_that_is_started_again_keeps_lids() {
    let topology = FatTree::SMALL.topology().unwrap();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let first = lab.manager(ports[0], Config::default());
    lab.settle();
    let before: Vec<_> = ports.iter().map(|&at| lab.subnet.lid(at)).collect();
    lab.kill(first);
    let second = lab.manager(ports[63], Config::default());
    lab.settle();
    assert!(lab.state(second).is_up());
    let after: Vec<_> = ports.iter().map(|&at| lab.subnet.lid(at)).collect();
    assert_eq!(before, after);
    let info = lab.subnet.port_info(ports[3]).unwrap();
    assert_eq!((info.sm_lid, info.state), (after[63], LinkState::ACTIVE));
    assert_connected(&mut lab, &ports);
}

/// Goal: routes are found in topologies that are not trees: a ring of switches, where plain shortest paths for all
/// would close a cycle of waits. Method: five switches in a ring, an adapter at each; every link that a route goes up
/// is used before any it goes down, which [`unordered_routes`] counts.
///
/// [`unordered_routes`]: verbs_sm::Counters::unordered_routes
#[test]
fn a_ring_has_routes_that_close_no_circle() {
    let mut topology = Topology::new();
    let switches: Vec<_> = (0..5)
        .map(|n| topology.switch(&format!("s{n}"), 4).unwrap())
        .collect();
    let hosts: Vec<_> = (0..5)
        .map(|n| topology.hca(&format!("h{n}"), 1).unwrap())
        .collect();
    for n in 0..5 {
        topology.link((switches[n], 3), (hosts[n], 1)).unwrap();
        topology
            .link((switches[n], 1), (switches[(n + 1) % 5], 2))
            .unwrap();
    }
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let sm = lab.manager(ports[0], Config::default());
    lab.settle();
    assert!(lab.state(sm).is_up());
    assert_connected(&mut lab, &ports);
    assert_eq!(lab.state(sm).counters().unordered_routes, 0);
}

/// Goal: of two managers the one with the higher priority is master, whichever started first; the other one is standby,
/// and takes over when the master dies. Method: an ordinary one first, then one with priority, which is killed.
#[test]
fn managers_hand_over_and_take_over() {
    let topology = FatTree::SMALL.topology().unwrap();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let low = lab.manager(ports[0], Config::default());
    lab.settle();
    let lids: Vec<_> = ports.iter().map(|&at| lab.subnet.lid(at)).collect();
    let preferred = Config {
        priority: Bits::truncated(9),
        ..Config::default()
    };
    let high = lab.manager(ports[40], preferred);
    lab.settle();
    assert_eq!(lab.state(high).state(), SmState::MASTER);
    assert_eq!(lab.state(low).state(), SmState::STANDBY);
    assert_eq!(lab.subnet.port_info(ports[7]).unwrap().sm_lid, lids[40]);
    lab.pass(Duration::from_secs(30));
    assert_eq!(
        lab.state(low).state(),
        SmState::STANDBY,
        "the master answers"
    );
    lab.kill(high);
    lab.pass(Duration::from_secs(30));
    assert_eq!(lab.state(low).state(), SmState::MASTER);
    assert!(lab.state(low).is_up());
    assert_eq!(lab.subnet.port_info(ports[7]).unwrap().sm_lid, lids[0]);
    let after: Vec<_> = ports.iter().map(|&at| lab.subnet.lid(at)).collect();
    assert_eq!(lids, after);
    // A later one without priority does not disturb.
    let late = lab.manager(ports[41], Config::default());
    lab.pass(Duration::from_secs(5));
    assert_eq!(lab.state(late).state(), SmState::STANDBY);
    assert_eq!(lab.state(low).state(), SmState::MASTER);
}

/// Goal: ports with management keys are managed by the manager that has the key, and by no other. Method: a manager
/// with a key, killed; one without; one with it again.
#[test]
fn management_keys_keep_strangers_out() {
    let topology =
        Topology::parse("Switch 4 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\nHca 1 \"a\"\nHca 1 \"b\"\n");
    let topology = topology.unwrap();
    let mut lab = Lab::new(&topology);
    let (a, b) = (port(&topology, "a", 1), port(&topology, "b", 1));
    let keyed = Config {
        m_key: 0x1234_5678,
        ..Config::default()
    };
    let first = lab.manager(a, keyed.clone());
    lab.settle();
    assert!(lab.state(first).is_up());
    assert_eq!(lab.subnet.port_info(b).unwrap().m_key, 0x1234_5678);
    lab.kill(first);
    let stranger = lab.manager(
        a,
        Config {
            priority: Bits::MAX,
            ..Config::default()
        },
    );
    lab.pass(Duration::from_secs(3));
    assert!(!lab.state(stranger).is_up(), "its Sets are dropped");
    assert_eq!(lab.subnet.port_info(b).unwrap().m_key, 0x1234_5678);
    lab.kill(stranger);
    let again = lab.manager(b, keyed);
    lab.pass(Duration::from_secs(3));
    assert!(lab.state(again).is_up());
}

/// Goal: more than one lane, and a partition besides the default one, where they are requested. Method: ports' lanes
/// and keys, and no request refused.
#[test]
fn lanes_and_partitions_are_set() {
    let topology = FatTree::SMALL.topology().unwrap();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let own = Partition {
        pkey: PKey(0x8123),
        ..Partition::default()
    };
    let config = Config {
        vls_max: Bits::truncated(3),
        maps_service_levels: true,
        partitions: vec![Partition::default(), own],
        ..Config::default()
    };
    let sm = lab.manager(ports[0], config);
    lab.settle();
    assert!(lab.state(sm).is_up());
    let counters = lab.state(sm).counters();
    assert_eq!((counters.refusals, counters.timeouts), (0, 0));
    for at in ports {
        let sma = lab.subnet.node(at.node).unwrap();
        let port = sma.port(1).unwrap();
        assert_eq!(port.info().operational_vls.value(), 3);
        assert_eq!(port.pkeys()[..2], [PKey::DEFAULT, PKey(0x8123)]);
    }
}

/// Goal: a switch that does not answer when it is asked whether its ports have changed makes the manager read
/// everything, until it answers. Method: requests for the switches' information are lost for a while; nothing has
/// changed, so no trap reports anything.
#[test]
fn a_switch_that_does_not_answer_is_looked_for() {
    let topology = FatTree::SMALL.topology().unwrap();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let sm = lab.manager(ports[0], Config::default());
    lab.settle();
    let before = lab.state(sm).counters();
    lab.loses = |mad| {
        let header = header_of(mad);
        (header.method(), header.attribute()) == (Method::GET, AttributeId::SWITCH_INFO)
    };
    lab.pass(Duration::from_secs(60));
    let silent = lab.state(sm).counters();
    assert!(silent.sweeps > before.sweeps, "{silent:?}");
    assert!(silent.timeouts > 0 && silent.light_sweeps <= before.light_sweeps + 1);
    lab.loses = |_| false;
    lab.pass(Duration::from_secs(60));
    assert!(lab.state(sm).is_up());
    let after = lab.state(sm).counters();
    lab.pass(Duration::from_secs(60));
    let later = lab.state(sm).counters();
    assert_eq!(later.sweeps, after.sweeps);
    assert!(later.light_sweeps > after.light_sweeps);
    assert_connected(&mut lab, &ports);
}

/// Sets an attribute of the switch next to an adapter; a subnet without a key lets every port do that.
fn set_switch(lab: &mut Lab, from: PortRef, attribute: AttributeId, bytes: &[u8; 64]) {
    let mut mad = Box::new([0; 256]);
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: Class::SUBN_DIRECTED,
        class_version: sm::CLASS_VERSION,
        method: Method::SET,
        attribute,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    let smp = SmpHeader::directed(0);
    smp.put(&mut mad);
    sm::put_attribute(&mut mad, bytes);
    Hops::put_path(&mut mad, &[1]).unwrap();
    let packet = Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad);
    lab.subnet.send(lab.now, from, packet);
    lab.settle();
}

/// Goal: a switch that has been away has forgotten its tables, and gets all of them again. Method: its highest LID and
/// its routes are cleared, as when it was switched off; then a link is unplugged and plugged in before the manager
/// looks, so that no route changes.
#[test]
fn a_switch_that_has_been_away_gets_its_tables() {
    let topology = FatTree::SMALL.topology().unwrap();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let sm = lab.manager(ports[0], Config::default());
    lab.settle();
    let (near, far) = (ports[1], ports[60]);
    let arrives = |lab: &mut Lab| {
        let (slid, dlid) = (lab.subnet.lid(near), lab.subnet.lid(far));
        lab.subnet.send(lab.now, near, data(slid, dlid));
        lab.subnet.poll_delivery().map(|(at, _)| at)
    };
    assert_eq!(arrives(&mut lab), Some(far));
    set_switch(&mut lab, near, AttributeId::LINEAR_FORWARDING, &[255; 64]);
    let mut bytes = [0; 64];
    let mut info = [0; SwitchInfo::LEN];
    SwitchInfo::default().emit(&mut info);
    bytes[..SwitchInfo::LEN].copy_from_slice(&info);
    set_switch(&mut lab, near, AttributeId::SWITCH_INFO, &bytes);
    assert_eq!(arrives(&mut lab), None, "it has forgotten everything");
    for is_in in [false, true] {
        assert!(lab.subnet.plug(lab.now, far, is_in));
    }
    // Traps do not get through either: the manager notices when it polls.
    lab.pass(Duration::from_secs(60));
    assert!(lab.state(sm).is_up(), "{:?}", lab.state(sm).counters());
    assert_connected(&mut lab, &ports);
}
