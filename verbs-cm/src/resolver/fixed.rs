//! A table that the program fills.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use verbs_core::mad::PortInfo;
use verbs_core::{Gid, Lid};

use crate::error::Error;
use crate::resolver::{Hop, Query, Resolver, addresses, gid_of};

/// Ways that are known beforehand: for tests, for networks without an address service, and in front of
/// another resolver for some names.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    ways: BTreeMap<IpAddr, (Gid, Option<Lid>)>,
    names: BTreeMap<String, IpAddr>,
}

impl Fixed {
    /// An empty table, without a path to any address.
    pub fn new() -> Self {
        Self::default()
    }

    /// The port with that GID, and LID where there are any, has that address.
    #[must_use]
    pub fn way(mut self, addr: IpAddr, gid: Gid, lid: Option<Lid>) -> Self {
        self.ways.insert(addr, (gid, lid));
        self
    }

    /// The host with that name has that address.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>, addr: IpAddr) -> Self {
        self.names.insert(name.into(), addr);
        self
    }

    /// The GID under which the port has that address: by the table, or because the address is a GID.
    fn gid_here(&self, addr: IpAddr, port: &PortInfo) -> Option<Gid> {
        match self.ways.get(&addr) {
            Some((gid, _)) => port.gids.iter().any(|(_, own)| own == gid).then_some(*gid),
            None => gid_of(port, addr),
        }
    }

    fn find(&self, query: &Query) -> Result<Hop, Error> {
        let &(remote_gid, remote_lid) = self
            .ways
            .get(&query.remote)
            .ok_or(Error::NoRoute(query.remote))?;
        let like = IpAddr::from(remote_gid);
        let first = || addresses(&query.port, like).next();
        let local_gid = match query.local {
            Some(local) => self
                .gid_here(local, &query.port)
                .ok_or(Error::AddressNotAvailable(local))?,
            None => first().map(Gid::from).ok_or(Error::NoRoute(query.remote))?,
        };
        // What the peer is told is of the family that was asked for.
        let local = query.local.unwrap_or_else(|| {
            let own = self.ways.iter().find(|(_, way)| way.0 == local_gid);
            own.map_or_else(|| IpAddr::from(local_gid), |(&addr, _)| addr)
        });
        Ok(Hop {
            local,
            local_gid,
            remote_gid,
            remote_lid,
            mtu: None,
        })
    }
}

impl Resolver for Fixed {
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, Error>> {
        future::ready(self.find(&query)).boxed()
    }

    fn is_local(&self, addr: IpAddr, port: &PortInfo) -> bool {
        self.gid_here(addr, port).is_some()
    }

    fn lookup(&self, name: &str) -> Option<IpAddr> {
        self.names.get(name).copied()
    }
}
