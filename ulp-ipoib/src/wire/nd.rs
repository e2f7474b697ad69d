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
/// Every message comes from the same link, which this proves (RFC 4861, section 7.1).
const HOPS: u8 = 255;

/// A message of neighbour discovery that an interface takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nd {
    /// Who has the target address?
    Solicitation {
        /// Who asks; unspecified while it finds out whether its own address is taken.
        source: Ipv6Addr,
        /// The address that is asked for.
        target: Ipv6Addr,
        /// Where the asker is.
        from: Option<HardwareAddress>,
    },
    /// The sender has.
    Advertisement(Advertisement),
}

/// That somebody has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// Who says so.
    pub source: Ipv6Addr,
    /// Whom it is for: the asker, or all nodes.
    pub destination: Ipv6Addr,
    /// The address.
    pub target: Ipv6Addr,
    /// Where the one is who has it.
    pub at: Option<HardwareAddress>,
    /// Whether somebody had asked.
    pub solicited: bool,
    /// Whether what was known before is to be forgotten.
    pub overrides: bool,
}

/// Why a packet is no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NdError {
    /// No packet at all.
    #[error(transparent)]
    Ip(IpError),
    /// Something else than these two messages, or too short.
    #[error("not a message of neighbour discovery")]
    Other,
    /// It may have come through a router.
    #[error("hop limit {0}, expected 255")]
    Hops(u8),
    /// The checksum is wrong.
    #[error("wrong checksum")]
    Checksum,
    /// The target is a group.
    #[error("the target {0} is a group")]
    Target(Ipv6Addr),
    /// An option of no length.
    #[error("an option without length")]
    Option,
}

impl Nd {
    /// Bytes of a packet that carries either message with an address.
    pub const LEN: usize = V6_HEADER + OPTIONS + 8 * OPTION_UNITS as usize;

    /// Reads a packet of IPv6.
    ///
    /// # Errors
    /// [`NdError`]; [`NdError::Other`] for all that is not neighbour discovery.
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

    /// The packet that asks who has `target`: all who may have it, or only `known`, who had it before.
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
    /// The packet; without an address it is sent with zeros for one.
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

/// The lower half of an address of a port (RFC 4391, section 8): that of its GID, marked as given out by
/// nobody twice.
pub fn interface_identifier(gid: Gid) -> u64 {
    gid.interface_id().0 | 0x0200_0000_0000_0000
}

/// The address that a port has on every link.
pub fn link_local(gid: Gid) -> Ipv6Addr {
    let prefix = u128::from(Gid::LINK_LOCAL_PREFIX) << 64;
    Ipv6Addr::from_bits(prefix | u128::from(interface_identifier(gid)))
}
