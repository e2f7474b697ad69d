//! The provider: an open device of the system's, and its threads.

use std::fmt;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::device::MAX_PENDING;
use verbs_core::sync::{Arc, Mutex, thread};
use verbs_core::{
    AnyCommand, Attr, DeviceAttr, Error, Gid, NodeType, PortCaps, Provider, ProviderAttr, QpCap,
    RequestId, TransportType,
};

use crate::command;
use crate::convert::{self, is_iwarp};
use crate::error::OpenError;
use crate::event::{self, Stop};
use crate::lane::{Lane, Lanes, spawn};
use crate::shared::Shared;
use crate::sys::{Channel, Context, Cq, Library, Pd, Qp, QpConfig};

/// Inline bytes that are tried, as no query tells: what drivers have, in steps.
const INLINE_TRIED: [u32; 10] = [1024, 828, 512, 400, 256, 216, 100, 80, 64, 32];

/// `IBV_QPT_RC`.
const RC: u32 = 2;

/// An RDMA NIC of the system, or one that the kernel emulates (rxe, siw). Any number of devices can be open on it; they
/// share nothing but the hardware.
///
/// Dropping it ends its threads and closes it.
pub struct Nic {
    shared: Arc<Shared>,
    lanes: Lanes,
    stop: Arc<Stop>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Nic {
    pub(crate) fn open(library: &'static Library, name: &str) -> Result<Arc<Self>, OpenError> {
        let context = Arc::new(Context::open(library, name)?);
        let silent = |errno| OpenError::Query {
            name: name.into(),
            errno,
        };
        let is_iwarp = is_iwarp(context.kind());
        let device = context.query().map_err(silent)?;
        let port = context.query_port(1).map_err(silent)?;
        let channel = Channel::create(&context).map_err(silent)?;
        let attr = attributes(&context, name, &device, is_iwarp);
        let transport = match (is_iwarp, port.link_layer) {
            (true, _) => TransportType::Iwarp,
            (false, 2) => TransportType::RoceV2,
            (false, _) => TransportType::InfiniBand,
        };
        let shared = Shared::new(context, channel, attr, transport, port.max_msg_sz);
        let nic = Self {
            shared: Arc::new(shared),
            lanes: Lanes::new(),
            stop: Stop::new().map_err(OpenError::Resources)?,
            threads: Mutex::default(),
        };
        nic.start().map_err(|error| {
            let code = error.raw_os_error().unwrap_or(0);
            OpenError::Resources(Errno::from_raw_os_error(code))
        })?;
        Ok(Arc::new(nic))
    }

    fn start(&self) -> std::io::Result<()> {
        let lane = |name, lane: &Arc<Lane>| {
            let (nic, lane) = (Arc::clone(&self.shared), Arc::clone(lane));
            spawn(name, move || {
                lane.run(|command| command::carry_out(&nic, command));
            })
        };
        let mut threads = self.threads.lock();
        threads.push(lane("rdma-command", &self.lanes.other)?);
        threads.push(lane("rdma-memory", &self.lanes.memory)?);
        let (nic, stop) = (Arc::clone(&self.shared), Arc::clone(&self.stop));
        threads.push(spawn("rdma-events", move || event::run(&nic, &stop))?);
        Ok(())
    }

    /// The device's attributes.
    pub fn attr(&self) -> &DeviceAttr {
        &self.shared.attr
    }

    /// The addresses that a port can be reached by, with their indices in its GID table: on Ethernet those of RoCEv2.
    ///
    /// # Context
    /// Asks the kernel: not for use under NoBlock.
    ///
    /// # Errors
    /// [`Error::Os`] and its like for a port that does not answer.
    pub fn gids(&self, port: u8) -> Result<Vec<(u16, Gid)>, Error> {
        command::device::gids(&self.shared, port)
    }

    /// Objects that clients have made and not destroyed.
    pub fn objects(&self) -> u64 {
        self.shared.counts.total()
    }

    /// Has the devices on this NIC end as if it had been pulled
    /// ([surprise removal](verbs_core::device#surprise-removal)). So they do by themselves when the kernel takes it away.
    pub fn remove(&self) {
        self.shared.remove();
    }
}

/// The device's attributes, with how much can be sent inline.
fn attributes(
    context: &Arc<Context>,
    name: &str,
    attr: &abi::DeviceAttr,
    is_iwarp: bool,
) -> DeviceAttr {
    let inline = try_inline(context).unwrap_or(0);
    convert::device(name, attr, is_iwarp, inline, MAX_PENDING)
}

/// The most inline bytes of [`INLINE_TRIED`] that a queue pair can be created with.
fn try_inline(context: &Arc<Context>) -> Result<u32, Errno> {
    let channel = Arc::new(Channel::create(context)?);
    let cq = Arc::new(Cq::create(&channel, 1, 0, 0)?);
    let pd = Arc::new(Pd::alloc(context)?);
    let works = |max_inline_data| {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_inline_data,
            ..QpCap::default()
        };
        let config = QpConfig {
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            cap,
            qp_type: RC,
            sq_sig_all: false,
        };
        Qp::create(&pd, config).is_ok()
    };
    Ok(INLINE_TRIED
        .into_iter()
        .find(|&bytes| works(bytes))
        .unwrap_or(0))
}

impl Provider for Nic {
    fn issue(&self, command: AnyCommand<'_>) {
        use AnyCommand as A;
        let nic = &*self.shared;
        match command {
            A::OpenDevice(command) if nic.is_removed() => command.refuse(Error::DeviceRemoved),
            A::OpenDevice(command) => {
                nic.opened(command.target());
                let (args, reply) = command.split();
                reply.complete(Ok(args.build()));
            }
            A::CloseDevice(command) => {
                nic.closed(command.target());
                command.complete(Ok(()));
            }
            A::QueryDevice(command) => command.complete(Ok(Arc::clone(&nic.attr))),
            A::NextEvent(command) => command.park(),
            A::QueryMr(command) => {
                let info = command.target().info();
                command.complete(Ok(info));
            }
            A::QueryAh(command) => {
                let av = command.target().av();
                command.complete(Ok(av));
            }
            A::CallExtension(command) => command.refuse(Error::Unsupported(Attr::Extension)),
            other => match command::acceptable(nic, &other) {
                Err(error) => other.refuse(error),
                Ok(()) => {
                    if let Some(pending) = other.pend() {
                        self.lanes.push(pending);
                    }
                }
            },
        }
    }

    fn cancel(&self, id: RequestId) {
        // The queue is free when the routine runs.
        if let Some(command) = self.lanes.take(id) {
            command.refuse(Error::Cancelled);
        }
    }

    fn query_provider(&self, _port: u8) -> ProviderAttr {
        let nic = &self.shared;
        let mut caps = PortCaps::empty();
        caps.set(PortCaps::MCAST, nic.attr.max_mcast_grp > 0);
        ProviderAttr {
            transport: nic.transport,
            node: match nic.transport {
                TransportType::Iwarp => NodeType::Rnic,
                _ => NodeType::Ca,
            },
            caps,
            ..ProviderAttr::default()
        }
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.lanes.stop();
        self.stop.now();
        let own = thread::current().id();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // The last handle may be dropped by a routine on one of them, which then ends by itself; and who drops it
            // where nobody may wait does not wait for the threads.
            if thread.thread().id() != own && !verbs_core::no_block() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("name", &self.shared.attr.name)
            .finish_non_exhaustive()
    }
}
