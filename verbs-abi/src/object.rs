//! The objects that the create functions return to the program.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::{Context, RecvWr};

/// Room for a `pthread_mutex_t`, which programs do not touch.
pub type Mutex = [u64; 5];
/// Room for a `pthread_cond_t`.
pub type Cond = [u64; 6];

/// `ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `ibv_mw`.
#[repr(C)]
pub struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    /// 1 or 2.
    pub mw_type: c_uint,
}

/// `ibv_ah`.
#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

/// `ibv_xrcd`.
#[repr(C)]
pub struct Xrcd {
    pub context: *mut Context,
}

/// `ibv_td`.
#[repr(C)]
pub struct Td {
    pub context: *mut Context,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    /// Completion queues on it.
    pub refcnt: c_int,
}

/// `ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: Mutex,
    pub cond: Cond,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
    pub mutex: Mutex,
    pub cond: Cond,
    pub events_completed: u32,
}

/// `ibv_srq`.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: Mutex,
    pub cond: Cond,
    pub events_completed: u32,
}

/// `ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AsyncEvent {
    /// A `cq`, `qp`, `srq` or `wq`, or a port's number.
    pub element: u64,
    pub event_type: c_uint,
}

/// `ibv_dm`.
#[repr(C)]
pub struct Dm {
    pub context: *mut Context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut Self, u64, *const c_void, usize) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Self, u64, usize) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}

/// The posts that programs call through a pointer.
pub type PostRecv<T> = unsafe extern "C" fn(*mut T, *const RecvWr, *mut *const RecvWr) -> c_int;

impl Cq {
    pub fn new(context: *mut Context, channel: *mut CompChannel) -> Self {
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
    pub fn new(context: *mut Context) -> Self {
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
    pub fn new(pd: *mut Pd, context: *mut Context, srq_context: *mut c_void) -> Self {
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
