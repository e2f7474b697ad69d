//! Goal: an error says what was wrong with which value. Method: one change to a valid packet, one expected error.

use std::net::Ipv4Addr;

use verbs_wire::{
    AethView, BthView, Envelope, Extended, Head, HeaderName, Icrc, Packet, PacketView, WireError,
};

/// An RC acknowledgement as rxe sends it, from BTH to ICRC.
const ACK: [u8; 20] = [
    0x11, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0x12, 0x34, 0x56, 0x1f, 0, 0, 1, 0, 0, 0, 0,
];

fn envelope() -> Envelope {
    Envelope::v4(
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(10, 0, 0, 2),
        0xc000,
    )
}

fn packet_error(change: impl FnOnce(&mut Vec<u8>)) -> WireError {
    let mut bytes = ACK.to_vec();
    change(&mut bytes);
    Packet::parse(&bytes).unwrap_err()
}

/// The error of an acknowledgement's datagram after a change; the IPv4 header checksum is corrected.
fn datagram_error(change: impl FnOnce(&mut Vec<u8>)) -> WireError {
    let mut bytes = vec![0; 28];
    envelope().emit(ACK.len(), &mut bytes).unwrap();
    bytes.extend(ACK);
    change(&mut bytes);
    match Envelope::parse(&bytes) {
        Err(WireError::IpChecksum { expected, .. }) => {
            bytes[10..12].copy_from_slice(&expected.to_be_bytes());
            Envelope::parse(&bytes).unwrap_err()
        }
        other => other.unwrap_err(),
    }
}

#[test]
fn packet_errors_name_the_value() {
    let truncated = |header, need, got| WireError::Truncated { header, need, got };
    assert_eq!(
        packet_error(|p| p[0] = 0x15),
        WireError::UnknownOpcode(0x15)
    );
    assert_eq!(packet_error(|p| p[1] = 0x05), WireError::Version(5));
    assert_eq!(
        packet_error(|p| p[12] = 0x42),
        WireError::ReservedSyndrome(0x42)
    );
    assert_eq!(
        packet_error(|p| p[1] = 0x20),
        WireError::Pad { pad: 2, room: 0 }
    );
    assert_eq!(packet_error(|p| p.push(0)), WireError::Unaligned(21));
    assert_eq!(
        packet_error(|p| p.truncate(16)),
        truncated(HeaderName::Aeth, 4, 0)
    );
    assert_eq!(
        packet_error(|p| p.truncate(12)),
        truncated(HeaderName::Bth, 12, 8)
    );
    assert_eq!(
        packet_error(|p| p.truncate(3)),
        truncated(HeaderName::Icrc, 4, 3)
    );
    assert_eq!(
        packet_error(|p| p[0] = 0x0c),
        truncated(HeaderName::Reth, 16, 4)
    );
    assert_eq!(
        packet_error(|p| p[0] = 0xa0 | 0x0c),
        truncated(HeaderName::Reth, 16, 0)
    );
}

#[test]
fn datagram_errors_name_the_value() {
    assert_eq!(datagram_error(|p| p[0] = 0x55), WireError::IpVersion(5));
    assert_eq!(datagram_error(|p| p[0] = 0x46), WireError::IpOptions(6));
    assert_eq!(datagram_error(|p| p[6] = 0x20), WireError::Fragment(0x2000));
    assert_eq!(datagram_error(|p| p[7] = 1), WireError::Fragment(0x4001));
    let protocol = WireError::Protocol {
        expected: 17,
        got: 6,
    };
    assert_eq!(datagram_error(|p| p[9] = 6), protocol);
    assert_eq!(datagram_error(|p| p[23] = 0), WireError::Port(0x1200));
    let length = |header, field, expected| WireError::Length {
        header,
        field,
        expected,
    };
    assert_eq!(
        datagram_error(|p| p[3] = 60),
        length(HeaderName::Ip, 60, 48)
    );
    assert_eq!(
        datagram_error(|p| p[3] = 19),
        length(HeaderName::Ip, 19, 48)
    );
    assert_eq!(
        datagram_error(|p| p[25] = 27),
        length(HeaderName::Udp, 27, 28)
    );
    assert!(matches!(
        datagram_error(|p| p.clear()),
        WireError::Truncated { got: 0, .. }
    ));

    let mut bytes = [0; 28];
    envelope().emit(0, &mut bytes).unwrap();
    let right = u16::from_be_bytes([bytes[10], bytes[11]]);
    bytes[10..12].copy_from_slice(&(right ^ 0x100).to_be_bytes());
    assert_eq!(
        Envelope::parse(&bytes),
        Err(WireError::IpChecksum {
            expected: right,
            got: right ^ 0x100
        })
    );
}

#[test]
fn what_cannot_be_written_is_refused() {
    let packet = Packet::parse(&ACK).unwrap();
    let icrc = envelope().icrc(packet.wire_len()).unwrap();
    let mut short = [0; 19];
    let no_room = |need, got| Err(WireError::NoRoom { need, got });
    assert_eq!(packet.emit(&mut short, &icrc), no_room(20, 19));
    assert_eq!(packet.head.emit(0, &mut short[..15]), no_room(16, 15));
    assert_eq!(envelope().emit(20, &mut short), no_room(28, 19));
    assert!(envelope().icrc(65_507).is_ok());
    assert_eq!(
        envelope().icrc(65_508).err(),
        Some(WireError::TooLong(65_508))
    );
    assert_eq!(
        envelope().icrc(usize::MAX).err(),
        Some(WireError::TooLong(usize::MAX))
    );
    assert!(Head::new(*packet.head.bth(), Extended::default()).is_err());
}

#[test]
fn a_wrong_icrc_comes_with_the_right_one() {
    let icrc: Icrc = envelope().icrc(ACK.len()).unwrap();
    let right = icrc.compute(&ACK[..16]).unwrap();
    assert_ne!(right, 0);
    let error = WireError::Icrc {
        expected: right,
        got: 0,
    };
    assert_eq!(icrc.verify(&ACK), Err(error));
    assert_eq!(
        error.to_string(),
        format!("ICRC 0x00000000, expected {right:#010x}")
    );
    assert!(icrc.verify(&ACK[..15]).is_err() && icrc.verify(&[]).is_err());
}

#[test]
fn views_print_any_bytes() {
    for byte in [0, 0x11, 0x64, 0xff] {
        let garbage = [byte; 64];
        for len in 16..garbage.len() {
            let text = format!("{:?}", PacketView::new(&garbage[..len]).unwrap());
            assert!(text.contains("BTH") && text.contains("ICRC"), "{text}");
        }
    }
    let text = format!("{:?}", PacketView::new(&ACK).unwrap());
    assert_eq!(
        text,
        "BTH { RC Acknowledge, flags: [], pkey: 0xffff, dest_qpn: 0x000012, psn: 1193046 } \
         {AETH { Ack(no credit), msn: 1 }} [0 bytes] ICRC 0x00000000"
    );
    assert!(BthView::new(&ACK[..11]).is_err() && AethView::new(&ACK[..3]).is_err());
}
