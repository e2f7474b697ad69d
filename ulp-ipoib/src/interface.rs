//! An interface, as programs hold it.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;

use verbs_cm::Resolver;
use verbs_core::Device;
use verbs_core::sync::Arc;

use crate::admin::Administration;
use crate::config::Config;
use crate::counters::Counters;
use crate::error::{Error, SendError};
use crate::face::{Face, LinkInfo};
use crate::link::{self, Core};
use crate::resolver::Neighbourly;
use crate::wire::HardwareAddress;

/// An IP interface on a port of a device. Dropping it gives it up: the groups are left, the connections
/// ended, the verbs objects destroyed, all without waiting.
///
/// # Context
/// Everything here but the futures is a direct call that never blocks, legal in routines and handlers.
pub struct Interface {
    core: Arc<Core>,
}

impl Interface {
    /// Makes an interface: the queue pair, the completion queue and all memory that it will need. The
    /// link comes up by itself, when the port is in service and the administrator lets it; the face is
    /// told.
    ///
    /// # Errors
    /// [`Error::Verb`] where an object cannot be made, [`Error::Unsupported`].
    pub fn new(
        device: &Arc<Device>,
        admin: Arc<dyn Administration>,
        face: Arc<dyn Face>,
        config: Config,
    ) -> impl Future<Output = Result<Self, Error>> + Send + use<> {
        let device = Arc::clone(device);
        async move {
            let core = link::open(device, admin, face, config).await?;
            Ok(Self { core })
        }
    }

    /// Sends a packet of IP: copies it to registered memory and posts it, or lets it wait for its
    /// neighbour's address, path or connection. Of one that is too long for its way the sender is told by
    /// ICMP, as from a router. Packets may get lost, as on any network.
    ///
    /// # Errors
    /// [`SendError::Full`] when no buffer is free, [`SendError::Down`], [`SendError::NotIp`].
    pub fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        self.core.send(packet)
    }

    /// Takes what is sent to a group from now on, also over changes of the link. As often as it is called,
    /// [`unsubscribe`](Self::unsubscribe) has to be.
    ///
    /// # Errors
    /// [`Error::NotGroup`], [`Error::Groups`], [`Error::Closed`].
    pub fn subscribe(&self, group: IpAddr) -> Result<(), Error> {
        self.core.subscribe(group)
    }

    /// Undoes one [`subscribe`](Self::subscribe).
    pub fn unsubscribe(&self, group: IpAddr) {
        self.core.unsubscribe(group);
    }

    /// How the link is.
    pub fn link(&self) -> LinkInfo {
        self.core.info()
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// Neighbours whose hardware address is known.
    pub fn neighbours(&self) -> Vec<(IpAddr, HardwareAddress)> {
        self.core.neighbours()
    }

    /// Connections to neighbours, and from neighbours.
    pub fn connections(&self) -> (usize, usize) {
        self.core.connections()
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        self.core.config()
    }

    /// Where a neighbour is, or the router to an address: asks by ARP or neighbour discovery, and the
    /// administrator for the path. `None` if there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the question to its answer.
    pub fn resolve(
        &self,
        addr: IpAddr,
    ) -> impl Future<Output = Option<HardwareAddress>> + Send + use<> {
        let core = Arc::clone(&self.core);
        async move { core.resolve(addr).await }
    }

    /// Finds neighbours for the connection manager
    /// ([`Manager::use_resolver`](verbs_cm::Manager::use_resolver)), so that connections are made by IP
    /// address. It does not keep the interface.
    pub fn resolver(&self) -> Arc<dyn Resolver> {
        Arc::new(Neighbourly::of(&self.core))
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("link", &self.link())
            .finish_non_exhaustive()
    }
}
