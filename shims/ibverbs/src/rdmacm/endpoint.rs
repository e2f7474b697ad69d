//! What the connection manager knows of a program's `rdma_cm_id`, and what it has to tell of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use verbs_abi::rdmacm as abi;
use verbs_cm::wire::{PortSpace, ServiceId};
use verbs_cm::{ConnId, ListenId, ResolveId, Route};
use verbs_core::{Av, Gid, Psn, QpAttr};

use super::ports::Binding;
use crate::inbox::Inbox;
use crate::live::Unacknowledged;

/// The connection manager's end of an id. It is there before the id, for a request that the program has not taken yet.
#[derive(Default)]
pub(super) struct Endpoint {
    /// The address of the id; 0 before there is one.
    at: AtomicUsize,
    /// Events that the program has taken and not acknowledged.
    pub(super) unacknowledged: Unacknowledged,
    pub(super) state: Mutex<State>,
}

/// What changes of it.
#[derive(Default)]
pub(super) struct State {
    /// Where its events go; `None` once it is destroyed.
    inbox: Option<Arc<Inbox<Arrival>>>,
    pub(super) role: Role,
    /// Its port number.
    pub(super) binding: Option<Binding>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) route: Option<Route>,
    /// The first packet that the peer is to send.
    pub(super) psn: Option<Psn>,
    pub(super) options: Options,
}

/// What an id is to the connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing yet.
    #[default]
    Idle,
    Listener(ListenId),
    /// It has asked for a connection. The machine may wait for its queue pair, whose modifies are made when the program
    /// takes the event, or by the program.
    Active {
        conn: ConnId,
        reply: Reply,
    },
    /// It was asked. What the peer offers and wants of READs and atomics is what the program gets unless it says
    /// otherwise.
    Passive {
        conn: ConnId,
        responder_resources: u8,
        initiator_depth: u8,
    },
    /// It asks for a service for datagrams.
    Asking(ResolveId),
    /// It was asked for one.
    Asked(ResolveId),
    /// It was rejected, disconnected or refused: for good.
    Over,
}

/// How far the answer to a request of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Awaited,
    /// It is there, and the program has to take it.
    Here,
    /// The program has it, and establishes the connection with a queue pair of its own.
    Taken,
    /// The program has established it, and is not told so.
    Established,
}

/// `rdma_set_option`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuse_address: bool,
    pub(super) ack_timeout: Option<u8>,
}

/// Something that waits in a channel.
pub(super) struct Arrival {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) what: What,
}

/// What that is.
pub(super) enum What {
    /// An event as it is told.
    Told(Told),
    /// A request for a listener.
    Request { child: Arc<Endpoint>, told: Told },
    /// The reply to a request of ours: the queue pair is to be moved.
    Reply(ConnId),
    /// A group was joined; the queue pair is to be attached.
    Joined(Joined),
}

/// A group that an id has joined.
pub(super) struct Joined {
    pub(super) mgid: Gid,
    pub(super) av: Av,
    /// What the program called it with.
    pub(super) context: usize,
}

/// An event.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) event: u32,
    pub(super) status: i32,
    pub(super) param: Param,
}

/// What an event says beside.
#[derive(Debug, Default)]
pub(super) enum Param {
    #[default]
    Nothing,
    Conn(ConnFields),
    Ud(UdFields),
}

/// What an event says of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnFields {
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: bool,
    pub(super) qp_num: u32,
}

/// What an event says of a service for datagrams, or of a group.
#[derive(Debug, Default)]
pub(super) struct UdFields {
    pub(super) private_data: Vec<u8>,
    /// Where datagrams go.
    pub(super) av: Option<Av>,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
    /// In the place of private data: what the program joined a group with.
    pub(super) context: usize,
}

impl Told {
    pub(super) fn of(event: u32, status: i32) -> Self {
        Self {
            event,
            status,
            param: Param::Nothing,
        }
    }
}

impl Endpoint {
    /// One whose events go there.
    pub(super) fn new(inbox: Arc<Inbox<Arrival>>) -> Arc<Self> {
        let state = State {
            inbox: Some(inbox),
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            ..Self::default()
        })
    }

    /// A modify of its queue pair, as the program's options want it.
    pub(super) fn with_options(&self, mut change: QpAttr) -> QpAttr {
        if let (Some(timeout), Some(wanted)) =
            (&mut change.timeout, self.state.lock().options.ack_timeout)
        {
            *timeout = wanted;
        }
        change
    }

    /// The id, as the program knows it; NULL before it does.
    pub(super) fn shown(&self) -> *mut abi::CmId {
        std::ptr::with_exposed_provenance_mut(self.at.load(Ordering::Acquire))
    }

    pub(super) fn has_got(&self, id: *mut abi::CmId) {
        self.at.store(id.expose_provenance(), Ordering::Release);
    }

    pub(super) fn role(&self) -> Role {
        self.state.lock().role
    }

    pub(super) fn set_role(&self, role: Role) {
        self.state.lock().role = role;
    }

    /// The program is to hear of it; an id that is destroyed hears nothing.
    pub(super) fn tell(self: &Arc<Self>, what: What) {
        let state = self.state.lock();
        if let Some(inbox) = &state.inbox {
            inbox.push(Arrival {
                endpoint: Arc::clone(self),
                what,
            });
        }
    }

    /// Its events go elsewhere from now on, with those that wait.
    pub(super) fn move_to(self: &Arc<Self>, inbox: &Arc<Inbox<Arrival>>) {
        let mut state = self.state.lock();
        if let Some(old) = state.inbox.replace(Arc::clone(inbox)) {
            for arrival in old.purge(|arrival| Arc::ptr_eq(&arrival.endpoint, self)) {
                inbox.push(arrival);
            }
        }
    }

    /// Nothing is told of it any more. The endpoints of requests that the program has not taken.
    pub(super) fn silence(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let inbox = self.state.lock().inbox.take();
        let waiting =
            inbox.map(|inbox| inbox.purge(|arrival| Arc::ptr_eq(&arrival.endpoint, self)));
        let child = |arrival: Arrival| match arrival.what {
            What::Request { child, .. } => Some(child),
            _ => None,
        };
        waiting.into_iter().flatten().filter_map(child).collect()
    }

    /// Where its events go.
    pub(super) fn inbox(&self) -> Option<Arc<Inbox<Arrival>>> {
        self.state.lock().inbox.clone()
    }
}

/// The port space of that number.
pub(super) fn port_space(number: u32) -> Option<PortSpace> {
    PortSpace::ALL
        .into_iter()
        .find(|space| u32::from(space.code()) == number)
}

/// The service at that port number.
pub(super) fn service(space: PortSpace, addr: SocketAddr) -> ServiceId {
    ServiceId::rdma_cm(space, addr.port())
}
