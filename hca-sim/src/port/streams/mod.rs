//! The streams of a port: which socket is whose, and who gets a turn when one has something.
//!
//! A socket is named by a token. It belongs to a queue pair, to an endpoint of the connection manager, or to nobody any
//! more: a connection that has ended still sends what waits, and takes in what comes until its peer has closed as well.
//! Bytes that nobody has read when a socket is closed would take back what was sent last.
//!
//! A consumer that polls an empty completion queue looks at the sockets itself. As long as there are few it asks each
//! directly, which is the one system call that a message takes anyway; now and then, and always if there are many, it
//! asks the system which of them have something.

pub(crate) mod buffers;
pub(crate) mod endpoint;
pub(crate) mod making;
mod packets;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use arrayvec::ArrayVec;
use verbs_core::command::RequestId;
use verbs_core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed},
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_link::stream::{Interest, Stream, StreamLink, Token};
use verbs_wire::iwarp::{Setup, Startup};

use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::engine::{Due, Engine};
use crate::queue::base::counters::Count;
use crate::queue::base::events::Job;
use buffers::{Outgoing, STAGE};
use endpoint::CmEnd;
use making::OnStream;

pub(crate) use packets::NoPackets;

/// Bytes of private data with a connect, an accept or a reject: what a startup frame has, without the words of the
/// enhanced setup.
pub(crate) const PRIVATE_DATA_MAX: u32 = (Startup::PRIVATE_DATA_MAX - Setup::LEN) as u32;
/// Queue pairs whose sockets are asked directly.
const DIRECT_MAX: usize = 4;
/// Looks at these for each look at all sockets.
const DIRECT_LOOKS: u32 = 32;
/// How long a connection that has ended may take to end on the other side.
const PARTING: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub(crate) struct Streams<Q> {
    pub(crate) link: Box<dyn StreamLink>,
    /// Connects ask for peer-to-peer connections.
    pub(crate) peer_to_peer: bool,
    /// What deadlines are on.
    pub(crate) engine: Engine,
    /// Connections that spoke no MPA, said nothing, or broke off.
    pub(crate) refused: Count,
    /// How often a listener has taken no connections for a while, for want of descriptors.
    pub(crate) rests: Count,
    table: Mutex<Table<Q>>,
    /// Where bytes are read to, and gathered. Uncontended: only the holder of the driver uses them.
    pub(crate) rx: Mutex<Box<[u8]>>,
    pub(crate) tx: Mutex<Box<[u8]>>,
    looks: AtomicU32,
    /// Endpoints that there are, for [`object_counts`](crate::Hca::object_counts).
    endpoints: AtomicU32,
    numbers: AtomicU32,
    me: Weak<Self>,
}

struct Table<Q> {
    owners: BTreeMap<Token, Owner<Q>>,
    next: u64,
    /// The queue pairs, as long as there are few.
    direct: ArrayVec<(Token, Weak<Q>), DIRECT_MAX>,
    queue_pairs: usize,
}

/// Whose socket it is.
enum Owner<Q> {
    /// Nobody's yet: it is about to be a queue pair's or an endpoint's.
    Reserved,
    QueuePair(Weak<Q>),
    Endpoint(Arc<CmEnd<Q>>),
    Leaving(Leaving),
}

/// A connection that has ended here.
struct Leaving {
    stream: Box<dyn Stream>,
    outgoing: Outgoing,
    is_finished: bool,
}

impl<Q: OnStream> Streams<Q> {
    pub(crate) fn new(link: Box<dyn StreamLink>, engine: Engine, peer_to_peer: bool) -> Arc<Self> {
        let buffer = || vec![0; STAGE].into_boxed_slice();
        Arc::new_cyclic(|me| Self {
            link,
            peer_to_peer,
            engine,
            refused: Count::default(),
            rests: Count::default(),
            table: Mutex::new(Table {
                owners: BTreeMap::new(),
                next: 0,
                direct: ArrayVec::new(),
                queue_pairs: 0,
            }),
            rx: Mutex::new(buffer()),
            tx: Mutex::new(buffer()),
            looks: AtomicU32::new(0),
            endpoints: AtomicU32::new(0),
            numbers: AtomicU32::new(0),
            me: Weak::clone(me),
        })
    }

