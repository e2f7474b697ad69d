//! Listening, connecting, accepting, rejecting, disconnecting.

pub(in crate::rdmacm) mod streams;

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use futures::executor::block_on;
use verbs_abi::rdmacm::{CmId, ConnParam};
use verbs_cm::wire::{IpHeader, IpPair, PortSpace, RejectReason, SidrStatus, Transport};
use verbs_cm::{Accept, Connect, HostClaim, Listen, Resolve, Resolved, Route, UDP_QKEY};
use verbs_core::host::message::NotListening;
use verbs_core::mad::{Bits, Blob};
use verbs_core::{Error, QKey, QpAttr, QpState, Qpn};

use crate::call::live::look;
use crate::call::{Errno, log, number};
use crate::rdmacm::address::{bind, check_own, stands_for_any};
use crate::rdmacm::channel;
use crate::rdmacm::channel::taken::{self, complete};
use crate::rdmacm::id::life;
use crate::rdmacm::id::{Id, UD, XRC_RECV, XRC_SEND};
use crate::rdmacm::manager::endpoint::{Reply, Role, State, service};
use crate::rdmacm::manager::{Inner, Manager, manager};
use crate::rdmacm::qp;

/// "As many as the device supports", for READs and atomics.
const MAX: u8 = 0xff;
/// The backlog of a listener that names none, and the longest one.
const BACKLOG_MAX: u32 = 1024;

/// The program's parameters for a connection.
pub(in crate::rdmacm) struct Wish {
    pub(in crate::rdmacm) private_data: Vec<u8>,
    pub(in crate::rdmacm) responder_resources: u8,
    pub(in crate::rdmacm) initiator_depth: u8,
    pub(in crate::rdmacm) retry_count: u8,
    pub(in crate::rdmacm) rnr_retry_count: u8,
    srq: bool,
    qpn: Qpn,
}

impl Wish {
    /// The program's parameters, or the defaults if it passes none.
    ///
    /// # Safety
    /// The parameters are NULL or the program's, with as many bytes of private data as they say.
    unsafe fn of(
        id: &Id,
        manager: &Manager,
        param: *const ConnParam,
        usual: [u8; 2],
    ) -> Result<Self, Errno> {
        let device = manager.device();
        let most = [device.max_qp_rd_atom, device.max_qp_init_rd_atom];
        // SAFETY: guaranteed by the caller.
        let param = unsafe { param.as_ref() };
        let [mut responder_resources, mut initiator_depth] = match param {
            Some(param) => [param.responder_resources, param.initiator_depth],
            None => usual,
        };
        for (wanted, most) in [
            (&mut responder_resources, most[0]),
            (&mut initiator_depth, most[1]),
        ] {
            if *wanted == MAX {
                *wanted = most;
            } else if *wanted > most && id.space == PortSpace::Tcp {
                return Err(Errno::INVAL);
            }
        }
        let own = id.qp();
        let (qpn, srq) = match own.is_null() {
            // SAFETY: the id's own.
            false => unsafe { (Qpn::new((*own).qp_num), !(*own).srq.is_null()) },
            true => param.map_or((Qpn::default(), false), |param| {
                (Qpn::new(param.qp_num), param.srq != 0)
            }),
        };
        Ok(Self {
            // SAFETY: guaranteed by the caller.
            private_data: param.map_or(Vec::new(), |param| unsafe {
                bytes(param.private_data, param.private_data_len)
            }),
            responder_resources,
            initiator_depth,
            retry_count: param.map_or(7, |param| param.retry_count),
            rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count),
            srq,
            qpn,
        })
    }
}

/// # Safety
/// NULL, or that many bytes.
unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    match data.is_null() {
        true => Vec::new(),
        // SAFETY: guaranteed by the caller.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec(),
    }
}

fn blob<const N: usize>(data: &[u8]) -> Result<Blob<N>, Errno> {
    Blob::new(data).map_err(|_| Errno::INVAL)
}

fn bits<const N: u32>(count: u8) -> Bits<N> {
    Bits::saturating(count.into())
}

