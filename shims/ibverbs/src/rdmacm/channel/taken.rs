//! Taking events: the event that a program gets for each arrival, and the effect on its queue pair.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use verbs_abi::rdmacm::{CmEvent, EventChannel, event};
use verbs_cm::{Route, UDP_QKEY};
use verbs_core::Qpn;

use crate::call::live::look;
use crate::call::{Errno, number};
use crate::qp;
use crate::rdmacm::address::sockaddr::path_of;
use crate::rdmacm::channel::arrival;
use crate::rdmacm::channel::{self, inbox_of};
use crate::rdmacm::id::{self, Id};
use crate::rdmacm::manager::endpoint::{
    Arrival, Endpoint, Joined, Param, Reply, Role, Told, UdFields, What,
};
use crate::rdmacm::manager::manager;

/// `rdma_get_cm_event`: waits for an event, unless the program has set `O_NONBLOCK`.
pub(crate) unsafe extern "C" fn get_cm_event(
    channel: *mut EventChannel,
    to: *mut *mut CmEvent,
) -> c_int {
    number(|| {
        if to.is_null() {
            return Err(Errno::INVAL);
        }
        let event = next(channel)?;
        // SAFETY: the program passes the place for the result.
        unsafe { to.write(event) };
        Ok(0)
    })
}

/// The next event of a channel.
pub(in crate::rdmacm) fn next(channel: *mut EventChannel) -> Result<*mut CmEvent, Errno> {
    let inbox = inbox_of(channel)?;
    loop {
        let arrival = inbox.take(|arrival| arrival.endpoint.unacknowledged.taken())?;
        let endpoint = Arc::clone(&arrival.endpoint);
        match taken(arrival) {
            Ok(Some(event)) => return Ok(event),
            Ok(None) => endpoint.unacknowledged.acknowledge(1),
            Err(errno) => {
                endpoint.unacknowledged.acknowledge(1);
                return Err(errno);
            }
        }
    }
}

/// The event for an arrival, as the program gets it; `None` if there is nothing to report yet.
fn taken(Arrival { endpoint, what }: Arrival) -> Result<Option<*mut CmEvent>, Errno> {
    let told = match what {
        What::Told(told) => told,
        What::Request { child, told } => {
            let id = id::of_request(&endpoint, &child)?;
            return Ok(Some(channel::event(
                endpoint.clone(),
                id,
                endpoint.shown(),
                told,
            )));
        }
        What::Reply(conn) => match replied(&endpoint, conn)? {
            Some(told) => told,
            None => return Ok(None),
        },
        What::Connected(told) => {
            if let Some(own_qp) = id_of(&endpoint)?.lend_qp() {
                // SAFETY: the program waits for this event before it changes it.
                unsafe { qp::show_connected(&own_qp) };
            }
            told
        }
        What::Routed(found) => routed_told(&endpoint, found)?,
        What::Joined(joined) => joined_told(&endpoint, &joined),
    };
    let id = endpoint.shown();
    Ok(Some(channel::event(endpoint, id, null_mut(), told)))
}

/// The id of an event that is being taken: its destroy waits until the program has acknowledged the event.
fn id_of(endpoint: &Endpoint) -> Result<&Id, Errno> {
    // SAFETY: the event counts as taken, as `next` has it; the result is not used after it is acknowledged.
    unsafe { look::<Id, _>(endpoint.shown()) }
}

/// The peer has replied: the queue pair of the id goes to RTS, and the peer is informed. Without a queue pair the
/// program does both.
fn replied(endpoint: &Arc<Endpoint>, conn: verbs_cm::ConnId) -> Result<Option<Told>, Errno> {
    let manager = manager()?;
    if !matches!(endpoint.role(), Role::Active { conn: own, .. } if own == conn) {
        return Ok(None);
    }
    let own_qp = id_of(endpoint)?.lend_qp();
    let reply = match own_qp {
        None => Reply::Taken,
        Some(_) => Reply::Here,
    };
    endpoint.set_role(Role::Active { conn, reply });
    let Some(own_qp) = own_qp else {
        return Ok(Some(manager.with(|inner, _| arrival::reply(inner, conn))));
    };
    let attrs = manager.with(|inner, _| inner.cm.qp_attrs(conn));
    for attr in attrs.into_iter().flatten() {
        // SAFETY: the program waits for the event before it changes it.
        let moved = unsafe { qp::modify_lent(&own_qp, endpoint.with_options(attr)) };
        let result = moved.map_err(|_| verbs_core::Error::DeviceFailed);
        let failed = result.is_err();
        manager.with(|inner, now| inner.cm.qp_modified(now, conn, result));
        if failed {
            break;
        }
    }
    // The consequence, established or failed, arrives as an event of its own.
    Ok(None)
}

/// The program takes the event: the id has its path from now on.
fn routed_told(endpoint: &Endpoint, found: Result<Route, i32>) -> Result<Told, Errno> {
    let route = match found {
        Ok(route) => route,
        Err(errno) => return Ok(Told::of(event::ROUTE_ERROR, -errno)),
    };
    let id = id_of(endpoint)?;
    endpoint.state.lock().route = Some(route);
    id.show_addresses();
    id.show_path(path_of(&route, manager()?.port().lid));
    Ok(Told::of(event::ROUTE_RESOLVED, 0))
}

/// The program takes the event: its queue pair receives what is sent to the group from now on.
fn joined_told(endpoint: &Endpoint, joined: &Joined) -> Told {
    let attached =
        id_of(endpoint).and_then(|id| id.groups.attach(joined.mgid, id.lend_qp().as_ref()));
    if let Err(errno) = attached {
        return Told::of(event::MULTICAST_ERROR, -errno.0);
    }
    let fields = UdFields {
        private_data: Vec::new(),
        av: Some(joined.av),
        qp_num: Qpn::MULTICAST.value(),
        qkey: UDP_QKEY.0,
        context: joined.context,
    };
    Told {
        param: Param::Ud(fields),
        ..Told::of(event::MULTICAST_JOIN, 0)
    }
}

/// What a synchronous call waits for: the event, which stays with the id, and the error for its status.
pub(in crate::rdmacm) fn complete(id: &Id) -> Result<c_int, Errno> {
    if !id.is_synchronous() {
        return Ok(0);
    }
    id.drop_event();
    let event = next(id.channel())?;
    id.keep_event(event);
    // SAFETY: it was taken just now, and the id has it.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match (kind, status) {
        (_, 0) => Ok(0),
        (event::REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, ..0) => Err(Errno(-status)),
        _ => Err(Errno(status)),
    }
}