    /// Endpoints that there are.
    #[cfg(not(verbs_loom))]
    pub(crate) fn endpoints(&self) -> usize {
        self.endpoints.load(Relaxed) as usize
    }

    /// A token for a socket that is about to be made.
    pub(crate) fn reserve(&self) -> Token {
        let mut table = self.table.lock();
        table.next += 1;
        let token = Token(table.next);
        table.owners.insert(token, Owner::Reserved);
        token
    }

    /// The socket is an endpoint's.
    pub(crate) fn give_to_endpoint(&self, token: Token, end: &Arc<CmEnd<Q>>) {
        self.table
            .lock()
            .set(token, Owner::Endpoint(Arc::clone(end)));
    }

    /// The socket is a queue pair's.
    pub(crate) fn give(&self, token: Token, qp: &Arc<Q>) {
        let mut table = self.table.lock();
        table.set(token, Owner::QueuePair(Arc::downgrade(qp)));
    }

    /// The socket is closed.
    pub(crate) fn forget(&self, token: Token) {
        self.table.lock().remove(token);
    }

    /// The connection has ended here: what waits still leaves.
    pub(crate) fn leave(&self, token: Token, stream: Box<dyn Stream>, outgoing: Outgoing) {
        let mut leaving = Leaving {
            stream,
            outgoing,
            is_finished: false,
        };
        if leaving.go_on(token) {
            self.table.lock().set(token, Owner::Leaving(leaving));
            if let Some(me) = self.me.upgrade() {
                let _ = self.engine.after(PARTING, me, token.0);
            }
        } else {
            self.forget(token);
        }
    }

    /// Looks at sockets, at `all` of them or as it fits: what has come is given to those whom it is for. Queue pairs that
    /// want a round are added to `busy`. Whether anything came. For the holder of the driver.
    pub(crate) fn receive(&self, all: bool, busy: &mut Vec<Arc<Q>>, effects: &mut Effects) -> bool {
        let look = self.looks.fetch_add(1, Relaxed);
        let direct: ArrayVec<_, DIRECT_MAX> = {
            let table = self.table.lock();
            let few = table.queue_pairs == table.direct.len();
            if few && !all && !look.is_multiple_of(DIRECT_LOOKS) {
                let alive = |(_, qp): &(Token, Weak<Q>)| qp.upgrade();
                table.direct.iter().filter_map(alive).collect()
            } else {
                ArrayVec::new()
            }
        };
        if !direct.is_empty() {
            let mut rx = self.rx.lock();
            let mut came = false;
            for qp in direct {
                came |= take(&qp, &mut rx, busy, effects, false);
            }
            return came;
        }
        self.look_at_all(busy, effects)
    }

    fn look_at_all(&self, busy: &mut Vec<Arc<Q>>, effects: &mut Effects) -> bool {
        let (mut tokens, mut jobs) = (Vec::new(), Vec::new());
        self.link.ready(&mut tokens);
        let mut came = false;
        for token in tokens {
            match self.owner(token) {
                Some(Named::QueuePair(qp)) => {
                    let mut rx = self.rx.lock();
                    // There may be room only, for what waits.
                    came |= take(&qp, &mut rx, busy, effects, true);
                }
                Some(Named::Endpoint(end)) => {
                    came = true;
                    end.ready(token, &mut jobs);
                }
                Some(Named::Leaving) => self.part(token),
                None => {}
            }
        }
        effects.add_all(jobs.into_iter().map(Effect::Run));
        came
    }

    fn owner(&self, token: Token) -> Option<Named<Q>> {
        match self.table.lock().owners.get(&token)? {
            Owner::Reserved => None,
            Owner::QueuePair(qp) => qp.upgrade().map(Named::QueuePair),
            Owner::Endpoint(end) => Some(Named::Endpoint(Arc::clone(end))),
            Owner::Leaving(_) => Some(Named::Leaving),
        }
    }

