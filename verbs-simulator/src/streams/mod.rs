//! Streams in virtual time: hosts, their port numbers, connections between them, and the faults there.
//!
//! What is sent arrives in order, in pieces, each after the network's latency and at its rate. Arrivals are deadlines on
//! the clock, which calls the destination's port; nothing ever happens inside a call of a socket, and the seed determines
//! a run. As with TCP, a full window holds the sender up, the end of one direction leaves the other open, and closing a
//! socket with unread bytes resets the connection.

mod config;
mod conn;
mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slab::Slab;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_link::stream::Token;
use verbs_link::time::{Due, Engine, Instant};

use crate::Draw;
use crate::journal::Journal;
use crate::mutant::{Mutant, StreamMutator};

pub use config::{StreamConfig, StreamHits};
use conn::{Conn, Item};
pub use link::StreamPort;

/// A network of streams in virtual time. Clones are the same network.
#[derive(Clone)]
pub struct StreamNetwork {
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
    config: StreamConfig,
    hosts: Vec<Host>,
    /// Addresses that are taken.
    ports: BTreeMap<SocketAddr, Taken>,
    conns: Slab<Conn>,
    /// Connections made so far.
    made: u64,
    next_port: u16,
    /// The connections that faults have ended, by the address that connected.
    broken: BTreeSet<SocketAddr>,
    hits: StreamHits,
    mutator: StreamMutator,
}

/// One end of the network.
struct Host {
    addresses: Vec<IpAddr>,
    /// The current owner, by number; earlier owners are told nothing.
    owner: u64,
    listener: Option<Weak<dyn Due>>,
}

/// An address that is taken.
struct Taken {
    host: usize,
    owner: u64,
    listens: Option<Listens>,
}

/// A socket that listens.
struct Listens {
    token: Token,
    backlog: usize,
    /// Connections that were made and not accepted, by their keys.
    waiting: Vec<usize>,
}

/// How soon after a call on a socket the clock calls its host.
const SOON: Duration = Duration::from_nanos(1);
/// Where ephemeral port numbers begin.
const EPHEMERAL: u16 = 10_000;
/// Marks deadlines that only wake a host.
const WAKE: u64 = 1 << 63;

impl StreamNetwork {
    pub(crate) fn new(engine: Engine, journal: Journal, mut draw: Draw) -> Self {
        let mutator = StreamMutator::new(draw.fork());
        let core = Arc::new_cyclic(|me| Core {
            me: Weak::clone(me),
            engine,
            journal,
            state: Mutex::new(State {
                draw,
                config: StreamConfig::default(),
                hosts: Vec::new(),
                ports: BTreeMap::new(),
                conns: Slab::new(),
                made: 0,
                next_port: EPHEMERAL,
                broken: BTreeSet::new(),
                hits: StreamHits::default(),
                mutator,
            }),
        });
        Self { core }
    }

    /// Attaches a link to the host with those addresses, which is made if it does not exist: an RNIC can be made
    /// [over](hca_sim::Hca::over_streams) it. A link that was attached there before is told nothing any longer.
    pub fn attach(&self, addresses: &[IpAddr]) -> StreamPort {
        let mut state = self.core.state.lock();
        let owner = state.draw.number();
        let known = state
            .hosts
            .iter()
            .position(|host| host.addresses == addresses);
        let index = known.unwrap_or_else(|| {
            state.hosts.push(Host {
                addresses: addresses.to_vec(),
                owner,
                listener: None,
            });
            state.hosts.len() - 1
        });
        (state.hosts[index].owner, state.hosts[index].listener) = (owner, None);
        StreamPort::new(Arc::clone(&self.core), index, owner, addresses)
    }

    /// Sets the properties of all streams from now on.
    pub fn configure(&self, config: StreamConfig) {
        self.core.state.lock().config = config;
    }

    /// How often faults have occurred so far.
    pub fn hits(&self) -> StreamHits {
        self.core.state.lock().hits
    }

    /// Connections made so far.
    pub fn made(&self) -> u64 {
        self.core.state.lock().made
    }

    /// Whether a fault has ended a connection that was made from that address.
    pub fn is_broken(&self, from: SocketAddr) -> bool {
        self.core.state.lock().broken.contains(&from)
    }

    /// Has a stranger, which is no host of the network, connect to that address and send some bytes. If it `hangs`, it
    /// closes nothing; otherwise it sends nothing further.
    pub fn intrude(&self, to: SocketAddr, bytes: &[u8], hangs: bool) {
        let mut state = self.core.state.lock();
        let from = SocketAddr::from(([192, 0, 2, 1], state.free_port()));
        let Some(key) = self.core.connect(&mut state, None, from, to) else {
            return;
        };
        self.core
            .push(&mut state, key, 0, Item::Bytes(bytes.to_vec()));
        if !hangs {
            self.core.push(&mut state, key, 0, Item::End);
        }
    }

    /// Addresses at which somebody listens.
    pub(crate) fn listening(&self) -> Vec<SocketAddr> {
        let state = self.core.state.lock();
        let listens =
            |(address, taken): (&SocketAddr, &Taken)| taken.listens.is_some().then_some(*address);
        state.ports.iter().filter_map(listens).collect()
    }

    /// Injects this defect from now on, if it is one of streams.
    pub(crate) fn inject(&self, mutant: Option<Mutant>) {
        self.core.state.lock().mutator.inject(mutant);
    }
}

impl State {
    /// A port number that nobody has had.
    fn free_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = self.next_port.checked_add(1).unwrap_or(EPHEMERAL);
        port
    }

    fn host_of(&self, address: IpAddr) -> Option<usize> {
        let has = |host: &Host| host.addresses.contains(&address);
        self.hosts.iter().position(has)
    }

    /// A connection is forgotten when neither end has a socket and nothing is under way.
    fn sweep(&mut self, key: usize) {
        if self.conns.get(key).is_some_and(Conn::is_over) {
            self.conns.remove(key);
        }
    }
}

