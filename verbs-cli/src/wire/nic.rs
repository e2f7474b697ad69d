//! Devices of the system's RDMA NICs.

use std::net::{IpAddr, Ipv6Addr};

use hca_rdma::{Nic, RdmaCore};
use verbs_core::sync::{Arc, Mutex};

use super::args::NicName;
use super::{Network, Opened, PORT, Wire, WireError};

/// Stands for an entry of the GID table that nothing can be sent from.
const NONE: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// A NIC of this host. It has the addresses that its interface has, and is shared with all other programs.
#[derive(Debug)]
pub(crate) struct NicNetwork {
    name: String,
    /// Opened once.
    nic: Mutex<Option<Arc<Nic>>>,
}

impl NicNetwork {
    pub(crate) fn new(NicName(name): NicName) -> Self {
        let nic = Mutex::new(None);
        Self { name, nic }
    }

    fn nic(&self) -> Result<Arc<Nic>, WireError> {
        let mut nic = self.nic.lock();
        if let Some(nic) = &*nic {
            return Ok(Arc::clone(nic));
        }
        let opened = RdmaCore::load().and_then(|rdma| rdma.open(&self.name));
        Ok(Arc::clone(nic.insert(opened.map_err(WireError::Nic)?)))
    }
}

impl Network for NicNetwork {
    /// The NIC has its addresses already; those that are named must be among them, and are preferred.
    fn attach(&self, addresses: &[IpAddr]) -> Result<Wire, WireError> {
        let wire = self.attach_all()?;
        let present = wire.addresses();
        // Where a connection came from may be another interface: the NIC is named, and what it has counts.
        match addresses.iter().find(|address| present.contains(address)) {
            None if addresses.len() > 1 => Err(WireError::NotThere {
                name: self.name.clone(),
                address: addresses[0],
            }),
            _ => Ok(wire),
        }
    }

    fn attach_all(&self) -> Result<Wire, WireError> {
        let nic = self.nic()?;
        let gids = nic.gids(PORT).map_err(|error| WireError::Port {
            name: self.name.clone(),
            error,
        })?;
        let mut addresses = Vec::new();
        for (index, gid) in gids {
            addresses.resize(usize::from(index), NONE);
            addresses.push(gid.into());
        }
        Ok(Wire {
            opened: Opened::Nic(nic),
            addresses,
            capture: None,
        })
    }
}

/// Whether something can be sent from an entry of the GID table.
pub(super) fn is_there(address: IpAddr) -> bool {
    address != NONE
}
