//! The HCA: the provider. It takes commands apart and hands them to those who know.

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
use std::path::Path;

use verbs_core::device::{DeviceCore, OpenDevice};
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::object::Base;
use verbs_core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{
    AnyCommand, Attr, Device, Error, Gid, Guid, Kind, Lid, Provider, ProviderAttr, Request, Target,
    Timer,
};

use crate::hca::builder::Builder;
use crate::hca::command::{CommandConfig, CommandInterface};
use crate::hca::limits::Limits;
use crate::hca::table::Table;
use crate::hca::verbs::device::About;
use crate::link::fabric::{AttachError, RemotePort};
use crate::link::{Loopback, PacketLink};
use crate::port::Port;
use crate::qp::QueuePair;

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
    tables: Mutex<Tables>,
    /// The devices that are open on it; all go when it is removed.
    opened: Mutex<Opened>,
    /// It has failed by itself; see [`Hca::fail`].
    failed: AtomicBool,
}

/// The objects that are only counted and numbered.
struct Tables {
    pds: Table<()>,
    cqs: Table<()>,
    srqs: Table<()>,
    xrcds: Table<()>,
    ahs: Table<()>,
    queue_pairs: u32,
}

#[derive(Default)]
struct Opened {
    devices: Vec<Weak<DeviceCore>>,
    removed: bool,
    /// What stands in front, if commands take time; made when the first device is opened.
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

    /// Begins an HCA on a port of a node of the subnet that another process hosts at that path, as
    /// `verbs subnet` does. Waits for the host's answer, which comes at once.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn subnet(path: &Path, node: &str, port: u8) -> Result<Builder, AttachError> {
        RemotePort::attach(path, node, port).map(Self::over)
    }

    pub(crate) fn new(
        name: &str,
        port: Port,
        limits: &Limits,
        commands: Option<CommandConfig>,
    ) -> Self {
        let tables = Tables {
            pds: Table::new(limits.max_pd, Attr::MaxPd),
            cqs: Table::new(limits.max_cq, Attr::MaxCq),
            srqs: Table::new(limits.max_srq, Attr::MaxSrq),
            xrcds: Table::new(limits.max_xrcd, Attr::MaxXrcd),
            ahs: Table::new(limits.max_ah, Attr::MaxAh),
            queue_pairs: 0,
        };
        Self {
            about: About::new(limits::device_attr(name, &port, limits)),
            port: Arc::new(port),
            tables: Mutex::new(tables),
            opened: Mutex::new(Opened {
                commands,
                ..Opened::default()
            }),
            failed: AtomicBool::new(false),
        }
    }

    /// Opens a device on it.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`] after [`Hca::remove`]; [`Error::Exhausted`] if the link had no LID left
    /// for its port.
    pub fn open(self: &Arc<Self>) -> Request<'static, OpenDevice> {
        let this = Arc::clone(self) as Arc<dyn Provider>;
        let mut opened = self.opened.lock();
        let Some(config) = opened.commands else {
            return Device::open(this);
        };
        let front = opened.front.upgrade().unwrap_or_else(|| {
            Arc::new(CommandInterface::new(
                this,
                self.port.engine.clone(),
                config,
            ))
        });
        opened.front = Arc::downgrade(&front);
        Device::open(front)
    }

    /// Takes it out, as if somebody had pulled the card: everything posted is flushed, everything
    /// pending ends with [`Error::DeviceRemoved`], posts are refused with
    /// [`PostError::DeviceRemoved`](verbs_core::PostError::DeviceRemoved), and peers get no answer any
    /// more. Every device that is open on it tells its client, by
    /// [`EventType::DeviceFatal`](verbs_core::EventType::DeviceFatal) among other things; see
    /// [`verbs_core::device`]. Objects can still be destroyed.
    ///
    /// Never blocks. A second call does nothing.
    pub fn remove(&self) {
        let (devices, front) = {
            let mut opened = self.opened.lock();
            opened.removed = true;
            (std::mem::take(&mut opened.devices), opened.front.upgrade())
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
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.about.attr.name
    }

    /// Local identifier of its port; in a subnet 0 until its manager has set it.
    pub fn lid(&self) -> Lid {
        let info = self.port.sheet().info;
        info.map_or(self.port.lid, |info| info.lid)
    }

    /// Global identifier of its port, the first one if it has several.
    pub fn gid(&self) -> Gid {
        self.port.gid(0).unwrap_or_default()
    }

    /// Identifies the node.
    pub fn guid(&self) -> Guid {
        self.port.guid
    }

    /// Memory regions that are registered.
    pub fn regions(&self) -> u32 {
        self.port.mrs.in_use()
    }

    /// Objects that there are: protection domains, regions, completion queues, shared receive queues,
    /// queue pairs, address handles, XRC domains, multicast attachments.
    #[cfg(not(verbs_loom))]
    #[doc(hidden)]
    pub fn census(&self) -> [usize; 8] {
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

    /// The entry of the GID table with that index; zero if there is none.
    #[cfg(not(verbs_loom))]
    pub(crate) fn gid_at(&self, index: u16) -> Gid {
        self.port.gid(index).unwrap_or_default()
    }

    /// Attempts that ended in receiver-not-ready so far.
    #[cfg(not(verbs_loom))]
    pub(crate) fn rnr_naks(&self) -> u64 {
        self.port.counters.rnr_naks.get()
    }

    /// Messages of services without answers that were dropped for want of a receive so far, or because
    /// they could not be taken.
    #[cfg(not(verbs_loom))]
    pub(crate) fn dropped(&self) -> u64 {
        self.port.counters.dropped.get()
    }
}

impl Provider for Hca {
    fn issue(&self, command: AnyCommand<'_>) {
        if self.failed.load(Relaxed) && !works_after_failure(command.kind()) {
            return command.refuse(Error::DeviceFailed);
        }
        match command {
            AnyCommand::OpenDevice(command) => self.open_device(command),
            AnyCommand::CloseDevice(command) => self.close_device(command),
            AnyCommand::QueryDevice(command) => self.query_device(command),
            AnyCommand::QueryPort(command) => self.query_port(command),
            AnyCommand::QueryPkey(command) => self.query_pkey(command),
            AnyCommand::QueryGid(command) => self.query_gid(command),
            AnyCommand::ModifyDevice(command) => self.modify_device(command),
            AnyCommand::ModifyPort(command) => self.modify_port(command),
            AnyCommand::NextEvent(command) => command.park(),
            AnyCommand::CallExtension(command) => self.call_extension(command),
            AnyCommand::AllocPd(command) => self.alloc_pd(command),
            AnyCommand::DeallocPd(command) => self.dealloc_pd(command),
            AnyCommand::RegMr(command) => self.reg_mr(command),
            AnyCommand::QueryMr(command) => Self::query_mr(command),
            AnyCommand::ReregMr(command) => self.rereg_mr(command),
            AnyCommand::DeregMr(command) => self.dereg_mr(command),
            AnyCommand::AllocMr(command) => self.alloc_mr(command),
            AnyCommand::FreeMr(command) => self.free_mr(command),
            AnyCommand::AllocMw(command) => self.alloc_mw(command),
            AnyCommand::DeallocMw(command) => self.dealloc_mw(command),
            AnyCommand::CreateFmrPool(command) => self.create_fmr_pool(command),
            AnyCommand::FlushFmrPool(command) => self.flush_fmr_pool(command),
            AnyCommand::DestroyFmrPool(command) => self.destroy_fmr_pool(command),
            other => self.issue_to_queues(other),
        }
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.provider_attr(port)
    }

    fn process_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        self.answer_mad(incoming, reply)
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        Some(Arc::new(self.port.engine.clone()))
    }
}

