//! The IP and UDP headers around a RoCEv2 packet (IBTA annex A17; RFC 791, RFC 8200, RFC 768).
//!
//! A socket writes and strips these headers itself; they are needed here because the ICRC covers them and a
//! capture shows them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use verbs_core::addr::Gid;

use crate::field::view;
use crate::grh::{FlowLabel, Grh, GrhView};
use crate::icrc::Icrc;
use crate::{HeaderName, WireError};

/// The UDP destination port of every RoCEv2 packet, responses included.
pub const ROCE_PORT: u16 = 4791;

/// IP protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;
/// Hop limit of a new envelope, as in Linux for unicast.
const HOP_LIMIT_DEFAULT: u8 = 64;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = Grh::LEN;
const UDP_LEN: usize = 8;
/// Version 4, five words: a header without options.
const IPV4_FIRST_BYTE: u8 = 0x45;
/// The flag that forbids routers to fragment; every other bit of that field indicates a fragment.
const DONT_FRAGMENT: u16 = 0x4000;

/// The IP and UDP headers of a RoCEv2 packet, without lengths and the IPv4 header checksum, which follow from the
/// rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Addresses, and the fields that only one of the two IP versions has.
    pub net: Net,
    /// IPv4 type of service, IPv6 traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// UDP source port; distinguishes flows, and no answer is sent to it.
    pub src_port: u16,
    /// UDP checksum as received; 0 means none, and most RoCEv2 devices send none.
    pub udp_checksum: u16,
}

/// Addresses of a packet, and the fields that only one of the two IP versions has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// IPv4.
    V4 {
        /// The sender.
        src: Ipv4Addr,
        /// The receiver, or a multicast group.
        dst: Ipv4Addr,
        /// Identification; the ICRC covers it.
        identification: u16,
        /// Whether routers must not fragment the packet; the ICRC covers it.
        dont_fragment: bool,
    },
    /// IPv6.
    V6 {
        /// The sender.
        src: Ipv6Addr,
        /// The receiver, or a multicast group.
        dst: Ipv6Addr,
        /// Flow label.
        flow_label: FlowLabel,
    },
}

impl Envelope {
    /// Bytes of the longer form.
    pub const LEN_MAX: usize = IPV6_LEN + UDP_LEN;

