use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, Hops, PERMISSIVE_LID, PhysState, PortInfoView, SmpHeader};
use verbs_core::mad::{AttributeId, Class, MadBytes, MadHeader, Method, Status};

use crate::{Body, LinkFault};

use super::*;

/// Two switches with a link between them, an adapter at each.
const TWO: &str = "Switch 4 \"s1\"\n[1] \"a\"[1]\n[4] \"s2\"[4]\nSwitch 4 \"s2\"\n[1] \"b\"[1]\n\
    Hca 1 \"a\"\nHca 1 \"b\"\n";

const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);
const A: PortRef = port(2, 1);
const B: PortRef = port(3, 1);

const fn port(node: u32, port: u8) -> PortRef {
    PortRef {
        node: NodeId(node),
        port,
    }
}

fn subnet(config: SubnetConfig) -> Subnet {
    Subnet::new(&Topology::parse(TWO).expect("a topology"), config)
}

fn smp(method: Method, attribute: AttributeId, modifier: u32, path: &[u8]) -> Box<MadBytes> {
    let mut mad = Box::new([0; 256]);
    let header = MadHeader {
        base_version: 1,
        class: Class::SUBN_DIRECTED,
        class_version: sm::CLASS_VERSION,
        method,
        attribute,
        modifier,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    SmpHeader::directed(0).put(&mut mad);
    Hops::put_path(&mut mad, path).expect("a short path");
    mad
}

/// Sends from `a` and returns the answer; traps that arrive before it are skipped.
fn ask(subnet: &mut Subnet, mad: Box<MadBytes>) -> Option<Box<MadBytes>> {
    let packet = Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad);
    subnet.send(Instant::ZERO, A, packet);
    while let Some((at, packet)) = subnet.poll_delivery() {
        assert_eq!(at, A);
        if let Body::Mad(datagram) = packet.body
            && header_of(&datagram.mad).method() == Method::GET_RESP
        {
            return Some(datagram.mad);
        }
    }
    None
}

fn set_port(subnet: &mut Subnet, path: &[u8], number: u8, change: impl FnOnce(&mut PortInfo)) {
    let get = smp(Method::GET, AttributeId::PORT_INFO, number.into(), path);
    let reply = ask(subnet, get).expect("an answer");
    let mut info = PortInfo::parse(PortInfoView::of(sm::attribute(&reply)));
    info.state = LinkState::NO_CHANGE;
    info.phys_state = PhysState::NO_CHANGE;
    change(&mut info);
    let mut bytes = [0; PortInfo::LEN];
    info.emit(&mut bytes);
    let mut set = smp(Method::SET, AttributeId::PORT_INFO, number.into(), path);
    sm::put_attribute(&mut set, &bytes);
    let reply = ask(subnet, set).expect("an answer");
    let status = header_of(&reply).status();
    assert_eq!(status, Status::OK | sm::DIRECTION, "{path:?} {number}");
}

/// Does what a subnet manager at `a` would: LIDs 1 and 2 for the adapters, 3 and 4 for the switches.
fn configure(subnet: &mut Subnet) {
    let ends: [(&[u8], u8, u16); 4] = [
        (&[], 1, 1),
        (&[1, 4, 1], 1, 2),
        (&[1], 0, 3),
        (&[1, 4], 0, 4),
    ];
    for (path, number, lid) in ends {
        set_port(subnet, path, number, |info| {
            (info.lid, info.sm_lid) = (Lid(lid), Lid(1));
        });
    }
    for (path, table) in [
        (&[1][..], [0xff, 1, 4, 0, 4]),
        (&[1, 4], [0xff, 4, 1, 4, 0]),
    ] {
        let mut ports = [0xff; 64];
        ports[..5].copy_from_slice(&table);
        let mut set = smp(Method::SET, AttributeId::LINEAR_FORWARDING, 0, path);
        sm::put_attribute(&mut set, &ports);
        ask(subnet, set).expect("an answer");
        let get = smp(Method::GET, AttributeId::SWITCH_INFO, 0, path);
        let mut info = ask(subnet, get).expect("an answer");
        info[64 + 7] = 4;
        let mut set = smp(Method::SET, AttributeId::SWITCH_INFO, 0, path);
        sm::put_attribute(&mut set, sm::attribute(&info));
        ask(subnet, set).expect("an answer");
    }
    let ports: [(&[u8], u8); 6] = [
        (&[], 1),
        (&[1], 1),
        (&[1], 4),
        (&[1, 4], 4),
        (&[1, 4], 1),
        (&[1, 4, 1], 1),
    ];
    for state in [LinkState::ARMED, LinkState::ACTIVE] {
        for (path, number) in ports {
            set_port(subnet, path, number, |info| info.state = state);
        }
    }
}

