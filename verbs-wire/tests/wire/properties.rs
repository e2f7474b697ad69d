//! Properties of the wire formats over random values and random bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::array::{uniform4, uniform16};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use verbs_core::Placement;
use verbs_core::addr::{Gid, Msn, PKey, Psn, QKey, Qpn, RKey, Srqn};
use verbs_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, BthFlags, Deth, Envelope, Extended, Feth, FlowLabel, Grh,
    GrhView, Head, Headers, Icrc, Ieth, ImmDt, MaskEth, Net, Opcode, Packet, Reth, Syndrome,
    WireError, XrcEth, fuzz,
};

fn opcodes() -> Vec<Opcode> {
    (0..=u8::MAX).filter_map(Opcode::from_u8).collect()
}

pub(crate) fn syndromes() -> Vec<Syndrome> {
    (0..=u8::MAX).filter_map(Syndrome::from_u8).collect()
}

fn any_bth() -> impl Strategy<Value = Bth> {
    (
        select(opcodes()),
        any::<u32>(),
        any::<u16>(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(|(opcode, flags, pkey, qpn, psn)| Bth {
            opcode,
            flags: BthFlags::from_bits_truncate(flags),
            pkey: PKey(pkey),
            dest_qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
        })
}

/// All extended headers with random content; [`only`] keeps those that belong to an opcode.
fn any_extended() -> impl Strategy<Value = Extended> {
    (
        uniform4(any::<u64>()),
        uniform4(any::<u32>()),
        select(syndromes()),
        any::<[u32; 4]>(),
    )
        .prop_map(|(wide, keys, syndrome, numbers)| Extended {
            xrceth: Some(XrcEth {
                srqn: Srqn::new(numbers[0]),
            }),
            deth: Some(Deth {
                qkey: QKey(keys[0]),
                src_qpn: Qpn::new(numbers[1]),
            }),
            reth: Some(Reth {
                addr: wide[0],
                rkey: RKey::new(keys[1]),
                dma_len: numbers[2],
            }),
            atomic: Some(AtomicEth {
                addr: wide[1],
                rkey: RKey::new(keys[2]),
                swap_or_add: wide[2],
                compare: wide[3],
            }),
            feth: Some(Feth {
                placement: Placement::from_bits_retain(numbers[0] as u8 & 0xf),
                selectivity: numbers[1] as u8 & 3,
            }),
            masks: Some(MaskEth {
                swap_or_boundary: wide[3],
                compare: wide[0],
            }),
            aeth: Some(Aeth {
                syndrome,
                msn: Msn::new(numbers[3]),
            }),
            atomic_ack: Some(AtomicAckEth {
                original: wide[0] ^ wide[1],
            }),
            immdt: Some(ImmDt { imm: keys[3] }),
            ieth: Some(Ieth {
                rkey: RKey::new(keys[3]),
            }),
        })
}

/// The headers of a set, taken from a full one.
fn only(headers: Headers, full: Extended) -> Extended {
    Extended {
        xrceth: full.xrceth.filter(|_| headers.contains(Headers::XRCETH)),
        deth: full.deth.filter(|_| headers.contains(Headers::DETH)),
        reth: full.reth.filter(|_| headers.contains(Headers::RETH)),
        atomic: full
            .atomic
            .filter(|_| headers.contains(Headers::ATOMIC_ETH)),
        feth: full.feth.filter(|_| headers.contains(Headers::FETH)),
        masks: full.masks.filter(|_| headers.contains(Headers::MASK_ETH)),
        aeth: full.aeth.filter(|_| headers.contains(Headers::AETH)),
        atomic_ack: full
            .atomic_ack
            .filter(|_| headers.contains(Headers::ATOMIC_ACK_ETH)),
        immdt: full.immdt.filter(|_| headers.contains(Headers::IMMDT)),
        ieth: full.ieth.filter(|_| headers.contains(Headers::IETH)),
    }
}

pub(crate) fn any_head() -> impl Strategy<Value = Head> {
    (any_bth(), any_extended())
        .prop_map(|(bth, full)| Head::new(bth, only(bth.opcode.headers(), full)).unwrap())
}

fn any_net() -> impl Strategy<Value = Net> {
    prop_oneof![
        (
            any::<Ipv4Addr>(),
            any::<Ipv4Addr>(),
            any::<u16>(),
            any::<bool>()
        )
            .prop_map(|(src, dst, identification, dont_fragment)| Net::V4 {
                src,
                dst,
                identification,
                dont_fragment
            }),
        (any::<Ipv6Addr>(), any::<Ipv6Addr>(), any::<u32>()).prop_map(|(src, dst, label)| {
            Net::V6 {
                src,
                dst,
                flow_label: FlowLabel::new(label),
            }
        }),
    ]
}

pub(crate) fn any_envelope() -> impl Strategy<Value = Envelope> {
    (
        any_net(),
        any::<u8>(),
        any::<u8>(),
        any::<u16>(),
        any::<u16>(),
    )
        .prop_map(
            |(net, traffic_class, hop_limit, src_port, udp_checksum)| Envelope {
                net,
                traffic_class,
                hop_limit,
                src_port,
                udp_checksum,
            },
        )
}

/// An IP packet.
fn datagram(envelope: &Envelope, packet: &Packet<'_>) -> Vec<u8> {
    let mut out = vec![0xa5; envelope.wire_len() + packet.wire_len()];
    let headers = envelope.emit(packet.wire_len(), &mut out).unwrap();
    let icrc = envelope.icrc(packet.wire_len()).unwrap();
    let len = packet.emit(&mut out[headers..], &icrc).unwrap();
    assert_eq!(headers + len, out.len());
    out
}

proptest! {
    /// Every value reads as it was written, through both layers, with or without bytes after it.
    #[test]
    fn values_round_trip(
        envelope in any_envelope(),
        head in any_head(),
        payload in vec(any::<u8>(), 0..300),
        behind in vec(any::<u8>(), 0..8),
    ) {
        let packet = Packet { head, payload: &payload };
        let mut bytes = datagram(&envelope, &packet);
        prop_assert!(fuzz::datagram(&bytes).is_accepted());
        bytes.extend(&behind);
        let (got, transport) = Envelope::parse(&bytes).unwrap();
        prop_assert_eq!(got, envelope);
        prop_assert_eq!(got.icrc(transport.len()).unwrap().verify(transport), Ok(()));
        prop_assert_eq!(Packet::parse(transport).unwrap(), packet);
    }

    /// A packet written in pieces, its payload never copied, equals one written whole.
    #[test]
    fn pieces_make_the_same_packet(
        envelope in any_envelope(),
        head in any_head(),
        payload in vec(any::<u8>(), 0..300),
        cut: prop::sample::Index,
    ) {
        let whole = datagram(&envelope, &Packet { head, payload: &payload });
        let mut headers = [0xa5; Head::LEN_MAX];
        let len = head.emit(payload.len(), &mut headers).unwrap();
        let (first, second) = payload.split_at(cut.index(payload.len() + 1));
        let mut icrc = envelope.icrc(head.packet_len(payload.len())).unwrap();
        icrc.head(&headers[..len]).unwrap();
        icrc.update(first);
        icrc.update(second);
        let trailer = icrc.trailer(payload.len());
        let pieces = [&headers[..len], first, second, trailer.as_bytes()].concat();
        prop_assert_eq!(&whole[envelope.wire_len()..], &pieces[..]);
    }

    /// A GRH reads as it was written.
    #[test]
    fn grh_round_trips(
        traffic_class: u8, label: u32, payload_len: u16, hop_limit: u8,
        sgid in uniform16(any::<u8>()), dgid in uniform16(any::<u8>()),
    ) {
        let flow_label = FlowLabel::new(label);
        let (sgid, dgid) = (Gid(sgid), Gid(dgid));
        let grh = Grh { traffic_class, flow_label, payload_len, hop_limit, sgid, dgid };
        let mut bytes = [0xa5; Grh::LEN];
        grh.emit(&mut bytes);
        prop_assert_eq!(Grh::parse(GrhView::of(&bytes)), Ok(grh));
    }

    /// Headers other than the opcode's are refused.
    #[test]
    fn heads_have_the_headers_of_their_opcode(bth in any_bth(), full in any_extended(), bits: u16) {
        let got = Headers::from_bits_truncate(bits);
        let expected = bth.opcode.headers();
        let head = Head::new(bth, only(got, full));
        if got == expected {
            prop_assert_eq!(head.unwrap().ext().present(), expected);
        } else {
            let error = WireError::Headers { opcode: bth.opcode, expected, got };
            prop_assert_eq!(head, Err(error));
        }
    }

    /// Random bytes never cause a panic, and if they are read, writing gives the same bytes.
    #[test]
    fn random_bytes_keep_the_promises(mut bytes in vec(any::<u8>(), 0..120), opcode in select(opcodes())) {
        fuzz::packet(&bytes);
        fuzz::header(&bytes);
        fuzz::datagram(&bytes);
        // With an assigned opcode, version 0 and a whole number of words, many more are packets.
        bytes.truncate(bytes.len() & !3);
        if let [first, second, ..] = &mut bytes[..] {
            *first = opcode.to_u8();
            *second &= 0xf0;
        }
        fuzz::packet(&bytes);
    }

    /// Damaged datagrams never cause a panic, and are refused unless only bits that the ICRC does not cover have
    /// changed.
    #[test]
    fn damaged_datagrams_keep_the_promises(
        envelope in any_envelope(),
        head in any_head(),
        payload in vec(any::<u8>(), 0..64),
        at: prop::sample::Index,
        flip in 1..=u8::MAX,
    ) {
        let mut bytes = datagram(&envelope, &Packet { head, payload: &payload });
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let accepted = fuzz::datagram(&bytes).is_accepted();
        let left_out = match envelope.net {
            // The header checksum of IPv4 covers traffic class and hop limit.
            Net::V4 { .. } => [26, 27, 32].contains(&at),
            Net::V6 { .. } => [1, 2, 3, 7, 46, 47, 52].contains(&at) || at == 0 && flip < 0x10,
        };
        prop_assert_eq!(accepted, left_out, "byte {}", at);
    }
}

proptest! {
    /// A change that a router may make does not change the ICRC; any other change does.
    #[test]
    fn the_icrc_leaves_out_what_routers_change(envelope in any_envelope(), head in any_head(), byte in 1..=u8::MAX, short in 1..=u16::MAX) {
        let icrc = |envelope: Envelope| {
            let bytes = datagram(&envelope, &Packet { head, payload: b"payload" });
            bytes[bytes.len() - Icrc::LEN..].to_vec()
        };
        let before = icrc(envelope);

        let routed = Envelope {
            traffic_class: envelope.traffic_class ^ byte,
            hop_limit: envelope.hop_limit ^ byte,
            udp_checksum: envelope.udp_checksum ^ short,
            ..envelope
        };
        prop_assert_eq!(&icrc(routed), &before);
        let mut port = envelope;
        port.src_port ^= short;
        prop_assert_ne!(&icrc(port), &before);
        let mut other = envelope;
        match &mut other.net {
            Net::V4 { identification, .. } => *identification ^= short,
            Net::V6 { flow_label, .. } => *flow_label = FlowLabel::new(flow_label.value() ^ 1),
        }
        prop_assert_eq!(icrc(other) == before, matches!(envelope.net, Net::V6 { .. }));
        if let Net::V4 { dont_fragment, .. } = &mut other.net {
            *dont_fragment = !*dont_fragment;
            prop_assert_ne!(icrc(other), before);
        }
    }
}
