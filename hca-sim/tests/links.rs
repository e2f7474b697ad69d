//! Links and their wrappers, seen from outside.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use hca_sim::clock::{Clock, Instant, VirtualClock};
use hca_sim::extension::PacketCounters;
use hca_sim::link::pcap::reader::Capture;
use hca_sim::link::pcap::{LinkType, PcapNgWriter};
use hca_sim::link::{
    Arrival, Burst, Cable, Captured, Change, FaultCounters, Faults, Faulty, Ident, LinkError,
    PacketLink, Route, Sent, Verdict, Verifier,
};
use hca_sim::wire::{
    Bth, BthFlags, Envelope, Extended, Head, Net, Opcode, Operation, Packet, ROCE_PORT, Seal,
    Service,
};
use hca_sim::{Hca, Udp};
use verbs_core::addr::{PKey, Psn, Qpn};
use verbs_core::wr::Datagram;
use verbs_core::{Av, Gid, QKey, QpAttr, QpInit, QpState, QpType, Send, Wc};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A loopback address that this process has for itself.
fn own(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, high | 0x80, low, number].into()
}

fn route(src: &str, dst: &str) -> Route {
    Route {
        src: address(src),
        dst: address(dst),
        tclass: 2,
        hop_limit: 17,
        local: None,
    }
}

/// Packets of 64 bytes of payload that begin at a sequence number, as a burst has to have them.
fn packets(route: &Route, psn: u32, count: u16) -> Vec<u8> {
    let seal = Seal::new(route.src, route.dst, ROCE_PORT).unwrap();
    let mut bytes = Vec::new();
    for k in 0..count {
        let bth = Bth {
            opcode: Opcode::new(Service::Rc, Operation::SendOnly).unwrap(),
            flags: BthFlags::empty(),
            pkey: PKey::DEFAULT,
            dest_qpn: Qpn::new(17),
            psn: Psn::new(psn).add(k.into()),
        };
        let packet = Packet {
            head: Head::new(bth, Extended::default()).unwrap(),
            payload: &[0x5a; 64],
        };
        let mut one = vec![0; packet.wire_len()];
        let icrc = seal.begin(k, one.len());
        packet.emit(&mut one, &icrc).unwrap();
        bytes.extend(one);
    }
    bytes
}

const PACKET_LEN: usize = 12 + 64 + 4;

fn send(link: &mut impl PacketLink, route: Route, psn: u32, count: u16) -> Sent {
    link.transmit(&Burst {
        route,
        segment: PACKET_LEN,
        bytes: &packets(&route, psn, count),
    })
}

fn psn(arrival: &Arrival<'_>) -> u32 {
    let [.., a, b, c] = *arrival.bytes.first_chunk::<12>().unwrap();
    u32::from_be_bytes([0, a, b, c])
}

/// Goal: the headers in a capture are those that were on the wire, in both directions and with hidden
/// identifications. Method: the wire formats' own parser, which checks lengths and checksum.
#[test]
fn captures_have_true_headers() {
    let (here, there) = ("10.0.0.1", "10.0.0.2");
    let (a, b) = Cable::new()
        .hide_identifications()
        .plug(&[address(here)], &[address(there)]);
    let clock = VirtualClock::new();
    let epoch = Duration::from_secs(1_000_000_000);
    let capture = |link| {
        let pcap = PcapNgWriter::with_interface(Vec::new(), "port", LinkType::RawIp).unwrap();
        Captured::new(link, pcap, clock.clone().into(), epoch)
    };
    let (mut a, mut b) = (capture(a), capture(b));
    send(&mut a, route(here, there), 100, 5);
    send(&mut b, route(there, here), 200, 2);
    clock.advance(Duration::from_micros(3));
    assert_eq!(b.receive(&mut |_| ()), 5);
    assert_eq!(a.receive(&mut |_| ()), 2);

    // Their sender, hop limit, number and time: a socket hides hop limits.
    let expected_a = [(here, 17, 5, 0), (there, 64, 2, 3)];
    let expected_b = [(there, 17, 2, 0), (here, 64, 5, 3)];
    for (link, expected) in [(a, expected_a), (b, expected_b)] {
        let capture = Capture::parse("port", &link.finish().1.unwrap());
        let mut found = capture.packets.iter();
        for (n, (src, hop_limit, count, micros)) in expected.into_iter().enumerate() {
            for k in 0..count {
                let packet = found.next().unwrap();
                assert_eq!(packet.is_inbound, Some(n == 1));
                let (at, ip) = (packet.at, &packet.bytes);
                assert_eq!(at, epoch + Duration::from_micros(micros));
                let (envelope, transport) = Envelope::parse(ip).unwrap();
                let icrc = envelope.icrc(transport.len()).unwrap();
                assert_eq!(icrc.verify(transport), Ok(()));
                assert_eq!(envelope.sgid(), src.parse::<Ipv4Addr>().unwrap().into());
                assert_eq!(envelope.hop_limit, hop_limit);
                assert_eq!(envelope.traffic_class, 2);
                let identification = match envelope.net {
                    Net::V4 { identification, .. } => identification,
                    Net::V6 { .. } => panic!("IPv4 was sent"),
                };
                assert_eq!(identification, k);
            }
        }
        assert_eq!(found.next(), None);
    }
}

