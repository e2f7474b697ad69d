//! From an address to a device: which of several reaches it, by which port and from which address.

use std::net::{IpAddr, SocketAddr};

use verbs_core::caps::PortState;
use verbs_core::mad::PortInfo;
use verbs_core::sync::Arc;
use verbs_core::{Device, ProviderAttr, Qp};

use crate::connect::Connecting;
use crate::error::Error;
use crate::info::is_offloaded;
use crate::manager::{Manager, Way};
use crate::resolver::{Address, Hop, Host, Query, Resolver, has_addresses};

/// Who is to carry a connection: it is the user's choice, and made with the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Either, by the order of the devices.
    #[default]
    Either,
    /// Software within the host's network stack, with what the host does for ordinary connections ([`HostServices`](crate::HostServices)).
    Never,
    /// An adapter, past it.
    Only,
}

impl Offload {
    /// Whether a port with those attributes does.
    fn admits(self, port: &ProviderAttr) -> bool {
        match self {
            Self::Either => true,
            Self::Never => !is_offloaded(port),
            Self::Only => is_offloaded(port),
        }
    }

    /// What there is to say if no port does.
    fn error(self) -> Error {
        match self {
            Self::Only => Error::NoAdapter,
            Self::Either | Self::Never => Error::NoSoftware,
        }
    }
}

/// What [`resolve_addr`] has chosen.
#[derive(Clone, Debug)]
pub struct ResolvedAddr<'d> {
    /// The device.
    pub device: &'d Device,
    /// Its port.
    pub port: u8,
    /// The peer to reach: the address that was asked for, with a name looked up.
    pub remote: SocketAddr,
    /// The way there, with the source address.
    pub hop: Hop,
    manager: Manager,
}

impl ResolvedAddr<'_> {
    /// The connection manager of the port.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Connects a queue pair of the device, from the source address that was chosen.
    pub fn connect(&self, qp: Qp) -> Connecting {
        let local = SocketAddr::new(self.hop.local, 0);
        self.manager.connect(self.remote, qp).bind(local)
    }
}

/// Chooses of several devices the one that reaches an address, with its port and its source address, as
/// `rdma_resolve_addr` does: one lookup for InfiniBand, RoCE and iWARP.
///
/// With `local` it is the device that has that address. Without, it is the one that has the address from which the
/// host would send; where none has that, the first of the list that has a way. Of several devices with one
/// address, the first of the list is chosen. Ports that are not active, and devices that make no connections, are
/// left out, and so is an adapter for RDMA over TCP whose GID is a MAC address, as it does not say which addresses it
/// has. Each port is asked by the resolver of its manager ([`Manager::use_resolver`]); those of ports on simulated
/// networks answer for those.
///
/// ```no_run
/// # async fn example(roce: verbs_core::Device, iwarp: verbs_core::Device, pd: verbs_core::Pd, cq: verbs_core::Cq)
/// # -> Result<(), verbs_cm::Error> {
/// let devices = [roce, iwarp];
/// let chosen = verbs_cm::resolver::resolve_addr(&devices, "10.0.0.2:7174", None).await?;
/// println!("{} from {}", chosen.device.query().await?.name, chosen.hop.local);
/// let qp = pd.create_qp(verbs_core::QpInit::rc(&cq, &cq)).await?;
/// let connection = chosen.connect(qp).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::NoAddress`] for a name that no resolver has; [`Error::AddressNotAvailable`] for a source address that
/// no device has; [`Error::NoRoute`]; [`Error::NoManager`] if no device makes connections. Errors of a port count only
/// when no other port has a way.
///
/// # Cancel safety
/// A future that is dropped has changed nothing, but that managers may have been opened.
pub async fn resolve_addr(
    devices: &[Device],
    remote: impl Into<Address>,
    local: Option<IpAddr>,
) -> Result<ResolvedAddr<'_>, Error> {
    resolve_addr_by(devices, remote, local, Offload::Either).await
}

/// As [`resolve_addr`], among the devices that carry connections as the user wants. A program that shares one address between a
/// software device and an adapter chooses by this, for each connection.
///
/// ```no_run
/// # async fn example(devices: &[verbs_core::Device]) -> Result<(), verbs_cm::Error> {
/// use verbs_cm::resolver::{Offload, resolve_addr_by};
///
/// // One that packet filters see.
/// let chosen = resolve_addr_by(devices, "10.0.0.2:7174", None, Offload::Never).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As there; [`Error::NoAdapter`] and [`Error::NoSoftware`] if no device carries connections in that way.
///
/// # Cancel safety
/// As there.
pub async fn resolve_addr_by(
    devices: &[Device],
    remote: impl Into<Address>,
    local: Option<IpAddr>,
    offload: Offload,
) -> Result<ResolvedAddr<'_>, Error> {
    let remote = remote.into();
    let local = local.filter(|local| !local.is_unspecified());
    let mut found: Option<ResolvedAddr<'_>> = None;
    let mut failed = None;
    for device in devices {
        let ports = device.query().await.map_or(0, |attr| attr.phys_port_cnt);
        for port in 1..=ports {
            if !offload.admits(&device.query_provider(port)) {
                failed = Some(worse(failed, offload.error()));
                continue;
            }
            match on_port(device, port, &remote, local).await {
                Ok(way) if local.is_some() || is_preferred(&way) => return Ok(way),
                Ok(way) => found = found.or(Some(way)),
                Err(error) => failed = Some(worse(failed, error)),
            }
        }
    }
    found.ok_or_else(|| failed.unwrap_or(Error::NoManager(1)))
}

/// The way from one port of a device.
async fn on_port<'d>(
    device: &'d Device,
    port: u8,
    remote: &Address,
    local: Option<IpAddr>,
) -> Result<ResolvedAddr<'d>, Error> {
    let manager = Manager::of_port(device, port);
    let (info, resolver) = match manager.way().await? {
        Way::Messages(hub) => (hub.port(), hub.resolver()),
        Way::Verbs(provided) => (provided.info().await?, provided.resolver()),
    };
    let remote = remote.lookup(&*resolver)?;
    let hop = hop(info, &*resolver, remote.ip(), local).await?;
    Ok(ResolvedAddr {
        device,
        port,
        remote,
        hop,
        manager,
    })
}

async fn hop(
    port: Arc<PortInfo>,
    resolver: &dyn Resolver,
    remote: IpAddr,
    local: Option<IpAddr>,
) -> Result<Hop, Error> {
    if port.port.state != PortState::Active || !has_addresses(&port, remote) {
        return Err(Error::NoRoute(remote));
    }
    if let Some(local) = local
        && !resolver.is_local(local, &port)
    {
        return Err(Error::AddressNotAvailable(local));
    }
    let query = Query {
        remote,
        local,
        port,
    };
    resolver.resolve(query).await
}

/// Whether the host would send from there.
fn is_preferred(way: &ResolvedAddr<'_>) -> bool {
    Host::preferred(way.remote.ip()) == Some(way.hop.local)
}

/// The one of two errors that says more: that of a port which has the address, or knows the name.
fn worse(one: Option<Error>, other: Error) -> Error {
    let weight = |error: &Error| match error {
        Error::NoManager(_) => 0,
        Error::NoAdapter | Error::NoSoftware => 1,
        Error::NoAddress(_) => 2,
        Error::AddressNotAvailable(_) => 3,
        _ => 4,
    };
    match one {
        Some(one) if weight(&one) >= weight(&other) => one,
        _ => other,
    }
}