/// `rdma_listen`. An id that is not bound gets a free port number at all addresses.
pub(crate) unsafe extern "C" fn listen(id: *mut CmId, backlog: c_int) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        if !id.endpoint.is_bound() {
            bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let backlog = match u32::try_from(backlog) {
            Ok(backlog @ 1..BACKLOG_MAX) => backlog,
            _ => BACKLOG_MAX,
        };
        let manager = manager()?;
        if manager.binder().is_some() {
            return streams::listen(id, backlog);
        }
        let own = manager.addresses();
        manager.with(|inner, _| {
            let mut state = id.endpoint.state.lock();
            let (Some(local), Role::Idle, None) = (state.local, state.role, state.remote) else {
                return Err(Errno::INVAL);
            };
            let ip = local.ip().to_canonical();
            let is_any = stands_for_any(&own, ip);
            if !is_any {
                check_own(&own, ip, log)?;
            }
            let is_free = state
                .binding
                .as_ref()
                .is_some_and(|binding| inner.kept.ports.listen(binding));
            if !is_free {
                return Err(Errno(libc::EADDRINUSE));
            }
            // A wildcard that says so, of a family of which the device has no address, is asked for nothing. Others stand
            // for the GIDs of a subnet too, which are written as addresses of IPv6.
            let says_so = state.options.family_only == Some(true);
            let serves = |own: &IpAddr| !says_so || own.is_ipv4() == ip.is_ipv4();
            let serves_all = is_any && own.iter().any(serves);
            let listen = Listen {
                backlog,
                addr: (!serves_all).then_some(ip),
                extended: id.shown().qp_type == XRC_RECV,
                ..Listen::new(service(id.space, local))
            };
            let listener = inner
                .cm
                .listen(listen)
                .map_err(|_| Errno(libc::EADDRINUSE))?;
            inner
                .kept
                .listeners
                .insert(listener, Arc::clone(&id.endpoint));
            state.role = Role::Listener(listener);
            Ok(0)
        })?;
        claim(id)
    })
}

/// Asks the host for the port number, if other processes share it. The id stops listening if another process has it.
fn claim(id: &Id) -> Result<c_int, Errno> {
    let manager = manager()?;
    let local = id.endpoint.state.lock().local;
    let Some((ports, local)) = manager.host_ports().zip(local) else {
        return Ok(0);
    };
    let ip = local.ip().to_canonical();
    let addr = (!stands_for_any(&manager.addresses(), ip)).then_some(ip);
    // The engine's thread receives the answer.
    let result = block_on(HostClaim::new(ports, service(id.space, local), addr));
    manager.with(|inner, _| {
        let mut state = id.endpoint.state.lock();
        match result {
            Ok(claim) => {
                state.claim = Some(claim);
                Ok(0)
            }
            Err(why) => {
                if let Role::Listener(listener) = state.role {
                    let _ = inner.cm.unlisten(listener);
                    inner.kept.listeners.remove(&listener);
                    state.role = Role::Idle;
                }
                Err(match why {
                    NotListening::InUse => Errno(libc::EADDRINUSE),
                    NotListening::Quota(_) => Errno(libc::ENOSPC),
                    _ => Errno(libc::ENETDOWN),
                })
            }
        }
    })
}

/// `rdma_connect`.
pub(crate) unsafe extern "C" fn connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        let manager = manager()?;
        // SAFETY: the program passes valid arguments.
        let wish = unsafe { Wish::of(id, &manager, param, [MAX, MAX]) }?;
        if manager.binder().is_some() {
            streams::connect(id, wish)?;
            return complete(id);
        }
        manager.with(|inner, now| match id.shown().qp_type {
            UD => ask(id, inner, now, &wish),
            _ => request(id, inner, now, &wish),
        })?;
        complete(id)
    })
}

fn request(
    id: &Id,
    inner: &mut Inner,
    now: verbs_core::time::Instant,
    wish: &Wish,
) -> Result<(), Errno> {
    let mut state = id.endpoint.state.lock();
    let (remote, route, header) = resolved(&state)?;
    let psn = *state.psn.get_or_insert_with(|| inner.cm.draw_psn());
    let connect = Connect {
        psn,
        srq: wish.srq,
        responder_resources: wish.responder_resources,
        initiator_depth: wish.initiator_depth,
        retry_count: bits(wish.retry_count),
        rnr_retry_count: bits(wish.rnr_retry_count),
        transport: match id.shown().qp_type {
            XRC_SEND => Transport::Extended,
            _ => Transport::Rc,
        },
        ..Connect::new(service(id.space, remote), wish.qpn, route)
    };
    let connect = connect.ip(&header, blob(&wish.private_data)?);
    let conn = inner.cm.connect(now, connect).map_err(|_| Errno::NOMEM)?;
    inner.kept.conns.insert(conn, Arc::clone(&id.endpoint));
    state.role = Role::Active {
        conn,
        reply: Reply::Awaited,
    };
    Ok(())
}

/// Sends a request for a service for datagrams.
fn ask(
    id: &Id,
    inner: &mut Inner,
    now: verbs_core::time::Instant,
    wish: &Wish,
) -> Result<(), Errno> {
    let mut state = id.endpoint.state.lock();
    let (remote, route, header) = resolved(&state)?;
    let resolve =
        Resolve::new(service(id.space, remote), route).ip(&header, blob(&wish.private_data)?);
    let question = inner.cm.resolve(now, &resolve).map_err(|_| Errno::NOMEM)?;
    inner
        .kept
        .questions
        .insert(question, Arc::clone(&id.endpoint));
    state.role = Role::Asking(question);
    Ok(())
}

