//! A subnet with attached HCAs of this process: the attached ports, and the packets for them.

mod manager;
mod port;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use verbs_core::mad::sm::LinkState;
use verbs_core::sync::plain::Mutex;
use verbs_core::sync::{Arc, Weak};
use verbs_core::time::Instant;
use verbs_core::{Gid, Lid, PortState, Qpn, defer};

use crate::agent::sma::SmaChange;
use crate::packet::Packet;
use crate::subnet::Subnet;
use crate::topology::PortRef;
use verbs_link::Change;
use verbs_link::time::Clock;
use verbs_link::time::{Due, Engine};

use manager::Manager;

pub(super) use manager::tables_of;
pub use port::SubnetPort;

/// Packets that wait at a port to be received; further ones are dropped, as by any receiver without buffers.
const ROOM: usize = 4096;
/// Changes that have not been reported to a port's HCA yet; beyond that, the oldest are dropped.
const CHANGES_MAX: usize = 64;

/// A subnet to which HCAs of this process can be attached.
///
/// An HCA of `hca-sim` on a [port](Self::attach) is an InfiniBand device: its packets are routed by LID, and
/// switches forward them by the tables that the subnet's manager has written. So until a manager has brought the
/// ports up, only subnet management packets pass: the HCA has queue pair 0, and a client of its
/// [`MadService`](verbs_core::mad::MadService) sends datagrams by directed routes and by LIDs, and can therefore
/// be the subnet's manager. A manager's settings of the port become attributes and events of the device.
///
/// An address with a GID and no LID is resolved to the LID that the GID has when the packet leaves.
///
/// ```
/// use verbs_link::PacketLink;
/// use verbs_subnet::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
///
/// let mut topology = Topology::new();
/// let (switch, node) = (topology.switch("Sw", 4)?, topology.hca("A", 1)?);
/// topology.link((switch, 3), (node, 1))?;
/// let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
/// let at = PortRef { node, port: 1 };
/// let link = subnet.attach(at, 1).expect("it is free");
/// assert!(subnet.attach(at, 1).is_none(), "as long as the link lives");
/// assert!(link.managed().is_some(), "a subnet manager configures it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedSubnet {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Shared>,
    /// The source of time, if time passes by itself.
    engine: Option<Engine>,
}

struct Shared {
    subnet: Subnet,
    /// The latest time passed to the subnet.
    now: Instant,
    /// Attached ports.
    ports: BTreeMap<PortRef, Coming>,
    /// Where GIDs were found.
    gids: BTreeMap<Gid, PortRef>,
    /// Ports with arrivals whose HCAs have not been called yet.
    fed: Vec<PortRef>,
    /// When the engine calls next.
    alarm: Option<Instant>,
}

/// The arrivals at a port.
#[derive(Default)]
struct Coming {
    packets: VecDeque<Packet>,
    changes: VecDeque<Change>,
    listener: Option<Weak<dyn Due>>,
}

/// The target of the engine's calls; it does not keep the subnet alive.
struct Alarm(Weak<Inner>);

impl Due for Alarm {
    fn due(&self, _now: Instant, _token: u64) {
        if let Some(inner) = self.0.upgrade() {
            inner.state.lock().alarm = None;
            inner.act(|shared, now| shared.subnet.handle_timeout(now));
        }
    }
}

impl SharedSubnet {
    /// Lets HCAs be attached to a subnet in which no time passes by itself. Links without delay need no time; but
    /// traps are not repeated, unless the caller runs [`Subnet::handle_timeout`] through [`with`](Self::with).
    pub fn new(subnet: Subnet) -> Self {
        Self::made(subnet, None)
    }

    /// The same with the time of a clock.
    pub fn timed(subnet: Subnet, clock: impl Into<Clock>) -> Self {
        Self::made(subnet, Some(Engine::new(clock)))
    }

    fn made(subnet: Subnet, engine: Option<Engine>) -> Self {
        let shared = Shared {
            subnet,
            now: Instant::ZERO,
            ports: BTreeMap::new(),
            gids: BTreeMap::new(),
            fed: Vec::new(),
            alarm: None,
        };
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(shared),
                engine,
            }),
        }
    }

    /// Calls `act` with the subnet, at that time, or later if it was already given a later one. Packets for
    /// attached ports are delivered to them. Never call it from within `act`.
    pub fn with<T>(&self, now: Instant, act: impl FnOnce(&mut Subnet) -> T) -> T {
        self.inner.act(|shared, before| {
            shared.now = before.max(now);
            shared.gids.clear();
            act(&mut shared.subnet)
        })
    }

    /// The link of a port of an adapter, for its sole use. `None` if there is no such port, or it is taken.
    pub fn attach(&self, at: PortRef, seed: u64) -> Option<SubnetPort> {
        let mut shared = self.inner.state.lock();
        let node = shared
            .subnet
            .node(at.node)
            .filter(|node| !node.is_switch())?;
        let gid = node.port(at.port)?.gid(0)?;
        let mtu = node.port(at.port)?.info().mtu_cap.value();
        if shared.ports.contains_key(&at) {
            return None;
        }
        shared.ports.insert(at, Coming::default());
        drop(shared);
        let manager = Manager::new(Arc::clone(&self.inner), at);
        Some(SubnetPort::new(manager, gid, mtu, seed))
    }
}

