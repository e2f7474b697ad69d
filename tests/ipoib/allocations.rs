//! A packet allocates nothing: as a datagram, to a group, over a connection.
//!
//! Two interfaces of one process, on the loopback link: the thread that sends also makes the packets, receives them and
//! delivers them, so that all of its allocations are counted.

use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::Loopback;
use smoltcp::phy::{Device as _, RxToken as _};
use smoltcp::time::Instant;
use ulp_ipoib::embedded::Embedded;
use ulp_ipoib::{Config, Mode};
use verbs_core::Mtu;

use crate::admin::Admin;
use crate::allocator;

/// Packets for which memory may still be allocated: lists grow to the size that they need.
const WARM: u32 = 500;
const TIMES: u32 = 1000;

async fn end(link: &Loopback, admin: &Admin, number: u8, mode: Mode) -> Embedded {
    let device = Arc::new(Hca::on(link).open().await.unwrap());
    let config = Config {
        mode,
        ..Config::with_address([10, 0, 0, number].into(), 24)
    };
    let admin = Arc::new(admin.clone());
    let end = Embedded::new(&device, admin, config).await.unwrap();
    while !end.interface().link().is_up {
        end.readable().await;
    }
    end
}

/// A packet of UDP with nothing in it, for that host.
fn packet(len: usize, destination: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
    packet[16..20].copy_from_slice(&destination);
    packet
}

/// Sends a packet, and waits until it has arrived.
fn carry(a: &Embedded, b: &mut Embedded, packet: &[u8]) {
    a.interface().send(packet).unwrap();
    let mut waited = 0_u64;
    let received = loop {
        match b.receive(Instant::ZERO) {
            Some((received, _)) => break received,
            None => waited += 1,
        }
        assert!(
            waited < 10_000_000,
            "the packet does not come: {:?}",
            a.interface().counters()
        );
        std::hint::spin_loop();
    };
    received.consume(|bytes| assert!(bytes == packet));
}

fn count(mode: Mode, len: usize, destination: [u8; 4]) -> (u64, u64) {
    let (link, admin) = (Loopback::default(), Admin::new(Mtu::B2048));
    let (a, mut b) = block_on(async {
        let a = end(&link, &admin, 1, mode).await;
        (a, end(&link, &admin, 2, mode).await)
    });
    b.interface().subscribe([239, 0, 0, 1].into()).unwrap();
    let packet = packet(len, destination);
    for _ in 0..WARM {
        carry(&a, &mut b, &packet);
    }
    let before = (allocator::calls(), allocator::bytes());
    for _ in 0..TIMES {
        carry(&a, &mut b, &packet);
    }
    assert_eq!((allocator::calls(), allocator::bytes()), before);
    let counters = a.interface().counters();
    (counters.datagrams_sent, counters.connected_sent)
}

#[test]
fn a_datagram_allocates_nothing() {
    let (datagrams, connected) = count(Mode::Datagram, 1500, [10, 0, 0, 2]);
    assert!(datagrams > u64::from(TIMES) && connected == 0);
}

#[test]
fn a_packet_to_a_group_allocates_nothing() {
    let (datagrams, _) = count(Mode::Datagram, 500, [239, 0, 0, 1]);
    assert!(datagrams > u64::from(TIMES));
}

#[test]
fn a_packet_over_a_connection_allocates_nothing() {
    let (_, connected) = count(Mode::Connected, 40_000, [10, 0, 0, 2]);
    assert_eq!(connected, u64::from(TIMES + WARM));
}
