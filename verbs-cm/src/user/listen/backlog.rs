//! What has come for a listener and waits for its program.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::task::{Context, Poll};

use verbs_core::sync::{Arc, AtomicWaker, Mutex, Weak};
use verbs_core::task;

use crate::address::peer_of;
use crate::datagram::question::Question;
use crate::event::Event;
use crate::hub::Hub;
use crate::hub::handler::Handler;
use crate::listen::request::ConnectRequest;

/// Requests that wait for an answer, unless the listener says otherwise.
pub(super) const BACKLOG: u32 = 128;

/// What has come for a listener and was not taken.
pub(crate) struct Backlog {
    waiting: Mutex<VecDeque<Waiting>>,
    /// Twice the requests that may wait: beyond it those whose peers have given up are thrown out.
    crowd: usize,
    waker: AtomicWaker,
    /// Of a listener that messages come for.
    hub: Weak<Hub>,
}

pub(crate) enum Waiting {
    Request(ConnectRequest),
    Question(Question),
}

impl Waiting {
    /// Whether the peer still waits for an answer. Questions wait until they are answered.
    fn is_alive(&self) -> bool {
        match self {
            Self::Request(request) => request.is_alive(),
            Self::Question(_) => true,
        }
    }
}

impl Backlog {
    /// Room for all that may wait is reserved now.
    pub(crate) fn new(backlog: u32, hub: Weak<Hub>) -> Self {
        Self {
            waiting: Mutex::new(VecDeque::with_capacity(backlog.min(BACKLOG) as usize)),
            crowd: 2 * backlog.max(1) as usize,
            waker: AtomicWaker::new(),
            hub,
        }
    }

    /// As the machine's tables refer to it.
    pub(crate) fn handler(self: &Arc<Self>) -> Weak<dyn Handler> {
        Arc::downgrade(self) as Weak<dyn Handler>
    }

    pub(crate) fn push(&self, waiting: Waiting) {
        let len = {
            let mut all = self.waiting.lock();
            all.push_back(waiting);
            all.len()
        };
        if len > self.crowd {
            self.tidy();
        }
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }

    /// Throws out the requests whose peers have given up: a peer that asks and takes it back, again and
    /// again, while the program is busy elsewhere, takes no memory.
    fn tidy(&self) {
        // The connection manager is asked, and told, under no lock.
        let all = std::mem::take(&mut *self.waiting.lock());
        let (alive, gone): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(Waiting::is_alive);
        {
            let mut waiting = self.waiting.lock();
            let newer = std::mem::replace(&mut *waiting, alive);
            waiting.extend(newer);
        }
        drop(gone);
    }

    /// Requests that wait are no longer taken: they are rejected, by its own destructors.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }

    /// The next request for a connection. Questions for datagrams where connections are made are
    /// not answered.
    pub(crate) fn poll_request(&self, cx: &mut Context<'_>) -> Poll<ConnectRequest> {
        loop {
            match self.poll_next(cx) {
                Poll::Ready(Waiting::Request(request)) => return Poll::Ready(request),
                Poll::Ready(Waiting::Question(question)) => drop(question),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Waiting> {
        self.waker.register(cx.waker());
        match self.waiting.lock().pop_front() {
            Some(waiting) => Poll::Ready(waiting),
            None => Poll::Pending,
        }
    }
}

impl Handler for Backlog {
    fn event(&self, event: Event) {
        let Some(hub) = &self.hub.upgrade() else {
            return;
        };
        let waiting = match event {
            Event::ConnectRequest {
                conn,
                from,
                req,
                ip,
                ..
            } => {
                let gid = from.av.global.map(|global| IpAddr::from(global.dgid));
                Waiting::Request(ConnectRequest::by_message(hub, conn, ip, gid, &req))
            }
            Event::ResolveRequest {
                resolution,
                from,
                req,
                ip,
                ..
            } => {
                let gid = from.av.global.map(|global| IpAddr::from(global.dgid));
                Waiting::Question(Question::new(hub, resolution, peer_of(ip, gid), ip, &req))
            }
            _ => return,
        };
        self.push(waiting);
    }
}
