//! Neighbours: when they are asked, what is learned about them, what waits for them. Method: one interface, and a
//! [`Peer`] whose every message the test decides, in virtual time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, select};
use ulp_ipoib::Mode;
use ulp_ipoib::config::{ASK_PAUSE, ASKS_MAX, PATH_QUEUE, TICK};
use ulp_ipoib::wire::{
    Arp, ArpOperation, HardwareAddress, HardwareFlags, Nd, Protocol, Scope, all_nodes, group_of,
    solicited_node,
};
use verbs_core::{PKey, Qpn};

use crate::datagrams::run;
use crate::node::{Node, World};
use crate::peer::{Heard, Message, Peer, address_of, packet};

const SECOND: Duration = Duration::from_secs(1);
const PLAIN: HardwareFlags = HardwareFlags::empty();

/// The peer's IPv4 address; another address.
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);

async fn pair(world: &World, is_v6: bool) -> (Node, Peer) {
    let node = world.node(1, Mode::Datagram, is_v6).await;
    let mut peer = Peer::new(world, 9).await;
    if is_v6 {
        let IpAddr::V6(own) = address_of(9, true) else {
            unreachable!()
        };
        let mgid = group_of(solicited_node(own).into(), PKey::DEFAULT, Scope::default());
        peer.attach(world, mgid.unwrap()).await;
    }
    (node, peer)
}

/// Sends the peer a packet with a mark.
fn send(node: &Node, mark: u8) {
    let to = address_of(9, node.addr.is_ipv6());
    let packet = packet(node.addr, to, 60, mark);
    node.link.interface().send(&packet).unwrap();
}

/// A request for the peer's address, answered from `at`.
fn answer_arp(peer: &mut Peer, heard: &Heard, at: HardwareAddress) -> bool {
    let Message::Arp(arp) = &heard.what else {
        return false;
    };
    if arp.operation == ArpOperation::Request && arp.target.1 == PEER {
        let to = arp.sender.0;
        peer.send_to(to, Protocol::Arp, &arp.reply(at).emit());
        return true;
    }
    false
}

/// A second in which the peer answers every request.
async fn answered(world: &World, node: &mut Node, peer: &mut Peer) {
    let at = peer.at(PLAIN);
    world
        .meet(node, peer, SECOND, |peer, _, _, heard| {
            answer_arp(peer, &heard, at);
        })
        .await;
}

/// Time in which the peer receives nothing.
async fn quiet(world: &World, node: &mut Node, peer: &mut Peer, time: Duration) {
    world
        .meet(node, peer, time, |_, _, _, heard| panic!("{heard:?}"))
        .await;
}

/// Where the node believes that address to be.
fn known(node: &Node, addr: impl Into<IpAddr>) -> Option<HardwareAddress> {
    let addr = addr.into();
    let known = node.link.interface().neighbours();
    known
        .into_iter()
        .find(|&(hop, _)| hop == addr)
        .map(|(_, at)| at)
}

/// Goal: a neighbour in use is asked again when nothing was received from it for a while, and stays as long as it
/// answers; the request is sent to it alone. Method: an answer to each request, for ten times that while.
#[test]
fn a_neighbour_that_answers_stays() {
    run(31, async |world| {
        let (mut node, mut peer) = pair(&world, false).await;
        let at = peer.at(PLAIN);
        let mut asked = Vec::new();
        for _ in 0..300 {
            send(&node, 1);
            world
                .meet(&mut node, &mut peer, SECOND, |peer, _, _, heard| {
                    if answer_arp(peer, &heard, at) {
                        asked.push((world.sim.now(), heard.is_group));
                    }
                })
                .await;
            assert_eq!(known(&node, PEER), Some(at));
        }
        assert!((10..=11).contains(&asked.len()), "{asked:?}");
        assert!(asked[0].1, "the first is for all");
        for pair in asked.windows(2) {
            assert!(!pair[1].1, "it is known where to ask");
            let pause = pair[1].0 - pair[0].0;
            assert!(
                (30 * SECOND..30 * SECOND + 2 * TICK).contains(&pause),
                "{pause:?}"
            );
        }
        let counters = node.counters();
        assert_eq!(
            (counters.unresolved, counters.asked),
            (0, asked.len() as u64)
        );
    });
}

