//! What the connection manager knows of a program's `rdma_cm_id`, and the events that it reports for it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use verbs_abi::rdmacm as abi;
use verbs_cm::wire::{PortSpace, ServiceId};
use verbs_cm::{ConnId, HostClaim, ListenId, ResolveId, Route};
use verbs_core::{Av, Gid, Psn, QpAttr};

use crate::call::live::Unacknowledged;
use crate::inbox::Inbox;
use crate::qp::Stream;
use crate::rdmacm::address::ports::Binding;

/// The connection manager's part of an id. It exists before the id, for a request that the program has not taken yet.
#[derive(Default)]
pub(in crate::rdmacm) struct Endpoint {
    /// The address of the id; 0 before there is one.
    at: AtomicUsize,
    /// Events that the program has taken and not acknowledged.
    pub(in crate::rdmacm) unacknowledged: Unacknowledged,
    pub(in crate::rdmacm) state: Mutex<State>,
}

/// Its variable state.
#[derive(Default)]
pub(in crate::rdmacm) struct State {
    /// Where its events are delivered; `None` once it is destroyed.
    inbox: Option<Arc<Inbox<Arrival>>>,
    pub(in crate::rdmacm) role: Role,
    /// Its port number.
    pub(in crate::rdmacm) binding: Option<Binding>,
    /// A listener's number on the host, where other processes share the number space.
    pub(in crate::rdmacm) claim: Option<HostClaim>,
    pub(in crate::rdmacm) local: Option<SocketAddr>,
    pub(in crate::rdmacm) remote: Option<SocketAddr>,
    pub(in crate::rdmacm) route: Option<Route>,
    /// The number of the first packet that the peer will send.
    pub(in crate::rdmacm) psn: Option<Psn>,
    pub(in crate::rdmacm) options: Options,
    /// Its end of a connection that the device makes itself; its port number is that one's.
    pub(in crate::rdmacm) stream: Option<Arc<Stream>>,
}

/// The role of an id for the connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::rdmacm) enum Role {
    /// Nothing yet.
    #[default]
    Idle,
    Listener(ListenId),
    /// It has requested a connection. The machine may wait for its queue pair, whose modifies are made when the program
    /// takes the event, or by the program.
    Active {
        conn: ConnId,
        reply: Reply,
    },
    /// It was requested. What the peer offers and requests of READs and atomics is the program's default.
    Passive {
        conn: ConnId,
        responder_resources: u8,
        initiator_depth: u8,
    },
    /// It requests a service for datagrams.
    Asking(ResolveId),
    /// A service for datagrams was requested from it.
    Asked(ResolveId),
    /// It listens by the device's own verbs.
    StreamListener,
    /// It connects by them, accepts or is connected.
    Stream,
    /// It was requested, as [`Role::Passive`].
    StreamAsked {
        responder_resources: u8,
        initiator_depth: u8,
    },
    /// It was rejected, disconnected or refused: for good.
    Over,
}

/// The progress of the answer to an own request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdmacm) enum Reply {
    Awaited,
    /// It has arrived, and the program has to take it.
    Here,
    /// The program has it, and establishes the connection with a queue pair of its own.
    Taken,
    /// The program has established it, and gets no event for that.
    Established,
}

/// `rdma_set_option`.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::rdmacm) struct Options {
    pub(in crate::rdmacm) tos: u8,
    pub(in crate::rdmacm) reuse_address: bool,
    /// Whether a wildcard stands for addresses of its own family alone, if the program has said so.
    pub(in crate::rdmacm) family_only: Option<bool>,
    pub(in crate::rdmacm) ack_timeout: Option<u8>,
}

impl Options {
    /// Whether that address, if it is a wildcard, stands for those of its own family alone. That of IPv6 stands for all, if
    /// the program has said nothing.
    pub(in crate::rdmacm) fn is_family_only(&self, named: IpAddr) -> bool {
        self.family_only.unwrap_or(named.is_ipv4())
    }
}

/// An entry that waits in a channel.
pub(in crate::rdmacm) struct Arrival {
    pub(in crate::rdmacm) endpoint: Arc<Endpoint>,
    pub(in crate::rdmacm) what: What,
}

/// What has arrived.
pub(in crate::rdmacm) enum What {
    /// An event to be reported.
    Told(Told),
    /// A request for a listener.
    Request { child: Arc<Endpoint>, told: Told },
    /// The reply to an own request: the queue pair has to change its state.
    Reply(ConnId),
    /// The device has connected the queue pair, which shows it from now on.
    Connected(Told),
    /// The way to the peer was found, or not, with an error number.
    Routed(Result<Route, i32>),
    /// A group was joined; the queue pair has to be attached.
    Joined(Joined),
}

/// A group that an id has joined.
pub(in crate::rdmacm) struct Joined {
    pub(in crate::rdmacm) mgid: Gid,
    pub(in crate::rdmacm) av: Av,
    /// The context that the program passed.
    pub(in crate::rdmacm) context: usize,
}

