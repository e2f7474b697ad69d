//! The connection manager of this process: the state machine of `verbs-cm`, attached to the port's service for management
//! datagrams, and the ids that its connections belong to. On a device that makes connections itself the machine has
//! nothing to do; see `streams`.
//!
//! It owns no queue pair: as in librdmacm, the program's own calls change the state of queue pairs, when it connects,
//! accepts, takes an event and disconnects. Requests of the machine in between are answered at once: an accepted queue
//! pair is in RTS before the peer confirms, and one whose peer is gone goes to ERR when the program disconnects it.

pub(in crate::rdmacm) mod carrier;
pub(in crate::rdmacm) mod endpoint;
mod listed;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::{Arc, Once, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use parking_lot::Mutex;
use verbs_abi as abi;
use verbs_cm::sa::SaClient;
use verbs_cm::{Cm, Config, ConnId, ListenId, Port, ResolveId, Watch};
use verbs_core::cm::CmBinder;
use verbs_core::event::{EventWatcher, Undelivered};
use verbs_core::host::HostPorts;
use verbs_core::mad::{
    Address, Class, Delivery, MadBytes, MadClient, MadService, Method, PortInfo, TimeCode,
};
use verbs_core::time;
use verbs_core::{AsyncEvent, Device, DeviceCap, QpState, Seed, collect, defer};

use crate::call::Errno;
use crate::call::live::look;
use crate::device::open;
use crate::device::{self, Network, PORT};
use crate::memory;
use crate::rdmacm::address::ports::Ports;
use crate::rdmacm::manager::carrier::Carrier;
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
    carrier: Carrier,
    /// Never held while anything is reported or sent.
    inner: Mutex<Inner>,
    /// The open device that ids are on, and the domain of ids that name none.
    verbs: *mut abi::Context,
    pd: *mut abi::Pd,
    peers: Arc<Peers>,
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

/// The state that the lock guards.
pub(in crate::rdmacm) struct Inner {
    pub(in crate::rdmacm) cm: Cm,
    pub(in crate::rdmacm) ports: Ports,
    pub(in crate::rdmacm) conns: BTreeMap<ConnId, Arc<Endpoint>>,
    pub(in crate::rdmacm) listeners: BTreeMap<ListenId, Arc<Endpoint>>,
    pub(in crate::rdmacm) questions: BTreeMap<ResolveId, Arc<Endpoint>>,
    /// The port as the machine knows it.
    port: Arc<PortInfo>,
    /// A thread is handling the outputs, including those that others cause in the meantime.
    busy: bool,
    /// When the timer next wakes the manager.
    alarm: Option<time::Instant>,
}

/// Outputs of the machine.
#[derive(Default)]
struct Batch {
    mads: Vec<(Address, MadBytes)>,
    arrivals: Vec<(Arc<Endpoint>, What)>,
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
        let device = made.hca.open().wait()?;
        let (verbs, pd) = shown_device()?;
        let peers = Arc::<Peers>::default();
        let carrier = if made.network == Network::Iwarp {
            // SAFETY: opened just now, and never closed. Endpoints are of the device that queue pairs are on.
            let context = unsafe { look::<device::Context, _>(verbs) }?;
            Carrier::Verbs {
                binder: context.device.cm_binder(),
                port: Arc::new(block_on(PortInfo::read(device.target(), PORT))?),
                clock: made.clock,
            }
        } else {
            let service = block_on(MadService::of(&device, PORT))?;
            let client: Arc<dyn MadClient> = Arc::<Peers>::clone(&peers);
            let version = verbs_cm::wire::CLASS_VERSION;
            let agent =
                service.register(Class::CM, version, &[Method::SEND], Arc::downgrade(&client));
            // Another manager in this process has it; this library makes none.
            let agent = agent.map_err(|_| Errno::BUSY)?;
            Carrier::Mads { service, agent }
        };
        let info = carrier.port();
        let ports = Ports::new(carrier.now().as_nanos() ^ u64::from(std::process::id()) << 20);
        let number = match &carrier {
            Carrier::Mads { agent, .. } => agent.id().number(),
            Carrier::Verbs { .. } => 0,
        };
        // A simulated device, whose runs repeat, says a number.
        let simulated = device.target().provider_of().seed();
        let seed = simulated.map_or_else(Seed::from_system, Seed::from);
        let watch = simulated.is_none().then(|| Watch {
            silence: made.keepalive,
            ..Watch::default()
        });
        let machine = Cm::new(limits(watch), port_of(&info), number, seed);
        let watcher: Arc<dyn EventWatcher> = Arc::<Peers>::clone(&peers);
        device.target().watch_events(&watcher);
        let manager = Arc::new(Self {
            inner: Mutex::new(Inner {
                cm: machine,
                ports,
                conns: BTreeMap::new(),
                listeners: BTreeMap::new(),
                questions: BTreeMap::new(),
                port: info,
                busy: false,
                alarm: None,
            }),
            carrier,
            verbs,
            pd,
            peers,
            device,
            administrator: OnceLock::new(),
            xrcd: OnceLock::new(),
        });
        let _ = manager.peers.0.set(Arc::downgrade(&manager));
        Ok(manager)
    }

    /// What binds endpoints, where the device makes connections itself.
    pub(in crate::rdmacm) fn binder(&self) -> Option<&CmBinder> {
        self.carrier.binder()
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
        port_of(&self.carrier.port())
    }

    /// The attributes of the device.
    pub(in crate::rdmacm) fn device(&self) -> Arc<verbs_core::DeviceAttr> {
        Arc::clone(&self.carrier.port().device)
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
        let info = self.carrier.port();
        let address = |(_, gid): &(u16, verbs_core::Gid)| IpAddr::from(*gid).to_canonical();
        info.gids.iter().map(address).collect()
    }

