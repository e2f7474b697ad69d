//! Structures that programs share with libibumad, as in the `umad.h` of its version 56.

use std::ffi::{c_char, c_int, c_uint};

/// Bytes of an adapter's name, with the zero at its end.
pub(crate) const NAME_LEN: usize = 20;

/// Entries of an adapter's list of ports.
pub(crate) const PORTS_MAX: usize = 10;

/// Bytes before a datagram in a program's buffer.
pub(crate) const HEADER_LEN: usize = 64;

/// The destination or the source of a datagram: `ib_mad_addr_t`. Numbers of the wire are big-endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct MadAddr {
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) lid: u16,
    pub(crate) sl: u8,
    pub(crate) path_bits: u8,
    pub(crate) grh_present: u8,
    pub(crate) gid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) pkey_index: u16,
    pub(crate) reserved: [u8; 6],
}

/// The header in front of a datagram: `ib_user_mad_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct UserMad {
    pub(crate) agent_id: u32,
    pub(crate) status: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) retries: u32,
    pub(crate) length: u32,
    pub(crate) addr: MadAddr,
}

const _: () = assert!(size_of::<UserMad>() == HEADER_LEN);

/// A port: `umad_port_t`.
#[repr(C)]
pub(crate) struct UmadPort {
    pub(crate) ca_name: [c_char; NAME_LEN],
    pub(crate) portnum: c_int,
    pub(crate) base_lid: c_uint,
    pub(crate) lmc: c_uint,
    pub(crate) sm_lid: c_uint,
    pub(crate) sm_sl: c_uint,
    pub(crate) state: c_uint,
    pub(crate) phys_state: c_uint,
    pub(crate) rate: c_uint,
    pub(crate) capmask: u32,
    pub(crate) gid_prefix: u64,
    pub(crate) port_guid: u64,
    pub(crate) pkeys_size: c_uint,
    pub(crate) pkeys: *mut u16,
    pub(crate) link_layer: [c_char; NAME_LEN],
}

const _: () = assert!(size_of::<UmadPort>() == 112);

/// An adapter: `umad_ca_t`.
#[repr(C)]
pub(crate) struct UmadCa {
    pub(crate) ca_name: [c_char; NAME_LEN],
    pub(crate) node_type: c_uint,
    pub(crate) numports: c_int,
    pub(crate) fw_ver: [c_char; 20],
    pub(crate) ca_type: [c_char; 40],
    pub(crate) hw_ver: [c_char; 20],
    pub(crate) node_guid: u64,
    pub(crate) system_guid: u64,
    pub(crate) ports: [*mut UmadPort; PORTS_MAX],
}

const _: () = assert!(size_of::<UmadCa>() == 208);

/// An entry of a list of adapters: `struct umad_device_node`.
#[repr(C)]
pub(crate) struct DeviceNode {
    pub(crate) next: *mut DeviceNode,
    pub(crate) ca_name: *const c_char,
}

/// The adapter for datagrams of subnet management, and the one for those of the general services: `struct umad_ca_pair`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CaPair {
    pub(crate) smi_name: [c_char; NAME_LEN],
    pub(crate) smi_preferred_port: u32,
    pub(crate) gsi_name: [c_char; NAME_LEN],
    pub(crate) gsi_preferred_port: u32,
}

const _: () = assert!(size_of::<CaPair>() == 48);

/// The argument of `umad_register2`: `struct umad_reg_attr`.
#[repr(C)]
pub(crate) struct RegAttr {
    pub(crate) mgmt_class: u8,
    pub(crate) mgmt_class_version: u8,
    pub(crate) flags: u32,
    pub(crate) method_mask: [u64; 2],
    pub(crate) oui: u32,
    pub(crate) rmpp_version: u8,
}

/// Writes a text with a zero behind it; what does not fit is cut.
pub(crate) fn put_text<const N: usize>(place: &mut [c_char; N], text: &str) {
    place.fill(0);
    let bytes = text.bytes().take(N.saturating_sub(1));
    for (to, from) in place.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the function returns the address of the calling thread's own errno, which is valid as
    // long as the thread lives.
    unsafe { *libc::__errno_location() = number };
}

/// Sets `errno` and returns its negative, as most functions do.
pub(crate) fn fail(number: c_int) -> c_int {
    set_errno(number);
    -number
}
