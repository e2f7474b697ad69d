//! Completion channels.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use verbs_abi as abi;

use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{code, pointer};
use crate::device::Context;
use crate::inbox::Inbox;

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

    /// Counts that many more queues on it.
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
    code(|| unsafe { end::<Channel, _>(channel, |_| Ending::Over) })
}
