//! Fuzz targets as plain functions over bytes.
//!
//! `ci/fuzz` runs them on the inputs in `fuzz/corpus` of this crate, and a test replays those. They panic when
//! this module's parsers break a promise. They return whether the bytes were a packet: a corpus in which nothing
//! is refused, or nothing accepted, tests only half.

use std::fmt::{self, Debug, Write};
use std::net::Ipv4Addr;

use crate::bth::pad_len;
use crate::target::TargetMessage;
use crate::{
    Aeth, AethView, AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView, Bth, BthView, Deth,
    DethView, Envelope, Feth, FethView, Frame, Grh, GrhView, Head, Headers, Icrc, Ieth, IethView,
    ImmDt, ImmDtView, LrhView, MaskEth, MaskEthView, Packet, PacketView, Reth, RethView, Vcrc,
    WireError, XrcEth, XrcEthView,
};

/// The result of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They are what the target looks for, and all promises held.
    Accepted,
    /// They are not, and were refused with an error.
    Refused(WireError),
}

impl Outcome {
    /// Whether the bytes were what the target looks for.
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::Accepted)
    }
}

/// A transport packet from BTH to ICRC. If it is accepted, writing it again gives the same bytes, except reserved
/// bits, pad bytes and ICRC.
pub fn packet(bytes: &[u8]) -> Outcome {
    print_view(PacketView::new(bytes));
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => return refused(error),
    };
    // The addresses are arbitrary; a length that fits no datagram uses the ICRC of an empty one.
    let envelope = Envelope::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 0xc000);
    let Ok(icrc) = envelope.icrc(bytes.len()).or_else(|_| envelope.icrc(0)) else {
        unreachable!("an empty datagram is not too long");
    };
    let emitted = emit(&packet, &icrc);
    assert_eq!(icrc.verify(&emitted), Ok(()));
    assert_eq!(
        Packet::parse(&emitted),
        Ok(packet),
        "what was written reads differently"
    );
    assert_eq!(emitted.len(), bytes.len());
    let mut expected = bytes.to_vec();
    clear_reserved(&mut expected, &packet.head, packet.payload.len());
    let covered = bytes.len() - Icrc::LEN;
    assert_eq!(emitted[..covered], expected[..covered]);
    Outcome::Accepted
}

/// A message about a shared target. If it is accepted, writing it again gives the same bytes.
pub fn target_message(bytes: &[u8]) -> Outcome {
    match TargetMessage::parse(bytes) {
        Ok(message) => {
            assert_eq!(message.emit(), bytes);
            Outcome::Accepted
        }
        Err(error) => refused(error),
    }
}

/// An IP packet. If it is accepted, its ICRC is right, and writing it again gives the same bytes, except reserved
/// bits and pad bytes; without such bits, exactly the same bytes.
pub fn datagram(bytes: &[u8]) -> Outcome {
    let (envelope, transport) = match Envelope::parse(bytes) {
        Ok(parts) => parts,
        Err(error) => return refused(error),
    };
    let mut headers = [0; Envelope::LEN_MAX];
    let len = envelope.emit(transport.len(), &mut headers);
    assert_eq!(len, Ok(envelope.wire_len()));
    assert_eq!(headers[..envelope.wire_len()], bytes[..envelope.wire_len()]);

    let icrc = match envelope.icrc(transport.len()) {
        Ok(icrc) => icrc,
        Err(error) => panic!("a datagram that was read is not too long: {error}"),
    };
    let packet = match icrc
        .verify(transport)
        .and_then(|()| Packet::parse(transport))
    {
        Ok(packet) => packet,
        Err(error) => return refused(error),
    };
    let emitted = emit(&packet, &icrc);
    let mut expected = transport.to_vec();
    if clear_reserved(&mut expected, &packet.head, packet.payload.len()) {
        assert_eq!(icrc.verify(&emitted), Ok(()));
    } else {
        assert_eq!(emitted, transport);
    }
    Outcome::Accepted
}

