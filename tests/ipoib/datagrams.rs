//! Datagrams: echoes, streams, groups, and the fate of packets that cannot be sent.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ulp_ipoib::wire::{IpError, Scope, broadcast, group_of};
use ulp_ipoib::{Mode, SendError};
use verbs_core::mad::sa::JoinState;
use verbs_core::{EventType, PKey, QKey};
use verbs_simulator::Sim;

use crate::node::{Node, World};

/// Runs a scenario of at most a few minutes.
pub(crate) fn run<F: Future<Output = ()>>(seed: u64, scenario: impl FnOnce(World) -> F) {
    let world = World::new(seed);
    let sim: Sim = world.sim.clone();
    let end = sim.now() + Duration::from_secs(3600);
    sim.run_until(end, scenario(world)).unwrap();
}

#[test]
fn echoes_come_back() {
    for is_v6 in [false, true] {
        run(1, async |world| {
            let mut a = world.node(1, Mode::Datagram, is_v6).await;
            let mut b = world.node(2, Mode::Datagram, is_v6).await;
            assert_eq!(a.link.interface().link().mtu, 2044);
            assert_eq!(world.ping(&mut a, &mut b, 50, 56).await, 50);
            assert_eq!(world.ping(&mut a, &mut b, 10, 1900).await, 10);
            let (ours, theirs) = (a.counters(), b.counters());
            assert_eq!(ours.asked, 1, "{ours:?}");
            assert_eq!((ours.paths_asked, theirs.paths_asked), (1, 1));
            assert_eq!(ours.datagrams_received, theirs.datagrams_sent);
        });
    }
}

