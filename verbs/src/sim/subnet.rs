//! A subnet of one switch, for hosts of one process.

use std::fmt;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use hca_sim::Hca;
use hca_sim::link::PacketLink;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Attr, Device, Error};
use verbs_sm::{Config, Manager, StartError};

/// Hosts that it has room for.
const HOSTS: u8 = 7;

/// The manager, which has the first port of the switch to itself.
struct Managed {
    _manager: Manager,
    _device: Device,
}

/// See the module's documentation.
pub(super) struct OneSwitch {
    subnet: SharedSubnet,
    /// Ports of hosts that are not there yet.
    free: Mutex<Vec<PortRef>>,
    /// The first task that awaits it starts the manager.
    manager: Shared<BoxFuture<'static, Result<Arc<Managed>, Error>>>,
}

impl OneSwitch {
    pub(super) fn new() -> Arc<Self> {
        let topology = Topology::parse(&text()).unwrap_or_default();
        let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
        let port = |host: u8| {
            let node = topology.find(&format!("Host{host}"))?;
            Some(PortRef { node, port: 1 })
        };
        let at = port(0);
        let manages = subnet.clone();
        let manager = async move { manage(&manages, at).await };
        Arc::new(Self {
            subnet,
            free: Mutex::new((1..=HOSTS).rev().filter_map(port).collect()),
            manager: manager.boxed().shared(),
        })
    }

    /// Waits until the subnet is in service.
    pub(super) async fn up(&self) -> Result<(), Error> {
        self.manager.clone().await.map(drop)
    }

    /// A port for another host.
    pub(super) fn port(&self) -> Result<impl PacketLink + use<>, Error> {
        let full = Error::Exhausted {
            attr: Attr::Port,
            max: u32::from(HOSTS),
        };
        let at = self.free.lock().pop().ok_or(full)?;
        self.subnet.attach(at, u64::from(at.port)).ok_or(full)
    }
}

async fn manage(subnet: &SharedSubnet, at: Option<PortRef>) -> Result<Arc<Managed>, Error> {
    let port = at.and_then(|at| subnet.attach(at, 0));
    let device = Hca::over(port.ok_or(Error::DeviceFailed)?).open().await?;
    let started = Manager::start(&device, 1, Config::default()).await;
    let manager = started.map_err(|error| match error {
        StartError::Verb(error) => error,
        _ => Error::DeviceFailed,
    })?;
    manager.up().await;
    Ok(Arc::new(Managed {
        _manager: manager,
        _device: device,
    }))
}

/// The subnet, as `ibsim` writes it: the manager's host and the others at one switch.
fn text() -> String {
    let ports = HOSTS + 1;
    let mut text = format!("Switch {ports} \"Switch\"\n");
    for host in 0..ports {
        text += &format!("[{}] \"Host{host}\"[1]\n", host + 1);
    }
    for host in 0..ports {
        text += &format!("\nHca 1 \"Host{host}\"\n[1] \"Switch\"[{}]\n", host + 1);
    }
    text
}

impl fmt::Debug for OneSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneSwitch")
            .field("free", &self.free.lock().len())
            .finish_non_exhaustive()
    }
}
