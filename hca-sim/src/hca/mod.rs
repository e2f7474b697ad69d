//! The HCA: the provider. It takes commands apart and hands them to the objects that they concern.

pub(crate) mod adopt;
pub(crate) mod builder;
pub mod command;
pub(crate) mod connect;
pub mod extension;
pub(crate) mod limits;
mod packets;
mod provider;
pub(crate) mod table;
mod verbs;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use verbs_core::command::RequestId;
use verbs_core::device::{DeviceCore, OpenDevice};
use verbs_core::device_list::{DeviceList, Gone, Offer};
use verbs_core::extension::ExtensionInfo;
use verbs_core::host::HostPorts;
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::provider::Vouch;
use verbs_core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{
    AnyCommand, Attr, ConnectedQp, Device, Error, Gid, Guid, Kind, Lid, Provider, ProviderAttr,
    Request, Timer,
};
use verbs_link::port_space::TcpPortSpace;
use verbs_link::stream::{StreamLink, Tcp};

use crate::hca::builder::Builder;
use crate::hca::command::{CommandConfig, CommandInterface};
use crate::hca::limits::Limits;
use crate::hca::table::ObjectTable;
use crate::hca::verbs::device::About;
use crate::link::fabric::{AttachError, RemotePort};
use crate::link::{Loopback, PacketLink};
use crate::port::{LinkEvents, Port, sleep};

/// The HCA's queue pairs that have a peer, by their numbers: what [`Device::connected_qps`] yields, without a device.
pub fn connected_qps(hca: &Hca) -> Vec<ConnectedQp> {
    extension::connected_qps(&hca.port)
}

/// A software HCA with one port.
///
/// ```
/// # use futures::executor::block_on;
/// # use hca_sim::Hca;
/// # block_on(async {
/// let device = Hca::loopback().open().await?;
/// assert_eq!(device.query().await?.phys_port_cnt, 1);
/// # Ok::<(), verbs_core::Error>(())
/// # }).unwrap();
/// ```
pub struct Hca {
    about: About,
    port: Arc<Port>,
    /// What its numbers are drawn from, unless that is a secret.
    seed: Option<u64>,
    tables: Mutex<Tables>,
    /// The devices that are open on it; all end when it is removed.
    opened: Mutex<Opened>,
    /// It has failed by itself; see [`Hca::fail`].
    failed: AtomicBool,
}

/// The objects that are only counted and numbered.
struct Tables {
    pds: ObjectTable<()>,
    cqs: ObjectTable<()>,
    srqs: ObjectTable<()>,
    xrcds: ObjectTable<()>,
    ahs: ObjectTable<()>,
    queue_pairs: u32,
}

#[derive(Default)]
struct Opened {
    devices: Vec<Weak<DeviceCore>>,
    removed: bool,
    /// The lists that it is on.
    offers: Vec<Arc<Offer>>,
    /// The command interface in front, if commands take time; made when the first device is opened.
    commands: Option<CommandConfig>,
    front: Weak<CommandInterface>,
}

impl Hca {
    /// Begins an HCA on a loopback link of its own.
    pub fn loopback() -> Builder {
        Builder::new(&Loopback::default())
    }

    /// Begins an HCA on that link.
    pub fn on(link: &Loopback) -> Builder {
        Builder::new(link)
    }

    /// Begins an HCA whose packets that link carries: one port, with a GID for each of the link's
    /// addresses.
    pub fn over(link: impl PacketLink + 'static) -> Builder {
        Builder::over(Box::new(link))
    }

    /// Begins an HCA whose messages are carried by streams that the link makes, as iWARP has it: one port, with a GID
    /// for each of the link's addresses. Its connections are made by its own verbs ([`verbs_core::cm`]).
    pub fn over_streams(link: impl StreamLink + 'static) -> Builder {
        Builder::over_streams(Box::new(link))
    }

    /// The same over TCP, on those addresses of this host: an RNIC in software.
    ///
    /// ```
    /// use hca_sim::Hca;
    /// use verbs_core::{NodeType, TransportType};
    ///
    /// let device = Hca::iwarp(&["127.0.0.1".parse()?])?.open().wait()?;
    /// let provider = device.query_provider(1);
    /// assert_eq!((provider.transport, provider.node), (TransportType::Iwarp, NodeType::Rnic));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system's error, if it has no descriptors left.
    pub fn iwarp(addresses: &[IpAddr]) -> io::Result<Builder> {
        Tcp::on(addresses).map(Self::over_streams)
    }