/// Goal: a full disk ends only the capture.
#[test]
fn a_capture_that_cannot_be_written_leaves_the_link_alone() {
    let (a, mut b) = Cable::new().plug(&[address("10.0.0.1")], &[address("10.0.0.2")]);
    let mut room = [0; 300];
    let pcap = PcapNgWriter::with_interface(&mut room[..], "port", LinkType::RawIp).unwrap();
    let mut a = Captured::new(a, pcap, Clock::wall(), Duration::ZERO);
    for psn in 0..3 {
        assert_eq!(
            send(&mut a, route("10.0.0.1", "10.0.0.2"), psn, 1),
            Sent::Gone
        );
    }
    assert_eq!(b.receive(&mut |_| ()), 3);
    let error = a.finish().1.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);
}

/// Goal: a capture says which packets were lost, damaged, repeated or held back, and no others. Method: faults of each kind
/// and of all kinds around a captured link; comments are counted as the faults are, and packets that were lost are those that
/// did not come.
#[test]
fn a_capture_says_what_faults_do() {
    let each = |change: fn(&mut Faults)| {
        let mut faults = Faults::NONE;
        change(&mut faults);
        faults
    };
    for faults in [
        Faults::NONE,
        each(|faults| faults.loss = 100),
        each(|faults| faults.duplication = 100),
        each(|faults| faults.reordering = 100),
        each(|faults| faults.corruption = 100),
        Faults::all(200),
    ] {
        let (mut a, b) = Cable::new().plug(&[address("10.0.0.1")], &[address("10.0.0.2")]);
        let pcap = PcapNgWriter::with_interface(Vec::new(), "port", LinkType::RawIp).unwrap();
        let captured = Captured::new(b, pcap, VirtualClock::new().into(), Duration::ZERO);
        let remarks = captured.remarks();
        let mut b = Faulty::new(captured, 5).receiving(faults).telling(remarks);
        let mut got = std::collections::BTreeSet::new();
        for i in 0..500 {
            send(&mut a, route("10.0.0.1", "10.0.0.2"), 2 * i, 2);
            b.receive(&mut |arrival| {
                got.insert(psn(arrival));
            });
        }
        while b.receive(&mut |arrival| {
            got.insert(psn(arrival));
        }) > 0
        {}
        let counters = b.fault_counters();
        let capture = Capture::parse("port", &b.into_inner().finish().1.unwrap());
        let count = |what| {
            let packets = capture.packets.iter();
            packets
                .filter(|packet| packet.comment.contains(what))
                .count() as u64
        };
        assert_eq!(
            (
                count("lost"),
                count("repeated"),
                count("held back"),
                count("damaged")
            ),
            (
                counters.lost,
                counters.duplicated,
                counters.reordered,
                counters.corrupted
            ),
            "{faults:?}"
        );
        let is_told = |packet: &&hca_sim::link::pcap::reader::CapturedPacket| {
            packet.comment.ends_with(" on purpose")
        };
        let told = capture.packets.iter().filter(is_told).count();
        assert_eq!(told == 0, faults == Faults::NONE);
        if faults.corruption == 0 {
            for packet in &capture.packets {
                let (_, transport) = Envelope::parse(&packet.bytes).unwrap();
                let psn = u32::from_be_bytes([0, transport[9], transport[10], transport[11]]);
                let is_lost = packet.comment == "lost on purpose";
                assert_eq!(got.contains(&psn), !is_lost, "{psn}");
            }
        }
    }
}

