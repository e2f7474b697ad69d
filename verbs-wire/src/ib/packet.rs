//! A whole transport packet: BTH, extended headers, payload, pad and ICRC (IBTA vol. 1, 9).

use std::fmt;

use verbs_core::addr::{PKey, Psn, Qpn};

use crate::bth::pad_len;
use crate::field::Garbage;
use crate::{
    Aeth, AethView, AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView, Bth, BthFlags,
    BthView, Deth, DethView, Feth, FethView, HeaderName, Headers, Icrc, Ieth, IethView, ImmDt,
    ImmDtView, MaskEth, MaskEthView, Opcode, Reth, RethView, WireError, XrcEth, XrcEthView,
};

/// A packet in bytes, from its BTH to its ICRC; printing works for any content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PacketView<'a> {
    bth: BthView<'a>,
    /// The packet up to the ICRC, including the BTH.
    covered: &'a [u8],
    icrc: u32,
}

impl<'a> PacketView<'a> {
    /// The packet in these bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if BTH and ICRC do not both fit.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some((covered, icrc)) = bytes.split_last_chunk() else {
            return Err(WireError::Truncated {
                header: HeaderName::Icrc,
                need: Icrc::LEN,
                got: bytes.len(),
            });
        };
        Ok(Self {
            bth: BthView::new(covered)?,
            covered,
            icrc: u32::from_le_bytes(*icrc),
        })
    }

    /// The base transport header.
    #[inline]
    pub const fn bth(self) -> BthView<'a> {
        self.bth
    }

    /// Everything up to the ICRC, including the BTH.
    #[inline]
    pub const fn covered(self) -> &'a [u8] {
        self.covered
    }

    /// The ICRC in the packet.
    #[inline]
    pub const fn icrc(self) -> u32 {
        self.icrc
    }
}

impl fmt::Debug for PacketView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Head::parse(self.covered) {
            Ok((head, body)) => write!(f, "{head:?} {}", Garbage(body))?,
            Err(error) => write!(f, "{:?} {} ({error})", self.bth, Garbage(self.covered))?,
        }
        write!(f, " ICRC {:#010x}", self.icrc)
    }
}

/// The extended headers of a packet. The opcode determines which of them exist: [`Opcode::headers`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Extended {
    /// On XRC requests.
    pub xrceth: Option<XrcEth>,
    /// On datagrams.
    pub deth: Option<Deth>,
    /// On FLUSH.
    pub feth: Option<Feth>,
    /// On the first packet of a WRITE, on READ requests, on ATOMIC WRITE and on FLUSH.
    pub reth: Option<Reth>,
    /// On COMPARE SWAP and FETCH ADD.
    pub atomic: Option<AtomicEth>,
    /// On masked atomics, after `atomic`.
    pub masks: Option<MaskEth>,
    /// On acknowledgements, and on READ responses except Middle.
    pub aeth: Option<Aeth>,
    /// On ATOMIC Acknowledge.
    pub atomic_ack: Option<AtomicAckEth>,
    /// On the last packet of messages with immediate data.
    pub immdt: Option<ImmDt>,
    /// On the last packet of a SEND with Invalidate.
    pub ieth: Option<Ieth>,
}

impl Extended {
    /// No headers. A constant of that size is copied from memory, so code that is to be fast takes the default.
    const NONE: Self = Self {
        xrceth: None,
        deth: None,
        feth: None,
        reth: None,
        atomic: None,
        masks: None,
        aeth: None,
        atomic_ack: None,
        immdt: None,
        ieth: None,
    };

    /// The headers that are present.
    #[inline]
    pub fn present(&self) -> Headers {
        let mut headers = Headers::empty();
        headers.set(Headers::XRCETH, self.xrceth.is_some());
        headers.set(Headers::DETH, self.deth.is_some());
        headers.set(Headers::FETH, self.feth.is_some());
        headers.set(Headers::RETH, self.reth.is_some());
        headers.set(Headers::ATOMIC_ETH, self.atomic.is_some());
        headers.set(Headers::MASK_ETH, self.masks.is_some());
        headers.set(Headers::AETH, self.aeth.is_some());
        headers.set(Headers::ATOMIC_ACK_ETH, self.atomic_ack.is_some());
        headers.set(Headers::IMMDT, self.immdt.is_some());
        headers.set(Headers::IETH, self.ieth.is_some());
        headers
    }

