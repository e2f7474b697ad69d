//! The host's own routes.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use rustix::net::sockopt;
use verbs_core::{Gid, Mtu};

use crate::error::Error;
use crate::resolver::{Hop, Query, Resolver, addresses, gid_of};

/// Asks the host's routing tables: from which of the port's addresses the host would send to the peer.
///
/// The question is put by connecting a datagram socket, which sends nothing and waits for nothing, but
/// takes policy rules and source addresses of routes into account as every packet does. Neighbours
/// (ARP, neighbour discovery) are the host's business where packets go through its sockets: a peer that
/// has none is one that does not answer.
///
/// The tables themselves are not read, by rtnetlink or from `/proc/net`. A software port sends through the
/// host's sockets: it can choose neither the next hop nor a hardware address, the host looks both up for
/// every packet, and a copy here would only be older. Nor would it be right more often: which table counts
/// depends on policy rules that the question above goes through as packets do. So a route that changes needs
/// no notice as long as the source address stays; one that goes shows as a peer that does not answer. A port
/// that makes frames itself, as hardware does, needs next hops: that is what another [`Resolver`] is for.
///
/// The host also knows how large packets to the peer may be: by the route's interface, by the route's own MTU
/// (`ip route ... mtu 1400`), and by what routers have reported about earlier packets (path MTU discovery).
///
/// Addresses that are not the host's, but of a simulated network, have no routes to be asked for: the
/// port reaches its whole network then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// What the host says of a source address.
enum Source {
    /// It would send from there, packets of at most that path MTU.
    Usable(IpAddr, Option<Mtu>),
    /// It has no such address.
    NotOurs,
    NoRoute,
}

impl Host {
    /// What the host makes of a packet from `local`, or from where it likes, to `remote`.
    fn ask(local: Option<IpAddr>, remote: IpAddr) -> Source {
        let any = match remote {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let Ok(socket) = UdpSocket::bind((local.unwrap_or(any), 0)) else {
            return Source::NotOurs;
        };
        // The port number does not matter; RoCEv2's is as good as any.
        match socket.connect((remote, 4791)) {
            Ok(()) => match socket.local_addr().as_ref().map(SocketAddr::ip) {
                Ok(addr) => Source::Usable(addr, path_mtu(&socket, remote)),
                Err(_) => Source::NoRoute,
            },
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Source::NotOurs,
            Err(_) => Source::NoRoute,
        }
    }

    /// The largest path MTU of packets from one address to the other, as the host knows it now. `None` where `local` is not
    /// the host's, or there is no route. Does not block.
    pub fn path_mtu(local: IpAddr, remote: IpAddr) -> Option<Mtu> {
        match Self::ask(Some(local), remote) {
            Source::Usable(_, mtu) => mtu,
            Source::NotOurs | Source::NoRoute => None,
        }
    }

    /// The address from which the host would send to that one.
    pub(super) fn preferred(remote: IpAddr) -> Option<IpAddr> {
        Self::preferred_way(remote).map(|(local, _)| local)
    }

    /// The same, with the path MTU.
    fn preferred_way(remote: IpAddr) -> Option<(IpAddr, Option<Mtu>)> {
        match Self::ask(None, remote) {
            Source::Usable(local, mtu) => Some((local, mtu)),
            Source::NotOurs | Source::NoRoute => None,
        }
    }

    fn find(query: &Query) -> Result<Hop, Error> {
        let Query {
            remote,
            local,
            port,
        } = query;
        let no_route = Error::NoRoute(*remote);
        if remote.is_unspecified() || remote.is_multicast() {
            return Err(no_route);
        }
        let hop = |local: IpAddr, mtu| Hop {
            local,
            local_gid: Gid::from(local),
            remote_gid: Gid::from(*remote),
            remote_lid: None,
            mtu,
        };
        if let Some(local) = *local {
            gid_of(port, local).ok_or(Error::AddressNotAvailable(local))?;
            return match Self::ask(Some(local), *remote) {
                Source::Usable(_, mtu) => Ok(hop(local, mtu)),
                Source::NotOurs => Ok(hop(local, None)),
                Source::NoRoute => Err(no_route),
            };
        }
        // The address that the host prefers, if it is the port's; else the first that works.
        if let Some((local, mtu)) = Self::preferred_way(*remote)
            && gid_of(port, local).is_some()
        {
            return Ok(hop(local, mtu));
        }
        let mut foreign = None;
        for local in addresses(port, *remote) {
            match Self::ask(Some(local), *remote) {
                Source::Usable(_, mtu) => return Ok(hop(local, mtu)),
                Source::NotOurs => foreign = foreign.or(Some(local)),
                Source::NoRoute => {}
            }
        }
        let way = foreign.map(|local| hop(local, None));
        way.ok_or(no_route)
    }
}

/// The largest path MTU whose packets fit through the route of a connected socket.
fn path_mtu(socket: &UdpSocket, remote: IpAddr) -> Option<Mtu> {
    let bytes = match remote {
        IpAddr::V4(_) => sockopt::ip_mtu(socket),
        IpAddr::V6(_) => sockopt::ipv6_mtu(socket),
    };
    bytes.ok().map(Mtu::within_ip_mtu)
}

impl Resolver for Host {
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, Error>> {
        future::ready(Self::find(&query)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_takes_the_largest_packets() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let here = Host::path_mtu(ip("127.0.0.1"), ip("127.0.0.2"));
        assert_eq!(here, Some(Mtu::B4096));
        let foreign = Host::path_mtu(ip("192.0.2.1"), ip("127.0.0.2"));
        assert_eq!(foreign, None, "no address of this host");
    }
}
