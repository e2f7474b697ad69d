//! Goal: the link against the kernel's own sockets. Method: each test has loopback addresses of its own, and so has
//! each process, so that tests may run in parallel.

mod refused;
mod steering;

use std::os::fd::AsFd;

use super::*;
use crate::Ident;
use verbs_core::addr::{PKey, Psn, Qpn};
use verbs_wire::{
    Bth, BthFlags, Extended, Head, Opcode, Operation, Packet, ROCE_PORT, Seal, Service,
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An address that this process has for itself.
fn own(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, high | 0x80, low, number].into()
}

fn route(link: &Udp, dst: IpAddr) -> Route {
    Route {
        src: link.addresses()[0],
        dst,
        tclass: 0,
        hop_limit: 64,
        local: None,
    }
}

/// Packets with that much payload each, one behind the other, as a burst has to have them.
fn packets(route: &Route, count: u16, payload_len: usize) -> Vec<u8> {
    let seal = Seal::new(route.src, route.dst, ROCE_PORT).unwrap();
    let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
    let mut bytes = Vec::new();
    for k in 0..count {
        let bth = Bth {
            opcode,
            flags: BthFlags::ACK_REQ,
            pkey: PKey::DEFAULT,
            dest_qpn: Qpn::new(17),
            psn: Psn::new(k.into()),
        };
        let payload: Vec<u8> = (0..payload_len).map(|i| (i % 251) as u8).collect();
        let packet = Packet {
            head: Head::new(bth, Extended::default()).unwrap(),
            payload: &payload,
        };
        let mut one = vec![0; packet.wire_len()];
        let icrc = seal.begin(k, one.len());
        packet.emit(&mut one, &icrc).unwrap();
        bytes.extend(one);
    }
    bytes
}

#[derive(Debug, PartialEq, Eq)]
struct Got {
    src: IpAddr,
    dst: IpAddr,
    tclass: u8,
    ident: Ident,
    psn: u32,
    is_right: bool,
}

/// Sends a packet of a few bytes.
fn send_one(link: &mut Udp, to: IpAddr) {
    let route = route(link, to);
    let bytes = packets(&route, 1, 8);
    link.transmit(&Burst {
        route,
        segment: bytes.len(),
        bytes: &bytes,
    });
}

/// Receives until that many packets have arrived; over loopback, the kernel has them when the send returns.
fn receive(link: &mut Udp, count: usize) -> Vec<Got> {
    let mut got = Vec::new();
    for _ in 0..1000 {
        link.receive(&mut |arrival| {
            let seal = Seal::new(arrival.src, arrival.dst, arrival.sport).unwrap();
            let is_right = match arrival.ident {
                Ident::Known(identification) => seal.verify(identification, arrival.bytes),
                Ident::Unsealed => false,
                Ident::Hidden => seal.solve(arrival.bytes).is_some(),
            };
            let packet = Packet::parse(arrival.bytes).unwrap();
            got.push(Got {
                src: arrival.src,
                dst: arrival.dst,
                tclass: arrival.tclass,
                ident: arrival.ident,
                psn: packet.head.bth().psn.value(),
                is_right,
            });
        });
        if got.len() >= count {
            break;
        }
    }
    got
}

#[test]
fn bursts_arrive_whole_over_ipv4() {
    let (ours, theirs) = (own(1), own(2));
    let mut sender = Udp::bind(&[ours]).unwrap();
    let mut receiver = Udp::bind(&[theirs]).unwrap();
    let mut route = route(&sender, theirs);
    route.tclass = 0xb8;
    let limit = sender.burst_limit(&route);
    assert!(limit >= 64, "{limit}");
    for (count, payload_len) in [
        (1, 0),
        (1, 4096),
        (15, 4096),
        (60, 1024),
        (limit as u16, 64),
    ] {
        let bytes = packets(&route, count, payload_len);
        let burst = Burst {
            route,
            segment: bytes.len() / usize::from(count),
            bytes: &bytes,
        };
        assert_eq!(sender.transmit(&burst), Sent::Gone);
        let expected: Vec<_> = (0..count)
            .map(|k| Got {
                src: ours,
                dst: theirs,
                tclass: 0xb8,
                ident: Ident::Known(k),
                psn: k.into(),
                is_right: true,
            })
            .collect();
        assert_eq!(receive(&mut receiver, count.into()), expected);
    }
    let sent = sender.counters();
    assert_eq!((sent.gso_bursts, sent.send_errors), (3, 0));
    let got = receiver.counters();
    assert_eq!(got.packets_received, sent.packets_sent);
    assert_eq!(got.gro_segments, sent.packets_sent - 2);
    assert_eq!(got.receive_errors, 0);
}

