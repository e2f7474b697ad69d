//! A device and an open one, with the functions that programs call through pointers in it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    AllocDmAttr, Cq, CqEx, CqInitAttrEx, DeviceAttr, DeviceAttrEx, Dm, ModifyCqAttr, Mr, Mutex, Mw,
    MwBind, ParentDomainInitAttr, Pd, PortAttr, PostRecv, Qp, QpInitAttrEx, QpOpenAttr, SendWr,
    Sge, Srq, SrqInitAttrEx, Td, ValuesEx, Wc, Xrcd, XrcdInitAttr,
};

/// A function of the table that the library does not have.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

/// `ibv_device`, and behind it what makes providers' libraries see that it is not theirs: they compare the
/// pointer there with a table of their own.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) ops: [*mut c_void; 2],
    pub(crate) node_type: c_uint,
    pub(crate) transport_type: c_uint,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
    pub(crate) provider: [*mut c_void; 8],
}

/// `ibv_context_ops`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ContextOps {
    pub(crate) query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
    pub(crate) query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int>,
    pub(crate) unused_a: [Unused; 5],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_uint) -> *mut Mw>,
    pub(crate) bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    pub(crate) unused_b: [Unused; 1],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub(crate) unused_c: [Unused; 7],
    pub(crate) post_srq_recv: Option<PostRecv<Srq>>,
    pub(crate) unused_d: [Unused; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut Qp, *const SendWr, *mut *const SendWr) -> c_int>,
    pub(crate) post_recv: Option<PostRecv<Qp>>,
    pub(crate) unused_e: [Unused; 5],
}

/// `ibv_context`.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: Mutex,
    /// All ones: the context is the end of a [`VerbsContext`].
    pub(crate) abi_compat: *mut c_void,
}

/// `verbs_context`: a table that grows at its front, whose functions are used if `sz` says that they are there.
#[repr(C)]
pub(crate) struct VerbsContext {
    /// `query_port_speed` to `alloc_dmah`: functions of libibverbs 59 to 64.
    pub(crate) newer: [Unused; 6],
    pub(crate) query_port:
        Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub(crate) advise_mr:
        Option<unsafe extern "C" fn(*mut Pd, c_uint, u32, *const Sge, u32) -> c_int>,
    pub(crate) alloc_null_mr: Option<unsafe extern "C" fn(*mut Pd) -> *mut Mr>,
    pub(crate) counters: [Unused; 4],
    pub(crate) reg_dm_mr:
        Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, c_uint) -> *mut Mr>,
    pub(crate) alloc_dm: Option<unsafe extern "C" fn(*mut Context, *const AllocDmAttr) -> *mut Dm>,
    pub(crate) free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    pub(crate) flow_actions: [Unused; 3],
    pub(crate) modify_qp_rate_limit: Unused,
    pub(crate) alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut Context, *const ParentDomainInitAttr) -> *mut Pd>,
    pub(crate) dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    pub(crate) alloc_td: Option<unsafe extern "C" fn(*mut Context, *const u32) -> *mut Td>,
    pub(crate) modify_cq: Option<unsafe extern "C" fn(*mut Cq, *const ModifyCqAttr) -> c_int>,
    /// `post_srq_ops` to `create_wq`: tag matching, indirection tables and bare work queues.
    pub(crate) queues: [Unused; 6],
    pub(crate) query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
    pub(crate) create_cq_ex:
        Option<unsafe extern "C" fn(*mut Context, *const CqInitAttrEx) -> *mut CqEx>,
    pub(crate) private: *mut c_void,
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int,
    >,
    pub(crate) flows: [Unused; 4],
    pub(crate) open_qp: Option<unsafe extern "C" fn(*mut Context, *const QpOpenAttr) -> *mut Qp>,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub(crate) get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub(crate) create_srq_ex:
        Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub(crate) open_xrcd:
        Option<unsafe extern "C" fn(*mut Context, *const XrcdInitAttr) -> *mut Xrcd>,
    pub(crate) close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    pub(crate) placeholder: u64,
    /// Bytes of the whole.
    pub(crate) sz: usize,
    pub(crate) context: Context,
}
