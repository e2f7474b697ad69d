//! `verbs rds`: reliable datagrams (RDS 3.1), as with the programs rds-ping, rds-stress and rds-info.

mod args;
mod error;
mod info;
mod message;
mod ping;
mod report;
mod stress;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use futures::executor::block_on;
use ulp_rds::{Config, Node};
use verbs_core::Device;
use verbs_core::sync::Arc;

use crate::wire::{Network, Roce, Wire, with};

use self::args::RdsCommand;
pub(crate) use self::args::{ABOUT, EXAMPLES, RdsArgs};
pub(crate) use self::error::RdsError;

/// Runs the command, printing as it goes. Blocks until it is done.
pub(crate) fn run(args: &RdsArgs, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
    match &args.command {
        RdsCommand::Ping(args) => ping::run(args, &Roce::new(&args.wire), out),
        RdsCommand::Stress(args) => stress::run(args, &Roce::new(&args.wire), out),
        RdsCommand::Info(args) => info::run(args, out),
    }
}

/// RDS on an address of this host.
pub(super) struct Host {
    pub(super) wire: Wire,
    pub(super) device: Arc<Device>,
    pub(super) node: Node,
    pub(super) local: IpAddr,
}

impl Host {
    /// On the address that was named, or one from which the peer is reached.
    pub(super) fn towards(
        network: &dyn Network,
        named: Option<IpAddr>,
        bind: &[IpAddr],
        peer: IpAddr,
    ) -> Result<Self, RdsError> {
        let wire = Wire::open_for(network, bind, named, SocketAddr::new(peer, 0))?;
        Self::open(wire, named, peer)
    }

    /// On that address.
    pub(super) fn at(
        network: &dyn Network,
        local: IpAddr,
        bind: &[IpAddr],
    ) -> Result<Self, RdsError> {
        let wire = network.attach(&with(bind, Some(local)))?;
        Self::open(wire, Some(local), local)
    }

    fn open(wire: Wire, named: Option<IpAddr>, peer: IpAddr) -> Result<Self, RdsError> {
        let fits = |address: &&IpAddr| address.is_ipv4() == peer.is_ipv4();
        let local = named.or_else(|| wire.addresses().iter().find(fits).copied());
        let local = local.ok_or(RdsError::NoAddress(peer))?;
        let device = block_on(wire.device()).map_err(RdsError::verb("open the device"))?;
        let device = Arc::new(device);
        let config = Config::new(wire.addresses().iter().copied());
        let node = block_on(Node::open(&device, config))?;
        Ok(Self {
            wire,
            device,
            node,
            local,
        })
    }
}
