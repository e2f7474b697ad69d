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
use crate::link::{self, Core, Outgoing};
use crate::resolver::Neighbourly;
use crate::wire::HardwareAddress;

/// An IP interface on a port of a device. Dropping it leaves the groups, ends the connections and destroys the
/// verbs objects, all without waiting.
///
/// # Context
/// Everything here except the futures is a direct call that never blocks, legal in routines and handlers.
pub struct Interface {
    core: Arc<Core>,
}

impl Interface {
    /// Creates an interface: the queue pair, the completion queue and all memory that it will need. The link
    /// comes up by itself, when the port is in service and the administrator allows it; the face is notified.
    ///
    /// # Errors
    /// [`Error::Verb`] if an object cannot be created, [`Error::Unsupported`].
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

    /// Sends an IP packet: copies it to registered memory and posts it, or queues it for its neighbour's address,
    /// path or connection. If it is too long for its path, the sender gets an ICMP message, as from a router.
    /// Packets may be lost, as on any network.
    ///
    /// # Errors
    /// [`SendError::Full`] when no buffer is free, [`SendError::Down`], [`SendError::NotIp`].
    pub fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        link::send(&self.core, whole(packet), false)
    }

    /// Begins a batch: its packets are copied as they are given and posted together, so that consecutive ones to one
    /// neighbour share a doorbell, a burst of the link and, on a connection, an acknowledgement.
    pub fn batch(&self) -> Batch<'_> {
        Batch { interface: self }
    }

    /// Receives packets to a group from now on, also after changes of the link. Each call needs a matching
    /// [`unsubscribe`](Self::unsubscribe).
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

    /// The state of the link.
    pub fn link(&self) -> LinkInfo {
        self.core.info()
    }

    /// Its counters.
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

    /// Ends the interface, as dropping it does, and waits until the administrator knows that its groups are left. Connections
    /// are ended without a wait for the peers' answers.
    ///
    /// An administrator that is not there is asked several times, for seconds: bound the wait.
    ///
    /// # Cancel safety
    /// If the future is dropped, or never polled, all is done the same, without waiting.
    pub fn close(self) -> impl Future<Output = ()> + Send + use<> {
        let core = Arc::clone(&self.core);
        drop(self);
        async move { core.over.wait().await }
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        self.core.config()
    }

    /// Finds the address of a neighbour, or of the router to an address: asks by ARP or neighbour discovery, and
    /// the administrator for the path. `None` if there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the query.
    pub fn resolve(
        &self,
        addr: IpAddr,
    ) -> impl Future<Output = Option<HardwareAddress>> + Send + use<> {
        let core = Arc::clone(&self.core);
        async move { core.resolve(addr).await }
    }

    /// Finds neighbours for the connection manager ([`Manager::use_resolver`](verbs_cm::Manager::use_resolver)),
    /// so connections can be made by IP address. It does not keep the interface alive.
    pub fn resolver(&self) -> Arc<dyn Resolver> {
        Arc::new(Neighbourly::of(&self.core))
    }
}

/// Packets that are sent together: see [`Interface::batch`]. Dropping it sends what still waits.
#[derive(Debug)]
#[must_use = "a batch is sent at once when it is dropped"]
pub struct Batch<'i> {
    interface: &'i Interface,
}

impl Batch<'_> {
    /// As [`Interface::send`]; the packet may wait for the following ones.
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, packet: &[u8]) -> Result<(), SendError> {
        link::send(&self.interface.core, whole(packet), true)
    }

    /// The same for a packet in two parts, of which the first has all its headers.
    ///
    /// # Errors
    /// As there.
    pub fn send_parts(&mut self, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        link::send(&self.interface.core, Outgoing { head, body }, true)
    }
}

const fn whole(head: &[u8]) -> Outgoing<'_> {
    Outgoing { head, body: &[] }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.interface.core.flush();
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
