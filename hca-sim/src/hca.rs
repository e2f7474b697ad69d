//! The HCA: the provider. It takes commands apart and hands them to those who know.

use std::fmt;

use verbs_core::command::Command;
use verbs_core::cq::{CreateCq, DestroyCq};
use verbs_core::device::{CloseDevice, DeviceCore, OpenDevice, QueryPort};
use verbs_core::mem::Region;
use verbs_core::mr::{DeregMr, RegMr};
use verbs_core::pd::{AllocPd, DeallocPd};
use verbs_core::qp::CreateQp;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{
    AnyCommand, Attr, Device, DeviceAttr, Error, Gid, Guid, LKey, Lid, Provider, QpCap, QpType,
    Request, Target,
};

use crate::builder::Builder;
use crate::command::{CommandConfig, CommandInterface};
use crate::cq::{CqPoller, CqRing};
use crate::limits::{self, Limits};
use crate::link::{LID_MAX, Loopback, Port};
use crate::qp::{Init, QueuePair};
use crate::recv::RecvPoster;
use crate::send::SendPoster;
use crate::table::Table;

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
    attr: Arc<DeviceAttr>,
    port: Arc<Port>,
    tables: Mutex<Tables>,
    /// The devices that are open on it; all go when it is removed.
    opened: Mutex<Opened>,
}

/// The objects that are only counted and numbered.
struct Tables {
    pds: Table<()>,
    cqs: Table<()>,
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

    pub(crate) fn new(
        name: &str,
        port: Port,
        limits: &Limits,
        commands: Option<CommandConfig>,
    ) -> Self {
        let tables = Tables {
            pds: Table::new(limits.max_pd, Attr::MaxPd),
            cqs: Table::new(limits.max_cq, Attr::MaxCq),
            queue_pairs: 0,
        };
        Self {
            attr: Arc::new(limits::device_attr(name, &port, limits)),
            port: Arc::new(port),
            tables: Mutex::new(tables),
            opened: Mutex::new(Opened {
                commands,
                ..Opened::default()
            }),
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
    /// more. Objects can still be destroyed.
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
        for qp in queue_pairs {
            qp.remove();
        }
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.remove();
        }
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.attr.name
    }

    /// Local identifier of its port.
    pub fn lid(&self) -> Lid {
        self.port.lid
    }

    /// Global identifier of its port.
    pub fn gid(&self) -> Gid {
        self.port.gid
    }

    /// Identifies the node.
    pub fn guid(&self) -> Guid {
        self.port.guid
    }

    /// Memory regions that are registered.
    pub fn regions(&self) -> u32 {
        self.port.mrs.in_use()
    }

    fn open_device(&self, command: Command<'_, OpenDevice>) {
        let mut opened = self.opened.lock();
        if opened.removed {
            drop(opened);
            return command.refuse(Error::DeviceRemoved);
        }
        if self.port.lid == Lid(0) {
            drop(opened);
            return command.refuse(Error::Exhausted {
                attr: Attr::Port,
                max: u32::from(LID_MAX),
            });
        }
        opened.devices.retain(|device| device.strong_count() != 0);
        opened.devices.push(Arc::downgrade(command.target()));
        drop(opened);
        let (args, reply) = command.split();
        reply.complete(Ok(args.build()));
    }

    fn close_device(&self, command: Command<'_, CloseDevice>) {
        let closed = Arc::as_ptr(command.target());
        self.opened
            .lock()
            .devices
            .retain(|device| device.as_ptr() != closed);
        command.complete(Ok(()));
    }

    fn query_port(&self, command: Command<'_, QueryPort>) {
        let got = command.port;
        let result = if got == limits::PORT {
            Ok(limits::port_attr(&self.port))
        } else {
            let (got, max) = (u32::from(got), u32::from(limits::PORT));
            Err(Error::Invalid {
                attr: Attr::Port,
                got,
                max,
            })
        };
        command.complete(result);
    }

    fn alloc_pd(&self, command: Command<'_, AllocPd>) {
        let number = self.tables.lock().pds.insert(());
        match number {
            Ok(number) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(number, Box::new(()))));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    fn dealloc_pd(&self, command: Command<'_, DeallocPd>) {
        self.tables
            .lock()
            .pds
            .remove(command.target().base().id().number);
        command.complete(Ok(()));
    }