fn data(from: u16, to: u16) -> Packet {
    // A switch reads only the BTH, here of the default partition.
    let bytes = [vec![4, 0, 0xff, 0xff], vec![0; 28]].concat();
    Packet::new(Lid(from), Lid(to), 0, Body::Transport(bytes))
}

/// Goal: until a manager has configured the subnet, only management packets pass, and then all do. Method: a
/// packet before, between and after.
#[test]
fn packets_pass_when_a_manager_has_been_there() {
    let mut subnet = subnet(SubnetConfig::default());
    assert_eq!(subnet.port_counts(), (6, 0));
    subnet.send(Instant::ZERO, A, data(1, 2));
    assert_eq!(subnet.poll_delivery(), None);
    assert_eq!(subnet.counts(A).expect("a port").xmit_discards, 1);
    configure(&mut subnet);
    assert_eq!(subnet.port_counts(), (6, 6));
    subnet.send(Instant::ZERO, A, data(1, 2));
    let (at, packet) = subnet.poll_delivery().expect("it arrives");
    assert_eq!((at, packet.slid, packet.dlid), (B, Lid(1), Lid(2)));
    assert_eq!(
        subnet.lid(port(0, 4)),
        Lid(3),
        "a switch's ports have its LID"
    );
    // A LID that no port has.
    subnet.send(Instant::ZERO, A, data(1, 9));
    assert_eq!(subnet.poll_delivery(), None);
    assert_eq!(
        subnet.counts(port(0, 1)).expect("a port").rcv_relay_errors,
        1
    );
    let counts = subnet.counts(port(1, 1)).expect("a port");
    assert!(counts.xmit_packets > 0 && counts.xmit_data > counts.xmit_packets);
}

/// Goal: pulling a cable takes its link down at both ends and is reported; when it is put back, the link waits
/// for the manager. Method: the link between the switches.
#[test]
fn cables_can_be_pulled_and_put_back() {
    let mut subnet = subnet(SubnetConfig::default());
    configure(&mut subnet);
    assert!(
        !subnet.plug(Instant::ZERO, port(0, 2), false),
        "there is no cable"
    );
    assert!(subnet.plug(Instant::ZERO, port(0, 4), false));
    for at in [port(0, 4), port(1, 4)] {
        assert_eq!(subnet.port_info(at).expect("a port").state, LinkState::DOWN);
        assert_eq!(subnet.counts(at).expect("a port").link_downed, 1);
    }
    // The switch on this side can send the manager a trap; the packet is for the manager's port.
    let (at, packet) = subnet.poll_delivery().expect("a trap");
    let Body::Mad(trap) = packet.body else {
        panic!("a trap is a datagram");
    };
    assert_eq!((at, header_of(&trap.mad).method()), (A, Method::TRAP));
    subnet.send(Instant::ZERO, A, data(1, 2));
    assert_eq!(subnet.poll_delivery(), None);
    assert!(subnet.plug(Instant::ZERO, port(1, 4), true));
    assert_eq!(
        subnet.port_info(port(0, 4)).expect("a port").state,
        LinkState::INIT
    );
    assert_eq!(subnet.port_counts(), (6, 4));
    while subnet.poll_delivery().is_some() {}
    // A trap that is not repressed is repeated.
    let again = subnet.poll_timeout().expect("the trap is repeated");
    subnet.handle_timeout(again);
    assert!(subnet.poll_delivery().is_some());
}