/// The result of sending packets through a faulty link: sequence numbers and verdicts, and the faults that the link has
/// counted.
fn run(seed: u64, receiving: Faults, sending: Faults) -> (Vec<(u32, Verdict)>, [FaultCounters; 2]) {
    let (a, b) = Cable::new()
        .hide_identifications()
        .plug(&[address("10.0.0.1")], &[address("10.0.0.2")]);
    let mut a = Faulty::new(a, seed).sending(sending);
    let mut b = Faulty::new(b, seed + 1).receiving(receiving);
    let mut verifier = Verifier::new();
    let mut got = Vec::new();
    for i in 0..1000 {
        let sent = send(&mut a, route("10.0.0.1", "10.0.0.2"), 4 * i, 4);
        assert_eq!(sent, Sent::Gone);
        b.receive(&mut |arrival| got.push((psn(arrival), verifier.check(arrival, Instant::ZERO))));
    }
    a.receive(&mut |_| ());
    while b.receive(&mut |arrival| got.push((psn(arrival), verifier.check(arrival, Instant::ZERO))))
        > 0
    {}
    (got, [a.fault_counters(), b.fault_counters()])
}

/// Goal: each fault happens as often as it was requested, does what its name says and nothing else, and happens again
/// with the same seed.
#[test]
fn faults_happen_as_ordered() {
    let none = Faults::NONE;
    let (clean, _) = run(1, none, none);
    assert_eq!(clean.len(), 4000);
    assert!(clean.iter().all(|(_, verdict)| verdict.is_good()));
    assert!(clean.is_sorted_by(|a, b| a.0 < b.0));

    let near = |count: u64, expected: u64| count.abs_diff(expected) < expected / 4;
    let (got, [_, counters]) = run(1, Faults { loss: 100, ..none }, none);
    assert_eq!(got.len() as u64, 4000 - counters.lost);
    assert!(near(counters.lost, 400), "{counters:?}");
    assert!(got.is_sorted_by(|a, b| a.0 < b.0));

    let (got, [_, counters]) = run(
        2,
        Faults {
            duplication: 100,
            ..none
        },
        none,
    );
    assert_eq!(got.len() as u64, 4000 + counters.duplicated);
    assert!(near(counters.duplicated, 400), "{counters:?}");
    assert!(got.is_sorted_by(|a, b| a.0 <= b.0));

    let (got, [_, counters]) = run(
        3,
        Faults {
            reordering: 100,
            ..none
        },
        none,
    );
    assert!(near(counters.reordered, 400), "{counters:?}");
    let mut sorted: Vec<_> = got.iter().map(|(psn, _)| *psn).collect();
    let overtakings = sorted.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(overtakings > 200, "{overtakings}");
    sorted.sort();
    assert_eq!(sorted, (0..4000).collect::<Vec<_>>());

    let (got, [_, counters]) = run(
        4,
        Faults {
            corruption: 100,
            ..none
        },
        none,
    );
    assert!(near(counters.corrupted, 400), "{counters:?}");
    let bad = got.iter().filter(|(_, verdict)| !verdict.is_good()).count();
    assert_eq!(bad as u64, counters.corrupted);

    let all = Faults::all(50);
    assert_eq!(run(5, all, all), run(5, all, all));
    assert_ne!(run(5, all, all), run(6, all, all));
}

/// Goal: what a faulty link sends has the identification that its ICRC covers.
#[test]
fn faults_of_bursts_keep_their_packets_valid() {
    let faults = Faults {
        corruption: 0,
        ..Faults::all(50)
    };
    let (got, [counters, _]) = run(9, Faults::NONE, faults);
    assert!(got.iter().all(|(_, verdict)| verdict.is_good()));
    assert_eq!(got.len() as u64, 4000 - counters.lost + counters.duplicated);
    assert!(counters.lost > 200 && counters.duplicated > 200 && counters.reordered > 200);
    let damaged = Faults {
        corruption: 50,
        ..Faults::NONE
    };
    let (got, [counters, _]) = run(9, Faults::NONE, damaged);
    let bad = got.iter().filter(|(_, verdict)| !verdict.is_good()).count();
    assert_eq!(bad as u64, counters.corrupted);
    assert!(bad > 100);
}

