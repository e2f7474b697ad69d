//! Completion channels.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::Cq;
use crate::abi;
use crate::call::{code, number, pointer};
use crate::device::Context;
use crate::inbox::Inbox;
use crate::live::{Held, Kind, Object, Users, end, look, publish, room};

/// A completion channel: events are addresses of completion queues.
#[repr(C)]
pub(crate) struct Channel {
    shown: UnsafeCell<abi::CompChannel>,
    inbox: Arc<Inbox<usize>>,
    _context: Held<Context>,
    users: Users,
}

// SAFETY: of the C structure only the count changes, by atomic operations.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

// SAFETY: the C part is at the front.
unsafe impl Object for Channel {
    const KIND: Kind = Kind::Channel;

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Channel {
    pub(super) fn inbox(&self) -> Arc<Inbox<usize>> {
        Arc::clone(&self.inbox)
    }

    /// So many queues more are on it.
    pub(super) fn count(&self, more: c_int) {
        // SAFETY: aligned, and changed here only.
        let count = unsafe { AtomicI32::from_ptr(&raw mut (*self.shown.get()).refcnt) };
        count.fetch_add(more, Ordering::Relaxed);
    }
}

/// `ibv_create_comp_channel`.
pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut abi::Context,
) -> *mut abi::CompChannel {
    pointer(|| {
        // SAFETY: the program does not close it now.
        let owner = unsafe { look::<Context, _>(context) }?;
        let inbox = Arc::new(Inbox::new()?);
        let shown = abi::CompChannel {
            context,
            fd: inbox.fd(),
            refcnt: 0,
        };
        let channel = Channel {
            shown: UnsafeCell::new(shown),
            inbox,
            _context: Held::new(owner),
            users: Users::default(),
        };
        Ok(publish(room(), channel))
    })
}

/// `ibv_destroy_comp_channel`: `EBUSY` while completion queues are on it.
pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: the program does not use it now.
    code(|| unsafe { end::<Channel, _>(channel, |_| Ok(())) })
}

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
            // SAFETY: its destroy takes its events out of the queue first, and then waits for this one.
            unsafe { &*std::ptr::with_exposed_provenance::<Cq>(at) }
                .comp_events
                .taken();
        };
        let at = channel.inbox.take(taken)?;
        let fired = std::ptr::with_exposed_provenance_mut::<abi::Cq>(at);
        // SAFETY: as above; where the program wants them.
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
        // SAFETY: its destroy waits for this.
        let owner = unsafe { look::<Cq, _>(cq) }?;
        // SAFETY: programs do not look at it; destroy waits for this.
        unsafe {
            let shown = &raw mut (*owner.shown.get()).cq.comp_events_completed;
            std::sync::atomic::AtomicU32::from_ptr(shown).fetch_add(events, Ordering::Relaxed);
        }
        owner.comp_events.acknowledge(events);
        Ok(0)
    });
}
