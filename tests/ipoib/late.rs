//! Answers that arrive when something else is being asked for, and traffic that continues without them. Method: one
//! interface, a [`Peer`], and an administrator that answers late or refuses, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::oneshot;
use ulp_ipoib::Mode;
use ulp_ipoib::config::CONNECT_QUEUE;
use ulp_ipoib::wire::{ArpOperation, ConnectedData, HardwareFlags, Protocol, Scope, group_of};
use verbs_cm::Manager;
use verbs_cm::wire::ServiceId;
use verbs_core::{Access, EventType, Memory, PKey, QpAttr, QpInit, Recv};

use crate::datagrams::run;
use crate::node::{Node, World};
use crate::peer::{Heard, Message, Peer, packet};

const STEP: Duration = Duration::from_millis(50);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// Bytes of a packet that no datagram can carry, and of the room for one with its header.
const LONG: usize = 3_000;
const STRIDE: usize = 4_096;

/// The peer announces its address, and the interface asks for the path there to answer it.
async fn introduce(world: &World, node: &mut Node, peer: &mut Peer, flags: HardwareFlags) {
    let IpAddr::V4(own) = node.addr else {
        unreachable!("addresses of IPv4")
    };
    let at = peer.at(flags);
    peer.arp(node, ArpOperation::Request, (at, PEER), own);
    world.meet(node, peer, STEP, |_, _, _, _| ()).await;
}

/// Sends a packet with that mark to the peer, and returns the marks of the packets that have arrived as datagrams.
async fn marks(world: &World, node: &mut Node, peer: &mut Peer, mark: u8) -> Vec<u8> {
    let sent = packet(node.addr, PEER.into(), 100, mark);
    node.link.interface().send(&sent).unwrap();
    let mut got = Vec::new();
    let note = |_: &mut Peer, _: &Node, _: Duration, heard: Heard| {
        if let Message::Ip(packet) = heard.what {
            got.extend(packet.last().copied());
        }
    };
    world.meet(node, peer, STEP, note).await;
    got
}

/// Accepts a connection at the peer, if it is requested, and returns where the marks of what arrives over it are put.
async fn takes_a_connection(
    world: &World,
    peer: &Peer,
    may: oneshot::Receiver<()>,
) -> Arc<Mutex<Vec<u8>>> {
    let manager = Manager::of(&peer.device);
    let qpn = peer.at(HardwareFlags::RC).qpn;
    let service = ServiceId(0x1000_0000_0000_0000 | u64::from(qpn.value()));
    let mut listener = manager.listen_service(service, 4).await.unwrap();
    let (marks, device) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&peer.device));
    let got = Arc::clone(&marks);
    world.sim.spawn(async move {
        let count = 2 * CONNECT_QUEUE;
        let mut cq = device.create_cq(64).await.unwrap();
        let pd = device.alloc_pd().await.unwrap();
        let memory = Memory::alloc(count * STRIDE).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).await.unwrap();
        let request = listener.accept().await;
        let init = QpInit::rc(&cq, &cq).depth(4, count as u32);
        let mut qp = pd.create_qp(init).await.unwrap();
        qp.modify(QpAttr::init(1, Access::empty())).await.unwrap();
        for index in 0..count {
            let place = mr.slice(index * STRIDE..(index + 1) * STRIDE);
            qp.post_recv(Recv::new(index as u64).into(place)).unwrap();
        }
        let mut data = [0; ConnectedData::LEN];
        let receive_mtu = 65_524;
        ConnectedData { qpn, receive_mtu }.emit(&mut data);
        may.await.unwrap();
        let accepting = request.accept(qp).private_data(&data);
        let _connection = accepting.await.unwrap();
        loop {
            cq.ready().await.unwrap();
            let mut wcs = [verbs_core::Wc::default(); 8];
            for wc in cq.poll(&mut wcs).iter().filter(|wc| wc.is_ok()) {
                let mut mark = [0];
                let end = wc.wr_id as usize * STRIDE + wc.byte_len as usize;
                mr.read(end - 1, &mut mark).unwrap();
                got.lock().unwrap().push(mark[0]);
            }
        }
    });
    marks
}

