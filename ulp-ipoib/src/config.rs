//! The configuration and limits of an interface.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use verbs_core::PKey;

use crate::wire::Scope;

/// Packets that wait for the address or the path of one neighbour; beyond that, the oldest is dropped.
pub const PATH_QUEUE: usize = 3;
/// Packets that wait while a group is joined; beyond that, the oldest is dropped.
pub const GROUP_QUEUE: usize = 16;
/// Packets longer than a datagram that wait while a connection is made; beyond that, the oldest is dropped.
pub const CONNECT_QUEUE: usize = 16;
/// Neighbours that are remembered; beyond that, the one least recently heard of is evicted.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Groups that are joined, including those only for sending; packets to further groups are dropped.
pub const GROUPS_MAX: usize = 128;
/// Connections in each direction; further neighbours get datagrams, and their connections are refused.
pub const CONNECTIONS_MAX: usize = 64;
/// Work requests of one connection's send queue: as many as [`Config::sends`] has, which short packets take.
pub const CONNECTION_DEPTH: u32 = 128;
/// How often an address is asked for before its packets are dropped.
pub const ASKS_MAX: u32 = 3;
/// The time between two solicitations.
pub const ASK_PAUSE: Duration = Duration::from_secs(1);
/// How long a refusal of the administrator stands, for a path or a group.
pub const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
/// The shortest and the longest pause between two attempts to bring the link up.
pub const JOIN_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));
/// How often the interface checks its timers.
pub const TICK: Duration = Duration::from_millis(250);

/// How packets for one neighbour are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// As datagrams. The MTU is that of the broadcast group, less the header: 2044 or 4092.
    #[default]
    Datagram,
    /// Over reliable connections to neighbours that accept them (RFC 4755), with an MTU of 65520; to other
    /// neighbours, and to groups, as datagrams.
    Connected,
}

/// The configuration of an interface. The defaults are those of Linux where it has them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Port of the device, from 1. 1 by default.
    pub port: u8,
    /// The partition. The default one by default.
    pub pkey: PKey,
    /// The scope of the groups. Link-local by default.
    pub scope: Scope,
    /// Addresses with the lengths of their prefixes; all that share a prefix are neighbours.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routers, one of each family: they get packets for addresses that are not neighbours. Without one, such
    /// addresses are treated as neighbours too.
    pub routers: Vec<IpAddr>,
    /// Whether the groups that the stack behind the face reports, by IGMP or multicast listener discovery, are
    /// joined and left; otherwise only [`Interface::subscribe`](crate::Interface::subscribe) does that. Off by
    /// default: smoltcp 0.14, for example, reports an IPv6 group as left when it joins it.
    pub follows_reports: bool,
    /// How packets for one neighbour are sent.
    pub mode: Mode,
    /// The service prefix of connected mode, before the queue pair's number: Linux's by default; the Internet's
    /// prefix in the register of services is `0x0100_0000_0000_0000`.
    pub service_prefix: u64,
    /// Datagrams that may be in flight at a time. 128 by default.
    pub sends: u32,
    /// Receives that are posted for datagrams. 256 by default.
    pub receives: u32,
    /// Messages on connections that may be in flight at a time, 64 KiB each. 64 by default.
    pub connected_sends: u32,
    /// Receives that are posted for all connections together, 64 KiB each. 128 by default.
    pub connected_receives: u32,
    /// How long a neighbour's address is considered current. 30 s by default.
    pub reachable: Duration,
    /// How long a connection without a packet is kept, and a group that was joined only for sending. 120 s by
    /// default.
    pub idle: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            port: 1,
            pkey: PKey::DEFAULT,
            scope: Scope::default(),
            addresses: Vec::new(),
            routers: Vec::new(),
            follows_reports: false,
            mode: Mode::Datagram,
            service_prefix: 0x1000_0000_0000_0000,
            sends: 128,
            receives: 256,
            connected_sends: 64,
            connected_receives: 128,
            reachable: Duration::from_secs(30),
            idle: Duration::from_secs(120),
        }
    }
}

