//! Subnet management through queue pairs 0, and general services through queue pairs 1.

use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{
    self, CapabilityMask, NodeInfo, NodeInfoView, NodeType, Notice, NoticeView, PKeyBlock,
    TrapNumber,
};
use verbs_core::mad::{
    AttributeId, Class, Delivery, MadClient, MadHeader, MadService, Method, Retry, Status,
};
use verbs_core::time::Instant;
use verbs_core::{Device, EventType, Lid, PKey, PortState, TransportType};

use crate::bed::Bed;
use crate::manager::{ADAPTERS, Manager, Smp, address, client};
use hca_sim::link::fabric::PortRef;

/// `PortInfo.CapabilityMask`: a subnet manager runs at the port.
const IS_SM: u32 = 1 << 1;

fn node_info(mad: &[u8; 256]) -> NodeInfo {
    NodeInfoView::new(sm::attribute(mad))
        .map(NodeInfo::parse)
        .unwrap()
}

/// Goal: a manager discovers the subnet before anything has a LID. Method: NodeInfo by directed routes of no, one, two
/// and three hops, of which the last two end at HCAs with and without a service of their own.
#[test]
fn directed_routes_lead_everywhere_before_there_are_lids() {
    let bed = Bed::new();
    let manager = Manager::on(&bed.nodes[0].device);
    let _service = block_on(MadService::of(&bed.nodes[1].device, 1)).unwrap();
    let ways: [(&[u8], NodeType, u8); 5] = [
        (&[], NodeType::CA, 1),
        (&[1], NodeType::SWITCH, 1),
        (&[1, 2], NodeType::CA, 1),
        (&[1, 3], NodeType::SWITCH, 1),
        (&[1, 3, 2], NodeType::CA, 1),
    ];
    for (path, node_type, local_port) in ways {
        let answer = manager.ask(path, Smp::get(AttributeId::NODE_INFO, 0));
        let info = node_info(&answer);
        assert_eq!(header_of(&answer).status(), sm::DIRECTION, "{path:?}");
        assert_eq!((info.node_type, info.local_port), (node_type, local_port));
    }
    let there = node_info(&manager.ask(&[1, 3, 2], Smp::get(AttributeId::NODE_INFO, 0)));
    assert_eq!(there.node_guid, bed.nodes[2].hca.guid());
}

/// Goal: what a manager sets becomes attributes and events of the device, in order.
#[test]
fn devices_have_what_the_manager_sets_and_are_told() {
    let bed = Bed::new();
    let [_, node, _] = &bed.nodes[..] else {
        unreachable!("three")
    };
    let before = node.device.query_port(1).wait().unwrap();
    assert_eq!((before.state, before.lid), (PortState::Init, Lid(0)));
    assert_eq!(before.gid, node.hca.gid());
    let attr = node.device.query_provider(1);
    assert_eq!(attr.transport, TransportType::InfiniBand);
    let manager = Manager::on(&bed.nodes[0].device);
    manager.bring_up();
    assert_eq!(
        node.events(),
        [
            EventType::LidChange,
            EventType::SmChange,
            EventType::ClientReregister,
            EventType::PortActive,
        ]
    );
    let now = node.device.query_port(1).wait().unwrap();
    assert_eq!(
        (now.state, now.lid, now.sm_lid),
        (PortState::Active, Lid(2), Lid(1))
    );
    assert_eq!(node.hca.lid(), Lid(2));

    let (_, _, path) = ADAPTERS[1];
    let prefix = 0xfe80_0000_0000_0001;
    manager.set_port(path, 1, |port| port.gid_prefix = prefix);
    let mut keys = PKeyBlock {
        keys: [PKey(0); 32],
    };
    (keys.keys[0], keys.keys[3]) = (PKey::DEFAULT, PKey(0x8123));
    let mut data = [0; PKeyBlock::LEN];
    keys.emit(&mut data);
    let what = Smp {
        method: Method::SET,
        attribute: AttributeId::PKEY_TABLE,
        modifier: 0,
        data: &data,
    };
    manager.ask(path, what);
    assert_eq!(node.events(), [EventType::GidChange, EventType::PkeyChange]);
    let gid = node.device.query_gid(1, 0).wait().unwrap();
    assert_eq!(
        (gid, &gid.0[..8]),
        (node.hca.gid(), &prefix.to_be_bytes()[..])
    );
    assert_eq!(node.device.query_pkey(1, 3).wait().unwrap(), PKey(0x8123));

    let at = PortRef {
        node: bed.switches[0],
        port: 2,
    };
    bed.subnet.with(Instant::ZERO, |subnet| {
        subnet.plug(Instant::ZERO, at, false)
    });
    assert_eq!(node.events(), [EventType::PortErr]);
    let now = node.device.query_port(1).wait().unwrap();
    assert_eq!(now.state, PortState::Down);
    node.hca.port_up();
    bed.subnet
        .with(Instant::ZERO, |subnet| subnet.plug(Instant::ZERO, at, true));
    let now = node.device.query_port(1).wait().unwrap();
    assert_eq!(now.state, PortState::Init, "it waits for the manager");
    assert_eq!(node.events(), []);
}

