//! Goal: packets between two processes of a host that share memory cost no system call while both poll; beside them, the
//! same packets over UDP. Method: both links are in one process, with a daemon on a thread of its own; the instructions
//! of a packet's way are stepped through. No engine waits here, as none would while both poll.

mod daemon;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use hca_sim::link::{Burst, Joined, PacketLink, Route, Sent, Udp};
use verbs_core::Qpn;

use crate::steps::{self, Steps};

/// More polls than look at the line to the daemon after it has carried something.
const POLLS: u32 = 5000;

/// A packet to a queue pair of the other link.
fn packet(qpn: Qpn) -> Vec<u8> {
    let [_, a, b, c] = qpn.value().to_be_bytes();
    let mut packet = vec![4, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 0];
    packet.resize(32, 7);
    packet
}

/// Sends a packet and receives it; `look` is what the receiver does when a poll has brought nothing.
fn carry<L: PacketLink>(one: &mut L, other: &mut L, packet: &[u8], look: impl Fn(&L)) {
    let route = Route {
        src: one.addresses()[0],
        dst: other.addresses()[0],
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    let burst = Burst {
        route,
        segment: packet.len(),
        bytes: packet,
    };
    assert_eq!(one.transmit(&burst), Sent::Gone);
    while other.receive(&mut |arrival| assert_eq!(arrival.bytes, packet)) == 0 {
        look(other);
    }
}

/// What an engine's thread does: it sees that the line to the daemon has something. A poll looks at the line only for a
/// while after it has carried something, and the daemon may take longer.
fn attend(link: &impl PacketLink) {
    if let Some(waiter) = link.waiter() {
        waiter.wait(Some(Duration::ZERO), false);
    }
}

/// What a packet costs when everything is set up.
fn cost<L: PacketLink>(mut one: L, mut other: L) -> Steps {
    let first = |link: &mut dyn PacketLink| {
        let numbers = link.numbers(0).and_then(|numbers| numbers.first());
        packet(Qpn::new(numbers.map_or(0x20, |numbers| numbers.start)))
    };
    let (there, back) = (first(&mut other), first(&mut one));
    while one.counters().shared_sent == 0 && one.counters().packets_sent < 1000 {
        carry(&mut one, &mut other, &there, attend);
        carry(&mut other, &mut one, &back, attend);
    }
    for _ in 0..POLLS {
        one.receive(&mut |_| {});
        other.receive(&mut |_| {});
    }
    let only_polls = |_: &L| {};
    carry(&mut one, &mut other, &there, only_polls);
    steps::count(|| carry(&mut one, &mut other, &there, only_polls))
}

#[test]
fn neighbours_that_poll_make_no_system_call() {
    let address = |last| IpAddr::V4(Ipv4Addr::new(127, 79, 1, last));
    let sockets = daemon::start::<2>(address(1));
    let [one, other] = sockets.map(|socket| Joined::join(socket, &[], "test").expect("welcome"));
    let near = cost(one, other);
    let [one, other] =
        [2, 3].map(|last| Udp::bind(&[address(last)]).expect("an address of loopback"));
    let udp = cost(one, other);
    println!("a packet: {near:?} by shared memory, {udp:?} by UDP");
    assert_eq!(near.calls, 0, "{near:?}");
    assert!(udp.calls > 0, "{udp:?}");
}