    /// IPv4, not to be fragmented, with identification 0: what an unconnected Linux socket with path
    /// MTU discovery sends.
    pub const fn v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16) -> Self {
        let net = Net::V4 {
            src,
            dst,
            identification: 0,
            dont_fragment: true,
        };
        Self::new(net, src_port)
    }

    /// IPv6 with flow label 0.
    pub const fn v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16) -> Self {
        let net = Net::V6 {
            src,
            dst,
            flow_label: FlowLabel::new(0),
        };
        Self::new(net, src_port)
    }

    const fn new(net: Net, src_port: u16) -> Self {
        Self {
            net,
            traffic_class: 0,
            hop_limit: HOP_LIMIT_DEFAULT,
            src_port,
            udp_checksum: 0,
        }
    }

    /// The same with another identification, if it is IPv4; IPv6 has none.
    pub const fn with_identification(mut self, ident: u16) -> Self {
        if let Net::V4 { identification, .. } = &mut self.net {
            *identification = ident;
        }
        self
    }

    /// Splits an IP packet into its headers and the transport packet from BTH to ICRC. Bytes after the packet's
    /// own length, such as the padding of short Ethernet frames, are dropped.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Length`], [`WireError::IpVersion`], [`WireError::IpOptions`],
    /// [`WireError::Fragment`], [`WireError::IpChecksum`], [`WireError::Protocol`], [`WireError::Port`]. The UDP
    /// checksum is not checked: the ICRC protects more.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), WireError> {
        match packet.first().map_or(0, |first| first >> 4) {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ if packet.is_empty() => Err(WireError::Truncated {
                header: HeaderName::Ip,
                need: IPV4_LEN,
                got: 0,
            }),
            version => Err(WireError::IpVersion(version)),
        }
    }

    fn parse_v4(packet: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let ip = Ipv4View::new(packet)?;
        if ip.words() != 5 {
            return Err(WireError::IpOptions(ip.words()));
        }
        if ip.fragment() & !DONT_FRAGMENT != 0 {
            return Err(WireError::Fragment(ip.fragment()));
        }
        if ip.protocol() != PROTOCOL_UDP {
            return Err(WireError::Protocol {
                expected: PROTOCOL_UDP,
                got: ip.protocol(),
            });
        }
        let expected = ipv4_checksum(ip.0);
        if ip.checksum() != expected {
            return Err(WireError::IpChecksum {
                expected,
                got: ip.checksum(),
            });
        }
        let inner = inner(packet, IPV4_LEN, usize::from(ip.total_len()))?;
        let (udp, transport) = udp_payload(inner)?;
        let envelope = Self {
            net: Net::V4 {
                src: ip.src(),
                dst: ip.dst(),
                identification: ip.identification(),
                dont_fragment: ip.fragment() & DONT_FRAGMENT != 0,
            },
            traffic_class: ip.traffic_class(),
            hop_limit: ip.hop_limit(),
            src_port: udp.src_port(),
            udp_checksum: udp.checksum(),
        };
        Ok((envelope, transport))
    }

    fn parse_v6(packet: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let ip = Grh::parse_before(GrhView::new(packet)?, PROTOCOL_UDP)?;
        let inner = inner(packet, IPV6_LEN, IPV6_LEN + usize::from(ip.payload_len))?;
        let (udp, transport) = udp_payload(inner)?;
        let envelope = Self {
            net: Net::V6 {
                src: ip.sgid.into(),
                dst: ip.dgid.into(),
                flow_label: ip.flow_label,
            },
            traffic_class: ip.traffic_class,
            hop_limit: ip.hop_limit,
            src_port: udp.src_port(),
            udp_checksum: udp.checksum(),
        };
        Ok((envelope, transport))
    }

    /// Writes the headers of a transport packet of that many bytes, including the ICRC; returns the length of the
    /// headers.
    ///
    /// # Errors
    /// [`WireError::TooLong`], [`WireError::NoRoom`].
    pub fn emit(&self, transport_len: usize, out: &mut [u8]) -> Result<usize, WireError> {
        let got = out.len();
        let Some(out) = out.get_mut(..self.wire_len()) else {
            return Err(WireError::NoRoom {
                need: self.wire_len(),
                got,
            });
        };
        let udp = self.udp_header(transport_len)?;
        match self.ip_header(transport_len)? {
            IpHeader::V4(ip) => out[..IPV4_LEN].copy_from_slice(&ip),
            IpHeader::V6(ip) => out[..IPV6_LEN].copy_from_slice(&ip),
        }
        out[self.wire_len() - UDP_LEN..].copy_from_slice(&udp);
        Ok(self.wire_len())
    }

    /// The 40 bytes before the payload of a received datagram, where InfiniBand places the GRH: the IPv6 header,
    /// or 20 zero bytes and the IPv4 header.
    ///
    /// # Errors
    /// [`WireError::TooLong`].
    pub fn receive_area(&self, transport_len: usize) -> Result<[u8; Grh::LEN], WireError> {
        Ok(match self.ip_header(transport_len)? {
            IpHeader::V4(ip) => {
                let mut area = [0; Grh::LEN];
                area[Grh::LEN - IPV4_LEN..].copy_from_slice(&ip);
                area
            }
            IpHeader::V6(ip) => ip,
        })
    }

    /// The ICRC over these headers, for transport packets of that many bytes, including the ICRC.
    ///
    /// # Errors
    /// [`WireError::TooLong`].
    pub fn icrc(&self, transport_len: usize) -> Result<Icrc, WireError> {
        let udp = self.udp_header(transport_len)?;
        Ok(match self.ip_header(transport_len)? {
            IpHeader::V4(ip) => Icrc::ipv4(&ip, &udp),
            IpHeader::V6(ip) => Icrc::ipv6(&ip, &udp),
        })
    }

    /// Bytes of the two headers.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        match self.net {
            Net::V4 { .. } => IPV4_LEN + UDP_LEN,
            Net::V6 { .. } => IPV6_LEN + UDP_LEN,
        }
    }

    /// The Ethernet type of the IP version.
    #[inline]
    pub const fn ethertype(&self) -> u16 {
        match self.net {
            Net::V4 { .. } => 0x0800,
            Net::V6 { .. } => 0x86dd,
        }
    }

    /// The sender's GID.
    pub fn sgid(&self) -> Gid {
        match self.net {
            Net::V4 { src, .. } => src.into(),
            Net::V6 { src, .. } => src.into(),
        }
    }

    /// The receiver's GID.
    pub fn dgid(&self) -> Gid {
        match self.net {
            Net::V4 { dst, .. } => dst.into(),
            Net::V6 { dst, .. } => dst.into(),
        }
    }

    fn ip_header(&self, transport_len: usize) -> Result<IpHeader, WireError> {
        match self.net {
            Net::V4 {
                src,
                dst,
                identification,
                dont_fragment,
            } => {
                let total = length_field(transport_len, IPV4_LEN + UDP_LEN)?;
                let fragment = if dont_fragment { DONT_FRAGMENT } else { 0 };
                let mut ip = [0; IPV4_LEN];
                ip[0] = IPV4_FIRST_BYTE;
                ip[1] = self.traffic_class;
                ip[2..4].copy_from_slice(&total.to_be_bytes());
                ip[4..6].copy_from_slice(&identification.to_be_bytes());
                ip[6..8].copy_from_slice(&fragment.to_be_bytes());
                ip[8] = self.hop_limit;
                ip[9] = PROTOCOL_UDP;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..].copy_from_slice(&dst.octets());
                let checksum = ipv4_checksum(&ip);
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                Ok(IpHeader::V4(ip))
            }
            Net::V6 {
                src,
                dst,
                flow_label,
            } => {
                let header = Grh {
                    traffic_class: self.traffic_class,
                    flow_label,
                    payload_len: length_field(transport_len, UDP_LEN)?,
                    hop_limit: self.hop_limit,
                    sgid: src.into(),
                    dgid: dst.into(),
                };
                let mut ip = [0; IPV6_LEN];
                header.emit_before(PROTOCOL_UDP, &mut ip);
                Ok(IpHeader::V6(ip))
            }
        }
    }

    fn udp_header(&self, transport_len: usize) -> Result<[u8; UDP_LEN], WireError> {
        let [src_high, src_low] = self.src_port.to_be_bytes();
        let [dst_high, dst_low] = ROCE_PORT.to_be_bytes();
        let [len_high, len_low] = length_field(transport_len, UDP_LEN)?.to_be_bytes();
        let [sum_high, sum_low] = self.udp_checksum.to_be_bytes();
        Ok([
            src_high, src_low, dst_high, dst_low, len_high, len_low, sum_high, sum_low,
        ])
    }
}

