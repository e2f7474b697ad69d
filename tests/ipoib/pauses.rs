//! Packets that wait for the administrator, how long its refusals are remembered, and full tables. Method: one
//! interface, a [`Peer`], and an administrator that refuses or does not answer, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ulp_ipoib::config::{ASKS_MAX, GROUP_QUEUE, GROUPS_MAX, NEIGHBOURS_MAX, REFUSAL_PAUSE, TICK};
use ulp_ipoib::wire::{Arp, ArpOperation, HardwareFlags, Protocol, Scope, group_of};
use ulp_ipoib::{Config, Mode};
use verbs_core::PKey;
use verbs_core::mad::sa::JoinState;

use crate::datagrams::run;
use crate::node::{Node, address};
use crate::peer::{Heard, Message, Peer, packet};

const STEP: Duration = Duration::from_millis(50);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

fn send(node: &Node, to: Ipv4Addr, mark: u8) {
    let packet = packet(node.addr, IpAddr::V4(to), 60, mark);
    node.link.interface().send(&packet).unwrap();
}

fn answer_arp(peer: &mut Peer, heard: &Heard) {
    if let Message::Arp(arp) = &heard.what
        && arp.operation == ArpOperation::Request
    {
        let reply = arp.reply(peer.at(HardwareFlags::empty())).emit();
        peer.send_to(arp.sender.0, Protocol::Arp, &reply);
    }
}

/// Goal: the administrator is asked for a path once per pause when there is none, and again after it. Method: packets
/// every 50 ms; paths that become available again.
#[test]
fn a_path_that_is_refused_is_asked_for_after_a_pause() {
    run(51, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let to = Ipv4Addr::new(10, 0, 0, 9);
        world.admin.paths(false);
        send(&node, to, 0);
        while node.counters().paths_asked == 0 {
            world
                .meet(&mut node, &mut peer, STEP / 10, |peer, _, _, heard| {
                    answer_arp(peer, &heard);
                })
                .await;
        }
        let steps = u64::try_from(REFUSAL_PAUSE.as_millis() / STEP.as_millis()).unwrap();
        let unreachable = node.counters().unreachable;
        for _ in 0..steps - 2 {
            send(&node, to, 1);
            world
                .meet(&mut node, &mut peer, STEP, |_, _, _, _| ())
                .await;
        }
        let counters = node.counters();
        assert_eq!(
            (counters.paths_asked, counters.unreachable),
            (1, unreachable + steps - 2)
        );
        world.admin.paths(true);
        let mut got = Vec::new();
        for mark in 10..16 {
            send(&node, to, mark);
            world
                .meet(&mut node, &mut peer, STEP, |_, _, _, heard| {
                    if let Message::Ip(packet) = heard.what {
                        got.extend(packet.last().copied());
                    }
                })
                .await;
        }
        assert_eq!(node.counters().paths_asked, 2);
        assert!(got.len() >= 3 && got.last() == Some(&15), "{got:?}");
    });
}

/// Goal: a group that cannot be joined is not asked for again before a pause is over, and then it is. Method: packets
/// to a group that does not exist; then it does.
#[test]
fn a_group_that_is_refused_is_asked_for_after_a_pause() {
    run(52, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let before = node.counters().unreachable;
        send(&node, GROUP, 1);
        world
            .meet(&mut node, &mut peer, STEP, |_, _, _, _| ())
            .await;
        assert_eq!(
            node.counters().unreachable,
            before + 1,
            "there is no such group"
        );
        let mgid = group_of(GROUP.into(), PKey::DEFAULT, Scope::default()).unwrap();
        peer.attach(&world, mgid).await;
        let mut got = Vec::new();
        let steps = u8::try_from(2 * REFUSAL_PAUSE.as_millis() / STEP.as_millis()).unwrap();
        for mark in 2..steps {
            send(&node, GROUP, mark);
            world
                .meet(&mut node, &mut peer, STEP, |_, _, _, heard| {
                    if let Message::Ip(packet) = heard.what {
                        got.extend(packet.last().copied());
                    }
                })
                .await;
        }
        assert!((16..=22).contains(&got[0]), "after the pause: {got:?}");
        assert!(
            got.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "then all: {got:?}"
        );
    });
}

/// Goal: while a group is being joined the oldest packets are dropped, and the others are sent in order. Method: an
/// administrator that answers late; more packets than there is room for.
#[test]
fn the_newest_packets_wait_for_a_group() {
    run(53, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let mgid = group_of(GROUP.into(), PKey::DEFAULT, Scope::default()).unwrap();
        peer.attach(&world, mgid).await;
        world.admin.hold(true);
        let count = GROUP_QUEUE as u8 + 5;
        (0..count).for_each(|mark| send(&node, GROUP, mark));
        let mut got = Vec::new();
        for is_held in [true, false] {
            world.admin.hold(is_held);
            world
                .meet(&mut node, &mut peer, STEP, |_, _, _, heard| {
                    if let Message::Ip(packet) = heard.what {
                        got.extend(packet.last().copied());
                    }
                })
                .await;
            assert_eq!(got.is_empty(), is_held);
        }
        assert_eq!(got, (5..count).collect::<Vec<_>>());
        assert_eq!(node.counters().pushed_out, 5);
    });
}

