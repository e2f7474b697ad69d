//! A device and an open one, with the functions that programs call through pointers in it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    AllocDmAttr, Cq, CqEx, CqInitAttrEx, DeviceAttr, DeviceAttrEx, Dm, ModifyCqAttr, Mr, Mutex, Mw,
    MwBind, ParentDomainInitAttr, Pd, PortAttr, PostRecv, Qp, QpInitAttrEx, QpOpenAttr, SendWr,
    Sge, Srq, SrqInitAttrEx, Td, ValuesEx, Wc, Xrcd, XrcdInitAttr,
};

/// A function of the table that the library does not have.
pub type Unused = Option<unsafe extern "C" fn()>;

/// `ibv_device`, followed by a pointer that shows providers' libraries that the device is not theirs: they compare it
/// with a table of their own.
#[repr(C)]
pub struct Device {
    pub ops: [*mut c_void; 2],
    pub node_type: c_uint,
    pub transport_type: c_uint,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
    pub provider: [*mut c_void; 8],
}

/// `ibv_context_ops`.
#[repr(C)]
#[derive(Default)]
pub struct ContextOps {
    pub query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int>,
    pub unused_a: [Unused; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_uint) -> *mut Mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    pub unused_b: [Unused; 1],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub unused_c: [Unused; 7],
    pub post_srq_recv: Option<PostRecv<Srq>>,
    pub unused_d: [Unused; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut Qp, *const SendWr, *mut *const SendWr) -> c_int>,
    pub post_recv: Option<PostRecv<Qp>>,
    pub unused_e: [Unused; 5],
}

/// `ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: Mutex,
    /// All ones: the context is the last part of a [`VerbsContext`].
    pub abi_compat: *mut c_void,
}

/// `verbs_context`: a table that grows at its front, whose functions are used if `sz` covers them.
#[repr(C)]
pub struct VerbsContext {
    /// `query_port_speed` to `alloc_dmah`: functions of libibverbs 59 to 64.
    pub newer: [Unused; 6],
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut Pd, c_uint, u32, *const Sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut Pd) -> *mut Mr>,
    pub counters: [Unused; 4],
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, c_uint) -> *mut Mr>,
    pub alloc_dm: Option<unsafe extern "C" fn(*mut Context, *const AllocDmAttr) -> *mut Dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    pub flow_actions: [Unused; 3],
    pub modify_qp_rate_limit: Unused,
    pub alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut Context, *const ParentDomainInitAttr) -> *mut Pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut Context, *const u32) -> *mut Td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut Cq, *const ModifyCqAttr) -> c_int>,
    /// `post_srq_ops` to `create_wq`: tag matching, indirection tables and bare work queues.
    pub queues: [Unused; 6],
    pub query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *const CqInitAttrEx) -> *mut CqEx>,
    pub private: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int,
    >,
    pub flows: [Unused; 4],
    pub open_qp: Option<unsafe extern "C" fn(*mut Context, *const QpOpenAttr) -> *mut Qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut Context, *const XrcdInitAttr) -> *mut Xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    pub placeholder: u64,
    /// Bytes of the whole.
    pub sz: usize,
    pub context: Context,
}
