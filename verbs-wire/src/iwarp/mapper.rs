//! Messages of the iWARP port mapper: two hosts exchange the TCP ports that their ports are mapped to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::IwarpError;
use super::error::{Part, room, split};

/// The UDP port of the port mapper.
pub const MAPPER_PORT: u16 = 3935;

/// The kind of a port mapper message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapperKind {
    /// The connecting peer asks for the accepting peer's mapped port.
    Request {
        /// The connecting peer's mapped port.
        mapped_port: u16,
        /// The connecting peer's mapped address.
        mapped_addr: IpAddr,
    },
    /// The accepting peer names its mapped port.
    Accept,
    /// The connecting peer acknowledges the mapped port.
    Ack,
    /// There is no such mapping.
    Reject,
}

/// A port mapper message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapperMessage {
    /// Its kind.
    pub kind: MapperKind,
    /// Port of the accepting peer.
    pub accept_port: u16,
    /// Port of the connecting peer.
    pub connect_port: u16,
    /// Distinguishes the exchanges between two hosts.
    pub association: u64,
    /// Address of the connecting peer.
    pub connect_addr: IpAddr,
    /// Address of the accepting peer.
    pub accept_addr: IpAddr,
}

const REQUEST: u8 = 0;
const ACCEPT: u8 = 1;
const ACK: u8 = 2;
const REJECT: u8 = 3;

impl MapperMessage {
    /// Bytes of a message other than a request.
    pub const LEN: usize = 48;
    /// Bytes of a request.
    pub const REQUEST_LEN: usize = 64;

    /// Reads a datagram. Bytes after the message are dropped.
    ///
    /// # Errors
    /// [`IwarpError::Truncated`], [`IwarpError::MapperVersion`], [`IwarpError::IpVersion`].
    pub fn parse(datagram: &[u8]) -> Result<Self, IwarpError> {
        let (h, rest) = split::<{ Self::LEN }>(datagram, Part::Mapper)?;
        let first = h[0];
        if first >> 6 != 0 {
            return Err(IwarpError::MapperVersion(first >> 6));
        }
        let version = first & 0xf;
        if !matches!(version, 4 | 6) {
            return Err(IwarpError::IpVersion(version));
        }
        let address = |bytes: &[u8; 16]| {
            let &[a, b, c, d, ..] = bytes;
            if version == 4 {
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            } else {
                IpAddr::V6(Ipv6Addr::from(*bytes))
            }
        };
        let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        let (front, addresses) = split::<16>(h, Part::Mapper)?;
        let (connect, accept) = split::<16>(addresses, Part::Mapper)?;
        let (accept, _) = split::<16>(accept, Part::Mapper)?;
        let (_, association) = split::<8>(front, Part::Mapper)?;
        let (association, _) = split::<8>(association, Part::Mapper)?;
        let kind = match first >> 4 & 3 {
            REQUEST => {
                let (mapped, _) = split(rest, Part::Mapper)?;
                MapperKind::Request {
                    mapped_port: port(2),
                    mapped_addr: address(mapped),
                }
            }
            ACCEPT => MapperKind::Accept,
            ACK => MapperKind::Ack,
            _ => MapperKind::Reject,
        };
        Ok(Self {
            kind,
            accept_port: port(4),
            connect_port: port(6),
            association: u64::from_be_bytes(*association),
            connect_addr: address(connect),
            accept_addr: address(accept),
        })
    }

    /// Bytes of the message.
    pub const fn wire_len(&self) -> usize {
        match self.kind {
            MapperKind::Request { .. } => Self::REQUEST_LEN,
            _ => Self::LEN,
        }
    }

    /// Writes the message; returns its length.
    ///
    /// # Errors
    /// [`IwarpError::NoRoom`], [`IwarpError::MixedAddresses`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IwarpError> {
        let out = room(out, self.wire_len(), Part::Mapper)?;
        out.fill(0);
        let is_v4 = self.connect_addr.is_ipv4();
        let put = |addr: IpAddr, out: &mut [u8]| match addr {
            IpAddr::V4(v4) if is_v4 => {
                out[..4].copy_from_slice(&v4.octets());
                Ok(())
            }
            IpAddr::V6(v6) if !is_v4 => {
                out.copy_from_slice(&v6.octets());
                Ok(())
            }
            _ => Err(IwarpError::MixedAddresses),
        };
        let kind = match self.kind {
            MapperKind::Request {
                mapped_port,
                mapped_addr,
            } => {
                out[2..4].copy_from_slice(&mapped_port.to_be_bytes());
                put(mapped_addr, &mut out[48..64])?;
                REQUEST
            }
            MapperKind::Accept => ACCEPT,
            MapperKind::Ack => ACK,
            MapperKind::Reject => REJECT,
        };
        out[0] = kind << 4 | if is_v4 { 4 } else { 6 };
        out[4..6].copy_from_slice(&self.accept_port.to_be_bytes());
        out[6..8].copy_from_slice(&self.connect_port.to_be_bytes());
        out[8..16].copy_from_slice(&self.association.to_be_bytes());
        put(self.connect_addr, &mut out[16..32])?;
        put(self.accept_addr, &mut out[32..48])?;
        Ok(out.len())
    }
}