/// Goal: a socket mode in which no peer would take a packet is detected when the link is made.
#[test]
fn a_socket_that_numbers_packets_is_refused() {
    let here = own(3);
    let open = |discovery| {
        Udp::open(
            &[here],
            Follows::Given,
            Interfaces::read(),
            discovery,
            BTreeMap::new(),
        )
    };
    let error = open(Discovery::Want).unwrap_err();
    assert!(
        matches!(error, LinkError::Identification { address, identification, .. }
            if address == here && identification != 0),
        "{error}"
    );
    assert!(open(Discovery::Probe).is_ok());
}

#[test]
fn errors_name_the_address_and_what_would_be_right() {
    let here = own(4);
    let link = Udp::bind(&[here]).unwrap();
    let taken = Udp::bind(&[here]).unwrap_err().to_string();
    assert!(
        taken.contains(&format!("4791 of {here} is taken")),
        "{taken}"
    );
    drop(link);
    assert!(Udp::bind(&[here]).is_ok(), "freed");
    let error = Udp::bind(&[address("192.0.2.99")]).unwrap_err();
    assert!(matches!(error, LinkError::NotOurs { .. }), "{error}");
    assert!(matches!(Udp::bind(&[]), Err(LinkError::NoAddress)));
    let many = [here; ADDRESSES_MAX + 1];
    assert!(matches!(
        Udp::bind(&many),
        Err(LinkError::TooMany { got: 65 })
    ));
}

#[test]
fn several_addresses_have_their_turns() {
    let addresses = [10, 11, 12].map(own);
    let mut link = Udp::bind(&addresses).unwrap();
    assert_eq!(link.addresses(), addresses);
    assert_eq!(link.mtu(), Mtu::ALL[4]);
    let mut expected = Vec::new();
    for src in addresses {
        for dst in addresses {
            let route = Route {
                src,
                ..route(&link, dst)
            };
            let bytes = packets(&route, 1, 100);
            let burst = Burst {
                route,
                segment: bytes.len(),
                bytes: &bytes,
            };
            assert_eq!(link.transmit(&burst), Sent::Gone);
            expected.push((src, dst));
        }
    }
    let mut got: Vec<_> = receive(&mut link, 9)
        .iter()
        .map(|got| (got.src, got.dst))
        .collect();
    got.sort();
    assert_eq!(got, expected);
    assert_eq!(link.receive(&mut |_| panic!("nothing was sent")), 0);
}

/// Goal: what cannot be sent is counted, and no packet that is wrong on the wire is sent.
#[test]
fn what_cannot_be_sent_is_counted() {
    let mut link = Udp::bind(&[own(5)]).unwrap();
    let here = route(&link, own(5));
    let bytes = packets(&here, 17, 4096);
    let mut send = |route: Route, segment: usize, len: usize| {
        let burst = Burst {
            route,
            segment,
            bytes: &bytes[..len],
        };
        assert_eq!(link.transmit(&burst), Sent::Gone);
        link.counters()
    };
    let segment = bytes.len() / 17;
    let long = send(here, segment, bytes.len());
    assert_eq!((long.send_errors, long.send_errno), (1, Some(libc::EINVAL)));
    let other = Route {
        src: own(6),
        ..here
    };
    let foreign = send(other, segment, segment);
    assert_eq!(foreign.send_errno, Some(libc::EADDRNOTAVAIL));
    let mixed = Route {
        dst: address("::1"),
        ..here
    };
    assert_eq!(send(mixed, segment, segment).send_errors, 3);
    // A loopback source cannot leave the machine: the kernel refuses it.
    let outside = Route {
        dst: address("192.0.2.77"),
        ..here
    };
    assert_eq!(send(outside, segment, segment).send_errors, 4);
    assert_eq!(link.receive(&mut |_| panic!("nothing was sent")), 0);
}

/// Goal: full sockets delay nothing. Method: no thread reads, until something is refused or lost.
#[test]
fn a_flood_ends_in_loss_and_not_in_errors() {
    let mut sender = Udp::bind(&[own(7)]).unwrap();
    let mut receiver = Udp::bind(&[own(8)]).unwrap();
    let route = route(&sender, own(8));
    let bytes = packets(&route, 15, 4096);
    let burst = Burst {
        route,
        segment: bytes.len() / 15,
        bytes: &bytes,
    };
    for _ in 0..400 {
        sender.transmit(&burst);
    }
    let sent = sender.counters();
    assert_eq!(sent.send_errors, 0, "{sent:?}");
    while receiver.receive(&mut |_| ()) > 0 {}
    let got = receiver.counters().packets_received;
    assert!(got > 0 && got < 400 * 15, "{got}");
    assert_eq!(got % 15, 0, "whole bursts");
}

