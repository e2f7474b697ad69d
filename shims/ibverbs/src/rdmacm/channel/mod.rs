//! Event channels, and events that programs have taken.

pub(in crate::rdmacm) mod arrival;
pub(in crate::rdmacm) mod taken;

use std::ffi::{c_int, c_void};
use std::ptr::null;
use std::sync::Arc;

use verbs_abi::rdmacm::{self as abi, CmEvent, EventChannel};

use crate::call::live::{Ending, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, number, pointer, set_errno};
use crate::inbox::Inbox;
use crate::rdmacm::manager::endpoint::{Arrival, ConnFields, Endpoint, Param, Told, UdFields};

/// An event channel.
#[repr(C)]
struct Channel {
    shown: EventChannel,
    inbox: Arc<Inbox<Arrival>>,
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

pub(in crate::rdmacm) fn create() -> Result<*mut EventChannel, Errno> {
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

/// Where the events of ids on that channel wait.
pub(in crate::rdmacm) fn inbox_of(
    channel: *mut EventChannel,
) -> Result<Arc<Inbox<Arrival>>, Errno> {
    // SAFETY: the program does not destroy it now.
    Ok(Arc::clone(&unsafe { look::<Channel, _>(channel) }?.inbox))
}

/// Whether an event waits there.
pub(crate) fn has_event(channel: *mut EventChannel) -> bool {
    inbox_of(channel).is_ok_and(|inbox| !inbox.is_empty())
}

/// Ends a channel. Ids that are still on it stay silent for ever, because their events have no destination.
pub(in crate::rdmacm) fn destroy(channel: *mut EventChannel) -> Result<(), Errno> {
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

/// `rdma_ack_cm_event`: frees it.
pub(crate) unsafe extern "C" fn ack_cm_event(event: *mut CmEvent) -> c_int {
    number(|| acknowledge(event).map(|()| 0))
}

pub(in crate::rdmacm) fn acknowledge(event: *mut CmEvent) -> Result<(), Errno> {
    // SAFETY: the program no longer uses it.
    unsafe {
        end::<Taken, _>(event, |taken| {
            taken.endpoint.unacknowledged.acknowledge(1);
            Ending::Over
        })
    }
}

/// An event for the program.
pub(in crate::rdmacm) fn event(
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
            // The rest of the union, behind these fields, is zero.
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
                ah_attr: av.as_ref().map(verbs_abi::shown_av).unwrap_or_default(),
                qp_num,
                qkey,
            };
            (private_data, abi::Param { ud })
        }
    }
}