impl Hca {
    /// The verbs of queues, and of what datagrams are addressed with.
    fn issue_to_queues(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::CreateCq(command) => self.create_cq(command),
            AnyCommand::ResizeCq(command) => self.resize_cq(command),
            AnyCommand::ModifyCq(command) => self.modify_cq(command),
            AnyCommand::DestroyCq(command) => self.destroy_cq(command),
            AnyCommand::CreateSrq(command) => self.create_srq(command),
            AnyCommand::ModifySrq(command) => Self::modify_srq(command),
            AnyCommand::QuerySrq(command) => Self::query_srq(command),
            AnyCommand::DestroySrq(command) => self.destroy_srq(command),
            AnyCommand::AllocXrcd(command) => self.alloc_xrcd(command),
            AnyCommand::DeallocXrcd(command) => self.dealloc_xrcd(command),
            AnyCommand::CreateTargetQp(command) => self.create_target_qp(command),
            AnyCommand::OpenTargetQp(command) => self.open_target_qp(command),
            AnyCommand::CreateQp(command) => self.create_qp(command),
            AnyCommand::ModifyQp(command) => match queue_pair(command.target().base()) {
                Some(qp) => qp.modify(command),
                None => command.complete(Err(Error::DeviceFailed)),
            },
            AnyCommand::QueryQp(command) => {
                let info = queue_pair(command.target().base()).map(|qp| Box::new(qp.query()));
                command.complete(info.ok_or(Error::DeviceFailed));
            }
            AnyCommand::DestroyQp(command) => self.destroy_qp(command),
            AnyCommand::AttachMcast(command) => self.attach_mcast(command),
            AnyCommand::DetachMcast(command) => self.detach_mcast(command),
            AnyCommand::CreateAh(command) => self.create_ah(command),
            AnyCommand::ModifyAh(command) => self.modify_ah(command),
            AnyCommand::QueryAh(command) => Self::query_ah(command),
            AnyCommand::DestroyAh(command) => self.destroy_ah(command),
            other => other.refuse(Error::Unsupported(Attr::Verb)),
        }
    }
}

/// Objects of a device that has failed can still be destroyed, and its last events be asked for.
fn works_after_failure(kind: Kind) -> bool {
    kind.destroys() || kind == Kind::NextEvent
}

fn queue_pair(base: &Base) -> Option<&Arc<QueuePair>> {
    base.private::<Arc<QueuePair>>()
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
