//! The header in front of every fragment.

use bitflags::bitflags;

use super::extension::Extensions;

bitflags! {
    /// Flags of a header.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct HeaderFlags: u8 {
        /// The payload is a congestion map.
        const CONGESTION = 0x01;
        /// The receiver has to acknowledge the message without delay.
        const ACK_REQUIRED = 0x02;
        /// The message was transmitted on an earlier connection, and may have arrived.
        const RETRANSMITTED = 0x04;
    }
}

/// The header of a fragment. All fragments of a message repeat sequence, length and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// Number of the message on its connection; 0 in packets that carry no message.
    pub sequence: u64,
    /// Highest sequence number that the sender of this packet has received.
    pub ack: u64,
    /// Payload bytes of the whole message.
    pub len: u32,
    /// The sending socket.
    pub source: u16,
    /// The socket that the message is for.
    pub destination: u16,
    /// Flags; bits without a meaning are dropped.
    pub flags: HeaderFlags,
    /// Receive buffers that the sender of this packet has posted since its last packet.
    pub credit: u8,
    /// Extension headers.
    pub extensions: Extensions,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The packet ends inside the header.
    #[error("a packet of {0} bytes is shorter than the header of 48")]
    Short(usize),
    /// The checksum does not match.
    #[error("the header's checksum is {got:#06x}, and {expected:#06x} would be right")]
    Checksum {
        /// The right one.
        expected: u16,
        /// The one that the header has.
        got: u16,
    },
}

impl Header {
    /// Bytes on the wire.
    pub const LEN: usize = 48;

    /// Reads the header at the start of a packet. A checksum of 0 stands for "not computed".
    ///
    /// # Errors
    /// [`HeaderError`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, HeaderError> {
        let bytes: &[u8; Self::LEN] = packet
            .first_chunk()
            .ok_or(HeaderError::Short(packet.len()))?;
        let got = u16::from_be_bytes([bytes[30], bytes[31]]);
        let expected = checksum(bytes);
        if got != 0 && got != expected {
            return Err(HeaderError::Checksum { expected, got });
        }
        Ok(Self {
            sequence: u64::from_be_bytes(part(bytes, 0)),
            ack: u64::from_be_bytes(part(bytes, 8)),
            len: u32::from_be_bytes(part(bytes, 16)),
            source: u16::from_be_bytes(part(bytes, 20)),
            destination: u16::from_be_bytes(part(bytes, 22)),
            flags: HeaderFlags::from_bits_truncate(bytes[24]),
            credit: bytes[25],
            extensions: Extensions::parse(part(bytes, 32)),
        })
    }

    /// Writes the header with its checksum.
    #[inline]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.ack.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.source.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.destination.to_be_bytes());
        bytes[24] = self.flags.bits();
        bytes[25] = self.credit;
        bytes[32..].copy_from_slice(self.extensions.bytes());
        let sum = checksum(&bytes);
        bytes[30..32].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Whether the packet carries no message, only an acknowledgement or credits.
    #[inline]
    pub const fn is_control(&self) -> bool {
        self.sequence == 0 && self.len == 0 && self.source == 0 && self.destination == 0
    }

    /// Whether another fragment is one of the same message.
    pub const fn is_same_message(&self, other: &Self) -> bool {
        self.sequence == other.sequence
            && self.len == other.len
            && self.source == other.source
            && self.destination == other.destination
    }
}

/// The ones' complement checksum (RFC 1071) over a header, its own field taken as zero.
///
/// Words are added eight bytes at a time and as they lie in memory: carries that come round make the sum of either order of
/// bytes the same.
#[inline]
fn checksum(bytes: &[u8; Header::LEN]) -> u16 {
    let words = bytes.as_chunks::<8>().0;
    let sum: u128 = words
        .iter()
        .map(|word| u128::from(u64::from_ne_bytes(*word)))
        .sum();
    // It was counted with its word.
    let own = u64::from_ne_bytes([0, 0, 0, 0, 0, 0, bytes[30], bytes[31]]);
    let sum = sum - u128::from(own);
    // 64 bits and a few carries, then 33 bits, 17 bits and a carry, and 16 bits.
    let (low, high) = (sum as u64, (sum >> 64) as u64);
    let folded = (low & 0xffff_ffff) + (low >> 32) + high;
    let folded = (folded & 0xffff) + (folded >> 16 & 0xffff) + (folded >> 32);
    let folded = (folded & 0xffff) + (folded >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    u16::from_be(!(folded as u16))
}

/// `N` bytes of a header from `at`; both are constants of the format.
#[inline]
fn part<const N: usize>(bytes: &[u8; Header::LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