    /// The port numbers that are shared with other processes, if they are.
    pub(in crate::rdmacm) fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        self.carrier.host_ports()
    }

    /// Calls the machine, and handles its outputs.
    pub(in crate::rdmacm) fn with<R>(
        self: &Arc<Self>,
        call: impl FnOnce(&mut Inner, time::Instant) -> R,
    ) -> R {
        collect(|| {
            let result = {
                let mut inner = self.inner.lock();
                // Under the lock, so that the machine's time does not run backwards.
                let now = self.carrier.now();
                let port = self.carrier.port();
                if !Arc::ptr_eq(&port, &inner.port) {
                    inner.cm.port_changed(port_of(&port));
                    inner.port = port;
                }
                call(&mut inner, now)
            };
            self.pump();
            result
        })
    }

    /// Handles the outputs until there are none.
    fn pump(self: &Arc<Self>) {
        loop {
            let batch = {
                let mut inner = self.inner.lock();
                if inner.busy {
                    return;
                }
                let now = self.carrier.now();
                let Some(batch) = inner.outputs(now) else {
                    return self.set_alarm(&mut inner);
                };
                inner.busy = true;
                batch
            };
            if !batch.mads.is_empty() {
                self.carrier.send(batch.mads);
            }
            for (endpoint, what) in batch.arrivals {
                endpoint.tell(what);
            }
            self.inner.lock().busy = false;
        }
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
        while self.inner.lock().busy && Instant::now() < late {
            nap();
        }
        let mut drained = std::pin::pin!(self.carrier.drained());
        let mut cx = Context::from_waker(Waker::noop());
        while drained.as_mut().poll(&mut cx) == Poll::Pending && Instant::now() < late {
            nap();
        }
    }

    /// Sets the timer to the machine's next deadline.
    fn set_alarm(self: &Arc<Self>, inner: &mut Inner) {
        let (Some(due), Some(timer)) = (inner.cm.poll_timeout(), self.carrier.timer()) else {
            return;
        };
        if inner.alarm.is_some_and(|alarm| alarm <= due) {
            return;
        }
        inner.alarm = Some(due);
        timer.wake_at(due, Waker::from(Arc::new(Alarm(Arc::downgrade(self), due))));
    }

    fn timeout(self: &Arc<Self>, set: time::Instant) {
        self.with(|inner, now| {
            if inner.alarm == Some(set) {
                inner.alarm = None;
            }
            inner.cm.handle_timeout(now);
        });
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

impl Inner {
    /// Takes the waiting outputs; `None` when there are none.
    fn outputs(&mut self, now: time::Instant) -> Option<Batch> {
        let mut batch = Batch::default();
        loop {
            let before = batch.arrivals.len();
            let mut answered = false;
            while let Some(change) = self.cm.poll_qp_change() {
                match self.is_due_here(change.conn, change.attr.state) {
                    Due::ByProgram => {}
                    Due::Reply(endpoint) => {
                        batch.arrivals.push((endpoint, What::Reply(change.conn)));
                    }
                    Due::Done => {
                        self.cm.qp_modified(now, change.conn, Ok(()));
                        answered = true;
                    }
                }
            }
            while let Some(event) = self.cm.poll_event() {
                batch.arrivals.extend(self.arrival(now, event));
            }
            if !answered && batch.arrivals.len() == before {
                break;
            }
        }
        batch
            .mads
            .extend(std::iter::from_fn(|| self.cm.poll_transmit()));
        let is_empty = batch.mads.is_empty() && batch.arrivals.is_empty();
        (!is_empty).then_some(batch)
    }

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

/// Where a modify is made.
enum Due {
    /// By the program, in a current or later call.
    ByProgram,
    /// The program, when it takes the reply.
    Reply(Arc<Endpoint>),
    /// It is made, or not needed.
    Done,
}

/// The port as the machine sees it.
fn port_of(info: &PortInfo) -> Port {
    Port {
        number: info.number,
        ca_guid: info.device.node_guid,
        link_layer: info.port.link_layer,
        lid: info.port.lid,
        gids: info.gids.clone(),
        mtu: info.port.active_mtu,
        ack_delay: TimeCode::new(info.device.local_ca_ack_delay),
        // librdmacm has no call for alternate paths; those of peers are taken.
        migrates: info.device.caps.contains(DeviceCap::AUTO_PATH_MIG),
    }
}

/// Input from peers: datagrams, and the network's report that one was refused.
#[derive(Default)]
struct Peers(OnceLock<Weak<Manager>>);

impl Peers {
    fn manager(&self) -> Option<Arc<Manager>> {
        self.0.get()?.upgrade()
    }
}

impl MadClient for Peers {
    fn deliver(&self, delivery: Delivery) {
        // The manager only sends datagrams that no response belongs to.
        if let (Some(manager), Delivery::Request { from, mad, .. }) = (self.manager(), delivery) {
            manager.with(|inner, now| inner.cm.handle(now, from, &mad));
        }
    }
}

impl EventWatcher for Peers {
    fn event(&self, _event: AsyncEvent) {}

    fn undelivered(&self, mad: Undelivered) {
        if let Some(manager) = self.manager() {
            manager.with(|inner, now| inner.cm.undelivered(now, mad.dgid, mad.tid));
        }
    }
}

/// Wakes the connection manager; does not keep it alive.
struct Alarm(Weak<Manager>, time::Instant);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(manager) = self.0.upgrade() {
            let set = self.1;
            defer(move || manager.timeout(set));
        }
    }
}