/// A packet of an InfiniBand link. If it is accepted, writing it again gives the same bytes, except reserved bits
/// of the local route header, which only its variant CRC covers.
pub fn frame(bytes: &[u8]) -> Outcome {
    print_view(LrhView::new(bytes));
    let (frame, transport) = match Frame::parse(bytes) {
        Ok(parts) => parts,
        Err(error) => return refused(error),
    };
    let mut emitted = Vec::new();
    assert_eq!(frame.append(transport, &mut emitted), Ok(()));
    assert_eq!(Frame::parse(&emitted), Ok((frame, transport)));
    assert!(frame.icrc(transport.len()).is_ok());
    let mut expected = bytes.to_vec();
    expected[1] &= !0x0c;
    expected[4] &= 0x07;
    let covered = bytes.len() - Vcrc::LEN;
    assert_eq!(emitted[..covered], expected[..covered]);
    Outcome::Accepted
}

/// One header, which the first byte selects. If it is accepted, writing it again gives the same bytes, except
/// reserved ones.
pub fn header(bytes: &[u8]) -> Outcome {
    let (&choice, rest) = bytes.split_first().unwrap_or((&0, bytes));
    match choice {
        0x80 => return check_header(rest, feth),
        0x81 => return check_header(rest, mask_eth),
        _ => {}
    }
    match choice % 10 {
        0 => check_header(rest, bth),
        1 => check_header(rest, reth),
        2 => check_header(rest, aeth),
        3 => check_header(rest, atomic_eth),
        4 => check_header(rest, atomic_ack_eth),
        5 => check_header(rest, immdt),
        6 => check_header(rest, ieth),
        7 => check_header(rest, deth),
        8 => check_header(rest, xrceth),
        _ => check_header(rest, grh),
    }
}

/// Reads and writes one header with one of the functions below, which restore the bits that the repr ignores.
fn check_header<const N: usize>(
    bytes: &[u8],
    again: impl FnOnce(&[u8; N], &mut [u8; N]) -> Result<(), WireError>,
) -> Outcome {
    let Some(header) = bytes.first_chunk() else {
        return refused(WireError::NoRoom {
            need: N,
            got: bytes.len(),
        });
    };
    let mut out = [0; N];
    match again(header, &mut out) {
        Ok(()) => {
            assert_eq!(&out, header);
            Outcome::Accepted
        }
        Err(error) => refused(error),
    }
}

fn bth(bytes: &[u8; 12], out: &mut [u8; 12]) -> Result<(), WireError> {
    print(&BthView::of(bytes));
    // The pad count follows from the payload: any length of that remainder will do.
    let payload_len = 4 - usize::from(BthView::of(bytes).pad());
    Bth::parse(BthView::of(bytes))?.emit(payload_len, out);
    out[4] |= bytes[4] & 0x3f;
    out[8] |= bytes[8] & 0x7f;
    Ok(())
}

fn reth(bytes: &[u8; 16], out: &mut [u8; 16]) -> Result<(), WireError> {
    print(&RethView::of(bytes));
    Reth::parse(RethView::of(bytes)).emit(out);
    Ok(())
}

fn aeth(bytes: &[u8; 4], out: &mut [u8; 4]) -> Result<(), WireError> {
    print(&AethView::of(bytes));
    Aeth::parse(AethView::of(bytes))?.emit(out);
    Ok(())
}

fn atomic_eth(bytes: &[u8; 28], out: &mut [u8; 28]) -> Result<(), WireError> {
    print(&AtomicEthView::of(bytes));
    AtomicEth::parse(AtomicEthView::of(bytes)).emit(out);
    Ok(())
}

fn atomic_ack_eth(bytes: &[u8; 8], out: &mut [u8; 8]) -> Result<(), WireError> {
    print(&AtomicAckEthView::of(bytes));
    AtomicAckEth::parse(AtomicAckEthView::of(bytes)).emit(out);
    Ok(())
}

