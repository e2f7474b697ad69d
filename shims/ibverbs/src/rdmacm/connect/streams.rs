//! Connections that the device makes itself, by verbs of its own: those of iWARP, over TCP. A port number is the host's.
//!
//! The numbers of events are those that Linux reports for an RNIC.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use verbs_abi::rdmacm::event;
use verbs_cm::Route;
use verbs_cm::wire::PortSpace;
use verbs_core::cm::{CmBinder, CmEvent, CmParam, CmReply, CmRequest, CmSink};
use verbs_core::{Error, Gid};

use crate::call::Errno;
use crate::qp::{self, Stream};
use crate::rdmacm::connect::Wish;
use crate::rdmacm::id::Id;
use crate::rdmacm::manager::endpoint::{ConnFields, Endpoint, Param, Role, Told, What};

/// Binds an id that is not bound.
pub(in crate::rdmacm) fn bind(id: &Id, binder: &CmBinder, addr: SocketAddr) -> Result<(), Errno> {
    if id.space != PortSpace::Tcp {
        // No device of this kind has datagrams.
        return Err(Errno(libc::ENODEV));
    }
    let bound = binder.bind(addr, sink(&id.endpoint)).wait()?;
    let mut state = id.endpoint.state.lock();
    state.local = Some(bound.local());
    state.stream = Some(Stream::new(bound));
    Ok(())
}

/// The ends of a route, of which nothing else is known.
pub(in crate::rdmacm) fn route([local_gid, remote_gid]: [Gid; 2]) -> Route {
    Route {
        local_gid,
        remote_gid,
        ..Route::default()
    }
}

/// Listens on an id that is bound.
pub(in crate::rdmacm) fn listen(id: &Id, backlog: u32) -> Result<i32, Errno> {
    let stream = {
        let state = id.endpoint.state.lock();
        let (Some(stream), Role::Idle, None) = (&state.stream, state.role, state.remote) else {
            return Err(Errno::INVAL);
        };
        Arc::clone(stream)
    };
    stream.endpoint()?.listen(backlog).wait()?;
    id.endpoint.set_role(Role::StreamListener);
    Ok(0)
}

/// Connects the queue pair of an id whose route is resolved.
pub(in crate::rdmacm) fn connect(id: &Id, wish: Wish) -> Result<(), Errno> {
    let own = own_qp(id)?;
    let (stream, remote) = {
        let mut state = id.endpoint.state.lock();
        let (Some(stream), Some(remote), Some(_), Role::Idle) =
            (&state.stream, state.remote, state.route, state.role)
        else {
            return Err(Errno::INVAL);
        };
        let stream = Arc::clone(stream);
        state.role = Role::Stream;
        (stream, remote)
    };
    let endpoint = Arc::clone(&id.endpoint);
    let asked = asked(id, wish);
    qp::connect(own, &stream, remote, asked, move |result| {
        replied(&endpoint, result);
    })
}

/// Accepts the request of an id.
pub(in crate::rdmacm) fn accept(id: &Id, wish: Wish) -> Result<(), Errno> {
    let own = own_qp(id)?;
    let stream = stream_of(id)?;
    id.endpoint.set_role(Role::Stream);
    let endpoint = Arc::clone(&id.endpoint);
    let asked = asked(id, wish);
    qp::accept(own, &stream, asked, move |result| match result {
        Ok(()) => endpoint.tell(What::Connected(established(Vec::new()))),
        Err(error) => failed(&endpoint, error),
    })
}

/// Rejects the request of an id.
pub(in crate::rdmacm) fn reject(id: &Id, private_data: Vec<u8>) -> Result<(), Errno> {
    let stream = stream_of(id)?;
    stream.endpoint()?.reject(private_data).wait()?;
    id.endpoint.set_role(Role::Over);
    Ok(())
}

/// The queue pair of an id. The device connects one that it knows, so a program's own, of which it gives a number, is
/// not enough.
fn own_qp(id: &Id) -> Result<*mut verbs_abi::Qp, Errno> {
    let own = id.qp();
    (!own.is_null()).then_some(own).ok_or(Errno::INVAL)
}

fn stream_of(id: &Id) -> Result<Arc<Stream>, Errno> {
    id.endpoint.state.lock().stream.clone().ok_or(Errno::INVAL)
}

