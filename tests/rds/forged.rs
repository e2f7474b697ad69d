//! Goal: requests for connections that anybody can forge, in the name of any address, cost peers that are honest nothing: no
//! place, no connection, hardly any time. Method: nodes on a simulated network, and packets with requests from addresses
//! that nobody has, and from those of peers that are connected or not.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures::future::join_all;
use hca_sim::link::Route;
use hca_sim::wire::{Bth, BthFlags, Deth, Envelope, Extended, Head, Opcode, Packet, ROCE_PORT};
use ulp_rds::machine::State;
use ulp_rds::wire::{Handshake, Version};
use ulp_rds::{Node, RdsSocket};
use verbs_cm::wire::{CommId, IpHeader, IpPair, Message, PortSpace, Req, ReqPath, ServiceId};
use verbs_core::mad::{Bits, Blob, TimeCode, TransactionId};
use verbs_core::{Gid, Guid, Mtu, PKey, Psn, QKey, Qpn};
use verbs_simulator::{LinkConfig, Sim};

use crate::lab::{addr, at, config, device, pair};

/// The node that all forged requests are for.
const VICTIM: u8 = 2;

/// What a request says for RDS, behind the header of the connection manager.
fn private_data(from: Ipv4Addr, to: Ipv4Addr, tos: u8) -> Blob<92> {
    let said = Handshake {
        source: from.into(),
        destination: to.into(),
        version: Version::V3_1,
        minors: Version::MINORS,
        tos,
        ack: 0,
        credits: 64,
        acked_life: 0,
    };
    let ip = IpHeader {
        source_port: 4000,
        addresses: IpPair::V4 {
            source: from,
            destination: to,
        },
    };
    let mut header = [0; IpHeader::LEN];
    ip.emit(&mut header);
    let (data, len) = said.emit();
    let mut bytes = Blob([0; 92]);
    bytes.0[..IpHeader::LEN].copy_from_slice(&header);
    bytes.0[IpHeader::LEN..][..len].copy_from_slice(&data[..len]);
    bytes
}

/// A request in the name of an address.
fn request(from: Ipv4Addr, to: Ipv4Addr, number: u32, tos: u8) -> Message {
    Message::from(Req {
        local_id: CommId(number),
        service_id: ServiceId::rdma_cm(PortSpace::Tcp, 18634),
        ca_guid: Guid(0x1_0000 + u64::from(number)),
        qpn: Qpn::new(0x10_0000 + number),
        remote_response_timeout: TimeCode::new(20),
        local_response_timeout: TimeCode::new(20),
        psn: Psn::new(number),
        pkey: PKey::DEFAULT,
        path_mtu: Mtu::B1024.into(),
        max_cm_retries: Bits::truncated(15),
        primary: ReqPath {
            local_gid: Gid::from(from),
            remote_gid: Gid::from(to),
            hop_limit: 64,
            ack_timeout: TimeCode::new(14),
            ..ReqPath::default()
        },
        private_data: private_data(from, to, tos),
        ..Req::default()
    })
}

