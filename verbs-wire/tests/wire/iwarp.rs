//! Goal: iWARP frames are read as Linux siw means them and written to the same bytes. Method: frames sent by siw
//! (Linux 6.1), with and without CRCs, in both revisions of MPA; vectors from the RFCs' layouts; random values
//! and random bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_wire::iwarp::{
    AtomicOperation, AtomicRequest, AtomicResponse, Cause, Depth, Fpdu, FpduCrc, Header,
    IwarpError, MapperKind, MapperMessage, RdmapOpcode, ReadRequest, Refused, Reply, Revision, Rtr,
    STag, Setup, Startup, StartupKind, Tagged, Terminate, Untagged, fuzz,
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(byte).to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

const REQUEST_KEY: &str = "4d504120494420526571204672616d65";
const REPLY_KEY: &str = "4d504120494420526570204672616d65";

/// Startup frames of siw, as `vp-verbs` and `rping` cause them.
fn startups() -> Vec<(String, Startup<'static>)> {
    let setup = |ird, ord| Setup {
        ird: Depth::new(ird),
        ord: Depth::new(ord),
        is_peer_to_peer: false,
        rtr: Rtr::empty(),
    };
    let startup = |kind, revision, private_data| Startup {
        kind,
        wants_markers: false,
        wants_crc: false,
        revision,
        private_data,
    };
    let reply = StartupKind::Reply(Reply::Accept);
    let peers = |rtr| Setup {
        is_peer_to_peer: true,
        rtr,
        ..setup(4, 1)
    };
    vec![
        (
            format!("{REQUEST_KEY} 00010004 73656e64"),
            startup(StartupKind::Request, Revision::One, b"send"),
        ),
        (
            format!("{REQUEST_KEY} 50020004 00040001"),
            Startup {
                wants_crc: true,
                ..startup(StartupKind::Request, Revision::Two(Some(setup(4, 1))), b"")
            },
        ),
        (
            format!("{REPLY_KEY} 3002000b 00080008 676f2061776179"),
            startup(
                StartupKind::Reply(Reply::Reject),
                Revision::Two(Some(setup(8, 8))),
                b"go away",
            ),
        ),
        (
            format!("{REQUEST_KEY} 10020004 8001c001"),
            startup(
                StartupKind::Request,
                Revision::Two(Some(Setup {
                    ird: Depth::new(1),
                    ..peers(Rtr::WRITE | Rtr::READ)
                })),
                b"",
            ),
        ),
        (
            format!("{REPLY_KEY} 10020004 80018001"),
            startup(
                reply,
                Revision::Two(Some(Setup {
                    ird: Depth::new(1),
                    ..peers(Rtr::WRITE)
                })),
                b"",
            ),
        ),
    ]
}

#[test]
fn startup_frames_are_read_and_written() {
    for (text, startup) in startups() {
        let bytes = hex(&text);
        let parse = match startup.kind {
            StartupKind::Request => Startup::parse_request,
            StartupKind::Reply(_) => Startup::parse_reply,
        };
        assert_eq!(parse(&bytes), Ok(Some((startup, bytes.len()))), "{text}");
        let mut out = [0xff; Startup::LEN_MAX];
        let len = startup.emit(&mut out).unwrap();
        assert_eq!(out[..len], bytes, "{text}");
    }
}

