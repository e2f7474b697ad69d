//! The connection manager of this process: the state machine of `verbs-cm`, attached to the port's service for management
//! datagrams, and the ids that its connections belong to.
//!
//! It owns no queue pair: as in librdmacm, queue pairs are moved by the program's own calls, when it connects, accepts,
//! takes an event and disconnects. What the machine asks for in between is answered at once: an accepted queue pair
//! is in RTS before the peer confirms, and one whose peer is gone goes to ERR when the program disconnects it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::{Arc, Once, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use parking_lot::Mutex;
use verbs_abi as abi;
use verbs_cm::{Cm, Config, ConnId, ListenId, Port, ResolveId};
use verbs_core::event::{EventWatcher, Undelivered};
use verbs_core::mad::{
    Address, Class, Delivery, MadAgent, MadBytes, MadClient, MadService, Method, PortInfo, Time,
    TimeCode,
};
use verbs_core::{AsyncEvent, Device, QpState, Seed, collect, defer};

use super::endpoint::{Endpoint, Reply, Role, What};
use super::ports::Ports;
use crate::call::Errno;
use crate::device::{self, PORT};
use crate::{memory, open};

/// The connection manager, once the program has used one.
static MANAGER: Mutex<Option<Arc<Manager>>> = Mutex::new(None);

/// How long a process that ends may take to say goodbye.
const GOODBYE: Duration = Duration::from_millis(200);

/// The connection manager of the device's port.
pub(super) struct Manager {
    service: MadService,
    agent: MadAgent,
    /// Never held while anything is told or sent.
    inner: Mutex<Inner>,
    /// The open device that ids are on, and the domain of those who name none.
    verbs: *mut abi::Context,
    pd: *mut abi::Pd,
    peers: Arc<Peers>,
    _device: Device,
}

// SAFETY: the pointers are to objects of this library that stay as long as the process; nobody writes through them.
unsafe impl Send for Manager {}
// SAFETY: as above.
unsafe impl Sync for Manager {}

/// Limits of the machine: a program may make thousands of connections at once, to one peer. Where the defaults keep forged
/// requests at a quarter of the places and those of one source at a sixteenth, these do too, of 16 times as many.
fn limits() -> Config {
    Config {
        connections_max: 65_536,
        half_open_max: 16_384,
        half_open_per_source_max: 4096,
        timewait_max: 65_536,
        resolutions_max: 16_384,
        transmits_max: 65_536,
        ..Config::default()
    }
}

/// What the lock guards.
pub(super) struct Inner {
    pub(super) cm: Cm,
    pub(super) ports: Ports,
    pub(super) conns: BTreeMap<ConnId, Arc<Endpoint>>,
    pub(super) listeners: BTreeMap<ListenId, Arc<Endpoint>>,
    pub(super) questions: BTreeMap<ResolveId, Arc<Endpoint>>,
    /// The port as the machine knows it.
    port: Arc<PortInfo>,
    /// A thread sees to the outputs, and to those that others bring about.
    busy: bool,
    /// When the timer wakes us next.
    alarm: Option<Time>,
}

/// Outputs of the machine.
#[derive(Default)]
struct Batch {
    mads: Vec<(Address, MadBytes)>,
    arrivals: Vec<(Arc<Endpoint>, What)>,
}

/// The connection manager, opened by the first that asks.
pub(super) fn manager() -> Result<Arc<Manager>, Errno> {
    let mut place = MANAGER.lock();
    if let Some(manager) = &*place {
        return Ok(Arc::clone(manager));
    }
    let manager = Manager::open()?;
    static ONCE: Once = Once::new();
    // SAFETY: a function of this library, which is never unloaded. Without it peers are not told when the process ends.
    ONCE.call_once(|| unsafe {
        libc::atexit(leave);
    });
    Ok(Arc::clone(place.insert(manager)))
}

/// The connection manager, if there is one.
pub(super) fn existing() -> Option<Arc<Manager>> {
    MANAGER.lock().clone()
}

/// No other thread has the lock while the process forks.
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