    /// Takes the given headers off the front of `rest`: exactly those are present then, unless one is missing.
    #[inline]
    fn read(&mut self, headers: Headers, rest: &mut &[u8]) -> Result<(), WireError> {
        *self = Self::default();
        if headers.is_empty() {
            return Ok(());
        }
        self.read_all(headers, rest)
    }

    fn read_all(&mut self, headers: Headers, rest: &mut &[u8]) -> Result<(), WireError> {
        if headers.contains(Headers::XRCETH) {
            self.xrceth = Some(XrcEth::parse(XrcEthView::of(take(
                rest,
                HeaderName::XrcEth,
            )?)));
        }
        if headers.contains(Headers::DETH) {
            self.deth = Some(Deth::parse(DethView::of(take(rest, HeaderName::Deth)?)));
        }
        if headers.contains(Headers::FETH) {
            self.feth = Some(Feth::parse(FethView::of(take(rest, HeaderName::Feth)?)));
        }
        if headers.contains(Headers::RETH) {
            self.reth = Some(Reth::parse(RethView::of(take(rest, HeaderName::Reth)?)));
        }
        if headers.contains(Headers::ATOMIC_ETH) {
            let view = AtomicEthView::of(take(rest, HeaderName::AtomicEth)?);
            self.atomic = Some(AtomicEth::parse(view));
        }
        if headers.contains(Headers::MASK_ETH) {
            self.masks = Some(MaskEth::parse(MaskEthView::of(take(
                rest,
                HeaderName::MaskEth,
            )?)));
        }
        if headers.contains(Headers::AETH) {
            self.aeth = Some(Aeth::parse(AethView::of(take(rest, HeaderName::Aeth)?))?);
        }
        if headers.contains(Headers::ATOMIC_ACK_ETH) {
            let view = AtomicAckEthView::of(take(rest, HeaderName::AtomicAckEth)?);
            self.atomic_ack = Some(AtomicAckEth::parse(view));
        }
        if headers.contains(Headers::IMMDT) {
            self.immdt = Some(ImmDt::parse(ImmDtView::of(take(rest, HeaderName::ImmDt)?)));
        }
        if headers.contains(Headers::IETH) {
            self.ieth = Some(Ieth::parse(IethView::of(take(rest, HeaderName::Ieth)?)));
        }
        Ok(())
    }

    /// Writes the headers to the front of `rest` and advances it.
    #[inline]
    fn emit(&self, rest: &mut &mut [u8]) -> Result<(), WireError> {
        if rest.is_empty() {
            return Ok(());
        }
        self.emit_all(rest)
    }

    fn emit_all(&self, rest: &mut &mut [u8]) -> Result<(), WireError> {
        if let Some(xrceth) = &self.xrceth {
            put(rest, |out| xrceth.emit(out))?;
        }
        if let Some(deth) = &self.deth {
            put(rest, |out| deth.emit(out))?;
        }
        if let Some(feth) = &self.feth {
            put(rest, |out| feth.emit(out))?;
        }
        if let Some(reth) = &self.reth {
            put(rest, |out| reth.emit(out))?;
        }
        if let Some(atomic) = &self.atomic {
            put(rest, |out| atomic.emit(out))?;
        }
        if let Some(masks) = &self.masks {
            put(rest, |out| masks.emit(out))?;
        }
        if let Some(aeth) = &self.aeth {
            put(rest, |out| aeth.emit(out))?;
        }
        if let Some(atomic_ack) = &self.atomic_ack {
            put(rest, |out| atomic_ack.emit(out))?;
        }
        if let Some(immdt) = &self.immdt {
            put(rest, |out| immdt.emit(out))?;
        }
        if let Some(ieth) = &self.ieth {
            put(rest, |out| ieth.emit(out))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        set.entries(self.xrceth).entries(self.deth);
        set.entries(self.feth).entries(self.reth);
        set.entries(self.atomic).entries(self.masks);
        set.entries(self.aeth).entries(self.atomic_ack);
        set.entries(self.immdt).entries(self.ieth);
        set.finish()
    }
}

/// The headers of a packet: a BTH with exactly the extended headers that its opcode requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head {
    bth: Bth,
    ext: Extended,
}

impl Head {
    /// Bytes of the longest headers: a masked atomic on an extended connection.
    pub const LEN_MAX: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN + MaskEth::LEN;

    /// Those of a congestion notification to queue pair 0, to be read into.
    pub const NOTICE: Self = Self {
        bth: Self::NOTICE_BTH,
        ext: Extended::NONE,
    };