impl Core {
    /// Begins a connection; `None` if there is no such host.
    fn connect(
        &self,
        state: &mut State,
        host: Option<(usize, u64)>,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<usize> {
        let peer = state.host_of(to.ip())?;
        state.made += 1;
        let conn = Conn::new(host, peer, [from, to]);
        let key = state.conns.insert(conn);
        self.push(state, key, 0, Item::Syn);
        Some(key)
    }

    /// Sends something from one end to the other, behind what was sent before.
    fn push(&self, state: &mut State, key: usize, end: usize, item: Item) {
        let now = self.engine.now();
        let State {
            conns,
            config,
            draw,
            hits,
            broken,
            ..
        } = state;
        let Some(conn) = conns.get_mut(key) else {
            return;
        };
        let Item::Bytes(mut bytes) = item else {
            let at = conn.launch(end, now, now + config.latency, item);
            return self.arrive_at(at, key, end);
        };
        while !bytes.is_empty() {
            let len = match config.splits {
                true => draw.within(1..=bytes.len().min(4 * config.segment) as u64) as usize,
                false => bytes.len(),
            };
            let rest = bytes.split_off(len);
            let piece = std::mem::replace(&mut bytes, rest);
            hits.split += u64::from(!bytes.is_empty());
            let spent = len as u64 * 1_000_000_000 / config.rate.max(1);
            let mut at = now + config.latency + Duration::from_nanos(spent);
            if draw.chance(config.delays) {
                at += draw.duration(Duration::ZERO..=config.delay);
                hits.delayed += 1;
            }
            let (reset, half) = (draw.chance(config.resets), draw.chance(config.half_closes));
            self.journal
                .piece(now, conn.addresses[end], &piece, [reset, half]);
            if reset {
                hits.reset += 1;
                broken.insert(conn.addresses[0]);
                for end in [0, 1] {
                    conn.abort(end);
                    let at = conn.launch(end, now, now + config.latency, Item::Reset);
                    self.arrive_at(at, key, end);
                }
                return;
            }
            let at = conn.launch(end, now, at, Item::Bytes(piece));
            self.arrive_at(at, key, end);
            if half {
                hits.half_closed += 1;
                broken.insert(conn.addresses[0]);
                let at = conn.launch(end, now, at, Item::End);
                self.arrive_at(at, key, end);
                conn.mute(end);
            }
        }
    }

    fn arrive_at(&self, at: Instant, key: usize, end: usize) {
        if let Some(me) = self.me.upgrade() {
            let token = (key as u64) << 1 | end as u64;
            let _ = self.engine.at(at, me as Arc<dyn Due>, token);
        }
    }

    /// Has the clock call a host: a socket of it may have something.
    fn wake(&self, host: Option<(usize, u64)>, after: Duration) {
        if let (Some(me), Some((host, _))) = (self.me.upgrade(), host) {
            let at = self.engine.now() + after;
            let _ = self.engine.at(at, me as Arc<dyn Due>, WAKE | host as u64);
        }
    }

    /// What is due has arrived at the other end of a connection. The host to be called.
    fn deliver(&self, state: &mut State, key: usize, from: usize, now: Instant) -> Option<usize> {
        let to = 1 - from;
        while let Some(item) = state.conns.get_mut(key)?.landed(from, now) {
            match item {
                Item::Syn => self.welcome(state, key),
                item => {
                    let conn = state.conns.get_mut(key)?;
                    // A stranger takes what it gets.
                    let is_unwanted = matches!(item, Item::Bytes(_))
                        && conn.hosts[to].is_some()
                        && !conn.is_open(to);
                    conn.arrive(to, item);
                    if is_unwanted && conn.reset_once(to) {
                        self.push(state, key, to, Item::Reset);
                    }
                }
            }
        }
        let host = state.conns.get(key)?.hosts[to].map(|(host, _)| host);
        state.sweep(key);
        host
    }

    /// A peer asks for a connection.
    fn welcome(&self, state: &mut State, key: usize) {
        let State { ports, conns, .. } = state;
        let Some(conn) = conns.get_mut(key) else {
            return;
        };
        let taken = ports.get_mut(&conn.addresses[1]);
        let listens = taken.and_then(|taken| Some((taken.owner, taken.listens.as_mut()?)));
        let answer = match listens {
            Some((owner, listens)) if listens.waiting.len() < listens.backlog => {
                listens.waiting.push(key);
                conn.welcome(owner);
                Item::Accepted
            }
            _ => Item::Reset,
        };
        self.push(state, key, 1, answer);
    }

    fn listener(&self, host: usize) -> Option<Arc<dyn Due>> {
        let state = self.state.lock();
        state.hosts.get(host)?.listener.as_ref()?.upgrade()
    }
}

impl Due for Core {
    /// Something has arrived, or a socket has something.
    fn due(&self, now: Instant, token: u64) {
        let host = match token & WAKE {
            0 => {
                let (key, from) = ((token >> 1) as usize, (token & 1) as usize);
                self.deliver(&mut self.state.lock(), key, from, now)
            }
            _ => Some((token & !WAKE) as usize),
        };
        if let Some(listener) = host.and_then(|host| self.listener(host)) {
            listener.due(now, 0);
        }
    }
}

impl fmt::Debug for StreamNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.core.state.lock();
        f.debug_struct("StreamNetwork")
            .field("hosts", &state.hosts.len())
            .field("connections", &state.conns.len())
            .finish_non_exhaustive()
    }
}