/// Goal: groups that are only sent to do not fill the table for ever. Method: as many refused groups as it holds, and
/// one that exists, which is used more often than once in the idle time, then not at all, then again.
#[test]
fn groups_that_are_only_sent_to_are_left_when_they_are_not_used() {
    run(56, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let idle = node.link.interface().config().idle;
        for number in 0..u8::try_from(GROUPS_MAX).unwrap() {
            send(&node, Ipv4Addr::new(239, 9, 9, number), 0);
        }
        world.sim.sleep(REFUSAL_PAUSE + 2 * TICK).await;
        let mgid = group_of(GROUP.into(), PKey::DEFAULT, Scope::default()).unwrap();
        peer.attach(&world, mgid).await;
        let senders = || world.admin.members(mgid, JoinState::SEND_ONLY_NON_MEMBER);
        for (pause, is_left) in [
            (idle / 2, false),
            (idle / 2, false),
            (idle, true),
            (STEP, false),
        ] {
            let mut got = 0;
            send(&node, GROUP, 7);
            world
                .meet(&mut node, &mut peer, STEP, |_, _, _, heard| {
                    got += u32::from(matches!(heard.what, Message::Ip(_)));
                })
                .await;
            assert_eq!((got, senders()), (1, 1));
            world.sim.sleep(pause + 2 * TICK).await;
            assert_eq!(senders(), usize::from(!is_left), "after {pause:?}");
        }
        assert_eq!(node.counters().groups_left, 1);
    });
}

/// Goal: a caller that waits for a neighbour is answered after all requests, although nothing is sent to it. Method: an
/// interface that forgets what is not used for half a second, and an address that no node has.
#[test]
fn who_waits_has_the_neighbour_asked_to_the_end() {
    run(54, async |world| {
        let node = world.node(2, Mode::Datagram, false).await;
        let config = Config {
            reachable: Duration::from_millis(500),
            ..address(1, Mode::Datagram, false)
        };
        let link = world.embedded(&node, config).await;
        while !link.interface().link().is_up {
            link.readable().await;
        }
        let begin = world.sim.now();
        let nobody = IpAddr::from([10, 0, 0, 99]);
        assert_eq!(link.interface().resolve(nobody).await, None);
        assert_eq!(link.interface().counters().asked, u64::from(ASKS_MAX));
        assert!(world.sim.now() - begin >= Duration::from_secs(3));
    });
}

/// Goal: who asks for a neighbour whose path is refused is answered, and finds it when there is a path. Method: a
/// neighbour that has asked for this node, so that its address is known, and paths that become available.
#[test]
fn who_waits_for_a_refused_path_is_answered() {
    run(57, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let IpAddr::V4(own) = node.addr else {
            unreachable!()
        };
        let to = Ipv4Addr::new(10, 0, 0, 9);
        let at = peer.at(HardwareFlags::empty());
        world.admin.paths(false);
        peer.arp(&node, ArpOperation::Request, (at, to), own);
        world
            .meet(&mut node, &mut peer, STEP, |_, _, _, _| ())
            .await;
        let interface = node.link.interface();
        assert_eq!(interface.neighbours(), [(IpAddr::V4(to), at)]);
        let begin = world.sim.now();
        assert_eq!(interface.resolve(to.into()).await, None);
        assert!(world.sim.now() - begin < REFUSAL_PAUSE, "it is refused");
        world.admin.paths(true);
        world.sim.sleep(REFUSAL_PAUSE).await;
        assert_eq!(interface.resolve(to.into()).await, Some(at));
    });
}

/// Goal: a full table of neighbours gives up the one that has been silent for the longest time. Method: as many
/// neighbours as it holds, the first of which sends something again, then one more.
#[test]
fn a_full_table_forgets_the_oldest() {
    run(55, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let IpAddr::V4(own) = node.addr else {
            unreachable!()
        };
        let addr = |number: usize| Ipv4Addr::from(0x0a01_0000 + u32::try_from(number).unwrap());
        let at = peer.at(HardwareFlags::empty());
        let order = (0..NEIGHBOURS_MAX).chain([0, NEIGHBOURS_MAX]);
        for number in order {
            peer.arp(&node, ArpOperation::Request, (at, addr(number)), own);
            let mut answers = 0;
            let answered = |_: &mut Peer, _: &Node, _: Duration, heard: Heard| {
                let is_answer = matches!(
                    heard.what,
                    Message::Arp(Arp {
                        operation: ArpOperation::Reply,
                        ..
                    })
                );
                answers += u32::from(is_answer);
            };
            world
                .meet(&mut node, &mut peer, Duration::from_millis(6), answered)
                .await;
            assert_eq!(answers, 1, "{number}");
        }
        let known: Vec<_> = node
            .link
            .interface()
            .neighbours()
            .into_iter()
            .map(|(hop, _)| hop)
            .collect();
        assert_eq!(known.len(), NEIGHBOURS_MAX);
        assert!(known.contains(&addr(0).into()), "it was heard again");
        assert!(!known.contains(&addr(1).into()), "the oldest");
        assert!(known.contains(&addr(NEIGHBOURS_MAX).into()));
    });
}
