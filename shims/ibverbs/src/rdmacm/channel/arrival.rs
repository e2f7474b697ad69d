//! The machine's events as events of librdmacm. Numbers and lengths are those that Linux reports.

use std::net::SocketAddr;
use std::sync::Arc;

use verbs_abi::rdmacm::event;
use verbs_cm::wire::{IpHeader, RejectReason, Req, SidrReq, SidrStatus};
use verbs_cm::{ConnId, Event, Failure, ListenId, ResolveId, Resolved, Route};
use verbs_core::mad::{Address, Blob};
use verbs_core::time::Instant;
use verbs_core::{QKey, Qpn};

use crate::rdmacm::manager::Inner;
use crate::rdmacm::manager::endpoint::{
    ConnFields, Endpoint, Param, Reply, Role, Told, UdFields, What,
};

/// Bytes of a REP that are private data.
const REP_DATA: usize = 196;

/// What a program learns of an event of the machine, and the id that it concerns.
pub(in crate::rdmacm) fn arrival(
    inner: &mut Inner,
    now: Instant,
    event: Event,
) -> Option<(Arc<Endpoint>, What)> {
    match event {
        Event::ConnectRequest {
            conn,
            listener,
            from,
            req,
            ip,
        } => {
            let request = request(inner, conn, listener, from, &req, ip);
            if request.is_none() {
                let (reason, nothing) = (RejectReason::InvalidServiceId, Blob::default());
                // The connection exists: its request was just reported.
                let _ = inner.cm.reject(now, conn, reason, &[], nothing);
            }
            request
        }
        Event::ResolveRequest {
            resolution,
            listener,
            from,
            req,
            ip,
        } => {
            let question = question(inner, resolution, listener, from, &req, ip);
            if question.is_none() {
                let refused = Resolved {
                    status: SidrStatus::Unsupported,
                    qpn: Qpn::default(),
                    qkey: QKey::default(),
                    private_data: Blob::default(),
                };
                let _ = inner.cm.answer(now, resolution, &refused);
            }
            question
        }
        Event::Resolved { resolution, .. }
        | Event::Unresolved { resolution }
        | Event::ResolveError { resolution, .. } => {
            let endpoint = inner.kept.questions.remove(&resolution)?;
            let told = resolved(&endpoint, &event);
            if told.event != event::ESTABLISHED {
                endpoint.set_role(Role::Over);
            }
            Some((endpoint, What::Told(told)))
        }
        other => of_connection(inner, &other),
    }
}

fn of_connection(inner: &mut Inner, event: &Event) -> Option<(Arc<Endpoint>, What)> {
    let conn = event.conn()?;
    let endpoint = Arc::clone(inner.kept.conns.get(&conn)?);
    let told = match event {
        Event::Established { private_data, .. } => {
            let role = endpoint.role();
            if let Role::Active {
                reply: Reply::Established,
                ..
            } = role
            {
                return None;
            }
            let length = match role {
                Role::Active { .. } => REP_DATA,
                _ => private_data.0.len(),
            };
            let fields = fields(inner, conn, private_data.0[..length].to_vec());
            Told {
                param: Param::Conn(fields),
                ..Told::of(event::ESTABLISHED, 0)
            }
        }
        Event::Rejected {
            reason,
            private_data,
            ..
        } => {
            let private_data = private_data.0.to_vec();
            let fields = ConnFields {
                private_data,
                ..ConnFields::default()
            };
            Told {
                param: Param::Conn(fields),
                ..Told::of(event::REJECTED, reason.code().into())
            }
        }
        Event::Unreachable { .. } => Told::of(event::UNREACHABLE, -libc::ETIMEDOUT),
        Event::ConnectError { why, .. } => failed(*why),
        Event::Disconnected { .. } => Told::of(event::DISCONNECTED, 0),
        Event::TimewaitExit { .. } => Told::of(event::TIMEWAIT_EXIT, 0),
        _ => return None,
    };
    if !matches!(
        event,
        Event::Established { .. } | Event::Disconnected { .. }
    ) {
        // This is its last event.
        inner.kept.conns.remove(&conn);
        endpoint.set_role(Role::Over);
    }
    Some((endpoint, What::Told(told)))
}

/// What is known of a connection from its queue pair's modifies.
pub(in crate::rdmacm) fn fields(inner: &Inner, conn: ConnId, private_data: Vec<u8>) -> ConnFields {
    let [rtr, rts] = inner.cm.qp_attrs(conn).unwrap_or_default();
    ConnFields {
        private_data,
        responder_resources: rtr.max_dest_rd_atomic.unwrap_or(0),
        initiator_depth: rts.max_rd_atomic.unwrap_or(0),
        retry_count: rts.retry_cnt.unwrap_or(0),
        rnr_retry_count: rts.rnr_retry.unwrap_or(0),
        qp_num: rtr.dest_qpn.unwrap_or_default().value(),
        ..ConnFields::default()
    }
}

