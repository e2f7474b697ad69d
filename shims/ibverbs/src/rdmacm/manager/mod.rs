//! The connection manager of this process: the state machine of `verbs-cm` with its driver, and the ids that its connections
//! belong to. On a device that makes connections itself the machine has
//! nothing to do; see `streams`.
//!
//! It owns no queue pair: as in librdmacm, the program's own calls change the state of queue pairs, when it connects,
//! accepts, takes an event and disconnects. Requests of the machine in between are answered at once: an accepted queue
//! pair is in RTS before the peer confirms, and one whose peer is gone goes to ERR when the program disconnects it.

pub(in crate::rdmacm) mod endpoint;
mod listed;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::{Arc, Once, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::clock::Clock;
use parking_lot::Mutex;
use verbs_abi as abi;
use verbs_cm::driver::{self, Attached, Driver, Owner, port_of};
use verbs_cm::sa::SaClient;
use verbs_cm::{Config, ConnId, ListenId, Port, ResolveId, Watch};
use verbs_core::cm::CmBinder;
use verbs_core::host::HostPorts;
use verbs_core::mad::{MadService, PortInfo};
use verbs_core::time;
use verbs_core::{Device, QpState, Seed};

use crate::call::Errno;
use crate::call::live::look;
use crate::device::open;
use crate::device::{self, Network, PORT};
use crate::memory;
use crate::rdmacm::address::ports::Ports;
use crate::rdmacm::channel::arrival::arrival;
use crate::rdmacm::manager::endpoint::{Endpoint, Reply, Role, What};
use crate::srq::xrcd::open_xrcd;

pub(crate) use self::listed::publish;

/// The connection manager, once the program has used one.
static MANAGER: Mutex<Option<Arc<Manager>>> = Mutex::new(None);

/// How long a process that ends may take to inform its peers.
const GOODBYE: Duration = Duration::from_millis(200);
/// How long a call waits at most until its datagram has left.
const LEAVES: Duration = Duration::from_millis(50);

/// The connection manager of the device's port.
pub(in crate::rdmacm) struct Manager {
    driver: Driver<Self>,
    /// What binds endpoints, where the device makes connections itself.
    binder: Option<CmBinder>,
    /// The open device that ids are on, and the domain of ids that name none.
    verbs: *mut abi::Context,
    pd: *mut abi::Pd,
    device: Device,
    /// The subnet's administrator, once an id has asked for a path.
    administrator: OnceLock<SaClient>,
    /// The domain of extended connections, once an id has asked for it; by the address of its handle.
    xrcd: OnceLock<usize>,
}

// SAFETY: the pointers are to objects of this library that stay as long as the process; nothing writes through them.
unsafe impl Send for Manager {}
// SAFETY: as above.
unsafe impl Sync for Manager {}

/// Limits of the machine: a program may make thousands of connections at once, to one peer. The defaults limit forged
/// requests to a quarter of the places and those of one source to a sixteenth; so do these, of 16 times as many places.
fn limits(watch: Option<Watch>) -> Config {
    Config {
        connections_max: 65_536,
        half_open_max: 16_384,
        half_open_per_source_max: 4096,
        timewait_max: 65_536,
        resolutions_max: 16_384,
        transmits_max: 65_536,
        watch,
        ..Config::default()
    }
}

/// What the lock guards. Never held while anything is reported or sent.
pub(in crate::rdmacm) type Inner = driver::Inner<Manager>;

/// What it guards beside the machine.
pub(in crate::rdmacm) struct Kept {
    pub(in crate::rdmacm) ports: Ports,
    pub(in crate::rdmacm) conns: BTreeMap<ConnId, Arc<Endpoint>>,
    pub(in crate::rdmacm) listeners: BTreeMap<ListenId, Arc<Endpoint>>,
    pub(in crate::rdmacm) questions: BTreeMap<ResolveId, Arc<Endpoint>>,
}

/// The connection manager, opened by the first caller.
pub(in crate::rdmacm) fn manager() -> Result<Arc<Manager>, Errno> {
    let mut place = MANAGER.lock();
    if let Some(manager) = &*place {
        return Ok(Arc::clone(manager));
    }
    let manager = Manager::open()?;
    static ONCE: Once = Once::new();
    // SAFETY: a function of this library, which is never unloaded. Without it peers are not informed when the process
    // ends.
    ONCE.call_once(|| unsafe {
        libc::atexit(leave);
    });
    Ok(Arc::clone(place.insert(manager)))
}

/// The connection manager, if there is one.
pub(in crate::rdmacm) fn existing() -> Option<Arc<Manager>> {
    MANAGER.lock().clone()
}

/// Ensures that no other thread holds the lock while the process forks.
pub(crate) fn before_fork() {
    std::mem::forget(MANAGER.lock());
}

pub(crate) fn after_fork_in_parent() {
    // SAFETY: this thread has locked it in `before_fork`.
    unsafe { MANAGER.force_unlock() }
}

/// The child begins without one: the parent's stays in its memory, with none of the threads that serve it.
pub(crate) fn after_fork_in_child() {
    // SAFETY: as in the parent, whose thread this is a copy of.
    unsafe { MANAGER.force_unlock() }
    std::mem::forget(MANAGER.lock().take());
}

/// The process ends: peers are informed, as the kernel would do.
extern "C" fn leave() {
    let Some(manager) = MANAGER.try_lock().and_then(|manager| manager.clone()) else {
        return;
    };
    manager.with(|inner, now| inner.cm.disconnect_all(now));
    manager.flush(GOODBYE);
}

impl Manager {
    fn open() -> Result<Arc<Self>, Errno> {
        let made = device::hca()?;
        let device = made.opened()?;
        let (verbs, pd) = shown_device()?;
        let way = if made.network == Network::Iwarp {
            // SAFETY: opened just now, and never closed. Endpoints are of the device that queue pairs are on.
            let context = unsafe { look::<device::Context, _>(verbs) }?;
            let port = Arc::new(block_on(PortInfo::read(device.target(), PORT))?);
            Way::Verbs(context.device.cm_binder(), port, made.clock)
        } else {
            Way::Messages(block_on(MadService::of(&device, PORT))?)
        };
        // A simulated device, whose runs repeat, says a number.
        let simulated = device.target().provider_of().seed();
        let seed = simulated.map_or_else(Seed::from_system, Seed::from);
        let watch = simulated.is_none().then(|| Watch {
            silence: made.keepalive,
            ..Watch::default()
        });
        let manager = Arc::new_cyclic(|weak: &Weak<Self>| {
            let (below, weak) = (device.target(), Weak::clone(weak));
            let (attached, binder) = match way {
                Way::Messages(service) => (Attached::to(service, below, weak), None),
                Way::Verbs(binder, port, clock) => {
                    let now = move || clock.now();
                    (Attached::to_none(port, now, below, weak), Some(binder))
                }
            };
            let start = attached.now().as_nanos() ^ u64::from(std::process::id()) << 20;
            let kept = Kept {
                ports: Ports::new(start),
                conns: BTreeMap::new(),
                listeners: BTreeMap::new(),
                questions: BTreeMap::new(),
            };
            Self {
                driver: attached.drive(limits(watch), seed, kept),
                binder,
                verbs,
                pd,
                device,
                administrator: OnceLock::new(),
                xrcd: OnceLock::new(),
            }
        });
        match manager.driver.attached().refused() {
            None => Ok(manager),
            // Another manager in this process has the messages; this library makes none.
            Some(_) => Err(Errno::BUSY),
        }
    }

