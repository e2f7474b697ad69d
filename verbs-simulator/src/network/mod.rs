//! A network in virtual time: ports, the directions between them, and the faults there.
//!
//! A packet leaves when the packets before it have left, at the rate of its direction; it arrives after the direction's
//! latency, if it does. Arrivals are deadlines on the clock, which calls the destination port. So nothing ever happens
//! inside a call of [`PacketLink::transmit`](verbs_link::PacketLink::transmit), and the seed determines a run.

mod bottleneck;
mod config;
mod direction;
mod egress;
mod flows;
pub(crate) mod hostile;
mod port;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use slab::Slab;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_link::time::Instant;
use verbs_link::time::{Due, Engine};
use verbs_link::{Burst, Change, Route, Sent};
use verbs_wire::{Envelope, ROCE_PORT};

use crate::Draw;
use crate::journal::{Journal, PacketFate};
use crate::mutant::PacketMutator;

pub use bottleneck::{Bottleneck, Sample, Shares};
pub use config::{Hits, LinkConfig};
use direction::Direction;
use egress::Egress;
pub use egress::{QueueHits, SwitchQueue};
pub use flows::{Completion, FlowReport, FlowRun, Pattern, Spread};
pub use port::NetworkPort;

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
    directions: Vec<Direction>,
    flight: Slab<Flight>,
    /// The properties of directions for which none were set.
    config: LinkConfig,
    mutator: PacketMutator,
    /// Pairs of addresses between which nothing gets through.
    cuts: Vec<[IpAddr; 2]>,
    unrouted: u64,
    /// The last packets that passed, for an attacker that overhears them.
    heard: VecDeque<Overheard>,
}

/// A packet that an attacker has overheard.
#[derive(Clone)]
pub(crate) struct Overheard {
    pub(crate) route: Route,
    pub(crate) bytes: Box<[u8]>,
    /// Its number in its burst, which its ICRC covers.
    k: usize,
}

/// The most ports of one network: the table of directions has the square of it.
const PORTS_MAX: usize = 64;
/// The most packets that wait at a port for its owner; further ones are lost.
const INBOX_MAX: usize = 4096;

/// Packets that are remembered for an attacker that overhears them.
const HEARD_MAX: usize = 256;

/// One end of the network.
struct Port {
    addresses: Vec<IpAddr>,
    /// The current owner, by number; earlier owners receive nothing.
    owner: Option<u64>,
    listener: Option<Weak<dyn Due>>,
    inbox: VecDeque<Packet>,
    changes: VecDeque<Change>,
    /// Multicast groups that it has joined, as often as it has.
    groups: Vec<IpAddr>,
    up: bool,
    /// The queue of the switch before it, if packets meet in one.
    egress: Option<Egress>,
}

impl Port {
    fn takes(&self, dst: IpAddr) -> bool {
        self.addresses.contains(&dst) || self.groups.contains(&dst)
    }
}

/// A packet at its destination port.
struct Packet {
    src: IpAddr,
    dst: IpAddr,
    tclass: u8,
    ident: u16,
    bytes: Box<[u8]>,
}

impl Packet {
    /// A forged answer to a packet on that route.
    fn answer(route: &Route, bytes: Box<[u8]>) -> Self {
        Self {
            src: route.dst,
            dst: route.src,
            tclass: 0,
            ident: 0,
            bytes,
        }
    }
}

/// A packet under way.
struct Flight {
    to: usize,
    packet: Packet,
    /// It has left the queue of the switch before its destination.
    is_through: bool,
}

impl Flight {
    fn new(to: usize, packet: Packet) -> Self {
        Self {
            to,
            packet,
            is_through: false,
        }
    }
}