/// Goal: waits end for packets, for a wake and for the timeout, and not for events that were not waited for.
#[test]
fn a_waiter_ends_for_what_it_was_asked_for() {
    let mut link = Udp::bind(&[own(9)]).unwrap();
    let waiter = link.waiter().unwrap();
    let clock = crate::time::Clock::wall();
    let long = std::time::Duration::from_secs(60);
    let short = std::time::Duration::from_millis(5);
    let timed = |timeout, packets| {
        let before = clock.now();
        waiter.wait(Some(timeout), packets);
        clock.now() - before
    };
    waiter.wake();
    assert!(timed(long, true) < long);
    assert!(timed(short, true) >= short, "one wake ends one wait");
    send_one(&mut link, own(9));
    assert!(timed(long, true) < long);
    assert!(timed(short, false) >= short, "packets are not waited for");
    assert_eq!(receive(&mut link, 1).len(), 1);
    assert!(timed(short, true) >= short);
    assert_eq!(link.change(), None);
}

/// Goal: a thread of a program that waits beside the engine's waits for packets, its own descriptors and the timeout; it
/// learns of other sockets, and takes no wake from the engine's thread.
#[test]
fn a_second_thread_waits_for_packets_and_its_own_descriptors() {
    let mut link = Udp::bind(&[own(17)]).unwrap();
    let waiter = link.waiter().unwrap();
    let clock = crate::time::Clock::wall();
    let long = std::time::Duration::from_secs(60);
    let short = std::time::Duration::from_millis(5);
    let own_event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let timed = |timeout| {
        let before = clock.now();
        let waited = waiter.wait_beside(&[own_event.as_fd()], Some(timeout));
        waited.unwrap().unwrap();
        clock.now() - before
    };
    let woken = || {
        let before = clock.now();
        waiter.wait(Some(long), false);
        clock.now() - before < long
    };
    waiter.wake();
    assert!(timed(short) >= short, "a wake is the other thread's");
    assert!(woken());
    send_one(&mut link, own(17));
    assert!(timed(long) < long);
    assert_eq!(receive(&mut link, 1).len(), 1);
    rustix::io::write(&own_event, &1_u64.to_ne_bytes()).unwrap();
    assert!(timed(long) < long);
    rustix::io::read(&own_event, &mut [0; 8]).unwrap();
    link.join("239.17.17.17".parse().unwrap()).unwrap();
    assert!(timed(long) < long, "there is another socket");
    assert!(woken());
    assert!(timed(short) >= short);
    assert_eq!(link.change(), None);
}

/// Goal: a link follows the machine, and reports it. Method: it is told of a machine whose addresses are some of the
/// loopback interface's, which appear and disappear.
#[test]
fn addresses_come_and_go_with_the_machine() {
    let [a, b] = [13, 14].map(own);
    let follows = Follows::Interfaces { loopback: true };
    let machine = |mtu, is_up, addresses: &[IpAddr]| Interfaces::of_one(mtu, is_up, addresses);
    let mut link = Udp::open(
        &[a],
        follows,
        Ok(machine(1500, true, &[a])),
        Discovery::Probe,
        BTreeMap::new(),
    )
    .unwrap();
    assert_eq!(link.mtu(), Mtu::ALL[2]);
    let mut step = |machine| {
        link.interfaces = machine;
        link.follow_addresses(true);
        link.look_at_interfaces();
        let changes: Vec<_> = link.changes.drain(..).collect();
        (link.addresses().to_vec(), link.mtu().bytes(), changes)
    };
    assert_eq!(step(machine(4200, true, &[a])), (vec![a], 4096, vec![]));
    let more = (vec![a, b], 4096, vec![Change::Addresses]);
    assert_eq!(
        step(machine(4200, true, &[b, a])),
        more,
        "the old one keeps its place"
    );
    let down = (vec![a, b], 4096, vec![Change::Down]);
    assert_eq!(
        step(machine(4200, false, &[a, b])),
        down,
        "the addresses are still ours"
    );
    let fewer = (vec![b], 1024, vec![Change::Addresses, Change::Up]);
    assert_eq!(step(machine(1500, true, &[b])), fewer);
    let none = (vec![], 1024, vec![Change::Addresses, Change::Down]);
    assert_eq!(step(machine(1500, true, &[])), none);
    assert_eq!(link.receive(&mut |_| panic!("nothing was sent")), 0);
}
