//! The attributes that a device and its port report.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use verbs_abi::{self as abi, ValuesEx};
use verbs_core::{AtomicCap, DeviceAttr, DeviceCap, LinkLayer, PortAttr, PortState};

use super::context::Context;
use super::{gid, text};
use crate::call::live::look;
use crate::call::{Errno, code, number};

/// Every page size from 4 KiB on.
const PAGE_SIZES: u64 = !0xfff;
/// Sends, receives, WRITEs, READs, atomics, and receives of shared queues may fault on their pages: nothing is
/// pinned.
const ODP_ALL: u32 = 0x3f;
/// `IBV_ODP_SUPPORT`.
const ODP_SUPPORT: u64 = 1;
/// Completions carry nanoseconds: a clock of 1 GHz, in kHz.
const CLOCK_KHZ: u64 = 1_000_000;
/// The most bytes of device memory in one allocation.
pub(crate) const DM_MAX: u64 = 1 << 20;
/// As reported by the kernel's software devices: a number that is no vendor's.
const NO_VENDOR: u32 = 0xff_ffff;
/// `IBV_QPF_GRH_REQUIRED`: addresses have global routes.
const GRH_REQUIRED: u8 = 1;
/// The physical state of a link that is up, and of one that is down.
const LINK_UP: u8 = 5;
const LINK_DISABLED: u8 = 3;

/// The number in the form of the C structures.
fn int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn device_attr(context: &Context) -> Result<abi::DeviceAttr, Errno> {
    let attr = context.device.query().wait()?;
    let guid = context.guid.to_be();
    Ok(abi::DeviceAttr {
        fw_ver: text(&attr.fw_ver),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: attr.max_mr_size,
        page_size_cap: PAGE_SIZES,
        vendor_id: NO_VENDOR,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: shown_caps(&attr) as u32,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: c_int::from(attr.max_qp_rd_atom),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(u32::from(attr.max_qp_rd_atom).saturating_mul(attr.max_qp)),
        max_qp_init_rd_atom: c_int::from(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        atomic_cap: atomic_cap(&attr),
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_mcast_qp_attach.saturating_mul(attr.max_mcast_grp)),
        max_ah: int(attr.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    })
}

/// Features as programs know them: without those that only this project numbers; for windows of type 2, the kind that
/// programs get.
fn shown_caps(attr: &DeviceAttr) -> u64 {
    let ours = DeviceCap::SEND_WITH_IMM
        | DeviceCap::WRITE_WITH_IMM
        | DeviceCap::READ_WITH_INV
        | DeviceCap::BLOCK_LIST
        | DeviceCap::ZERO_BASED
        | DeviceCap::FMR_POOL;
    // No call arms for a number of completions.
    attr.caps
        .difference(ours | DeviceCap::MEM_WINDOW_TYPE_2A | DeviceCap::N_NOTIFY_CQ)
        .bits()
}

fn atomic_cap(attr: &DeviceAttr) -> u32 {
    match attr.atomic_cap {
        AtomicCap::None => 0,
        AtomicCap::Hca => 1,
        AtomicCap::Glob => 2,
    }
}

fn device_attr_ex(context: &Context) -> Result<abi::DeviceAttrEx, Errno> {
    let orig_attr = device_attr(context)?;
    let caps = shown_caps(&*context.device.query().wait()?);
    Ok(abi::DeviceAttrEx {
        orig_attr,
        comp_mask: 0,
        odp_general_caps: ODP_SUPPORT,
        odp_rc_caps: ODP_ALL,
        // Neither reads nor has atomics.
        odp_uc_caps: 0b111,
        odp_ud_caps: 0b11,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: caps,
        tso_caps: [0; 2],
        rss_caps: [0; 4],
        max_wq_type_rq: 0,
        packet_pacing_caps: [0; 3],
        raw_packet_caps: 0,
        tm_caps: [0; 5],
        max_cq_count: u16::MAX,
        max_cq_period: u16::MAX,
        max_dm_size: DM_MAX,
        pci_fetch_add: 0,
        pci_swap: 0,
        pci_compare_swap: 0,
        xrc_odp_caps: ODP_ALL,
        phys_port_cnt_ex: u32::from(orig_attr.phys_port_cnt),
    })
}

/// The port as programs see it.
pub(super) fn shown_port(attr: &PortAttr) -> abi::PortAttr {
    let is_up = matches!(attr.state, PortState::Active | PortState::ActiveDefer);
    let is_ethernet = attr.link_layer == LinkLayer::Ethernet;
    abi::PortAttr {
        state: attr.state as u32,
        max_mtu: attr.max_mtu as u32,
        active_mtu: attr.active_mtu as u32,
        gid_tbl_len: usize::from(attr.gid_tbl_len).max(gid::TABLE_MIN) as c_int,
        port_cap_flags: 1 << 16,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid.0,
        sm_lid: attr.sm_lid.0,
        lmc: attr.lmc,
        max_vl_num: 1,
        sm_sl: attr.sm_sl,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: if is_up { LINK_UP } else { LINK_DISABLED },
        link_layer: if is_ethernet { 2 } else { 1 },
        flags: if is_ethernet { GRH_REQUIRED } else { 0 },
        port_cap_flags2: 0,
        active_speed_ex: u32::from(attr.active_speed),
    }
}

/// `ibv_query_device`.
pub(crate) unsafe extern "C" fn query_device(
    context: *mut abi::Context,
    attr: *mut abi::DeviceAttr,
) -> c_int {
    code(|| {
        // SAFETY: the program does not close it now; `attr` is where it wants the answer.
        unsafe { attr.write(device_attr(look::<Context, _>(context)?)?) };
        Ok(())
    })
}

/// `query_device_ex`: fills as much as the program's structure has room for.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    input: *const c_void,
    attr: *mut abi::DeviceAttrEx,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: an input is a mask of further requests; no bit is defined.
        let asks = unsafe { input.cast::<u32>().as_ref() }.is_some_and(|mask| *mask != 0);
        if asks || size < size_of::<abi::DeviceAttr>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program does not close it now.
        let found = device_attr_ex(unsafe { look::<Context, _>(context) }?)?;
        // SAFETY: `size` bytes are the program's.
        unsafe { copy_part(attr, &found, size) };
        Ok(())
    })
}

