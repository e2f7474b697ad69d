//! Devices at a node of a subnet that `verbs subnet` hosts.

use std::net::IpAddr;
use std::path::PathBuf;

use hca_sim::Hca;

use super::{Network, Opened, Wire, WireError, show};

/// A port of a node. Its addresses are what the program says; an interface of IP over InfiniBand makes them known.
#[derive(Debug)]
pub(crate) struct SubnetNode<'a> {
    /// The socket that the subnet is hosted at.
    pub(crate) path: PathBuf,
    pub(crate) node: &'a str,
    pub(crate) port: u8,
}

impl Network for SubnetNode<'_> {
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError> {
        let hca = Hca::subnet(&self.path, self.node, self.port);
        let hca = hca.map_err(WireError::Subnet)?.build();
        let told = addresses.iter().map(ToString::to_string).collect();
        Ok(Wire {
            published: show(&hca, told),
            opened: Opened::Software(hca),
            addresses: addresses.to_vec(),
            capture: None,
        })
    }

    /// A node has the addresses that it is given, and no others.
    fn attach_all(&self) -> Result<Wire, WireError> {
        self.attach(&[])
    }
}
