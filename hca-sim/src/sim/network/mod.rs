//! A network in virtual time: ports, the ways between them, and what goes wrong there.
//!
//! A packet leaves when those before it have left, at the rate of its way; it arrives after the way's
//! latency, if it does. Arrivals are deadlines on the clock, which calls the port that they are for. So
//! nothing ever happens inside a call of [`PacketLink::transmit`](crate::link::PacketLink::transmit), and a run is decided by the seed.

mod config;
mod port;
mod way;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use slab::Slab;
use verbs_core::sync::{Arc, Mutex, Weak};

use crate::clock::Instant;
use crate::engine::{Due, Engine};
use crate::link::{Burst, Change, Route, Sent};
use crate::sim::Draw;
use crate::sim::journal::Journal;
use crate::sim::plant::Tamper;
use crate::wire::{Envelope, ROCE_PORT};

pub use config::{Hits, LinkConfig};
pub use port::NetworkPort;
use way::Way;

/// A packet network in virtual time. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    core: Arc<Core>,
}

struct Core {
    me: Weak<Core>,
    engine: Engine,
    journal: Journal,
    state: Mutex<State>,
}

struct State {
    draw: Draw,
    ports: Vec<Port>,
    /// From port `a` to port `b` at `a * PORTS_MAX + b`.
    ways: Vec<Way>,
    flight: Slab<Flight>,
    /// What ways are like that nobody has set.
    config: LinkConfig,
    tamper: Tamper,
    unrouted: u64,
    /// The last packets that passed, for whoever overhears them.
    heard: VecDeque<Overheard>,
}

/// A packet that somebody has overheard.
#[derive(Clone)]
pub(crate) struct Overheard {
    pub(crate) route: Route,
    pub(crate) bytes: Box<[u8]>,
    /// Its number in its burst, which its ICRC covers.
    k: usize,
}

/// Ports of one network at most: the table of ways is of the square of it.
const PORTS_MAX: usize = 64;
/// Packets that wait at a port for its owner at most; more are lost.
const INBOX_MAX: usize = 4096;

/// Packets that are remembered for whoever overhears them.
const HEARD_MAX: usize = 256;

/// One end of the network.
struct Port {
    addresses: Vec<IpAddr>,
    /// Whoever is attached, by number; others have gone.
    owner: Option<u64>,
    listener: Option<Weak<dyn Due>>,
    inbox: VecDeque<Packet>,
    changes: VecDeque<Change>,
    /// Multicast groups that it has joined, as often as it has.
    groups: Vec<IpAddr>,
    up: bool,
}

impl Port {
    fn takes(&self, dst: IpAddr) -> bool {
        self.addresses.contains(&dst) || self.groups.contains(&dst)
    }
}

/// A packet at the port that it is for.
struct Packet {
    src: IpAddr,
    dst: IpAddr,
    tclass: u8,
    ident: u16,
    bytes: Box<[u8]>,
}

/// A packet on its way.
struct Flight {
    to: usize,
    packet: Packet,
}

impl Network {
    pub(crate) fn new(engine: Engine, journal: Journal, mut draw: Draw) -> Self {
        let tamper = Tamper::new(draw.fork());
        let core = Arc::new_cyclic(|me| Core {
            me: Weak::clone(me),
            engine,
            journal,
            state: Mutex::new(State {
                draw,
                ports: Vec::new(),
                ways: Vec::new(),
                flight: Slab::new(),
                config: LinkConfig::default(),
                tamper,
                unrouted: 0,
                heard: VecDeque::new(),
            }),
        });
        Self { core }
    }

    /// Attaches something to the port with those addresses, which is made if there is none: what an HCA
    /// is made [over](crate::Hca::over). What was attached there before hears nothing any more.
    ///
    /// # Panics
    /// If the network has 64 ports already.
    pub fn attach(&self, addresses: &[IpAddr]) -> NetworkPort {
        let mut state = self.core.state.lock();
        let known = state
            .ports
            .iter()
            .position(|port| port.addresses == addresses);
        let index = known.unwrap_or_else(|| state.add_port(addresses));
        let owner = state.draw.number();
        let port = &mut state.ports[index];
        port.owner = Some(owner);
        port.listener = None;
        port.inbox.clear();
        port.changes.clear();
        port.groups.clear();
        if !port.up {
            port.changes.push_back(Change::Down);
        }
        NetworkPort::new(Arc::clone(&self.core), index, owner, addresses)
    }