/// FPDUs: whether they have CRCs, their headers and payloads.
fn fpdus() -> Vec<(&'static str, bool, Header, Vec<u8>)> {
    let send = |msn| Header::Untagged(Untagged::first(RdmapOpcode::Send, msn));
    let tagged = |opcode, stag, offset| {
        Header::Tagged(Tagged {
            opcode,
            is_last: true,
            stag: STag::new(stag),
            offset,
        })
    };
    let read = Header::Untagged(Untagged::first(RdmapOpcode::ReadRequest, 1));
    vec![
        // rping over siw with CRCs.
        (
            "0022 4143 00000000 00000000 00000001 00000000 0000559797aca370095220000000 0040 6d2dc7ee",
            true,
            send(1),
            hex("0000559797aca37009522000 00000040"),
        ),
        (
            "002e4141 00000000 00000001 00000001 00000000 6aa25000000055fc2a57555000000040 095220000000559797aca370 3489789b",
            true,
            read,
            hex("6aa25000000055fc2a57555000000040095220000000559797aca370"),
        ),
        (
            "004ec1426aa25000000055fc2a57555072646d612d70696e672d303a204142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172008d42fda9",
            true,
            tagged(RdmapOpcode::ReadResponse, 0x6aa2_5000, 0x55fc_2a57_5550),
            hex(
                "72646d612d70696e672d303a204142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70717200",
            ),
        ),
        // siw without CRCs: its ready-to-receive message.
        (
            "000ec140 00000001 0000000000000000 00000000",
            false,
            tagged(RdmapOpcode::Write, 1, 0),
            vec![],
        ),
        // From the layouts.
        (
            "0017 4143 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c",
            true,
            send(1),
            b"hello".to_vec(),
        ),
        (
            "0012 c140 12345678 0000000000001000 64617461 f2ca6d3e",
            true,
            tagged(RdmapOpcode::Write, 0x1234_5678, 0x1000),
            b"data".to_vec(),
        ),
    ]
}

#[test]
fn fpdus_are_read_and_written_in_any_segmentation() {
    for (text, has_crc, header, payload) in fpdus() {
        let bytes = hex(text);
        let (fpdu, len) = Fpdu::parse(&bytes, has_crc).unwrap().unwrap();
        assert_eq!(len, bytes.len(), "{text}");
        assert_eq!(Header::parse(fpdu.ulpdu), Ok((header, &payload[..])));
        for cut in 0..len {
            assert_eq!(Fpdu::parse(&bytes[..cut], has_crc), Ok(None), "{text}");
        }
        let mut ulpdu = vec![0; header.wire_len()];
        header.emit(&mut ulpdu).unwrap();
        ulpdu.extend(&payload);
        let mut out = vec![0xff; len];
        assert_eq!(Fpdu { ulpdu: &ulpdu }.emit(has_crc, &mut out), Ok(len));
        assert_eq!(out, bytes, "{text}");
        if has_crc {
            for at in 2..len {
                let mut bent = bytes.clone();
                bent[at] ^= 0x10;
                let error = Fpdu::parse(&bent, true).unwrap_err();
                assert_eq!(error.cause(), Some(Cause::LLP_CRC), "{text}");
            }
        }
    }
}

#[test]
fn the_crc_is_castagnoli_low_byte_first() {
    let mut crc = FpduCrc::default();
    crc.update(b"1234");
    crc.update(b"56789");
    assert_eq!(crc.to_bytes(), 0xe306_9283_u32.to_le_bytes());
    assert_eq!(crc.verify([0x83, 0x92, 0x06, 0xe3]), Ok(()));
}

#[test]
fn lengths_agree() {
    for room in 0..4096 {
        let len = Fpdu::ulpdu_within(room);
        assert!(Fpdu::wire_len(len) <= room || len == 0, "{room}");
        assert!(Fpdu::wire_len(len + 1) > room, "{room}");
    }
    assert_eq!(Fpdu::ulpdu_within(usize::MAX), Fpdu::ULPDU_MAX);
    let ulpdu = vec![0; Fpdu::ULPDU_MAX + 1];
    let error = Fpdu { ulpdu: &ulpdu }.emit(true, &mut []);
    assert_eq!(error, Err(IwarpError::UlpduLength(65_536)));
}

/// siw on little-endian hosts swaps layer and error type; the control bits show which form it is.
#[test]
fn terminates_of_siw_are_read_as_it_means_them() {
    let tagged = hex("11010300 0040 c140dd533c0000007f8e3dd77ff8");
    let terminate = Terminate::parse(&tagged).unwrap();
    assert_eq!(terminate.cause, Cause::DDP_BOUNDS);
    let refused = terminate.refused.unwrap();
    assert_eq!(refused.segment_len, 0x40);
    let (header, _) = Header::parse(refused.header()).unwrap();
    let stag = STag::new(0xdd53_3c00);
    assert!(matches!(header, Header::Tagged(tagged) if tagged.stag == stag));

    let too_long = hex("21020300 0040 414300000000000000000000000100000000");
    let cause = Terminate::parse(&too_long).unwrap().cause;
    assert_eq!(cause, Cause::DDP_NO_BUFFER);

    let read = hex(
        "10000700 0000 414100000000000000010000004000000000 4d25510000007f702ce610000000004003bca30000007ffb1d20e000",
    );
    let terminate = Terminate::parse(&read).unwrap();
    assert_eq!(terminate.cause, Cause::RDMAP_STAG);
    let request = terminate.refused.unwrap().read_request().unwrap();
    assert_eq!(request.source, STag::new(0x03bc_a300));
    assert_eq!(request.len, 64);
}

