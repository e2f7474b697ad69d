//! Terminate: the message that ends a stream and gives the reason (RFC 5040, section 4.8).

use super::error::{Part, room, split};
use super::{Cause, Header, IwarpError, ReadRequest};

/// The body of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The cause.
    pub cause: Cause,
    /// The segment at fault, if the error is in one.
    pub refused: Option<Refused>,
}

/// The segment that caused a [`Terminate`]: bytes as received, whatever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Bytes of the segment.
    pub segment_len: u16,
    /// Its header, padded with zeros if it is shorter.
    header: [u8; Header::UNTAGGED_LEN],
    /// The body, if it is a Read Request.
    read: Option<[u8; ReadRequest::LEN]>,
}

/// Layer, type, code and header control bits.
const HEAD_LEN: usize = 4;
/// The segment length is present.
const LENGTH: u8 = 0x80;
/// The DDP header is present.
const DDP: u8 = 0x40;
/// The RDMAP header is present.
const RDMAP: u8 = 0x20;
/// The same three bits as Linux siw sends them on little-endian hosts, in reserved bits.
const SIW: u8 = 0x07;

impl Refused {
    /// The segment in a ULPDU. `None` if the ULPDU ends inside its header, which a Terminate then cannot quote.
    pub fn new(ulpdu: &[u8]) -> Option<Self> {
        let header_len = Header::len_from(*ulpdu.first()?);
        let (quoted, payload) = ulpdu.split_at_checked(header_len)?;
        let segment_len = u16::try_from(ulpdu.len()).unwrap_or(u16::MAX);
        Self::from_parts(segment_len, quoted, payload)
    }

    /// The same for a segment that was read piece by piece: its total length, its header, and the available part
    /// of its payload.
    pub fn from_parts(segment_len: u16, quoted: &[u8], payload: &[u8]) -> Option<Self> {
        let header_len = Header::len_from(*quoted.first()?);
        let mut header = [0; Header::UNTAGGED_LEN];
        header[..header_len].copy_from_slice(quoted.get(..header_len)?);
        let refused = Self {
            segment_len,
            header,
            read: None,
        };
        Some(refused.with_read(payload))
    }

    /// Adds the body of a Read Request, if it is one and its body is complete.
    fn with_read(mut self, payload: &[u8]) -> Self {
        let is_request = Header::parse(self.header())
            .is_ok_and(|(header, _)| header.opcode() == super::RdmapOpcode::ReadRequest);
        if is_request {
            self.read = payload.first_chunk().copied();
        }
        self
    }

    /// Its DDP header.
    pub fn header(&self) -> &[u8] {
        &self.header[..Header::len_from(self.header[0])]
    }

    /// The Read Request that it was, if it was one.
    pub fn read_request(&self) -> Option<ReadRequest> {
        self.read.and_then(|body| ReadRequest::parse(&body).ok())
    }
}

impl Terminate {
    /// Bytes of the longest body.
    pub const LEN_MAX: usize = HEAD_LEN + 2 + Header::UNTAGGED_LEN + ReadRequest::LEN;

    /// Reads the payload of a Terminate. Bytes after it are dropped: the stream has ended.
    ///
    /// Linux siw on little-endian hosts swaps layer and error type and has the control bits at the other end of
    /// their byte. A body with those bits is read in siw's form; without any of them the two forms cannot be
    /// distinguished, and it is read in the form of the RFC.
    ///
    /// # Errors
    /// [`IwarpError::Truncated`].
    pub fn parse(payload: &[u8]) -> Result<Self, IwarpError> {
        let (&[kind, code, control, _], rest) = split(payload, Part::Terminate)?;
        let is_siw = control & (LENGTH | DDP | RDMAP) == 0 && control & SIW != 0;
        let (kind, control) = if is_siw {
            (kind.rotate_left(4), control.reverse_bits())
        } else {
            (kind, control)
        };
        let mut terminate = Self {
            cause: Cause::new(kind >> 4, kind & 0xf, code),
            refused: None,
        };
        if control & DDP == 0 {
            return Ok(terminate);
        }
        let (length, rest) = split(rest, Part::Terminate)?;
        let need = Header::len_from(rest.first().copied().unwrap_or(0));
        let Some((quoted, rest)) = rest.split_at_checked(need) else {
            return Err(IwarpError::Truncated {
                part: Part::Terminate,
                need,
                got: rest.len(),
            });
        };
        let mut refused = Refused {
            segment_len: u16::from_be_bytes(*length),
            header: [0; Header::UNTAGGED_LEN],
            read: None,
        };
        refused.header[..need].copy_from_slice(quoted);
        if control & RDMAP != 0 {
            let (read, _) = split(rest, Part::Terminate)?;
            refused.read = Some(*read);
        }
        terminate.refused = Some(refused);
        Ok(terminate)
    }

    /// Bytes of the body.
    pub fn wire_len(&self) -> usize {
        let Some(refused) = &self.refused else {
            return HEAD_LEN;
        };
        HEAD_LEN + 2 + refused.header().len() + refused.read.map_or(0, |read| read.len())
    }

    /// Writes the body in the form of the RFC; returns its length.
    ///
    /// # Errors
    /// [`IwarpError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IwarpError> {
        let out = room(out, self.wire_len(), Part::Terminate)?;
        let mut control = 0;
        if let Some(refused) = &self.refused {
            control = LENGTH | DDP;
            let (length, rest) = out[HEAD_LEN..].split_at_mut(2);
            length.copy_from_slice(&refused.segment_len.to_be_bytes());
            let (header, rest) = rest.split_at_mut(refused.header().len());
            header.copy_from_slice(refused.header());
            if let Some(read) = &refused.read {
                control |= RDMAP;
                rest.copy_from_slice(read);
            }
        }
        let kind = self.cause.layer() << 4 | self.cause.etype();
        out[..HEAD_LEN].copy_from_slice(&[kind, self.cause.code(), control, 0]);
        Ok(out.len())
    }
}