impl Network {
    pub(crate) fn new(engine: Engine, journal: Journal, mut draw: Draw) -> Self {
        let mutator = PacketMutator::new(draw.fork());
        let core = Arc::new_cyclic(|me| Core {
            me: Weak::clone(me),
            engine,
            journal,
            state: Mutex::new(State {
                draw,
                ports: Vec::new(),
                directions: Vec::new(),
                flight: Slab::new(),
                config: LinkConfig::default(),
                mutator,
                cuts: Vec::new(),
                unrouted: 0,
                heard: VecDeque::new(),
            }),
        });
        Self { core }
    }

    /// Attaches a link to the port with those addresses, which is made if it does not exist: an HCA can be made
    /// [over](hca_sim::Hca::over) it. A link that was attached there before receives nothing any longer.
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

    /// Sets the properties of all directions from now on, including those of later ports.
    pub fn set_all(&self, config: LinkConfig) {
        let mut state = self.core.state.lock();
        state.config = config;
        state
            .directions
            .iter_mut()
            .for_each(|direction| direction.config = config);
    }

    /// Sets the properties of both directions between two ports from now on. Nothing happens if there are no such
    /// addresses.
    pub fn set(&self, a: IpAddr, b: IpAddr, config: LinkConfig) {
        let mut state = self.core.state.lock();
        let (Some(a), Some(b)) = (state.find(a), state.find(b)) else {
            return;
        };
        state.directions[a * PORTS_MAX + b].config = config;
        state.directions[b * PORTS_MAX + a].config = config;
    }

    /// Has all packets to the port with that address meet in the queue of one switch, behind what they pass otherwise.
    /// Nothing happens if there is no such port.
    pub fn set_queue(&self, address: IpAddr, queue: SwitchQueue) {
        let mut state = self.core.state.lock();
        if let Some(index) = state.find(address) {
            state.ports[index].egress = Some(Egress::new(queue));
        }
    }

    /// What the queue before the port with that address has seen, if there is one.
    pub fn queue(&self, address: IpAddr) -> Option<QueueHits> {
        let state = self.core.state.lock();
        let egress = state.ports[state.find(address)?].egress.as_ref();
        egress.map(|egress| egress.hits)
    }

    /// Bytes that wait in that queue now.
    pub fn waiting(&self, address: IpAddr) -> Option<usize> {
        let state = self.core.state.lock();
        let egress = state.ports[state.find(address)?].egress.as_ref();
        egress.map(|egress| egress.waiting(self.core.engine.now()))
    }