/// Where the peer is, of an id that has found that out and has not asked it for anything.
fn resolved(state: &State) -> Result<(SocketAddr, Route, IpHeader), Errno> {
    let (Some(local), Some(remote), Some(route), Role::Idle) =
        (state.local, state.remote, state.route, state.role)
    else {
        return Err(Errno::INVAL);
    };
    let header = header(local, remote).ok_or(Errno::INVAL)?;
    Ok((remote, route, header))
}

/// The addresses of both ends; `None` for addresses of two families.
fn header(local: SocketAddr, remote: SocketAddr) -> Option<IpHeader> {
    use std::net::IpAddr::{V4, V6};
    let addresses = match (local.ip().to_canonical(), remote.ip().to_canonical()) {
        (V4(source), V4(destination)) => IpPair::V4 {
            source,
            destination,
        },
        (V6(source), V6(destination)) => IpPair::V6 {
            source,
            destination,
        },
        _ => return None,
    };
    Some(IpHeader {
        source_port: local.port(),
        addresses,
    })
}

/// `rdma_accept`.
pub(crate) unsafe extern "C" fn accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        let manager = manager()?;
        match id.endpoint.role() {
            Role::Passive {
                conn,
                responder_resources,
                initiator_depth,
            } => {
                // SAFETY: the program passes valid arguments.
                let wish = unsafe {
                    Wish::of(id, &manager, param, [responder_resources, initiator_depth])
                }?;
                answer(id, &manager, conn, &wish)?;
                complete(id)
            }
            Role::StreamAsked {
                responder_resources,
                initiator_depth,
            } => {
                // SAFETY: as above.
                let wish = unsafe {
                    Wish::of(id, &manager, param, [responder_resources, initiator_depth])
                }?;
                streams::accept(id, wish)?;
                complete(id)
            }
            Role::Asked(question) => {
                // SAFETY: as above.
                let wish = unsafe { Wish::of(id, &manager, param, [0; 2]) }?;
                let resolved = Resolved {
                    status: SidrStatus::Valid,
                    qpn: wish.qpn,
                    qkey: UDP_QKEY,
                    private_data: blob(&wish.private_data)?,
                };
                let answered = manager.with(|inner, now| inner.cm.answer(now, question, &resolved));
                answered.map_err(|_| Errno::INVAL)?;
                id.endpoint.set_role(Role::Over);
                Ok(0)
            }
            _ => Err(Errno::INVAL),
        }
    })
}

/// Accepts a connection. The queue pair of the id, if it has one, is in RTS before the peer receives the reply.
fn answer(
    id: &Id,
    manager: &Arc<Manager>,
    conn: verbs_cm::ConnId,
    wish: &Wish,
) -> Result<(), Errno> {
    let accept = Accept {
        qpn: wish.qpn,
        psn: id.psn(manager),
        srq: wish.srq,
        responder_resources: wish.responder_resources,
        initiator_depth: wish.initiator_depth,
        rnr_retry_count: bits(wish.rnr_retry_count),
        private_data: blob(&wish.private_data)?,
        ..Accept::default()
    };
    let attrs = manager.with(|inner, now| {
        inner
            .cm
            .accept(now, conn, &accept)
            .map_err(|_| Errno::INVAL)?;
        inner.cm.qp_attrs(conn).ok_or(Errno::INVAL)
    })?;
    let own = id.qp();
    let moved = match own.is_null() {
        true => Ok(()),
        // SAFETY: the id's own, which the program does not destroy now.
        false => attrs
            .into_iter()
            .try_for_each(|attr| unsafe { crate::qp::modify(own, id.endpoint.with_options(attr)) }),
    };
    manager.with(|inner, now| {
        let result = moved.map_err(|_| Error::DeviceFailed);
        inner.cm.qp_modified(now, conn, result);
    });
    moved
}

/// `rdma_reject`.
pub(crate) unsafe extern "C" fn reject(id: *mut CmId, data: *const c_void, length: u8) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
        let (id, data) = unsafe { (look::<Id, _>(id)?, bytes(data, length)) };
        let role = id.endpoint.role();
        if let Role::StreamAsked { .. } = role {
            return streams::reject(id, data).map(|()| 0);
        }
        manager()?.with_last_words(|inner, now| match role {
            Role::Passive { conn, .. } => {
                let (reason, data) = (RejectReason::Consumer, blob(&data)?);
                let rejected = inner.cm.reject(now, conn, reason, &[], data);
                inner.kept.conns.remove(&conn);
                rejected.map_err(|_| Errno::INVAL)
            }
            Role::Asked(question) => {
                let refused = Resolved {
                    status: SidrStatus::Rejected,
                    qpn: Qpn::default(),
                    qkey: QKey::default(),
                    private_data: blob(&data)?,
                };
                inner
                    .cm
                    .answer(now, question, &refused)
                    .map_err(|_| Errno::INVAL)
            }
            _ => Err(Errno::INVAL),
        })?;
        id.endpoint.set_role(Role::Over);
        Ok(0)
    })
}