impl Inner {
    /// Calls `act` with the subnet, then calls the listeners of ports with arrivals.
    fn act<T>(self: &Arc<Self>, act: impl FnOnce(&mut Shared, Instant) -> T) -> T {
        let (done, listeners) = self.act_and_tell(act);
        for listener in listeners {
            defer(move || listener.due(Instant::ZERO, 0));
        }
        done
    }

    /// Calls `act` with the subnet. Returns the listeners to call when no lock is held.
    fn act_and_tell<T>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Shared, Instant) -> T,
    ) -> (T, Vec<Arc<dyn Due>>) {
        let mut shared = self.state.lock();
        if let Some(engine) = &self.engine {
            let now = engine.now();
            shared.now = shared.now.max(now);
        }
        let now = shared.now;
        let done = act(&mut shared, now);
        shared.hand_out();
        self.set_alarm(&mut shared);
        (done, shared.listeners())
    }

    fn set_alarm(self: &Arc<Self>, shared: &mut Shared) {
        let (Some(engine), Some(due)) = (&self.engine, shared.subnet.poll_timeout()) else {
            return;
        };
        if shared.alarm.is_none_or(|alarm| due < alarm) {
            shared.alarm = Some(due);
            let alarm = Arc::new(Alarm(Arc::downgrade(self)));
            // A call that is too early finds nothing to do.
            let _ = engine.at(due, alarm, 0);
        }
    }
}

impl Shared {
    /// Delivers arrivals to attached ports.
    fn hand_out(&mut self) {
        while let Some((at, packet)) = self.subnet.poll_delivery() {
            if let Some(coming) = self.ports.get_mut(&at)
                && coming.packets.len() < ROOM
            {
                coming.packets.push_back(packet);
                self.fed.push(at);
            }
        }
        while let Some(event) = self.subnet.poll_event() {
            self.gids.clear();
            let Some(change) = change_of(event.change) else {
                continue;
            };
            if let Some(coming) = self.ports.get_mut(&event.at) {
                if coming.changes.len() >= CHANGES_MAX {
                    coming.changes.pop_front();
                }
                coming.changes.push_back(change);
                self.fed.push(event.at);
            }
        }
    }

    /// The listeners to call.
    fn listeners(&mut self) -> Vec<Arc<dyn Due>> {
        self.fed.dedup();
        let fed = self.fed.drain(..).filter_map(|at| {
            let coming = self.ports.get(&at)?;
            coming.listener.as_ref()?.upgrade()
        });
        fed.collect()
    }

    /// The LID of the port with that GID; `None` if there is none, or it has no LID yet.
    fn lid_of(&mut self, gid: Gid) -> Option<Lid> {
        let known = self.gids.get(&gid).copied();
        let at = known.or_else(|| self.subnet.find_gid(gid))?;
        self.gids.insert(gid, at);
        Some(self.subnet.lid(at)).filter(|&lid| lid != Lid(0))
    }

    /// Frees the port.
    fn detach(&mut self, at: PortRef) {
        self.ports.remove(&at);
        for qpn in [0, 1] {
            self.subnet.attend(at, Qpn::new(qpn), false);
        }
    }
}

/// The change as the HCA of a port sees it.
pub(super) fn change_of(change: SmaChange) -> Option<Change> {
    Some(match change {
        SmaChange::State(LinkState::ACTIVE) => Change::Up,
        SmaChange::State(LinkState::DOWN) => Change::Down,
        SmaChange::State(state) => Change::State(state.port_state().unwrap_or(PortState::Nop)),
        SmaChange::Lid => Change::Lids,
        SmaChange::SubnetManager => Change::SubnetManager,
        SmaChange::Reregister => Change::Reregister,
        SmaChange::PKeys => Change::PKeys,
        SmaChange::Gids => Change::Addresses,
        // The link itself reports the outcome.
        SmaChange::Restart(_) => return None,
    })
}

impl fmt::Debug for SharedSubnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.inner.state.lock();
        f.debug_struct("SharedSubnet")
            .field("nodes", &shared.subnet.len())
            .field("attached", &shared.ports.len())
            .finish_non_exhaustive()
    }
}