/// Copies the first `size` bytes of `from`, or all if there are fewer.
///
/// # Safety
/// `to` has `size` bytes.
unsafe fn copy_part<T>(to: *mut T, from: &T, size: usize) {
    let size = size.min(size_of::<T>());
    let from = std::ptr::from_ref(from).cast::<u8>();
    // SAFETY: guaranteed by the caller, and no longer than the value.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(from, size) }
}

/// The exported `ibv_query_port`, whose structure is the oldest version.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    port: u8,
    attr: *mut abi::PortAttr,
) -> c_int {
    let size = offset_of!(abi::PortAttr, port_cap_flags2);
    // SAFETY: guaranteed by the caller; a structure of that size.
    unsafe { query_port_ex(context, port, attr, size) }
}

/// `query_port` of the context: fills as much as the program's structure has room for.
pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut abi::Context,
    port: u8,
    attr: *mut abi::PortAttr,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program does not close it now.
        let found = shown_port(&unsafe { look::<Context, _>(context) }?.port_attr(port)?);
        // SAFETY: `size` bytes are the program's.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            copy_part(attr, &found, size);
        }
        Ok(())
    })
}

/// `ibv_query_pkey`, in network byte order.
pub(crate) unsafe extern "C" fn query_pkey(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    number(|| {
        let index = u16::try_from(index).map_err(|_| Errno::INVAL)?;
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        let found = context.device.query_pkey(port, index).wait()?;
        // SAFETY: the program passes the place for the result.
        unsafe { pkey.write(found.0.to_be()) };
        Ok(0)
    })
}

/// `ibv_get_pkey_index`: the index of that key, which is in network byte order; the bit of full membership is ignored.
pub(crate) unsafe extern "C" fn get_pkey_index(
    context: *mut abi::Context,
    port: u8,
    pkey: u16,
) -> c_int {
    number(|| {
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        let count = context.port_attr(port)?.pkey_tbl_len;
        for index in 0..count {
            let found = context.device.query_pkey(port, index).wait()?;
            if found.0 == u16::from_be(pkey) {
                return Ok(c_int::from(index));
            }
        }
        Err(Errno::INVAL)
    })
}

/// `query_rt_values`: the device's clock is the one that stamps completions.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut abi::Context,
    values: *mut ValuesEx,
) -> c_int {
    /// `IBV_VALUES_MASK_RAW_CLOCK`.
    const RAW_CLOCK: u32 = 1;
    code(|| {
        // SAFETY: the program does not close it now; `values` are the program's.
        let (context, values) = unsafe {
            let context = look::<Context, _>(context)?;
            (context, values.as_mut().ok_or(Errno::INVAL)?)
        };
        if values.comp_mask & RAW_CLOCK != 0 {
            let now = context.clock.now().as_nanos();
            values.raw_clock.tv_sec = (now / 1_000_000_000) as libc::time_t;
            values.raw_clock.tv_nsec = (now % 1_000_000_000) as libc::c_long;
        }
        values.comp_mask &= RAW_CLOCK;
        Ok(())
    })
}