#[test]
fn cables_have_room_ends_and_plugs() {
    let (here, there) = ("10.0.0.1", "10.0.0.2");
    let (mut a, mut b) = Cable::new()
        .burst_limit(4)
        .room(6)
        .plug(&[address(here)], &[address(there)]);
    let out = route(here, there);
    assert_eq!(a.burst_limit(&out), 4);
    assert_eq!(send(&mut a, out, 0, 4), Sent::Gone);
    assert_eq!(send(&mut a, out, 4, 4), Sent::Blocked);
    assert_eq!(send(&mut a, out, 4, 2), Sent::Gone);
    assert_eq!(b.pending(), 6);
    let mut got = Vec::new();
    b.receive(&mut |arrival| got.push((psn(arrival), arrival.ident)));
    let expected = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1)];
    assert_eq!(got, expected.map(|(psn, ident)| (psn, Ident::Known(ident))));
    // To itself, and to no address in use.
    send(&mut a, route(here, here), 0, 1);
    send(&mut a, route(here, "10.0.0.3"), 0, 1);
    assert_eq!((a.pending(), b.pending()), (1, 0));
    send(&mut a, out, 0, 1);
    b.plugged(false);
    b.plugged(false);
    assert_eq!((a.pending(), b.pending()), (0, 0), "lost");
    send(&mut a, out, 0, 1);
    a.plugged(true);
    assert_eq!(b.pending(), 0);
    for end in [&mut a, &mut b] {
        let changes = [(); 3].map(|()| end.change());
        assert_eq!(changes, [Some(Change::Down), Some(Change::Up), None]);
    }
    assert!(a.waiter().is_none());
}

/// Goal: wrappers wrap the real link, and each other; packets that they damage are not accepted.
#[test]
fn wrappers_work_around_sockets() {
    let [here, there] = [1, 2].map(own);
    let mut sender = Udp::bind(&[here]).unwrap();
    let receiver = Udp::bind(&[there]).unwrap();
    let faults = Faults {
        corruption: 300,
        ..Faults::NONE
    };
    let faulty = Faulty::new(receiver, 3).receiving(faults);
    let pcap = PcapNgWriter::with_interface(Vec::new(), "port", LinkType::RawIp).unwrap();
    let mut receiver = Captured::new(faulty, pcap, Clock::wall(), Duration::ZERO);
    let mut verifier = Verifier::new();
    let (mut good, mut bad) = (0, 0);
    let out = Route {
        src: here,
        dst: there,
        ..route("::", "::")
    };
    for i in 0..50 {
        send(&mut sender, out, i, 20);
        let since = std::time::Instant::now();
        while good + bad < 20 * (i + 1) {
            assert!(since.elapsed().as_secs() < 60, "{good} and {bad} of {i}");
            receiver.receive(
                &mut |arrival| match verifier.check(arrival, Instant::ZERO) {
                    Verdict::Exact => good += 1,
                    Verdict::Bad => bad += 1,
                    Verdict::Solved { .. } => panic!("nothing is hidden on the machine itself"),
                },
            );
        }
    }
    let (faulty, file) = receiver.finish();
    assert_eq!(u64::from(bad), faulty.fault_counters().corrupted);
    assert!((200..400).contains(&bad), "{bad}");
    assert_eq!(verifier.counters().bad, bad.into());
    let capture = Capture::parse("port", &file.unwrap());
    assert_eq!(capture.packets.len(), 1000);
}

