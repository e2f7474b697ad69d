//! Devices at a node of a subnet that `verbs subnet` hosts.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hca_sim::link::fabric::RemotePort;
use hca_sim::link::pcap::LinkType;

use super::wrap::Wrapping;
use super::{Network, Opened, Wire, WireError, show};

/// A port of a node. Its addresses are what the program says; an interface of IP over InfiniBand makes them known.
#[derive(Debug)]
pub(crate) struct SubnetNode<'a> {
    /// The socket that the subnet is hosted at.
    pub(crate) path: PathBuf,
    pub(crate) node: &'a str,
    pub(crate) port: u8,
    pub(crate) pcap: Option<&'a Path>,
}

impl Network for SubnetNode<'_> {
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError> {
        let link = RemotePort::attach(&self.path, self.node, self.port);
        let link = link.map_err(WireError::Subnet)?;
        let wrapping = Wrapping {
            pcap: self.pcap,
            ..Wrapping::default()
        };
        let name = format!("{}:{}", self.node, self.port);
        let (builder, capture) = wrapping.over(link, &name, LinkType::InfiniBand)?;
        let hca = builder.build();
        let told = addresses.iter().map(ToString::to_string).collect();
        Ok(Wire {
            published: show(&hca, told),
            opened: Opened::Software(hca),
            addresses: addresses.to_vec(),
            capture,
        })
    }

    /// A node has the addresses that it is given, and no others.
    fn attach_all(&self) -> Result<Wire, WireError> {
        self.attach(&[])
    }
}
