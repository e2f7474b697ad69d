//! As much of IP as an interface must know: the destination of a packet, and the message to its sender if it is
//! too long.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::encap::Protocol;
use super::sum::checksum;

/// Bytes of an IPv6 header.
pub(crate) const V6_HEADER: usize = 40;
/// ICMP's number among protocols.
const ICMP: u8 = 1;
/// ICMPv6's number among next headers.
pub(crate) const ICMPV6: u8 = 58;
/// The most bytes of the original packet in a message sent on behalf of a router, so the whole is no longer than
/// what every host accepts.
const QUOTE_MAX: usize = 528;

/// A packet of either version, as far as it is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// Bytes of its header without extensions.
    pub header_len: usize,
    /// What follows the header.
    pub next: u8,
    /// Whether it is a fragment other than the first.
    pub is_later_fragment: bool,
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpError {
    /// Fewer bytes than a header has.
    #[error("{got} bytes are no packet")]
    Truncated {
        /// Bytes received.
        got: usize,
    },
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0}")]
    Version(u8),
    /// An IPv4 header shorter than the shortest.
    #[error("an IPv4 header of {0} bytes")]
    HeaderLength(usize),
}

impl Ip {
    /// Reads the headers of a packet.
    ///
    /// # Errors
    /// [`IpError`] says what is wrong.
    pub fn parse(packet: &[u8]) -> Result<Self, IpError> {
        let truncated = IpError::Truncated { got: packet.len() };
        let first = *packet.first().ok_or(truncated)?;
        match first >> 4 {
            4 => {
                let header: &[u8; 20] = packet.first_chunk().ok_or(truncated)?;
                let header_len = usize::from(first & 15) * 4;
                if header_len < 20 {
                    return Err(IpError::HeaderLength(header_len));
                }
                if packet.len() < header_len {
                    return Err(truncated);
                }
                Ok(Self {
                    source: v4(header, 12).into(),
                    destination: v4(header, 16).into(),
                    header_len,
                    next: header[9],
                    is_later_fragment: header[6] & 0x1f != 0 || header[7] != 0,
                })
            }
            6 => {
                let header: &[u8; V6_HEADER] = packet.first_chunk().ok_or(truncated)?;
                Ok(Self {
                    source: v6(header, 8).into(),
                    destination: v6(header, 24).into(),
                    header_len: V6_HEADER,
                    next: header[6],
                    is_later_fragment: false,
                })
            }
            version => Err(IpError::Version(version)),
        }
    }

    /// The protocol number for the encapsulation header.
    pub const fn protocol(&self) -> Protocol {
        match self.destination {
            IpAddr::V4(_) => Protocol::Ipv4,
            IpAddr::V6(_) => Protocol::Ipv6,
        }
    }
}

/// Writes into `out` the message that tells the sender of `packet` that it is too long: "fragmentation needed"
/// (RFC 1191), or "packet too big" (RFC 4443, section 3.2). `router` is the message's source. Returns the bytes
/// written; `None` if no message may be sent (for later fragments, for errors themselves, to groups), or if `out`
/// is too short.
pub fn too_big(packet: &[u8], mtu: usize, router: IpAddr, out: &mut [u8]) -> Option<usize> {
    let ip = Ip::parse(packet).ok()?;
    let to_group = ip.destination.is_multicast() && ip.destination.is_ipv4();
    if ip.is_later_fragment || to_group || ip.source.is_unspecified() || ip.source.is_multicast() {
        return None;
    }
    match (ip.source, router) {
        (IpAddr::V4(source), IpAddr::V4(router)) => fragment(packet, &ip, mtu, router, source, out),
        (IpAddr::V6(source), IpAddr::V6(router)) => big(packet, &ip, mtu, router, source, out),
        _ => None,
    }
}

/// Destination unreachable, fragmentation needed.
fn fragment(
    packet: &[u8],
    ip: &Ip,
    mtu: usize,
    router: Ipv4Addr,
    source: Ipv4Addr,
    out: &mut [u8],
) -> Option<usize> {
    // Errors are not answered with errors; echoes and similar messages are.
    let about_error =
        ip.next == ICMP && matches!(packet.get(ip.header_len), Some(3 | 4 | 5 | 11 | 12));
    if about_error {
        return None;
    }
    let quote = packet.get(..packet.len().min(QUOTE_MAX))?;
    let len = 28 + quote.len();
    let out = out.get_mut(..len)?;
    out[..28].fill(0);
    out[28..].copy_from_slice(quote);
    out[20] = 3;
    out[21] = 4;
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    out[26..28].copy_from_slice(&mtu.to_be_bytes());
    let sum = checksum(0, &out[20..]);
    out[22..24].copy_from_slice(&sum.to_be_bytes());
    out[0] = 0x45;
    out[2..4].copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
    out[8] = 64;
    out[9] = ICMP;
    out[12..16].copy_from_slice(&router.octets());
    out[16..20].copy_from_slice(&source.octets());
    let sum = checksum(0, &out[..20]);
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(len)
}

