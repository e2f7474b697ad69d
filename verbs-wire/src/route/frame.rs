//! The parts around a transport packet on an InfiniBand link: the route headers before it, and the variant CRC
//! after it (IBTA vol. 1, 6.2).

use crate::grh::{Grh, GrhView};
use crate::icrc::Icrc;
use crate::lrh::{Lrh, LrhView};
use crate::vcrc::Vcrc;
use crate::{HeaderName, WireError};

/// The route headers of a packet on an InfiniBand link, without lengths, which follow from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Frame {
    /// Virtual lane, 0 to 15.
    pub vl: u8,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// The destination port, or a multicast group.
    pub dlid: verbs_core::Lid,
    /// The source port.
    pub slid: verbs_core::Lid,
    /// The global route header, if there is one; its length field is ignored.
    pub grh: Option<Grh>,
}

impl Frame {
    /// Bytes of the longest headers.
    pub const LEN_MAX: usize = Lrh::LEN + Grh::LEN;

    /// Splits the beginning of bytes into the headers, the transport packet from BTH to ICRC, and the rest, which
    /// on a link begins with the variant CRC.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Version`], [`WireError::NextHeader`],
    /// [`WireError::IpVersion`], [`WireError::Protocol`], [`WireError::Length`].
    pub fn split(bytes: &[u8]) -> Result<(Self, &[u8], &[u8]), WireError> {
        let (lrh, said) = Lrh::parse(LrhView::new(bytes)?)?;
        let wrong = |header, field, expected| WireError::Length {
            header,
            field,
            expected,
        };
        let too_long = wrong(HeaderName::Lrh, said, bytes.len());
        let (packet, rest) = bytes.split_at_checked(said).ok_or(too_long)?;
        let too_short = wrong(HeaderName::Lrh, said, Lrh::LEN);
        let mut transport = packet.get(Lrh::LEN..).ok_or(too_short)?;
        let mut grh = None;
        if lrh.global {
            let header = Grh::parse(GrhView::new(transport)?)?;
            transport = transport.get(Grh::LEN..).unwrap_or_default();
            if usize::from(header.payload_len) != transport.len() {
                let field = usize::from(header.payload_len);
                return Err(wrong(HeaderName::Grh, field, transport.len()));
            }
            grh = Some(header);
        }
        let frame = Self {
            vl: lrh.vl,
            sl: lrh.sl,
            dlid: lrh.dlid,
            slid: lrh.slid,
            grh,
        };
        Ok((frame, transport, rest))
    }

    /// The same for bytes that are one packet with its variant CRC, which is checked.
    ///
    /// # Errors
    /// As [`Frame::split`]; [`WireError::Length`] for more or fewer bytes than the packet has,
    /// [`WireError::Vcrc`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (frame, transport, rest) = Self::split(bytes)?;
        let Ok(got) = <[u8; Vcrc::LEN]>::try_from(rest) else {
            return Err(WireError::Length {
                header: HeaderName::Lrh,
                field: bytes.len() - rest.len(),
                expected: bytes.len().saturating_sub(Vcrc::LEN),
            });
        };
        let expected = Vcrc::of(&bytes[..bytes.len() - Vcrc::LEN]);
        if got != expected {
            let (expected, got) = (u16::from_le_bytes(expected), u16::from_le_bytes(got));
            return Err(WireError::Vcrc { expected, got });
        }
        Ok((frame, transport))
    }

    /// Bytes of the headers.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        match self.grh {
            Some(_) => Self::LEN_MAX,
            None => Lrh::LEN,
        }
    }

    /// Writes the headers of a transport packet of that many bytes, including the ICRC; returns the length of the
    /// headers.
    ///
    /// # Errors
    /// [`WireError::TooLong`], [`WireError::Unaligned`].
    pub fn emit(
        &self,
        transport_len: usize,
        out: &mut [u8; Self::LEN_MAX],
    ) -> Result<usize, WireError> {
        let lrh = Lrh {
            vl: self.vl,
            sl: self.sl,
            dlid: self.dlid,
            slid: self.slid,
            global: self.grh.is_some(),
        };
        let (local, global) = out.split_at_mut(Lrh::LEN);
        if let Some(local) = local.first_chunk_mut() {
            lrh.emit(self.wire_len() + transport_len, local)?;
        }
        if let (Some(grh), Some(global)) = (self.grh, global.first_chunk_mut()) {
            let payload_len = u16::try_from(transport_len);
            let payload_len = payload_len.map_err(|_| WireError::TooLong(transport_len))?;
            Grh { payload_len, ..grh }.emit(global);
        }
        Ok(self.wire_len())
    }

    /// Appends a packet: headers, a transport packet from BTH to ICRC, and the variant CRC.
    ///
    /// # Errors
    /// As [`Frame::emit`]; nothing is appended then.
    pub fn append(&self, transport: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        let mut headers = [0; Self::LEN_MAX];
        let len = self.emit(transport.len(), &mut headers)?;
        let start = out.len();
        out.extend_from_slice(&headers[..len]);
        out.extend_from_slice(transport);
        let vcrc = Vcrc::of(&out[start..]);
        out.extend_from_slice(&vcrc);
        Ok(())
    }

    /// The ICRC over these headers, for transport packets of that many bytes, including the ICRC.
    ///
    /// # Errors
    /// As [`Frame::emit`].
    pub fn icrc(&self, transport_len: usize) -> Result<Icrc, WireError> {
        let mut headers = [0; Self::LEN_MAX];
        self.emit(transport_len, &mut headers)?;
        let (local, global) = headers.split_at(Lrh::LEN);
        Ok(
            match (self.grh, local.first_chunk(), global.first_chunk()) {
                (Some(_), _, Some(global)) => Icrc::global(global),
                (_, Some(local), _) => Icrc::local(local),
                _ => unreachable!("the array has both headers"),
            },
        )
    }
}