    /// What all ways are like from now on, also those of ports to come.
    pub fn set_all(&self, config: LinkConfig) {
        let mut state = self.core.state.lock();
        state.config = config;
        state.ways.iter_mut().for_each(|way| way.config = config);
    }

    /// What both ways between two ports are like from now on. Nothing happens if there are no such
    /// addresses.
    pub fn set(&self, a: IpAddr, b: IpAddr, config: LinkConfig) {
        let mut state = self.core.state.lock();
        let (Some(a), Some(b)) = (state.find(a), state.find(b)) else {
            return;
        };
        state.ways[a * PORTS_MAX + b].config = config;
        state.ways[b * PORTS_MAX + a].config = config;
    }

    /// Takes the port with that address out of service, or into it. What is on its way to a port that is
    /// out of service is lost.
    pub fn set_up(&self, address: IpAddr, up: bool) {
        let listener = {
            let mut state = self.core.state.lock();
            let Some(index) = state.find(address) else {
                return;
            };
            let port = &mut state.ports[index];
            if port.up == up {
                return;
            }
            port.up = up;
            port.inbox.clear();
            port.changes
                .push_back(if up { Change::Up } else { Change::Down });
            port.listener.clone()
        };
        // The port hears of it from the clock, whoever calls this.
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            let _ = self.core.engine.at(self.core.engine.now(), listener, 0);
        }
    }

    /// What has gone wrong so far on both ways between two ports.
    pub fn hits(&self, a: IpAddr, b: IpAddr) -> Hits {
        let state = self.core.state.lock();
        match (state.find(a), state.find(b)) {
            (Some(a), Some(b)) => {
                state.ways[a * PORTS_MAX + b].hits + state.ways[b * PORTS_MAX + a].hits
            }
            _ => Hits::default(),
        }
    }

    /// Puts a packet on its way that nobody here has sent: it arrives from that route's source, if the
    /// way there lets it. `bytes` are from the BTH to the ICRC.
    pub fn inject(&self, route: &Route, bytes: &[u8]) {
        let mut state = self.core.state.lock();
        self.core.send(&mut state, route, 0, bytes);
    }

    /// Packets that were for no port of the network.
    pub fn unrouted(&self) -> u64 {
        self.core.state.lock().unrouted
    }

    /// One of the last packets that passed.
    pub(crate) fn overheard(&self, draw: &mut Draw) -> Option<Overheard> {
        let state = self.core.state.lock();
        let at = draw.below(state.heard.len());
        state.heard.get(at).cloned()
    }

    /// Sends a packet again, as it was.
    pub(crate) fn replay(&self, seen: &Overheard) {
        let mut state = self.core.state.lock();
        self.core.send(&mut state, &seen.route, seen.k, &seen.bytes);
    }

    pub(crate) fn tamper<T>(&self, with: impl FnOnce(&mut Tamper) -> T) -> T {
        with(&mut self.core.state.lock().tamper)
    }
}

impl State {
    fn add_port(&mut self, addresses: &[IpAddr]) -> usize {
        assert!(
            self.ports.len() < PORTS_MAX,
            "a network has {PORTS_MAX} ports at most"
        );
        let config = self.config;
        self.ports.push(Port {
            addresses: addresses.to_vec(),
            owner: None,
            listener: None,
            inbox: VecDeque::new(),
            changes: VecDeque::new(),
            groups: Vec::new(),
            up: true,
        });
        let ways = self.ports.len() * PORTS_MAX;
        self.ways.resize_with(ways, || Way::new(config));
        self.ports.len() - 1
    }

    fn hear(&mut self, route: Route, k: usize, bytes: &[u8]) {
        if self.heard.len() == HEARD_MAX {
            self.heard.pop_front();
        }
        let bytes = bytes.into();
        self.heard.push_back(Overheard { route, bytes, k });
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        let has = |port: &Port| port.addresses.contains(&address);
        self.ports.iter().position(has)
    }
}

