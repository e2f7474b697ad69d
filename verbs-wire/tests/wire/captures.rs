//! Goal: packets of Linux rxe are read correctly and written to the same bytes. Method: every frame of every
//! capture in `tests/captures`, through all layers, and a few packets whose bytes are known.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use verbs_core::addr::{Mtu, RKey};
use verbs_wire::pcap::reader::Capture;
use verbs_wire::pcap::{LinkType, Note, PcapNgWriter};
use verbs_wire::{
    Envelope, Icrc, NakCode, Opcode, Operation, Packet, PacketView, Service, Syndrome, WireError,
};

/// The number of RoCEv2 packets in all stored captures, by an independent count (see their README).
const STORED_PACKETS: usize = 628;

/// The stored captures, and the directories that a run by hand adds.
pub(crate) fn captures() -> (Vec<Capture>, Vec<Capture>) {
    let read = |dir: PathBuf| {
        let mut paths: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "pcap"))
            .collect();
        paths.sort();
        paths
            .iter()
            .map(|path| Capture::read(path))
            .collect::<Vec<_>>()
    };
    let stored = read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures"));
    let added = std::env::var_os("VERBS_CAPTURES").unwrap_or_default();
    let added = std::env::split_paths(&added)
        .filter(|path| !path.as_os_str().is_empty())
        .flat_map(read)
        .collect();
    (stored, added)
}

fn stored(name: &str) -> Capture {
    let (stored, _) = captures();
    stored
        .into_iter()
        .find(|capture| capture.name == name)
        .unwrap()
}

/// The packets of a capture.
fn packets(capture: &Capture) -> Vec<Packet<'_>> {
    capture
        .ip_packets()
        .filter_map(|(_, ip)| Envelope::parse(ip).ok())
        .map(|(_, transport)| Packet::parse(transport).unwrap())
        .collect()
}

/// Reads and writes one RoCEv2 packet; panics if any byte differs.
fn check(at: &str, ip: &[u8]) -> Result<Opcode, WireError> {
    let (envelope, transport) = Envelope::parse(ip)?;
    let icrc = envelope.icrc(transport.len()).unwrap();
    assert_eq!(icrc.verify(transport), Ok(()), "{at}");
    let packet = Packet::parse(transport).unwrap_or_else(|error| panic!("{at}: {error}"));
    let opcode = packet.head.opcode();
    assert!(
        Mtu::ALL
            .into_iter()
            .any(|mtu| opcode.check_payload(packet.payload.len(), mtu).is_ok()),
        "{at}: {opcode} with {} bytes fits no path MTU",
        packet.payload.len()
    );

    let mut again = vec![0xa5; ip.len()];
    let headers = envelope.emit(packet.wire_len(), &mut again).unwrap();
    let len = packet.emit(&mut again[headers..], &icrc).unwrap();
    assert_eq!(again[..headers + len], ip[..headers + len], "{at}");
    assert_eq!(len, transport.len(), "{at}");

    let text = format!("{:?}", PacketView::new(transport).unwrap());
    assert!(text.contains(opcode.facts().name), "{at}: {text}");
    Ok(opcode)
}

#[test]
fn every_packet_of_rxe_is_read_and_written_to_the_same_bytes() {
    let (stored, added) = captures();
    let stored_files = stored.len();
    let mut by_opcode = BTreeMap::new();
    let mut stored_packets = 0;
    let mut others = Vec::new();
    for (file, capture) in stored.iter().chain(&added).enumerate() {
        for (number, ip) in capture.ip_packets() {
            let at = format!("{} packet {number}", capture.name);
            match check(&at, ip) {
                Ok(opcode) => {
                    *by_opcode.entry(opcode.to_u8()).or_insert(0) += 1;
                    stored_packets += usize::from(file < stored_files);
                }
                Err(error) => others.push((at, error)),
            }
        }
    }
    for (at, error) in others {
        // IGMP, neighbour discovery and other sockets' traffic may also be in a capture.
        assert!(
            matches!(
                error,
                WireError::Protocol { .. } | WireError::IpOptions(_) | WireError::Port(_)
            ),
            "{at}: {error}"
        );
    }
    assert_eq!(stored_packets, STORED_PACKETS);
    println!(
        "{} packets in {} files; by opcode: {by_opcode:?}",
        by_opcode.values().sum::<usize>(),
        stored.len() + added.len()
    );
    // Everything that rxe can send on RC, on UC its SENDs and WRITEs, and datagrams.
    for opcode in [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0c, 0x0d, 0x0e, 0x0f, 0x10,
        0x11, 0x12, 0x13, 0x14, 0x16, 0x1d, 0x20, 0x21, 0x22, 0x26, 0x27, 0x28, 0x64, 0x65,
    ] {
        assert!(
            by_opcode.contains_key(&opcode),
            "no packet of opcode {opcode:#04x}"
        );
    }
}

