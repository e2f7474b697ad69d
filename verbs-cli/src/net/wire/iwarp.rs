//! Devices over TCP: iWARP.

use std::net::IpAddr;

use hca_sim::{Hca, Tcp};

use super::{Network, Opened, Wire, WireArgs, WireError, show};

/// iWARP over the TCP of this host. Programs share addresses, as they do with TCP; ports are what they take.
#[derive(Debug)]
pub(crate) struct Iwarp<'a> {
    args: &'a WireArgs,
}

impl<'a> Iwarp<'a> {
    pub(crate) fn new(args: &'a WireArgs) -> Self {
        Self { args }
    }

    /// What is done with packets cannot be done here.
    fn check(&self) -> Result<(), WireError> {
        let given = [
            (self.args.pcap.is_some(), "--pcap"),
            (self.args.loss.is_some(), "--loss"),
            (self.args.dcqcn.is_some(), "--dcqcn"),
        ];
        match given.iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => Err(WireError::NotWithStreams(option)),
            None => Ok(()),
        }
    }

    fn wire(&self, mut link: Tcp, addresses: &[IpAddr]) -> Wire {
        if self.args.port_mapper {
            link = link.with_port_mapper();
        }
        let hca = Hca::over_streams(link).build();
        let told = addresses.iter().map(ToString::to_string).collect();
        Wire {
            published: show(&hca, told),
            opened: Opened::Software(hca),
            addresses: addresses.to_vec(),
            capture: None,
        }
    }
}

impl Network for Iwarp<'_> {
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError> {
        self.check()?;
        let link = Tcp::on(addresses).map_err(WireError::Tcp)?;
        Ok(self.wire(link, addresses))
    }

    fn attach_all(&self) -> Result<Wire, WireError> {
        self.check()?;
        let link = Tcp::on_interfaces().map_err(WireError::Tcp)?;
        Ok(self.wire(link, &[]))
    }

    fn shares_addresses(&self) -> bool {
        true
    }

    fn is_over_streams(&self) -> bool {
        true
    }
}
