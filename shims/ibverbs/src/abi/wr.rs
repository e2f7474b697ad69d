//! Work requests and completions.

use std::ffi::{c_int, c_uint, c_void};

use super::{Ah, Mr, Mw};

/// `ibv_sge`: laid out as [`verbs_core::Sge`] is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `ibv_data_buf`.
#[repr(C)]
pub(crate) struct DataBuf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

/// `ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MwBindInfo {
    pub(crate) mr: *mut Mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

/// `ibv_mw_bind`.
#[repr(C)]
pub(crate) struct MwBind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: MwBindInfo,
}

/// `ibv_send_wr`.
#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *const Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    /// Immediate data in the network's order, or a key to invalidate in the machine's.
    pub(crate) imm_or_key: u32,
    pub(crate) wr: SendOperands,
    pub(crate) remote_srqn: u32,
    pub(crate) bind_mw: SendBind,
}

/// What the operation is about; which one says the opcode.
#[repr(C)]
pub(crate) union SendOperands {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ud {
    pub(crate) ah: *mut Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendBind {
    pub(crate) mw: *mut Mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: MwBindInfo,
}

/// `ibv_recv_wr`.
#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *const Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
}

/// `ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// As [`SendWr::imm_or_key`].
    pub(crate) imm_or_key: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `ibv_wr_opcode`.
pub(crate) mod opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_WITH_INV: u32 = 9;
    pub(crate) const ATOMIC_WRITE: u32 = 15;
}
