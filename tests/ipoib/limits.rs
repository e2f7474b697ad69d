//! Connections to a neighbour that follows no rules: the sizes that it announces, refusals, and the number of
//! connections. Method: one interface in connected mode, and a [`Peer`] with a connection manager, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ulp_ipoib::config::{CONNECTIONS_MAX, GROUP_QUEUE, REFUSAL_PAUSE};
use ulp_ipoib::wire::{Arp, ArpOperation, ConnectedData, HardwareAddress, HardwareFlags, Protocol};
use ulp_ipoib::{Face, Interface, Mode};
use verbs_cm::wire::ServiceId;
use verbs_cm::{ConnParam, Connection, Manager, Route};
use verbs_core::mad::{Bits, TimeCode};
use verbs_core::sync::{Mutex, OnceLock};
use verbs_core::{Access, Av, GlobalRoute, Memory, Mtu, PKey, QpAttr, QpInit, Qpn, Recv};

use crate::datagrams::run;
use crate::node::{Node, World, address};
use crate::peer::{Heard, Message, Peer, packet};

/// Messages that a connection of the peer's takes, and bytes of each.
const RECEIVES: usize = 4;
const STRIDE: usize = 5_000;

const SECOND: Duration = Duration::from_secs(1);
const PREFIX: u64 = 0x1000_0000_0000_0000;
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

/// Answers ARP requests for any address: the last byte of it is added to the queue pair's number, less that of the
/// peer's own.
fn answer_arp(peer: &mut Peer, heard: &Heard) {
    let Message::Arp(arp) = &heard.what else {
        return;
    };
    if arp.operation == ArpOperation::Request {
        let at = place(peer, arp.target.1);
        peer.send_to(arp.sender.0, Protocol::Arp, &Arp::reply(arp, at).emit());
    }
}

fn place(peer: &Peer, addr: Ipv4Addr) -> HardwareAddress {
    let own = peer.at(HardwareFlags::RC);
    let shift = u32::from(addr) - u32::from(PEER);
    HardwareAddress {
        qpn: Qpn::new((own.qpn.value() + shift * 0x101) & 0xff_ffff),
        ..own
    }
}

fn send(node: &Node, to: Ipv4Addr, len: usize) {
    let packet = packet(node.addr, IpAddr::V4(to), len, 1);
    node.link.interface().send(&packet).unwrap();
}

/// A peer that accepts connections with that receive MTU, or refuses all. Counts requests.
async fn listen(world: &World, peer: &Peer, receive_mtu: Option<u32>) -> Arc<AtomicU32> {
    let manager = Manager::of(&peer.device);
    let qpn = peer.at(HardwareFlags::RC).qpn;
    let service = ServiceId(PREFIX | u64::from(qpn.value()));
    let mut listener = manager.listen_service(service, 64).await.unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let (requests, device) = (Arc::clone(&count), Arc::clone(&peer.device));
    world.sim.spawn(async move {
        let cq = device.create_cq(64).await.unwrap();
        let pd = device.alloc_pd().await.unwrap();
        let memory = Memory::alloc(RECEIVES * STRIDE).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).await.unwrap();
        let mut all = Vec::new();
        loop {
            let request = listener.accept().await;
            requests.fetch_add(1, Ordering::Relaxed);
            let Some(receive_mtu) = receive_mtu else {
                request.reject(&[]).unwrap();
                continue;
            };
            let mut data = [0; ConnectedData::LEN];
            ConnectedData { qpn, receive_mtu }.emit(&mut data);
            let qp = pd
                .create_qp(QpInit::rc(&cq, &cq).depth(4, 4))
                .await
                .unwrap();
            qp.modify(QpAttr::init(1, Access::empty())).await.unwrap();
            let accepting = request.accept(qp).private_data(&data);
            let mut connection = accepting.await.unwrap();
            for index in 0..RECEIVES {
                let place = mr.slice(index * STRIDE..(index + 1) * STRIDE);
                connection.post_recv(Recv::new(1).into(place)).unwrap();
            }
            all.push(connection);
        }
    });
    count
}