impl Core {
    fn transmit(&self, from: usize, owner: u64, burst: &Burst<'_>) -> Sent {
        let mut state = self.state.lock();
        let now = self.engine.now();
        let State { ports, ways, .. } = &mut *state;
        if ports[from].owner != Some(owner) || !ports[from].up {
            return Sent::Gone;
        }
        let len = burst.bytes.len();
        let mut to = ports
            .iter()
            .enumerate()
            .filter(|(_, port)| port.takes(burst.route.dst));
        if to.any(|(to, _)| ways[from * PORTS_MAX + to].pushes_back(now, len)) {
            return Sent::Blocked;
        }
        for (k, packet) in burst.packets().enumerate() {
            state.hear(burst.route, k, packet);
            self.send(&mut state, &burst.route, k, packet);
        }
        Sent::Gone
    }

    /// Sends packet number `k` of a burst.
    fn send(&self, state: &mut State, route: &Route, k: usize, bytes: &[u8]) {
        let now = self.engine.now();
        let State {
            draw,
            ports,
            ways,
            flight,
            tamper,
            unrouted,
            ..
        } = state;
        let ident = (k & 0xffff) as u16;
        let Some(envelope) = envelope(route, ident) else {
            *unrouted += 1;
            return;
        };
        let has = |address| move |port: &Port| port.addresses.contains(&address);
        let from = ports.iter().position(has(route.src));
        let is_known = route.dst.is_multicast() || ports.iter().any(has(route.dst));
        let (Some(from), true) = (from, is_known) else {
            *unrouted += 1;
            return self.journal.packet(now, &envelope, bytes, u64::MAX);
        };
        let passed = tamper.pass(&envelope, bytes);
        // To a group it goes to every port that has joined, each way with what goes wrong there.
        let mut arriving = 0;
        let to = ports
            .iter()
            .enumerate()
            .filter(|(_, port)| port.takes(route.dst));
        for (to, _) in to {
            let way = &mut ways[from * PORTS_MAX + to];
            let copies = way.carry(now, draw, &passed.bytes, route.tclass);
            if passed.swallowed {
                continue;
            }
            arriving += copies.len() as u64;
            for copy in copies {
                let packet = Packet {
                    src: route.src,
                    dst: route.dst,
                    tclass: copy.tclass,
                    ident,
                    bytes: copy.bytes,
                };
                self.launch(flight, copy.at + passed.delay, Flight { to, packet });
            }
        }
        self.journal.packet(now, &envelope, bytes, arriving);
        for bytes in passed.answers {
            let packet = Packet {
                src: route.dst,
                dst: route.src,
                tclass: 0,
                ident: 0,
                bytes,
            };
            let soon = now + Duration::from_nanos(1);
            self.launch(flight, soon, Flight { to: from, packet });
        }
    }

    /// Has a packet arrive at that time.
    fn launch(&self, flight: &mut Slab<Flight>, at: Instant, packet: Flight) {
        let key = flight.insert(packet);
        if let Some(me) = self.me.upgrade() {
            let _ = self.engine.at(at, me as Arc<dyn Due>, key as u64);
        }
    }
}

impl Due for Core {
    /// The packet of that number arrives.
    fn due(&self, now: Instant, token: u64) {
        let listener = {
            let mut state = self.state.lock();
            let State { ports, flight, .. } = &mut *state;
            let key = usize::try_from(token).unwrap_or(usize::MAX);
            let Some(Flight { to, packet }) = flight.try_remove(key) else {
                return;
            };
            let port = &mut ports[to];
            if !port.up || port.owner.is_none() || port.inbox.len() >= INBOX_MAX {
                return;
            }
            port.inbox.push_back(packet);
            port.listener.clone()
        };
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            listener.due(now, 0);
        }
    }
}

/// The headers around a packet; `None` if the addresses are of two families.
fn envelope(route: &Route, ident: u16) -> Option<Envelope> {
    let mut envelope = match (route.src, route.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Envelope::v4(src, dst, ROCE_PORT),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Envelope::v6(src, dst, ROCE_PORT),
        _ => return None,
    };
    envelope.traffic_class = route.tclass;
    envelope.hop_limit = route.hop_limit;
    Some(envelope.with_identification(ident))
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.core.state.lock();
        f.debug_struct("Network")
            .field("ports", &state.ports.len())
            .field("in_flight", &state.flight.len())
            .finish_non_exhaustive()
    }
}
