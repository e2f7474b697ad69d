//! Making ids and ending them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::rdmacm::{CmId, EventChannel};

use crate::call::live::{Ending, end, look};
use crate::call::{Errno, number};
use crate::rdmacm::channel::{self, inbox_of};
use crate::rdmacm::id::{Id, create};
use crate::rdmacm::manager::endpoint::{Endpoint, Role};
use crate::rdmacm::manager::{self, manager};
use crate::rdmacm::qp;

/// `rdma_create_id`. Without a channel the id gets one of its own, and calls wait for their events.
pub(crate) unsafe extern "C" fn create_id(
    channel: *mut EventChannel,
    to: *mut *mut CmId,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    number(|| {
        // SAFETY: the program passes the place for the result.
        let to = unsafe { to.as_mut() }.ok_or(Errno::INVAL)?;
        *to = create(channel, context, ps, None)?;
        Ok(0)
    })
}

/// `rdma_destroy_id`. Waits until the program has acknowledged its events.
pub(crate) unsafe extern "C" fn destroy_id(id: *mut CmId) -> c_int {
    number(|| destroy(id).map(|()| 0))
}

pub(in crate::rdmacm) fn destroy(at: *mut CmId) -> Result<(), Errno> {
    // SAFETY: the program does not use it now, except to acknowledge events.
    let id = unsafe { look::<Id, _>(at) }?;
    id.groups.leave_all(id.qp());
    forget(&id.endpoint);
    id.drop_event();
    id.endpoint.unacknowledged.wait();
    let own_channel = id.is_synchronous().then(|| id.channel());
    // SAFETY: as above.
    unsafe { end::<Id, _>(at, |_| Ending::Over) }?;
    if let Some(channel) = own_channel {
        let _ = channel::destroy(channel);
    }
    Ok(())
}

/// Makes the connection manager forget an endpoint, and the requests that wait for it. Peers are informed.
fn forget(endpoint: &Arc<Endpoint>) {
    let waiting = endpoint.silence();
    for endpoint in waiting.iter().chain([endpoint]) {
        let stream = endpoint.state.lock().stream.take();
        if let Some(stream) = stream {
            stream.end();
        }
    }
    let Some(manager) = manager::existing() else {
        return;
    };
    manager.with(|inner, now| {
        for endpoint in waiting.iter().chain([endpoint]) {
            let (role, binding, claim) = {
                let mut state = endpoint.state.lock();
                (
                    std::mem::replace(&mut state.role, Role::Over),
                    state.binding.take(),
                    state.claim.take(),
                )
            };
            drop(claim);
            // They may have had their last events.
            match role {
                Role::Active { conn, .. } | Role::Passive { conn, .. } => {
                    let _ = inner.cm.destroy(now, conn);
                    inner.kept.conns.remove(&conn);
                }
                Role::Listener(listener) => {
                    let _ = inner.cm.unlisten(listener);
                    inner.kept.listeners.remove(&listener);
                }
                Role::Asking(question) | Role::Asked(question) => {
                    let _ = inner.cm.forget(question);
                    inner.kept.questions.remove(&question);
                }
                // A stream ended before.
                Role::StreamListener | Role::Stream | Role::StreamAsked { .. } => {}
                Role::Idle | Role::Over => {}
            }
            if let Some(binding) = binding {
                inner.kept.ports.give_back(binding);
            }
        }
    });
}

/// `rdma_migrate_id`: the id's events, including those that wait, move to another channel; without one, to a channel of
/// its own. Waits until the program has acknowledged those that it has taken.
pub(crate) unsafe extern "C" fn migrate_id(at: *mut CmId, channel: *mut EventChannel) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(at) }?;
        let is_synchronous = channel.is_null();
        if is_synchronous && id.is_synchronous() {
            return Err(Errno::INVAL);
        }
        let to = if is_synchronous {
            channel::create()?
        } else {
            channel
        };
        id.endpoint.move_to(&inbox_of(to)?);
        id.drop_event();
        id.endpoint.unacknowledged.wait();
        if id.is_synchronous.swap(is_synchronous, Ordering::Relaxed) {
            let _ = channel::destroy(id.channel());
        }
        id.change(|shown| shown.channel = to);
        Ok(0)
    })
}

/// `rdma_get_devices`: the open devices, for as long as the process lives.
pub(crate) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut verbs_abi::Context {
    crate::call::pointer(|| {
        let verbs = manager()?.verbs();
        // SAFETY: NULL, or the program's place for the number.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = 1;
        }
        let list = [verbs, null_mut()];
        // SAFETY: of that many bytes; the program frees it by free_devices.
        unsafe {
            let room = libc::malloc(size_of_val(&list)).cast::<*mut verbs_abi::Context>();
            if room.is_null() {
                return Err(Errno::NOMEM);
            }
            room.copy_from_nonoverlapping(list.as_ptr(), list.len());
            Ok(room)
        }
    })
}

/// `rdma_free_devices`.
pub(crate) unsafe extern "C" fn free_devices(list: *mut *mut verbs_abi::Context) {
    // SAFETY: from get_devices, or NULL.
    unsafe { libc::free(list.cast()) }
}

/// Destroys what `rdma_create_ep` has made.
pub(crate) unsafe extern "C" fn destroy_ep(at: *mut CmId) {
    // SAFETY: the program no longer uses it.
    unsafe {
        qp::destroy_qp(at);
        qp::destroy_srq(at);
        destroy_id(at);
    }
}
