//! The header of the RDMA IP connection manager: the two ends of a connection, as IP addresses
//! (IBTA vol. 1, annex A11). It stands at the start of the private data of REQ and SIDR_REQ.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use verbs_core::mad::{Bits, Blob};
use verbs_core::wire_record;

wire_record! {
    /// The header in its fields.
    pub struct IpFields, IpFieldsView: 36 bytes {
        /// Version; 0 is the only one.
        version: u8 = (0, 0, 8),
        /// 4 or 6.
        ip_version: Bits<4> = (1, 0, 4),
        /// The client's port number.
        source_port: u16 = (2, 0, 16),
        /// The client's address; IPv4 in the last four bytes.
        source: Blob<16> = (4, 0, 128),
        /// The server's address; IPv4 in the last four bytes.
        destination: Blob<16> = (20, 0, 128),
    }
}

/// The two ends of a connection. The server's port number is in the service id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The client's port number.
    pub source_port: u16,
    /// Both addresses.
    pub addresses: IpPair,
}

/// Two addresses of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpPair {
    /// IPv4.
    V4 {
        /// The client's.
        source: Ipv4Addr,
        /// The server's.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// The client's.
        source: Ipv6Addr,
        /// The server's.
        destination: Ipv6Addr,
    },
}

impl IpPair {
    /// The client's address.
    pub const fn source(self) -> IpAddr {
        match self {
            Self::V4 { source, .. } => IpAddr::V4(source),
            Self::V6 { source, .. } => IpAddr::V6(source),
        }
    }

    /// The server's address.
    pub const fn destination(self) -> IpAddr {
        match self {
            Self::V4 { destination, .. } => IpAddr::V4(destination),
            Self::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }
}

/// Why private data do not begin with such a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpHeaderError {
    /// Too few bytes.
    #[error("{got} bytes, and the header has {}", IpHeader::LEN)]
    Truncated {
        /// Bytes that are there.
        got: usize,
    },
    /// The header's version is not 0.
    #[error("version {0}, expected 0")]
    Version(u8),
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0}")]
    IpVersion(u8),
}

impl IpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = IpFields::LEN;

    /// The header that private data begin with.
    ///
    /// # Errors
    /// [`IpHeaderError`], each variant.
    pub fn parse(private_data: &[u8]) -> Result<Self, IpHeaderError> {
        let got = private_data.len();
        let view = IpFieldsView::new(private_data).ok_or(IpHeaderError::Truncated { got })?;
        let fields = IpFields::parse(view);
        if fields.version != 0 {
            return Err(IpHeaderError::Version(fields.version));
        }
        let addresses = match fields.ip_version.byte() {
            4 => IpPair::V4 {
                source: v4(fields.source),
                destination: v4(fields.destination),
            },
            6 => IpPair::V6 {
                source: Ipv6Addr::from(fields.source.0),
                destination: Ipv6Addr::from(fields.destination.0),
            },
            other => return Err(IpHeaderError::IpVersion(other)),
        };
        Ok(Self {
            source_port: fields.source_port,
            addresses,
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let (ip_version, source, destination) = match self.addresses {
            IpPair::V4 {
                source,
                destination,
            } => (4, v4_bytes(source), v4_bytes(destination)),
            IpPair::V6 {
                source,
                destination,
            } => (6, source.octets(), destination.octets()),
        };
        let fields = IpFields {
            version: 0,
            ip_version: Bits::truncated(ip_version),
            source_port: self.source_port,
            source: Blob(source),
            destination: Blob(destination),
        };
        fields.emit(out);
    }
}

fn v4(Blob([.., a, b, c, d]): Blob<16>) -> Ipv4Addr {
    Ipv4Addr::new(a, b, c, d)
}

fn v4_bytes(addr: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = addr.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_bytes_of_the_annex() {
        let header = IpHeader {
            source_port: 1234,
            addresses: IpPair::V4 {
                source: Ipv4Addr::new(10, 0, 0, 1),
                destination: Ipv4Addr::new(10, 0, 0, 2),
            },
        };
        let mut bytes = [0xff; 36];
        header.emit(&mut bytes);
        let zeros = [0; 12].as_slice();
        let parts = [
            &[0, 0x40, 0x04, 0xd2],
            zeros,
            &[10, 0, 0, 1],
            zeros,
            &[10, 0, 0, 2],
        ];
        assert_eq!(bytes[..], parts.concat());
        assert_eq!(IpHeader::parse(&bytes), Ok(header));
    }
}