impl Config {
    /// An interface with that address.
    pub fn with_address(addr: IpAddr, prefix_len: u8) -> Self {
        Self {
            addresses: vec![(addr, prefix_len)],
            ..Self::default()
        }
    }

    /// A child interface: the same port in another partition, with addresses of its own.
    #[must_use]
    pub fn child(&self, pkey: PKey, addresses: Vec<(IpAddr, u8)>) -> Self {
        Self {
            pkey,
            addresses,
            ..self.clone()
        }
    }

    /// The neighbour to which a packet for `destination` is sent.
    pub(crate) fn next_hop(&self, destination: IpAddr) -> IpAddr {
        let link_local = matches!(destination, IpAddr::V6(addr) if addr.is_unicast_link_local());
        let neighbour = |&(addr, len): &(IpAddr, u8)| shares_prefix(addr, destination, len);
        if link_local || self.addresses.iter().any(neighbour) {
            return destination;
        }
        let same = |router: &&IpAddr| router.is_ipv4() == destination.is_ipv4();
        self.routers
            .iter()
            .find(same)
            .copied()
            .unwrap_or(destination)
    }

    /// Whether a packet for that address is for all neighbours.
    pub(crate) fn is_broadcast(&self, destination: Ipv4Addr) -> bool {
        let all = |&(addr, len): &(IpAddr, u8)| match addr {
            IpAddr::V4(addr) if len < 31 => {
                let host = u32::MAX.checked_shr(len.into()).unwrap_or(0);
                u32::from(addr) | host == u32::from(destination)
            }
            _ => false,
        };
        destination.is_broadcast() || self.addresses.iter().any(all)
    }

    /// Whether an address is one of the interface.
    pub(crate) fn has(&self, addr: IpAddr) -> bool {
        self.addresses.iter().any(|&(own, _)| own == addr)
    }

    /// The own address that neighbours see in solicitations for `target`.
    pub(crate) fn source_for(&self, target: IpAddr) -> Option<IpAddr> {
        let same = |addr: &IpAddr| addr.is_ipv4() == target.is_ipv4();
        let shares = |&&(addr, len): &&(IpAddr, u8)| shares_prefix(addr, target, len);
        let near = self.addresses.iter().find(shares);
        let any = || self.addresses.iter().find(|(addr, _)| same(addr));
        near.or_else(any).map(|&(addr, _)| addr)
    }
}

/// Whether two addresses are of one family and agree in their first `len` bits.
fn shares_prefix(a: IpAddr, b: IpAddr, len: u8) -> bool {
    let rest = |width: u32| width.saturating_sub(len.into());
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differ = u32::from(a) ^ u32::from(b);
            differ.checked_shr(rest(32)).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let differ = a.to_bits() ^ b.to_bits();
            differ.checked_shr(rest(128)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let addr = |text: &str| text.parse().unwrap();
        Config {
            addresses: vec![(addr("10.1.0.1"), 16), (addr("fd00::1"), 64)],
            routers: vec![addr("10.1.0.254")],
            ..Config::default()
        }
    }

    #[test]
    fn packets_for_others_go_to_the_router() {
        let hop = |text: &str| config().next_hop(text.parse().unwrap()).to_string();
        assert_eq!(hop("10.1.200.1"), "10.1.200.1");
        assert_eq!(hop("10.2.0.1"), "10.1.0.254");
        assert_eq!(hop("fd00::9"), "fd00::9");
        assert_eq!(hop("fe80::9"), "fe80::9");
        assert_eq!(
            hop("2001:db8::1"),
            "2001:db8::1",
            "there is no router for it"
        );
    }

    #[test]
    fn broadcasts_are_those_of_the_own_prefix() {
        assert!(config().is_broadcast(Ipv4Addr::new(10, 1, 255, 255)));
        assert!(config().is_broadcast(Ipv4Addr::BROADCAST));
        assert!(!config().is_broadcast(Ipv4Addr::new(10, 2, 255, 255)));
        let source = config().source_for("10.9.9.9".parse().unwrap());
        assert_eq!(source, Some("10.1.0.1".parse().unwrap()));
    }
}
