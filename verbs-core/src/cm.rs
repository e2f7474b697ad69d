//! Endpoints of a provider that makes connections itself, as RDMA over TCP does.
//!
//! These verbs are optional: a provider that has them says so by
//! [`PortCaps::IW_CM`](crate::PortCaps::IW_CM). The connection manager above uses them where they are,
//! and so may any other client.
//!
//! An endpoint is bound to an address, and then either listens or connects. A listening one tells of
//! each request by an event that brings an endpoint of its own, to be accepted or rejected. While an
//! endpoint has a queue pair, that cannot be destroyed (K10).
//!
//! *Order.* What a connect or an accept yields is its result, whenever it comes; no event about the
//! connection comes before it, and none at all after a failure. [`CmEvent::Closed`] comes last.

use std::fmt;
use std::net::SocketAddr;

use crate::command::{AnyCommand, Command, Kind};
use crate::device::{Device, DeviceCore, verb};
use crate::error::{Attr, Error, Why};
use crate::object::{Base, Child, ObjectKind, Private, Releases, Target, core, destroy, handle};
use crate::qp::{Qp, QpCore};
use crate::request::Request;
use crate::routine;
use crate::sync::{Arc, Mutex};
use crate::verb::{Admit, Verb};

/// An endpoint of the provider's connection manager, bound to a local address.
///
/// Dropping it unbinds it (K12), which ends its connection or its listening, and rejects a request that
/// was not answered.
pub struct CmEndpoint {
    core: Arc<CmCore>,
}

/// What an endpoint's requests act on.
pub struct CmCore {
    base: Base,
    device: Child<DeviceCore>,
    qp: HeldQp,
    local: SocketAddr,
    sink: Mutex<Arc<dyn CmSink>>,
}

/// The queue pair that a connection has.
#[derive(Default)]
struct HeldQp(Mutex<Option<Child<QpCore>>>);

impl Releases for HeldQp {
    fn release(&self) {
        let held = self.0.lock().take();
        // Letting go may continue the queue pair's destroy, under no lock.
        drop(held);
    }
}

core!(CmCore { device, qp });
handle!(CmEndpoint, CmCore, UnbindCm);

/// Told of what happens to an endpoint unasked.
pub trait CmSink: Send + Sync {
    /// Runs under NoBlock (K3).
    fn event(&self, event: CmEvent);
}

/// What happens to an endpoint unasked.
#[derive(Debug)]
pub enum CmEvent {
    /// A peer asks a listening endpoint for a connection.
    ConnectRequest(CmRequest),
    /// The connection is over: the peer has closed it, or it broke. The queue pair is in ERR.
    Disconnected,
    /// Nothing happens to the endpoint any more.
    Closed,
}

/// A peer's request: accept or reject it on its endpoint. Dropping the endpoint rejects it.
#[derive(Debug)]
pub struct CmRequest {
    /// The endpoint that the connection will have. Its events go where the listener's go, until
    /// [`CmEndpoint::events_to`] says otherwise.
    pub endpoint: CmEndpoint,
    /// Who asks.
    pub remote: SocketAddr,
    /// READs and atomics that the peer serves, and wants to have outstanding.
    pub param: CmParam,
    /// What the peer says along.
    pub private_data: Vec<u8>,
}

/// What both ends have to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CmParam {
    /// READs and atomics that the queue pair serves at a time (IRD).
    pub responder_resources: u8,
    /// READs and atomics that may be outstanding (ORD).
    pub initiator_depth: u8,
}

/// How a connect ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmReply {
    /// The connection is there; the queue pair is in RTS.
    Established(Box<[u8]>),
    /// The peer's service rejected it, and says so.
    Rejected(Box<[u8]>),
    /// Nobody listens there.
    Refused,
    /// The peer cannot be reached.
    Unreachable,
    /// The peer did not answer.
    TimedOut,
}

/// Binds an endpoint; arguments of the verb.
pub struct BindCm {
    device: Child<DeviceCore>,
    /// The local address; port number 0 for any.
    pub local: SocketAddr,
    sink: Arc<dyn CmSink>,
}

/// Listens; arguments of the verb.
#[derive(Debug)]
pub struct ListenCm {
    /// Requests that may wait for an answer.
    pub backlog: u32,
}