fn immdt(bytes: &[u8; 4], out: &mut [u8; 4]) -> Result<(), WireError> {
    print(&ImmDtView::of(bytes));
    ImmDt::parse(ImmDtView::of(bytes)).emit(out);
    Ok(())
}

fn ieth(bytes: &[u8; 4], out: &mut [u8; 4]) -> Result<(), WireError> {
    print(&IethView::of(bytes));
    Ieth::parse(IethView::of(bytes)).emit(out);
    Ok(())
}

fn deth(bytes: &[u8; 8], out: &mut [u8; 8]) -> Result<(), WireError> {
    print(&DethView::of(bytes));
    Deth::parse(DethView::of(bytes)).emit(out);
    out[4] = DethView::of(bytes).reserved();
    Ok(())
}

fn xrceth(bytes: &[u8; 4], out: &mut [u8; 4]) -> Result<(), WireError> {
    print(&XrcEthView::of(bytes));
    XrcEth::parse(XrcEthView::of(bytes)).emit(out);
    out[0] = XrcEthView::of(bytes).reserved();
    Ok(())
}

fn feth(bytes: &[u8; 4], out: &mut [u8; 4]) -> Result<(), WireError> {
    print(&FethView::of(bytes));
    Feth::parse(FethView::of(bytes)).emit(out);
    let reserved = FethView::of(bytes).reserved() << 6 | u32::from(out[3]);
    *out = reserved.to_be_bytes();
    Ok(())
}

fn mask_eth(bytes: &[u8; 16], out: &mut [u8; 16]) -> Result<(), WireError> {
    print(&MaskEthView::of(bytes));
    MaskEth::parse(MaskEthView::of(bytes)).emit(out);
    Ok(())
}

fn grh(bytes: &[u8; 40], out: &mut [u8; 40]) -> Result<(), WireError> {
    print(&GrhView::of(bytes));
    Grh::parse(GrhView::of(bytes))?.emit(out);
    Ok(())
}

/// Clears the bits that a repr ignores in a packet's bytes; returns whether any were set. The ICRC stays as it
/// is.
fn clear_reserved(bytes: &mut [u8], head: &Head, payload_len: usize) -> bool {
    let before = bytes.to_vec();
    bytes[4] &= 0xc0;
    bytes[8] &= 0x80;
    let headers = head.opcode().headers();
    if headers.contains(Headers::XRCETH) {
        bytes[Bth::LEN] = 0;
    }
    if headers.contains(Headers::DETH) {
        bytes[Bth::LEN + 4] = 0;
    }
    if headers.contains(Headers::FETH) {
        let at = Bth::LEN + (headers & (Headers::XRCETH | Headers::DETH)).wire_len();
        bytes[at..at + 3].fill(0);
        bytes[at + 3] &= 0x3f;
    }
    let end = head.wire_len() + payload_len;
    bytes[end..end + pad_len(payload_len)].fill(0);
    bytes != before
}

fn emit(packet: &Packet<'_>, icrc: &Icrc) -> Vec<u8> {
    let mut out = vec![0xa5; packet.wire_len()];
    assert_eq!(packet.emit(&mut out, icrc), Ok(out.len()));
    let short = out.len() - 1;
    assert!(packet.emit(&mut out.clone()[..short], icrc).is_err());
    out
}

fn refused(error: WireError) -> Outcome {
    print(&error);
    Outcome::Refused(error)
}

fn print_view(view: Result<impl Debug, WireError>) {
    match view {
        Ok(view) => print(&view),
        Err(error) => print(&error),
    }
}

/// Prints into a sink: printing must not panic either.
fn print(value: &dyn Debug) {
    struct Nowhere;
    impl Write for Nowhere {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            Ok(())
        }
    }
    assert!(write!(Nowhere, "{value:?}").is_ok());
}
