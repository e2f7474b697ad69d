//! Devices of the system's RDMA NICs.

use std::net::{IpAddr, Ipv6Addr};

use hca_rdma::Nic;
use verbs_core::sync::{Arc, Mutex};

use super::args::NicName;
use super::{Network, Opened, PORT, Wire, WireError};

/// Stands for an entry of the GID table that nothing can be sent from.
const NONE: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// A NIC of this host. It has the addresses that its interface has, and is shared with all other programs.
#[derive(Debug)]
pub(crate) struct NicNetwork {
    name: NicName,
    /// The addresses that the user named, which it must have.
    named: Vec<IpAddr>,
    /// Opened once.
    nic: Mutex<Option<Arc<Nic>>>,
}

impl NicNetwork {
    pub(crate) fn new(name: NicName, named: &[IpAddr]) -> Self {
        let (named, nic) = (named.to_vec(), Mutex::new(None));
        Self { name, named, nic }
    }

    fn nic(&self) -> Result<Arc<Nic>, WireError> {
        let mut nic = self.nic.lock();
        if let Some(nic) = &*nic {
            return Ok(Arc::clone(nic));
        }
        let opened = self.name.open().map_err(WireError::Nic)?;
        Ok(Arc::clone(nic.insert(opened)))
    }
}

impl Network for NicNetwork {
    /// The NIC has its addresses already. Those that a connection has may be another interface's: the NIC was named.
    fn attach(&self, _addresses: &[IpAddr]) -> Result<Wire, WireError> {
        self.attach_all()
    }

    fn attach_all(&self) -> Result<Wire, WireError> {
        let nic = self.nic()?;
        let gids = nic.gids(PORT).map_err(|error| WireError::Port {
            name: self.name.0.clone(),
            error,
        })?;
        let mut addresses = Vec::new();
        for (index, gid) in gids {
            addresses.resize(usize::from(index), NONE);
            addresses.push(gid.into());
        }
        if let Some(&address) = self.named.iter().find(|named| !addresses.contains(named)) {
            let name = self.name.0.clone();
            return Err(WireError::NotThere { name, address });
        }
        Ok(Wire {
            opened: Opened::Nic(nic),
            addresses,
            capture: None,
            published: None,
        })
    }

    fn check(&self) -> Result<(), WireError> {
        self.attach_all().map(drop)
    }
}

/// Whether something can be sent from an entry of the GID table.
pub(super) fn is_there(address: IpAddr) -> bool {
    address != NONE
}