/// `rdma_reject_ece`: as `rdma_reject`; there are no enhancements to refuse.
pub(crate) unsafe extern "C" fn reject_ece(
    id: *mut CmId,
    data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { reject(id, data, length) }
}

/// `rdma_establish`: the program has taken a queue pair of its own to RTS.
pub(crate) unsafe extern "C" fn establish(id: *mut CmId) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        let Role::Active {
            conn,
            reply: Reply::Taken,
        } = id.endpoint.role()
        else {
            return Err(Errno::INVAL);
        };
        if !id.qp().is_null() {
            return Err(Errno::INVAL);
        }
        id.endpoint.set_role(Role::Active {
            conn,
            reply: Reply::Established,
        });
        // To RTR; the role says that it is in RTS when the machine asks for that.
        manager()?.with(|inner, now| inner.cm.qp_modified(now, conn, Ok(())));
        Ok(0)
    })
}

/// `rdma_disconnect`: posted work is flushed, and the peer is informed. Allowed after the peer's disconnect too.
pub(crate) unsafe extern "C" fn disconnect(id: *mut CmId) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        let role = id.endpoint.role();
        let conn = match role {
            Role::Active { conn, .. } | Role::Passive { conn, .. } => Some(conn),
            // The queue pair's new state ends it.
            Role::Stream => None,
            // It has ended already.
            Role::Over => None,
            _ => return Err(Errno::INVAL),
        };
        let own = id.qp();
        if !own.is_null() {
            // SAFETY: the id's own, which the program does not destroy now.
            unsafe { crate::qp::modify(own, QpAttr::to(QpState::Err)) }?;
        }
        let Some(conn) = conn else {
            return if role == Role::Stream {
                complete(id)
            } else {
                Ok(0)
            };
        };
        manager()?.with(|inner, now| {
            // The peer may have been first.
            let _ = inner.cm.disconnect(now, conn, Blob::default());
        });
        complete(id)
    })
}

/// `rdma_notify`: the program has seen an asynchronous event of the queue pair.
pub(crate) unsafe extern "C" fn notify(id: *mut CmId, event: u32) -> c_int {
    /// `IBV_EVENT_COMM_EST`.
    const COMM_EST: u32 = 4;
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        match (event, id.endpoint.role()) {
            (COMM_EST, Role::Passive { conn, .. }) => {
                manager()?.with(|inner, now| {
                    // Not if the peer's confirmation has arrived.
                    let _ = inner.cm.communication_established(now, conn);
                });
                Ok(0)
            }
            _ => Err(Errno::INVAL),
        }
    })
}

/// `rdma_get_request`: the next request for a listener without a channel. Its queue pair is made according to the
/// listener's template, if it has one.
pub(crate) unsafe extern "C" fn get_request(listener: *mut CmId, to: *mut *mut CmId) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now, and passes the place for the id.
        let (listening, to) =
            unsafe { (look::<Id, _>(listener)?, to.as_mut().ok_or(Errno::INVAL)?) };
        if !listening.is_synchronous() {
            return Err(Errno::INVAL);
        }
        listening.drop_event();
        let event = taken::next(listening.channel())?;
        // SAFETY: it was taken just now.
        let (kind, status, id) = unsafe { ((*event).event, (*event).status, (*event).id) };
        if status != 0 || kind != verbs_abi::rdmacm::event::CONNECT_REQUEST {
            let _ = channel::acknowledge(event);
            return Err(if status < 0 {
                Errno(-status)
            } else {
                Errno::INVAL
            });
        }
        let template = *listening.template.lock();
        if let Some(mut template) = template {
            // SAFETY: the id was made with the event; the template's objects are the program's.
            if unsafe { qp::create_qp(id, listening.shown().pd, &raw mut template) } != 0 {
                let _ = channel::acknowledge(event);
                let failed = Errno(
                    std::io::Error::last_os_error()
                        .raw_os_error()
                        .unwrap_or(libc::EIO),
                );
                let _ = life::destroy(id);
                return Err(failed);
            }
        }
        // SAFETY: as above.
        unsafe { look::<Id, _>(id) }?.keep_event(event);
        *to = id;
        Ok(0)
    })
}