/// Packet too big.
fn big(
    packet: &[u8],
    ip: &Ip,
    mtu: usize,
    router: Ipv6Addr,
    source: Ipv6Addr,
    out: &mut [u8],
) -> Option<usize> {
    let is_error = ip.next == ICMPV6 && packet.get(V6_HEADER).is_some_and(|kind| kind & 0x80 == 0);
    if is_error {
        return None;
    }
    let quote = packet.get(..packet.len().min(1280 - V6_HEADER - 8))?;
    let len = V6_HEADER + 8 + quote.len();
    let out = out.get_mut(..len)?;
    out[..V6_HEADER + 8].fill(0);
    out[V6_HEADER + 8..].copy_from_slice(quote);
    out[V6_HEADER] = 2;
    let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
    out[V6_HEADER + 4..V6_HEADER + 8].copy_from_slice(&mtu.to_be_bytes());
    v6_header(out, router, source, 64);
    Some(len)
}

/// Writes the header of an ICMPv6 message that is already in `out`, and the message's checksum.
pub(crate) fn v6_header(out: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr, hops: u8) {
    let Some((header, message)) = out.split_first_chunk_mut::<V6_HEADER>() else {
        return;
    };
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    header.fill(0);
    header[0] = 0x60;
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6] = ICMPV6;
    header[7] = hops;
    header[8..24].copy_from_slice(&source.octets());
    header[24..].copy_from_slice(&destination.octets());
    message[2..4].fill(0);
    let sum = icmpv6_sum(source, destination, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// The checksum of an ICMPv6 message (RFC 4443, section 2.3); 0 if the one in the message is right.
pub(crate) fn icmpv6_sum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let addresses = [source, destination]
        .into_iter()
        .flat_map(|addr| addr.segments());
    let pseudo: u32 = addresses.map(u32::from).sum();
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    checksum(
        pseudo + (len >> 16) + (len & 0xffff) + u32::from(ICMPV6),
        message,
    )
}

fn v4(bytes: &[u8], at: usize) -> Ipv4Addr {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    found.copied().unwrap_or_default().into()
}

pub(crate) fn v6(bytes: &[u8], at: usize) -> Ipv6Addr {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk::<16>);
    found.copied().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(len: usize) -> Vec<u8> {
        let mut packet = vec![7; len];
        packet[..20].copy_from_slice(&[
            0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        packet
    }

    #[test]
    fn the_sender_of_a_long_packet_is_told_of_the_mtu() {
        let mut out = [0; 1500];
        let router = IpAddr::from([10, 0, 0, 2]);
        let len = too_big(&packet(9000), 2044, router, &mut out).unwrap();
        let told = Ip::parse(&out[..len]).unwrap();
        assert_eq!(
            (told.source, told.destination),
            (router, [10, 0, 0, 1].into())
        );
        assert_eq!(
            (checksum(0, &out[..20]), checksum(0, &out[20..len])),
            (0, 0)
        );
        assert_eq!((out[20], out[21]), (3, 4));
        assert_eq!(u16::from_be_bytes([out[26], out[27]]), 2044);
        assert_eq!(out[28..48], packet(20)[..]);
        let mut error = packet(9000);
        (error[9], error[20]) = (ICMP, 3);
        assert_eq!(too_big(&error, 2044, router, &mut out), None, "of an error");
    }

    #[test]
    fn in_ipv6_the_packet_is_too_big() {
        let mut long = vec![9; 5000];
        long[..V6_HEADER].fill(0);
        (long[0], long[6], long[23], long[39]) = (0x60, 6, 1, 2);
        let mut out = [0; 1500];
        let router: Ipv6Addr = "fd00::9".parse().unwrap();
        let len = too_big(&long, 4092, router.into(), &mut out).unwrap();
        assert_eq!(len, 1280);
        let told = Ip::parse(&out[..len]).unwrap();
        assert_eq!(told.destination, "::1".parse::<IpAddr>().unwrap());
        assert_eq!(
            icmpv6_sum(router, "::1".parse().unwrap(), &out[V6_HEADER..len]),
            0
        );
        assert_eq!((out[40], out[46], out[47]), (2, 0x0f, 0xfc));
    }

    #[test]
    fn what_is_no_packet_is_named() {
        assert_eq!(Ip::parse(&[]), Err(IpError::Truncated { got: 0 }));
        assert_eq!(Ip::parse(&[0x50; 40]), Err(IpError::Version(5)));
        assert_eq!(Ip::parse(&[0x44; 40]), Err(IpError::HeaderLength(16)));
        assert_eq!(Ip::parse(&[0x4f; 40]), Err(IpError::Truncated { got: 40 }));
    }
}
