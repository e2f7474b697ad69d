//! A client owns what it has opened, and uses no more than its share.

use verbs_core::mad::sm::PERMISSIVE_LID;
use verbs_core::{Gid, Lid};

use super::*;
use crate::packet::Packet;
use verbs_wire::{Frame, Grh};

/// Goal: a client can affect neither the sessions nor the cables of another one. Method: a second client, an
/// operator and an unrelated connection try the first one's sessions, and numbers near them.
#[test]
fn what_a_client_has_is_its_own() {
    let mut world = World::new();
    let own = world.open("a");
    let owner = world.owners[&own];
    let wanted = 1 << 1 | 1 << 2;
    let registered = world.register(own, Class::SUBN_DIRECTED, wanted);
    assert_eq!(registered, Some(Message::Registered { agent: 0 }));
    let rival = world.connect();
    let operator = world.host.connect_operator().expect("there is room");
    let missing = Some(Message::Refused(Refusal::Missing));
    for other in [rival, operator] {
        for session in 0..16 {
            let unregister = Message::Unregister { session, agent: 0 };
            assert_eq!(world.say(other, &unregister), missing, "{session}");
            let registered = world.register_by(other, session, Class::PERF, 2);
            assert_eq!(registered, missing, "{session}");
        }
    }
    // Not even over the session's own connection, which may have been passed on.
    let unregister = Message::Unregister {
        session: own,
        agent: 0,
    };
    assert_eq!(world.say(own, &unregister), missing);
    let plug = Message::Plug {
        node: "a".into(),
        port: 1,
        is_in: false,
    };
    let denied = Some(Message::Refused(Refusal::Denied));
    assert_eq!(world.say(rival, &plug), denied);
    assert_eq!(world.say(own, &plug), denied);
    assert_eq!(world.say(operator, &plug), Some(Message::Done));
    let invalid = Some(Message::Refused(Refusal::Invalid));
    assert_eq!(world.say(operator, &open("a")), invalid);
    // The session has worked all along, and does as long as its owner is connected.
    let asked = world.open("a");
    let taken = world.register(asked, Class::SUBN_DIRECTED, 1 << 2);
    assert_eq!(taken, Some(Message::Refused(Refusal::Taken)));
    world.host.disconnect(world.now, rival);
    assert_eq!(world.host.poll_closed(), None);
    world.host.disconnect(world.now, owner);
    assert_eq!(world.host.poll_closed(), Some(own));
    let registered = world.register(asked, Class::SUBN_DIRECTED, 1 << 2);
    assert_eq!(registered, Some(Message::Registered { agent: 0 }));
}

/// Goal: a session that uses all of its share takes nothing from another one at the same port. Method: one that
/// registers, and sends requests in every class, until it is refused; then an honest one does the same as alone.
#[test]
fn a_session_has_its_share_and_no_more() {
    let limits = HostLimits {
        requests_of_session_max: 8,
        ..HostLimits::default()
    };
    let mut world = World::with_limits(limits);
    let greedy: Vec<u32> = (0..4).map(|_| world.open("a")).collect();
    for &session in &greedy {
        for agent in 0..32 {
            let registered = world.register(session, Class::SUBN_DIRECTED, 0);
            assert_eq!(registered, Some(Message::Registered { agent }));
        }
        let refused = world.register(session, Class::SUBN_DIRECTED, 0);
        assert_eq!(refused, Some(Message::Refused(Refusal::Full)));
        // In every class, from every registration, to a node that does not exist.
        for number in 0..1024_u32 {
            let mut mad = question(AttributeId::NODE_INFO, &[1, 2, 1], number.into());
            mad[1] = number as u8;
            let Message::Mad(message) = send(&mad, 1000) else {
                unreachable!()
            };
            let message = Message::Mad(MadMessage {
                agent: number % 32,
                lid: Lid(999),
                ..message
            });
            world
                .host
                .handle(world.now, session, &message.encode())
                .expect("a message");
            while let Some((to, _)) = world.host.poll_transmit() {
                assert_eq!(to, session, "it is told what it has no room for");
            }
        }
    }
    let honest = world.open("a");
    let registered = world.register(honest, Class::SUBN_DIRECTED, 1 << 2);
    assert_eq!(registered, Some(Message::Registered { agent: 0 }));
    let asked = question(AttributeId::NODE_DESCRIPTION, &[1, 2], 7);
    for _ in 0..100 {
        let got = heard_mad(world.say(honest, &send(&asked, 100)));
        assert_eq!(got.status, 0);
    }
    // Ended sessions no longer count.
    world.host.disconnect(world.now, world.owners[&honest]);
    for session in greedy {
        world.host.disconnect(world.now, world.owners[&session]);
        while world.host.poll_closed().is_some() {}
    }
    assert_eq!(world.host.poll_timeout(), None, "nothing is waited for");
}