/// An event.
#[derive(Debug, Default)]
pub(in crate::rdmacm) struct Told {
    pub(in crate::rdmacm) event: u32,
    pub(in crate::rdmacm) status: i32,
    pub(in crate::rdmacm) param: Param,
}

/// The parameters of an event.
#[derive(Debug, Default)]
pub(in crate::rdmacm) enum Param {
    #[default]
    Nothing,
    Conn(ConnFields),
    Ud(UdFields),
}

/// The parameters of an event of a connection.
#[derive(Debug, Default)]
pub(in crate::rdmacm) struct ConnFields {
    pub(in crate::rdmacm) private_data: Vec<u8>,
    pub(in crate::rdmacm) responder_resources: u8,
    pub(in crate::rdmacm) initiator_depth: u8,
    pub(in crate::rdmacm) flow_control: bool,
    pub(in crate::rdmacm) retry_count: u8,
    pub(in crate::rdmacm) rnr_retry_count: u8,
    pub(in crate::rdmacm) srq: bool,
    pub(in crate::rdmacm) qp_num: u32,
}

/// The parameters of an event of a service for datagrams, or of a group.
#[derive(Debug, Default)]
pub(in crate::rdmacm) struct UdFields {
    pub(in crate::rdmacm) private_data: Vec<u8>,
    /// The destination of datagrams.
    pub(in crate::rdmacm) av: Option<Av>,
    pub(in crate::rdmacm) qp_num: u32,
    pub(in crate::rdmacm) qkey: u32,
    /// In place of private data: the context with which the program joined a group.
    pub(in crate::rdmacm) context: usize,
}

impl Told {
    pub(in crate::rdmacm) fn of(event: u32, status: i32) -> Self {
        Self {
            event,
            status,
            param: Param::Nothing,
        }
    }
}

impl Endpoint {
    /// An endpoint whose events are delivered to `inbox`.
    pub(in crate::rdmacm) fn new(inbox: Arc<Inbox<Arrival>>) -> Arc<Self> {
        let state = State {
            inbox: Some(inbox),
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            ..Self::default()
        })
    }

    /// A modify of its queue pair, with the program's options applied.
    pub(in crate::rdmacm) fn with_options(&self, mut change: QpAttr) -> QpAttr {
        if let (Some(timeout), Some(wanted)) =
            (&mut change.timeout, self.state.lock().options.ack_timeout)
        {
            *timeout = wanted;
        }
        change
    }

    /// The id, as the program knows it; NULL before it does.
    pub(in crate::rdmacm) fn shown(&self) -> *mut abi::CmId {
        std::ptr::with_exposed_provenance_mut(self.at.load(Ordering::Acquire))
    }

    pub(in crate::rdmacm) fn has_got(&self, id: *mut abi::CmId) {
        self.at.store(id.expose_provenance(), Ordering::Release);
    }

    /// Whether it has a port number.
    pub(in crate::rdmacm) fn is_bound(&self) -> bool {
        let state = self.state.lock();
        state.binding.is_some() || state.stream.is_some()
    }

    pub(in crate::rdmacm) fn role(&self) -> Role {
        self.state.lock().role
    }

    pub(in crate::rdmacm) fn set_role(&self, role: Role) {
        self.state.lock().role = role;
    }

    /// Reports something to the program; an id that is destroyed gets no events.
    pub(in crate::rdmacm) fn tell(self: &Arc<Self>, what: What) {
        let state = self.state.lock();
        if let Some(inbox) = &state.inbox {
            inbox.push(Arrival {
                endpoint: Arc::clone(self),
                what,
            });
        }
    }

    /// Delivers its events elsewhere from now on, together with those that wait.
    pub(in crate::rdmacm) fn move_to(self: &Arc<Self>, inbox: &Arc<Inbox<Arrival>>) {
        let mut state = self.state.lock();
        if let Some(old) = state.inbox.replace(Arc::clone(inbox)) {
            for arrival in old.purge(|arrival| Arc::ptr_eq(&arrival.endpoint, self)) {
                inbox.push(arrival);
            }
        }
    }

    /// Nothing is reported for it any longer. Returns the endpoints of requests that the program has not taken.
    pub(in crate::rdmacm) fn silence(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let inbox = self.state.lock().inbox.take();
        let waiting =
            inbox.map(|inbox| inbox.purge(|arrival| Arc::ptr_eq(&arrival.endpoint, self)));
        let child = |arrival: Arrival| match arrival.what {
            What::Request { child, .. } => Some(child),
            _ => None,
        };
        waiting.into_iter().flatten().filter_map(child).collect()
    }

    /// Where its events are delivered.
    pub(in crate::rdmacm) fn inbox(&self) -> Option<Arc<Inbox<Arrival>>> {
        self.state.lock().inbox.clone()
    }
}

/// The port space of that number.
pub(in crate::rdmacm) fn port_space(number: u32) -> Option<PortSpace> {
    PortSpace::ALL
        .into_iter()
        .find(|space| u32::from(space.code()) == number)
}

/// The service at that port number.
pub(in crate::rdmacm) fn service(space: PortSpace, addr: SocketAddr) -> ServiceId {
    ServiceId::rdma_cm(space, addr.port())
}
