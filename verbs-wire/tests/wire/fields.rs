//! Goal: a repr's field owns its bits on the wire. Method: every field of every header of a random packet is
//! changed, one at a time, and the bytes are compared.

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_core::Placement;
use verbs_core::addr::{Msn, Psn, Qpn, RKey, Srqn};
use verbs_wire::{Aeth, Bth, BthFlags, Envelope, Extended, Head, Headers, Icrc, Opcode, Packet};

use crate::properties::{any_envelope, any_head, syndromes};

/// One field of a packet: how to change it, and the bits that it owns.
struct Field {
    name: &'static str,
    header: Headers,
    /// First byte within the header.
    offset: usize,
    /// Masks of the field's bytes.
    mask: &'static [u8],
    /// Whether the ICRC covers it.
    covered: bool,
    /// Flips at least one bit of the field. The field's header must exist.
    change: fn(&mut Bth, &mut Extended, u64),
}

/// The base header stands for itself: it is in no set of extended headers.
const BTH: Headers = Headers::empty();

macro_rules! fields {
    ($($name:literal in $header:expr, at $offset:literal, $mask:expr, covered: $covered:literal, $change:expr;)*) => {
        /// Every field of every header.
        const FIELDS: &[Field] = &[$(Field {
            name: $name,
            header: $header,
            offset: $offset,
            mask: &$mask,
            covered: $covered,
            change: $change,
        }),*];
    };
}

fields! {
    "solicited"   in BTH, at 1, [0x80], covered: true, |b, _, _| b.flags.toggle(BthFlags::SOLICITED);
    "migrated"    in BTH, at 1, [0x40], covered: true, |b, _, _| b.flags.toggle(BthFlags::MIGRATED);
    "pkey"        in BTH, at 2, [0xff; 2], covered: true, |b, _, n| b.pkey.0 ^= u16(n);
    "fecn"        in BTH, at 4, [0x80], covered: false, |b, _, _| b.flags.toggle(BthFlags::FECN);
    "becn"        in BTH, at 4, [0x40], covered: false, |b, _, _| b.flags.toggle(BthFlags::BECN);
    "dest_qpn"    in BTH, at 5, [0xff; 3], covered: true, |b, _, n| b.dest_qpn = Qpn::new(b.dest_qpn.value() ^ u24(n));
    "ack_req"     in BTH, at 8, [0x80], covered: true, |b, _, _| b.flags.toggle(BthFlags::ACK_REQ);
    "psn"         in BTH, at 9, [0xff; 3], covered: true, |b, _, n| b.psn = Psn::new(b.psn.value() ^ u24(n));
    "srqn"        in Headers::XRCETH, at 1, [0xff; 3], covered: true, |_, e, n| of(&mut e.xrceth, |h| h.srqn = Srqn::new(h.srqn.value() ^ u24(n)));
    "qkey"        in Headers::DETH, at 0, [0xff; 4], covered: true, |_, e, n| of(&mut e.deth, |h| h.qkey.0 ^= u32(n));
    "src_qpn"     in Headers::DETH, at 5, [0xff; 3], covered: true, |_, e, n| of(&mut e.deth, |h| h.src_qpn = Qpn::new(h.src_qpn.value() ^ u24(n)));
    "reth.addr"   in Headers::RETH, at 0, [0xff; 8], covered: true, |_, e, n| of(&mut e.reth, |h| h.addr ^= low::<64>(n));
    "reth.rkey"   in Headers::RETH, at 8, [0xff; 4], covered: true, |_, e, n| of(&mut e.reth, |h| h.rkey = RKey::new(h.rkey.value() ^ u32(n)));
    "dma_len"     in Headers::RETH, at 12, [0xff; 4], covered: true, |_, e, n| of(&mut e.reth, |h| h.dma_len ^= u32(n));
    "atomic.addr" in Headers::ATOMIC_ETH, at 0, [0xff; 8], covered: true, |_, e, n| of(&mut e.atomic, |h| h.addr ^= low::<64>(n));
    "atomic.rkey" in Headers::ATOMIC_ETH, at 8, [0xff; 4], covered: true, |_, e, n| of(&mut e.atomic, |h| h.rkey = RKey::new(h.rkey.value() ^ u32(n)));
    "swap_or_add" in Headers::ATOMIC_ETH, at 12, [0xff; 8], covered: true, |_, e, n| of(&mut e.atomic, |h| h.swap_or_add ^= low::<64>(n));
    "compare"     in Headers::ATOMIC_ETH, at 20, [0xff; 8], covered: true, |_, e, n| of(&mut e.atomic, |h| h.compare ^= low::<64>(n));
    "placement"   in Headers::FETH, at 3, [0xf], covered: true, |_, e, n| of(&mut e.feth, |h| h.placement = Placement::from_bits_retain(h.placement.bits() ^ low::<4>(n) as u8));
    "selectivity" in Headers::FETH, at 3, [0x30], covered: true, |_, e, n| of(&mut e.feth, |h| h.selectivity ^= low::<2>(n) as u8);
    "swap_mask"   in Headers::MASK_ETH, at 0, [0xff; 8], covered: true, |_, e, n| of(&mut e.masks, |h| h.swap_or_boundary ^= low::<64>(n));
    "compare_mask" in Headers::MASK_ETH, at 8, [0xff; 8], covered: true, |_, e, n| of(&mut e.masks, |h| h.compare ^= low::<64>(n));
    "syndrome"    in Headers::AETH, at 0, [0xff], covered: true, |_, e, n| of(&mut e.aeth, |h| next_syndrome(h, n));
    "msn"         in Headers::AETH, at 1, [0xff; 3], covered: true, |_, e, n| of(&mut e.aeth, |h| h.msn = Msn::new(h.msn.value() ^ u24(n)));
    "original"    in Headers::ATOMIC_ACK_ETH, at 0, [0xff; 8], covered: true, |_, e, n| of(&mut e.atomic_ack, |h| h.original ^= low::<64>(n));
    "imm"         in Headers::IMMDT, at 0, [0xff; 4], covered: true, |_, e, n| of(&mut e.immdt, |h| h.imm ^= u32(n));
    "ieth.rkey"   in Headers::IETH, at 0, [0xff; 4], covered: true, |_, e, n| of(&mut e.ieth, |h| h.rkey = RKey::new(h.rkey.value() ^ u32(n)));
}