/// Goal: our captures are ordinary files. Method: every stored capture is written again, once frame by frame and
/// once from the socket's view of its RoCEv2 packets, and read back.
#[test]
fn captures_are_written_as_they_were_read() {
    let (stored, _) = captures();
    for capture in &stored {
        let mut frames = PcapNgWriter::new(Vec::new()).unwrap();
        let interface = frames.interface("", LinkType::Ethernet).unwrap();
        for packet in &capture.packets {
            let note = Note::new(interface, packet.at);
            frames.packet(&note, &[&packet.bytes]).unwrap();
        }
        let frames = Capture::parse(capture.name.clone(), &frames.finish().unwrap());
        assert!(frames == *capture, "{}", capture.name);

        let mut packets = PcapNgWriter::new(Vec::new()).unwrap();
        let interface = packets.interface("ip", LinkType::RawIp).unwrap();
        let note = Note::new(interface, Duration::ZERO);
        let mut expected = Vec::new();
        for (_, ip) in capture.ip_packets() {
            if let Ok((envelope, transport)) = Envelope::parse(ip) {
                packets.roce(&note, &envelope, &[transport]).unwrap();
                expected.push(&ip[..envelope.wire_len() + transport.len()]);
            }
        }
        let packets = Capture::parse(capture.name.clone(), &packets.finish().unwrap());
        let got: Vec<_> = packets.ip_packets().map(|(_, ip)| ip).collect();
        assert!(got == expected && !got.is_empty(), "{}", capture.name);
    }
}

#[test]
fn the_area_before_a_datagram_holds_its_ip_header() {
    for (name, header) in [("rxe-rping", 20), ("rxe-rping-ipv6", 40)] {
        for (_, ip) in stored(name).ip_packets() {
            let (envelope, transport) = Envelope::parse(ip).unwrap();
            let area = envelope.receive_area(transport.len()).unwrap();
            let (zero, rest) = area.split_at(40 - header);
            assert!(
                zero.iter().all(|&byte| byte == 0) && rest == &ip[..header],
                "{name}"
            );
        }
    }
}

#[test]
fn a_damaged_packet_of_rxe_has_a_wrong_icrc() {
    let capture = stored("rxe-verbs-write-imm");
    let mut checked = 0;
    for (_, ip) in capture.ip_packets() {
        let (envelope, transport) = Envelope::parse(ip).unwrap();
        let icrc = envelope.icrc(transport.len()).unwrap();
        for at in (0..transport.len()).filter(|&at| at != 4) {
            let mut damaged = transport.to_vec();
            damaged[at] ^= 0x10;
            assert!(
                matches!(icrc.verify(&damaged), Err(WireError::Icrc { .. })),
                "byte {at}"
            );
            checked += 1;
        }
    }
    assert!(checked > 5_000);
}

#[test]
fn naks_of_rxe_say_why() {
    let syndromes = |name: &str| {
        packets(&stored(name))
            .iter()
            .filter_map(|packet| packet.head.ext().aeth)
            .map(|aeth| aeth.syndrome)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        syndromes("rxe-nak-bad-rkey-write").last(),
        Some(&Syndrome::Nak(NakCode::RemoteAccess))
    );
    for name in ["rxe-nak-toolong", "rxe612-nak-toolong"] {
        assert_eq!(
            syndromes(name).last(),
            Some(&Syndrome::Nak(NakCode::RemoteOperational)),
            "{name}: rxe answers so, though the specification has invalid request"
        );
    }
    let waits = syndromes("rxe-nak-rnr");
    let timer = waits.iter().find_map(|syndrome| match syndrome {
        Syndrome::RnrNak(timer) => Some(timer.duration()),
        _ => None,
    });
    assert!(
        timer.is_some_and(|time| time >= Duration::from_micros(10)),
        "{waits:?}"
    );
}

