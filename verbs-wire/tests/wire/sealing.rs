//! Goal: identifications are found in packets that do not show them, and almost never in damaged packets. Method:
//! all packets of rxe's captures, and random packets.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use verbs_wire::{Envelope, Net, Seal, Solution};

use crate::captures::captures;

/// The seal of that packet's flow, and the solution from its header.
fn flow(envelope: &Envelope) -> (Seal, Option<Solution>) {
    match envelope.net {
        Net::V4 {
            src,
            dst,
            identification,
            dont_fragment,
        } => {
            let solution = Solution {
                identification,
                dont_fragment,
            };
            (Seal::v4(src, dst, envelope.src_port), Some(solution))
        }
        Net::V6 { src, dst, .. } => (Seal::v6(src, dst, envelope.src_port), None),
    }
}

#[test]
fn every_identification_of_rxe_is_found() {
    let (stored, added) = captures();
    let mut found = [0; 3];
    for capture in stored.iter().chain(&added) {
        for (number, ip) in capture.ip_packets() {
            let Ok((envelope, transport)) = Envelope::parse(ip) else {
                continue;
            };
            let at = format!("{} {number}", capture.name);
            let (seal, header) = flow(&envelope);
            let solution = seal.solve(transport).expect(&at);
            match header {
                Some(header) => {
                    assert_eq!(solution, header, "{at}");
                    let known =
                        header.dont_fragment && seal.verify(header.identification, transport);
                    assert_eq!(known, header.dont_fragment, "{at}");
                    found[usize::from(header.identification > 127)] += 1;
                }
                None => {
                    assert!(seal.verify(0, transport), "{at}");
                    found[2] += 1;
                }
            }
        }
    }
    assert!(found[1] > 400 && found[2] > 10, "{found:?}");
}

/// Goal: an error of one or two bits anywhere is not mistaken for another identification.
#[test]
fn damaged_packets_of_rxe_have_no_identification() {
    let (stored, _) = captures();
    let mut accepted = 0;
    let mut damaged = 0;
    for capture in stored.iter().step_by(5) {
        for (_, ip) in capture.ip_packets().take(10) {
            let Ok((envelope, transport)) = Envelope::parse(ip) else {
                continue;
            };
            let (seal, _) = flow(&envelope);
            let bits = 8 * transport.len();
            for bit in 0..bits.min(800) {
                // Byte 4 of the BTH is not covered.
                if bit / 8 == 4 {
                    continue;
                }
                let mut bytes = transport.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                damaged += 1;
                accepted += usize::from(seal.solve(&bytes).is_some());
                let next = bit + 5;
                if next < bits && next / 8 != 4 {
                    bytes[next / 8] ^= 1 << (next % 8);
                    damaged += 1;
                    accepted += usize::from(seal.solve(&bytes).is_some());
                }
            }
        }
    }
    assert!(damaged > 10_000, "{damaged}");
    assert_eq!(accepted, 0, "of {damaged}");
}

proptest! {
    /// Goal: the looked-up contributions add up to the ICRC of the whole headers.
    #[test]
    fn seals_are_the_icrc_of_the_headers(
        ends: [u32; 2],
        src_port: u16,
        identification: u16,
        dont_fragment: bool,
        words in 3_usize..1037,
        seed: u8,
    ) {
        let covered: Vec<u8> = (0..4 * words).map(|i| (i % 253) as u8 ^ seed).collect();
        let [src, dst] = ends.map(Ipv4Addr::from);
        let mut envelope = Envelope::v4(src, dst, src_port);
        envelope.net = Net::V4 { src, dst, identification, dont_fragment };
        let icrc = envelope.icrc(covered.len() + 4).unwrap().compute(&covered).unwrap();
        let seal = Seal::v4(src, dst, src_port);
        prop_assert_eq!(seal.icrc(identification, &covered) == icrc, dont_fragment);
        let packet = [&covered[..], &icrc.to_le_bytes()].concat();
        prop_assert_eq!(seal.verify(identification, &packet), dont_fragment);
        prop_assert_eq!(seal.solve(&packet), Some(Solution { identification, dont_fragment }));

        let [src, dst] = ends.map(|end| Ipv6Addr::from(u128::from(end) << 40));
        let envelope = Envelope::v6(src, dst, src_port);
        let icrc = envelope.icrc(covered.len() + 4).unwrap().compute(&covered).unwrap();
        let seal = Seal::v6(src, dst, src_port);
        prop_assert_eq!(seal.icrc(identification, &covered), icrc);
    }

    /// Goal: any bytes get a verdict.
    #[test]
    fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let seal = Seal::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 4791);
        if bytes.len() < 16 || bytes.len() % 4 != 0 {
            prop_assert_eq!(seal.solve(&bytes), None);
        }
        prop_assert!(!seal.verify(0, &bytes) || seal.solve(&bytes).is_some());
    }
}

#[test]
fn longer_packets_than_there_are_cannot_be_solved_for() {
    let seal = Seal::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 4791);
    for (len, solved) in [
        (Seal::SOLVED_LEN_MAX, true),
        (Seal::SOLVED_LEN_MAX + 4, false),
    ] {
        let mut packet = vec![7; len];
        packet.extend(seal.icrc(999, &packet).to_le_bytes());
        assert!(seal.verify(999, &packet));
        assert_eq!(seal.solve(&packet).is_some(), solved);
    }
}