/// Sends one to the victim, as a packet of the address that it names.
fn forge(sim: &Sim, from: IpAddr, number: u32, tos: u8) {
    let to = addr(VICTIM);
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (from, to) else {
        unreachable!("the test has IPv4 addresses")
    };
    let mad = request(src, dst, number, tos).emit(TransactionId(number.into()));
    let bth = Bth {
        opcode: Opcode::from_u8(0x64).unwrap(),
        flags: BthFlags::empty(),
        pkey: PKey::DEFAULT,
        dest_qpn: Qpn::new(1),
        psn: Psn::new(number),
    };
    let ext = Extended {
        deth: Some(Deth {
            qkey: QKey(0x8001_0000),
            src_qpn: Qpn::new(1),
        }),
        ..Extended::default()
    };
    let packet = Packet {
        head: Head::new(bth, ext).unwrap(),
        payload: &mad,
    };
    let mut bytes = vec![0; packet.wire_len()];
    let icrc = Envelope::v4(src, dst, ROCE_PORT).icrc(bytes.len());
    packet.emit(&mut bytes, &icrc.unwrap()).unwrap();
    let route = Route {
        src: from,
        dst: to,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    sim.network().inject(&route, &bytes);
}

/// A network on which a packet takes as long as between hosts of a data centre.
fn network(seed: u64) -> Sim {
    let sim = Sim::new(seed);
    sim.network().set_all(LinkConfig {
        latency: Duration::from_millis(5),
        ..LinkConfig::default()
    });
    sim
}

/// From a datagram to its answer.
async fn exchange(sim: &Sim, from: &RdsSocket, to: &RdsSocket) -> Duration {
    let begin = sim.now();
    from.send_to(b"asks", to.local_addr()).await.unwrap();
    assert_eq!(to.recv().await.payload, b"asks");
    to.send_to(b"answers", from.local_addr()).await.unwrap();
    assert_eq!(from.recv().await.payload, b"answers");
    sim.now().since(begin)
}

/// How long an exchange over a new connection takes when there is nobody else.
fn alone() -> Duration {
    let sim = network(1);
    let run = sim.run(async {
        let [(_one, one), (_two, two)] = pair(&sim).await;
        exchange(&sim, &one, &two).await
    });
    run.unwrap()
}

/// Until both ends know that all has come: what is sent again on the next connection asks for an acknowledgement. Then the
/// connection is dropped, and there is nothing to make another one for.
async fn part(sim: &Sim, node: &Node, [own, peer]: [&RdsSocket; 2]) {
    let [local, remote] = [own, peer].map(|socket| socket.local_addr().ip());
    loop {
        node.drop_connection(local, remote);
        // An end that has something to send connects again at once.
        sim.sleep(Duration::from_millis(20)).await;
        let of_it = |of: &ulp_rds::ConnectionInfo| of.remote == remote;
        let of = node.connections().into_iter().find(of_it).unwrap();
        let is_quiet = own.unacked().0 + peer.unacked().0 == 0;
        if is_quiet && (of.state, of.queued) == (State::Down, 0) {
            return;
        }
    }
}

fn losses(node: &Node) -> u64 {
    node.connections().iter().map(|of| of.counts.losses).sum()
}

/// Method: 1,280 requests of five addresses that nobody has, with all types of service, as fast as one a packet time; a peer
/// that was connected before and one that comes in the middle, and one at the end.
#[test]
fn requests_of_addresses_that_nobody_has_take_no_place() {
    let honest = alone();
    let sim = network(2);
    let run = sim.run(async {
        let [(_one, one), (two, victim)] = pair(&sim).await;
        exchange(&sim, &one, &victim).await;
        let before = two.connections();
        let nobody: Vec<IpAddr> = (100..105).map(addr).collect();
        let _dark = sim.network().attach(&nobody);
        let new = Node::open(&device(&sim, addr(3)), config(addr(3)))
            .await
            .unwrap();
        let new = RdsSocket::bind(&new, at(3, 4000)).unwrap();
        let flood = async {
            let mut most = 0;
            for (number, from) in nobody.iter().enumerate() {
                for tos in 0..=255_u8 {
                    forge(&sim, *from, 256 * number as u32 + u32::from(tos), tos);
                    sim.sleep(Duration::from_micros(500)).await;
                    most = most.max(two.half_open());
                }
            }
            most
        };
        let comes = async {
            sim.sleep(Duration::from_millis(300)).await;
            exchange(&sim, &new, &victim).await
        };
        let (most, took) = futures::join!(flood, comes);
        assert!(took <= 2 * honest, "{took:?} instead of {honest:?}");
        // The part of each of them, and nothing of it is a connection.
        assert!(most > 16 && most <= 5 * 16, "{most} half-open connections");
        let remotes: Vec<IpAddr> = two.connections().iter().map(|of| of.remote).collect();
        assert_eq!(remotes, [addr(1), addr(3)]);
        let took = exchange(&sim, &one, &victim).await;
        assert!(took <= honest, "{took:?}");
        assert_eq!((losses(&two), before.len()), (0, 1));
        // The last of them are given up when nobody has confirmed them.
        sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(two.half_open(), 0);
    });
    run.unwrap();
}

/// Method: many addresses, once each, and more of them than there are places. The oldest gives way, and an honest peer that asks in
/// the middle of it is served in time.
#[test]
fn more_requests_than_places_keep_nobody_out() {
    let honest = alone();
    let sim = network(3);
    let run = sim.run(async {
        let nobody: Vec<IpAddr> = (1..=200).map(|host| [10, 9, 0, host].into()).collect();
        let _dark = sim.network().attach(&nobody);
        let [(_one, one), (two, victim)] = pair(&sim).await;
        for (number, from) in nobody.iter().enumerate() {
            forge(&sim, *from, number as u32, 0);
        }
        sim.sleep(Duration::from_millis(10)).await;
        assert_eq!(two.half_open(), 128, "as many as there are places");
        let took = exchange(&sim, &one, &victim).await;
        assert!(took <= 2 * honest, "{took:?} instead of {honest:?}");
        assert_eq!(two.connections().len(), 1);
    });
    run.unwrap();
}

/// Method: one request in its name before it connects, and then one every 2 ms for as long as it takes.
#[test]
fn requests_in_the_name_of_a_peer_do_not_keep_it_out() {
    let honest = alone();
    for seed in 10..20 {
        let sim = network(seed);
        let run = sim.run(async {
            let [(one, a), (two, b)] = pair(&sim).await;
            forge(&sim, addr(1), 1, 0);
            sim.sleep(Duration::from_millis(seed)).await;
            let is_flooded = seed % 2 == 0;
            let done = std::cell::Cell::new(false);
            let flood = async {
                let mut number = 2;
                while is_flooded && !done.get() {
                    forge(&sim, addr(1), number, 0);
                    number += 1;
                    sim.sleep(Duration::from_millis(2)).await;
                }
            };
            let comes = async {
                // Whichever of them begins.
                let took = match seed % 4 {
                    0 | 1 => exchange(&sim, &a, &b).await,
                    _ => exchange(&sim, &b, &a).await,
                };
                done.set(true);
                took
            };
            let (_, took) = futures::join!(flood, comes);
            assert!(took <= 2 * honest, "seed {seed}: {took:?}, not {honest:?}");
            for node in [&one, &two] {
                let of = node.connections();
                assert_eq!((of.len(), of[0].counts.connects), (1, 1), "seed {seed}");
                assert_eq!(losses(node), 0, "seed {seed}");
            }
        });
        run.unwrap();
    }
}

/// Method: sixty requests in its name while its connection carries datagrams.
#[test]
fn requests_in_the_name_of_a_connected_peer_end_nothing() {
    let sim = network(30);
    let run = sim.run(async {
        let [(one, a), (two, b)] = pair(&sim).await;
        exchange(&sim, &a, &b).await;
        for number in 1..=60 {
            forge(&sim, addr(1), number, 0);
            exchange(&sim, &a, &b).await;
        }
        for node in [&one, &two] {
            let counts = node.connections()[0].counts;
            assert_eq!((counts.connects, counts.losses), (1, 0));
            assert_eq!(counts.duplicates, 0);
        }
    });
    run.unwrap();
}

/// Goal: a peer that has lost its connection gets another one at once, in whose place there was one. Method: a node that begins
/// again at the same address while its peer has not noticed, and while requests are forged in its name.
#[test]
fn a_connection_gives_way_to_one_that_is_established() {
    let sim = network(31);
    let run = sim.run(async {
        let [(one, a), (two, b)] = pair(&sim).await;
        exchange(&sim, &a, &b).await;
        let again = device(&sim, addr(1));
        drop((one, a));
        let one = Node::open(&again, config(addr(1))).await.unwrap();
        let a = RdsSocket::bind(&one, at(1, 4000)).unwrap();
        forge(&sim, addr(1), 1, 0);
        exchange(&sim, &a, &b).await;
        let counts = two.connections()[0].counts;
        assert_eq!((counts.connects, counts.losses), (2, 1));
        assert_eq!(two.connections().len(), 1);
    });
    run.unwrap();
}

/// Goal: what peers that are real leave behind is bounded too. Method: three peers in turn, of which a table of two must forget
/// one; then one with more types of service than its part; and a long time, after which the next one clears the table.
#[test]
fn links_are_forgotten_when_their_places_are_wanted_or_long_after() {
    let sim = Sim::new(32);
    let run = sim.run(async {
        let mut limited = config(addr(VICTIM));
        (limited.connections_max, limited.connections_per_address_max) = (3, 2);
        let two = Node::open(&device(&sim, addr(VICTIM)), limited)
            .await
            .unwrap();
        let victim = RdsSocket::bind(&two, at(VICTIM, 4000)).unwrap();
        let remotes = || -> Vec<IpAddr> { two.connections().iter().map(|of| of.remote).collect() };
        for host in 11..=15 {
            let node = Node::open(&device(&sim, addr(host)), config(addr(host)))
                .await
                .unwrap();
            let socket = RdsSocket::bind(&node, at(host, 4000)).unwrap();
            exchange(&sim, &socket, &victim).await;
            part(&sim, &two, [&victim, &socket]).await;
            drop((socket, node));
        }
        assert_eq!(remotes(), [addr(13), addr(14), addr(15)]);
        // One peer has its part, and no more.
        let node = Node::open(&device(&sim, addr(16)), config(addr(16)))
            .await
            .unwrap();
        let sockets = [0, 1, 2].map(|tos| {
            let socket = RdsSocket::bind(&node, at(16, 5000 + u16::from(tos))).unwrap();
            socket.set_tos(tos).unwrap();
            socket
        });
        for socket in &sockets {
            socket.send_to(b"asks", at(VICTIM, 4000)).await.unwrap();
        }
        for _ in 0..2 {
            assert_eq!(victim.recv().await.payload, b"asks");
        }
        sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(victim.try_recv(), None, "the third is refused");
        assert_eq!(remotes(), [addr(15), addr(16), addr(16)]);
        // Long after.
        drop((sockets, node));
        two.drop_connection(addr(VICTIM), addr(16));
        sim.sleep(Duration::from_secs(601)).await;
        let late = Node::open(&device(&sim, addr(17)), config(addr(17)))
            .await
            .unwrap();
        let late = RdsSocket::bind(&late, at(17, 4000)).unwrap();
        exchange(&sim, &late, &victim).await;
        assert_eq!(remotes(), [addr(17)]);
    });
    run.unwrap();
}

/// Goal: what is forgotten is forgotten by both ends' accounts: nothing is taken for a duplicate, and no acknowledgement of
/// before is believed. Method: a table of one; a peer is forgotten for another one, and comes back, with more datagrams than
/// before, and connections that are cut.
#[test]
fn a_peer_that_was_forgotten_comes_back() {
    let sim = Sim::new(33);
    let run = sim.run(async {
        let mut limited = config(addr(VICTIM));
        limited.connections_max = 1;
        let two = Node::open(&device(&sim, addr(VICTIM)), limited)
            .await
            .unwrap();
        let victim = RdsSocket::bind(&two, at(VICTIM, 4000)).unwrap();
        let opened = [1, 3].map(async |host| {
            let device = device(&sim, addr(host));
            let node = Node::open(&device, config(addr(host))).await.unwrap();
            let socket = RdsSocket::bind(&node, at(host, 4000)).unwrap();
            (node, socket)
        });
        let peers = join_all(opened).await;
        for round in 0..6_u8 {
            let (node, socket) = &peers[usize::from(round % 2)];
            for number in 0..=round {
                socket
                    .send_to(&[round, number], victim.local_addr())
                    .await
                    .unwrap();
                victim
                    .send_to(&[number, round], socket.local_addr())
                    .await
                    .unwrap();
                if number == 1 {
                    node.drop_connection(socket.local_addr().ip(), addr(VICTIM));
                }
            }
            for number in 0..=round {
                assert_eq!(victim.recv().await.payload, [round, number]);
                assert_eq!(socket.recv().await.payload, [number, round]);
            }
            assert_eq!((victim.try_recv(), socket.try_recv()), (None, None));
            part(&sim, &two, [&victim, socket]).await;
            assert_eq!((victim.try_recv(), socket.try_recv()), (None, None));
        }
    });
    run.unwrap();
}