#[test]
fn extended_headers_of_rxe_hold_what_was_posted() {
    let of = |name: &str, service, operation| {
        let capture = stored(name);
        let opcode = Opcode::new(service, operation).unwrap();
        let found: Vec<_> = packets(&capture)
            .iter()
            .filter(|packet| packet.head.opcode() == opcode)
            .map(|packet| (*packet.head.ext(), packet.payload.len()))
            .collect();
        assert!(!found.is_empty(), "{name} has no {opcode}");
        found
    };
    let (rc, ud) = (Service::Rc, Service::Ud);
    for (ext, len) in of("rxe-verbs-write-imm", rc, Operation::WriteLastImm) {
        assert_eq!((ext.immdt.unwrap().imm, len), (0x9abc_def0, 2500 - 2048));
    }
    for (ext, len) in of("rxe-verbs-write", rc, Operation::WriteFirst) {
        assert_eq!((ext.reth.unwrap().dma_len, len), (2500, 1024));
    }
    for (ext, _) in of("rxe-verbs-send-inv", rc, Operation::SendLastInv) {
        assert_ne!(ext.ieth.unwrap().rkey, RKey::new(0));
    }
    let acks = of("rxe-verbs-faa", rc, Operation::AtomicAcknowledge);
    let originals: Vec<_> = acks
        .iter()
        .map(|(ext, _)| ext.atomic_ack.unwrap().original)
        .collect();
    assert_eq!(originals, [41, 46], "5 is added twice");
    for (ext, _) in of("rxe-verbs-cas", rc, Operation::CompareSwap) {
        let atomic = ext.atomic.unwrap();
        assert_eq!((atomic.compare, atomic.swap_or_add), (41, 99));
    }
    for (ext, len) in of("rxe-rping", ud, Operation::SendOnly) {
        let deth = ext.deth.unwrap();
        assert_eq!(
            (deth.qkey.0, deth.src_qpn.value(), len),
            (0x8001_0000, 1, 256)
        );
    }
}

/// Goal: the ICRC of packets from other implementations, one of them from hardware and without connection.
/// Method: known bytes; the last four are the ICRC.
#[test]
fn icrc_of_known_packets() {
    let cnp = "45c2003c718c4000401191610a0011010a001201000012b700280000\
               8100ffff4000011800000000 00000000000000000000000000000000 82fd002a";
    let send = "4500003400004000401126b70a0000010a000002c00012b700200000\
                0430ffff0000001180123456 68656c6c6f000000 b222dce0";
    let ack_v6 = "60000000001c1140fe800000000000000000000000000001fe800000000000000000000000000002\
                  c00012b7001c0000 1100ffff0000001200123456 1f000001 8929543c";
    for (text, operation) in [
        (cnp, Operation::CongestionNotification),
        (send, Operation::SendOnly),
        (ack_v6, Operation::Acknowledge),
    ] {
        assert_eq!(
            check(text, &bytes(text)).map(Opcode::operation),
            Ok(operation)
        );
    }
}

/// Goal: computing an ICRC in pieces, and reusing its beginning, makes no difference.
#[test]
fn icrc_in_pieces_is_the_same() {
    let capture = stored("rxe-read-mtu4096");
    let packets: Vec<_> = capture.ip_packets().collect();
    for (_, ip) in &packets {
        let (envelope, transport) = Envelope::parse(ip).unwrap();
        let begun = envelope.icrc(transport.len()).unwrap();
        let (covered, wanted) = transport.split_last_chunk().unwrap();
        let (bth, rest) = covered.split_first_chunk().unwrap();
        for piece in [1, 7, 64, 4096] {
            let mut icrc: Icrc = begun.clone();
            icrc.bth(bth);
            rest.chunks(piece).for_each(|bytes| icrc.update(bytes));
            assert_eq!(icrc.finish(), u32::from_le_bytes(*wanted));
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap())
        .collect()
}
