//! DDP headers, including the RDMAP control field (RFC 5041, section 4; RFC 5040, section 4.1).

use std::fmt;

use super::error::{Part, room, split};
use super::{IwarpError, RdmapOpcode};

/// A steering tag, which names memory for RDMA. Its index is in the upper 24 bits, its key in the lower 8.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct STag(u32);

impl STag {
    /// The STag of that number.
    pub const fn new(stag: u32) -> Self {
        Self(stag)
    }

    /// Its number.
    pub const fn value(self) -> u32 {
        self.0
    }

    pub(super) const fn from_bytes(bytes: [u8; 4]) -> Self {
        Self(u32::from_be_bytes(bytes))
    }

    pub(super) const fn to_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl fmt::Debug for STag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for STag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The header of a DDP segment: the RDMAP message that it is part of, and the place of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The payload belongs in the memory that the header names.
    Tagged(Tagged),
    /// The payload belongs in the next buffer of a queue.
    Untagged(Untagged),
}

/// The header of a tagged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// An RDMA Write or an RDMA Read Response.
    pub opcode: RdmapOpcode,
    /// The last segment of its message.
    pub is_last: bool,
    /// The memory.
    pub stag: STag,
    /// The offset of the payload in that memory.
    pub offset: u64,
}

/// The header of an untagged segment. Its queue number follows from the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// Any opcode except RDMA Write and RDMA Read Response.
    pub opcode: RdmapOpcode,
    /// The last segment of its message.
    pub is_last: bool,
    /// In a Send with Invalidate, the STag to invalidate; otherwise reserved.
    pub invalidate: STag,
    /// The number of the message in its queue; the first has 1.
    pub msn: u32,
    /// The offset of the payload in the message.
    pub offset: u32,
}

impl Untagged {
    /// The header of a message that has one segment.
    pub const fn first(opcode: RdmapOpcode, msn: u32) -> Self {
        Self {
            opcode,
            is_last: true,
            invalidate: STag(0),
            msn,
            offset: 0,
        }
    }
}

impl Header {
    /// Bytes of the header of a tagged segment.
    pub const TAGGED_LEN: usize = 14;
    /// Bytes of the header of an untagged segment.
    pub const UNTAGGED_LEN: usize = 18;

    /// Bytes of the header that begins with this byte.
    pub const fn len_from(first: u8) -> usize {
        if first & (TAGGED >> 8) as u8 != 0 {
            Self::TAGGED_LEN
        } else {
            Self::UNTAGGED_LEN
        }
    }

    /// Splits a ULPDU into header and payload. The checks follow the order of the layers, because the peer
    /// expects the error of the outermost one.
    ///
    /// # Errors
    /// [`IwarpError::Truncated`], [`IwarpError::DdpVersion`], [`IwarpError::RdmapVersion`],
    /// [`IwarpError::Opcode`], [`IwarpError::Tagging`], [`IwarpError::Queue`]. Whether numbers, offsets and STags
    /// are right depends on the connection and is not checked.
    pub fn parse(ulpdu: &[u8]) -> Result<(Self, &[u8]), IwarpError> {
        let (control, _) = split::<2>(ulpdu, Part::Header)?;
        let control = u16::from_be_bytes(*control);
        let is_tagged = control & TAGGED != 0;
        let version = (control >> DDP_VERSION_SHIFT & 3) as u8;
        if version != 1 {
            return Err(IwarpError::DdpVersion { version, is_tagged });
        }
        let version = (control >> RDMAP_VERSION_SHIFT & 3) as u8;
        if version != 1 {
            return Err(IwarpError::RdmapVersion(version));
        }
        let opcode = RdmapOpcode::new((control & OPCODE) as u8)?;
        if opcode.queue().is_none() != is_tagged {
            return Err(IwarpError::Tagging { opcode, is_tagged });
        }
        let is_last = control & LAST != 0;
        match opcode.queue() {
            None => {
                let (h, payload) = split::<{ Self::TAGGED_LEN }>(ulpdu, Part::Header)?;
                let [_, _, s0, s1, s2, s3, offset @ ..] = *h;
                let tagged = Tagged {
                    opcode,
                    is_last,
                    stag: STag::from_bytes([s0, s1, s2, s3]),
                    offset: u64::from_be_bytes(offset),
                };
                Ok((Self::Tagged(tagged), payload))
            }
            Some(queue) => {
                let (h, payload) = split::<{ Self::UNTAGGED_LEN }>(ulpdu, Part::Header)?;
                let word = |at: usize| [h[at], h[at + 1], h[at + 2], h[at + 3]];
                let got = u32::from_be_bytes(word(6));
                if got != queue.number() {
                    let expected = queue.number();
                    return Err(IwarpError::Queue {
                        opcode,
                        expected,
                        got,
                    });
                }
                let untagged = Untagged {
                    opcode,
                    is_last,
                    invalidate: STag::from_bytes(word(2)),
                    msn: u32::from_be_bytes(word(10)),
                    offset: u32::from_be_bytes(word(14)),
                };
                Ok((Self::Untagged(untagged), payload))
            }
        }
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// [`IwarpError::NoRoom`]; [`IwarpError::Tagging`] if segments of this kind cannot have the opcode.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IwarpError> {
        let out = room(out, self.wire_len(), Part::Header)?;
        let (opcode, is_last) = (self.opcode(), self.is_last());
        let mut control = FIXED | u16::from(opcode.number());
        if is_last {
            control |= LAST;
        }
        match (self, opcode.queue()) {
            (Self::Tagged(tagged), None) => {
                control |= TAGGED;
                out[2..6].copy_from_slice(&tagged.stag.to_bytes());
                out[6..].copy_from_slice(&tagged.offset.to_be_bytes());
            }
            (Self::Untagged(untagged), Some(queue)) => {
                out[2..6].copy_from_slice(&untagged.invalidate.to_bytes());
                out[6..10].copy_from_slice(&queue.number().to_be_bytes());
                out[10..14].copy_from_slice(&untagged.msn.to_be_bytes());
                out[14..].copy_from_slice(&untagged.offset.to_be_bytes());
            }
            (Self::Tagged(_) | Self::Untagged(_), _) => {
                let is_tagged = matches!(self, Self::Tagged(_));
                return Err(IwarpError::Tagging { opcode, is_tagged });
            }
        }
        out[..2].copy_from_slice(&control.to_be_bytes());
        Ok(out.len())
    }

    /// Bytes of the header.
    pub const fn wire_len(&self) -> usize {
        match self {
            Self::Tagged(_) => Self::TAGGED_LEN,
            Self::Untagged(_) => Self::UNTAGGED_LEN,
        }
    }

    /// The message's opcode.
    pub const fn opcode(&self) -> RdmapOpcode {
        match self {
            Self::Tagged(tagged) => tagged.opcode,
            Self::Untagged(untagged) => untagged.opcode,
        }
    }

    /// Whether it is the last segment of its message.
    pub const fn is_last(&self) -> bool {
        match self {
            Self::Tagged(tagged) => tagged.is_last,
            Self::Untagged(untagged) => untagged.is_last,
        }
    }
}

const TAGGED: u16 = 0x8000;
const LAST: u16 = 0x4000;
const DDP_VERSION_SHIFT: u32 = 8;
const RDMAP_VERSION_SHIFT: u32 = 6;
const OPCODE: u16 = 0x000f;
/// Version 1 of DDP and of RDMAP.
const FIXED: u16 = 1 << DDP_VERSION_SHIFT | 1 << RDMAP_VERSION_SHIFT;
