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
//!     let accepted = async { Ok(listener.accept().await) };
//!     let asked = client.connect("10.0.0.1:7471").into_future();
//!     let (a, b) = futures::try_join!(asked, accepted)?;
//!     a.close().await?;
//!     assert!(b.recv().await?.is_none());
//!     Ok(())
//! })
//! # }
//! ```
//!
//! With feature `simulator`, a `Sim` runs such programs in virtual time, over a network with faults that a seed decides: see the example
//! `faults_in_ci`.

#[cfg(feature = "rdma")]
mod nic;
#[cfg(feature = "subnet")]
mod subnet;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::{fmt, io};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use verbs_cm::resolver::{Hop, Query, Resolver};
use verbs_core::mad::PortInfo;
use verbs_core::provider::Provider;
use verbs_core::sync::{Arc, Mutex};
#[cfg(feature = "rdma")]
use verbs_core::{Attr, Device};
use verbs_core::{Gid, Lid};
use verbs_io::{Connection, Endpoint, Error, Opening};

use hca_sim::Udp;
use hca_sim::link::LinkError;
#[cfg(feature = "subnet")]
use subnet::OneSwitch;

#[doc(no_inline)]
pub use hca_sim::link;
#[doc(no_inline)]
pub use hca_sim::{Builder, Hca, Limits, Loopback, connect};
#[cfg(feature = "simulator")]
#[doc(no_inline)]
pub use verbs_simulator::{Digest, LinkConfig, Ppm, Sim};

/// Two ends of a new connection, each on an HCA of its own, with the options of [`Endpoint::on`]'s defaults, on hosts
/// 127.0.0.1 and 127.0.0.2 of a network as [`Network::from_env`] makes it.
///
/// # Errors
/// [`Error::Verb`] when memory cannot be had; with `VERBS_NETWORK` set, also those of [`Network::host`], and
/// [`Error::Address`] for a name that is none.
pub async fn pair() -> Result<(Connection, Connection), Error> {
    let network = Network::from_env().map_err(|error| Error::address("VERBS_NETWORK", error))?;
    let [here, there] = [[127, 0, 0, 1], [127, 0, 0, 2]];
    let client = network.host(here).open().await?;
    let server = network.host(there).open().await?;
    let at = (IpAddr::from(there), 7471);
    let mut listener = server.listen(at).await?;
    let accepted = async { Ok(listener.accept().await) };
    futures::future::try_join(client.connect(at).into_future(), accepted).await
}

/// A network within the process: hosts with addresses of the program's choice, and a link without loss between them.
/// [`over`](Network::over) makes one whose messages something else carries.
///
/// Clones are the same network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    link: Arc<Loopback>,
    hosts: Arc<Hosts>,
    carrier: Carrier,
    /// Of a network that is one.
    #[cfg(feature = "subnet")]
    subnet: Option<Arc<OneSwitch>>,
    #[cfg(feature = "rdma")]
    nic: Option<Arc<nic::OneNic>>,
}

/// What carries messages between the hosts of a [`Network`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// A link within the process.
    #[default]
    Loopback,
    /// UDP, as RoCEv2.
    Roce,
    /// TCP, as iWARP.
    Iwarp,
    /// A simulated InfiniBand subnet of one switch, with its manager.
    #[cfg(feature = "subnet")]
    Subnet,
}

/// No [`Carrier`] has that name, or the NIC of that name cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCarrier {
    name: String,
    why: String,
}

impl UnknownCarrier {
    fn new(name: &str, why: impl fmt::Display) -> Self {
        let (name, why) = (name.into(), why.to_string());
        Self { name, why }
    }
}

impl fmt::Display for UnknownCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' carries no messages: {}", self.name, self.why)
    }
}

impl std::error::Error for UnknownCarrier {}

impl Carrier {
    fn named(name: &str) -> Result<Self, UnknownCarrier> {
        match name {
            "loopback" => Ok(Self::Loopback),
            "roce" => Ok(Self::Roce),
            "iwarp" => Ok(Self::Iwarp),
            #[cfg(feature = "subnet")]
            "subnet" => Ok(Self::Subnet),
            _ => Err(UnknownCarrier::new(
                name,
                "say loopback, roce, iwarp, subnet or rdma:NAME",
            )),
        }
    }
}

/// What a link over UDP says, as a verb would.
fn refused(error: LinkError) -> verbs_core::Error {
    match error {
        LinkError::InUse { .. } => verbs_core::Error::AddrInUse { port: 4791 },
        LinkError::NotOurs { .. } => verbs_core::Error::AddrNotAvailable,
        _ => verbs_core::Error::DeviceFailed,
    }
}

fn os(error: io::Error) -> verbs_core::Error {
    let errno = error.raw_os_error().unwrap_or(0);
    verbs_core::Error::Os { errno }
}

/// Which port has which address.
#[derive(Debug, Default)]
struct Hosts(Mutex<BTreeMap<IpAddr, (Gid, Lid)>>);

impl Network {
    /// A network without hosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// A network without hosts whose messages that carries. Over [`Roce`](Carrier::Roce) and [`Iwarp`](Carrier::Iwarp)
    /// addresses of hosts are those of this machine, such as 127.0.0.1 and 127.0.0.2.
    pub fn over(carrier: Carrier) -> Self {
        Self {
            carrier,
            #[cfg(feature = "subnet")]
            subnet: (carrier == Carrier::Subnet).then(OneSwitch::new),
            ..Self::default()
        }
    }