/// Goal: a neighbour that does not answer is asked as often as configured, a second apart, the last time by a request
/// to all nodes that may know better; then it is forgotten. One that nothing is sent to is forgotten without a request.
/// Method: the requests that a silent peer receives, and their times.
#[test]
fn a_silent_neighbour_is_asked_and_forgotten() {
    run(32, async |world| {
        let (mut node, mut peer) = pair(&world, false).await;
        let at = peer.at(PLAIN);
        send(&node, 1);
        answered(&world, &mut node, &mut peer).await;
        // It is used shortly before it is old.
        quiet(&world, &mut node, &mut peer, 27 * SECOND).await;
        send(&node, 2);
        let mut asked = Vec::new();
        world
            .meet(
                &mut node,
                &mut peer,
                Duration::from_millis(4_800),
                |_, _, when, heard| {
                    if matches!(heard.what, Message::Arp(_)) {
                        asked.push((when, heard.is_group));
                    }
                },
            )
            .await;
        assert_eq!(
            asked
                .iter()
                .map(|&(_, is_group)| is_group)
                .collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(asked.len(), ASKS_MAX as usize);
        for pair in asked.windows(2) {
            let pause = pair[1].0 - pair[0].0;
            assert!(
                (ASK_PAUSE..ASK_PAUSE + 2 * TICK).contains(&pause),
                "{pause:?}"
            );
        }
        assert_eq!(
            known(&node, PEER),
            Some(at),
            "the last question may be answered"
        );
        quiet(&world, &mut node, &mut peer, 2 * SECOND).await;
        assert_eq!(known(&node, PEER), None);

        // Found once more, and never used again.
        send(&node, 3);
        answered(&world, &mut node, &mut peer).await;
        assert_eq!(known(&node, PEER), Some(at));
        quiet(&world, &mut node, &mut peer, 32 * SECOND).await;
        assert_eq!(known(&node, PEER), None);
        assert_eq!(node.counters().unresolved, 0);
    });
}

/// Goal: a neighbour that has moved is found again without being forgotten. Method: the old place is silent, the new
/// one answers requests that are sent to all; packets after that.
#[test]
fn a_neighbour_that_has_moved_is_found() {
    run(33, async |world| {
        let (mut node, mut old) = pair(&world, false).await;
        let mut new = Peer::new(&world, 8).await;
        let (before, after) = (old.at(PLAIN), new.at(PLAIN));
        send(&node, 1);
        world
            .meet(&mut node, &mut old, SECOND, |peer, _, _, heard| {
                answer_arp(peer, &heard, before);
            })
            .await;
        new.heard();
        for _ in 0..34 {
            send(&node, 2);
            world
                .meet(&mut node, &mut new, SECOND, |peer, _, _, heard| {
                    assert!(heard.is_group || !matches!(heard.what, Message::Arp(_)));
                    answer_arp(peer, &heard, after);
                })
                .await;
            assert!(known(&node, PEER).is_some(), "it is never forgotten");
        }
        assert_eq!(known(&node, PEER), Some(after));
        send(&node, 3);
        let mut got = 0;
        world
            .meet(&mut node, &mut new, SECOND, |_, _, _, heard| {
                got +=
                    u32::from(matches!(&heard.what, Message::Ip(packet) if packet.ends_with(&[3])));
            })
            .await;
        assert_eq!((got, node.counters().unresolved), (1, 0));
    });
}

/// Goal: of the packets that wait for an address the oldest are dropped, and the others are sent in order as soon as it
/// is known. Method: two more than there is room for, an answer after the second request.
#[test]
fn the_newest_packets_wait() {
    run(34, async |world| {
        let (mut node, mut peer) = pair(&world, false).await;
        let at = peer.at(PLAIN);
        let count = PATH_QUEUE as u8 + 2;
        (0..count).for_each(|mark| send(&node, mark));
        let (mut questions, mut got) = (0, Vec::new());
        world
            .meet(
                &mut node,
                &mut peer,
                3 * SECOND,
                |peer, _, _, heard| match &heard.what {
                    Message::Arp(_) => {
                        questions += 1;
                        if questions == 2 {
                            answer_arp(peer, &heard, at);
                        }
                    }
                    Message::Ip(packet) => got.extend(packet.last().copied()),
                    Message::Nd(_) => {}
                },
            )
            .await;
        assert_eq!(got, (2..count).collect::<Vec<_>>());
        assert_eq!((node.counters().pushed_out, questions), (2, 2));
    });
}

/// Goal: ARP information is accepted from nodes that ask for this one and from known nodes (RFC 826), and from no
/// others: no stranger makes an entry by asking for others or by answering without a request. Method: each of them,
/// then the table; addresses that cannot be one.
#[test]
fn what_arp_teaches() {
    run(35, async |world| {
        let (mut node, mut peer) = pair(&world, false).await;
        let IpAddr::V4(own) = node.addr else {
            unreachable!()
        };
        let at = peer.at(PLAIN);
        let elsewhere = HardwareAddress {
            qpn: Qpn::new(0x77),
            ..at
        };
        let settled = SECOND / 10;
        peer.arp(&node, ArpOperation::Request, (at, PEER), OTHER);
        peer.arp(&node, ArpOperation::Reply, (at, PEER), own);
        peer.arp(
            &node,
            ArpOperation::Request,
            (at, Ipv4Addr::UNSPECIFIED),
            own,
        );
        peer.arp(
            &node,
            ArpOperation::Request,
            (HardwareAddress::default(), PEER),
            own,
        );
        let hardware = node.link.interface().link().hardware;
        peer.arp(&node, ArpOperation::Request, (hardware, PEER), own);
        quiet(&world, &mut node, &mut peer, settled).await;
        assert!(node.link.interface().neighbours().is_empty());

        peer.arp(&node, ArpOperation::Request, (at, PEER), own);
        let mut answers = Vec::new();
        world
            .meet(&mut node, &mut peer, settled, |_, _, _, heard| {
                answers.push(heard);
            })
            .await;
        let [
            Heard {
                what:
                    Message::Arp(Arp {
                        operation,
                        sender,
                        target,
                    }),
                is_group: false,
            },
        ] = answers[..]
        else {
            panic!("{answers:?}");
        };
        assert_eq!(
            (operation, sender, target),
            (ArpOperation::Reply, (hardware, own), (at, PEER))
        );
        assert_eq!(
            (known(&node, PEER), node.counters().answered),
            (Some(at), 1)
        );
        // From a known node, even what it sends to others is accepted.
        peer.arp(&node, ArpOperation::Request, (elsewhere, PEER), OTHER);
        quiet(&world, &mut node, &mut peer, settled).await;
        assert_eq!(known(&node, PEER), Some(elsewhere));
        assert_eq!(known(&node, OTHER), None);
    });
}

/// Makes the node ask for the peer's address, and sends it one. Returns the table's entry.
async fn told(
    world: &World,
    node: &mut Node,
    peer: &mut Peer,
    at: HardwareAddress,
    flags: (bool, bool),
) -> Option<HardwareAddress> {
    peer.advertise(node, at, flags);
    world.meet(node, peer, SECOND / 20, |_, _, _, _| ()).await;
    known(node, address_of(9, true))
}

/// Goal: advertisements have the effects of RFC 4861, 7.2.5: they make no entry; any fills one that waits; another
/// place is accepted only with Override, and without it is doubted; only an answer proves that the neighbour is
/// reachable. Method: each combination of flags in each state, and the requests that follow.
#[test]
fn what_advertisements_teach() {
    run(36, async |world| {
        let (mut node, mut peer) = pair(&world, true).await;
        let at = peer.at(PLAIN);
        let elsewhere = HardwareAddress {
            qpn: Qpn::new(0x77),
            ..at
        };
        let tick = 2 * TICK;
        assert_eq!(
            told(&world, &mut node, &mut peer, at, (true, true)).await,
            None,
            "nobody has asked"
        );
        send(&node, 1);
        assert_eq!(
            told(&world, &mut node, &mut peer, at, (true, false)).await,
            Some(at)
        );
        // A repetition of what is known.
        assert_eq!(
            told(&world, &mut node, &mut peer, at, (false, true)).await,
            Some(at)
        );
        world
            .meet(&mut node, &mut peer, tick, |_, _, _, heard| {
                assert!(!matches!(heard.what, Message::Nd(_)), "{heard:?}");
            })
            .await;
        // Another place, without Override: the old one stays, and is asked whether it is still there.
        for solicited in [false, true] {
            assert_eq!(
                told(&world, &mut node, &mut peer, elsewhere, (solicited, false)).await,
                Some(at)
            );
            let mut asked = 0;
            world
                .meet(&mut node, &mut peer, SECOND, |peer, node, _, heard| {
                    if let Message::Nd(Nd::Solicitation { .. }) = heard.what {
                        assert!(!heard.is_group, "the one that is known");
                        asked += 1;
                        peer.advertise(node, at, (true, true));
                    }
                })
                .await;
            assert_eq!((asked, known(&node, address_of(9, true))), (1, Some(at)));
        }
        // With Override it is accepted; if unsolicited, the neighbour is asked there.
        let mut asked = 0;
        assert_eq!(
            told(&world, &mut node, &mut peer, elsewhere, (true, true)).await,
            Some(elsewhere)
        );
        quiet(&world, &mut node, &mut peer, 2 * SECOND).await;
        assert_eq!(
            told(&world, &mut node, &mut peer, at, (false, true)).await,
            Some(at)
        );
        world
            .meet(&mut node, &mut peer, SECOND, |peer, node, _, heard| {
                asked += u32::from(matches!(heard.what, Message::Nd(Nd::Solicitation { .. })));
                peer.advertise(node, at, (true, false));
            })
            .await;
        assert_eq!((asked, known(&node, address_of(9, true))), (1, Some(at)));
    });
}

/// Goal: an unsolicited repetition does not keep alive a neighbour that does not answer (RFC 4861, 7.2.5): it is no
/// proof. Method: advertisements each second from a place that answers no request.
#[test]
fn only_answers_prove_that_a_neighbour_is_there() {
    run(37, async |world| {
        let (mut node, mut peer) = pair(&world, true).await;
        let at = peer.at(PLAIN);
        send(&node, 1);
        assert_eq!(
            told(&world, &mut node, &mut peer, at, (true, true)).await,
            Some(at)
        );
        let mut asked = 0;
        for _ in 0..33 {
            send(&node, 2);
            peer.advertise(&node, at, (false, false));
            world
                .meet(&mut node, &mut peer, SECOND, |_, _, _, heard| {
                    asked += u32::from(matches!(heard.what, Message::Nd(Nd::Solicitation { .. })));
                })
                .await;
        }
        assert_eq!(asked, ASKS_MAX);
    });
}

/// Goal: a doubted neighbour that answers is in doubt no longer: it is asked again only when it is old. Method: an
/// advertisement of another place, an answer from the old one, and packets for most of the time until it is old.
#[test]
fn an_answer_ends_a_doubt() {
    run(39, async |world| {
        let (mut node, mut peer) = pair(&world, true).await;
        let at = peer.at(PLAIN);
        let elsewhere = HardwareAddress {
            qpn: Qpn::new(0x77),
            ..at
        };
        send(&node, 1);
        told(&world, &mut node, &mut peer, at, (true, true)).await;
        told(&world, &mut node, &mut peer, elsewhere, (false, false)).await;
        let mut asked = 0;
        for _ in 0..20 {
            send(&node, 2);
            world
                .meet(&mut node, &mut peer, SECOND, |peer, node, _, heard| {
                    if let Message::Nd(Nd::Solicitation { .. }) = heard.what {
                        asked += 1;
                        peer.advertise(node, at, (true, false));
                    }
                })
                .await;
        }
        assert_eq!((asked, known(&node, address_of(9, true))), (1, Some(at)));
    });
}

/// Goal: who waits for a neighbour is answered when its address is learned, also if the path is known already. Method:
/// a second address of a peer that is in use; nothing is sent to it.
#[test]
fn who_waits_is_answered_where_the_path_is_known() {
    run(40, async |world| {
        let (mut node, mut peer) = pair(&world, false).await;
        let at = peer.at(PLAIN);
        send(&node, 1);
        answered(&world, &mut node, &mut peer).await;
        let paths = node.counters().paths_asked;
        let mut found = Box::pin(node.link.interface().resolve(OTHER.into()));
        assert!((&mut found).now_or_never().is_none(), "it is asked for");
        let IpAddr::V4(own) = node.addr else {
            unreachable!()
        };
        peer.arp(&node, ArpOperation::Reply, (at, OTHER), own);
        // Whoever sleeps looks again when the time is over: only the time tells that it was woken.
        let (begin, late) = (world.sim.now(), Box::pin(world.sim.sleep(SECOND)));
        match select(found, late).await {
            Either::Left((found, _)) => assert_eq!(found, Some(at)),
            Either::Right(_) => panic!("it is not known"),
        }
        assert!(world.sim.now() - begin < SECOND / 2, "nobody was woken");
        assert_eq!(node.counters().paths_asked, paths, "the path was known");
    });
}

/// Goal: a node that asks is answered alone, solicited; a node that checks whether the address is taken is answered to
/// all, unsolicited (RFC 4861, 7.2.4). Method: both, from the peer; the flags of the answers.
#[test]
fn answers_say_whether_they_were_asked_for() {
    run(38, async |world| {
        let (mut node, mut peer) = pair(&world, true).await;
        let (IpAddr::V6(own), IpAddr::V6(theirs)) = (node.addr, address_of(9, true)) else {
            unreachable!()
        };
        let (at, hardware) = (peer.at(PLAIN), node.link.interface().link().hardware);
        let ask = async |node: &mut Node, peer: &mut Peer, source: Ipv6Addr, target: Ipv6Addr| {
            let question = Nd::solicit(source, target, at, true);
            peer.send_to(hardware, Protocol::Ipv6, &question);
            let mut heard = Vec::new();
            world
                .meet(node, peer, SECOND / 2, |_, _, _, what| heard.push(what))
                .await;
            heard
        };
        let heard = ask(&mut node, &mut peer, theirs, own).await;
        let [
            Heard {
                what: Message::Nd(Nd::Advertisement(told)),
                is_group: false,
            },
        ] = heard[..]
        else {
            panic!("{heard:?}");
        };
        assert_eq!(
            (told.source, told.destination, told.target),
            (own, theirs, own)
        );
        assert_eq!(
            (told.solicited, told.overrides, told.at),
            (true, true, Some(hardware))
        );
        assert_eq!(known(&node, theirs), Some(at), "who asks says where it is");
        let heard = ask(&mut node, &mut peer, Ipv6Addr::UNSPECIFIED, own).await;
        let [
            Heard {
                what: Message::Nd(Nd::Advertisement(told)),
                is_group: true,
            },
        ] = heard[..]
        else {
            panic!("{heard:?}");
        };
        assert_eq!(
            (told.source, told.destination, told.target),
            (own, all_nodes(), own)
        );
        assert_eq!(
            (told.solicited, told.overrides, told.at),
            (false, true, Some(hardware))
        );
        assert_eq!(known(&node, Ipv6Addr::UNSPECIFIED), None);
        let foreign = Ipv6Addr::new(0xfd00, 0xa, 0, 0, 0, 0, 0, 0x77);
        assert!(ask(&mut node, &mut peer, theirs, foreign).await.is_empty());
    });
}

/// Goal: the packets of a batch are posted together, at most a lot of 32 of them; all arrive, in their order; a packet
/// that is sent by itself is not kept. Method: the counter of what was posted, before a batch ends and after.
#[test]
fn a_batch_is_posted_together() {
    const COUNT: u8 = 40;
    run(64, async |world| {
        let (mut node, mut peer) = pair(&world, false).await;
        send(&node, 0);
        answered(&world, &mut node, &mut peer).await;
        let before = node.counters().datagrams_sent;
        let posted = |node: &Node| node.counters().datagrams_sent - before;
        let mut batch = node.link.interface().batch();
        for mark in 1..=COUNT {
            let to = address_of(9, false);
            batch.send(&packet(node.addr, to, 60, mark)).unwrap();
        }
        assert_eq!(posted(&node), 32, "a lot");
        drop(batch);
        assert_eq!(posted(&node), u64::from(COUNT));
        let mut got = Vec::new();
        world
            .meet(&mut node, &mut peer, SECOND, |_, _, _, heard| {
                if let Message::Ip(packet) = &heard.what {
                    got.extend(packet.last().copied());
                }
            })
            .await;
        assert_eq!(got, (1..=COUNT).collect::<Vec<_>>());
        send(&node, 0);
        assert_eq!(posted(&node), u64::from(COUNT) + 1);
    });
}