    const NOTICE_BTH: Bth = Bth {
        opcode: Opcode::CNP,
        flags: BthFlags::BECN,
        pkey: PKey(0),
        dest_qpn: Qpn::new(0),
        psn: Psn::new(0),
    };

    /// The BTH that `make` returns with the extended headers that it sets, for callers that choose them by the opcode.
    /// Headers are large; these are made where they are to be.
    ///
    /// # Panics
    /// If the opcode requires others.
    #[inline(always)]
    pub fn build(make: impl FnOnce(&mut Extended) -> Bth) -> Self {
        let mut head = Self {
            bth: Self::NOTICE_BTH,
            ext: Extended::default(),
        };
        head.bth = make(&mut head.ext);
        let (expected, got) = (head.bth.opcode.headers(), head.ext.present());
        assert!(expected == got, "{head:?} requires {expected:?}");
        head
    }

    /// A BTH alone.
    ///
    /// # Panics
    /// If the opcode requires extended headers.
    #[inline(always)]
    pub fn bare(bth: Bth) -> Self {
        let expected = bth.opcode.headers();
        assert!(expected.is_empty(), "{bth:?} requires {expected:?}");
        Self {
            bth,
            ext: Extended::default(),
        }
    }

    /// Combines headers.
    ///
    /// # Errors
    /// [`WireError::Headers`] if the opcode requires others.
    #[inline]
    pub fn new(bth: Bth, ext: Extended) -> Result<Self, WireError> {
        let (expected, got) = (bth.opcode.headers(), ext.present());
        if expected == got {
            Ok(Self { bth, ext })
        } else {
            Err(WireError::Headers {
                opcode: bth.opcode,
                expected,
                got,
            })
        }
    }

    /// Splits a packet without its ICRC into headers and body, which is payload and pad.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::UnknownOpcode`], [`WireError::Version`],
    /// [`WireError::ReservedSyndrome`].
    pub fn parse(covered: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let mut head = Self::NOTICE;
        let body = head.read(covered)?;
        Ok((head, body))
    }

    /// As [`Head::parse`], into headers that were used before: they are large, and this does not move them. Returns the
    /// body. After an error they are those of no packet.
    ///
    /// # Errors
    /// As [`Head::parse`].
    #[inline]
    pub fn read<'a>(&mut self, covered: &'a [u8]) -> Result<&'a [u8], WireError> {
        let mut rest = covered;
        self.bth = Bth::parse(BthView::of(take(&mut rest, HeaderName::Bth)?))?;
        if let Err(error) = self.ext.read(self.bth.opcode.headers(), &mut rest) {
            *self = Self::NOTICE;
            return Err(error);
        }
        Ok(rest)
    }

    /// Writes the headers of a packet with that many payload bytes; returns the length of the headers.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    #[inline]
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, WireError> {
        let got = out.len();
        let need = self.wire_len();
        let Some(mut rest) = out.get_mut(..need) else {
            return Err(WireError::NoRoom { need, got });
        };
        put(&mut rest, |out| self.bth.emit(payload_len, out))?;
        self.ext.emit(&mut rest)?;
        Ok(need)
    }

    /// The headers of a packet whose payload is elsewhere, and how many bytes count.
    pub fn bytes(&self) -> ([u8; Self::LEN_MAX], usize) {
        let mut bytes = [0; Self::LEN_MAX];
        // There is room for the longest.
        let len = self.emit(0, &mut bytes).unwrap_or(0);
        (bytes, len)
    }

    /// The base transport header.
    #[inline]
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// The extended headers.
    #[inline]
    pub const fn ext(&self) -> &Extended {
        &self.ext
    }

    /// The packet's opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// Bytes of all these headers.
    #[inline]
    pub fn wire_len(&self) -> usize {
        Bth::LEN + self.bth.opcode.headers().wire_len()
    }

    /// Bytes of the packet with that many payload bytes, from BTH to ICRC.
    #[inline]
    pub fn packet_len(&self, payload_len: usize) -> usize {
        self.wire_len() + payload_len + pad_len(payload_len) + Icrc::LEN
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.bth, self.ext)
    }
}

