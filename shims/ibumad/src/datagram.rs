//! The parts of a datagram in a program's buffer.

use std::ffi::{c_int, c_void};

use crate::abi::{HEADER_LEN, MadAddr, UserMad};

/// Bytes before the datagram.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_size() -> usize {
    HEADER_LEN
}

/// The datagram in a buffer.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(HEADER_LEN)
}

/// The result: 0, or the number of an error.
///
/// # Safety
/// `umad` is a buffer with a received datagram.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    // SAFETY: the caller's buffer begins with a header.
    let header: UserMad = unsafe { umad.cast::<UserMad>().read_unaligned() };
    header.status.cast_signed()
}

/// The destination or the source of the datagram in a buffer.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(std::mem::offset_of!(UserMad, addr))
}

/// Changes the address in a buffer.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes.
unsafe fn change(umad: *mut c_void, change: impl FnOnce(&mut MadAddr)) -> c_int {
    if umad.is_null() {
        return -libc::EINVAL;
    }
    let place = umad.cast::<UserMad>();
    // SAFETY: the caller's buffer begins with a header, for which all contents are valid; nothing else uses it during
    // the call.
    let mut header = unsafe { place.read_unaligned() };
    change(&mut header.addr);
    // SAFETY: as above.
    unsafe { place.write_unaligned(header) };
    0
}

/// Sets the destination of the datagram, in numbers of this machine's byte order.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_addr(
    umad: *mut c_void,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let lid = (dlid.cast_unsigned() & 0xffff) as u16;
    // SAFETY: the caller's buffer.
    unsafe {
        umad_set_addr_net(
            umad,
            lid.to_be(),
            dqp.cast_unsigned().to_be(),
            sl,
            qkey.cast_unsigned().to_be(),
        )
    }
}

/// Sets the destination of the datagram, in numbers in network byte order.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_addr_net(
    umad: *mut c_void,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    // SAFETY: the caller's buffer.
    unsafe {
        change(umad, |addr| {
            addr.lid = dlid;
            addr.qpn = dqp;
            addr.sl = sl.to_le_bytes()[0];
            addr.qkey = qkey;
        })
    }
}

/// Sets the global route header: `mad_addr` is an address that has one, or null for none.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes, `mad_addr` null or an `ib_mad_addr_t`.
unsafe fn set_grh(umad: *mut c_void, mad_addr: *mut c_void, is_host_order: bool) -> c_int {
    if mad_addr.is_null() {
        // SAFETY: the caller's buffer.
        return unsafe { change(umad, |addr| addr.grh_present = 0) };
    }
    // SAFETY: the caller's address is one.
    let from = unsafe { mad_addr.cast::<MadAddr>().read_unaligned() };
    // SAFETY: the caller's buffer.
    unsafe {
        change(umad, |addr| {
            addr.grh_present = 1;
            addr.gid = from.gid;
            addr.flow_label = if is_host_order {
                from.flow_label.to_be()
            } else {
                from.flow_label
            };
            addr.hop_limit = from.hop_limit;
            addr.traffic_class = from.traffic_class;
            addr.gid_index = from.gid_index;
        })
    }
}

/// Sets the global route header, with the flow label in this machine's byte order.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes, `mad_addr` null or an `ib_mad_addr_t`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_grh(umad: *mut c_void, mad_addr: *mut c_void) -> c_int {
    // SAFETY: the caller has to guarantee the same.
    unsafe { set_grh(umad, mad_addr, true) }
}

/// Sets the global route header, with the flow label in network byte order.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes, `mad_addr` null or an `ib_mad_addr_t`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_grh_net(
    umad: *mut c_void,
    mad_addr: *mut c_void,
) -> c_int {
    // SAFETY: the caller has to guarantee the same.
    unsafe { set_grh(umad, mad_addr, false) }
}

/// Sets the index of the partition.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, pkey_index: c_int) -> c_int {
    let index = (pkey_index.cast_unsigned() & 0xffff) as u16;
    // SAFETY: the caller's buffer.
    unsafe { change(umad, |addr| addr.pkey_index = index) }
}

/// The index of the partition that a datagram arrived in.
///
/// # Safety
/// `umad` is a buffer of at least [`umad_size`] bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: the caller's buffer begins with a header.
    let header: UserMad = unsafe { umad.cast::<UserMad>().read_unaligned() };
    header.addr.pkey_index.into()
}
