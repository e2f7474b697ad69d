//! Listening, connecting, accepting, rejecting, disconnecting.

use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;
use std::sync::Arc;

use verbs_abi::rdmacm::{CmId, ConnParam};
use verbs_cm::wire::{IpHeader, IpPair, PortSpace, RejectReason, SidrStatus};
use verbs_cm::{Accept, Connect, Listen, Resolve, Resolved, UDP_QKEY};
use verbs_core::mad::{Bits, Blob};
use verbs_core::{Error, QKey, QpAttr, QpState, Qpn};

use super::address::{bind, check_own};
use super::channel;
use super::endpoint::{Reply, Role, service};
use super::id::{Id, UD};
use super::manager::{Inner, Manager, manager};
use super::taken::{self, complete};
use super::{life, qp};
use crate::call::{Errno, log, number};
use crate::live::look;

/// "As many as the device can", of READs and atomics.
const MAX: u8 = 0xff;
/// The backlog of a listener that names none, and the longest.
const BACKLOG_MAX: u32 = 1024;

/// What the program says of a connection.
struct Wish {
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    qpn: Qpn,
}

impl Wish {
    /// What the program says, or what it gets if it says nothing.
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
        // SAFETY: the caller's.
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
        let own = id.shown().qp;
        let (qpn, srq) = match own.is_null() {
            // SAFETY: the id's own.
            false => unsafe { (Qpn::new((*own).qp_num), !(*own).srq.is_null()) },
            true => param.map_or((Qpn::default(), false), |param| {
                (Qpn::new(param.qp_num), param.srq != 0)
            }),
        };
        Ok(Self {
            // SAFETY: the caller's.
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
        // SAFETY: the caller's.
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
        if id.endpoint.state.lock().binding.is_none() {
            bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let backlog = match u32::try_from(backlog) {
            Ok(backlog @ 1..BACKLOG_MAX) => backlog,
            _ => BACKLOG_MAX,
        };
        let manager = manager()?;
        let own = manager.addresses();
        manager.with(|inner, _| {
            let mut state = id.endpoint.state.lock();
            let (Some(local), Role::Idle, None) = (state.local, state.role, state.remote) else {
                return Err(Errno::INVAL);
            };
            let ip = local.ip().to_canonical();
            if !ip.is_unspecified() {
                check_own(&own, ip, log)?;
            }
            let is_free = state
                .binding
                .as_ref()
                .is_some_and(|binding| inner.ports.listen(binding));
            if !is_free {
                return Err(Errno(libc::EADDRINUSE));
            }
            let listen = Listen {
                backlog,
                addr: (!ip.is_unspecified()).then_some(ip),
                ..Listen::new(service(id.space, local))
            };
            let listener = inner
                .cm
                .listen(listen)
                .map_err(|_| Errno(libc::EADDRINUSE))?;
            inner.listeners.insert(listener, Arc::clone(&id.endpoint));
            state.role = Role::Listener(listener);
            Ok(0)
        })
    })
}

/// `rdma_connect`.
pub(crate) unsafe extern "C" fn connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        let manager = manager()?;
        // SAFETY: what the program gives.
        let wish = unsafe { Wish::of(id, &manager, param, [MAX, MAX]) }?;
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
    now: verbs_core::mad::Time,
    wish: &Wish,
) -> Result<(), Errno> {
    let mut state = id.endpoint.state.lock();
    let (Some(local), Some(remote), Some(route), Role::Idle) =
        (state.local, state.remote, state.route, state.role)
    else {
        return Err(Errno::INVAL);
    };
    let psn = *state.psn.get_or_insert_with(|| inner.cm.draw_psn());
    let header = header(local, remote).ok_or(Errno::INVAL)?;
    let connect = Connect {
        psn,
        srq: wish.srq,
        responder_resources: wish.responder_resources,
        initiator_depth: wish.initiator_depth,
        retry_count: bits(wish.retry_count),
        rnr_retry_count: bits(wish.rnr_retry_count),
        ..Connect::new(service(id.space, remote), wish.qpn, route)
    };
    let connect = connect.ip(&header, blob(&wish.private_data)?);
    let conn = inner.cm.connect(now, connect).map_err(|_| Errno::NOMEM)?;
    inner.conns.insert(conn, Arc::clone(&id.endpoint));
    state.role = Role::Active {
        conn,
        reply: Reply::Awaited,
    };
    Ok(())
}