    /// A connection that has ended goes on with its end.
    fn part(&self, token: Token) {
        let mut table = self.table.lock();
        if let Some(Owner::Leaving(leaving)) = table.owners.get_mut(&token)
            && !leaving.go_on(token)
        {
            table.remove(token);
        }
    }

    /// A number for an endpoint, which counts as one from now on.
    pub(crate) fn number(&self) -> u32 {
        self.endpoints.fetch_add(1, AcqRel);
        self.numbers.fetch_add(1, AcqRel) | 1 << 31
    }

    /// The connect of that name is to end early, if it has not ended.
    pub(crate) fn cancel(&self, id: RequestId, after: &mut Vec<Job>) {
        let ends: Vec<_> = {
            let table = self.table.lock();
            let end = |owner: &Owner<Q>| match owner {
                Owner::Endpoint(end) => Some(Arc::clone(end)),
                _ => None,
            };
            table.owners.values().filter_map(end).collect()
        };
        for end in ends {
            end.cancel(id, after);
        }
    }

    /// An endpoint has gone.
    pub(crate) fn endpoint_gone(&self) {
        self.endpoints.fetch_sub(1, AcqRel);
    }
}

/// Whose socket it is, outside of the table.
enum Named<Q> {
    QueuePair(Arc<Q>),
    Endpoint(Arc<CmEnd<Q>>),
    Leaving,
}

/// Has a queue pair take in what has come. Whether anything did.
fn take<Q: OnStream>(
    qp: &Arc<Q>,
    rx: &mut [u8],
    busy: &mut Vec<Arc<Q>>,
    effects: &mut Effects,
    always: bool,
) -> bool {
    let taken = qp.take_stream(rx, effects);
    if (taken.wants_round || always) && qp.mark().set() {
        busy.push(Arc::clone(qp));
    }
    taken.came
}

impl<Q> Table<Q> {
    fn set(&mut self, token: Token, owner: Owner<Q>) {
        self.remove(token);
        if let Owner::QueuePair(qp) = &owner {
            self.queue_pairs += 1;
            // Who does not fit is found when all are looked at.
            let _ = self.direct.try_push((token, Weak::clone(qp)));
        }
        self.owners.insert(token, owner);
    }

    fn remove(&mut self, token: Token) {
        if let Some(Owner::QueuePair(_)) = self.owners.remove(&token) {
            self.queue_pairs -= 1;
            self.direct.retain(|(known, _)| *known != token);
        }
    }
}

impl Leaving {
    /// Sends what waits, and then nothing; takes in and drops what comes. Whether there is a reason to wait for more.
    fn go_on(&mut self, token: Token) -> bool {
        if self.outgoing.flush(&mut *self.stream).is_err() {
            return false;
        }
        let is_empty = self.outgoing.is_empty();
        if is_empty && !self.is_finished {
            self.stream.finish();
            self.is_finished = true;
        }
        let interest = if is_empty {
            Interest::Receive
        } else {
            Interest::Both
        };
        if self.stream.watch(token, interest).is_err() {
            return false;
        }
        let mut dropped = [0; 4096];
        for _ in 0..16 {
            match self.stream.receive(&mut dropped) {
                Ok(0) => return !is_empty,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}

impl<Q: OnStream> Due for Streams<Q> {
    /// A connection has had its time to end, or an endpoint's peer to answer.
    fn due(&self, now: Instant, token: u64) {
        let token = Token(token);
        let mut after: Vec<Job> = Vec::new();
        match self.owner(token) {
            Some(Named::Leaving) => self.forget(token),
            Some(Named::Endpoint(end)) => end.expire(token, now, &mut after),
            Some(Named::QueuePair(_)) | None => {}
        }
        after.into_iter().for_each(|job| job());
    }
}

impl<Q> fmt::Debug for Streams<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("link", &self.link)
            .field("sockets", &self.table.lock().owners.len())
            .finish_non_exhaustive()
    }
}