    /// Takes the port with that address out of service, or into it. Packets under way to a port that is out of service
    /// are lost.
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
        // The port learns of it from the clock, whichever thread calls this.
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            let _ = self.core.engine.at(self.core.engine.now(), listener, 0);
        }
    }

    /// Cuts the path between two addresses, in both directions, or mends it. Other addresses of the same ports reach
    /// each other as before.
    pub fn cut(&self, a: IpAddr, b: IpAddr, is_cut: bool) {
        let mut state = self.core.state.lock();
        state.cuts.retain(|&ends| ends != [a, b] && ends != [b, a]);
        if is_cut {
            state.cuts.push([a, b]);
        }
    }

    /// The faults that have occurred so far in both directions between two ports.
    pub fn hits(&self, a: IpAddr, b: IpAddr) -> Hits {
        let state = self.core.state.lock();
        match (state.find(a), state.find(b)) {
            (Some(a), Some(b)) => {
                state.directions[a * PORTS_MAX + b].hits + state.directions[b * PORTS_MAX + a].hits
            }
            _ => Hits::default(),
        }
    }

    /// Injects a packet that no port has sent: it arrives from that route's source, unless a fault prevents it. `bytes`
    /// are from the BTH to the ICRC.
    pub fn inject(&self, route: &Route, bytes: &[u8]) {
        let mut state = self.core.state.lock();
        self.core.send(&mut state, route, 0, bytes);
    }

    /// Packets that had no destination port in the network.
    pub fn unrouted(&self) -> u64 {
        self.core.state.lock().unrouted
    }

    /// One of the last packets that passed.
    pub(crate) fn overheard(&self, draw: &mut Draw) -> Option<Overheard> {
        let state = self.core.state.lock();
        let at = draw.below(state.heard.len());
        state.heard.get(at).cloned()
    }

    /// Sends a packet again, unchanged.
    pub(crate) fn replay(&self, seen: &Overheard) {
        let mut state = self.core.state.lock();
        self.core.send(&mut state, &seen.route, seen.k, &seen.bytes);
    }

    pub(crate) fn mutator<T>(&self, with: impl FnOnce(&mut PacketMutator) -> T) -> T {
        with(&mut self.core.state.lock().mutator)
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
            egress: None,
        });
        let directions = self.ports.len() * PORTS_MAX;
        self.directions
            .resize_with(directions, || Direction::new(config));
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
        let State {
            ports, directions, ..
        } = &mut *state;
        if ports[from].owner != Some(owner) || !ports[from].up {
            return Sent::Gone;
        }
        let len = burst.bytes.len();
        let mut to = ports
            .iter()
            .enumerate()
            .filter(|(_, port)| port.takes(burst.route.dst));
        if to.any(|(to, _)| directions[from * PORTS_MAX + to].pushes_back(now, len)) {
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
            directions,
            flight,
            mutator,
            cuts,
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
            return self
                .journal
                .packet(now, &envelope, bytes, PacketFate::Unknown);
        };
        let ends = [route.src, route.dst];
        if cuts.iter().any(|&[a, b]| ends == [a, b] || ends == [b, a]) {
            return self.journal.packet(now, &envelope, bytes, PacketFate::Cut);
        }
        let passed = mutator.pass(&envelope, bytes);
        // To a group it is sent to every port that has joined, in each direction with its own faults.
        let (mut sent_to, mut arriving, mut is_damaged) = (0, 0, false);
        let to = ports
            .iter()
            .enumerate()
            .filter(|(_, port)| port.takes(route.dst));
        for (to, _) in to {
            let direction = &mut directions[from * PORTS_MAX + to];
            let copies = direction.carry(now, draw, &passed.bytes, route.tclass);
            sent_to += 1;
            if passed.swallowed {
                continue;
            }
            arriving += copies.len() as u64;
            for copy in copies {
                is_damaged |= *copy.bytes != *bytes;
                let packet = Packet {
                    src: route.src,
                    dst: route.dst,
                    tclass: copy.tclass,
                    ident,
                    bytes: copy.bytes,
                };
                self.launch(flight, copy.at + passed.delay, Flight::new(to, packet));
            }
        }
        let fate = PacketFate::Carried {
            copies: arriving,
            ports: sent_to,
            is_damaged,
        };
        self.journal.packet(now, &envelope, bytes, fate);
        for bytes in passed.answers {
            let packet = Packet::answer(route, bytes);
            let soon = now + Duration::from_nanos(1);
            self.launch(flight, soon, Flight::new(from, packet));
        }
    }

    /// Lets a packet arrive at that time.
    fn launch(&self, flight: &mut Slab<Flight>, at: Instant, packet: Flight) {
        let key = flight.insert(packet);
        if let Some(me) = self.me.upgrade() {
            let _ = self.engine.at(at, me as Arc<dyn Due>, key as u64);
        }
    }
}

impl Due for Core {
    /// The packet of that number arrives, at the switch before its destination or there.
    fn due(&self, now: Instant, token: u64) {
        let listener = {
            let mut state = self.state.lock();
            let State {
                ports,
                flight,
                draw,
                ..
            } = &mut *state;
            let key = usize::try_from(token).unwrap_or(usize::MAX);
            let Some(mut arrived) = flight.try_remove(key) else {
                return;
            };
            let port = &mut ports[arrived.to];
            if let (Some(egress), false) = (&mut port.egress, arrived.is_through) {
                let packet = &mut arrived.packet;
                let left = egress.pass(now, draw, packet.bytes.len(), &mut packet.tclass);
                arrived.is_through = true;
                if let Some(left) = left {
                    self.launch(flight, left, arrived);
                }
                return;
            }
            let packet = arrived.packet;
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
