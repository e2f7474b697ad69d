//! Errors of bytes that should be a packet, and of packets that should become bytes.

use std::fmt;

use crate::opcode::{Headers, Opcode};

/// Why bytes were refused, or a packet could not be written. Each variant has the value at fault and what would
/// have been right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    // --- the peer, or whatever sent these bytes ---
    /// The bytes end inside a header.
    #[error("{header} needs {need} bytes and there are {got}")]
    Truncated {
        /// Which header.
        header: HeaderName,
        /// Bytes it needs.
        need: usize,
        /// Bytes received.
        got: usize,
    },
    /// No such opcode.
    #[error("opcode {0:#04x} is not assigned")]
    UnknownOpcode(u8),
    /// The transport header version is not 0.
    #[error("transport header version {0}, expected 0")]
    Version(u8),
    /// The packet's length is not a multiple of 4, so its pad count is wrong whatever it is.
    #[error("the packet has {0} bytes, no multiple of 4")]
    Unaligned(usize),
    /// The pad count is larger than the space between headers and ICRC.
    #[error("pad count {pad}, but only {room} bytes between headers and ICRC")]
    Pad {
        /// The pad count.
        pad: u8,
        /// Payload and pad bytes.
        room: usize,
    },
    /// The AETH syndrome is reserved.
    #[error("AETH syndrome {0:#04x} is reserved")]
    ReservedSyndrome(u8),
    /// The payload length is not one that the opcode allows at this path MTU.
    #[error("{opcode} with {got} payload bytes, expected {min} to {max}")]
    PayloadLength {
        /// The opcode.
        opcode: Opcode,
        /// Fewest bytes allowed.
        min: u32,
        /// Most bytes allowed.
        max: u32,
        /// Bytes received.
        got: usize,
    },
    /// The ICRC is not the one computed for the packet.
    #[error("ICRC {got:#010x}, expected {expected:#010x}")]
    Icrc {
        /// The computed one.
        expected: u32,
        /// The one in the packet.
        got: u32,
    },
    /// The variant CRC is not the one computed for the packet.
    #[error("VCRC {got:#06x}, expected {expected:#06x}")]
    Vcrc {
        /// The computed one.
        expected: u16,
        /// The one in the packet.
        got: u16,
    },
    /// The version field of an IP header is neither 4 nor 6, or not the one expected.
    #[error("IP version {0}")]
    IpVersion(u8),
    /// The IPv4 header has options, for which the ICRC has no rule.
    #[error("IPv4 header of {0} words, expected 5")]
    IpOptions(u8),
    /// The IPv4 header checksum is wrong.
    #[error("IPv4 header checksum {got:#06x}, expected {expected:#06x}")]
    IpChecksum {
        /// The computed one.
        expected: u16,
        /// The one in the header.
        got: u16,
    },
    /// A fragment of an IP datagram: its headers are not those that the ICRC covers.
    #[error("IPv4 fragment (flags and offset {0:#06x})")]
    Fragment(u16),
    /// The protocol or next-header field is not the one expected.
    #[error("IP protocol {got}, expected {expected}")]
    Protocol {
        /// The expected one.
        expected: u8,
        /// The one in the header.
        got: u8,
    },
    /// The local route header is followed by a raw packet, not by a transport.
    #[error("the local route header says that {0} follows, expected 2 (BTH) or 3 (GRH)")]
    NextHeader(u8),
    /// The UDP destination port is not RoCEv2's.
    #[error("UDP destination port {0}, expected 4791")]
    Port(u16),
    /// A length field disagrees with the number of bytes, or with another length field.
    #[error("{header} gives a length of {field}, expected {expected}")]
    Length {
        /// The header of the length field.
        header: HeaderName,
        /// Its value.
        field: usize,
        /// The value that agrees with the rest.
        expected: usize,
    },
    /// The bytes are no message about a shared target.
    #[error("no message about a shared target queue pair")]
    TargetMessage,

    // --- the caller ---
    /// The opcode requires other extended headers than were given.
    #[error("{opcode} has {expected:?}, got {got:?}")]
    Headers {
        /// The opcode.
        opcode: Opcode,
        /// Headers that it requires.
        expected: Headers,
        /// Headers that were given.
        got: Headers,
    },
    /// The buffer is too small for the packet.
    #[error("the packet has {need} bytes and the buffer {got}")]
    NoRoom {
        /// Bytes of the packet.
        need: usize,
        /// Bytes of the buffer.
        got: usize,
    },
    /// The packet is longer than a UDP datagram can be.
    #[error("{0} bytes do not fit one datagram")]
    TooLong(usize),
}

/// The headers that a [`WireError`] can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderName {
    /// Base transport header.
    Bth,
    /// Datagram extended header.
    Deth,
    /// XRC extended header.
    XrcEth,
    /// RDMA extended header.
    Reth,
    /// Atomic extended header.
    AtomicEth,
    /// ACK extended header.
    Aeth,
    /// Atomic ACK extended header.
    AtomicAckEth,
    /// Immediate data.
    ImmDt,
    /// Invalidate extended header.
    Ieth,
    /// FLUSH extended header.
    Feth,
    /// The masks of a masked atomic.
    MaskEth,
    /// Local route header.
    Lrh,
    /// Global route header.
    Grh,
    /// Invariant CRC.
    Icrc,
    /// IP header of either version.
    Ip,
    /// UDP header.
    Udp,
}

impl fmt::Display for HeaderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bth => "BTH",
            Self::Deth => "DETH",
            Self::XrcEth => "XRCETH",
            Self::Reth => "RETH",
            Self::AtomicEth => "AtomicETH",
            Self::Aeth => "AETH",
            Self::AtomicAckEth => "AtomicAckETH",
            Self::ImmDt => "ImmDt",
            Self::Ieth => "IETH",
            Self::Feth => "FETH",
            Self::MaskEth => "MaskETH",
            Self::Lrh => "LRH",
            Self::Grh => "GRH",
            Self::Icrc => "ICRC",
            Self::Ip => "the IP header",
            Self::Udp => "the UDP header",
        })
    }
}