/// Goal: of the packets that wait for a connection the oldest are dropped, and the others are sent in order. Method:
/// more of them than there is room for, before the neighbour has answered.
#[test]
fn the_newest_packets_wait_for_a_connection() {
    run(61, async |world| {
        let mut node = world.node(1, Mode::Connected, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let (opens, may) = oneshot::channel();
        let marks = takes_a_connection(&world, &peer, may).await;
        introduce(&world, &mut node, &mut peer, HardwareFlags::RC).await;
        let count = CONNECT_QUEUE as u8 + 5;
        for mark in 0..count {
            let packet = packet(node.addr, PEER.into(), LONG, mark);
            node.link.interface().send(&packet).unwrap();
        }
        assert_eq!(node.counters().pushed_out, 5);
        opens.send(()).unwrap();
        let second = Duration::from_secs(1);
        world
            .meet(&mut node, &mut peer, second, |_, _, _, _| ())
            .await;
        assert_eq!(*marks.lock().unwrap(), (5..count).collect::<Vec<_>>());
        assert_eq!(node.counters().too_big, 0);
    });
}

/// Goal: a working path is asked for again when the subnet may have changed, and continues to work when the
/// administrator does not know it. Method: packets before and after the event, with an administrator that refuses.
#[test]
fn a_path_that_serves_outlives_a_refusal() {
    run(62, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        introduce(&world, &mut node, &mut peer, HardwareFlags::empty()).await;
        assert_eq!(marks(&world, &mut node, &mut peer, 1).await, [1]);
        let asked = world.admin.paths_asked();
        world.admin.paths(false);
        node.raise(EventType::SmChange);
        for mark in 2..30 {
            let got = marks(&world, &mut node, &mut peer, mark).await;
            assert_eq!(got, [mark]);
        }
        assert_eq!(world.admin.paths_asked(), asked + 1, "it was asked for");
        assert_eq!(node.counters().unreachable, 0);
    });
}

/// Goal: a group that was joined only to send to it, and is subscribed to before the answer arrives, is received in the
/// end, in whatever order the answers arrive. Method: an administrator that answers the last request first.
#[test]
fn a_subscription_is_not_lost_to_an_earlier_join() {
    run(63, async |world| {
        let mut node = world.node(1, Mode::Datagram, false).await;
        let mut peer = Peer::new(&world, 9).await;
        let mgid = group_of(GROUP.into(), PKey::DEFAULT, Scope::default()).unwrap();
        peer.attach(&world, mgid).await;
        world.admin.hold(true);
        let sent = packet(node.addr, GROUP.into(), 60, 1);
        node.link.interface().send(&sent).unwrap();
        world
            .meet(&mut node, &mut peer, STEP, |_, _, _, _| ())
            .await;
        node.link.interface().subscribe(GROUP.into()).unwrap();
        world
            .meet(&mut node, &mut peer, STEP, |_, _, _, _| ())
            .await;
        world.admin.hold(false);
        let mut got = 0;
        world
            .meet(&mut node, &mut peer, STEP, |_, _, _, heard| {
                got += u32::from(matches!(heard.what, Message::Ip(_)));
            })
            .await;
        assert_eq!(got, 1, "what waited was sent");
        let before = node.counters().datagrams_received;
        let from = IpAddr::V4(PEER);
        let packet = packet(from, GROUP.into(), 60, 2);
        peer.send((verbs_core::Qpn::MULTICAST, mgid), Protocol::Ipv4, &packet);
        world
            .meet(&mut node, &mut peer, STEP, |_, _, _, _| ())
            .await;
        assert_eq!(node.counters().datagrams_received, before + 1);
    });
}
