//! Listeners: requests are answered as they come, up to the backlog, and connections wait for `raccept` once their peers
//! have confirmed them.
//!
//! ```text
//! waiting    a request that is not answered yet: there is no room in the backlog
//! half_open  it was answered; nobody has shown that the answer has arrived. Nothing is sent, and the program learns nothing
//! ready      the peer has confirmed the connection; the socket's descriptor is readable
//! ```

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use verbs_abi::rdmacm::{CmEvent, ConnParam, event};

use super::ends::{Channel, OwnId, hello_of};
use crate::rdmacm;
use crate::rsocket::options::Sizes;
use crate::rsocket::stream::Stream;
use crate::rsocket::stream::wire::{HELLO, Hello};

/// Places for connections that are half-open: so many as the backlog is long, but not less than the first number, because
/// an answer takes a round trip, nor more than the second.
const HALF_OPEN: [usize; 2] = [64, 128];
/// Of the descriptors that the process may have, half-open connections take one in so many, and so do those that are ready: each has
/// one. Requests beyond that wait.
const DESCRIPTORS: usize = 8;

/// The part of a socket that listens. Fields are dropped in this order.
pub(super) struct Listening {
    waiting: VecDeque<Request>,
    half_open: VecDeque<Child>,
    ready: VecDeque<Child>,
    backlog: usize,
    /// The socket's descriptor, which counts those that are ready.
    shown: c_int,
    /// Where requests arrive, and what happens to connections that nobody has accepted.
    channel: Channel,
}

/// A request that was not answered yet.
struct Request {
    id: OwnId,
    hello: Hello,
    wanted: ConnParam,
}

/// A connection. The stream is dropped before the id that its queue pair is of.
pub(super) struct Child {
    pub(super) stream: Stream,
    pub(super) id: OwnId,
}

impl Listening {
    /// `shown` is an eventfd that counts one by one; nothing else counts in it.
    pub(super) fn new(channel: Channel, shown: c_int, backlog: c_int) -> Self {
        let mut listening = Self {
            waiting: VecDeque::new(),
            half_open: VecDeque::new(),
            ready: VecDeque::new(),
            backlog: 0,
            shown,
            channel,
        };
        listening.extend(backlog);
        listening
    }

    /// Sets how many connections may be ready: as in `listen`, at least one.
    pub(super) fn extend(&mut self, backlog: c_int) {
        let somaxconn = libc::SOMAXCONN as usize;
        self.backlog = match usize::try_from(backlog) {
            Ok(backlog) => backlog.clamp(1, somaxconn),
            Err(_) => somaxconn,
        };
    }

    /// Descriptors that are readable when [`serve`](Self::serve) has something to do.
    pub(super) fn descriptors(&self) -> Vec<c_int> {
        let children = self.half_open.iter().map(|child| child.stream.fd());
        std::iter::once(self.channel.fd()).chain(children).collect()
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Handles what has happened, and answers requests that there is room for.
    pub(super) fn serve(&mut self, sizes: Sizes) {
        while let Some(told) = self.channel.next() {
            self.hear(told);
        }
        for child in &self.half_open {
            // The peer has sent data: its confirmation is late, or lost.
            if child.stream.has_event() {
                child.id.came_alive();
            }
        }
        while let Some(told) = self.channel.next() {
            self.hear(told);
        }
        self.admit(sizes);
    }

    fn hear(&mut self, told: *mut CmEvent) {
        // SAFETY: it was taken just now, and is not used after it is acknowledged; the id is the program's, which is this
        // library here.
        let (kind, id, asked) = unsafe {
            let (kind, id) = ((*told).event, (*told).id);
            let is_request = kind == event::CONNECT_REQUEST;
            let asked = is_request.then(|| (OwnId::new(id), hello_of(told), (*told).param.conn));
            rdmacm::ack_cm_event(told);
            (kind, id, asked)
        };
        if let Some((id, hello, wanted)) = asked {
            match hello {
                Some(hello) => self.waiting.push_back(Request { id, hello, wanted }),
                None => id.reject(),
            }
            return;
        }
        let is = |child: &Child| child.id.at() == id;
        if let Some(at) = self.half_open.iter().position(is) {
            // Otherwise it has failed, and is dropped with all that was made for it.
            let child = self.half_open.remove(at);
            if let (event::ESTABLISHED, Some(child)) = (kind, child) {
                self.ready.push_back(child);
                self.count(1);
            }
        } else if let Some(child) = self.ready.iter_mut().find(|child| is(child)) {
            if kind == event::DISCONNECTED {
                // Data that arrived before are read first.
                child.stream.advance();
                child.stream.end();
            }
        } else {
            self.waiting.retain(|request| request.id.at() != id);
        }
    }

    /// Answers requests. Where there is no place for one more half-open connection the oldest gives way.
    fn admit(&mut self, sizes: Sizes) {
        let affordable = affordable();
        let [least, most] = HALF_OPEN;
        let half_open_max = self.backlog.clamp(least, most).min(affordable);
        while self.ready.len() < self.backlog.min(affordable)
            && let Some(request) = self.waiting.pop_front()
        {
            while self.half_open.len() >= half_open_max {
                self.half_open.pop_front();
            }
            let answered = request.answer(sizes).or_else(|request| {
                // There may be too few descriptors, or too little memory.
                self.half_open.pop_front();
                request.answer(sizes)
            });
            match answered {
                Ok(child) => self.half_open.push_back(child),
                Err(request) => request.id.reject(),
            }
        }
    }

    /// The next connection that is ready.
    pub(super) fn take(&mut self) -> Option<Child> {
        let child = self.ready.pop_front()?;
        self.count(-1);
        Some(child)
    }

    /// Puts it back, because it could not be handed out.
    pub(super) fn put_back(&mut self, child: Child) {
        self.ready.push_front(child);
        self.count(1);
    }

    /// Whether a request waits for room.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Changes the counter behind the socket's descriptor.
    fn count(&self, by: i32) {
        // SAFETY: the socket is open as long as this.
        let shown = unsafe { BorrowedFd::borrow_raw(self.shown) };
        // Not through the C library, whose functions `--rsocket` replaces. The descriptor does not block.
        let _ = match by {
            1 => rustix::io::write(shown, &1_u64.to_ne_bytes()),
            _ => rustix::io::read(shown, &mut [0; 8]),
        };
    }
}

impl Request {
    /// Makes a queue pair, and accepts the request with it. The request is given back if that fails.
    fn answer(self, sizes: Sizes) -> Result<Child, Self> {
        let Ok(mut stream) = Stream::new(self.id.at(), sizes) else {
            return Err(self);
        };
        stream.begin(&self.hello);
        // The first data of a peer show that the connection is established, as its confirmation does.
        stream.arm();
        let bytes = stream.hello().emit();
        let mut param = ConnParam {
            private_data: bytes.as_ptr().cast::<c_void>(),
            private_data_len: HELLO as u8,
            ..self.wanted
        };
        // SAFETY: the request's own id; the parameters are complete.
        if unsafe { rdmacm::accept(self.id.at(), &raw mut param) } != 0 {
            drop(stream);
            return Err(self);
        }
        let id = self.id;
        Ok(Child { stream, id })
    }
}

// SAFETY: the parameters point to nothing that is used.
unsafe impl Send for Request {}

/// How many descriptors each kind of connection may take.
fn affordable() -> usize {
    // SAFETY: plain numbers.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: room for the limit.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    match usize::try_from(limit.rlim_cur) {
        Ok(files) if is_known => (files / DESCRIPTORS).max(1),
        _ => usize::MAX,
    }
}