/// Goal: answers and traps reach the manager at its LID: answers by LID, and traps of the nodes that it manages,
/// repressed when received. Its port shows that it is a manager.
#[test]
fn traps_reach_the_manager() {
    let (bed, manager) = Bed::managed();
    let set = bed.nodes[0].device.modify_port(1).set_caps(IS_SM);
    set.wait().unwrap();
    // Its own port's mask has changed, so the first trap is from there.
    let expected = [
        (TrapNumber::LOCAL_CHANGES, Lid(1)),
        (TrapNumber::LINK_STATE, Lid(11)),
    ];
    let at = PortRef {
        node: bed.switches[1],
        port: 2,
    };
    for (number, (trap, from)) in (0..).zip(expected) {
        if number == 1 {
            bed.subnet.with(Instant::ZERO, |subnet| {
                subnet.plug(Instant::ZERO, at, false)
            });
        }
        let Delivery::Request {
            from: source, mad, ..
        } = manager.delivery()
        else {
            panic!("a trap is no answer");
        };
        let notice = NoticeView::new(&sm_notice(&mad))
            .map(Notice::parse)
            .unwrap();
        assert_eq!(
            (notice.trap, notice.issuer_lid, source.av.dlid),
            (trap, from, from)
        );
    }
    let mask = manager.port(&[], 1).capability_mask;
    assert!(mask.contains(CapabilityMask::IS_SM));
    let answer = manager.ask_lid(Lid(11), Smp::get(AttributeId::NODE_INFO, 0));
    assert_eq!(node_info(&answer).node_type, NodeType::SWITCH);
    assert_eq!(header_of(&answer).status(), Status::OK);
}

/// A notice with room for an issuer's GID, which traps do not have.
fn sm_notice(mad: &[u8; 256]) -> [u8; 80] {
    let mut notice = [0; 80];
    notice[..64].copy_from_slice(sm::attribute(mad));
    notice
}

/// Goal: datagrams of general services pass between HCAs by LID, and the port's own agents answer theirs in between.
/// Method: a client of a vendor's class at one end, which answers; then its port's counters.
#[test]
fn general_services_go_by_lid() {
    let (bed, manager) = Bed::managed();
    let (here, replies) = client();
    let (there, requests) = client();
    let service = block_on(MadService::of(&bed.nodes[0].device, 1)).unwrap();
    let asks = Arc::downgrade(&here) as std::sync::Weak<dyn MadClient>;
    let asks = service.register(Class::SA, 2, &[], asks).unwrap();
    let service = block_on(MadService::of(&bed.nodes[2].device, 1)).unwrap();
    let answers = Arc::downgrade(&there) as std::sync::Weak<dyn MadClient>;
    let answers = service
        .register(Class::SA, 2, &[Method::GET], answers)
        .unwrap();
    let mut mad = sa_get();
    mad[255] = 7;
    asks.request(address(Lid(3), 1), &mad, Retry::default())
        .unwrap();
    let wait = Duration::from_secs(60);
    let Ok(Delivery::Request { from, mut mad, .. }) = requests.recv_timeout(wait) else {
        panic!("no request");
    };
    assert_eq!((from.av.dlid, mad[255]), (Lid(1), 7));
    let header = MadHeader::parse(header_of(&mad));
    emit_header(&header.response(Status::OK), &mut mad);
    answers.send([(from, mad)]);
    let Ok(Delivery::Response { mad, .. }) = replies.recv_timeout(wait) else {
        panic!("no answer");
    };
    assert_eq!(mad[255], 7);
    // The service there has queue pair 0 too, and the device answers through it.
    let answer = manager.ask_lid(Lid(3), Smp::get(AttributeId::NODE_INFO, 0));
    assert_eq!(node_info(&answer).node_guid, bed.nodes[2].hca.guid());
    assert_eq!(service.counters().unclaimed, 0);
}

/// Goal: management requests that are never answered neither keep a device from being closed nor keep a caller waiting
/// when it is removed (P10). Method: a hundred of them, with an hour each, to an adapter without a service; on one
/// device the client is dropped, and the device is closed; the other is removed under its client.
#[test]
fn p10_unanswered_datagrams_hold_up_neither_close_nor_removal() {
    const REQUESTS: usize = 100;
    let (mut bed, _manager) = Bed::managed();
    let last = bed.nodes.pop().unwrap();
    let second = bed.nodes.pop().unwrap();
    let retry = Retry {
        timeout: Duration::from_secs(3600),
        retries: 0,
    };
    let ask = |device: &Device, lid| {
        let (client, deliveries) = client();
        let service = block_on(MadService::of(device, 1)).unwrap();
        let weak = Arc::downgrade(&client) as std::sync::Weak<dyn MadClient>;
        let agent = service.register(Class::SA, 2, &[], weak).unwrap();
        for _ in 0..REQUESTS {
            let mad = sa_get();
            agent.request(address(lid, 1), &mad, retry).unwrap();
        }
        assert_eq!(service.pending(), REQUESTS);
        (client, deliveries, service, agent)
    };

    let (_client, deliveries, service, agent) = ask(&last.device, Lid(2));
    last.hca.remove();
    let gone = |delivery| matches!(delivery, Delivery::TimedOut { .. });
    let wait = Duration::from_secs(60);
    for _ in 0..REQUESTS {
        assert!(gone(deliveries.recv_timeout(wait).unwrap()));
    }
    // A caller that asks now does not wait either.
    agent.request(address(Lid(2), 1), &sa_get(), retry).unwrap();
    assert!(gone(deliveries.recv_timeout(wait).unwrap()));
    assert_eq!(service.pending(), 0);

    let (_client, deliveries, service, agent) = ask(&second.device, Lid(3));
    drop((agent, service));
    second.device.close_when_idle().wait().unwrap();
    assert!(deliveries.try_recv().is_err(), "who has gone is not called");
}

fn sa_get() -> [u8; 256] {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: Class::SA,
        class_version: 2,
        method: Method::GET,
        attribute: AttributeId(0x35),
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    mad
}
