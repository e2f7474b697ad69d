//! Endpoints of a provider that makes connections itself, as RDMA over TCP does, or as a NIC does through
//! the manager of its system.
//!
//! These verbs are optional: a provider that has them says so by [`PortCaps::IW_CM`](crate::PortCaps::IW_CM) or
//! [`PortCaps::RDMA_CM`](crate::PortCaps::RDMA_CM). The connection manager above uses them where they are, and so may
//! any other client. An endpoint is bound to an address, and then either listens or connects. A listening one tells of
//! each request by an event that brings an endpoint of its own, to be accepted or rejected. While an endpoint has a
//! queue pair, that cannot be destroyed (K10).
//!
//! *Order.* What a connect or an accept yields is its result, whenever it comes; no event about the connection comes
//! before that has been delivered, and none at all after a failure. [`CmEvent::Disconnected`] and [`CmEvent::Closed`]
//! come once, and `Closed` comes last. A request comes after the result of its listen. This module keeps that order
//! whatever a provider does: an event that overtakes its result waits, one that follows a failure is dropped.
//!
//! *Limits.* What [`CmLimits`] says is checked before the provider has the verb: private data and the
//! depths of READs. Of requests that were not answered, as many wait as the listener's backlog has; more are
//! rejected by dropping their endpoints.

mod order;
mod param;

use std::fmt;
use std::net::SocketAddr;

use crate::command::{AnyCommand, Command, Kind};
use crate::device::{Device, DeviceCore};
use crate::error::{Attr, Error, Why};
use crate::object::header::{IfBusy, User};
use crate::object::{
    Base, Child, InUse, ObjectKind, Private, Releases, Target, core, destroy, handle,
};
use crate::panics::FirstPanic;
use crate::provider_attr::CmLimits;
use crate::qp::{Qp, QpCore};
use crate::request::Request;
use crate::routine;
use crate::sync::combiner::Combiner;
use crate::sync::{Arc, Mutex};
use crate::verb::{Admit, Verb};

use self::order::{Awaited, Order, Told};

pub use order::BACKLOG_MAX;
pub use param::{CmParam, CmReply};

/// The port whose limits count: providers that make connections themselves have one each.
const PORT: u8 = 1;

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
    order: Order<CmRequest>,
    /// Makes the calls of the sink come one after the other (K14).
    calls: Combiner,
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

core!(
    CmCore { device, qp },
    |core| core.end(),
    |_core| (),
    fn settled(&self, is_ok: bool) {
        let left = self.order.settle(is_ok);
        if !is_ok {
            self.qp.release();
        }
        // Endpoints that are unbound, and so rejected, under no lock.
        drop(left);
    },
    fn delivered(self: Arc<Self>) {
        if self.order.delivered() {
            self.tell();
        }
    }
);
handle!(CmEndpoint, CmCore, UnbindCm);

/// Told of what happens to an endpoint unasked.
///
/// An endpoint holds its sink, and the endpoint of a [`CmRequest`] holds that of its listener. A sink that keeps a
/// request, or an endpoint whose events go to it, so keeps itself: take it out, or none of them ends.
pub trait CmSink: Send + Sync {
    /// Runs under NoBlock (K3), for one event of an endpoint at a time.
    fn event(&self, event: CmEvent);
}

/// What happens to an endpoint unasked.
#[derive(Debug)]
pub enum CmEvent {
    /// A peer asks a listening endpoint for a connection.
    ConnectRequest(CmRequest),
    /// The peer has closed the connection; or it broke, from a provider that cannot tell. Posted work is flushed
    /// afterwards, so that who finds it flushed knows why; an RDMA NIC over TCP may flush it before.
    Disconnected,
    /// Nothing happens to the endpoint any longer; without a `Disconnected` before, its connection broke.
    Closed,
}

/// A peer's request: accept or reject it on its endpoint. Dropping the endpoint rejects it.
#[derive(Debug)]
pub struct CmRequest {
    /// The endpoint that the connection will have. Its events go where the listener's go, until
    /// [`CmEndpoint::events_to`] says otherwise.
    pub endpoint: CmEndpoint,
    /// The peer that asks.
    pub remote: SocketAddr,
    /// READs and atomics that the peer serves, and wants to have outstanding.
    pub param: CmParam,
    /// What the peer says along. Messages of InfiniBand's connection manager carry no length: theirs are as
    /// long as the message's field, with zeros behind what the peer said. So are those of [`CmReply`].
    pub private_data: Vec<u8>,
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
    /// The peer to connect to.
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

macro_rules! verb {
    ($Verb:ident, $Target:ty => $Output:ty, ordered: $ordered:literal, |$args:ident, $target:ident| $admit:expr, { $($more:item)* }) => {
        impl Verb for $Verb {
            type Target = $Target;
            type Output = $Output;
            type Error = Error;
            const KIND: Kind = Kind::$Verb;
            const ORDERED: bool = $ordered;

            fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
                AnyCommand::$Verb(command)
            }

            fn admit(&mut self, $target: &$Target) -> Admit<Error> {
                let $args = self;
                let admitted: Result<(), Error> = $admit;
                admitted.map_or_else(Admit::Refuse, |()| Admit::Go)
            }

            $($more)*
        }
    };
}

