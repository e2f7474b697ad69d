//! Multicast groups of IP as groups of InfiniBand (RFC 4391, section 4).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use verbs_core::{Gid, PKey};

/// Signature of groups of IPv4.
const V4: [u8; 2] = [0x40, 0x1b];
/// Signature of groups of IPv6.
const V6: [u8; 2] = [0x60, 0x1b];

/// The scope of a group: four bits, as in IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope(u8);

impl Scope {
    /// One subnet; the default.
    pub const LINK_LOCAL: Self = Self(2);

    /// The scope with that number; its low four bits count.
    pub const fn new(number: u8) -> Self {
        Self(number & 0xf)
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self::LINK_LOCAL
    }
}

/// The group of all nodes of a partition.
pub fn broadcast(pkey: PKey, scope: Scope) -> Gid {
    mgid(V4, pkey, scope, u128::from(u32::MAX))
}

/// The group for an address; `None` for addresses that are not multicast. The broadcast address maps to
/// [`broadcast`].
pub fn group_of(addr: IpAddr, pkey: PKey, scope: Scope) -> Option<Gid> {
    match addr {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(broadcast(pkey, scope)),
        IpAddr::V4(addr) if addr.is_multicast() => {
            let low = u32::from(addr) & 0x0fff_ffff;
            Some(mgid(V4, pkey, scope, low.into()))
        }
        IpAddr::V6(addr) if addr.is_multicast() => {
            let low = addr.to_bits() & ((1 << 80) - 1);
            Some(mgid(V6, pkey, scope, low))
        }
        _ => None,
    }
}

/// The group in which neighbours of an address are solicited (RFC 4291, section 2.7.1).
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let prefix = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(prefix | addr.to_bits() & 0x00ff_ffff)
}

/// All nodes of the link (RFC 4291, section 2.7.1).
pub const fn all_nodes() -> Ipv6Addr {
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
}

fn mgid(signature: [u8; 2], pkey: PKey, scope: Scope, low: u128) -> Gid {
    let mut bytes = low.to_be_bytes();
    // Full membership is always set, so that all members of the partition have the same group.
    let [high, rest] = (pkey.0 | 0x8000).to_be_bytes();
    bytes[..6].copy_from_slice(&[0xff, 0x10 | scope.0, signature[0], signature[1], high, rest]);
    Gid(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(gid: Gid) -> String {
        gid.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn groups_map_as_the_rfc_has_them() {
        let scope = Scope::default();
        let of =
            |text: &str, pkey| hex(group_of(text.parse().unwrap(), PKey(pkey), scope).unwrap());
        assert_eq!(
            hex(broadcast(PKey::DEFAULT, scope)),
            "ff12401bffff000000000000ffffffff"
        );
        assert_eq!(of("224.0.0.1", 0x8001), "ff12401b800100000000000000000001");
        assert_eq!(of("224.0.0.1", 0x0001), "ff12401b800100000000000000000001");
        assert_eq!(
            of("239.255.0.5", 0xffff),
            "ff12401bffff0000000000000fff0005"
        );
        assert_eq!(
            of("255.255.255.255", 0xffff),
            "ff12401bffff000000000000ffffffff"
        );
        assert_eq!(of("ff02::1", 0xffff), "ff12601bffff00000000000000000001");
        assert_eq!(
            of("ff05::1:2:3:4:5", 0xffff),
            "ff12601bffff00010002000300040005"
        );
        assert_eq!(
            group_of("10.0.0.1".parse().unwrap(), PKey::DEFAULT, scope),
            None
        );
        assert_eq!(
            solicited_node("fd00::12:3456:789a".parse().unwrap()),
            "ff02::1:ff56:789a".parse::<Ipv6Addr>().unwrap()
        );
    }
}
