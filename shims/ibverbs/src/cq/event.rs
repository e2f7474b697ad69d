//! Events of completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_abi as abi;

use super::channel::Channel;
use super::queue::Cq;
use crate::call::live::look;
use crate::call::number;
use crate::device;

/// `ibv_get_cq_event`.
pub(crate) unsafe extern "C" fn get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let channel = unsafe { look::<Channel, _>(channel) }?;
        let taken = |&at: &usize| {
            // SAFETY: its destroy removes its events from the inbox first, and then waits for this one.
            unsafe { &*std::ptr::with_exposed_provenance::<Cq>(at) }
                .comp_events
                .taken();
        };
        let inbox = channel.inbox();
        let at = inbox.take_beside(taken, |fd| device::sleep(&[fd], None))?;
        let fired = std::ptr::with_exposed_provenance_mut::<abi::Cq>(at);
        // SAFETY: as above; the program passes the places for the results.
        unsafe {
            cq.write(fired);
            cq_context.write((*fired).cq_context);
        }
        Ok(0)
    })
}

/// `ibv_ack_cq_events`.
pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut abi::Cq, events: c_uint) {
    number(|| {
        // SAFETY: its destroy waits for this call.
        let owner = unsafe { look::<Cq, _>(cq) }?;
        // SAFETY: programs do not read it; destroy waits for this call.
        unsafe {
            let shown = &raw mut (*owner.shown.get()).cq.comp_events_completed;
            AtomicU32::from_ptr(shown).fetch_add(events, Ordering::Relaxed);
        }
        owner.comp_events.acknowledge(events);
        Ok(0)
    });
}