    /// Begins an HCA on a port of a node of the subnet that another process, such as `verbs subnet`, hosts at that
    /// path. Waits for the host's answer, which comes at once.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn subnet(path: &Path, node: &str, port: u8) -> Result<Builder, AttachError> {
        RemotePort::attach(path, node, port).map(Self::over)
    }

    pub(crate) fn new(
        name: &str,
        port: Port,
        seed: Option<u64>,
        (limits, commands): (&Limits, Option<CommandConfig>),
    ) -> Self {
        let tables = Tables {
            pds: ObjectTable::new(limits.max_pd, Attr::MaxPd),
            cqs: ObjectTable::new(limits.max_cq, Attr::MaxCq),
            srqs: ObjectTable::new(limits.max_srq, Attr::MaxSrq),
            xrcds: ObjectTable::new(limits.max_xrcd, Attr::MaxXrcd),
            ahs: ObjectTable::new(limits.max_ah, Attr::MaxAh),
            queue_pairs: 0,
        };
        Self {
            about: About::new(limits::device_attr(name, &port, limits)),
            port: Arc::new(port),
            seed,
            tables: Mutex::new(tables),
            opened: Mutex::new(Opened {
                commands,
                ..Opened::default()
            }),
            failed: AtomicBool::new(false),
        }
    }

    /// Starts handling packets.
    pub(crate) fn start(self: &Arc<Self>) {
        if let Some(driver) = self.port.driver() {
            let hca = Arc::downgrade(self) as Weak<dyn LinkEvents>;
            driver.start(&self.port, Some(hca));
        }
    }

    /// Takes in packets that have arrived, on the caller's thread, and sends what follows from them, in a few rounds,
    /// as a polling thread does. Returns whether there were any. On a loopback link nothing happens.
    ///
    /// Not needed where a thread waits for packets. It drives an HCA whose link has no such thread, such as a
    /// [`Cable`](crate::link::Cable). Never blocks.
    pub fn turn(&self) -> bool {
        let driver = self.port.driver();
        driver.is_some_and(|driver| driver.turn(&self.port))
    }

    /// Opens a device on it.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`] after [`Hca::remove`]; [`Error::Exhausted`] if the link had no LID left
    /// for its port.
    pub fn open(self: &Arc<Self>) -> Request<'static, OpenDevice> {
        Device::open(self.front())
    }

    /// The provider on which devices are opened: the command interface, if commands take time.
    fn front(self: &Arc<Self>) -> Arc<dyn Provider> {
        let this = Arc::clone(self) as Arc<dyn Provider>;
        let mut opened = self.opened.lock();
        let Some(config) = opened.commands else {
            return this;
        };
        let front = opened.front.upgrade().unwrap_or_else(|| {
            Arc::new(CommandInterface::new(
                this,
                self.port.engine.clone(),
                config,
            ))
        });
        opened.front = Arc::downgrade(&front);
        front
    }

    /// Puts it on a list of devices, under its name: the list's watchers are informed when it is [removed](Hca::remove)
    /// or [fails](Hca::fail), and when its port becomes active or ceases to be. The list keeps it until then, or until
    /// it [leaves](Hca::leave).
    pub fn join(self: &Arc<Self>, list: &DeviceList) {
        let offer = list.arrived(self.name(), self.front());
        let mut opened = self.opened.lock();
        let removed = opened.removed;
        if !removed {
            opened.offers.push(Arc::new(offer));
            return;
        }
        drop(opened);
        offer.gone(Gone::Ejected);
    }

    /// Takes it off the lists that it is on. Devices that are open on it continue to work.
    pub fn leave(&self) {
        let offers = std::mem::take(&mut self.opened.lock().offers);
        drop(offers);
    }

    /// Removes it, as if the card had been pulled: everything posted is flushed, everything pending ends with
    /// [`Error::DeviceRemoved`], posts are refused with
    /// [`PostError::DeviceRemoved`](verbs_core::PostError::DeviceRemoved), and peers no longer get an answer. Every
    /// device that is open on it informs its client, by [`EventType::DeviceFatal`](verbs_core::EventType::DeviceFatal)
    /// among other things; see [`verbs_core::device`]. Objects can still be destroyed.
    ///
    /// Never blocks. A second call does nothing.
    pub fn remove(&self) {
        let (devices, front, offers) = {
            let mut opened = self.opened.lock();
            opened.removed = true;
            let front = opened.front.upgrade();
            let Opened {
                devices, offers, ..
            } = &mut *opened;
            (std::mem::take(devices), front, std::mem::take(offers))
        };
        let queue_pairs = {
            let mut links = self.port.link.lock();
            let queue_pairs = links.of_port(self.port.lid);
            links.detach(self.port.lid);
            queue_pairs
        };
        if let Some(front) = front {
            front.fail_all();
        }
        self.port.removed.set();
        for qp in queue_pairs {
            qp.remove();
        }
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.remove();
        }
        offers.iter().for_each(|offer| offer.gone(Gone::Ejected));
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.about.attr.name
    }

    /// Local identifier of its port; in a subnet, 0 until the subnet manager has set it.
    pub fn lid(&self) -> Lid {
        let info = self.port.settings().info;
        info.map_or(self.port.lid, |info| info.lid)
    }

    /// Global identifier of its port; the first one if it has several.
    pub fn gid(&self) -> Gid {
        self.port.gid(0).unwrap_or_default()
    }

    /// Identifies the node.
    pub fn guid(&self) -> Guid {
        self.port.guid
    }

    /// How many memory regions are registered.
    pub fn regions(&self) -> u32 {
        self.port.mrs.in_use()
    }

    /// How many objects exist: protection domains, regions, completion queues, shared receive queues, queue pairs,
    /// address handles, XRC domains, multicast attachments.
    #[cfg(not(verbs_loom))]
    #[doc(hidden)]
    pub fn object_counts(&self) -> [usize; 8] {
        let tables = self.tables.lock();
        [
            tables.pds.len(),
            self.regions() as usize,
            tables.cqs.len(),
            tables.srqs.len(),
            tables.queue_pairs as usize,
            tables.ahs.len(),
            tables.xrcds.len(),
            self.port.groups.attachments(),
        ]
    }

    /// Endpoints of connections that the provider makes.
    #[cfg(not(verbs_loom))]
    #[doc(hidden)]
    pub fn cm_endpoints(&self) -> usize {
        let streams = self.port.streams.as_ref();
        streams.map_or(0, |streams| streams.endpoints())
    }

    /// The host's TCP port numbers that its endpoints hold, if it is [over TCP](Hca::iwarp). A program reserves one
    /// there, for a bind to come, without a socket: until the reservation is dropped,
    /// [`bind_cm`](verbs_core::Device::bind_cm) refuses the number as one in use.
    ///
    /// ```
    /// use hca_sim::Hca;
    ///
    /// let hca = Hca::iwarp(&["127.0.0.1".parse()?])?.build();
    /// let space = hca.port_space().expect("it is over TCP");
    /// let reserved = space.reserve("127.0.0.1:0".parse()?)?;
    /// assert_eq!(space.held().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn port_space(&self) -> Option<&TcpPortSpace> {
        self.port.streams.as_ref()?.link.port_space()
    }

    /// Sleeps until packets have arrived, which the caller's thread handles, one of `also` is readable, or `timeout` is
    /// over; also earlier. For a consumer that waits for a completion: the engine's thread, which would have to wake it,
    /// sleeps on.
    ///
    /// Returns `None` at once if the engine's thread waits for packets: another thread sleeps here, the caller came back
    /// late from earlier sleeps, or the link has no place for another thread. The caller then waits for its event alone.
    ///
    /// # Context
    /// Blocks. Routines and handlers run on the caller's thread.
    ///
    /// # Errors
    /// The system's, of which a signal is the usual one.
    pub fn sleep(
        &self,
        also: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Option<io::Result<()>> {
        sleep(&self.port, also, timeout)
    }

    /// The entry of the GID table with that index; zero if there is none.
    pub fn gid_at(&self, index: u16) -> Gid {
        self.port.gid(index).unwrap_or_default()
    }

    /// How many attempts have ended in receiver-not-ready so far; over TCP, how many messages have had to wait here for a
    /// receive.
    pub fn rnr_naks(&self) -> u64 {
        self.port.counters.rnr_naks.get()
    }

    /// How many messages of services without answers have been dropped so far, because there was no receive or because
    /// they could not be taken.
    pub fn dropped(&self) -> u64 {
        self.port.counters.dropped.get()
    }
}