#[test]
fn terminates_are_written_as_the_rfc_has_them() {
    let read = ReadRequest {
        sink: STag::new(0x1111_1100),
        sink_offset: 0x2000,
        len: 4096,
        source: STag::new(0x2222_2200),
        source_offset: 0x3000,
    };
    let header = Header::Untagged(Untagged::first(RdmapOpcode::ReadRequest, 1));
    let mut ulpdu = [0; Header::UNTAGGED_LEN + ReadRequest::LEN];
    header.emit(&mut ulpdu).unwrap();
    ulpdu[Header::UNTAGGED_LEN..].copy_from_slice(&read.to_bytes());
    let refused = Refused::new(&ulpdu);
    assert_eq!(refused.unwrap().read_request(), Some(read));
    let bare = |cause| Terminate {
        cause,
        refused: None,
    };
    for (terminate, text) in [
        (bare(Cause::LLP_CRC), "20020000".to_owned()),
        (
            Terminate {
                cause: Cause::RDMAP_BOUNDS,
                refused,
            },
            "0101e000 002e 414100000000000000010000000100000000 11111100 0000000000002000 00001000 22222200 0000000000003000".to_owned(),
        ),
    ] {
        let mut out = [0xff; Terminate::LEN_MAX];
        let len = terminate.emit(&mut out).unwrap();
        assert_eq!(out[..len], hex(&text));
        assert_eq!(Terminate::parse(&out[..len]), Ok(terminate));
    }
    // Every assigned cause, and every other, reads back the same.
    for numbers in 0..=0xffff_u16 {
        let [kind, code] = numbers.to_be_bytes();
        let cause = Cause::new(kind >> 4, kind & 0xf, code);
        let mut out = [0; 4];
        bare(cause).emit(&mut out).unwrap();
        assert_eq!(out, [kind, code, 0, 0]);
        assert_eq!(Terminate::parse(&out), Ok(bare(cause)));
    }
    for (index, (cause, meaning)) in Cause::ASSIGNED.iter().enumerate() {
        assert_eq!(cause.meaning(), Some(*meaning));
        let mut others = Cause::ASSIGNED[index + 1..].iter();
        assert!(others.all(|(other, _)| other != cause), "{cause}");
    }
}

#[test]
fn port_mapper_messages_have_their_layout() {
    let address = [10, 77, 0, 2].into();
    let message = MapperMessage {
        kind: MapperKind::Request {
            mapped_port: 50_000,
            mapped_addr: [10, 77, 0, 3].into(),
        },
        accept_port: 7500,
        connect_port: 40_000,
        association: 0x1122_3344_5566_7788,
        connect_addr: [10, 77, 0, 3].into(),
        accept_addr: address,
    };
    let mut out = [0xff; MapperMessage::REQUEST_LEN];
    assert_eq!(message.emit(&mut out), Ok(64));
    let zeros = "00".repeat(12);
    let expected = format!(
        "0400 c350 1d4c 9c40 1122334455667788 0a4d0003 {zeros} 0a4d0002 {zeros} 0a4d0003 {zeros}"
    );
    assert_eq!(out[..], hex(&expected));
    assert_eq!(MapperMessage::parse(&out), Ok(message));
    let mixed = MapperMessage {
        accept_addr: "fd77::2".parse().unwrap(),
        ..message
    };
    assert_eq!(mixed.emit(&mut out), Err(IwarpError::MixedAddresses));
}