/// Asks for a service for datagrams.
fn ask(id: &Id, inner: &mut Inner, now: verbs_core::mad::Time, wish: &Wish) -> Result<(), Errno> {
    let mut state = id.endpoint.state.lock();
    let (Some(local), Some(remote), Some(route), Role::Idle) =
        (state.local, state.remote, state.route, state.role)
    else {
        return Err(Errno::INVAL);
    };
    let header = header(local, remote).ok_or(Errno::INVAL)?;
    let resolve =
        Resolve::new(service(id.space, remote), route).ip(&header, blob(&wish.private_data)?);
    let question = inner.cm.resolve(now, &resolve).map_err(|_| Errno::NOMEM)?;
    inner.questions.insert(question, Arc::clone(&id.endpoint));
    state.role = Role::Asking(question);
    Ok(())
}

/// Who connects to whom; `None` for addresses of two families.
fn header(local: std::net::SocketAddr, remote: std::net::SocketAddr) -> Option<IpHeader> {
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
                // SAFETY: what the program gives.
                let wish = unsafe {
                    Wish::of(id, &manager, param, [responder_resources, initiator_depth])
                }?;
                answer(id, &manager, conn, &wish)?;
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

/// Accepts a connection. The queue pair of the id, if it has one, is in RTS before the peer hears of it.
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
    let own = id.shown().qp;
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
        // SAFETY: what the program gives; it does not destroy the id now.
        let (id, data) = unsafe { (look::<Id, _>(id)?, bytes(data, length)) };
        let role = id.endpoint.role();
        manager()?.with(|inner, now| match role {
            Role::Passive { conn, .. } => {
                let (reason, data) = (RejectReason::Consumer, blob(&data)?);
                let rejected = inner.cm.reject(now, conn, reason, &[], data);
                inner.conns.remove(&conn);
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

/// `rdma_reject_ece`: as `rdma_reject`; there are no enhancements that could be refused.
pub(crate) unsafe extern "C" fn reject_ece(
    id: *mut CmId,
    data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { reject(id, data, length) }
}

/// `rdma_establish`: the program has brought a queue pair of its own to RTS.
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
        if !id.shown().qp.is_null() {
            return Err(Errno::INVAL);
        }
        id.endpoint.set_role(Role::Active {
            conn,
            reply: Reply::Established,
        });
        manager()?.with(|inner, now| {
            // To RTR, and to RTS.
            inner.cm.qp_modified(now, conn, Ok(()));
            if inner.cm.poll_qp_change().is_some() {
                inner.cm.qp_modified(now, conn, Ok(()));
            }
        });
        Ok(0)
    })
}

/// `rdma_disconnect`: what is posted is flushed, and the peer is told. Also after the peer's disconnect.
pub(crate) unsafe extern "C" fn disconnect(id: *mut CmId) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(id) }?;
        let conn = match id.endpoint.role() {
            Role::Active { conn, .. } | Role::Passive { conn, .. } => Some(conn),
            // It is over already.
            Role::Over => None,
            _ => return Err(Errno::INVAL),
        };
        let own = id.shown().qp;
        if !own.is_null() {
            // SAFETY: the id's own, which the program does not destroy now.
            unsafe { crate::qp::modify(own, QpAttr::to(QpState::Err)) }?;
        }
        let Some(conn) = conn else { return Ok(0) };
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
                    // Not if the peer's confirmation has come.
                    let _ = inner.cm.communication_established(now, conn);
                });
                Ok(0)
            }
            _ => Err(Errno::INVAL),
        }
    })
}

/// `rdma_get_request`: the next request for a listener without a channel. Its queue pair is made as the listener's
/// template says, if it has one.
pub(crate) unsafe extern "C" fn get_request(listener: *mut CmId, to: *mut *mut CmId) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now; where it wants the id.
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