/// The process ends: peers are told, as the kernel tells them.
extern "C" fn leave() {
    let Some(manager) = MANAGER.try_lock().and_then(|manager| manager.clone()) else {
        return;
    };
    manager.with(|inner, now| inner.cm.disconnect_all(now));
    let mut drained = std::pin::pin!(manager.service.drained());
    let mut cx = Context::from_waker(Waker::noop());
    let late = Instant::now() + GOODBYE;
    while drained.as_mut().poll(&mut cx) == Poll::Pending && Instant::now() < late {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Manager {
    fn open() -> Result<Arc<Self>, Errno> {
        let hca = device::hca()?.hca;
        let device = hca.open().wait()?;
        let service = block_on(MadService::of(&device, PORT))?;
        // SAFETY: as a program lists and opens devices; the list is freed once.
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
        if pd.is_null() {
            return Err(Errno::NOMEM);
        }
        let peers = Arc::<Peers>::default();
        let client: Arc<dyn MadClient> = Arc::<Peers>::clone(&peers);
        let version = verbs_cm::wire::CLASS_VERSION;
        let agent = service.register(Class::CM, version, &[Method::SEND], Arc::downgrade(&client));
        // Another manager in this process, of which this library makes none.
        let agent = agent.map_err(|_| Errno::BUSY)?;
        let info = service.port();
        let ports = Ports::new(service.now().as_nanos() ^ u64::from(std::process::id()) << 20);
        let machine = Cm::new(
            limits(),
            port_of(&info),
            agent.id().number(),
            Seed::from_system(),
        );
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
            service,
            agent,
            verbs,
            pd,
            peers,
            _device: device,
        });
        let _ = manager.peers.0.set(Arc::downgrade(&manager));
        Ok(manager)
    }

    /// The open device that ids are on.
    pub(super) fn verbs(&self) -> *mut abi::Context {
        self.verbs
    }

    /// The domain of ids whose program names none.
    pub(super) fn pd(&self) -> *mut abi::Pd {
        self.pd
    }

    /// What is known of the port.
    pub(super) fn port(&self) -> Port {
        port_of(&self.service.port())
    }

    /// What the device can do.
    pub(super) fn device(&self) -> Arc<verbs_core::DeviceAttr> {
        Arc::clone(&self.service.port().device)
    }

    /// The addresses of the port.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let info = self.service.port();
        let address = |(_, gid): &(u16, verbs_core::Gid)| IpAddr::from(*gid).to_canonical();
        info.gids.iter().map(address).collect()
    }

    /// Calls the machine, and sees to what follows.
    pub(super) fn with<R>(self: &Arc<Self>, call: impl FnOnce(&mut Inner, Time) -> R) -> R {
        collect(|| {
            let result = {
                let mut inner = self.inner.lock();
                // Under the lock, so that the machine's time does not go back.
                let now = self.service.now();
                let port = self.service.port();
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

    /// Sees to the outputs until there are none.
    fn pump(self: &Arc<Self>) {
        loop {
            let batch = {
                let mut inner = self.inner.lock();
                if inner.busy {
                    return;
                }
                let now = self.service.now();
                let Some(batch) = inner.outputs(now) else {
                    return self.set_alarm(&mut inner);
                };
                inner.busy = true;
                batch
            };
            if !batch.mads.is_empty() {
                self.agent.send(batch.mads);
            }
            for (endpoint, what) in batch.arrivals {
                endpoint.tell(what);
            }
            self.inner.lock().busy = false;
        }
    }

    /// Has the timer wake us when the next thing is due.
    fn set_alarm(self: &Arc<Self>, inner: &mut Inner) {
        let (Some(due), Some(timer)) = (inner.cm.poll_timeout(), self.service.timer()) else {
            return;
        };
        if inner.alarm.is_some_and(|alarm| alarm <= due) {
            return;
        }
        inner.alarm = Some(due);
        timer.wake_at(due, Waker::from(Arc::new(Alarm(Arc::downgrade(self), due))));
    }

    fn timeout(self: &Arc<Self>, set: Time) {
        self.with(|inner, now| {
            if inner.alarm == Some(set) {
                inner.alarm = None;
            }
            inner.cm.handle_timeout(now);
        });
    }
}

impl Inner {
    /// Takes what waits; `None` when there is nothing.
    fn outputs(&mut self, now: Time) -> Option<Batch> {
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

    /// A modify that the machine wants: whether the program makes it in a call, or has made it, or makes it later.
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
            (Role::Active { .. }, _) => Due::ByProgram,
            // On the way to RTR the program is in its accept; RTS it has made there.
            (_, Some(QpState::Rtr)) => Due::ByProgram,
            _ => Due::Done,
        }
    }
}

/// Who makes a modify.
enum Due {
    /// The program, in a call that is under way or to come.
    ByProgram,
    /// The program, when it takes the reply.
    Reply(Arc<Endpoint>),
    /// It is made, or not wanted.
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
    }
}

/// What comes from peers: datagrams, and the network's word that one was refused.
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

/// Wakes the connection manager; keeps it from nothing.
struct Alarm(Weak<Manager>, Time);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(manager) = self.0.upgrade() {
            let set = self.1;
            defer(move || manager.timeout(set));
        }
    }
}