fn of<T>(header: &mut Option<T>, change: impl FnOnce(&mut T)) {
    change(header.as_mut().unwrap());
}

/// A random number below 2^BITS that is not 0.
fn low<const BITS: u32>(noise: u64) -> u64 {
    match noise & (u64::MAX >> (64 - BITS)) {
        0 => 1,
        noise => noise,
    }
}

fn u16(noise: u64) -> u16 {
    u16::try_from(low::<16>(noise)).unwrap()
}

fn u24(noise: u64) -> u32 {
    u32::try_from(low::<24>(noise)).unwrap()
}

fn u32(noise: u64) -> u32 {
    u32::try_from(low::<32>(noise)).unwrap()
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

/// Where a header of that opcode begins: after the BTH and the headers before it.
fn header_offset(opcode: Opcode, header: Headers) -> usize {
    if header == BTH {
        return 0;
    }
    let before = Headers::from_bits_truncate(header.bits() - 1);
    Bth::LEN + (opcode.headers() & before).wire_len()
}

fn emit(envelope: &Envelope, head: Head, payload: &[u8]) -> Vec<u8> {
    let packet = Packet { head, payload };
    let mut out = vec![0; packet.wire_len()];
    let icrc = envelope.icrc(packet.wire_len()).unwrap();
    packet.emit(&mut out, &icrc).unwrap();
    out
}

proptest! {
    /// A changed field changes bits of its own and the ICRC, and nothing else.
    #[test]
    fn a_field_owns_its_bytes(
        envelope in any_envelope(),
        head in any_head(),
        payload in vec(any::<u8>(), 0..40),
        noise: u64,
    ) {
        let before = emit(&envelope, head, &payload);
        let headers = head.opcode().headers();
        let mut changed = 0;
        for field in FIELDS.iter().filter(|field| headers.contains(field.header)) {
            let (mut bth, mut ext) = (*head.bth(), *head.ext());
            (field.change)(&mut bth, &mut ext, noise);
            let after = emit(&envelope, Head::new(bth, ext).unwrap(), &payload);
            let mut diff: Vec<_> = before.iter().zip(&after).map(|(a, b)| a ^ b).collect();
            let icrc = diff.split_off(diff.len() - Icrc::LEN);
            prop_assert_eq!(icrc != [0; 4], field.covered, "{}: ICRC", field.name);
            let at = header_offset(head.opcode(), field.header) + field.offset;
            let own = &mut diff[at..at + field.mask.len()];
            prop_assert!(own.iter().any(|&bits| bits != 0), "{} is not written", field.name);
            own.iter_mut().zip(field.mask).for_each(|(bits, mask)| *bits &= !mask);
            prop_assert!(diff.iter().all(|&bits| bits == 0), "{} touches {diff:02x?}", field.name);
            changed += 1;
        }
        prop_assert!(changed >= 8);
    }
}
