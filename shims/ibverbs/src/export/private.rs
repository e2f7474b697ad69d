//! The functions between libibverbs and the libraries of hardware providers. Programs that name such a library
//! (perftest, UCX) load it, and it needs all of them. They report that nothing is supported, so that the library finds
//! no device of its own.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::export;
use crate::call::text;
use crate::call::{Errno, set_errno};

/// The answer to commands for hardware.
unsafe extern "C" fn refused() -> c_int {
    set_errno(Errno::NOTSUP);
    Errno::NOTSUP.0
}

/// No object.
unsafe extern "C" fn none() -> *mut c_void {
    set_errno(Errno::NOTSUP);
    null_mut()
}

/// A driver that registers itself has nothing to drive.
unsafe extern "C" fn nothing() {}

// A flag that providers read: whether destroys succeed on a device that has been removed.
std::arch::global_asm!(
    ".pushsection .bss.export.verbs_allow_disassociate_destroy,\"aw\",@nobits",
    ".globl __verbs_allow_disassociate_destroy",
    ".type __verbs_allow_disassociate_destroy,@object",
    "__verbs_allow_disassociate_destroy:",
    ".skip 1",
    ".size __verbs_allow_disassociate_destroy, 1",
    ".symver __verbs_allow_disassociate_destroy, \
     verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34, remove",
    ".popsection",
);

export! {
    "IBVERBS_PRIVATE_34" {
        "__ioctl_final_num_attrs" = refused,
        "__verbs_log" = nothing,
        "_verbs_init_and_alloc_context" = none,
        "execute_ioctl" = refused,
        "ibv_cmd_advise_mr" = refused,
        "ibv_cmd_alloc_dm" = refused,
        "ibv_cmd_alloc_mw" = refused,
        "ibv_cmd_alloc_pd" = refused,
        "ibv_cmd_attach_mcast" = refused,
        "ibv_cmd_close_xrcd" = refused,
        "ibv_cmd_create_ah" = refused,
        "ibv_cmd_create_counters" = refused,
        "ibv_cmd_create_cq" = refused,
        "ibv_cmd_create_cq_ex" = refused,
        "ibv_cmd_create_cq_ex2" = refused,
        "ibv_cmd_create_flow" = refused,
        "ibv_cmd_create_flow_action_esp" = refused,
        "ibv_cmd_create_qp" = refused,
        "ibv_cmd_create_qp_ex" = refused,
        "ibv_cmd_create_qp_ex2" = refused,
        "ibv_cmd_create_rwq_ind_table" = refused,
        "ibv_cmd_create_srq" = refused,
        "ibv_cmd_create_srq_ex" = refused,
        "ibv_cmd_create_wq" = refused,
        "ibv_cmd_dealloc_mw" = refused,
        "ibv_cmd_dealloc_pd" = refused,
        "ibv_cmd_dereg_mr" = refused,
        "ibv_cmd_destroy_ah" = refused,
        "ibv_cmd_destroy_counters" = refused,
        "ibv_cmd_destroy_cq" = refused,
        "ibv_cmd_destroy_flow" = refused,
        "ibv_cmd_destroy_flow_action" = refused,
        "ibv_cmd_destroy_qp" = refused,
        "ibv_cmd_destroy_rwq_ind_table" = refused,
        "ibv_cmd_destroy_srq" = refused,
        "ibv_cmd_destroy_wq" = refused,
        "ibv_cmd_detach_mcast" = refused,
        "ibv_cmd_free_dm" = refused,
        "ibv_cmd_get_context" = refused,
        "ibv_cmd_modify_cq" = refused,
        "ibv_cmd_modify_flow_action_esp" = refused,
        "ibv_cmd_modify_qp" = refused,
        "ibv_cmd_modify_qp_ex" = refused,
        "ibv_cmd_modify_srq" = refused,
        "ibv_cmd_modify_wq" = refused,
        "ibv_cmd_open_qp" = refused,
        "ibv_cmd_open_xrcd" = refused,
        "ibv_cmd_poll_cq" = refused,
        "ibv_cmd_post_recv" = refused,
        "ibv_cmd_post_send" = refused,
        "ibv_cmd_post_srq_recv" = refused,
        "ibv_cmd_query_context" = refused,
        "ibv_cmd_query_device_any" = refused,
        "ibv_cmd_query_mr" = refused,
        "ibv_cmd_query_port" = refused,
        "ibv_cmd_query_qp" = refused,
        "ibv_cmd_query_srq" = refused,
        "ibv_cmd_read_counters" = refused,
        "ibv_cmd_reg_dm_mr" = refused,
        "ibv_cmd_reg_dmabuf_mr" = refused,
        "ibv_cmd_reg_mr" = refused,
        "ibv_cmd_req_notify_cq" = refused,
        "ibv_cmd_rereg_mr" = refused,
        "ibv_cmd_resize_cq" = refused,
        "ibv_wr_opcode_str" = text::wr_opcode_str,
        "verbs_init_cq" = nothing,
        "verbs_open_device" = none,
        "verbs_register_driver_34" = nothing,
        "verbs_set_ops" = nothing,
        "verbs_uninit_context" = nothing,
    }
}
