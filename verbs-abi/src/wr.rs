//! Work requests and completions.

use std::ffi::{c_int, c_uint, c_void};

use crate::{Ah, Mr, Mw};

/// `ibv_sge`: laid out as [`verbs_core::Sge`] is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `ibv_data_buf`.
#[repr(C)]
pub struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// `ibv_mw_bind`.
#[repr(C)]
pub struct MwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: MwBindInfo,
}

/// `ibv_send_wr`.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *const Self,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// Immediate data in network byte order, or a key to invalidate in the machine's.
    pub imm_or_key: u32,
    pub wr: SendOperands,
    pub remote_srqn: u32,
    pub bind_mw: SendBind,
}

/// The operands of the operation; the opcode selects the member.
#[repr(C)]
pub union SendOperands {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: Ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ud {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendBind {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

/// `ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *const Self,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
}

/// `ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// As [`SendWr::imm_or_key`].
    pub imm_or_key: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `ibv_wr_opcode`.
pub mod opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
    pub const ATOMIC_WRITE: u32 = 15;
}
