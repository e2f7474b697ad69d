//! Endpoints of the connection manager: an address, a listener, a connection that is being made.
//!
//! An endpoint's socket is looked at by the holder of the driver, its verbs come from any thread, and its deadlines from
//! the engine; a lock of its own orders them. Nothing foreign runs under it: what follows is a job for later.

mod active;
mod passive;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use verbs_core::cm::{CmCore, ConnectCm};
use verbs_core::command::{Pending, RequestId};
use verbs_core::sync::atomic::{AtomicU32, Ordering::AcqRel};
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak};
use verbs_core::{CmParam, CmReply, Error};
use verbs_link::stream::{Bound, Mpa, MpaConfig, Stream, Token};
use verbs_wire::iwarp::Rtr;

use super::Streams;
use super::buffers::Outgoing;
use super::making::OnStream;
use crate::clock::Instant;
use crate::queue::base::events::Job;
use crate::queue::base::limits::RD_ATOMIC;

/// How long a peer may take to accept a TCP connection, and then again to send its Reply; Linux siw waits as long.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a peer may take to send its Request; Linux siw waits as long.
const REQUEST: Duration = Duration::from_secs(5);
/// Connections of one listener whose Request has not come. With one more the oldest is closed, so that peers that say
/// nothing keep no others out.
const SILENT_MAX: usize = 128;
/// Bytes that are read at once of a connection that is being made: a startup frame fits, and hardly more.
const READ: usize = 640;

/// See the module's documentation.
pub(crate) struct CmEnd<Q> {
    streams: Weak<Streams<Q>>,
    /// What its handle acts on; set before any event can come, and not for a connection whose Request has not come.
    core: OnceLock<Weak<CmCore>>,
    state: Mutex<State<Q>>,
    me: Weak<Self>,
}

/// What an endpoint is at.
pub(super) enum State<Q> {
    Bound(Box<dyn Bound>),
    Listening(Listening<Q>),
    Connecting(Box<Connecting<Q>>),
    /// A peer has made a TCP connection, and its Request has not come.
    Silent(Box<Asking<Q>>),
    /// It has: the client is to answer.
    Asked(Box<Asking<Q>>),
    /// The queue pair, and how often it had been reset.
    Connected(Weak<Q>, u32),
    /// A connect from that address has failed: the next one takes the address again.
    Spent(SocketAddr),
    Closed,
}

pub(super) struct Listening<Q> {
    bound: Box<dyn Bound>,
    token: Token,
    /// Requests that may wait for an answer, and those that do.
    backlog: u32,
    waiting: Arc<AtomicU32>,
    /// Connections whose Request has not come, oldest first.
    silent: VecDeque<Weak<CmEnd<Q>>>,
    /// No connections are taken until a deadline.
    rests: bool,
}

pub(super) struct Connecting<Q> {
    stream: Box<dyn Stream>,
    token: Token,
    config: MpaConfig,
    private_data: Vec<u8>,
    /// Once the TCP connection is there.
    mpa: Option<Mpa>,
    outgoing: Outgoing,
    qp: Arc<Q>,
    pending: Pending<ConnectCm>,
    deadline: Instant,
}

pub(super) struct Asking<Q> {
    stream: Box<dyn Stream>,
    token: Token,
    mpa: Mpa,
    listener: Weak<CmEnd<Q>>,
    /// Requests of the listener that wait for an answer, and how many may.
    waiting: Arc<AtomicU32>,
    backlog: u32,
    /// It counts among these.
    place: Option<Place>,
}

/// A request that waits for an answer.
pub(super) struct Place(Arc<AtomicU32>);

