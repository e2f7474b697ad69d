//! The functions of the library, each with the version that programs request.
//!
//! A Rust function is exported by a jump to it that has the name. The assembler gives the jump its version, which has
//! to be in the same object file; so the functions themselves need no name of their own.

#[cfg(not(test))]
mod private;
mod rdmacm;

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs_abi as abi;

use crate::call::{Errno, set_errno};

use crate::call::text;
use crate::device::open;
use crate::qp::ah;
use crate::{cq, device, memory, qp, srq};

/// Exports functions: their version, and their names.
macro_rules! export {
    ($($version:literal { $($name:literal = $function:path,)* })*) => { $($(
        #[cfg(not(test))]
        std::arch::global_asm!(
            concat!(".pushsection .text.export.", $name, ",\"ax\",@progbits"),
            concat!(".globl __verbs_", $name),
            concat!(".type __verbs_", $name, ",@function"),
            concat!("__verbs_", $name, ":"),
            crate::export::jump!(),
            concat!(".size __verbs_", $name, ", . - __verbs_", $name),
            concat!(".symver __verbs_", $name, ", ", $name, "@@", $version, ", remove"),
            ".popsection",
            to = sym $function,
        );
        // In tests the names would be this process's own.
        #[cfg(test)]
        const _: *const () = $function as *const ();
    )*)* };
}
use export;

/// The instruction that continues at a function.
#[cfg(all(not(test), target_arch = "x86_64"))]
macro_rules! jump {
    () => {
        "jmp {to}"
    };
}
#[cfg(all(not(test), target_arch = "aarch64"))]
macro_rules! jump {
    () => {
        "b {to}"
    };
}
#[cfg(not(test))]
use jump;

export! {
    "IBVERBS_1.0" {
        "ibv_copy_path_rec_from_kern" = nothing_to_copy,
        "ibv_copy_path_rec_to_kern" = nothing_to_copy,
        "ibv_copy_qp_attr_from_kern" = nothing_to_copy,
        "ibv_create_comp_channel" = cq::create_comp_channel,
        "ibv_destroy_comp_channel" = cq::destroy_comp_channel,
        "ibv_get_sysfs_path" = device::get_sysfs_path,
        "ibv_rate_to_mult" = text::rate_to_mult,
        "ibv_read_sysfs_file" = device::read_sysfs_file,
        "mult_to_ibv_rate" = text::mult_to_rate,
    }
    "IBVERBS_1.1" {
        "ibv_ack_async_event" = device::ack_async_event,
        "ibv_ack_cq_events" = cq::ack_cq_events,
        "ibv_alloc_pd" = memory::alloc_pd,
        "ibv_attach_mcast" = qp::attach_mcast,
        "ibv_close_device" = open::close_device,
        "ibv_copy_ah_attr_from_kern" = nothing_to_copy,
        "ibv_create_ah" = ah::create_ah,
        "ibv_create_ah_from_wc" = ah::create_ah_from_wc,
        "ibv_create_cq" = cq::create_cq,
        "ibv_create_qp" = qp::create_qp,
        "ibv_create_srq" = srq::create_srq,
        "ibv_dealloc_pd" = memory::dealloc_pd,
        "ibv_dereg_mr" = memory::dereg_mr,
        "ibv_destroy_ah" = ah::destroy_ah,
        "ibv_destroy_cq" = cq::destroy_cq,
        "ibv_destroy_qp" = qp::destroy_qp,
        "ibv_destroy_srq" = srq::destroy_srq,
        "ibv_detach_mcast" = qp::detach_mcast,
        "ibv_dofork_range" = fork_range,
        "ibv_dontfork_range" = fork_range,
        "ibv_event_type_str" = text::event_type_str,
        "ibv_fork_init" = device::fork_init,
        "ibv_free_device_list" = device::free_device_list,
        "ibv_get_async_event" = device::get_async_event,
        "ibv_get_cq_event" = cq::get_cq_event,
        "ibv_get_device_guid" = device::get_device_guid,
        "ibv_get_device_list" = device::get_device_list,
        "ibv_get_device_name" = device::get_device_name,
        "ibv_init_ah_from_wc" = ah::init_ah_from_wc,
        "ibv_modify_qp" = qp::modify_qp,
        "ibv_modify_srq" = srq::modify_srq,
        "ibv_node_type_str" = text::node_type_str,
        "ibv_open_device" = open::open_device,
        "ibv_port_state_str" = text::port_state_str,
        "ibv_query_device" = device::query_device,
        "ibv_query_gid" = device::query_gid,
        "ibv_query_pkey" = device::query_pkey,
        "ibv_query_port" = device::query_port,
        "ibv_query_qp" = qp::query_qp,
        "ibv_query_srq" = srq::query_srq,
        "ibv_rate_to_mbps" = text::rate_to_mbps,
        "ibv_reg_mr" = memory::reg_mr,
        "ibv_rereg_mr" = memory::rereg_mr,
        "ibv_resize_cq" = cq::resize_cq,
        "ibv_resolve_eth_l2_from_gid" = ah::resolve_eth_l2_from_gid,
        "ibv_wc_status_str" = text::wc_status_str,
        "mbps_to_ibv_rate" = text::mbps_to_rate,
    }
    "IBVERBS_1.5" { "ibv_get_pkey_index" = device::get_pkey_index, }
    "IBVERBS_1.6" { "ibv_qp_to_qp_ex" = qp::qp_to_qp_ex, }
    "IBVERBS_1.7" { "ibv_reg_mr_iova" = memory::reg_mr_iova, }
    "IBVERBS_1.8" { "ibv_reg_mr_iova2" = memory::reg_mr_iova2, }
    "IBVERBS_1.9" { "ibv_get_device_index" = device::get_device_index, }
    "IBVERBS_1.10" {
        "ibv_import_device" = import,
        "ibv_import_mr" = import,
        "ibv_import_pd" = import,
        "ibv_query_ece" = qp::query_ece,
        "ibv_set_ece" = qp::set_ece,
        "ibv_unimport_mr" = unimport,
        "ibv_unimport_pd" = unimport,
    }
    "IBVERBS_1.11" {
        "_ibv_query_gid_ex" = device::query_gid_ex,
        "_ibv_query_gid_table" = device::query_gid_table,
    }
    "IBVERBS_1.12" { "ibv_reg_dmabuf_mr" = memory::reg_dmabuf_mr, }
    "IBVERBS_1.13" {
        "ibv_import_dm" = import,
        "ibv_is_fork_initialized" = device::is_fork_initialized,
        "ibv_unimport_dm" = unimport,
    }
    "IBVERBS_1.14" { "ibv_query_qp_data_in_order" = qp::query_qp_data_in_order, }
    "VERBS_1.0" {
        "verbs_call_extension" = device::call_extension,
        "verbs_query_extensions" = device::query_extensions,
    }
    "IBVERBS_PRIVATE_34" {
        "ibv_query_gid_type" = device::query_gid_type,
        "ibv_read_ibdev_sysfs_file" = device::read_ibdev_sysfs_file,
    }
}

/// Structures of the kernel, which only a librdmacm over the kernel has.
unsafe extern "C" fn nothing_to_copy() {}

/// Objects of another process: no descriptor of the kernel can name them.
unsafe extern "C" fn import() -> *mut abi::Context {
    set_errno(Errno::NOTSUP);
    null_mut()
}

/// An object that was never imported.
unsafe extern "C" fn unimport() {}

/// Memory that a child shall have, or not: nothing is pinned, so the child has a copy of all memory.
unsafe extern "C" fn fork_range() -> c_int {
    0
}