enum IpHeader {
    V4([u8; IPV4_LEN]),
    V6([u8; IPV6_LEN]),
}

/// The content after an IP header of `header_len` bytes, by the total length in the header.
fn inner(packet: &[u8], header_len: usize, total_len: usize) -> Result<&[u8], WireError> {
    packet.get(header_len..total_len).ok_or(WireError::Length {
        header: HeaderName::Ip,
        field: total_len,
        expected: packet.len(),
    })
}

/// Splits a UDP datagram that fills the rest of its IP packet.
fn udp_payload(datagram: &[u8]) -> Result<(UdpView<'_>, &[u8]), WireError> {
    let udp = UdpView::new(datagram)?;
    if udp.dst_port() != ROCE_PORT {
        return Err(WireError::Port(udp.dst_port()));
    }
    if usize::from(udp.datagram_len()) != datagram.len() {
        return Err(WireError::Length {
            header: HeaderName::Udp,
            field: usize::from(udp.datagram_len()),
            expected: datagram.len(),
        });
    }
    Ok((udp, &datagram[UDP_LEN..]))
}

/// The length field of a header that counts `headers` bytes before the transport packet.
fn length_field(transport_len: usize, headers: usize) -> Result<u16, WireError> {
    transport_len
        .checked_add(headers)
        .and_then(|len| u16::try_from(len).ok())
        .ok_or(WireError::TooLong(transport_len))
}