    /// A network whose hosts share the RDMA NIC of that name, such as `mlx5_0`: each is a device on it. Their addresses
    /// are names for the NIC's own, so that a port number has one listener.
    ///
    /// # Errors
    /// [`UnknownCarrier`] says what is missing.
    ///
    /// # Context
    /// Reads files and asks the kernel: not for use under NoBlock.
    #[cfg(feature = "rdma")]
    pub fn rdma(name: &str) -> Result<Self, UnknownCarrier> {
        let mut network = Self::new();
        let nic = nic::OneNic::open(name, &network.hosts);
        network.nic = Some(nic.map_err(|error| UnknownCarrier::new(name, error))?);
        Ok(network)
    }

    /// As [`over`](Network::over), with the carrier that the environment variable `VERBS_NETWORK` names: `loopback`,
    /// `roce`, `iwarp` or `subnet`; without it, the loopback link. `rdma:NAME` names an RDMA NIC (feature `rdma`). So a
    /// program runs over each of them, unchanged.
    ///
    /// # Errors
    /// [`UnknownCarrier`] for another name, or a NIC that cannot be opened.
    ///
    /// # Examples
    /// ```
    /// let network = verbs::sim::Network::from_env()?;
    /// # Ok::<(), verbs::sim::UnknownCarrier>(())
    /// ```
    pub fn from_env() -> Result<Self, UnknownCarrier> {
        let named = verbs_core::process::variable("VERBS_NETWORK");
        match named.and_then(|name| name.into_string().ok()) {
            Some(name) => Self::named(&name),
            None => Ok(Self::new()),
        }
    }

    fn named(name: &str) -> Result<Self, UnknownCarrier> {
        #[cfg(feature = "rdma")]
        if let Some(nic) = name.strip_prefix("rdma:") {
            return Self::rdma(nic);
        }
        Ok(Self::over(Carrier::named(name)?))
    }

    /// An endpoint on a host with that address, to be opened. Each has an HCA of its own. The host that was opened
    /// last has an address that several have.
    ///
    /// # Errors
    /// Of [`Opening::open`]: [`Error::Verb`], with the system's reason where that carries messages.
    pub fn host(&self, addr: impl Into<IpAddr>) -> Opening {
        let (network, addr) = (self.clone(), addr.into());
        #[cfg(feature = "rdma")]
        if let Some(nic) = &self.nic {
            let nic = Arc::clone(nic);
            let opening = Endpoint::opening(async move {
                nic.add(addr);
                Ok(Device::open(nic.provider()).await?)
            });
            return opening.resolver(Arc::<Hosts>::clone(&self.hosts));
        }
        let has_names = !matches!(self.carrier, Carrier::Roce | Carrier::Iwarp);
        if !has_names {
            return Endpoint::opening(async move { Ok(network.hca(addr)?.open().await?) });
        }
        self.attach_later(addr, async move {
            #[cfg(feature = "subnet")]
            if let Some(subnet) = &network.subnet {
                subnet.up().await?;
            }
            network.hca(addr)
        })
    }

    /// The provider of a new host, for programs that open devices themselves.
    ///
    /// # Errors
    /// As [`hca`](Network::hca).
    pub fn provider(
        &self,
        addr: impl Into<IpAddr>,
    ) -> Result<Arc<dyn Provider>, verbs_core::Error> {
        let addr = addr.into();
        #[cfg(feature = "rdma")]
        if let Some(nic) = &self.nic {
            nic.add(addr);
            return Ok(nic.provider());
        }
        Ok(self.hca(addr)?)
    }

    /// The software HCA of a new host.
    ///
    /// # Errors
    /// [`verbs_core::Error::Unsupported`] on an RDMA NIC.
    /// [`verbs_core::Error::AddrNotAvailable`] and [`verbs_core::Error::AddrInUse`] for an address over UDP that this
    /// machine does not have, or that another host has, and [`verbs_core::Error::DeviceFailed`] when the system has no
    /// sockets of the right kind; [`verbs_core::Error::Os`] over TCP; [`verbs_core::Error::Exhausted`] for more hosts
    /// than a subnet has room for, which is 7.
    pub fn hca(&self, addr: impl Into<IpAddr>) -> Result<Arc<Hca>, verbs_core::Error> {
        #[cfg(feature = "rdma")]
        if self.nic.is_some() {
            return Err(verbs_core::Error::Unsupported(Attr::Device));
        }
        let addrs = [addr.into()];
        #[cfg(feature = "subnet")]
        if let Some(subnet) = &self.subnet {
            return Ok(Hca::over(subnet.port()?).build());
        }
        let builder = match self.carrier {
            Carrier::Roce => Hca::over(Udp::bind(&addrs).map_err(refused)?),
            Carrier::Iwarp => Hca::iwarp(&addrs).map_err(os)?,
            _ => Hca::on(&self.link),
        };
        Ok(builder.build())
    }

    /// As [`host`](Network::host), on an HCA that was built with options on the network's [link](Network::link).
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, hca: Arc<Hca>, addr: impl Into<IpAddr>) -> Opening {
        self.attach_later(addr.into(), ready(Ok(hca)))
    }

    fn attach_later(
        &self,
        addr: IpAddr,
        hca: impl Future<Output = Result<Arc<Hca>, verbs_core::Error>> + Send + 'static,
    ) -> Opening {
        let hosts = Arc::clone(&self.hosts);
        let opening = Endpoint::opening(async move {
            let hca = hca.await?;
            hosts.add(addr, hca.gid(), hca.lid());
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
    fn add(&self, addr: IpAddr, gid: Gid, lid: Lid) {
        self.0.lock().insert(addr, (gid, lid));
    }

    #[cfg(feature = "rdma")]
    fn has(&self, addr: IpAddr) -> bool {
        self.0.lock().contains_key(&addr)
    }

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
            mtu: None,
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