/// Connects; arguments of the verb.
#[derive(Debug)]
pub struct ConnectCm {
    qp: Option<Child<QpCore>>,
    /// Whom to connect to.
    pub remote: SocketAddr,
    /// What both ends have to agree on.
    pub param: CmParam,
    /// What the peer gets to see.
    pub private_data: Vec<u8>,
}

/// Accepts a request; arguments of the verb.
#[derive(Debug)]
pub struct AcceptCm {
    qp: Option<Child<QpCore>>,
    /// What both ends have to agree on.
    pub param: CmParam,
    /// What the peer gets to see.
    pub private_data: Vec<u8>,
}

/// Rejects a request; arguments of the verb.
#[derive(Debug)]
pub struct RejectCm {
    /// What the peer gets to see.
    pub private_data: Vec<u8>,
}

verb!(BindCm, DeviceCore => CmEndpoint);
verb!(ListenCm, CmCore => ());
verb!(RejectCm, CmCore => ());

macro_rules! with_queue_pair {
    ($($Verb:ident => $Output:ty;)*) => { $(
        impl Verb for $Verb {
            type Target = CmCore;
            type Output = $Output;
            type Error = Error;
            const KIND: Kind = Kind::$Verb;

            fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
                AnyCommand::$Verb(command)
            }

            fn admit(&mut self, endpoint: &CmCore) -> Admit<Error> {
                match self.qp.take() {
                    Some(qp) => endpoint.admit(qp),
                    None => Admit::Go,
                }
            }

            fn completed(endpoint: &Arc<CmCore>, result: &Result<$Output, Error>) {
                if !$Verb::is_connected(result) {
                    Releases::release(&endpoint.qp);
                }
            }
        }
    )* };
}

with_queue_pair! {
    ConnectCm => CmReply;
    AcceptCm => ();
}

impl ConnectCm {
    fn is_connected(result: &Result<CmReply, Error>) -> bool {
        matches!(result, Ok(CmReply::Established(_)))
    }
}

impl AcceptCm {
    fn is_connected(result: &Result<(), Error>) -> bool {
        result.is_ok()
    }
}

impl BindCm {
    /// On a device that the caller keeps from closing.
    fn request(
        device: &Arc<DeviceCore>,
        local: SocketAddr,
        sink: Arc<dyn CmSink>,
    ) -> Request<'_, Self> {
        let child = Child::new(device, ObjectKind::CmEndpoint);
        let args = Self {
            device: child,
            local,
            sink,
        };
        Request::new(device, args)
    }

    /// The endpoint, for a provider that has bound it to that address under that number.
    pub fn build(self, number: u32, local: SocketAddr, private: Private) -> CmEndpoint {
        let Self { device, sink, .. } = self;
        CmEndpoint::new(device, sink, number, local, private)
    }
}

impl CmCore {
    /// The local address, with the port number that was given to it.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The queue pair of its connection, or of the connect or accept under way.
    pub fn qp(&self) -> Option<Arc<QpCore>> {
        self.qp.0.lock().as_ref().map(|qp| Arc::clone(qp.get()))
    }

    /// The endpoint for a request that has come for this one, for a provider that has it under that
    /// number.
    pub fn spawn(&self, number: u32, local: SocketAddr, private: Private) -> CmEndpoint {
        let device = Child::new(self.device.get(), ObjectKind::CmEndpoint);
        let sink = Arc::clone(&self.sink.lock());
        CmEndpoint::new(device, sink, number, local, private)
    }

    /// Tells of an event, for a provider; hold no lock. Under NoBlock the sink is called when the
    /// thread is done with what it is doing. An endpoint that is being destroyed tells nothing (K11).
    pub fn raise(self: &Arc<Self>, event: CmEvent) {
        let this = Arc::clone(self);
        routine::defer(move || {
            if !this.base.header.is_closing() {
                let sink = Arc::clone(&this.sink.lock());
                sink.event(event);
            }
        });
    }

    /// Takes the queue pair for a connection, unless there is one or it is another device's.
    fn admit(&self, qp: Child<QpCore>) -> Admit<Error> {
        let mismatch = |attr, why| Admit::Refuse(Error::Mismatch { attr, why });
        if !Arc::ptr_eq(self.base.device(), Target::device(qp.get())) {
            return mismatch(Attr::Qp, Why::OtherDevice);
        }
        let mut held = self.qp.0.lock();
        if held.is_some() {
            return mismatch(Attr::Qp, Why::Exists);
        }
        *held = Some(qp);
        Admit::Go
    }
}