/// Goal: a manager can restart a link and switch it off, and the answer has the new state of the port. Method: by
/// directed route, of a switch's port.
#[test]
fn a_manager_restarts_and_disables_links() {
    let mut subnet = subnet(SubnetConfig::default());
    configure(&mut subnet);
    set_port(&mut subnet, &[1], 4, |info| info.state = LinkState::DOWN);
    for at in [port(0, 4), port(1, 4)] {
        assert_eq!(subnet.port_info(at).expect("a port").state, LinkState::INIT);
    }
    set_port(&mut subnet, &[1], 4, |info| {
        (info.state, info.phys_state) = (LinkState::DOWN, PhysState::DISABLED);
    });
    let info = *subnet.port_info(port(0, 4)).expect("a port");
    assert_eq!(
        (info.state, info.phys_state),
        (LinkState::DOWN, PhysState::DISABLED)
    );
    assert!(
        subnet.plug(Instant::ZERO, port(0, 4), true),
        "a cable is there"
    );
    assert_eq!(
        subnet.port_info(port(1, 4)).expect("a port").state,
        LinkState::DOWN
    );
    set_port(&mut subnet, &[1], 4, |info| {
        (info.state, info.phys_state) = (LinkState::DOWN, PhysState::POLLING);
    });
    assert_eq!(
        subnet.port_info(port(1, 4)).expect("a port").state,
        LinkState::INIT
    );
}

/// Goal: packets to groups reach all their ports once, by the tables; the sender's adapter makes the copies for
/// its own queue pairs, because no switch sends one back. Method: a group of both adapters.
#[test]
fn groups_are_forwarded_by_their_tables() {
    let mut subnet = subnet(SubnetConfig::default());
    configure(&mut subnet);
    for path in [&[1][..], &[1, 4]] {
        let mut set = smp(Method::SET, AttributeId::MULTICAST_FORWARDING, 0, path);
        sm::put_attribute(&mut set, &[0, 0b1_0010]);
        ask(&mut subnet, set).expect("an answer");
    }
    let mut reached = |mlid| {
        subnet.send(Instant::ZERO, A, data(1, mlid));
        let mut ports = Vec::new();
        while let Some((at, _)) = subnet.poll_delivery() {
            ports.push(at);
        }
        ports
    };
    assert_eq!(reached(0xc000), [A, B]);
    assert_eq!(reached(0xc001), [A], "a group that no switch knows");
    assert_eq!(subnet.counts(B).expect("a port").multicast_rcv_packets, 1);
    assert_eq!(subnet.counts(A).expect("a port").multicast_rcv_packets, 0);
}

/// Goal: packets that loop are dropped in the end, and enforced partitions keep others out. Method: tables that
/// point at each other; a switch's port that enforces.
#[test]
fn circles_end_and_partitions_hold() {
    let mut subnet = subnet(SubnetConfig::default());
    configure(&mut subnet);
    for path in [&[1][..], &[1, 4]] {
        let mut ports = [4; 64];
        ports[1] = 1;
        let mut set = smp(Method::SET, AttributeId::LINEAR_FORWARDING, 0, path);
        sm::put_attribute(&mut set, &ports);
        ask(&mut subnet, set).expect("an answer");
    }
    subnet.send(Instant::ZERO, A, data(1, 2));
    assert_eq!(subnet.poll_delivery(), None);
    configure_again(&mut subnet);
    set_port(&mut subnet, &[1], 1, |info| info.enforce_in = true);
    subnet.send(Instant::ZERO, A, data(1, 2));
    assert!(
        subnet.poll_delivery().is_some(),
        "the default partition may"
    );
    let mut other = data(1, 2);
    if let Body::Transport(bytes) = &mut other.body {
        bytes[2..4].copy_from_slice(&[0x80, 0x05]);
    }
    subnet.send(Instant::ZERO, A, other);
    assert_eq!(subnet.poll_delivery(), None);
    assert_eq!(
        subnet.counts(port(0, 1)).expect("a port").rcv_constraints,
        1
    );
}

fn configure_again(subnet: &mut Subnet) {
    for (path, table) in [(&[1][..], [0xff, 1, 4]), (&[1, 4], [0xff, 4, 1])] {
        let mut ports = [0xff; 64];
        ports[..3].copy_from_slice(&table);
        let mut set = smp(Method::SET, AttributeId::LINEAR_FORWARDING, 0, path);
        sm::put_attribute(&mut set, &ports);
        ask(subnet, set).expect("an answer");
    }
}