impl Place {
    /// One of so many, if there is one left.
    fn take(waiting: &Arc<AtomicU32>, max: u32) -> Option<Self> {
        if waiting.fetch_add(1, AcqRel) >= max {
            waiting.fetch_sub(1, AcqRel);
            return None;
        }
        Some(Self(Arc::clone(waiting)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

impl<Q: OnStream> CmEnd<Q> {
    /// An endpoint that has taken its address.
    pub(crate) fn bound(streams: &Arc<Streams<Q>>, bound: Box<dyn Bound>) -> Arc<Self> {
        Self::new(Arc::downgrade(streams), State::Bound(bound))
    }

    fn new(streams: Weak<Streams<Q>>, state: State<Q>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            streams,
            core: OnceLock::new(),
            state: Mutex::new(state),
            me: Weak::clone(me),
        })
    }

    /// What its handle acts on.
    pub(crate) fn set_core(&self, core: &Arc<CmCore>) {
        // The endpoint is new, so nobody has set this.
        let _ = self.core.set(Arc::downgrade(core));
    }

    /// Its socket has something.
    pub(crate) fn ready(&self, token: Token, after: &mut Vec<Job>) {
        let Some(streams) = self.streams.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        match &mut *state {
            State::Listening(listening) if listening.token == token => {
                self.take_connections(listening, &streams, after);
            }
            State::Connecting(_) => self.go_on_connecting(&mut state, &streams, after),
            State::Silent(_) => self.take_request(&mut state, &streams, after),
            State::Asked(_) => self.look_after_request(&mut state, &streams),
            _ => {}
        }
    }

    /// A deadline of its has passed.
    pub(super) fn expire(&self, token: Token, now: Instant, after: &mut Vec<Job>) {
        let Some(streams) = self.streams.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        match &mut *state {
            State::Connecting(connecting)
                if connecting.token == token && connecting.deadline <= now =>
            {
                self.give_up(&mut state, &streams, Ok(CmReply::TimedOut), after);
            }
            State::Listening(listening) if listening.token == token && listening.rests => {
                self.resume(listening, &streams, after);
            }
            State::Silent(asking) if asking.token == token => {
                streams.refused.up();
                self.close(&mut state, &streams);
            }
            _ => {}
        }
    }

    /// The connect of that name is to end early.
    pub(super) fn cancel(&self, id: RequestId, after: &mut Vec<Job>) {
        let Some(streams) = self.streams.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        if matches!(&*state, State::Connecting(connecting) if connecting.pending.id() == id) {
            self.give_up(&mut state, &streams, Err(Error::Cancelled), after);
        }
    }

    /// Its client has gone: ends what it is at.
    pub(crate) fn unbind(&self, after: &mut Vec<Job>) {
        let Some(streams) = self.streams.upgrade() else {
            return;
        };
        streams.endpoint_gone();
        let mut state = self.state.lock();
        match &mut *state {
            State::Asked(_) => {
                // There is room for no private data.
                let _ = self.reject_in(&mut state, &streams, &[]);
            }
            State::Connecting(_) => {
                self.give_up(&mut state, &streams, Ok(CmReply::TimedOut), after);
                *state = State::Closed;
            }
            State::Connected(qp, resets) => {
                if let Some(qp) = qp.upgrade() {
                    let resets = *resets;
                    after.push(Box::new(move || qp.end_stream(resets)));
                }
                *state = State::Closed;
            }
            State::Listening(listening) => {
                streams.forget(listening.token);
                let silent = std::mem::take(&mut listening.silent);
                *state = State::Closed;
                for end in silent.iter().filter_map(Weak::upgrade) {
                    let mut state = end.state.lock();
                    if matches!(&*state, State::Silent(_)) {
                        end.close(&mut state, &streams);
                    }
                }
            }
            State::Bound(_) | State::Spent(_) | State::Silent(_) | State::Closed => {
                *state = State::Closed;
            }
        }
    }

    /// Closes the socket of a connection that is not there yet.
    fn close(&self, state: &mut State<Q>, streams: &Streams<Q>) {
        let old = std::mem::replace(state, State::Closed);
        let token = match &old {
            State::Silent(asking) | State::Asked(asking) => asking.token,
            _ => return,
        };
        streams.forget(token);
    }
}

/// READs and atomics, as far as this side has them.
fn reads(count: u8) -> u16 {
    u16::from(count).min(RD_ATOMIC as u16)
}

/// What is wanted of a connection with those parameters.
fn config(param: CmParam, rtr: Rtr, timeout: Duration) -> MpaConfig {
    MpaConfig {
        wants_crc: true,
        is_enhanced: true,
        ird: reads(param.responder_resources),
        ord: reads(param.initiator_depth),
        rtr,
        timeout,
    }
}

/// What to make of bytes that were to be read.
enum Read {
    Some(usize),
    Nothing,
    End,
}

fn read(stream: &mut dyn Stream, into: &mut [u8]) -> Read {
    match stream.receive(into) {
        Ok(0) => Read::End,
        Ok(count) => Read::Some(count),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Read::Nothing
        }
        Err(_) => Read::End,
    }
}

impl<Q> fmt::Debug for CmEnd<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmEnd").finish_non_exhaustive()
    }
}
