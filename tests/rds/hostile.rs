//! A node under a hostile peer: what it says is refused or drops its own connection, and an honest peer is served.

use std::net::IpAddr;

use ulp_rds::wire::{Handshake, Header, Version};
use ulp_rds::{Node, RdsSocket};
use verbs_cm::Connection;
use verbs_core::{Access, Device, Memory, Mr, QpInit, Recv, Send};
use verbs_simulator::{Draw, Sim};

use crate::lab::{addr, at, config, device};

/// Bytes of a packet at most.
const PACKET: usize = 48 + 4096;

fn handshake(source: IpAddr, destination: IpAddr) -> Handshake {
    Handshake {
        source,
        destination,
        version: Version::V3_1,
        minors: Version::MINORS,
        tos: 0,
        ack: 0,
        credits: 0,
        acked_life: 0,
    }
}

/// A connection that says that, with receives posted, and its memory.
async fn connected(device: &Device, to: IpAddr, private_data: &[u8]) -> Option<(Connection, Mr)> {
    let pd = device.alloc_pd().await.unwrap();
    let cq = device.create_cq(128).await.unwrap();
    let access = Access::LOCAL_WRITE;
    let mr = pd
        .register(Memory::alloc(32 * PACKET).unwrap(), access)
        .await
        .unwrap();
    let mut qp = pd
        .create_qp(QpInit::rc(&cq, &cq).depth(64, 64))
        .await
        .unwrap();
    qp.init(1, Access::empty()).await.unwrap();
    for slot in 0..32 {
        let room = mr.slice(slot * PACKET..(slot + 1) * PACKET);
        qp.post_recv(Recv::new(slot as u64).into(room)).unwrap();
    }
    let connecting = verbs_cm::connect(device, (to, 18634), qp).private_data(private_data);
    Some((connecting.await.ok()?, mr))
}

/// Something that looks like a packet of RDS more or less.
fn wild(draw: &mut Draw, header: &Header) -> Vec<u8> {
    let mut packet = header.emit().to_vec();
    let len = draw.within(0..=PACKET as u64 - 48) as usize;
    packet.resize(48 + len, 7);
    match draw.within(0..=3) {
        0 => packet.truncate(draw.within(0..=60) as usize),
        1 => {
            for _ in 0..4 {
                let at = draw.within(0..=47) as usize;
                packet[at] = draw.within(0..=255) as u8;
            }
            // A checksum of zero says that there is none.
            packet[30..32].fill(0);
        }
        2 => packet[20..24].copy_from_slice(&u32::MAX.to_be_bytes()),
        _ => {}
    }
    packet
}

async fn honest(one: &RdsSocket, other: &RdsSocket, number: u8) {
    one.send_to(&[number; 3], other.local_addr()).await.unwrap();
    loop {
        // The hostile peer's datagrams come here too.
        let datagram = other.recv().await;
        if datagram.from == one.local_addr() {
            assert_eq!(datagram.payload, [number; 3]);
            return;
        }
    }
}

#[test]
fn what_a_stranger_says_concerns_its_own_connection_only() {
    for seed in 1..=20 {
        let sim = Sim::new(seed);
        sim.run(async {
            let node = |host| (device(&sim, addr(host)), config(addr(host)));
            let ((one, one_config), (two, two_config)) = (node(1), node(2));
            let one = Node::open(&one, one_config).await.unwrap();
            let two = Node::open(&two, two_config).await.unwrap();
            let sockets = [(&one, 1), (&two, 2)];
            let [from, to] =
                sockets.map(|(node, host)| RdsSocket::bind(node, at(host, 4000)).unwrap());
            let evil = device(&sim, addr(3));
            let mut draw = sim.draw();
            for round in 0..10 {
                honest(&from, &to, round).await;
                let said = handshake(addr(3), addr(2)).emit();
                let Some((mut connection, mr)) = connected(&evil, addr(2), &said.0[..said.1]).await
                else {
                    // The node takes the connection before down first.
                    continue;
                };
                for number in 1..=20 {
                    let header = Header {
                        sequence: number,
                        ack: draw.within(0..=9),
                        len: draw.within(0..=9000) as u32,
                        source: 1,
                        destination: draw.within(3999..=4000) as u16,
                        ..Header::default()
                    };
                    let packet = wild(&mut draw, &header);
                    mr.write(0, &packet).unwrap();
                    let send = Send::new(1).from(mr.slice(0..packet.len())).signaled();
                    if connection.post_send(send).is_err() {
                        break;
                    }
                    sim.sleep(std::time::Duration::from_micros(50)).await;
                }
                honest(&from, &to, 100 + round).await;
            }
            let mine = two
                .connections()
                .into_iter()
                .filter(|of| of.remote == addr(1));
            let losses: u64 = mine.map(|of| of.counts.losses).sum();
            assert_eq!(losses, 0, "seed {seed}: the honest connection was lost");
        })
        .unwrap();
    }
}

#[test]
fn requests_that_say_something_else_than_they_are_are_refused() {
    let sim = Sim::new(40);
    sim.run(async {
        let node = Node::open(&device(&sim, addr(2)), config(addr(2)))
            .await
            .unwrap();
        let evil = device(&sim, addr(3));
        let good = handshake(addr(3), addr(2));
        let other = Version { major: 4, minor: 1 };
        let said = [
            Handshake {
                source: addr(1),
                ..good
            },
            Handshake {
                destination: addr(9),
                ..good
            },
            Handshake {
                version: other,
                ..good
            },
            Handshake { minors: 1, ..good },
        ];
        for said in said {
            let (bytes, len) = said.emit();
            assert!(
                connected(&evil, addr(2), &bytes[..len]).await.is_none(),
                "{said:?}"
            );
        }
        assert!(
            connected(&evil, addr(2), &[]).await.is_none(),
            "version 3.0"
        );
        assert!(node.connections().is_empty(), "they take no place");
        let (bytes, len) = good.emit();
        assert!(connected(&evil, addr(2), &bytes[..len]).await.is_some());
    })
    .unwrap();
}