/// Goal: a record has each packet once for each link that it is put on, says which do not arrive, and changes nothing. Method: a
/// thousand questions to the other adapter's switch over a bad link, with a record and without.
#[test]
fn a_record_has_all_packets_on_links() {
    let run = |is_recorded: bool| {
        let mut subnet = subnet(SubnetConfig {
            seed: 1,
            ..SubnetConfig::default()
        });
        let is_bad = subnet.set_fault(
            port(0, 4),
            LinkFault {
                lost_ppm: 100_000,
                damaged_ppm: 50_000,
            },
        );
        assert!(is_bad);
        let mut recorded = Vec::new();
        if is_recorded {
            subnet.record().begin();
        }
        let mut answers = 0;
        for number in 0..1000 {
            let now = Instant::from_nanos(number * 1000);
            let mad = smp(Method::GET, AttributeId::NODE_INFO, 0, &[1, 4]);
            subnet.send(now, A, Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad));
            answers += usize::from(subnet.poll_delivery().is_some());
            while let Some(carried) = subnet.record().poll() {
                assert_eq!(carried.at, now);
                let frame = carried.frame();
                let icrc = frame.icrc(carried.transport().len()).expect("a length");
                assert_eq!(icrc.verify(&carried.transport()), Ok(()));
                recorded.push((carried.from, carried.fate()));
            }
        }
        (answers, recorded)
    };
    let (answers, recorded) = run(true);
    assert_eq!(run(false), (answers, Vec::new()));
    let count = |from, fate| {
        let all = recorded.iter();
        all.filter(|&&it| it == (from, fate)).count()
    };
    let (there, back) = ([A, port(0, 4)], [port(1, 4), port(0, 1)]);
    assert_eq!(count(A, ""), 1000);
    assert!((800..900).contains(&answers));
    for from in [there[1], back[0], back[1]] {
        assert_eq!(count(from, ""), answers, "{from:?}");
    }
    let (lost, damaged) = (
        count(there[1], "lost on purpose"),
        count(there[1], "damaged on purpose"),
    );
    assert_eq!(answers + lost + damaged, 1000);
    assert!(lost > 50 && damaged > 20, "{lost} and {damaged}");
    assert_eq!(recorded.len(), 1000 + 3 * answers + lost + damaged);
}

/// Goal: a bad link loses and damages packets as its seed determines, and its receiver counts. Method: a thousand
/// packets, twice from the same seed, and once from another; links with delays.
#[test]
fn bad_links_are_repeatable() {
    let run = |seed| {
        let mut subnet = subnet(SubnetConfig {
            seed,
            link_delay: Duration::from_nanos(100),
            ..SubnetConfig::default()
        });
        assert!(subnet.set_fault(
            A,
            LinkFault {
                lost_ppm: 100_000,
                damaged_ppm: 50_000,
            }
        ));
        let mut arrived = Vec::new();
        for number in 0..1000 {
            let now = Instant::from_nanos(number * 1000);
            let mad = smp(Method::GET, AttributeId::NODE_INFO, 0, &[1]);
            subnet.send(now, A, Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad));
            assert_eq!(subnet.poll_delivery(), None, "it is on its way");
            subnet.handle_timeout(now + Duration::from_nanos(200));
            arrived.push(subnet.poll_delivery().is_some());
        }
        let errors = subnet.counts(port(0, 1)).expect("a port").symbol_errors;
        (arrived, errors)
    };
    let (arrived, errors) = run(1);
    let count = arrived.iter().filter(|&&is| is).count();
    assert!(
        (800..900).contains(&count) && (20..100).contains(&errors),
        "{count}, {errors}"
    );
    assert_eq!(run(1), (arrived.clone(), errors));
    assert_ne!(run(2).0, arrived);
    assert_eq!(S1, NodeId(0), "the first node is the first in the file");
    assert_eq!(
        subnet(SubnetConfig::default()).node(S2).map(Sma::is_switch),
        Some(true)
    );
}
