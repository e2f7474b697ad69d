//! What the create functions give to the program.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::{Context, RecvWr};

/// Room of a `pthread_mutex_t`, which programs do not touch.
pub(crate) type Mutex = [u64; 5];
/// Room of a `pthread_cond_t`.
pub(crate) type Cond = [u64; 6];

/// `ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
    pub(crate) handle: u32,
}

/// `ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `ibv_mw`.
#[repr(C)]
pub(crate) struct Mw {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    /// 1 or 2.
    pub(crate) mw_type: c_uint,
}

/// `ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
}

/// `ibv_xrcd`.
#[repr(C)]
pub(crate) struct Xrcd {
    pub(crate) context: *mut Context,
}

/// `ibv_td`.
#[repr(C)]
pub(crate) struct Td {
    pub(crate) context: *mut Context,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    /// Completion queues on it.
    pub(crate) refcnt: c_int,
}

/// `ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut CompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// `ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_uint,
    pub(crate) qp_type: c_uint,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: u32,
}

/// `ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: u32,
}

/// `ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEvent {
    /// A `cq`, `qp`, `srq` or `wq`, or a port's number.
    pub(crate) element: u64,
    pub(crate) event_type: c_uint,
}

/// `ibv_dm`.
#[repr(C)]
pub(crate) struct Dm {
    pub(crate) context: *mut Context,
    pub(crate) memcpy_to_dm:
        Option<unsafe extern "C" fn(*mut Self, u64, *const c_void, usize) -> c_int>,
    pub(crate) memcpy_from_dm:
        Option<unsafe extern "C" fn(*mut c_void, *mut Self, u64, usize) -> c_int>,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

/// The posts that programs call through a pointer.
pub(crate) type PostRecv<T> =
    unsafe extern "C" fn(*mut T, *const RecvWr, *mut *const RecvWr) -> c_int;

impl Cq {
    pub(crate) fn new(context: *mut Context, channel: *mut CompChannel) -> Self {
        Self {
            context,
            channel,
            cq_context: null_mut(),
            handle: 0,
            cqe: 0,
            mutex: [0; 5],
            cond: [0; 6],
            comp_events_completed: 0,
            async_events_completed: 0,
        }
    }
}

impl Qp {
    pub(crate) fn new(context: *mut Context) -> Self {
        Self {
            context,
            qp_context: null_mut(),
            pd: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            handle: 0,
            qp_num: 0,
            state: 0,
            qp_type: 0,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
        }
    }
}

impl Srq {
    pub(crate) fn new(pd: *mut Pd, context: *mut Context, srq_context: *mut c_void) -> Self {
        Self {
            context,
            srq_context,
            pd,
            handle: 0,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
        }
    }
}
