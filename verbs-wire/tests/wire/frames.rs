//! Packets as they are on InfiniBand links: route headers and both CRCs.

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_core::Lid;
use verbs_wire::{Frame, Grh, Icrc, Lrh, LrhView, Vcrc, WireError, fuzz};

/// A packet without a global route header, from LRH to the last pad byte: an RDMA WRITE of 14 bytes. The packet
/// and its ICRC are the specification's own example (IBTA vol. 1, 7.8.1).
const SAMPLE: &str = "7012375c000e17d20a202487ff87b1b3000dec2a01710a1c015d400238f27a050000000e\
                      bb884d85fd5cfba4728bc0690ed40000";
const SAMPLE_ICRC: [u8; 4] = [0x96, 0x25, 0xb7, 0x5a];

fn sample() -> Vec<u8> {
    let digits: Vec<_> = SAMPLE.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

#[test]
fn the_specification_s_example_has_its_icrc() {
    let mut packet = sample();
    let (lrh, said) = Lrh::parse(LrhView::new(&packet).unwrap()).unwrap();
    assert_eq!((lrh.vl, lrh.sl, lrh.global), (7, 1, false));
    assert_eq!((lrh.dlid, lrh.slid), (Lid(0x375c), Lid(0x17d2)));
    assert_eq!(said, packet.len() + Icrc::LEN);
    packet.extend(SAMPLE_ICRC);
    let vcrc = Vcrc::of(&packet);
    packet.extend(vcrc);
    let (frame, transport) = Frame::parse(&packet).unwrap();
    let icrc = frame.icrc(transport.len()).unwrap();
    assert_eq!(icrc.verify(transport), Ok(()));
    // Another lane on the next link: another variant CRC, the same invariant one.
    let next = Frame { vl: 3, ..frame };
    assert_eq!(
        next.icrc(transport.len()).unwrap().verify(transport),
        Ok(())
    );
    let mut again = Vec::new();
    next.append(transport, &mut again).unwrap();
    assert_ne!(again[again.len() - 2..], vcrc);
    assert_eq!(Frame::parse(&again), Ok((next, transport)));
}

/// Goal: the CRC of sixteen bytes at a time equals the bitwise one.
#[test]
fn the_variant_crc_is_that_of_its_polynomial() {
    let bytes: Vec<u8> = (0..100).map(|i| (i * 37 + 11) as u8).collect();
    for len in 0..bytes.len() {
        let mut register = 0xffff_u16;
        for byte in &bytes[..len] {
            register ^= u16::from(*byte);
            for _ in 0..8 {
                let carry = if register & 1 == 1 { 0xd008 } else { 0 };
                register = register >> 1 ^ carry;
            }
        }
        assert_eq!(Vcrc::of(&bytes[..len]), (!register).to_le_bytes(), "{len}");
    }
}

#[test]
fn what_is_no_packet_is_refused() {
    let frame = Frame {
        grh: Some(Grh::default()),
        ..Frame::default()
    };
    let mut good = Vec::new();
    frame.append(&[7; 16], &mut good).unwrap();
    let change = |at: usize, bits: u8| {
        let mut bad = good.clone();
        bad[at] ^= bits;
        Frame::parse(&bad).map(|_| ())
    };
    assert_eq!(change(0, 1), Err(WireError::Version(1)));
    assert_eq!(change(1, 3), Err(WireError::NextHeader(0)));
    assert_eq!(change(8, 0x10), Err(WireError::IpVersion(7)));
    assert!(
        matches!(change(5, 1), Err(WireError::Length { .. })),
        "its own length"
    );
    assert!(
        matches!(change(13, 1), Err(WireError::Length { .. })),
        "the GRH's length"
    );
    assert!(matches!(change(60, 1), Err(WireError::Vcrc { .. })));
    assert_eq!(
        frame.append(&[0; 15], &mut good),
        Err(WireError::Unaligned(63))
    );
    assert_eq!(
        frame.append(&[0; 8144], &mut good),
        Err(WireError::TooLong(8192))
    );
}

proptest! {
    #[test]
    fn frames_are_read_as_they_were_written(
        fields in (0..16_u8, 0..16_u8, any::<u16>(), any::<u16>(), any::<bool>()),
        words in 0..1100_usize,
        gids in any::<[u8; 32]>(),
    ) {
        let (vl, sl, dlid, slid, is_global) = fields;
        let (sgid, dgid) = gids.split_at(16);
        let transport = vec![5; 4 * words];
        let grh = Grh {
            payload_len: (4 * words) as u16,
            sgid: verbs_core::Gid(sgid.try_into().unwrap()),
            dgid: verbs_core::Gid(dgid.try_into().unwrap()),
            ..Grh::default()
        };
        let frame = Frame { vl, sl, dlid: Lid(dlid), slid: Lid(slid), grh: is_global.then_some(grh) };
        let mut bytes = Vec::new();
        frame.append(&transport, &mut bytes).unwrap();
        prop_assert_eq!(bytes.len(), frame.wire_len() + transport.len() + Vcrc::LEN);
        prop_assert_eq!(Frame::parse(&bytes), Ok((frame, &transport[..])));
        prop_assert!(fuzz::frame(&bytes).is_accepted());
        let behind = bytes.split_off(bytes.len() - Vcrc::LEN);
        prop_assert_eq!(Frame::split(&bytes), Ok((frame, &transport[..], &[][..])));
        prop_assert!(Frame::parse(&bytes).is_err(), "no variant CRC");
        bytes.extend_from_slice(&behind);
        prop_assert_eq!(Frame::split(&bytes), Ok((frame, &transport[..], &behind[..])));
        bytes.push(1);
        prop_assert!(Frame::parse(&bytes).is_err(), "more than that");
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..80)) {
        fuzz::frame(&bytes);
    }
}