/// What the peer is asked for.
fn asked(id: &Id, wish: Wish) -> (CmParam, Vec<u8>) {
    let param = CmParam {
        responder_resources: wish.responder_resources,
        initiator_depth: wish.initiator_depth,
        retry_count: wish.retry_count.min(7),
        rnr_retry_count: wish.rnr_retry_count.min(7),
        tos: id.endpoint.state.lock().options.tos,
        ..CmParam::default()
    };
    (param, wish.private_data)
}

/// How an own connect has ended.
fn replied(endpoint: &Arc<Endpoint>, result: Result<CmReply, Error>) {
    let refused = |private_data: Vec<u8>| Told {
        param: Param::Conn(ConnFields {
            private_data,
            ..ConnFields::default()
        }),
        ..Told::of(event::REJECTED, -libc::ECONNREFUSED)
    };
    let told = match result {
        Ok(CmReply::Established(data)) => {
            endpoint.tell(What::Connected(established(data.into())));
            return;
        }
        Ok(CmReply::Rejected(data)) => refused(data.into()),
        Ok(CmReply::Refused | CmReply::ManagerRejected(_)) => refused(Vec::new()),
        Ok(CmReply::Unreachable) => Told::of(event::UNREACHABLE, -libc::EHOSTUNREACH),
        Ok(_) => Told::of(event::UNREACHABLE, -libc::ETIMEDOUT),
        Err(error) => return failed(endpoint, error),
    };
    endpoint.set_role(Role::Over);
    endpoint.tell(What::Told(told));
}

fn established(private_data: Vec<u8>) -> Told {
    Told {
        param: Param::Conn(ConnFields {
            private_data,
            ..ConnFields::default()
        }),
        ..Told::of(event::ESTABLISHED, 0)
    }
}

/// A connect or an accept was not possible; or its id is being destroyed, which hears nothing any longer.
fn failed(endpoint: &Arc<Endpoint>, error: Error) {
    let Errno(number) = Errno::from(error);
    endpoint.set_role(Role::Over);
    endpoint.tell(What::Told(Told::of(event::CONNECT_ERROR, -number)));
}

/// What the device reports about an id unasked. The device has the sink, so it does not keep the id.
struct Sink(Weak<Endpoint>);

fn sink(endpoint: &Arc<Endpoint>) -> Arc<dyn CmSink> {
    Arc::new(Sink(Arc::downgrade(endpoint)))
}

impl CmSink for Sink {
    fn event(&self, event: CmEvent) {
        // A request is rejected when it is dropped.
        let Some(endpoint) = self.0.upgrade() else {
            return;
        };
        match event {
            CmEvent::ConnectRequest(request) => requested(&endpoint, request),
            CmEvent::Disconnected | CmEvent::Closed => ended(&endpoint),
        }
    }
}

fn requested(listening: &Arc<Endpoint>, request: CmRequest) {
    let Some(inbox) = listening.inbox() else {
        return;
    };
    let child = Endpoint::new(inbox);
    request.endpoint.events_to(sink(&child));
    // What the peer serves is what this end may have outstanding, and vice versa.
    let (responder_resources, initiator_depth) = (
        request.param.initiator_depth,
        request.param.responder_resources,
    );
    {
        let mut state = child.state.lock();
        state.role = Role::StreamAsked {
            responder_resources,
            initiator_depth,
        };
        state.local = Some(request.endpoint.local());
        state.remote = Some(request.remote);
        state.stream = Some(Stream::new(request.endpoint));
    }
    let told = Told {
        param: Param::Conn(ConnFields {
            private_data: request.private_data,
            responder_resources,
            initiator_depth,
            ..ConnFields::default()
        }),
        ..Told::of(event::CONNECT_REQUEST, 0)
    };
    listening.tell(What::Request { child, told });
}

/// The connection is over, or the peer has gone before it was answered.
fn ended(endpoint: &Arc<Endpoint>) {
    {
        let mut state = endpoint.state.lock();
        match state.role {
            Role::Stream | Role::StreamAsked { .. } => state.role = Role::Over,
            _ => return,
        }
    }
    endpoint.tell(What::Told(Told::of(event::DISCONNECTED, 0)));
}
