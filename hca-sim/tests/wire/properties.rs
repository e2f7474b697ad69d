//! Properties of the wire formats over random values and random bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use hca_sim::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, BthFlags, Deth, Envelope, Extended, FlowLabel, Grh,
    GrhView, Head, Headers, Icrc, Ieth, ImmDt, Net, Opcode, Packet, Reth, Syndrome, WireError,
    XrcEth, fuzz,
};
use proptest::array::{uniform4, uniform16};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use verbs_core::addr::{Gid, Msn, PKey, Psn, QKey, Qpn, RKey, Srqn};

fn opcodes() -> Vec<Opcode> {
    (0..=u8::MAX).filter_map(Opcode::from_u8).collect()
}

fn syndromes() -> Vec<Syndrome> {
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

/// All extended headers with random content; [`only`] leaves those that belong to an opcode.
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

/// The headers of a set out of a full one.
fn only(headers: Headers, full: Extended) -> Extended {
    Extended {
        xrceth: full.xrceth.filter(|_| headers.contains(Headers::XRCETH)),
        deth: full.deth.filter(|_| headers.contains(Headers::DETH)),
        reth: full.reth.filter(|_| headers.contains(Headers::RETH)),
        atomic: full
            .atomic
            .filter(|_| headers.contains(Headers::ATOMIC_ETH)),
        aeth: full.aeth.filter(|_| headers.contains(Headers::AETH)),
        atomic_ack: full
            .atomic_ack
            .filter(|_| headers.contains(Headers::ATOMIC_ACK_ETH)),
        immdt: full.immdt.filter(|_| headers.contains(Headers::IMMDT)),
        ieth: full.ieth.filter(|_| headers.contains(Headers::IETH)),
    }
}

fn any_head() -> impl Strategy<Value = Head> {
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

fn any_envelope() -> impl Strategy<Value = Envelope> {
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
    /// Every value is read as it was written, through both layers, with bytes behind it or not.
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

    /// A packet written in pieces, its payload never copied, is the same as one written whole.
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

    /// A GRH is read as it was written.
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
    fn heads_have_the_headers_of_their_opcode(bth in any_bth(), full in any_extended(), bits: u8) {
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

    /// Random bytes never panic, and what is read is written to the same bytes.
    #[test]
    fn random_bytes_keep_the_promises(mut bytes in vec(any::<u8>(), 0..120), opcode in select(opcodes())) {
        fuzz::packet(&bytes);
        fuzz::header(&bytes);
        fuzz::datagram(&bytes);
        // With an assigned opcode, version 0 and a whole number of words many more are packets.
        bytes.truncate(bytes.len() & !3);
        if let [first, second, ..] = &mut bytes[..] {
            *first = opcode.to_u8();
            *second &= 0xf0;
        }
        fuzz::packet(&bytes);
    }

    /// Damaged datagrams never panic, and are refused unless only what the ICRC leaves out has
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
            // Traffic class and hop limit are guarded by the header checksum of IPv4.
            Net::V4 { .. } => [26, 27, 32].contains(&at),
            Net::V6 { .. } => [1, 2, 3, 7, 46, 47, 52].contains(&at) || at == 0 && flip < 0x10,
        };
        prop_assert_eq!(accepted, left_out, "byte {}", at);
    }
}

/// One field of a packet: how to change it, and the bits that it owns.
struct Field {
    name: &'static str,
    header: Headers,
    /// First byte within the header, and the masks of its bytes.
    offset: usize,
    mask: &'static [u8],
    /// Whether the ICRC covers it.
    covered: bool,
    /// Flips at least one bit of the field.
    change: fn(&mut Bth, &mut Extended, u64),
}

const BTH: Headers = Headers::empty();
const W1: &[u8] = &[0xff];
const W2: &[u8] = &[0xff; 2];
const W3: &[u8] = &[0xff; 3];
const W4: &[u8] = &[0xff; 4];
const W8: &[u8] = &[0xff; 8];

/// A random number that changes a field of that many bits.
fn flip(noise: u64, bits: u32) -> u64 {
    let noise = noise & (u64::MAX >> (64 - bits));
    if noise == 0 { 1 } else { noise }
}

fn flip24(noise: u64) -> u32 {
    u32::try_from(flip(noise, 24)).unwrap()
}

fn flip32(noise: u64) -> u32 {
    u32::try_from(flip(noise, 32)).unwrap()
}

fn toggle(bth: &mut Bth, flag: BthFlags) {
    bth.flags.toggle(flag);
}

fn next_syndrome(aeth: &mut Aeth, noise: u64) {
    let all = syndromes();
    let at = all
        .iter()
        .position(|&syndrome| syndrome == aeth.syndrome)
        .unwrap();
    let step = 1 + usize::try_from(noise % 60).unwrap();
    aeth.syndrome = all[(at + step) % all.len()];
}

/// Every field of every header. `unwrap` holds since a field is changed only where its header is.
fn fields() -> Vec<Field> {
    macro_rules! field {
        ($name:literal, $header:expr, $offset:literal, $mask:expr, $covered:literal, $change:expr) => {
            Field {
                name: $name,
                header: $header,
                offset: $offset,
                mask: $mask,
                covered: $covered,
                change: $change,
            }
        };
    }
    vec![
        field!("solicited", BTH, 1, &[0x80], true, |b, _, _| toggle(
            b,
            BthFlags::SOLICITED
        )),
        field!("migrated", BTH, 1, &[0x40], true, |b, _, _| toggle(
            b,
            BthFlags::MIGRATED
        )),
        field!("pkey", BTH, 2, W2, true, |b, _, n| b.pkey.0 ^=
            u16::try_from(flip(n, 16)).unwrap()),
        field!("fecn", BTH, 4, &[0x80], false, |b, _, _| toggle(
            b,
            BthFlags::FECN
        )),
        field!("becn", BTH, 4, &[0x40], false, |b, _, _| toggle(
            b,
            BthFlags::BECN
        )),
        field!("dest_qpn", BTH, 5, W3, true, |b, _, n| b.dest_qpn =
            Qpn::new(b.dest_qpn.value() ^ flip24(n))),
        field!("ack_req", BTH, 8, &[0x80], true, |b, _, _| toggle(
            b,
            BthFlags::ACK_REQ
        )),
        field!("psn", BTH, 9, W3, true, |b, _, n| b.psn =
            Psn::new(b.psn.value() ^ flip24(n))),
        field!("srqn", Headers::XRCETH, 1, W3, true, |_, e, n| {
            let h = e.xrceth.as_mut().unwrap();
            h.srqn = Srqn::new(h.srqn.value() ^ flip24(n));
        }),
        field!("qkey", Headers::DETH, 0, W4, true, |_, e, n| e
            .deth
            .as_mut()
            .unwrap()
            .qkey
            .0 ^=
            flip32(n)),
        field!("src_qpn", Headers::DETH, 5, W3, true, |_, e, n| {
            let h = e.deth.as_mut().unwrap();
            h.src_qpn = Qpn::new(h.src_qpn.value() ^ flip24(n));
        }),
        field!("reth.addr", Headers::RETH, 0, W8, true, |_, e, n| e
            .reth
            .as_mut()
            .unwrap()
            .addr ^=
            flip(n, 64)),
        field!("reth.rkey", Headers::RETH, 8, W4, true, |_, e, n| {
            let h = e.reth.as_mut().unwrap();
            h.rkey = RKey::new(h.rkey.value() ^ flip32(n));
        }),
        field!("dma_len", Headers::RETH, 12, W4, true, |_, e, n| e
            .reth
            .as_mut()
            .unwrap()
            .dma_len ^=
            flip32(n)),
        field!(
            "atomic.addr",
            Headers::ATOMIC_ETH,
            0,
            W8,
            true,
            |_, e, n| {
                e.atomic.as_mut().unwrap().addr ^= flip(n, 64);
            }
        ),
        field!(
            "atomic.rkey",
            Headers::ATOMIC_ETH,
            8,
            W4,
            true,
            |_, e, n| {
                let h = e.atomic.as_mut().unwrap();
                h.rkey = RKey::new(h.rkey.value() ^ flip32(n));
            }
        ),
        field!(
            "swap_or_add",
            Headers::ATOMIC_ETH,
            12,
            W8,
            true,
            |_, e, n| {
                e.atomic.as_mut().unwrap().swap_or_add ^= flip(n, 64);
            }
        ),
        field!("compare", Headers::ATOMIC_ETH, 20, W8, true, |_, e, n| {
            e.atomic.as_mut().unwrap().compare ^= flip(n, 64);
        }),
        field!("syndrome", Headers::AETH, 0, W1, true, |_, e, n| {
            next_syndrome(e.aeth.as_mut().unwrap(), n);
        }),
        field!("msn", Headers::AETH, 1, W3, true, |_, e, n| {
            let h = e.aeth.as_mut().unwrap();
            h.msn = Msn::new(h.msn.value() ^ flip24(n));
        }),
        field!(
            "original",
            Headers::ATOMIC_ACK_ETH,
            0,
            W8,
            true,
            |_, e, n| {
                e.atomic_ack.as_mut().unwrap().original ^= flip(n, 64);
            }
        ),
        field!("imm", Headers::IMMDT, 0, W4, true, |_, e, n| e
            .immdt
            .as_mut()
            .unwrap()
            .imm ^=
            flip32(n)),
        field!("ieth.rkey", Headers::IETH, 0, W4, true, |_, e, n| {
            let h = e.ieth.as_mut().unwrap();
            h.rkey = RKey::new(h.rkey.value() ^ flip32(n));
        }),
    ]
}

/// Where a header of that opcode begins: behind the BTH and those before it.
fn header_offset(opcode: Opcode, header: Headers) -> usize {
    if header == BTH {
        return 0;
    }
    let before = Headers::from_bits_truncate(header.bits() - 1);
    Bth::LEN + (opcode.headers() & before).wire_len()
}

proptest! {
    /// A changed field changes bits of its own and the ICRC, and nothing else. Method: every field of
    /// every header that a random packet has, one at a time.
    #[test]
    fn a_field_owns_its_bytes(
        envelope in any_envelope(),
        head in any_head(),
        payload in vec(any::<u8>(), 0..40),
        noise: u64,
    ) {
        let emit = |head| {
            let packet = Packet { head, payload: &payload };
            let mut out = vec![0; packet.wire_len()];
            packet.emit(&mut out, &envelope.icrc(packet.wire_len()).unwrap()).unwrap();
            out
        };
        let before = emit(head);
        let mut changed = 0;
        for field in fields().iter().filter(|field| head.opcode().headers().contains(field.header)) {
            let (mut bth, mut ext) = (*head.bth(), *head.ext());
            (field.change)(&mut bth, &mut ext, noise);
            let after = emit(Head::new(bth, ext).unwrap());
            let mut diff: Vec<_> = before.iter().zip(&after).map(|(a, b)| a ^ b).collect();
            let icrc = diff.split_off(diff.len() - Icrc::LEN);
            prop_assert_eq!(icrc != [0; 4], field.covered, "{}: ICRC", field.name);
            let at = header_offset(head.opcode(), field.header) + field.offset;
            let own = &mut diff[at..at + field.mask.len()];
            prop_assert!(own.iter().any(|&bits| bits != 0), "{} is not written", field.name);
            own.iter_mut().zip(field.mask).for_each(|(bits, mask)| *bits &= !mask);
            prop_assert!(diff.iter().all(|&bits| bits == 0), "{} touches {:02x?}", field.name, diff);
            changed += 1;
        }
        prop_assert!(changed >= 8);
    }

    /// The same of the envelope: what a router may change does not change the ICRC.
    #[test]
    fn the_icrc_leaves_out_what_routers_change(envelope in any_envelope(), head in any_head(), noise: u64) {
        let icrc = |envelope: Envelope| {
            let bytes = datagram(&envelope, &Packet { head, payload: b"payload" });
            bytes[bytes.len() - Icrc::LEN..].to_vec()
        };
        let before = icrc(envelope);
        let byte = u8::try_from(flip(noise, 8)).unwrap();
        let short = u16::try_from(flip(noise, 16)).unwrap();

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
