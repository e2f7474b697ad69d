//! The line of a client: what it sends to the host's daemon, and the requests that wait for answers.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SendFlags;
use verbs_core::defer;
use verbs_core::host::message::{NotListening, Service};
use verbs_core::host::ports::Listened;
use verbs_core::host::{HostPorts, Message};
use verbs_core::sync::{Arc, Mutex};

/// The most messages that wait for room in the socket: more than any correct program has. Beyond that, the line is
/// over.
const WAITING_MAX: usize = 65_536;

pub(super) struct Line {
    /// Never held during a callback.
    state: Mutex<State>,
}

struct State {
    /// `None` while there is no daemon.
    socket: Option<Arc<OwnedFd>>,
    /// The datagrams that wait for room in the socket.
    waiting: VecDeque<Vec<u8>>,
    /// The requests that wait for a port number, by tag.
    asked: BTreeMap<u64, (Service, Listened)>,
    /// What this process listens for.
    listens: Vec<Service>,
    /// Listens that are said again to another daemon, by tag.
    repeated: BTreeMap<u64, Service>,
    next_tag: u64,
    /// There has been no daemon for too long: listens fail.
    is_down: bool,
    /// There will be none any more.
    is_closed: bool,
}

impl Line {
    pub(super) fn new(socket: Arc<OwnedFd>) -> Self {
        let state = State {
            socket: Some(socket),
            waiting: VecDeque::new(),
            asked: BTreeMap::new(),
            listens: Vec::new(),
            repeated: BTreeMap::new(),
            next_tag: 0,
            is_down: false,
            is_closed: false,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Sends a message, now or when there is room. Without a daemon nobody hears it.
    pub(super) fn say(&self, message: &Message<'_>) {
        self.state.lock().say(message);
    }

    /// Sends a datagram, if there is room and nothing waits before it.
    pub(super) fn send(&self, datagram: &[u8]) -> Result<(), Errno> {
        // Most often nothing waits, and no other thread is here.
        let mut state = self.state.lock();
        state.flush();
        match &state.socket {
            None => Err(Errno::CONNRESET),
            Some(socket) if state.waiting.is_empty() => send(socket, datagram),
            Some(_) => Err(Errno::AGAIN),
        }
    }

    /// A tag that no other message has.
    pub(super) fn tag(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_tag += 1;
        state.next_tag
    }

    /// The answer to a listen.
    pub(super) fn listening(&self, tag: u64, result: Result<(), NotListening>) {
        let mut state = self.state.lock();
        if let Some(service) = state.repeated.remove(&tag) {
            let is_wanted = state.listens.contains(&service);
            match result {
                Ok(()) if !is_wanted => state.say(&Message::Unlisten(service)),
                Ok(()) => {}
                Err(_) => state.listens.retain(|&listens| listens != service),
            }
            drop(state);
            if is_wanted && let Err(error) = result {
                tracing::warn!(?service, %error, "the next daemon does not let this program listen");
            }
            return;
        }
        let asked = state.asked.remove(&tag);
        if let (Some((service, _)), Ok(())) = (&asked, result) {
            state.listens.push(*service);
        }
        drop(state);
        if let Some((_, done)) = asked {
            defer(move || done(result));
        }
    }

    /// There is no daemon.
    pub(super) fn cut(&self) {
        let mut state = self.state.lock();
        state.socket = None;
        state.waiting.clear();
        state.repeated.clear();
    }

    /// There is a daemon again: it is told what this process listens for and asks for, and `more`.
    pub(super) fn resume<'m>(
        &self,
        socket: &Arc<OwnedFd>,
        more: impl Iterator<Item = Message<'m>>,
    ) {
        let mut state = self.state.lock();
        state.socket = Some(Arc::clone(socket));
        state.is_down = false;
        for service in state.listens.clone() {
            state.next_tag += 1;
            let tag = state.next_tag;
            state.repeated.insert(tag, service);
            state.say(&Message::Listen(tag, service));
        }
        let asked: Vec<_> = state
            .asked
            .iter()
            .map(|(&tag, asked)| (tag, asked.0))
            .collect();
        for (tag, service) in asked {
            state.say(&Message::Listen(tag, service));
        }
        more.for_each(|message| state.say(&message));
    }

    /// There has been no daemon for too long: requests for port numbers fail.
    pub(super) fn refuse_asked(&self) {
        let asked = {
            let mut state = self.state.lock();
            state.is_down = true;
            std::mem::take(&mut state.asked)
        };
        for (_, done) in asked.into_values() {
            defer(move || done(Err(NotListening::HostLost)));
        }
    }

    /// The daemon has ended for good. Returns whether that is new.
    pub(super) fn close(&self) -> bool {
        self.cut();
        let was_closed = std::mem::replace(&mut self.state.lock().is_closed, true);
        self.refuse_asked();
        !was_closed
    }
}

impl State {
    fn say(&mut self, message: &Message<'_>) {
        if self.socket.is_none() {
            return;
        }
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(message.encode());
        }
        self.flush();
    }

    fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Some(bytes) = self.waiting.front() {
            if let Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) = send(socket, bytes) {
                return;
            }
            // If the socket is broken, reads fail as well, and the failure is noticed there.
            self.waiting.pop_front();
        }
    }
}

/// Sends a datagram without waiting.
pub(super) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

impl HostPorts for Line {
    fn listen(&self, service: Service, done: Listened) {
        let mut state = self.state.lock();
        if state.is_closed || state.is_down {
            drop(state);
            return defer(move || done(Err(NotListening::HostLost)));
        }
        state.next_tag += 1;
        let tag = state.next_tag;
        state.asked.insert(tag, (service, done));
        state.say(&Message::Listen(tag, service));
    }

    fn unlisten(&self, service: Service) {
        let mut state = self.state.lock();
        let before = state.listens.len();
        state.listens.retain(|&listens| listens != service);
        // What another program has got in the meantime is not given back; nor what has no answer yet.
        let is_pending = state.repeated.values().any(|&repeated| repeated == service);
        if state.listens.len() < before && !is_pending {
            state.say(&Message::Unlisten(service));
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Line")
            .field("waiting", &state.waiting.len())
            .field("is_closed", &state.is_closed)
            .finish_non_exhaustive()
    }
}
