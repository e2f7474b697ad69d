//! From an address to a way: which of the device's ports and addresses reaches it.

mod cache;
mod devices;
mod fixed;
mod host;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use futures::future::BoxFuture;
use verbs_core::mad::PortInfo;
use verbs_core::sync::Arc;
use verbs_core::{Gid, Lid, Mtu};

use crate::error::Error;

pub use cache::{CACHE_MAX, Cached};
pub use devices::{Offload, ResolvedAddr, resolve_addr, resolve_addr_by};
pub use fixed::Fixed;
pub use host::Host;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Query {
    /// The peer to reach.
    pub remote: IpAddr,
    /// From which address, if that is decided.
    pub local: Option<IpAddr>,
    /// From which port.
    pub port: Arc<PortInfo>,
}

/// A way, as far as addresses describe it. Whatever a subnet administrator knows is found afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The address of this port on that way: what the peer gets to see.
    pub local: IpAddr,
    /// GID of this port on that way; one of its table.
    pub local_gid: Gid,
    /// GID of the peer's port.
    pub remote_gid: Gid,
    /// LID of the peer's port, where it is known and there are any.
    pub remote_lid: Option<Lid>,
    /// The largest path MTU whose packets fit through the route, where the resolver knows it. The port's own MTU may be
    /// smaller still.
    pub mtu: Option<Mtu>,
}

/// Finds ways. Its futures are cancelled by dropping them.
///
/// Implementations must not block, neither in the calls nor in the futures.
pub trait Resolver: Send + Sync + fmt::Debug {
    /// The way to an address.
    ///
    /// # Errors
    /// Of the future: [`Error::NoRoute`], [`Error::AddressNotAvailable`], [`Error::TimedOut`].
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, Error>>;

    /// Whether an address is the port's, so that it may have a listener. By default it is if it is in
    /// the port's GID table.
    fn is_local(&self, addr: IpAddr, port: &PortInfo) -> bool {
        gid_of(port, addr).is_some()
    }

    /// The address of a host's name; none by default.
    fn lookup(&self, _name: &str) -> Option<IpAddr> {
        None
    }

    /// The port's addresses or its link have changed: what is kept may be wrong.
    fn invalidate(&self) {}
}

/// An address with a port number, or the text of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address.
    Ip(SocketAddr),
    /// `10.0.0.2:7174`, `[fd00::2]:7174`, or `name:7174` where the resolver has names.
    Text(String),
}

impl Address {
    /// The IP address, with names looked up.
    ///
    /// # Errors
    /// [`Error::NoAddress`].
    pub fn lookup(&self, resolver: &dyn Resolver) -> Result<SocketAddr, Error> {
        let text = match self {
            Self::Ip(addr) => return Ok(*addr),
            Self::Text(text) => text,
        };
        if let Ok(addr) = text.parse() {
            return Ok(addr);
        }
        let named = text.rsplit_once(':').and_then(|(name, port)| {
            let addr = resolver.lookup(name)?;
            Some(SocketAddr::new(addr, port.parse().ok()?))
        });
        named.ok_or_else(|| Error::NoAddress(text.clone()))
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl From<(IpAddr, u16)> for Address {
    fn from(addr: (IpAddr, u16)) -> Self {
        Self::Ip(addr.into())
    }
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Address {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The GID of a port that stands for an address; RoCEv2 ports have one for each of theirs.
pub(crate) fn gid_of(port: &PortInfo, addr: IpAddr) -> Option<Gid> {
    let gid = Gid::from(addr);
    port.gids.iter().any(|&(_, own)| own == gid).then_some(gid)
}

/// The addresses of a port's GIDs of one family, in the order of the table. A mapped IPv4 address is
/// one of IPv4.
pub(crate) fn addresses(port: &PortInfo, like: IpAddr) -> impl Iterator<Item = IpAddr> + '_ {
    port.gids
        .iter()
        .map(|&(_, gid)| IpAddr::from(gid))
        .filter(move |addr| addr.is_ipv4() == like.is_ipv4())
}

/// Whether some GID of a port is an address of that family. The GID of an adapter for RDMA over TCP may be its MAC
/// address, with zeros behind.
pub(crate) fn has_addresses(port: &PortInfo, like: IpAddr) -> bool {
    let is_mac = |addr: IpAddr| matches!(addr, IpAddr::V6(v6) if v6.octets()[6..] == [0; 10]);
    addresses(port, like).any(|addr| !is_mac(addr))
}