#[test]
fn errors_name_their_cause() {
    let error = |text: &str| Header::parse(&hex(text)).unwrap_err().cause().unwrap();
    let untagged = "00000000 00000000 00000001 00000000";
    let tagged = "00000001 0000000000000000";
    assert_eq!(
        error(&format!("4243{untagged}")),
        Cause::DDP_UNTAGGED_VERSION
    );
    assert_eq!(error(&format!("c240{tagged}")), Cause::DDP_TAGGED_VERSION);
    assert_eq!(error(&format!("4183{untagged}")), Cause::RDMAP_VERSION);
    assert_eq!(error(&format!("414c{untagged}")), Cause::RDMAP_OPCODE);
    assert_eq!(error(&format!("c143{tagged}")), Cause::RDMAP_OPCODE);
    assert_eq!(error(&format!("4140{untagged}")), Cause::RDMAP_OPCODE);
    assert_eq!(error(&format!("4141{untagged}")), Cause::DDP_QUEUE);
    assert_eq!(error("4143"), Cause::LLP_FRAMING);
    let error = ReadRequest::parse(&[0; 29]).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::DDP_TOO_LONG));
}

fn any_operation() -> impl Strategy<Value = AtomicOperation> {
    (any::<bool>(), any::<[u64; 4]>()).prop_map(|(is_add, [a, b, c, d])| {
        if is_add {
            AtomicOperation::FetchAdd { add: a, mask: b }
        } else {
            AtomicOperation::CmpSwap {
                swap: a,
                swap_mask: b,
                compare: c,
                compare_mask: d,
            }
        }
    })
}

proptest! {
    /// Written bodies read back the same.
    #[test]
    fn bodies_survive(operation in any_operation(), words in any::<[u32; 3]>(), wide in any::<[u64; 2]>()) {
        let [request, stag, len] = words;
        let atomic = AtomicRequest {
            request,
            stag: STag::new(stag),
            offset: wide[0],
            operation,
        };
        prop_assert_eq!(AtomicRequest::parse(&atomic.to_bytes()), Ok(atomic));
        let response = AtomicResponse { request, original: wide[1] };
        prop_assert_eq!(AtomicResponse::parse(&response.to_bytes()), Ok(response));
        let read = ReadRequest {
            sink: STag::new(stag),
            sink_offset: wide[0],
            len,
            source: STag::new(request),
            source_offset: wide[1],
        };
        prop_assert_eq!(ReadRequest::parse(&read.to_bytes()), Ok(read));
    }

    /// Headers of every opcode read back the same, and no header is written with the wrong tag.
    #[test]
    fn headers_survive(number in 0_u8..12, is_last: bool, words in any::<[u32; 3]>(), wide: u64) {
        let opcode = RdmapOpcode::new(number).unwrap();
        prop_assert_eq!(opcode.number(), number);
        let tagged = Header::Tagged(Tagged { opcode, is_last, stag: STag::new(words[0]), offset: wide });
        let untagged = Header::Untagged(Untagged {
            opcode,
            is_last,
            invalidate: STag::new(words[0]),
            msn: words[1],
            offset: words[2],
        });
        let is_tagged = opcode.queue().is_none();
        let (right, wrong) = if is_tagged { (tagged, untagged) } else { (untagged, tagged) };
        let mut out = [0; Header::UNTAGGED_LEN];
        let len = right.emit(&mut out).unwrap();
        prop_assert_eq!(Header::parse(&out[..len]), Ok((right, &[][..])));
        let error = IwarpError::Tagging { opcode, is_tagged: !is_tagged };
        prop_assert_eq!(wrong.emit(&mut out), Err(error));
    }

    /// No bytes break a promise, even those that begin as frames do.
    #[test]
    fn random_bytes_are_refused_or_read(mut bytes in vec(any::<u8>(), 0..200), mode in 0..4_u8) {
        fuzz::port_mapper(&bytes);
        if bytes.len() > 24 {
            match mode {
                0 => bytes[..16].copy_from_slice(&hex(REQUEST_KEY)),
                1 => bytes[..16].copy_from_slice(&hex(REPLY_KEY)),
                // A short FPDU without CRC of version 1, in queue 0 or 2.
                _ => {
                    bytes[0] &= !1;
                    bytes[1] = 0;
                    bytes[3] = bytes[3] & !3 | 1;
                    bytes[4] = bytes[4] & 0x3f | 0x40;
                    bytes[9..12].fill(0);
                    bytes[12] &= 3;
                }
            }
        }
        fuzz::mpa_startup(&bytes);
        fuzz::fpdu(&bytes);
    }
}
