//! Who shares a group, and what becomes of subscriptions when the administrator refuses or the link goes down. Method:
//! one interface whose programs and whose stack want the same group, and an administrator that counts, in virtual time.

use std::net::Ipv4Addr;
use std::time::Duration;

use ulp_ipoib::config::{GROUPS_MAX, JOIN_PAUSE, REFUSAL_PAUSE, TICK};
use ulp_ipoib::wire::{Scope, checksum, group_of};
use ulp_ipoib::{Config, Interface, Mode};
use verbs_core::PKey;
use verbs_core::mad::sa::JoinState;
use verbs_sm::{Config as SmConfig, Partition};

use crate::datagrams::run;
use crate::node::{World, address};
use crate::peer::packet;
use crate::subnet::Lab;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const SECOND: Duration = Duration::from_secs(1);

/// Kinds of reports of IGMPv2: a member is there, a member leaves.
const REPORT: u8 = 0x16;
const LEAVE: u8 = 0x17;

/// Members of the group that receive.
fn members(world: &World) -> usize {
    let mgid = group_of(GROUP.into(), PKey::DEFAULT, Scope::default()).unwrap();
    world.admin.members(mgid, JoinState::FULL_MEMBER)
}

/// The stack reports that it wants the group, or that it does not.
fn report(interface: &Interface, kind: u8) {
    let mut message = [kind, 0, 0, 0, 239, 1, 2, 3];
    let sum = checksum(0, &message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let (own, _) = interface.config().addresses[0];
    let mut packet = packet(own, GROUP.into(), 28, 0);
    packet[9] = 2;
    packet[20..].copy_from_slice(&message);
    interface.send(&packet).unwrap();
}

/// Goal: a group is left with its last subscriber, whatever they are. Method: two programs; a program and the stack.
#[test]
fn a_group_stays_until_its_last_subscriber_goes() {
    run(71, async |world| {
        let node = world.node(1, Mode::Datagram, false).await;
        let interface = node.link.interface();
        let after = async |expected: usize| {
            world.sim.sleep(SECOND).await;
            assert_eq!(members(&world), expected);
        };
        interface.subscribe(GROUP.into()).unwrap();
        interface.subscribe(GROUP.into()).unwrap();
        after(1).await;
        interface.unsubscribe(GROUP.into());
        after(1).await;
        interface.unsubscribe(GROUP.into());
        after(0).await;

        interface.subscribe(GROUP.into()).unwrap();
        report(interface, REPORT);
        after(1).await;
        report(interface, LEAVE);
        after(1).await;
        interface.unsubscribe(GROUP.into());
        after(0).await;
    });
}

/// Goal: an interface that is closed has left all its groups when that is over, which is when the administrator has answered;
/// one whose close is dropped leaves them as well. Method: an administrator that does not answer for a second.
#[test]
fn a_closed_interface_has_left_its_groups() {
    for waits in [true, false] {
        run(73, async |world| {
            let node = world.node(1, Mode::Connected, false).await;
            node.link.interface().subscribe(GROUP.into()).unwrap();
            world.sim.sleep(SECOND).await;
            assert_eq!((members(&world), world.admin.all_members() > 1), (1, true));
            world.admin.hold(true);
            let mut closing = Box::pin(node.link.close());
            if waits {
                let early = world.sim.timeout(SECOND, &mut closing).await;
                assert!(early.is_none(), "the administrator has not answered");
                assert_eq!(members(&world), 1);
                world.admin.hold(false);
                closing.await;
            } else {
                drop(closing);
                world.admin.hold(false);
                world.sim.sleep(SECOND).await;
            }
            assert_eq!(world.admin.all_members(), 0);
        });
    }
}

/// Goal: the stack's reports are one subscription, however often it reports, and one that the link takes down does not
/// end. Method: several reports and one leave; the same with the link down in between, where the stack reports again,
/// as it may, or does not.
#[test]
fn reports_are_one_subscription() {
    for (is_cut, reports_again) in [(false, false), (true, false), (true, true)] {
        run(72, async |world| {
            let mut node = world.node(1, Mode::Datagram, false).await;
            for _ in 0..3 {
                report(node.link.interface(), REPORT);
            }
            world.sim.sleep(SECOND).await;
            assert_eq!(members(&world), 1);
            if is_cut {
                node.hca.port_down();
                world.until_link(&mut node, false).await;
                assert_eq!(members(&world), 0, "it has left");
                node.hca.port_up();
                world.until_link(&mut node, true).await;
                world.sim.sleep(SECOND).await;
                assert_eq!(members(&world), 1, "and joined again");
            }
            if reports_again {
                report(node.link.interface(), REPORT);
            }
            report(node.link.interface(), LEAVE);
            world.sim.sleep(SECOND).await;
            assert_eq!(members(&world), 0);
        });
    }
}

/// Goal: reports mean nothing to an interface whose programs subscribe themselves. Method: the same report, with and
/// without the option.
#[test]
fn reports_are_followed_where_they_are_to_be() {
    for follows_reports in [false, true] {
        run(73, async |world| {
            let node = world.node(2, Mode::Datagram, false).await;
            let config = Config {
                follows_reports,
                ..address(1, Mode::Datagram, false)
            };
            let link = world.embedded(&node, config).await;
            while !link.interface().link().is_up {
                link.readable().await;
            }
            report(link.interface(), REPORT);
            world.sim.sleep(SECOND).await;
            assert_eq!(members(&world), usize::from(follows_reports));
        });
    }
}

/// Goal: a subscribed group that cannot be joined is asked for once per pause, until it can be. Method: an administrator
/// that refuses for a while, and counts.
#[test]
fn a_refused_subscription_is_tried_again() {
    run(74, async |world| {
        let node = world.node(1, Mode::Datagram, false).await;
        world.admin.refuse(true);
        let before = world.admin.joins();
        node.link.interface().subscribe(GROUP.into()).unwrap();
        world.sim.sleep(10 * REFUSAL_PAUSE).await;
        let joins = world.admin.joins() - before;
        assert!((7..=11).contains(&joins), "{joins} joins in ten pauses");
        assert_eq!(members(&world), 0);
        world.admin.refuse(false);
        world.sim.sleep(REFUSAL_PAUSE + 2 * TICK).await;
        assert_eq!(members(&world), 1);
        let before = world.admin.joins();
        world.sim.sleep(10 * REFUSAL_PAUSE).await;
        assert_eq!(world.admin.joins(), before, "it is joined");
    });
}

/// Goal: who sends to groups does not make the interface ask for more of them than it keeps. Method: a packet to each of
/// twice as many groups, none of which exists.
#[test]
fn groups_that_are_sent_to_have_a_limit() {
    run(75, async |world| {
        let node = world.node(1, Mode::Datagram, false).await;
        world.admin.refuse(true);
        let (joins, dropped) = (world.admin.joins(), node.counters().unreachable);
        let count = 2 * GROUPS_MAX;
        for number in 0..u32::try_from(count).unwrap() {
            let group = Ipv4Addr::from(0xefff_0000 + number);
            let packet = packet(node.addr, group.into(), 60, 0);
            node.link.interface().send(&packet).unwrap();
        }
        let joins = (world.admin.joins() - joins) as usize;
        assert!((GROUPS_MAX - 8..GROUPS_MAX).contains(&joins), "{joins}");
        world.sim.sleep(SECOND).await;
        let dropped = node.counters().unreachable - dropped;
        assert_eq!(dropped, count as u64, "each is counted");
    });
}

/// Goal: attempts to bring the link up become rarer, and start over after a success. Method: the broadcast group is
/// refused for a minute, twice; each attempt asks for it, and then to create it.
#[test]
fn attempts_to_come_up_grow_rarer() {
    run(76, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        for _ in 0..2 {
            world.admin.refuse(true);
            node.hca.port_down();
            world.until_link(&mut node, false).await;
            let before = world.admin.joins();
            node.hca.port_up();
            let mut attempts = Vec::new();
            for _ in 0..6 {
                world.sim.sleep(10 * SECOND).await;
                attempts.push((world.admin.joins() - before) / 2);
            }
            // 0, 0.25, 0.75, 1.75, 3.75, 7.75 seconds, and then one every 8 seconds.
            assert_eq!(attempts[0], 6, "{attempts:?}");
            assert!((11..=13).contains(&attempts[5]), "{attempts:?}");
            world.admin.refuse(false);
            world.sim.sleep(JOIN_PAUSE.1 + SECOND).await;
            assert!(node.link.interface().link().is_up);
        }
    });
}

/// Goal: where the port is a full and a limited member of a partition, the interface is a full one: limited members do
/// not hear each other. Method: the limited key is put before the full one.
#[test]
fn a_full_membership_is_preferred() {
    run(77, async |world| {
        let other = Partition {
            pkey: PKey(0x8005),
            ipoib: false,
            ..Partition::default()
        };
        let config = SmConfig {
            partitions: vec![other, Partition::default()],
            ..SmConfig::default()
        };
        let lab = Lab::new(&world, config).await;
        let node = lab.node("A", address(1, Mode::Datagram, false)).await;
        let before = node.counters().link_ups;
        node.hca.set_pkey(PKey(0x7fff));
        world.sim.sleep(10 * SECOND).await;
        assert_eq!(node.counters().link_ups, before + 1, "it has looked again");
        assert_eq!(node.device.query_pkey(1, 0).await.unwrap(), PKey(0x7fff));
        let link = node.link.interface().link();
        assert_eq!((link.is_up, link.pkey), (true, PKey::DEFAULT));
    });
}