    /// What binds endpoints, where the device makes connections itself.
    pub(in crate::rdmacm) fn binder(&self) -> Option<&CmBinder> {
        self.binder.as_ref()
    }

    /// The open device that ids are on.
    pub(in crate::rdmacm) fn verbs(&self) -> *mut abi::Context {
        self.verbs
    }

    /// The domain of ids whose program names none.
    pub(in crate::rdmacm) fn pd(&self) -> *mut abi::Pd {
        self.pd
    }

    /// The known state of the port.
    pub(in crate::rdmacm) fn port(&self) -> Port {
        port_of(&self.driver.attached().port())
    }

    /// The attributes of the device.
    pub(in crate::rdmacm) fn device(&self) -> Arc<verbs_core::DeviceAttr> {
        Arc::clone(&self.driver.attached().port().device)
    }

    /// What knows the paths of the subnet.
    pub(in crate::rdmacm) fn administrator(&self) -> Result<SaClient, Errno> {
        if let Some(client) = self.administrator.get() {
            return Ok(client.clone());
        }
        let client = SaClient::of(&self.device, PORT).wait();
        let client = client.map_err(|_| Errno(libc::ENODEV))?;
        Ok(self.administrator.get_or_init(|| client).clone())
    }

    /// The domain of extended connections, which all ids share.
    pub(in crate::rdmacm) fn xrcd(&self) -> Result<*mut abi::Xrcd, Errno> {
        if let Some(&at) = self.xrcd.get() {
            return Ok(std::ptr::with_exposed_provenance_mut(at));
        }
        let init = abi::XrcdInitAttr {
            // A descriptor, which there is none of, and flags.
            comp_mask: 0b11,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: the open device of the ids; the domain is never closed.
        let xrcd = unsafe { open_xrcd(self.verbs, &raw const init) };
        if xrcd.is_null() {
            return Err(Errno::last());
        }
        let at = *self.xrcd.get_or_init(|| xrcd.expose_provenance());
        Ok(std::ptr::with_exposed_provenance_mut(at))
    }

    /// The addresses of the port.
    pub(in crate::rdmacm) fn addresses(&self) -> Vec<IpAddr> {
        let info = self.driver.attached().port();
        let address = |(_, gid): &(u16, verbs_core::Gid)| IpAddr::from(*gid).to_canonical();
        info.gids.iter().map(address).collect()
    }

    /// The port numbers that are shared with other processes, if they are. Those of TCP are the system's.
    pub(in crate::rdmacm) fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        match &self.binder {
            None => self.device.target().provider_of().host_ports(),
            Some(_) => None,
        }
    }