/// Goal: no message is longer than the neighbour has announced; its sender learns that size. Method: a neighbour of
/// 4,000 bytes, with the header: packets of that size, of one byte more, and one of a datagram's size.
#[test]
fn no_message_is_longer_than_its_receiver_takes() {
    run(41, async |world| {
        let mut node = world.node(1, Mode::Connected, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let requests = listen(&world, &peer, Some(4_000)).await;
        send(&node, PEER, 100);
        world
            .meet(&mut node, &mut peer, 2 * SECOND, |peer, _, _, heard| {
                answer_arp(peer, &heard);
            })
            .await;
        assert_eq!(node.link.interface().connections().0, 1);
        let before = node.counters();
        assert_eq!((requests.load(Ordering::Relaxed), before.too_big), (1, 0));
        send(&node, PEER, 3_996);
        assert_eq!(node.counters().connected_sent, before.connected_sent + 1);
        send(&node, PEER, 3_997);
        let after = node.counters();
        assert_eq!(
            (after.connected_sent, after.too_big),
            (before.connected_sent + 1, 1)
        );
        let told = node.take_raw().unwrap();
        assert_eq!(
            (told[9], told[20], told[21]),
            (1, 3, 4),
            "fragmentation needed"
        );
        assert_eq!(u16::from_be_bytes([told[26], told[27]]), 3_996);
    });
}

/// Goal: a neighbour that refuses is not asked again before a pause is over, short packets reach it as datagrams, and
/// long ones are counted. Method: packets every 50 ms, for two pauses; requests counted at the peer.
#[test]
fn a_refusal_is_taken_for_a_while() {
    run(42, async |world| {
        let mut node = world.node(1, Mode::Connected, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let requests = listen(&world, &peer, None).await;
        send(&node, PEER, 100);
        while node.counters().connections_failed == 0 {
            world
                .meet(&mut node, &mut peer, SECOND / 20, |peer, _, _, heard| {
                    answer_arp(peer, &heard);
                })
                .await;
        }
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        let step = SECOND / 20;
        let steps = u16::try_from(REFUSAL_PAUSE.as_millis() / step.as_millis()).unwrap();
        let mut got = 0;
        for _ in 0..steps - 2 {
            send(&node, PEER, 100);
            world
                .meet(&mut node, &mut peer, step, |_, _, _, heard| {
                    got += u16::from(matches!(heard.what, Message::Ip(_)));
                })
                .await;
        }
        assert_eq!((got, requests.load(Ordering::Relaxed)), (steps - 2, 1));
        send(&node, PEER, 3_000);
        assert_eq!(node.counters().too_big, 1, "there is no connection for it");
        for _ in 0..steps {
            send(&node, PEER, 100);
            world
                .meet(&mut node, &mut peer, step, |_, _, _, _| ())
                .await;
        }
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    });
}

/// Goal: there are no more connections than the limit, whatever becomes of them, and neighbours beyond it get
/// datagrams. Method: more neighbours at one port than the limit, none of which accepts a connection.
#[test]
fn connections_that_are_made_have_a_limit() {
    run(43, async |world| {
        let mut node = world.node(1, Mode::Connected, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let requests = listen(&world, &peer, None).await;
        let count = u32::try_from(CONNECTIONS_MAX).unwrap() + 6;
        for number in 1..=count {
            send(&node, Ipv4Addr::from(u32::from(PEER) + number), 100);
            world
                .meet(&mut node, &mut peer, SECOND / 500, |peer, _, _, heard| {
                    answer_arp(peer, &heard);
                })
                .await;
        }
        world
            .meet(
                &mut node,
                &mut peer,
                REFUSAL_PAUSE / 2,
                |peer, _, _, heard| answer_arp(peer, &heard),
            )
            .await;
        let counters = node.counters();
        assert_eq!(node.link.interface().neighbours().len(), count as usize);
        assert_eq!(counters.connections_failed, CONNECTIONS_MAX as u64);
        assert_eq!(
            requests.load(Ordering::Relaxed),
            0,
            "none was for the peer's own queue pair"
        );
        // When the failed ones are forgotten there is room again.
        world
            .meet(&mut node, &mut peer, 2 * REFUSAL_PAUSE, |_, _, _, _| ())
            .await;
        send(&node, Ipv4Addr::from(u32::from(PEER) + count), 100);
        world
            .meet(
                &mut node,
                &mut peer,
                REFUSAL_PAUSE / 2,
                |peer, _, _, heard| answer_arp(peer, &heard),
            )
            .await;
        assert_eq!(
            node.counters().connections_failed,
            CONNECTIONS_MAX as u64 + 1
        );
    });
}

/// Connects to a node's interface as a neighbour would. `None`: it refuses.
async fn connect(
    peer: &Peer,
    manager: &Manager,
    cq: &verbs_core::Cq,
    to: HardwareAddress,
) -> Option<Connection> {
    let global = GlobalRoute {
        dgid: to.gid,
        sgid_index: 0,
        flow_label: 0,
        hop_limit: 64,
        traffic_class: 0,
    };
    let route = Route {
        av: Av {
            global: Some(global),
            ..Av::to_gid(1, 0, to.gid)
        },
        local_gid: peer.gid,
        remote_gid: to.gid,
        pkey: (PKey::DEFAULT, 0),
        mtu: Mtu::B2048,
        packet_lifetime: TimeCode::new(10),
        rate: Bits::truncated(3),
        is_subnet_local: false,
    };
    let qp = peer
        .pd
        .create_qp(QpInit::rc(cq, cq).depth(4, 4))
        .await
        .unwrap();
    qp.modify(QpAttr::init(1, Access::empty())).await.unwrap();
    let mut data = [0; ConnectedData::LEN];
    ConnectedData {
        qpn: peer.at(HardwareFlags::RC).qpn,
        receive_mtu: 65_524,
    }
    .emit(&mut data);
    let param = ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        ..ConnParam::default()
    };
    let service = ServiceId(PREFIX | u64::from(to.qpn.value()));
    let calling = manager.connect_service(service, route, qp).param(param);
    calling.private_data(&data).await.ok()
}

/// Goal: one neighbour has no more connections to an interface than its limit; the next is refused, and accepted when
/// one has ended. Method: as many as the limit, one more, one fewer.
#[test]
fn connections_that_are_taken_have_a_limit() {
    run(44, async |world| {
        let node = world.node(1, Mode::Connected, false).await;
        let peer = Peer::new(&world, 9).await;
        let manager = Manager::of(&peer.device);
        let cq = peer.device.create_cq(1024).await.unwrap();
        let to = node.link.interface().link().hardware;
        let mut all = Vec::new();
        for number in 0..CONNECTIONS_MAX {
            let made = connect(&peer, &manager, &cq, to).await;
            all.push(made.unwrap_or_else(|| panic!("connection {number}")));
        }
        assert!(connect(&peer, &manager, &cq, to).await.is_none());
        assert_eq!(node.link.interface().connections().1, CONNECTIONS_MAX);
        all.pop().unwrap().close().await.unwrap();
        world.sim.sleep(SECOND).await;
        assert!(connect(&peer, &manager, &cq, to).await.is_some());
    });
}

/// Goal: a connection ends when nothing was sent over it for its idle time, and not before: the one that was made after
/// 120 s; the one that was accepted, of whose use the other end knows more, after twice that. Method: one of each, a
/// packet in between, virtual time.
#[test]
fn unused_connections_end_at_their_time() {
    run(45, async |world| {
        let mut node = world.node(1, Mode::Connected, false).await;
        let mut peer = Peer::new(&world, 9).await;
        listen(&world, &peer, Some(65_524)).await;
        send(&node, PEER, 100);
        world
            .meet(&mut node, &mut peer, SECOND, |peer, _, _, heard| {
                answer_arp(peer, &heard);
            })
            .await;
        let manager = Manager::of(&peer.device);
        let cq = peer.device.create_cq(64).await.unwrap();
        let to = node.link.interface().link().hardware;
        let _taken = connect(&peer, &manager, &cq, to).await.unwrap();
        let idle = node.link.interface().config().idle;
        let up = |node: &Node| node.link.interface().connections();
        assert_eq!(up(&node), (1, 1));
        world.sim.sleep(idle / 2).await;
        send(&node, PEER, 100);
        world
            .meet(&mut node, &mut peer, SECOND, |peer, _, _, heard| {
                answer_arp(peer, &heard);
            })
            .await;
        world.sim.sleep(idle - 3 * SECOND).await;
        assert_eq!(up(&node), (1, 1), "it was used half an idle time ago");
        world.sim.sleep(4 * SECOND).await;
        assert_eq!(up(&node), (0, 1));
        world.sim.sleep(idle / 2 - 8 * SECOND).await;
        assert_eq!(up(&node), (0, 1));
        world.sim.sleep(20 * SECOND).await;
        assert_eq!(up(&node), (0, 0));
        assert_eq!(node.counters().connections_reaped, 2);
    });
}

/// Goal: while a connection is made, a packet that fits a datagram is sent as one, and one that does not waits for it.
/// Method: packets of the datagrams' MTU and of a byte more, before the neighbour has answered.
#[test]
fn what_fits_a_datagram_does_not_wait_for_a_connection() {
    run(46, async |world| {
        let mut node = world.node(1, Mode::Connected, false).await;
        let mut peer = Peer::new(&world, 9).await;
        listen(&world, &peer, Some(65_524)).await;
        let mtu = node.link.interface().link().datagram_mtu;
        send(&node, PEER, mtu);
        send(&node, PEER, mtu + 1);
        let mut got = Vec::new();
        world
            .meet(&mut node, &mut peer, SECOND, |peer, _, _, heard| {
                answer_arp(peer, &heard);
                if let Message::Ip(packet) = heard.what {
                    got.push(packet.len());
                }
            })
            .await;
        assert_eq!(got, [mtu]);
        assert_eq!(
            (node.counters().connected_sent, node.counters().too_big),
            (1, 0)
        );
    });
}

/// Goal: the buffers of packets that turn out to be too long are free again. Method: more of them than there are
/// buffers, to neighbours that turn out to take no connections.
#[test]
fn packets_that_turn_out_too_long_free_their_buffers() {
    run(47, async |world| {
        let mut node = world.node(1, Mode::Connected, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let count = u8::try_from(node.link.interface().config().connected_sends).unwrap() + 5;
        for number in 0..count {
            let to = Ipv4Addr::new(10, 0, 0, 100 + number);
            send(&node, to, 9_000);
            world
                .meet(&mut node, &mut peer, SECOND / 100, |peer, _, _, heard| {
                    if let Message::Arp(arp) = &heard.what {
                        let reply = arp.reply(peer.at(HardwareFlags::empty())).emit();
                        peer.send_to(arp.sender.0, Protocol::Arp, &reply);
                    }
                })
                .await;
        }
        let counters = node.counters();
        assert_eq!((counters.too_big, counters.unresolved), (count.into(), 0));
    });
}

/// Notes how many packets had been dropped when it was told that there is room.
struct Writer {
    interface: OnceLock<Weak<Interface>>,
    told: Mutex<Vec<u64>>,
}

impl Face for Writer {
    fn deliver(&self, _: &[u8]) {}

    fn writable(&self) {
        if let Some(interface) = self.interface.get().and_then(Weak::upgrade) {
            self.told.lock().push(interface.counters().unreachable);
        }
    }
}

/// Goal: a writer that was refused is told once, and when a quarter of the buffers is free. Method: packets to groups
/// that wait for the administrator until there is no room; then it refuses one group after the other.
#[test]
fn a_writer_is_told_when_there_is_room_for_many() {
    run(48, async |world| {
        let node = world.node(1, Mode::Datagram, false).await;
        let writer = Arc::new(Writer {
            interface: OnceLock::new(),
            told: Mutex::new(Vec::new()),
        });
        let face: Arc<dyn Face> = Arc::<Writer>::clone(&writer);
        let config = address(3, Mode::Datagram, false);
        let (own, sends) = (config.addresses[0].0, config.sends);
        let admin = Arc::new(world.admin.clone());
        let interface = Interface::new(&node.device, admin, face, config);
        let interface = Arc::new(interface.await.unwrap());
        assert!(writer.interface.set(Arc::downgrade(&interface)).is_ok());
        world.sim.sleep(SECOND).await;
        assert!(interface.link().is_up);

        world.admin.hold(true);
        let send = |number: usize| {
            let group = u8::try_from(number / GROUP_QUEUE).unwrap();
            let to = IpAddr::from([239, 9, 9, group]);
            interface.send(&packet(own, to, 60, 1))
        };
        let dropped = interface.counters().unreachable;
        let taken = (0..2 * sends as usize).take_while(|&number| send(number).is_ok());
        assert_eq!(taken.count(), sends as usize);
        world.sim.sleep(SECOND).await;
        assert_eq!(*writer.told.lock(), []);
        world.admin.hold(false);
        world.sim.sleep(SECOND).await;
        assert_eq!(interface.counters().unreachable, dropped + u64::from(sends));
        assert_eq!(*writer.told.lock(), [dropped + u64::from(sends / 4)]);
    });
}