impl Provider for Hca {
    fn issue(&self, command: AnyCommand<'_>) {
        if self.failed.load(Relaxed) && !works_after_failure(command.kind()) {
            return command.refuse(Error::DeviceFailed);
        }
        if self.port.streams.is_some() && lacks(command.kind()) {
            return command.refuse(Error::Unsupported(Attr::Verb));
        }
        verbs::issue(self, command);
    }

    fn cancel(&self, id: RequestId) {
        verbs::cm::cancel(&self.port, id);
        verbs::xrc::cancel(&self.port, id);
    }

    fn extensions(&self) -> &[ExtensionInfo] {
        extension::listed(&self.port)
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        provider::provider_attr(&self.port, port)
    }

    fn process_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        packets::answer_mad(&self.port, incoming, reply)
    }

    fn seed(&self) -> Option<u64> {
        self.seed
    }

    fn vouch(&self) -> Option<Vouch> {
        Some(provider::vouch::of(self))
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        Some(Arc::new(self.port.engine.clone()))
    }

    fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        self.port.driver()?.host_ports()
    }
}

/// Verbs that a port with streams does not have, and no bit speaks of: there are no datagrams or groups.
fn lacks(kind: Kind) -> bool {
    matches!(kind, Kind::AttachMcast | Kind::CreateAh)
}

/// Objects of a device that has failed can still be destroyed, and its last events read.
fn works_after_failure(kind: Kind) -> bool {
    kind.destroys() || kind == Kind::NextEvent
}

impl Drop for Hca {
    fn drop(&mut self) {
        self.port.link.lock().detach(self.port.lid);
    }
}

impl fmt::Debug for Hca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hca")
            .field("name", &self.about.attr.name)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
