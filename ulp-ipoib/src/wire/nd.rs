//! Neighbour discovery with addresses of 20 bytes (RFC 4391, section 9.3; RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use verbs_core::Gid;

use super::hardware::HardwareAddress;
use super::ip::{ICMPV6, Ip, IpError, V6_HEADER, icmpv6_sum, v6, v6_header};
use super::mgid::solicited_node;

/// Neighbour solicitation.
const SOLICITATION: u8 = 135;
/// Neighbour advertisement.
const ADVERTISEMENT: u8 = 136;
/// Type of the option with the sender's link-layer address.
const SOURCE: u8 = 1;
/// Type of the option with the target's link-layer address.
const TARGET: u8 = 2;
/// The option's length in units of 8 bytes: two bytes of head, two of padding, 20 of address.
const OPTION_UNITS: u8 = 3;
/// Where options begin in either message.
const OPTIONS: usize = 24;
/// Proves that a message comes from the same link (RFC 4861, section 7.1).
const HOPS: u8 = 255;

/// A message of neighbour discovery that an interface takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nd {
    /// Who has the target address?
    Solicitation {
        /// The asker; unspecified while it checks whether its own address is taken.
        source: Ipv6Addr,
        /// The address that it asks for.
        target: Ipv6Addr,
        /// The asker's hardware address.
        from: Option<HardwareAddress>,
    },
    /// The sender does.
    Advertisement(Advertisement),
}

/// The statement that a node has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The sender.
    pub source: Ipv6Addr,
    /// The receiver: the asker, or all nodes.
    pub destination: Ipv6Addr,
    /// The address.
    pub target: Ipv6Addr,
    /// The hardware address of its owner.
    pub at: Option<HardwareAddress>,
    /// Whether it answers a solicitation.
    pub solicited: bool,
    /// Whether it overrides what was known before.
    pub overrides: bool,
}

/// Why a packet is not such a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NdError {
    /// Not an IP packet.
    #[error(transparent)]
    Ip(IpError),
    /// Another message, or too short.
    #[error("not a message of neighbour discovery")]
    Other,
    /// It may have passed a router.
    #[error("hop limit {0}, expected 255")]
    Hops(u8),
    /// The checksum is wrong.
    #[error("wrong checksum")]
    Checksum,
    /// The target is a group.
    #[error("the target {0} is a group")]
    Target(Ipv6Addr),
    /// An option with length zero.
    #[error("an option without length")]
    Option,
}

impl Nd {
    /// Bytes of a packet that carries either message with an address.
    pub const LEN: usize = V6_HEADER + OPTIONS + 8 * OPTION_UNITS as usize;

    /// Reads a packet of IPv6.
    ///
    /// # Errors
    /// [`NdError`]; [`NdError::Other`] for everything that is not neighbour discovery.
    pub fn parse(packet: &[u8]) -> Result<Self, NdError> {
        let ip = Ip::parse(packet).map_err(NdError::Ip)?;
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip.source, ip.destination) else {
            return Err(NdError::Other);
        };
        let stated = packet.get(4..6).and_then(<[u8]>::first_chunk);
        let stated = stated.map_or(0, |len| usize::from(u16::from_be_bytes(*len)));
        let message = packet.get(V6_HEADER..V6_HEADER + stated);
        let (ICMPV6, Some(message)) = (ip.next, message) else {
            return Err(NdError::Other);
        };
        let (Some(&[kind @ (SOLICITATION | ADVERTISEMENT), 0]), true) =
            (message.first_chunk(), message.len() >= OPTIONS)
        else {
            return Err(NdError::Other);
        };
        if packet[7] != HOPS {
            return Err(NdError::Hops(packet[7]));
        }
        if icmpv6_sum(source, destination, message) != 0 {
            return Err(NdError::Checksum);
        }
        let target = v6(message, 8);
        if target.is_multicast() {
            return Err(NdError::Target(target));
        }
        let options = message.get(OPTIONS..).unwrap_or_default();
        if kind == SOLICITATION {
            let from = option(options, SOURCE)?;
            return Ok(Self::Solicitation {
                source,
                target,
                from,
            });
        }
        Ok(Self::Advertisement(Advertisement {
            source,
            destination,
            target,
            at: option(options, TARGET)?,
            solicited: message[4] & 0x40 != 0,
            overrides: message[4] & 0x20 != 0,
        }))
    }

    /// The packet that asks for the owner of `target`: from all possible owners, or only from `known`, the last
    /// one.
    pub fn solicit(
        source: Ipv6Addr,
        target: Ipv6Addr,
        own: HardwareAddress,
        known: bool,
    ) -> [u8; Self::LEN] {
        let destination = if known {
            target
        } else {
            solicited_node(target)
        };
        let mut packet = [0; Self::LEN];
        let message = &mut packet[V6_HEADER..];
        message[0] = SOLICITATION;
        message[8..24].copy_from_slice(&target.octets());
        put_option(&mut message[OPTIONS..], SOURCE, own);
        v6_header(&mut packet, source, destination, HOPS);
        packet
    }
}

impl Advertisement {
    /// The packet; a missing hardware address is sent as zeros.
    pub fn emit(&self) -> [u8; Nd::LEN] {
        let mut packet = [0; Nd::LEN];
        let message = &mut packet[V6_HEADER..];
        message[0] = ADVERTISEMENT;
        message[4] = u8::from(self.solicited) << 6 | u8::from(self.overrides) << 5;
        message[8..24].copy_from_slice(&self.target.octets());
        put_option(&mut message[OPTIONS..], TARGET, self.at.unwrap_or_default());
        v6_header(&mut packet, self.source, self.destination, HOPS);
        packet
    }
}

fn put_option(place: &mut [u8], kind: u8, address: HardwareAddress) {
    place[0] = kind;
    place[1] = OPTION_UNITS;
    place[4..24].copy_from_slice(&address.emit());
}

/// The address in the first option of that kind that has the right length.
fn option(mut options: &[u8], wanted: u8) -> Result<Option<HardwareAddress>, NdError> {
    while let Some(&[kind, units]) = options.first_chunk() {
        if units == 0 {
            return Err(NdError::Option);
        }
        let len = usize::from(units) * 8;
        let Some(body) = options.get(..len) else {
            break;
        };
        if (kind, units) == (wanted, OPTION_UNITS)
            && let Some(address) = body.last_chunk()
        {
            return Ok(Some(HardwareAddress::parse(address)));
        }
        options = &options[len..];
    }
    Ok(None)
}

/// The lower half of a port's addresses (RFC 4391, section 8): that of its GID, marked as globally unique.
pub fn interface_identifier(gid: Gid) -> u64 {
    gid.interface_id().0 | 0x0200_0000_0000_0000
}

/// The port's link-local address.
pub fn link_local(gid: Gid) -> Ipv6Addr {
    let prefix = u128::from(Gid::LINK_LOCAL_PREFIX) << 64;
    Ipv6Addr::from_bits(prefix | u128::from(interface_identifier(gid)))
}
