//! The software HCA within a process: for tests, and for trying things out.
//!
//! ```
//! use verbs::prelude::*;
//! use verbs::sim::Network;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! verbs::block_on(async {
//!     let network = Network::new();
//!     let server = network.host([10, 0, 0, 1]).open().await?;
//!     let client = network.host([10, 0, 0, 2]).message_size(1 << 20).open().await?;
//!     let mut listener = server.listen("10.0.0.1:7471").await?;
//!     let accepted = async { listener.next().await.expect("it never ends").accept().await };
//!     let asked = client.connect("10.0.0.1:7471").into_future();
//!     let (a, b) = futures::try_join!(asked, accepted)?;
//!     a.close().await?;
//!     assert!(b.recv().await?.is_none());
//!     Ok(())
//! })
//! # }
//! ```
//!
//! A [`Sim`] runs such programs in virtual time, over a network with faults that a seed decides: see the example
//! `faults_in_ci`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::future::{BoxFuture, ready};
use futures::{FutureExt, StreamExt};
use verbs_cm::resolver::{Hop, Query, Resolver};
use verbs_core::mad::PortInfo;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Gid, Lid};
use verbs_io::{Connection, Endpoint, Error, Opening};

#[doc(no_inline)]
pub use hca_sim::link;
#[doc(no_inline)]
pub use hca_sim::sim::{LinkConfig, Ppm, Sim};
#[doc(no_inline)]
pub use hca_sim::{Builder, Hca, Limits, Loopback, connect};

/// Two ends of a new connection, each on an HCA of its own, with the options of [`Endpoint::on`]'s defaults.
///
/// # Errors
/// [`Error::Verb`] when memory cannot be had.
pub async fn pair() -> Result<(Connection, Connection), Error> {
    let network = Network::new();
    let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]];
    let client = network.host(here).open().await?;
    let server = network.host(there).open().await?;
    let at = (IpAddr::from(there), 7471);
    let mut listener = server.listen(at).await?;
    let accepted = async {
        match listener.next().await {
            Some(incoming) => incoming.accept().await,
            None => unreachable!("listeners never end"),
        }
    };
    futures::future::try_join(client.connect(at).into_future(), accepted).await
}

/// A network within the process: hosts with addresses of the program's choice, and a link without loss between them.
///
/// Clones are the same network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    link: Arc<Loopback>,
    hosts: Arc<Hosts>,
}

/// Which port has which address.
#[derive(Debug, Default)]
struct Hosts(Mutex<BTreeMap<IpAddr, (Gid, Lid)>>);

impl Network {
    /// A network without hosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// An endpoint on a host with that address, to be opened. Each has an HCA of its own. The host that was opened
    /// last has an address that several have.
    ///
    /// # Errors
    /// Of [`Opening::open`]: [`Error::Verb`].
    pub fn host(&self, addr: impl Into<IpAddr>) -> Opening {
        let network = self.clone();
        self.attach_later(addr.into(), async move { Hca::on(&network.link).build() })
    }

    /// As [`host`](Network::host), on an HCA that was built with options on the network's [link](Network::link).
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, hca: Arc<Hca>, addr: impl Into<IpAddr>) -> Opening {
        self.attach_later(addr.into(), ready(hca))
    }

    fn attach_later(
        &self,
        addr: IpAddr,
        hca: impl Future<Output = Arc<Hca>> + Send + 'static,
    ) -> Opening {
        let hosts = Arc::clone(&self.hosts);
        let opening = Endpoint::opening(async move {
            let hca = hca.await;
            hosts.0.lock().insert(addr, (hca.gid(), hca.lid()));
            Ok(hca.open().await?)
        });
        opening.resolver(Arc::<Hosts>::clone(&self.hosts))
    }

    /// What HCAs of the network are built on.
    pub fn link(&self) -> &Loopback {
        &self.link
    }
}

impl Hosts {
    /// The address that the host with that port has.
    fn of(&self, port: &PortInfo) -> Option<(IpAddr, Gid)> {
        let hosts = self.0.lock();
        let is_ours = |gid: &Gid| port.gids.iter().any(|(_, own)| own == gid);
        let host = hosts.iter().find(|(_, (gid, _))| is_ours(gid))?;
        Some((*host.0, host.1.0))
    }

    fn hop(&self, query: &Query) -> Result<Hop, verbs_cm::Error> {
        let no_route = verbs_cm::Error::NoRoute(query.remote);
        let (local, local_gid) = self.of(&query.port).ok_or(no_route.clone())?;
        let (gid, lid) = self.0.lock().get(&query.remote).copied().ok_or(no_route)?;
        Ok(Hop {
            local,
            local_gid,
            remote_gid: gid,
            remote_lid: Some(lid),
        })
    }
}

impl Resolver for Hosts {
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, verbs_cm::Error>> {
        ready(self.hop(&query)).boxed()
    }

    fn is_local(&self, addr: IpAddr, port: &PortInfo) -> bool {
        let way = self.0.lock().get(&addr).copied();
        way.is_some_and(|(gid, _)| port.gids.iter().any(|(_, own)| *own == gid))
    }
}
