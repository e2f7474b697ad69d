//! The provider: an open device of the system, and its threads.

mod list;
#[expect(
    unsafe_code,
    reason = "the NIC's word for registered memory: argued in it"
)]
mod vouch;

use std::fmt;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::device::MAX_PENDING;
use verbs_core::device_list::DeviceList;
use verbs_core::process::spawn_without_signals;
use verbs_core::provider::Vouch;
use verbs_core::sync::{Arc, Mutex, thread};
use verbs_core::{
    AnyCommand, Attr, CmLimits, DeviceAttr, DeviceCap, Error, Gid, NodeType, PortCaps, Provider,
    ProviderAttr, QpCap, RequestId, Timer, TransportType,
};

use crate::bell::Bell;
use crate::cm;
use crate::cm::table::{Connections, Step};
use crate::command;
use crate::convert::{self, is_iwarp};
use crate::error::OpenError;
use crate::event;
use crate::lane::{Lane, Work};
use crate::shared::Shared;
use crate::sys::{Channel, Context, Cq, Library, Pd, Qp, QpConfig};
use crate::timer::Clock;

pub use self::list::Nics;

/// Inline sizes that are tried, because no query reports the limit: those of known drivers, in steps.
const INLINE_TRIED: [u32; 10] = [1024, 828, 512, 400, 256, 216, 100, 80, 64, 32];

/// `IBV_QPT_RC`.
const RC: u32 = 2;

/// An RDMA NIC of the system, or one that the kernel emulates (rxe, siw). Any number of devices can be open on it; they
/// share only the hardware.
///
/// Dropping it ends its threads and closes it.
pub struct Nic {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
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
        let bell = Bell::new().map_err(OpenError::Resources)?;
        let (max_msg_sz, clock) = (port.max_msg_sz, Clock::new(&bell));
        let shared = Shared::new(context, channel, attr, transport, max_msg_sz, clock);
        let nic = Self {
            shared: Arc::new(shared),
            bell,
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
            spawn_without_signals(name, move || {
                lane.run(|work| match work {
                    Work::Command(command) => command::carry_out(&nic, command),
                    Work::Step(step) => cm::verbs::step(&nic, step),
                });
            })
        };
        let mut threads = self.threads.lock();
        threads.push(lane("rdma-command", &self.shared.lanes.other)?);
        threads.push(lane("rdma-memory", &self.shared.lanes.memory)?);
        let (nic, bell) = (Arc::clone(&self.shared), Arc::clone(&self.bell));
        let events = spawn_without_signals("rdma-events", move || event::run(&nic, &bell))?;
        threads.push(events);
        Ok(())
    }

    /// The device's attributes.
    pub fn attr(&self) -> &DeviceAttr {
        &self.shared.attr
    }

    /// The addresses by which a port can be reached, with their indices in its GID table: on Ethernet those of RoCEv2.
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

    /// Events of connections that arrived too late to mean anything: for endpoints that no longer existed, or in an
    /// order that no connection has.
    pub fn late_events(&self) -> u64 {
        self.shared.cm.as_ref().map_or(0, Connections::late)
    }

    /// Ends the devices on this NIC as if it had been pulled ([surprise removal](verbs_core::device#surprise-removal)).
    /// The same happens without this call when the kernel removes it.
    pub fn remove(&self) {
        self.shared.remove();
    }

    /// Puts it on a list of devices, under its name: the list's watchers are informed when it is removed, and when a port
    /// becomes active or ceases to be. The list keeps it until then, or until it [leaves](Nic::leave).
    pub fn join(self: &Arc<Self>, list: &DeviceList) {
        let provider = Arc::clone(self);
        self.shared.join(list, provider);
    }

    /// Takes it off the lists that it is on. Devices that are open on it continue to work.
    pub fn leave(&self) {
        self.shared.leave();
    }
}

/// The device's attributes, with how much can be sent inline.
fn attributes(
    context: &Arc<Context>,
    name: &str,
    attr: &abi::DeviceAttr,
    is_iwarp: bool,
) -> DeviceAttr {
    /// `IBV_ODP_SUPPORT`.
    const ODP: u64 = 1;
    let inline = try_inline(context).unwrap_or(0);
    let mut attr = convert::device(name, attr, is_iwarp, inline, MAX_PENDING);
    let more = context.query_more();
    let on_demand = more.is_some_and(|more| more.odp_general_caps & ODP != 0);
    attr.caps.set(DeviceCap::ON_DEMAND_PAGING, on_demand);
    attr
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
                        nic.lanes.push(pending);
                    }
                }
            },
        }
    }

    fn cancel(&self, id: RequestId) {
        // The queue is free when the routine runs.
        if let Some(command) = self.shared.lanes.take(id) {
            command.refuse(Error::Cancelled);
        } else if self.shared.cm.is_some() {
            // It may wait for a peer.
            self.shared.lanes.step(Step::Cancel(id));
        }
    }

    fn vouch(&self) -> Option<Vouch> {
        Some(vouch::of(self))
    }

    fn query_provider(&self, _port: u8) -> ProviderAttr {
        let nic = &self.shared;
        let mut caps = PortCaps::empty();
        caps.set(PortCaps::MCAST, nic.attr.max_mcast_grp > 0);
        let own = match nic.is_iwarp() {
            true => PortCaps::IW_CM,
            false => PortCaps::RDMA_CM,
        };
        caps.set(own, nic.cm.is_some());
        ProviderAttr {
            transport: nic.transport,
            node: match nic.transport {
                TransportType::Iwarp => NodeType::Rnic,
                _ => NodeType::Ca,
            },
            caps,
            cm: match nic.cm {
                Some(_) => cm::verbs::limits(nic),
                None => CmLimits::default(),
            },
        }
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        Some(Arc::clone(&self.shared.clock) as _)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.shared.lanes.stop();
        self.bell.end();
        let own = thread::current().id();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A routine on one of the threads may drop the last handle; that thread then ends by itself. A caller that
            // drops it where blocking is not allowed does not wait for the threads.
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
