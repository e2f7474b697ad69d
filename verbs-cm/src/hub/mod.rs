//! The connection manager of a device's port at work: the state machine, attached to the port's service
//! for management datagrams.
//!
//! There is one for each port, shared by all its users; it goes with the last of them. Its [driver] runs the machine;
//! modifies are issued and users told in `told`.

pub(crate) mod handler;
mod ports;
pub(crate) mod shared;
mod told;

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};

use verbs_core::device::DeviceCore;
use verbs_core::mad::sa::PathRecord;
use verbs_core::mad::{MadService, PortInfo};
use verbs_core::seed::Draws;
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak};
use verbs_core::time::Instant;
use verbs_core::{Device, PKey, PortCaps, Seed, Timer, TransportType, task};

use crate::config::{Config, Watch};
use crate::error::Error;
use crate::event::{ConnId, ListenId, ResolveId};
use crate::hub::handler::{ConnHandler, Handler};
use crate::params::{Port, Route};
use crate::resolver::{Cached, Hop, Host, Resolver};
use crate::sa::{PathCache, SaClient, SaError};
use crate::table::driver::{self, Attached, Driver, port_of};

pub(crate) use ports::Ports;
pub use shared::HostClaim;
pub use told::Modify;

/// The connection manager of one port.
pub(crate) struct Hub {
    driver: Driver<Self>,
    service: MadService,
    resolver: Mutex<Arc<dyn Resolver>>,
    /// Paths through the subnet, once one was asked for.
    paths: Mutex<Option<PathCache>>,
    /// Takes the modifies, instead of having them issued here.
    modifier: OnceLock<Arc<Modifier>>,
}

/// Takes modifies; see [`Modify`].
pub type Modifier = dyn Fn(Modify) + Send + Sync;

/// What the lock guards.
pub(crate) type Inner = driver::Inner<Hub>;

/// What it guards beside the machine.
pub(crate) struct Kept {
    pub(crate) conns: BTreeMap<ConnId, Weak<dyn ConnHandler>>,
    pub(crate) listeners: BTreeMap<ListenId, Weak<dyn Handler>>,
    pub(crate) resolutions: BTreeMap<ResolveId, Arc<dyn Handler>>,
    pub(crate) ports: Ports,
    /// By the number of the queue pair: for events about it.
    pub(crate) by_qpn: BTreeMap<u32, ConnId>,
}

impl Hub {
    /// The connection manager of that port, opened if need be.
    pub(crate) fn of(
        device: &Device,
        port: u8,
    ) -> impl Future<Output = Result<Arc<Self>, Error>> + Send + use<> {
        let service = MadService::of(device, port);
        let core = Arc::clone(device.target());
        async move {
            let service = service.await?;
            let hub = core.service(
                |hub: &Self| hub.service.port().number == port,
                || Self::new(service.clone(), &core),
            );
            match hub.driver.attached().refused() {
                None => Ok(hub),
                Some(error) => Err(Error::Service(error)),
            }
        }
    }