    /// Calls the machine, and handles its outputs.
    pub(in crate::rdmacm) fn with<R>(
        self: &Arc<Self>,
        call: impl FnOnce(&mut Inner, time::Instant) -> R,
    ) -> R {
        driver::with(self, call)
    }

    /// As [`Manager::with`], and what it sends has left when this returns, as the kernel has it: the program may end at once
    /// after the call, without handlers of exit. Another thread may be in the middle of sending, which takes microseconds.
    pub(in crate::rdmacm) fn with_last_words<R>(
        self: &Arc<Self>,
        call: impl FnOnce(&mut Inner, time::Instant) -> R,
    ) -> R {
        let result = self.with(call);
        self.flush(LEAVES);
        result
    }

    /// Waits until all datagrams have left, or for that long.
    fn flush(&self, patience: Duration) {
        let late = Instant::now() + patience;
        let nap = || std::thread::sleep(Duration::from_millis(1));
        while self.driver.is_busy() && Instant::now() < late {
            nap();
        }
        let mut drained = std::pin::pin!(self.driver.drained());
        let mut cx = Context::from_waker(Waker::noop());
        while drained.as_mut().poll(&mut cx) == Poll::Pending && Instant::now() < late {
            nap();
        }
    }
}

/// The open device that ids are on, and a domain on it, made as a program makes them.
fn shown_device() -> Result<(*mut abi::Context, *mut abi::Pd), Errno> {
    // SAFETY: listing and opening devices as a program does; the list is freed once.
    let (verbs, pd) = unsafe {
        let list = device::get_device_list(null_mut());
        if list.is_null() {
            return Err(Errno::NOMEM);
        }
        let verbs = open::open_device(*list);
        device::free_device_list(list);
        let pd = if verbs.is_null() {
            null_mut()
        } else {
            memory::alloc_pd(verbs)
        };
        (verbs, pd)
    };
    match pd.is_null() {
        true => Err(Errno::NOMEM),
        false => Ok((verbs, pd)),
    }
}

impl Owner for Manager {
    type Kept = Kept;
    type Output = (Arc<Endpoint>, What);

    fn driver(&self) -> &Driver<Self> {
        &self.driver
    }

    fn take(inner: &mut Inner, now: time::Instant, told: &mut Vec<Self::Output>) {
        loop {
            let before = told.len();
            let mut answered = false;
            while let Some(change) = inner.cm.poll_qp_change() {
                match inner.kept.is_due_here(change.conn, change.attr.state) {
                    Due::ByProgram => {}
                    Due::Reply(endpoint) => told.push((endpoint, What::Reply(change.conn))),
                    Due::Done => {
                        inner.cm.qp_modified(now, change.conn, Ok(()));
                        answered = true;
                    }
                }
            }
            while let Some(event) = inner.cm.poll_event() {
                told.extend(arrival(inner, now, event));
            }
            if !answered && told.len() == before {
                break;
            }
        }
    }

    fn tell(self: &Arc<Self>, (endpoint, what): Self::Output) {
        endpoint.tell(what);
    }
}

impl Kept {
    /// A modify that the machine requests: says whether the program makes it in a call, has made it, or makes it later.
    fn is_due_here(&self, conn: ConnId, state: Option<QpState>) -> Due {
        let Some(endpoint) = self.conns.get(&conn) else {
            return Due::Done;
        };
        let mut known = endpoint.state.lock();
        match (&mut known.role, state) {
            (_, Some(QpState::Err)) => Due::Done,
            (
                Role::Active {
                    reply: reply @ Reply::Awaited,
                    ..
                },
                _,
            ) => {
                *reply = Reply::Here;
                Due::Reply(Arc::clone(endpoint))
            }
            (
                Role::Active {
                    reply: Reply::Established,
                    ..
                },
                _,
            ) => Due::Done,
            (Role::Active { .. }, _) => Due::ByProgram,
            // On the way to RTR the program is in its accept, and takes the queue pair to RTS there.
            (_, Some(QpState::Rtr)) => Due::ByProgram,
            _ => Due::Done,
        }
    }
}

/// How peers are reached.
enum Way {
    /// By messages of the connection manager.
    Messages(MadService),
    /// By the device's own verbs, as iWARP has it.
    Verbs(CmBinder, Arc<PortInfo>, Clock),
}

/// Where a modify is made.
enum Due {
    /// By the program, in a current or later call.
    ByProgram,
    /// The program, when it takes the reply.
    Reply(Arc<Endpoint>),
    /// It is made, or not needed.
    Done,
}