#[test]
fn ten_thousand_echoes_come_back_while_the_manager_restarts() {
    run(2, async |world| {
        let mut a = world.node(1, Mode::Datagram, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        for round in 0..10 {
            // The same parameters: members have joined again, and nothing else has changed.
            world.admin.restart(QKey(0x0b1c));
            a.raise(EventType::ClientReregister);
            b.raise(EventType::SmChange);
            assert_eq!(world.ping(&mut a, &mut b, 1000, 56).await, 1000, "{round}");
        }
        let counters = a.counters();
        assert_eq!(
            (counters.refreshes, counters.link_ups),
            (10, 1),
            "{counters:?}"
        );
        assert!(world.admin.paths_asked() >= 20, "paths are asked for anew");
    });
}

#[test]
fn streams_arrive_whole() {
    for is_v6 in [false, true] {
        run(3, async |world| {
            let mut a = world.node(1, Mode::Datagram, is_v6).await;
            let mut b = world.node(2, Mode::Datagram, is_v6).await;
            world.stream(&mut a, &mut b, 1 << 20).await;
            assert_eq!(a.counters().connected_sent, 0);
        });
    }
}

#[test]
fn subscribers_of_a_group_get_what_is_sent_to_it_and_others_do_not() {
    run(4, async |world| {
        let mut a = world.node(1, Mode::Datagram, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        let mut c = world.node(3, Mode::Datagram, false).await;
        let group = IpAddr::from([239, 1, 2, 3]);
        let mgid = group_of(group, PKey::DEFAULT, Scope::default()).unwrap();
        let sockets = [&mut a, &mut b, &mut c].map(|node| node.add_udp(5000));
        b.subscribe(group);
        let settled = Duration::from_secs(1);
        world
            .drive(&mut [&mut a, &mut b, &mut c], settled, |_| false)
            .await;
        assert_eq!(world.admin.members(mgid, JoinState::FULL_MEMBER), 1);
        let send = |a: &mut Node, text: &[u8]| {
            a.udp(sockets[0]).send_slice(text, (group, 5000)).unwrap();
        };
        send(&mut a, b"first");
        world
            .drive(&mut [&mut a, &mut b, &mut c], settled, |_| false)
            .await;
        let kind = JoinState::SEND_ONLY_NON_MEMBER;
        assert_eq!(
            world.admin.members(mgid, kind),
            1,
            "who only sends joins for that"
        );
        assert_eq!(b.udp(sockets[1]).recv().unwrap().0, b"first");
        assert!(!c.udp(sockets[2]).can_recv() && !a.udp(sockets[0]).can_recv());

        // A group that was only sent to can be subscribed to, and then receives what others send.
        a.subscribe(group);
        world
            .drive(&mut [&mut a, &mut b, &mut c], settled, |_| false)
            .await;
        assert_eq!(world.admin.members(mgid, JoinState::FULL_MEMBER), 2);
        assert_eq!(world.admin.members(mgid, kind), 0);
        b.udp(sockets[1])
            .send_slice(b"second", (group, 5000))
            .unwrap();
        world
            .drive(&mut [&mut a, &mut b, &mut c], settled, |_| false)
            .await;
        assert_eq!(a.udp(sockets[0]).recv().unwrap().0, b"second");
        assert!(
            !b.udp(sockets[1]).can_recv(),
            "its own packets do not come back"
        );
        b.unsubscribe(group);
        world
            .drive(&mut [&mut a, &mut b, &mut c], settled, |_| false)
            .await;
        assert_eq!(world.admin.members(mgid, JoinState::FULL_MEMBER), 1);
    });
}

#[test]
fn groups_that_a_stack_reports_are_joined_and_left() {
    run(6, async |world| {
        let mut a = world.node(1, Mode::Datagram, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        let group = IpAddr::from([239, 1, 2, 3]);
        let mgid = group_of(group, PKey::DEFAULT, Scope::default()).unwrap();
        let sockets = [&mut a, &mut b].map(|node| node.add_udp(5000));
        let members = || world.admin.members(mgid, JoinState::FULL_MEMBER);
        let settled = Duration::from_secs(3);
        b.join(group);
        world.drive(&mut [&mut a, &mut b], settled, |_| false).await;
        assert_eq!(members(), 1);
        a.udp(sockets[0])
            .send_slice(b"text", (group, 5000))
            .unwrap();
        world.drive(&mut [&mut a, &mut b], settled, |_| false).await;
        assert_eq!(b.udp(sockets[1]).recv().unwrap().0, b"text");
        b.leave(group);
        world.drive(&mut [&mut a, &mut b], settled, |_| false).await;
        assert_eq!(members(), 0);
    });
}

#[test]
fn a_packet_that_is_too_long_is_answered_and_not_sent() {
    run(5, async |world| {
        let mut a = world.node(1, Mode::Datagram, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        assert_eq!(world.ping(&mut a, &mut b, 1, 56).await, 1);
        let mut packet = vec![0; 3000];
        packet[..10].copy_from_slice(&[0x45, 0, 0x0b, 0xb8, 0, 0, 0x40, 0, 64, 17]);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let sent = a.counters().datagrams_sent;
        a.link.interface().send(&packet).unwrap();
        assert_eq!(
            (a.counters().too_big, a.counters().datagrams_sent),
            (1, sent)
        );
        let told = a.take_raw().unwrap();
        assert_eq!(
            (told[9], told[20], told[21]),
            (1, 3, 4),
            "fragmentation needed"
        );
        assert_eq!(u16::from_be_bytes([told[26], told[27]]), 2044);
        assert_eq!(
            a.link.interface().send(&[]),
            Err(SendError::NotIp(IpError::Truncated { got: 0 }))
        );
    });
}

#[test]
fn the_link_comes_back_after_its_port_its_partition_and_its_terms_have_changed() {
    run(6, async |world| {
        let mut a = world.node(1, Mode::Datagram, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        assert_eq!(world.ping(&mut a, &mut b, 5, 56).await, 5);

        a.hca.port_down();
        world.until_link(&mut a, false).await;
        assert_eq!(a.link.interface().send(&[0x45; 20]), Err(SendError::Down));
        a.hca.port_up();
        world.until_link(&mut a, true).await;
        assert_eq!(world.ping(&mut a, &mut b, 5, 56).await, 5);

        // Out of the partition, and back as a limited member, which may talk to full ones.
        a.hca.set_pkey(PKey(0x8123));
        world.until_link(&mut a, false).await;
        a.hca.set_pkey(PKey(0x7fff));
        world.until_link(&mut a, true).await;
        assert_eq!(a.link.interface().link().pkey, PKey(0x7fff));
        assert_eq!(world.ping(&mut a, &mut b, 5, 56).await, 5);

        // Another manager, with another Q_Key: no node receives anything until all have it.
        world.admin.restart(QKey(0x7777));
        let settled = Duration::from_secs(1);
        world.drive(&mut [&mut a, &mut b], settled, |_| false).await;
        assert_eq!(world.ping(&mut a, &mut b, 5, 56).await, 5);
        assert_eq!(a.counters().link_ups, 4);
    });
}

#[test]
fn without_a_path_packets_are_dropped_until_there_is_one() {
    run(7, async |world| {
        let mut a = world.node(1, Mode::Datagram, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        world.admin.paths(false);
        assert_eq!(world.ping(&mut a, &mut b, 3, 56).await, 0);
        // The node that is asked cannot answer, and so it is not found.
        assert_eq!((b.counters().unreachable, a.counters().unresolved), (3, 3));
        world.admin.paths(true);
        assert_eq!(world.ping(&mut a, &mut b, 5, 56).await, 5);
        // And an address that no node has.
        let nobody = IpAddr::from([10, 0, 0, 99]);
        a.send_echo(nobody, 1, 56);
        let long = Duration::from_secs(10);
        world.drive(&mut [&mut a, &mut b], long, |_| false).await;
        assert_eq!(a.counters().unresolved, 4);
        assert_eq!(a.link.interface().resolve(nobody).await, None);
        let found = a.link.interface().resolve(b.addr).await;
        assert_eq!(found, Some(b.link.interface().link().hardware));
    });
}

#[test]
fn children_in_two_partitions_do_not_hear_each_other() {
    run(8, async |world| {
        let mut a = world.node(1, Mode::Datagram, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        assert_eq!(world.ping(&mut a, &mut b, 1, 56).await, 1);
        let config = a.link.interface().config().clone();
        let child = config.child(PKey(0x8005), vec![([10, 5, 0, 1].into(), 24)]);
        let link = world.embedded(&a, child).await;
        let settled = Duration::from_secs(5);
        world.drive(&mut [&mut a, &mut b], settled, |_| false).await;
        assert!(!link.interface().link().is_up, "the port is no member");
        a.hca.set_pkey(PKey(0x8005));
        while !link.interface().link().is_up {
            link.readable().await;
        }
        assert!(
            !a.link.interface().link().is_up,
            "and of the other it is none any more"
        );
    });
}

#[test]
fn an_interface_that_goes_leaves_nothing_behind() {
    run(9, async |world| {
        let mut a = world.node(1, Mode::Connected, false).await;
        let mut b = world.node(2, Mode::Connected, false).await;
        assert_eq!(world.ping(&mut a, &mut b, 5, 9000).await, 5);
        let (broadcast, devices) = (broadcast(PKey::DEFAULT, Scope::default()), [&a, &b]);
        assert_eq!(world.admin.members(broadcast, JoinState::FULL_MEMBER), 2);
        let devices = devices.map(|node| Arc::clone(&node.device));
        drop((a, b));
        world.sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.admin.members(broadcast, JoinState::FULL_MEMBER), 0);
        for device in devices {
            assert_eq!(device.objects(), 0, "{:?}", device.in_flight());
        }
    });
}