    fn new(service: MadService, device: &Arc<DeviceCore>) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let attached = Attached::to(service.clone(), device, Weak::clone(weak));
            let number = attached.number();
            // Decides where the search for free ports begins: differs from run to run, from port to port, and from
            // one manager of a port to the next.
            let seed = service.now().as_nanos()
                ^ service.port().device.node_guid.0.rotate_left(32)
                ^ u64::from(number) << 40;
            // A simulated device, whose runs repeat, says a number. Mixed, so that the draws are not the device's own.
            let simulated = device.provider_of().seed();
            let drawn = simulated.map_or_else(Seed::from_system, |number| {
                Seed::from(Draws::new(!number ^ seed).draw())
            });
            // In a simulation nobody dies unless it says so, and an idle connection stays idle.
            let config = Config {
                watch: simulated.is_none().then(Watch::default),
                ..Config::default()
            };
            let kept = Kept {
                conns: BTreeMap::new(),
                listeners: BTreeMap::new(),
                resolutions: BTreeMap::new(),
                ports: Ports::new(seed),
                by_qpn: BTreeMap::new(),
            };
            Self {
                driver: attached.drive(config, drawn, kept),
                service,
                resolver: Mutex::new(Arc::new(Cached::new(Host))),
                paths: Mutex::new(None),
                modifier: OnceLock::new(),
            }
        })
    }

    /// What is known of the port.
    pub(crate) fn port(&self) -> Arc<PortInfo> {
        self.service.port()
    }

    /// The port as the state machine sees it.
    pub(crate) fn own_port(&self) -> Port {
        port_of(&self.port())
    }

    /// The device's, if it has one.
    pub(crate) fn timer(&self) -> Option<&Arc<dyn Timer>> {
        self.service.timer()
    }

    /// Ends when the messages so far have left.
    pub(crate) fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.service.drained()
    }

    /// Ends all connections; ends when they have.
    pub(crate) async fn disconnect_all(self: &Arc<Self>) {
        let endpoints: Vec<_> = self.with(|inner, now| {
            inner.cm.disconnect_all(now);
            let conns = inner.kept.conns.values();
            conns.filter_map(Weak::upgrade).collect()
        });
        for endpoint in endpoints {
            poll_fn(|cx| endpoint.poll_over(cx)).await;
        }
        self.drained().await;
    }

    pub(crate) fn resolver(&self) -> Arc<dyn Resolver> {
        Arc::clone(&self.resolver.lock())
    }

    /// Takes another resolver for all steps from now on.
    pub(crate) fn set_resolver(&self, resolver: Arc<dyn Resolver>) {
        let old = std::mem::replace(&mut *self.resolver.lock(), resolver);
        // A destructor of the client's, run under no lock.
        drop(old);
    }

    /// Has all modifies taken by another part, once and for all.
    pub(crate) fn modify_by(&self, modifier: Arc<Modifier>) {
        // The first one stays.
        let _ = self.modifier.set(modifier);
    }

    /// Calls the state machine, and handles what follows.
    pub(crate) fn with<R>(self: &Arc<Self>, call: impl FnOnce(&mut Inner, Instant) -> R) -> R {
        driver::with(self, call)
    }

    /// Looks at the state machine, and has nothing follow. Legal where a routine runs.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Inner) -> R) -> R {
        self.driver.look(look)
    }

    /// A modify has ended, which is an input of the machine.
    pub(crate) fn modified(self: &Arc<Self>, conn: ConnId, result: Result<(), verbs_core::Error>) {
        self.with(|inner, now| inner.cm.qp_modified(now, conn, result));
    }

    /// A path along that way to an address: what the subnet's administrator says, where the port has one.
    pub(crate) async fn route(&self, remote: IpAddr, hop: &Hop) -> Result<Route, Error> {
        let info = self.port();
        let port = port_of(&info);
        let gone = Error::AddressNotAvailable(hop.local);
        let provider = self.service.device().provider_of();
        let attr = provider.query_provider(info.number);
        if attr.caps.contains(PortCaps::SA) {
            match self.path(hop).await {
                // The default partition is the first of the table.
                Ok(record) => return Route::from_record(&port, &record, 0).ok_or(gone),
                Err(Error::Sa(SaError::NoAdministrator(_))) if hop.remote_lid.is_some() => {}
                Err(Error::Sa(SaError::Refused(_))) => return Err(Error::NoRoute(remote)),
                Err(error) => return Err(error),
            }
        }
        let mut route = Route::roce(&port, hop.local_gid, hop.remote_gid).ok_or(gone)?;
        route.mtu = hop.mtu.map_or(route.mtu, |mtu| mtu.min(route.mtu));
        if attr.transport == TransportType::InfiniBand
            && let Some(lid) = hop.remote_lid
        {
            route.av.dlid = lid;
        }
        Ok(route)
    }

    /// What the administrator says of a way. It is kept until the port, the manager or the peer changes.
    async fn path(&self, hop: &Hop) -> Result<PathRecord, Error> {
        let known = self.paths.lock().clone();
        let paths = match known {
            Some(paths) => paths,
            None => {
                let client = SaClient::over(self.service.clone()).await?;
                let paths = PathCache::new(&client);
                let watched = paths.clone();
                task::detach(async move {
                    // Without it a peer that has gone is noticed when it does not answer.
                    let _unwatched = watched.watch().await;
                });
                self.paths.lock().get_or_insert(paths).clone()
            }
        };
        let path = paths.path(hop.local_gid, hop.remote_gid, PKey::DEFAULT);
        path.await
    }

    /// What is kept.
    pub(crate) fn counts(&self) -> Counts {
        self.look(|inner| Counts {
            connections: inner.cm.len(),
            handles: inner.kept.conns.len(),
            ports: inner.kept.ports.len(),
        })
    }

    /// Whether the address is the port's; the unspecified one stands for all of them.
    pub(crate) fn check_local(&self, addr: SocketAddr) -> Result<(), Error> {
        let ip = addr.ip();
        if ip.is_unspecified() || self.resolver().is_local(ip, &self.port()) {
            return Ok(());
        }
        Err(Error::AddressNotAvailable(ip))
    }
}

/// What a manager keeps; nothing where the provider makes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Connections in any state, and resolutions.
    pub connections: usize,
    /// Connections that have a handle.
    pub handles: usize,
    /// Port numbers that are taken.
    pub ports: usize,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}