/// The checksum of an IPv4 header (RFC 791, 3.1), whatever its checksum field contains.
fn ipv4_checksum(ip: &[u8; IPV4_LEN]) -> u16 {
    let mut ip = *ip;
    ip[10..12].fill(0);
    let (words, _) = ip.as_chunks();
    let sum: u32 = words
        .iter()
        .map(|&word| u32::from(u16::from_be_bytes(word)))
        .sum();
    // Ten words have at most 9 carries, so folding twice is enough.
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = ((folded & 0xffff) + (folded >> 16)).to_be_bytes();
    !u16::from_be_bytes([high, low])
}

view! {
    /// An IPv4 header without options, in bytes.
    pub Ipv4View of Ip, 20 bytes
}

impl Ipv4View<'_> {
    /// IP version; 4 is the right one.
    #[inline]
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Header length in words; more than 5 means options.
    #[inline]
    pub const fn words(self) -> u8 {
        self.0[0] & 0xf
    }

    /// Type of service: DSCP and ECN.
    #[inline]
    pub const fn traffic_class(self) -> u8 {
        self.0[1]
    }

    /// Bytes of the packet, this header included.
    #[inline]
    pub const fn total_len(self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// Identification.
    #[inline]
    pub const fn identification(self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// Flags and fragment offset.
    #[inline]
    pub const fn fragment(self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }

    /// Time to live.
    #[inline]
    pub const fn hop_limit(self) -> u8 {
        self.0[8]
    }

    /// The protocol of the payload.
    #[inline]
    pub const fn protocol(self) -> u8 {
        self.0[9]
    }

    /// Header checksum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        u16::from_be_bytes([self.0[10], self.0[11]])
    }

    /// The sender.
    #[inline]
    pub const fn src(self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[12], self.0[13], self.0[14], self.0[15])
    }

    /// The receiver, or a multicast group.
    #[inline]
    pub const fn dst(self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[16], self.0[17], self.0[18], self.0[19])
    }
}

impl fmt::Debug for Ipv4View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IPv4 { ")?;
        if (self.version(), self.words()) != (4, 5) {
            write!(f, "version {}?, {} words?, ", self.version(), self.words())?;
        }
        write!(
            f,
            "traffic_class: {:#04x}, total_len: {}, identification: {:#06x}, fragment: {:#06x}, \
             hop_limit: {}, protocol: {}, checksum: {:#06x}, src: {}, dst: {} }}",
            self.traffic_class(),
            self.total_len(),
            self.identification(),
            self.fragment(),
            self.hop_limit(),
            self.protocol(),
            self.checksum(),
            self.src(),
            self.dst()
        )
    }
}

view! {
    /// A UDP header in bytes.
    pub UdpView of Udp, 8 bytes
}

impl UdpView<'_> {
    /// Source port.
    #[inline]
    pub const fn src_port(self) -> u16 {
        u16::from_be_bytes([self.0[0], self.0[1]])
    }

    /// Destination port.
    #[inline]
    pub const fn dst_port(self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// Bytes of the datagram, this header included.
    #[inline]
    pub const fn datagram_len(self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// Checksum; 0 means none.
    #[inline]
    pub const fn checksum(self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }
}

impl fmt::Debug for UdpView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "UDP {{ {} -> {}, datagram_len: {}, checksum: {:#06x} }}",
            self.src_port(),
            self.dst_port(),
            self.datagram_len(),
            self.checksum()
        )
    }
}
