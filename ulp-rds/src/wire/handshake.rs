//! What both ends say of themselves when a connection is made: the private data of REQ and REP.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Versions of other major numbers do not understand each other.
    pub major: u8,
    /// The variant.
    pub minor: u8,
}

impl Version {
    /// The version of this crate: the header is in front of the payload.
    pub const V3_1: Self = Self { major: 3, minor: 1 };

    /// The minor versions that this crate speaks, as a mask. 3.0, with the header behind the payload, is not
    /// among them.
    pub const MINORS: u16 = 1 << 1;
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The private data of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same family.
    pub destination: IpAddr,
    /// The version: the highest one in a request, the chosen one in its answer.
    pub version: Version,
    /// The minor versions that the sender speaks; bit `n` stands for minor version `n`.
    pub minors: u16,
    /// The type of service; each has a connection of its own.
    pub tos: u8,
    /// The highest sequence number received on earlier connections.
    pub ack: u64,
    /// Receive buffers that are posted; 0 turns flow control by credits off.
    pub credits: u32,
    /// The number of the receiver's life that `ack` is about; 0 from peers that do not say it, as Linux, for which these bytes
    /// are padding.
    pub acked_life: u32,
}

/// Why private data are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// They are too short for the family of addresses.
    #[error("private data of {got} bytes; RDS needs {expected}")]
    Short {
        /// Bytes that are needed.
        expected: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// All fields are zero: a peer of version 3.0, which says nothing.
    #[error("no private data: the peer speaks RDS 3.0, and 3.1 is needed")]
    Empty,
    /// No version in common.
    #[error("the peer speaks RDS {major} with minor versions {minors:#06x}; 3.1 is needed")]
    Version {
        /// The peer's major version.
        major: u8,
        /// The mask of its minor versions.
        minors: u16,
    },
}

impl Handshake {
    /// Bytes on the wire between IPv4 addresses.
    pub const LEN_V4: usize = 32;
    /// Bytes on the wire between IPv6 addresses.
    pub const LEN_V6: usize = 56;

    /// Reads private data; `v6` tells between which addresses, which the port of the listener decides.
    ///
    /// # Errors
    /// [`HandshakeError::Short`], [`HandshakeError::Empty`].
    pub fn parse(bytes: &[u8], v6: bool) -> Result<Self, HandshakeError> {
        let (expected, start) = match v6 {
            true => (Self::LEN_V6, 32),
            false => (Self::LEN_V4, 8),
        };
        let got = bytes.len();
        let bytes = bytes
            .get(..expected)
            .ok_or(HandshakeError::Short { expected, got })?;
        let (source, destination) = match v6 {
            true => (
                Ipv6Addr::from(part::<16>(bytes, 0)).into(),
                Ipv6Addr::from(part::<16>(bytes, 16)).into(),
            ),
            false => (
                Ipv4Addr::from(part::<4>(bytes, 0)).into(),
                Ipv4Addr::from(part::<4>(bytes, 4)).into(),
            ),
        };
        let handshake = Self {
            source,
            destination,
            version: Version {
                major: bytes[start],
                minor: bytes[start + 1],
            },
            minors: u16::from_be_bytes(part(bytes, start + 2)),
            tos: bytes[start + 4],
            ack: u64::from_be_bytes(part(bytes, start + 8)),
            credits: u32::from_be_bytes(part(bytes, start + 16)),
            acked_life: u32::from_be_bytes(part(bytes, start + 20)),
        };
        // Reserved bytes say nothing either.
        if handshake.emit().0.iter().all(|byte| *byte == 0) {
            return Err(HandshakeError::Empty);
        }
        Ok(handshake)
    }

    /// Writes them, and says how many bytes there are. Addresses of two families are written
    /// as IPv6.
    pub fn emit(&self) -> ([u8; Self::LEN_V6], usize) {
        let mut out = [0; Self::LEN_V6];
        let (len, start) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                out[..4].copy_from_slice(&source.octets());
                out[4..8].copy_from_slice(&destination.octets());
                (Self::LEN_V4, 8)
            }
            (source, destination) => {
                out[..16].copy_from_slice(&wide(source));
                out[16..32].copy_from_slice(&wide(destination));
                (Self::LEN_V6, 32)
            }
        };
        out[start] = self.version.major;
        out[start + 1] = self.version.minor;
        out[start + 2..start + 4].copy_from_slice(&self.minors.to_be_bytes());
        out[start + 4] = self.tos;
        out[start + 8..start + 16].copy_from_slice(&self.ack.to_be_bytes());
        out[start + 16..start + 20].copy_from_slice(&self.credits.to_be_bytes());
        out[start + 20..start + 24].copy_from_slice(&self.acked_life.to_be_bytes());
        (out, len)
    }

    /// The highest version that both ends speak.
    ///
    /// # Errors
    /// [`HandshakeError::Version`].
    pub fn choose(&self) -> Result<Version, HandshakeError> {
        let common = self.minors & Version::MINORS;
        match self.version.major == Version::V3_1.major && common != 0 {
            true => Ok(Version {
                major: self.version.major,
                minor: common.ilog2() as u8,
            }),
            false => Err(HandshakeError::Version {
                major: self.version.major,
                minors: self.minors,
            }),
        }
    }
}

fn wide(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

/// `N` bytes from `at`, which the caller has checked to be there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
