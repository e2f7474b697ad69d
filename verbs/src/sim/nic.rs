//! A network on one RDMA NIC: all hosts of the process share it.

use std::fmt;
use std::net::IpAddr;

use hca_rdma::{Nic, OpenError, RdmaCore};
use verbs_core::filter::Rename;
use verbs_core::provider::Provider;
use verbs_core::sync::Arc;
use verbs_core::{Gid, Lid};

use super::Hosts;

/// The NIC's port on which hosts are.
const PORT: u8 = 1;

/// The NIC, for hosts whose addresses are the program's choice. A connection to or from one of these addresses is one to
/// or from the NIC's own.
pub(super) struct OneNic {
    nic: Arc<Nic>,
    address: IpAddr,
    gid: Gid,
    hosts: Arc<Hosts>,
}

impl OneNic {
    pub(super) fn open(name: &str, hosts: &Arc<Hosts>) -> Result<Arc<Self>, OpenError> {
        let nic = RdmaCore::load()?.open(name)?;
        let gids = nic.gids(PORT).unwrap_or_default();
        let mut all = gids.iter().map(|&(_, gid)| (IpAddr::from(gid), gid));
        let first = all.clone().next();
        // A NIC without addresses makes no connections by address, and says so then.
        let unspecified = (IpAddr::from(Gid::default()), Gid::default());
        let (address, gid) = all
            .find(|(address, _)| address.is_ipv4())
            .or(first)
            .unwrap_or(unspecified);
        let hosts = Arc::clone(hosts);
        Ok(Arc::new(Self {
            nic,
            address,
            gid,
            hosts,
        }))
    }

    /// A host has that address from now on.
    pub(super) fn add(&self, address: IpAddr) {
        for address in [address, self.address] {
            self.hosts.add(address, self.gid, Lid::default());
        }
    }

    /// What devices are opened on.
    pub(super) fn provider(self: &Arc<Self>) -> Arc<dyn Provider> {
        let this = Arc::clone(self);
        Arc::new(Rename::new(Arc::clone(&self.nic) as _, move |address| {
            if this.hosts.has(address.ip()) {
                address.set_ip(this.address);
            }
        }))
    }
}

impl fmt::Debug for OneNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nic.fmt(f)
    }
}
