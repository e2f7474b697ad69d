//! `verbs rds`: reliable datagrams (RDS 3.1), as with the programs rds-ping, rds-stress and rds-info.

mod args;
mod error;
mod info;
mod message;
mod neighbours;
mod ping;
mod report;
mod stress;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use futures::executor::block_on;
use ulp_rds::{Config, Node};
use verbs_core::Device;
use verbs_core::sync::Arc;

use crate::net::sends_from;
use crate::wire::{Network, Wire, WireError, with};

pub(crate) use self::args::{ABOUT, EXAMPLES, RdsArgs};
use self::args::{NetArgs, RdsCommand};
pub(crate) use self::error::RdsError;
use self::neighbours::Neighbours;

/// Runs the command, printing as it goes. Blocks until it is done.
pub(crate) fn run(args: &RdsArgs, out: &mut (dyn Write + Send)) -> Result<(), RdsError> {
    match &args.command {
        RdsCommand::Ping(args) => ping::run(args, out),
        RdsCommand::Stress(args) => stress::run(args, out),
        RdsCommand::Info(args) => info::run(args, out),
    }
}

/// RDS on an address of this host.
pub(super) struct Host {
    pub(super) node: Node,
    pub(super) local: IpAddr,
    /// Finds peers of a hosted subnet as long as it is kept.
    _neighbours: Option<Neighbours>,
    pub(super) device: Arc<Device>,
    pub(super) wire: Wire,
}

impl Host {
    /// On the address that was named, or one from which the peer is reached.
    pub(super) fn towards(
        net: &NetArgs,
        named: Option<IpAddr>,
        peer: IpAddr,
    ) -> Result<Self, RdsError> {
        let network = net.network();
        let is_named = named.is_some() || !net.wire.bind.is_empty();
        if !is_named && net.node.is_some() {
            return Err(RdsError::NoAddress(peer));
        }
        if !is_named && network.shares_addresses() {
            return Self::beside(net, &*network, peer);
        }
        let (bind, to) = (&net.wire.bind, SocketAddr::new(peer, 0));
        let wire = Wire::open_for(&*network, bind, named, to)?;
        Self::open(net, wire, named, peer)
    }

    /// On that address.
    pub(super) fn at(net: &NetArgs, local: IpAddr) -> Result<Self, RdsError> {
        let wire = net.network().attach(&with(&net.wire.bind, Some(local)))?;
        Self::open(net, wire, Some(local), local)
    }

    /// Where programs share addresses, one of them has the port of RDS: towards a peer on this host another address is
    /// taken, the first at which the port is free.
    fn beside(net: &NetArgs, network: &dyn Network, peer: IpAddr) -> Result<Self, RdsError> {
        let local = sends_from(SocketAddr::new(peer, 0)).map_err(WireError::Way)?;
        let beside = Wire::beside(local, peer)?;
        let mut taken = None;
        for address in beside {
            match Self::open(net, network.attach(&[address])?, Some(address), peer) {
                Err(RdsError::Rds(ulp_rds::Error::Cm(verbs_cm::Error::AddressInUse(at)))) => {
                    taken = Some(at);
                }
                result => return result,
            }
        }
        let at = taken.unwrap_or(SocketAddr::new(local, 0));
        Err(ulp_rds::Error::from(verbs_cm::Error::AddressInUse(at)).into())
    }

    fn open(
        net: &NetArgs,
        wire: Wire,
        named: Option<IpAddr>,
        peer: IpAddr,
    ) -> Result<Self, RdsError> {
        let addresses = || wire.ip_addresses();
        let fits = |address: &IpAddr| address.is_ipv4() == peer.is_ipv4();
        let local = named.or_else(|| addresses().find(fits));
        let local = local.ok_or(RdsError::NoAddress(peer))?;
        let device = block_on(wire.device()).map_err(RdsError::verb("open the device"))?;
        let device = Arc::new(device);
        let neighbours = match &net.node {
            Some(_) => Some(block_on(Neighbours::up(&device, addresses()))?),
            None => None,
        };
        let config = Config::new(addresses());
        let node = block_on(Node::open(&device, config))?;
        Ok(Self {
            node,
            local,
            _neighbours: neighbours,
            device,
            wire,
        })
    }
}