// A device that makes no connections itself has no endpoints either.
verb!(BindCm, DeviceCore => CmEndpoint, ordered: false, |_args, device| {
    let caps = device.provider.query_provider(PORT).caps;
    caps.has_cm_verbs().then_some(()).ok_or(Error::Unsupported(Attr::Verb))
}, {});

verb!(ListenCm, CmCore => (), ordered: true, |args, endpoint| {
    endpoint.begin(Awaited::Listen(args.backlog))
}, {});

verb!(ConnectCm, CmCore => CmReply, ordered: true, |args, endpoint| {
    let checked = endpoint.check(&args.private_data, args.param);
    checked.and_then(|()| endpoint.take(args.qp.take(), Awaited::Connect))
}, {
    fn took_effect(reply: &CmReply) -> bool {
        matches!(reply, CmReply::Established(_))
    }

    /// The queue pair is free for another connect when its own has failed, also for one whose answer came too
    /// late to count.
    fn completed(endpoint: &Arc<CmCore>, result: &Result<CmReply, Error>) {
        if !result.as_ref().is_ok_and(Self::took_effect) {
            endpoint.qp.release();
        }
    }
});

verb!(AcceptCm, CmCore => (), ordered: true, |args, endpoint| {
    let checked = endpoint.check(&args.private_data, args.param);
    checked.and_then(|()| endpoint.take(args.qp.take(), Awaited::Accept))
}, {
    fn completed(endpoint: &Arc<CmCore>, result: &Result<(), Error>) {
        if result.is_err() {
            endpoint.qp.release();
        }
    }
});

verb!(RejectCm, CmCore => (), ordered: false, |args, endpoint| {
    endpoint.check(&args.private_data, CmParam::default())
}, {
    /// Nothing happens any longer to an endpoint whose peer was rejected.
    fn completed(endpoint: &Arc<CmCore>, result: &Result<(), Error>) {
        if result.is_ok() {
            endpoint.end();
        }
    }
});

macro_rules! names_queue_pair {
    ($($Verb:ident)+) => { $(impl $Verb {
        /// The queue pair that is to be connected.
        pub(crate) fn names(&self) -> Option<&Base> {
            self.qp.as_ref().map(|qp| qp.get().base())
        }
    })+ };
}
names_queue_pair!(ConnectCm AcceptCm);

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
        CmEndpoint::new(device, sink, number, local, private, Order::default())
    }
}

impl CmCore {
    /// The local address, with the port number that was given to it.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The provider's limits of connections.
    pub fn limits(&self) -> CmLimits {
        self.base.device().provider.query_provider(PORT).cm
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
        CmEndpoint::new(device, sink, number, local, private, Order::asked())
    }

    /// Tells of an event, for a provider; hold no lock. Under NoBlock the sink is called when the
    /// thread is done with what it is doing. An endpoint that is being destroyed tells nothing (K11).
    ///
    /// An event that overtakes the result of its listen, connect or accept waits until that has been delivered;
    /// one that follows a failure is dropped, and so is the second of a kind. A request that finds the backlog
    /// full, or an endpoint that does not listen, is rejected: its endpoint is dropped.
    pub fn raise(self: &Arc<Self>, event: CmEvent) {
        let has_more = match event {
            CmEvent::ConnectRequest(request) => {
                // Its endpoint is dropped under no lock.
                let Some(place) = self.order.place() else {
                    tracing::debug!(endpoint = ?self, remote = %request.remote, "rejected: the backlog is full");
                    return;
                };
                request.endpoint.core.order.occupy(place);
                let Ok(has_more) = self.order.request(request) else {
                    return;
                };
                has_more
            }
            CmEvent::Disconnected => self.order.disconnected(),
            CmEvent::Closed => self.order.closed(),
        };
        if has_more {
            self.tell();
        }
    }

    /// Requests that have come for this endpoint and were not answered.
    pub fn unanswered(&self) -> u32 {
        self.order.unanswered()
    }

    /// Tells what waits, here or in the thread that is telling already.
    fn tell(self: &Arc<Self>) {
        if !self.calls.enter() {
            return;
        }
        // The thread that unbinds it drops what waits.
        let target: Arc<dyn Target> = Arc::<Self>::clone(self);
        let Some(in_use) = InUse::try_enter(target, User::Handler) else {
            return;
        };
        let this = Arc::clone(self);
        routine::defer(move || {
            let mut panics = FirstPanic::default();
            loop {
                while let Some(told) = this.next() {
                    panics.catch(|| this.tell_one(told));
                }
                if !this.calls.again() {
                    break;
                }
            }
            drop(in_use);
            panics.resume();
        });
    }

    /// What waits, unless the endpoint is being destroyed.
    fn next(&self) -> Option<Told<CmRequest>> {
        match self.base.header.is_closing() {
            true => None,
            false => self.order.next(),
        }
    }