/// Goal: bursts over IPv6, with their traffic class. Method: both ends are the only loopback address, so tests in
/// several processes have to wait for it.
#[test]
fn bursts_arrive_whole_over_ipv6() {
    let mut attempts = 0;
    let mut link = loop {
        match Udp::bind(&[address("::1")]) {
            Ok(link) => break link,
            Err(LinkError::InUse { .. }) if attempts < 1200 => {
                attempts += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let out = route("::1", "::1");
    for count in [1, 2, 60, 128] {
        let limit = link.burst_limit(&out);
        let count = count.min(limit as u16);
        assert_eq!(send(&mut link, out, 0, count), Sent::Gone);
        let mut verifier = Verifier::new();
        let mut got = Vec::new();
        link.receive(&mut |arrival| {
            assert_eq!(arrival.tclass, out.tclass);
            assert_eq!(verifier.check(arrival, Instant::ZERO), Verdict::Exact);
            got.push(psn(arrival));
        });
        assert_eq!(got, (0..count.into()).collect::<Vec<_>>());
    }
    let counters = link.counters();
    assert_eq!((counters.gso_bursts, counters.send_errors), (3, 0));
}

/// Goal: packets that the link had no room for are sent when it has, although no thread posts, polls or answers, and
/// their queue pair considers them sent. Method: datagrams over a cable with room for two, whose other end takes them
/// late.
#[test]
fn what_a_full_link_has_kept_leaves_by_itself() {
    let (here, there) = (address("10.0.0.1"), address("10.0.0.2"));
    let clock = VirtualClock::new();
    let (a, mut b) = Cable::new().burst_limit(2).room(2).plug(&[here], &[there]);
    let device = Hca::over(a).clock(clock.clone()).open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let mut cq = device.create_cq(8).wait().unwrap();
    let init = QpInit::of(QpType::Ud, &cq, &cq).inline(64).depth(8, 1);
    let mut qp = pd.create_qp(init).wait().unwrap();
    let states = [
        QpAttr::init_datagram(1, QKey(1)),
        QpAttr::to(QpState::Rtr),
        QpAttr::rts_of(QpType::Ud, Psn::new(0)),
    ];
    for state in states {
        qp.modify(state).wait().unwrap();
    }
    let to = Datagram {
        av: Av::to_gid(1, 0, Gid::from(there)),
        qpn: Qpn::new(17),
        qkey: QKey(1),
        pkey_index: 0,
    };
    for wr_id in 0..3 {
        let send = Send::new(wr_id).inline(b"hello").to(&to).signaled();
        qp.post_send(send).unwrap();
    }
    let mut wcs = [Wc::default(); 8];
    let gone = cq.poll(&mut wcs).iter().count();
    assert_eq!((gone, b.pending()), (3, 2));
    let mut numbers = Vec::new();
    assert_eq!(b.receive(&mut |arrival| numbers.push(psn(arrival))), 2);
    clock.advance(Duration::from_millis(1));
    assert_eq!(b.receive(&mut |arrival| numbers.push(psn(arrival))), 1);
    assert_eq!(numbers, [0, 1, 2], "each has the next number");
}

/// Goal: a packet that an HCA drops is counted, once, under its reason. Method: one packet after another that is right but
/// for one thing.
#[test]
fn dropped_packets_are_counted_under_their_reason() {
    let (near, far) = (address("10.0.0.1"), address("10.0.0.2"));
    let (mut link, port) = Cable::new().plug(&[near], &[far]);
    let hca = Hca::over(port).clock(VirtualClock::new()).build();
    let device = hca.open().wait().unwrap();
    let seal = Seal::new(near, far, ROCE_PORT).unwrap();
    let right = packets(&route("10.0.0.1", "10.0.0.2"), 1, 1);
    let header = &right[..12];
    let changed = |at: usize, value: u8| {
        let mut bytes = right[..PACKET_LEN - 4].to_vec();
        bytes[at] = value;
        bytes
    };
    let mut padded = header.to_vec();
    padded[1] |= 0x30;
    let cases = [
        ("no operation", changed(0, 0x1f), [1, 0, 0]),
        ("more pad than payload", padded, [1, 0, 0]),
        ("no header", header[..8].to_vec(), [1, 0, 0]),
        ("no such queue pair", changed(7, 0x99), [0, 0, 1]),
    ];
    let counters = || {
        let of = device.call::<PacketCounters>(()).wait().unwrap();
        [of.malformed, of.bad_icrcs, of.strangers]
    };
    for (what, covered, expected) in cases {
        for is_damaged in [false, true] {
            let icrc = seal.icrc(0, &covered) ^ u32::from(is_damaged);
            let bytes = [&covered[..], &icrc.to_le_bytes()].concat();
            let before = counters();
            let sent = link.transmit(&Burst {
                route: route("10.0.0.1", "10.0.0.2"),
                segment: bytes.len(),
                bytes: &bytes,
            });
            assert_eq!(sent, Sent::Gone);
            hca.turn();
            let after = counters();
            let counted = [0, 1, 2].map(|n| after[n] - before[n]);
            // What is too short for a header is not looked at at all.
            let expected = match is_damaged && covered.len() >= 12 {
                true => [0, 1, 0],
                false => expected,
            };
            assert_eq!(counted, expected, "{what}, damaged: {is_damaged}");
        }
    }
}
