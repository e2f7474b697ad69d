//! Event channels, and the events that programs take from them.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use super::abi::{self, CmEvent, EventChannel, event};
use super::endpoint::{Arrival, ConnFields, Endpoint, Param, Reply, Role, Told, UdFields, What};
use super::id::{self, Id};
use super::manager::manager;
use super::{multicast, qp};
use crate::ah::shown_av;
use crate::call::{Errno, number, pointer, set_errno};
use crate::inbox::Inbox;
use crate::live::{Ending, Kind, Object, Users, end, look, publish, room};

/// An event channel.
#[repr(C)]
pub(super) struct Channel {
    shown: EventChannel,
    pub(super) inbox: Arc<Inbox<Arrival>>,
    users: Users,
}

// SAFETY: the C part is at the front.
unsafe impl Object for Channel {
    const KIND: Kind = Kind::EventChannel;

    fn users(&self) -> &Users {
        &self.users
    }
}

/// An event that the program has taken.
#[repr(C)]
struct Taken {
    shown: CmEvent,
    /// The id that waits for its acknowledgement.
    endpoint: Arc<Endpoint>,
    _private_data: Vec<u8>,
    users: Users,
}

// SAFETY: the C part is at the front.
unsafe impl Object for Taken {
    const KIND: Kind = Kind::CmEvent;

    fn users(&self) -> &Users {
        &self.users
    }
}

pub(super) fn create() -> Result<*mut EventChannel, Errno> {
    let inbox = Arc::new(Inbox::new()?);
    let shown = EventChannel { fd: inbox.fd() };
    Ok(publish(
        room(),
        Channel {
            shown,
            inbox,
            users: Users::default(),
        },
    ))
}

/// Ends a channel. Ids that are still on it stay silent for ever, as their events have nowhere to go.
pub(super) fn destroy(channel: *mut EventChannel) -> Result<(), Errno> {
    // SAFETY: the program no longer uses it.
    unsafe { end::<Channel, _>(channel, |_| Ending::Over) }
}

/// `rdma_create_event_channel`.
pub(crate) unsafe extern "C" fn create_event_channel() -> *mut EventChannel {
    pointer(create)
}

/// `rdma_destroy_event_channel`.
pub(crate) unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
    if let Err(errno) = destroy(channel) {
        set_errno(errno);
    }
}

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
        // SAFETY: where the program wants it.
        unsafe { to.write(event) };
        Ok(0)
    })
}

/// `rdma_ack_cm_event`: frees it.
pub(crate) unsafe extern "C" fn ack_cm_event(event: *mut CmEvent) -> c_int {
    number(|| acknowledge(event).map(|()| 0))
}

pub(super) fn acknowledge(event: *mut CmEvent) -> Result<(), Errno> {
    // SAFETY: the program no longer uses it.
    unsafe {
        end::<Taken, _>(event, |taken| {
            taken.endpoint.unacknowledged.acknowledge(1);
            Ending::Over
        })
    }
}

/// The next event of a channel.
pub(super) fn next(channel: *mut EventChannel) -> Result<*mut CmEvent, Errno> {
    // SAFETY: the program does not destroy it now.
    let inbox = Arc::clone(&unsafe { look::<Channel, _>(channel) }?.inbox);
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

/// What the program hears of what has arrived; `None` for nothing yet.
fn taken(Arrival { endpoint, what }: Arrival) -> Result<Option<*mut CmEvent>, Errno> {
    let told = match what {
        What::Told(told) => told,
        What::Request { child, told } => {
            let id = id::of_request(&endpoint, &child)?;
            return Ok(Some(shown(endpoint.clone(), id, endpoint.shown(), told)));
        }
        What::Reply(conn) => match replied(&endpoint, conn)? {
            Some(told) => told,
            None => return Ok(None),
        },
        What::Joined(joined) => multicast::told(&endpoint, joined),
    };
    let id = endpoint.shown();
    Ok(Some(shown(endpoint, id, null_mut(), told)))
}

/// The peer has replied: the queue pair of the id goes to RTS, and the peer is told. Without one the program does both.
fn replied(endpoint: &Arc<Endpoint>, conn: verbs_cm::ConnId) -> Result<Option<Told>, Errno> {
    let manager = manager()?;
    if !matches!(endpoint.role(), Role::Active { conn: own, .. } if own == conn) {
        return Ok(None);
    }
    let own_qp = Id::qp(endpoint.shown())?;
    let reply = if own_qp.is_null() {
        Reply::Taken
    } else {
        Reply::Here
    };
    endpoint.set_role(Role::Active { conn, reply });
    if own_qp.is_null() {
        return Ok(Some(manager.with(|inner, _| inner.reply(conn))));
    }
    let attrs = manager.with(|inner, _| inner.cm.qp_attrs(conn));
    for attr in attrs.into_iter().flatten() {
        // SAFETY: the id's own, which the program does not destroy in its call for events.
        let moved = unsafe { qp::modify(own_qp, endpoint.with_options(attr)) };
        let result = moved.map_err(|_| verbs_core::Error::DeviceFailed);
        let failed = result.is_err();
        manager.with(|inner, now| inner.cm.qp_modified(now, conn, result));
        if failed {
            break;
        }
    }
    // What follows, established or failed, comes as an event of its own.
    Ok(None)
}

fn shown(
    endpoint: Arc<Endpoint>,
    id: *mut abi::CmId,
    listen_id: *mut abi::CmId,
    told: Told,
) -> *mut CmEvent {
    let Told {
        event,
        status,
        param,
    } = told;
    let (private_data, param) = written(param);
    let shown = CmEvent {
        id,
        listen_id,
        event,
        status,
        param,
    };
    publish(
        room(),
        Taken {
            shown,
            endpoint,
            _private_data: private_data,
            users: Users::default(),
        },
    )
}

/// The parameters, and the private data that they point to.
fn written(param: Param) -> (Vec<u8>, abi::Param) {
    let at = |data: &Vec<u8>| match data.is_empty() {
        true => null(),
        false => data.as_ptr().cast::<c_void>(),
    };
    let length = |data: &Vec<u8>| u8::try_from(data.len()).unwrap_or(u8::MAX);
    match param {
        Param::Nothing => {
            let (_, param) = written(Param::Ud(UdFields::default()));
            (Vec::new(), param)
        }
        Param::Conn(ConnFields {
            private_data,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
            qp_num,
        }) => {
            let conn = abi::ConnParam {
                private_data: at(&private_data),
                private_data_len: length(&private_data),
                responder_resources,
                initiator_depth,
                flow_control: flow_control.into(),
                retry_count,
                rnr_retry_count,
                srq: srq.into(),
                qp_num,
            };
            // What is longer than these fields is zero.
            let (_, mut param) = written(Param::Ud(UdFields::default()));
            param.conn = conn;
            (private_data, param)
        }
        Param::Ud(UdFields {
            private_data,
            av,
            qp_num,
            qkey,
            context,
        }) => {
            let ud = abi::UdParam {
                private_data: match context {
                    0 => at(&private_data),
                    context => std::ptr::with_exposed_provenance(context),
                },
                private_data_len: length(&private_data),
                ah_attr: av.as_ref().map(shown_av).unwrap_or_default(),
                qp_num,
                qkey,
            };
            (private_data, abi::Param { ud })
        }
    }
}

/// What a synchronous call waits for: the event, which stays with the id, and the error that its status stands for.
pub(super) fn complete(id: &Id) -> Result<c_int, Errno> {
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
