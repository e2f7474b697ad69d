//! Extended queues, whose functions are called through pointers in them.

use std::ffi::{c_int, c_uint, c_void};

use super::{Ah, Cq, DataBuf, Mw, MwBindInfo, Qp, Sge};

/// `ibv_cq_ex`.
#[repr(C)]
pub(crate) struct CqEx {
    pub(crate) cq: Cq,
    pub(crate) comp_mask: u32,
    /// Of the completion that is being looked at, as `wr_id` is.
    pub(crate) status: c_uint,
    pub(crate) wr_id: u64,
    pub(crate) ops: CqExOps,
}

/// The functions of `ibv_cq_ex`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CqExOps {
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut CqEx, *const c_void) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
    pub(crate) read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
    pub(crate) read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(crate) read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(crate) read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(crate) read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(crate) read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(crate) read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
    pub(crate) read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(crate) read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub(crate) read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub(crate) read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    pub(crate) read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16>,
    pub(crate) read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut c_void)>,
    pub(crate) read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
}

/// `ibv_qp_ex`.
#[repr(C)]
pub(crate) struct QpEx {
    pub(crate) qp: Qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) ops: QpExOps,
}

/// The functions of `ibv_qp_ex`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpExOps {
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub(crate) wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
    pub(crate) wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(crate) wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *const c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub(crate) wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
    pub(crate) wr_flush: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, usize, u8, u8)>,
}
