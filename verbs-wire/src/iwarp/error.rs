//! Errors of bytes of an iWARP stream, and of values that should become such bytes.

use std::fmt;

use super::{Cause, RdmapOpcode};

/// Why bytes were refused, or a frame could not be written. Each variant has the value at fault and what would
/// have been right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IwarpError {
    // --- the peer ---
    /// The bytes end inside a header although a length field promises that all bytes are there.
    #[error("{part} needs {need} bytes and there are {got}")]
    Truncated {
        /// The part.
        part: Part,
        /// Bytes it needs.
        need: usize,
        /// Bytes received.
        got: usize,
    },
    /// A body of fixed length is followed by more bytes.
    #[error("{part} has {expected} bytes, got {got}")]
    Surplus {
        /// The part.
        part: Part,
        /// Its length.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
    /// The frame does not begin with the key of an MPA startup frame.
    #[error("byte {at} of the MPA key is {got:#04x}, expected {expected:#04x}")]
    Key {
        /// The index of the first byte that differs.
        at: usize,
        /// The byte of the key.
        expected: u8,
        /// The byte received.
        got: u8,
    },
    /// The MPA revision is neither 1 nor 2.
    #[error("MPA revision {0}, expected 1 or 2")]
    Revision(u8),
    /// More private data than MPA allows.
    #[error("{got} bytes of private data, at most {max}")]
    PrivateData {
        /// The maximum.
        max: usize,
        /// The value of the length field.
        got: usize,
    },
    /// The CRC is not the one computed for the FPDU.
    #[error("CRC-32C {got:#010x}, expected {expected:#010x}")]
    Crc {
        /// The computed one.
        expected: u32,
        /// The one in the FPDU.
        got: u32,
    },
    /// The DDP version is not 1.
    #[error("DDP version {version}, expected 1")]
    DdpVersion {
        /// The version in the header.
        version: u8,
        /// Whether the segment is tagged; the two kinds have different causes.
        is_tagged: bool,
    },
    /// The RDMAP version is not 1.
    #[error("RDMAP version {0}, expected 1")]
    RdmapVersion(u8),
    /// No such RDMAP opcode.
    #[error("RDMAP opcode {0:#x} is not assigned")]
    Opcode(u8),
    /// A tagged segment with an opcode for untagged ones, or vice versa.
    #[error("{opcode} in a segment whose tagged bit is {is_tagged}")]
    Tagging {
        /// The opcode.
        opcode: RdmapOpcode,
        /// The bit.
        is_tagged: bool,
    },
    /// The message is for another queue than its opcode requires.
    #[error("{opcode} for queue {got}, expected {expected}")]
    Queue {
        /// The opcode.
        opcode: RdmapOpcode,
        /// Its queue number.
        expected: u32,
        /// The queue number in the header.
        got: u32,
    },
    /// The atomic operation code is not assigned.
    #[error("atomic operation code {0} is not assigned, expected 0 (FetchAdd) or 2 (CmpSwap)")]
    AtomicOperation(u8),
    /// A port mapper message with a version other than 0.
    #[error("port mapper version {0}, expected 0")]
    MapperVersion(u8),
    /// A port mapper message whose addresses are neither IPv4 nor IPv6.
    #[error("port mapper message for IP version {0}, expected 4 or 6")]
    IpVersion(u8),

    // --- the caller ---
    /// The buffer is too small.
    #[error("{part} has {need} bytes and the buffer {got}")]
    NoRoom {
        /// The part.
        part: Part,
        /// Its length.
        need: usize,
        /// Bytes of the buffer.
        got: usize,
    },
    /// A ULPDU that its length field cannot describe.
    #[error("a ULPDU of {0} bytes, at most 65535")]
    UlpduLength(usize),
    /// Addresses of a port mapper message with different IP versions.
    #[error("a port mapper message has addresses of both IP versions")]
    MixedAddresses,
}

impl IwarpError {
    /// The cause for the peer in a [`Terminate`](super::Terminate); `None` if the error is the caller's, or not
    /// in a stream.
    pub const fn cause(&self) -> Option<Cause> {
        Some(match self {
            Self::Truncated { part, .. } => match part {
                Part::Startup => Cause::LLP_STARTUP,
                Part::Mapper => return None,
                // RFC 5044, section 8: the length does not agree with the framing.
                _ => Cause::LLP_FRAMING,
            },
            Self::Surplus { .. } => Cause::DDP_TOO_LONG,
            Self::Key { .. } | Self::Revision(_) | Self::PrivateData { .. } => Cause::LLP_STARTUP,
            Self::Crc { .. } => Cause::LLP_CRC,
            Self::DdpVersion { is_tagged, .. } => {
                if *is_tagged {
                    Cause::DDP_TAGGED_VERSION
                } else {
                    Cause::DDP_UNTAGGED_VERSION
                }
            }
            Self::RdmapVersion(_) => Cause::RDMAP_VERSION,
            Self::Opcode(_) | Self::Tagging { .. } => Cause::RDMAP_OPCODE,
            Self::AtomicOperation(_) => Cause::RDMAP_OPCODE,
            Self::Queue { .. } => Cause::DDP_QUEUE,
            Self::MapperVersion(_)
            | Self::IpVersion(_)
            | Self::NoRoom { .. }
            | Self::UlpduLength(_)
            | Self::MixedAddresses => return None,
        })
    }
}

/// The parts that an [`IwarpError`] can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// An MPA Request or Reply frame.
    Startup,
    /// An FPDU.
    Fpdu,
    /// A DDP header with its RDMAP control field.
    Header,
    /// The body of an RDMA Read Request.
    ReadRequest,
    /// The body of an Atomic Request.
    AtomicRequest,
    /// The body of an Atomic Response.
    AtomicResponse,
    /// The body of an Immediate Data message.
    ImmediateData,
    /// The body of a Terminate message.
    Terminate,
    /// A port mapper message.
    Mapper,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Startup => "the MPA startup frame",
            Self::Fpdu => "the FPDU",
            Self::Header => "the DDP header",
            Self::ReadRequest => "the RDMA Read Request",
            Self::AtomicRequest => "the Atomic Request",
            Self::AtomicResponse => "the Atomic Response",
            Self::ImmediateData => "the Immediate Data",
            Self::Terminate => "the Terminate message",
            Self::Mapper => "the port mapper message",
        })
    }
}

/// The first `N` bytes and the rest; a length field has promised that they are there.
pub(super) fn split<const N: usize>(
    bytes: &[u8],
    part: Part,
) -> Result<(&[u8; N], &[u8]), IwarpError> {
    bytes.split_first_chunk().ok_or(IwarpError::Truncated {
        part,
        need: N,
        got: bytes.len(),
    })
}

/// All bytes, which must be exactly `N`.
pub(super) fn exactly<const N: usize>(bytes: &[u8], part: Part) -> Result<&[u8; N], IwarpError> {
    match split(bytes, part)? {
        (body, []) => Ok(body),
        _ => Err(IwarpError::Surplus {
            part,
            expected: N,
            got: bytes.len(),
        }),
    }
}

/// The first `len` bytes of a buffer.
pub(super) fn room(out: &mut [u8], len: usize, part: Part) -> Result<&mut [u8], IwarpError> {
    let got = out.len();
    out.get_mut(..len).ok_or(IwarpError::NoRoom {
        part,
        need: len,
        got,
    })
}