/// Goal: clients that connect and disconnect leave nothing behind. Method: 10,000 of each kind; the size of the
/// host's state is unchanged.
#[test]
fn clients_that_go_leave_nothing() {
    let mut world = World::new();
    let one_round = |world: &mut World| {
        let client = world.connect();
        let Some(Message::Opened { session }) = world.say(client, &open("a")) else {
            panic!("it is free");
        };
        world.register_by(client, session, Class::SUBN_DIRECTED, 1 << 2);
        let lost = question(AttributeId::NODE_INFO, &[1, 2, 1], 9);
        assert_eq!(world.say(session, &send(&lost, 100)), None);
        let attached = world.connect();
        let attach = Message::Attach {
            host: "b".into(),
            adapter: 0,
            port: 1,
        };
        assert!(matches!(
            world.say(attached, &attach),
            Some(Message::Attached(_))
        ));
        let operator = world.host.connect_operator().expect("there is room");
        for gone in [attached, operator, client] {
            world.host.disconnect(world.now, gone);
        }
        assert_eq!(world.host.poll_closed(), Some(session));
        while world.host.poll_transmit().is_some() {}
    };
    one_round(&mut world);
    let size = |world: &World| format!("{:?}", world.host).len();
    let before = size(&world);
    for _ in 0..10_000 {
        one_round(&mut world);
    }
    // Counters and numbers have more digits.
    assert!(size(&world) < before + 256, "{before}, {}", size(&world));
    assert!(world.host.connect().is_some());
}

/// Goal: limits hold, and those of clients leave room for operators. Method: small ones.
#[test]
fn there_may_be_so_many() {
    let limits = HostLimits {
        clients_max: 4,
        operators_max: 1,
        sessions_of_client_max: 2,
        nodes_of_host_max: 2,
        ..HostLimits::default()
    };
    let mut world = World::with_limits(limits);
    let full = Some(Message::Refused(Refusal::Full));
    let client = world.connect();
    for _ in 0..2 {
        let opened = world.say(client, &open("a"));
        assert!(matches!(opened, Some(Message::Opened { .. })), "{opened:?}");
    }
    assert_eq!(world.say(client, &open("a")), full);
    let other = world.connect();
    assert_eq!(world.host.connect(), None);
    assert_eq!(world.say(other, &open("a")), full, "sessions count as well");
    let operator = world.host.connect_operator().expect("a place of its own");
    assert_eq!(world.host.connect_operator(), None);
    let look = |host: &str| Message::Look { host: host.into() };
    assert_eq!(world.say(other, &look("a,b,s")), full);
    assert!(matches!(
        world.say(other, &look("a,b")),
        Some(Message::Adapters(_))
    ));
    world.host.disconnect(world.now, operator);
    assert!(world.host.connect_operator().is_some());
    world.host.disconnect(world.now, client);
    let again: Vec<_> = (0..4).map_while(|_| world.host.connect()).collect();
    assert_eq!(again.len(), 3);
}

/// A packet in an HCA's wire format.
fn on_the_wire(packet: &Packet) -> Vec<u8> {
    let mut body = Vec::new();
    let transport = packet.transport(&mut body).expect("it can be said");
    let mut headers = [0; Frame::LEN_MAX];
    let frame = packet.frame();
    let len = frame
        .emit(transport.len(), &mut headers)
        .expect("it is short");
    [&headers[..len], transport].concat()
}

/// Goal: an HCA sends only from its own port's LIDs and GIDs, whatever it writes into its packets. Method:
/// packets from others' LIDs and GIDs, short messages and long ones; directed ones, which have none, are
/// answered.
#[test]
fn an_hca_speaks_for_nobody_else() {
    let mut world = World::new();
    let client = world.connect();
    let attach = Message::Attach {
        host: "a".into(),
        adapter: 0,
        port: 1,
    };
    let attached = world.say(client, &attach);
    assert!(matches!(attached, Some(Message::Attached(_))));
    let give = |world: &mut World, packet: &Packet, times: usize| {
        let mut message = on_the_wire(packet).repeat(times);
        let len = message.len();
        let before = world.host.counters().forged;
        let taken = world
            .host
            .handle_packets(world.now, client, &mut message, len);
        taken.expect("they are packets");
        world.host.counters().forged - before
    };
    let mad = || Box::new(question(AttributeId::NODE_DESCRIPTION, &[1, 2], 7));
    let directed = Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad());
    assert_eq!(give(&mut world, &directed, 1), 0);
    let (to, answer) = world.host.poll_packets().expect("it is answered");
    assert!(to == client && answer.len() > 256);
    for slid in [Lid(1), Lid(9), Lid(0xc000)] {
        assert_eq!(give(&mut world, &Packet::smp(slid, Lid(9), mad()), 1), 1);
        for times in [1, 40] {
            let packet = Packet::gmp(slid, Lid(9), mad());
            assert_eq!(give(&mut world, &packet, times), times as u64, "{slid:?}");
        }
    }
    let at = PortRef {
        node: world.host.topology.find("a").expect("it is there"),
        port: 1,
    };
    let own = world
        .host
        .subnet()
        .node(at.node)
        .and_then(|node| node.port(1)?.gid(0));
    for (sgid, forged) in [(own.expect("a GID"), 0), (Gid([7; 16]), 1)] {
        let grh = Grh {
            sgid,
            ..Grh::default()
        };
        let packet = Packet {
            grh: Some(grh),
            ..directed.clone()
        };
        assert_eq!(give(&mut world, &packet, 1), forged);
    }
    assert_eq!(world.host.poll_packets().map(|(to, _)| to), Some(client));
    assert_eq!(world.host.poll_packets(), None);
}
