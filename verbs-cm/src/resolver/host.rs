//! The host's own routes.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use verbs_core::Gid;

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
/// Addresses that are not the host's, but of a simulated network, have no routes to be asked for: the
/// port reaches its whole network then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// What the host says of a source address.
enum Source {
    /// It would send from there.
    Usable(IpAddr),
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
                Ok(addr) => Source::Usable(addr),
                Err(_) => Source::NoRoute,
            },
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Source::NotOurs,
            Err(_) => Source::NoRoute,
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
        let hop = |local: IpAddr| Hop {
            local,
            local_gid: Gid::from(local),
            remote_gid: Gid::from(*remote),
            remote_lid: None,
        };
        if let Some(local) = *local {
            gid_of(port, local).ok_or(Error::AddressNotAvailable(local))?;
            return match Self::ask(Some(local), *remote) {
                Source::Usable(_) | Source::NotOurs => Ok(hop(local)),
                Source::NoRoute => Err(no_route),
            };
        }
        // The address that the host prefers, if it is the port's; else the first that works.
        if let Source::Usable(local) = Self::ask(None, *remote)
            && gid_of(port, local).is_some()
        {
            return Ok(hop(local));
        }
        let mut foreign = None;
        for local in addresses(port, *remote) {
            match Self::ask(Some(local), *remote) {
                Source::Usable(_) => return Ok(hop(local)),
                Source::NotOurs => foreign = foreign.or(Some(local)),
                Source::NoRoute => {}
            }
        }
        foreign.map(hop).ok_or(no_route)
    }
}

impl Resolver for Host {
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, Error>> {
        future::ready(Self::find(&query)).boxed()
    }
}
