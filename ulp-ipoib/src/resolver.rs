//! Addresses for the connection manager: a program with an interface can be reached by its IP address.

use std::fmt;
use std::net::IpAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use verbs_cm::Error;
use verbs_cm::resolver::{Hop, Query, Resolver};
use verbs_core::mad::PortInfo;
use verbs_core::sync::{Arc, Weak};

use crate::link::Core;

/// Finds neighbours of an interface by ARP and neighbour discovery, and the paths to them.
///
/// The interface keeps the results, and forgets them when the link changes. Each query is answered within the
/// time that a neighbour has to answer, about three seconds.
pub(crate) struct Neighbourly(Weak<Core>);

impl Neighbourly {
    pub(crate) fn of(core: &Arc<Core>) -> Self {
        Self(Arc::downgrade(core))
    }
}

impl Resolver for Neighbourly {
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, Error>> {
        let interface = Weak::clone(&self.0);
        async move {
            let remote = query.remote.to_canonical();
            let nobody = Error::NoRoute(remote);
            let Some(core) = interface.upgrade() else {
                return Err(nobody);
            };
            let source = core.config().source_for(remote).ok_or(nobody.clone())?;
            let local = query.local.map_or(source, |local| local.to_canonical());
            if !core.config().has(local) {
                return Err(Error::AddressNotAvailable(local));
            }
            let at = core.resolve(remote).await.ok_or(nobody)?;
            Ok(Hop {
                local,
                local_gid: core.info().hardware.gid,
                remote_gid: at.gid,
                remote_lid: core.lid_of(at.gid),
                mtu: None,
            })
        }
        .boxed()
    }

    fn is_local(&self, addr: IpAddr, _port: &PortInfo) -> bool {
        let interface = self.0.upgrade();
        interface.is_some_and(|core| core.config().has(addr.to_canonical()))
    }
}

impl fmt::Debug for Neighbourly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbourly").finish_non_exhaustive()
    }
}