    fn create_cq(&self, command: Command<'_, CreateCq>) {
        match self.make_cq(&command) {
            Ok((number, cqe, ring)) => {
                let (args, reply) = command.split();
                let raw = Box::new(CqPoller::new(Arc::clone(&ring)));
                reply.complete(Ok(args.build(number, cqe, Box::new(ring), raw)));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    fn make_cq(&self, args: &CreateCq) -> Result<(u32, u32, Arc<CqRing>), Error> {
        if args.cqe == 0 || args.cqe > limits::CQE {
            return Err(Error::Invalid {
                attr: Attr::Cqe,
                got: args.cqe,
                max: limits::CQE,
            });
        }
        if args.comp_vector != 0 {
            return Err(Error::Invalid {
                attr: Attr::CompVector,
                got: args.comp_vector,
                max: 0,
            });
        }
        let cqe = args.cqe.next_power_of_two();
        let clock = args.timestamps.then(|| self.port.engine.clock().clone());
        let ring = Arc::new(CqRing::new(cqe, Arc::clone(&args.notify), clock)?);
        let number = self.tables.lock().cqs.insert(())?;
        Ok((number, cqe, ring))
    }

    fn destroy_cq(&self, command: Command<'_, DestroyCq>) {
        self.tables
            .lock()
            .cqs
            .remove(command.target().base().id().number);
        command.complete(Ok(()));
    }

    fn create_qp(&self, command: Command<'_, CreateQp>) {
        match self.make_qp(&command) {
            Ok(qp) => {
                let (args, reply) = command.split();
                let send = Box::new(SendPoster::new(Arc::clone(&qp)));
                let recv = Box::new(RecvPoster::new(Arc::clone(&qp)));
                let (qpn, cap) = (qp.qpn, qp.cap);
                reply.complete(Ok(args.build(qpn, cap, Box::new(qp), send, recv)));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    fn make_qp(&self, command: &Command<'_, CreateQp>) -> Result<Arc<QueuePair>, Error> {
        if command.qp_type != QpType::Rc {
            return Err(Error::Unsupported(Attr::QpType));
        }
        if command.low_latency {
            // Every queue pair here is as fast as it gets; a flag that changes nothing is refused.
            return Err(Error::Unsupported(Attr::LowLatency));
        }
        check_cap(&command.cap)?;
        let ring = |core: &verbs_core::cq::CqCore| core.base().private::<Arc<CqRing>>().cloned();
        let not_ours = Error::Mismatch {
            attr: Attr::Cq,
            why: verbs_core::Why::OtherDevice,
        };
        let init = Init {
            port: Arc::clone(&self.port),
            pd: command.target().base().id().number,
            cap: command.cap,
            sq_sig_all: command.sq_sig_all,
            send_cq: ring(command.send_cq()).ok_or(not_ours)?,
            recv_cq: ring(command.recv_cq()).ok_or(not_ours)?,
        };
        let max = self.attr.max_qp;
        {
            let mut tables = self.tables.lock();
            if tables.queue_pairs >= max {
                return Err(Error::Exhausted {
                    attr: Attr::MaxQp,
                    max,
                });
            }
            tables.queue_pairs += 1;
        }
        let entered = self
            .port
            .link
            .lock()
            .enter(self.port.lid, |qpn| QueuePair::new(qpn, init));
        entered.ok_or_else(|| {
            self.tables.lock().queue_pairs -= 1;
            Error::DeviceRemoved
        })
    }

    fn reg_mr(&self, command: Command<'_, RegMr>) {
        let region = Region {
            iova: command.iova,
            ..Region::new(
                Arc::clone(&command.memory),
                command.access,
                command.target().base().id().number,
            )
        };
        match self.port.mrs.register(region) {
            Ok((lkey, rkey)) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(lkey, rkey, Box::new(()))));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    fn dereg_mr(&self, command: Command<'_, DeregMr>) {
        let key = LKey::new(command.target().base().id().number);
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let done = move || pending.complete(Ok(()));
        if self.port.mrs.deregister(key, done).is_err() {
            // The handle is the only way here, and it comes once.
            tracing::error!(%key, "a region was gone before it was deregistered");
        }
    }
}

/// Checks the sizes of a queue pair.
fn check_cap(cap: &QpCap) -> Result<(), Error> {
    use crate::message::MAX_SGE;
    use crate::ring::MAX_INLINE;
    let sizes = [
        (Attr::MaxSendWr, cap.max_send_wr, limits::QP_WR),
        (Attr::MaxRecvWr, cap.max_recv_wr, limits::QP_WR),
        (Attr::MaxSendSge, cap.max_send_sge, MAX_SGE as u32),
        (Attr::MaxRecvSge, cap.max_recv_sge, MAX_SGE as u32),
        (Attr::MaxInlineData, cap.max_inline_data, MAX_INLINE as u32),
    ];
    match sizes.into_iter().find(|&(_, got, max)| got > max) {
        Some((attr, got, max)) => Err(Error::Invalid { attr, got, max }),
        None => Ok(()),
    }
}

impl Provider for Hca {
    fn issue(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::OpenDevice(command) => self.open_device(command),
            AnyCommand::CloseDevice(command) => self.close_device(command),
            AnyCommand::QueryDevice(command) => command.complete(Ok(Arc::clone(&self.attr))),
            AnyCommand::QueryPort(command) => self.query_port(command),
            AnyCommand::AllocPd(command) => self.alloc_pd(command),
            AnyCommand::DeallocPd(command) => self.dealloc_pd(command),
            AnyCommand::CreateCq(command) => self.create_cq(command),
            AnyCommand::DestroyCq(command) => self.destroy_cq(command),
            AnyCommand::CreateQp(command) => self.create_qp(command),
            AnyCommand::ModifyQp(command) => match queue_pair(command.target().base()) {
                Some(qp) => qp.modify(command),
                None => command.complete(Err(Error::DeviceFailed)),
            },
            AnyCommand::QueryQp(command) => {
                let info = queue_pair(command.target().base()).map(|qp| Box::new(qp.query()));
                command.complete(info.ok_or(Error::DeviceFailed));
            }
            AnyCommand::DestroyQp(command) => {
                let qp = queue_pair(command.target().base()).cloned();
                match qp {
                    Some(qp) => {
                        self.tables.lock().queue_pairs -= 1;
                        qp.destroy(command);
                    }
                    None => command.complete(Ok(())),
                }
            }
            AnyCommand::RegMr(command) => self.reg_mr(command),
            AnyCommand::DeregMr(command) => self.dereg_mr(command),
            AnyCommand::NextEvent(command) => command.park(),
            other => other.refuse(Error::Unsupported(Attr::Verb)),
        }
    }
}

fn queue_pair(base: &verbs_core::object::Base) -> Option<&Arc<QueuePair>> {
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
            .field("name", &self.attr.name)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