/// A whole packet. It has no pad count, pad bytes and ICRC, because they follow from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its headers.
    pub head: Head,
    /// Its payload, without pad bytes.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the packet in these bytes, from BTH to ICRC. This does not check the ICRC, see [`Icrc::verify`], nor
    /// the payload's length, see [`Opcode::check_payload`]. Pad bytes and reserved bits are ignored.
    ///
    /// # Errors
    /// [`WireError::Unaligned`], [`WireError::Pad`] and those of [`Head::parse`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let view = PacketView::new(bytes)?;
        if !bytes.len().is_multiple_of(4) {
            return Err(WireError::Unaligned(bytes.len()));
        }
        let (head, body) = Head::parse(view.covered())?;
        let pad = view.bth().pad();
        let payload = body
            .len()
            .checked_sub(usize::from(pad))
            .and_then(|len| body.get(..len))
            .ok_or(WireError::Pad {
                pad,
                room: body.len(),
            })?;
        Ok(Self { head, payload })
    }

    /// Writes the packet, with its ICRC; `icrc` is that of the IP and UDP headers around it. Returns the number
    /// of bytes written.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit(&self, out: &mut [u8], icrc: &Icrc) -> Result<usize, WireError> {
        let got = out.len();
        let need = self.wire_len();
        let Some(out) = out.get_mut(..need) else {
            return Err(WireError::NoRoom { need, got });
        };
        let (head, body) = out.split_at_mut(self.head.wire_len());
        self.head.emit(self.payload.len(), head)?;
        let (payload, tail) = body.split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        let (pad, trailer) = tail.split_at_mut(pad_len(self.payload.len()));
        pad.fill(0);
        trailer.fill(0);
        let crc = icrc.compute(&out[..need - Icrc::LEN])?;
        out[need - Icrc::LEN..].copy_from_slice(&crc.to_le_bytes());
        Ok(need)
    }

    /// Bytes of the packet, from BTH to ICRC.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.head.packet_len(self.payload.len())
    }
}

/// Takes a header off the front of `rest`.
fn take<'a, const N: usize>(
    rest: &mut &'a [u8],
    header: HeaderName,
) -> Result<&'a [u8; N], WireError> {
    match rest.split_first_chunk() {
        Some((bytes, behind)) => {
            *rest = behind;
            Ok(bytes)
        }
        None => Err(WireError::Truncated {
            header,
            need: N,
            got: rest.len(),
        }),
    }
}

/// Writes a header to the front of `rest` and advances `rest`.
fn put<const N: usize>(
    rest: &mut &mut [u8],
    write: impl FnOnce(&mut [u8; N]),
) -> Result<(), WireError> {
    match std::mem::take(rest).split_first_chunk_mut() {
        Some((bytes, behind)) => {
            write(bytes);
            *rest = behind;
            Ok(())
        }
        None => Err(WireError::NoRoom { need: N, got: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Service};

    fn bth(operation: Operation) -> Bth {
        Bth {
            opcode: Opcode::new(Service::Rc, operation).expect("RC has it"),
            ..Head::NOTICE_BTH
        }
    }

    fn with_imm() -> Head {
        Head::build(|ext| {
            ext.immdt = Some(ImmDt { imm: 7 });
            bth(Operation::SendOnlyImm)
        })
    }

    fn emitted(head: &Head) -> Vec<u8> {
        let mut bytes = vec![0; head.wire_len()];
        head.emit(0, &mut bytes).expect("there is room");
        bytes
    }

    /// Goal: nothing of the headers before is left, whether a packet can be read or not. Method: packets with more and
    /// with fewer headers one after the other, and one that is cut.
    #[test]
    fn headers_are_read_over_others() {
        let (plain, imm) = (Head::bare(bth(Operation::SendOnly)), with_imm());
        let mut head = Head::NOTICE;
        for next in [imm, plain, imm] {
            assert_eq!(head.read(&emitted(&next)).map(<[u8]>::len), Ok(0));
            assert_eq!(head, next);
        }
        let bytes = emitted(&imm);
        assert!(head.read(&bytes[..bytes.len() - 1]).is_err());
        assert_eq!(head, Head::NOTICE);
        assert_eq!(head.ext().present(), head.opcode().headers());
    }

    #[test]
    #[should_panic(expected = "requires")]
    fn headers_are_those_of_the_opcode() {
        let _ = Head::build(|_| bth(Operation::SendOnlyImm));
    }

    #[test]
    #[should_panic(expected = "requires")]
    fn a_header_alone_is_of_an_opcode_that_requires_no_other() {
        let _ = Head::bare(bth(Operation::SendOnlyImm));
    }
}