/// The event for a REP that arrives before the connection is established.
pub(in crate::rdmacm) fn reply(inner: &Inner, conn: ConnId) -> Told {
    let data = inner.cm.private_data(conn).unwrap_or_default();
    let fields = fields(inner, conn, data.0[..REP_DATA].to_vec());
    Told {
        param: Param::Conn(fields),
        ..Told::of(event::CONNECT_RESPONSE, 0)
    }
}

fn request(
    inner: &mut Inner,
    conn: ConnId,
    listener: ListenId,
    from: Address,
    req: &Req,
    ip: Option<IpHeader>,
) -> Option<(Arc<Endpoint>, What)> {
    let (_, port) = req.service_id.port()?;
    let role = Role::Passive {
        conn,
        // What the peer requests is what this end serves, and vice versa.
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
    };
    let (listening, child) = child(inner, listener, from, port, ip?, role)?;
    inner.kept.conns.insert(conn, Arc::clone(&child));
    let fields = ConnFields {
        private_data: req.private_data.0[IpHeader::LEN..].to_vec(),
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control,
        retry_count: req.retry_count.byte(),
        rnr_retry_count: req.rnr_retry_count.byte(),
        srq: req.srq,
        qp_num: req.qpn.value(),
    };
    let told = Told {
        param: Param::Conn(fields),
        ..Told::of(event::CONNECT_REQUEST, 0)
    };
    Some((listening, What::Request { child, told }))
}

fn question(
    inner: &mut Inner,
    resolution: ResolveId,
    listener: ListenId,
    from: Address,
    req: &SidrReq,
    ip: Option<IpHeader>,
) -> Option<(Arc<Endpoint>, What)> {
    let (_, port) = req.service_id.port()?;
    let (listening, child) = child(inner, listener, from, port, ip?, Role::Asked(resolution))?;
    let fields = UdFields {
        private_data: req.private_data.0[IpHeader::LEN..].to_vec(),
        ..UdFields::default()
    };
    let told = Told {
        param: Param::Ud(fields),
        ..Told::of(event::CONNECT_REQUEST, 0)
    };
    Some((listening, What::Request { child, told }))
}

/// The listener, and an endpoint for what has arrived at it.
fn child(
    inner: &Inner,
    listener: ListenId,
    from: Address,
    port: u16,
    ip: IpHeader,
    role: Role,
) -> Option<(Arc<Endpoint>, Arc<Endpoint>)> {
    let listening = Arc::clone(inner.kept.listeners.get(&listener)?);
    let child = Endpoint::new(listening.inbox()?);
    let mut state = child.state.lock();
    state.role = role;
    state.local = Some(SocketAddr::new(ip.addresses.destination(), port));
    state.remote = Some(SocketAddr::new(ip.addresses.source(), ip.source_port));
    let global = from.av.global;
    state.route = Some(Route {
        av: from.av,
        remote_gid: global.map(|global| global.dgid).unwrap_or_default(),
        local_gid: verbs_core::Gid::from(ip.addresses.destination()),
        ..Route::default()
    });
    drop(state);
    Some((listening, child))
}

fn failed(why: Failure) -> Told {
    match why {
        // No process listens there: reported as TCP does.
        Failure::PortUnreachable => Told::of(event::UNREACHABLE, -libc::ECONNREFUSED),
        Failure::NoConfirmation => Told::of(event::UNREACHABLE, -libc::ETIMEDOUT),
        // Its confirmation was lost, and it has disconnected: Linux reports that it was connected.
        Failure::PeerDisconnected => Told::of(event::DISCONNECTED, 0),
        Failure::Stale => Told::of(event::CONNECT_ERROR, -libc::ECONNRESET),
        Failure::Ended => Told::of(event::CONNECT_ERROR, -libc::ECONNABORTED),
        _ => Told::of(event::CONNECT_ERROR, -libc::EINVAL),
    }
}

/// How a request for a service ended.
fn resolved(endpoint: &Endpoint, event: &Event) -> Told {
    match event {
        Event::Resolved {
            status: SidrStatus::Valid,
            qpn,
            qkey,
            private_data,
            ..
        } => {
            let fields = UdFields {
                private_data: private_data.0.to_vec(),
                av: endpoint.state.lock().route.map(|route| route.av),
                qp_num: qpn.value(),
                qkey: qkey.0,
                context: 0,
            };
            Told {
                param: Param::Ud(fields),
                ..Told::of(event::ESTABLISHED, 0)
            }
        }
        Event::Resolved { status, .. } => Told::of(event::UNREACHABLE, status.code().into()),
        Event::ResolveError { .. } => Told::of(event::UNREACHABLE, -libc::ECONNREFUSED),
        _ => Told::of(event::UNREACHABLE, -libc::ETIMEDOUT),
    }
}