    fn tell_one(&self, told: Told<CmRequest>) {
        let sink = Arc::clone(&self.sink.lock());
        match told {
            Told::Request(request) => {
                let asked = Arc::clone(&request.endpoint.core);
                sink.event(CmEvent::ConnectRequest(request));
                // What has happened to it since may follow.
                if asked.order.delivered() {
                    asked.tell();
                }
            }
            Told::Disconnected => sink.event(CmEvent::Disconnected),
            Told::Closed => sink.event(CmEvent::Closed),
        }
    }

    /// Nothing is told any longer, and the requests that wait are rejected, under no lock.
    fn end(&self) {
        let left = self.order.end();
        routine::defer(move || drop(left));
    }

    /// Begins a verb whose result is awaited.
    fn begin(&self, awaited: Awaited) -> Result<(), Error> {
        let (attr, why) = (Attr::CmEndpoint, Why::State);
        let begins = self.order.begin(awaited);
        begins.then_some(()).ok_or(Error::Mismatch { attr, why })
    }

    /// Whether the provider can do that (B2).
    fn check(&self, private_data: &[u8], param: CmParam) -> Result<(), Error> {
        let limits = self.limits();
        let at_most = |attr, got: usize, max: u32| match u32::try_from(got) {
            Ok(got) if got <= max => Ok(()),
            got => Err(Error::Invalid {
                attr,
                got: got.unwrap_or(u32::MAX),
                max,
            }),
        };
        let (ird, ord) = (param.responder_resources, param.initiator_depth);
        let (got, max) = (private_data.len(), limits.private_data.into());
        at_most(Attr::PrivateData, got, max)?;
        at_most(Attr::ResponderResources, ird.into(), limits.max_ird.into())?;
        at_most(Attr::InitiatorDepth, ord.into(), limits.max_ord.into())
    }

    /// Takes the queue pair for a connection, unless there is one or it is another device's, and begins.
    fn take(&self, qp: Option<Child<QpCore>>, awaited: Awaited) -> Result<(), Error> {
        let mismatch = |attr, why| Err(Error::Mismatch { attr, why });
        let Some(qp) = qp else {
            return mismatch(Attr::Qp, Why::Missing);
        };
        if !Arc::ptr_eq(self.base.device(), Target::device(qp.get())) {
            return mismatch(Attr::Qp, Why::OtherDevice);
        }
        let mut held = self.qp.0.lock();
        if held.is_some() {
            return mismatch(Attr::Qp, Why::Exists);
        }
        self.begin(awaited)?;
        *held = Some(qp);
        Ok(())
    }
}

impl CmEndpoint {
    fn new(
        device: Child<DeviceCore>,
        sink: Arc<dyn CmSink>,
        number: u32,
        local: SocketAddr,
        private: Private,
        order: Order<CmRequest>,
    ) -> Self {
        let base = Base::new(device.get(), ObjectKind::CmEndpoint, number, private);
        Self {
            core: Arc::new(CmCore {
                base,
                device,
                qp: HeldQp::default(),
                local,
                sink: Mutex::new(sink),
                order,
                calls: Combiner::default(),
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

    /// Listens: each request is told of as a [`CmEvent::ConnectRequest`]. Of those that were not answered, at
    /// most `backlog` wait, at least 1 and at most [`BACKLOG_MAX`]; more are rejected. An endpoint that listens
    /// may do so again, with another backlog.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for an endpoint that connects or is connected; the provider's.
    pub fn listen(&self, backlog: u32) -> Request<'_, ListenCm> {
        Request::new(&self.core, ListenCm { backlog })
    }

    /// Connects a queue pair. Completes when the connection is there, or will never be.
    ///
    /// After a failure the endpoint and the queue pair may be used for another attempt, also by the routine that receives
    /// the failure. A provider may have to take the local address again then: [`Error::AddrInUse`], if another program
    /// has it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more private data or a greater depth of READs than
    /// [`CmLimits`] allows; [`Error::Mismatch`] for a queue pair of another device, or an
    /// endpoint that has one, listens or is closed; the provider's. What the peer does is no error: see [`CmReply`].
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
    /// [`Error::Invalid`] for too much private data; the provider's.
    pub fn reject(&self, private_data: Vec<u8>) -> Request<'_, RejectCm> {
        Request::new(&self.core, RejectCm { private_data })
    }

    /// Unbinds it: ends its connection or its listening, and gives its number back. Never Busy. A connect under way
    /// ends first (K11), which is up to the peer: cancel it not to wait for that.
    ///
    /// # Errors
    /// Only [`Error::WouldBlock`] and [`Error::DeviceRemoved`].
    pub fn unbind(self) -> Request<'static, UnbindCm> {
        destroy(self, IfBusy::Refuse)
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
    /// [`Error::Unsupported`] where the provider makes no connections itself, [`Error::AddrInUse`] for a port
    /// number that another endpoint or an ordinary socket of the host has, [`Error::AddrNotAvailable`] for an
    /// address that is not the device's.
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