impl CmEndpoint {
    fn new(
        device: Child<DeviceCore>,
        sink: Arc<dyn CmSink>,
        number: u32,
        local: SocketAddr,
        private: Private,
    ) -> Self {
        let base = Base::new(device.get(), ObjectKind::CmEndpoint, number, private);
        Self {
            core: Arc::new(CmCore {
                base,
                device,
                qp: HeldQp::default(),
                local,
                sink: Mutex::new(sink),
            }),
        }
    }

    /// The local address, with the port number that was given to it.
    pub fn local(&self) -> SocketAddr {
        self.core.local
    }

    /// What requests act on, as providers see it.
    pub fn target(&self) -> &Arc<CmCore> {
        &self.core
    }

    /// Has another sink told of what happens from now on: for endpoints that came with a request.
    pub fn events_to(&self, sink: Arc<dyn CmSink>) {
        let old = std::mem::replace(&mut *self.core.sink.lock(), sink);
        // A destructor of the client's, run under no lock (K4).
        drop(old);
    }

    /// Listens: each request is told of as a [`CmEvent::ConnectRequest`].
    ///
    /// # Errors
    /// The provider's.
    pub fn listen(&self, backlog: u32) -> Request<'_, ListenCm> {
        Request::new(&self.core, ListenCm { backlog })
    }

    /// Connects a queue pair. Completes when the connection is there, or will never be.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a queue pair of another device or an endpoint that has one; the
    /// provider's. What the peer does is no error: see [`CmReply`].
    pub fn connect(
        &self,
        qp: &Qp,
        remote: SocketAddr,
        param: CmParam,
        private_data: Vec<u8>,
    ) -> Request<'_, ConnectCm> {
        let qp = Some(Child::new(qp.core(), ObjectKind::CmEndpoint));
        let args = ConnectCm {
            qp,
            remote,
            param,
            private_data,
        };
        Request::new(&self.core, args)
    }

    /// Accepts the request that brought this endpoint. Completes when the connection is there.
    ///
    /// # Errors
    /// As [`CmEndpoint::connect`].
    pub fn accept(&self, qp: &Qp, param: CmParam, private_data: Vec<u8>) -> Request<'_, AcceptCm> {
        let qp = Some(Child::new(qp.core(), ObjectKind::CmEndpoint));
        let args = AcceptCm {
            qp,
            param,
            private_data,
        };
        Request::new(&self.core, args)
    }

    /// Rejects the request that brought this endpoint.
    ///
    /// # Errors
    /// The provider's.
    pub fn reject(&self, private_data: Vec<u8>) -> Request<'_, RejectCm> {
        Request::new(&self.core, RejectCm { private_data })
    }

    /// Unbinds it: ends its connection or its listening. Never Busy.
    ///
    /// # Errors
    /// Only [`Error::WouldBlock`] and [`Error::DeviceRemoved`].
    pub fn unbind(self) -> Request<'static, UnbindCm> {
        destroy(self, false)
    }
}

/// Binds endpoints on a device, which it keeps from being closed: for services.
#[derive(Debug)]
pub struct CmBinder {
    device: Child<DeviceCore>,
}

impl CmBinder {
    /// As [`Device::bind_cm`].
    ///
    /// # Errors
    /// As there.
    pub fn bind(&self, local: SocketAddr, sink: Arc<dyn CmSink>) -> Request<'_, BindCm> {
        BindCm::request(self.device.get(), local, sink)
    }
}

impl Device {
    /// Binds endpoints without the handle.
    pub fn cm_binder(&self) -> CmBinder {
        CmBinder {
            device: Child::new(self.core(), ObjectKind::CmEndpoint),
        }
    }

    /// Binds an endpoint to a local address; port number 0 for any. `sink` is told of what happens to
    /// it unasked.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the provider makes no connections itself, [`Error::Mismatch`] for
    /// an address that is taken or not the device's.
    pub fn bind_cm(&self, local: SocketAddr, sink: Arc<dyn CmSink>) -> Request<'_, BindCm> {
        BindCm::request(self.core(), local, sink)
    }
}

impl fmt::Debug for CmCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.base.id(), self.local)
    }
}

impl fmt::Debug for BindCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BindCm({})", self.local)
    }
}
