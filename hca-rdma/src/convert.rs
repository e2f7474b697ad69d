//! Conversions between the types of verbs-core and the C structures. The numbers of states, types, flags and masks are
//! the same on both sides.

use std::ffi::c_char;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::{
    AtomicCap, Attr, Av, Capability, DeviceAttr, DeviceCap, Error, Gid, Guid, Lid, LinkLayer, Mtu,
    PortAttr, PortState, QpAttr, QpState, QpType, Qpn, Wc, WcFlags, WcOpcode, WcStatus, Why,
};

/// `IBV_NODE_RNIC`.
const RNIC: u32 = 4;

/// `IBV_TRANSPORT_IWARP`.
const IWARP: u32 = 1;

/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;

/// The capabilities of a device that a program can use through this crate, without those that need verbs that it lacks.
const USABLE: DeviceCap = DeviceCap::BAD_PKEY_CNTR
    .union(DeviceCap::PORT_ACTIVE_EVENT)
    .union(DeviceCap::SYS_IMAGE_GUID)
    .union(DeviceCap::RC_RNR_NAK_GEN)
    .union(DeviceCap::SRQ_RESIZE)
    .union(DeviceCap::MEM_WINDOW)
    .union(DeviceCap::MEM_WINDOW_TYPE_2A)
    .union(DeviceCap::MEM_WINDOW_TYPE_2B)
    .union(DeviceCap::MEM_MGT_EXTENSIONS)
    .union(DeviceCap::XRC);

/// Capabilities of all adapters except those for RDMA over TCP. The field has no bits for them.
const IMMEDIATE: DeviceCap = DeviceCap::SEND_WITH_IMM.union(DeviceCap::WRITE_WITH_IMM);

/// The text of a field.
pub(crate) fn text(field: &[c_char]) -> String {
    let bytes = field.iter().map(|&byte| byte.cast_unsigned());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the device supports RDMA over TCP, by its types of node and transport.
pub(crate) fn is_iwarp((node, transport): (u32, u32)) -> bool {
    node == RNIC || transport == IWARP
}

/// Types of queue pair that can be created. No query reports them; iWARP has one type.
fn qp_types(is_iwarp: bool, caps: DeviceCap) -> &'static [QpType] {
    use QpType::{Rc, Uc, Ud, XrcRecv, XrcSend};
    match (is_iwarp, caps.contains(DeviceCap::XRC)) {
        (true, _) => &[Rc],
        (false, false) => &[Rc, Uc, Ud],
        (false, true) => &[Rc, Uc, Ud, XrcSend, XrcRecv],
    }
}

/// The attributes that the device reports. It does not report how much can be sent inline, which was determined by
/// trial.
pub(crate) fn device(
    name: &str,
    attr: &abi::DeviceAttr,
    is_iwarp: bool,
    max_inline_data: u32,
    max_pending: u32,
) -> DeviceAttr {
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let small = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
    let reported = DeviceCap::from_bits_truncate(u64::from(attr.device_cap_flags)) & USABLE;
    let caps = match is_iwarp {
        true => reported - DeviceCap::XRC,
        false => reported | IMMEDIATE,
    };
    DeviceAttr {
        name: name.into(),
        fw_ver: text(&attr.fw_ver),
        node_guid: Guid(u64::from_be(attr.node_guid)),
        sys_image_guid: Guid(u64::from_be(attr.sys_image_guid)),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        phys_port_cnt: attr.phys_port_cnt,
        max_mr_size: attr.max_mr_size,
        caps,
        max_qp: count(attr.max_qp),
        max_qp_wr: count(attr.max_qp_wr),
        max_sge: count(attr.max_sge),
        max_inline_data,
        max_cq: count(attr.max_cq),
        max_cqe: count(attr.max_cqe),
        max_mr: count(attr.max_mr),
        max_pd: count(attr.max_pd),
        max_qp_rd_atom: small(attr.max_qp_rd_atom),
        max_qp_init_rd_atom: small(attr.max_qp_init_rd_atom),
        atomic_cap: match attr.atomic_cap {
            1 => AtomicCap::Hca,
            2 => AtomicCap::Glob,
            _ => AtomicCap::None,
        },
        qp_types: qp_types(is_iwarp, caps),
        max_mw: count(attr.max_mw),
        max_mcast_grp: count(attr.max_mcast_grp),
        max_mcast_qp_attach: count(attr.max_mcast_qp_attach),
        max_ah: count(attr.max_ah),
        max_srq: count(attr.max_srq),
        max_srq_wr: count(attr.max_srq_wr),
        max_srq_sge: count(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        max_pending,
        ..DeviceAttr::default()
    }
}

/// The attributes that a port reports. Another call reports its own address.
pub(crate) fn port(attr: &abi::PortAttr) -> PortAttr {
    let state = match attr.state {
        1 => PortState::Down,
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        5 => PortState::ActiveDefer,
        _ => PortState::Nop,
    };
    let link_layer = match attr.link_layer {
        ETHERNET => LinkLayer::Ethernet,
        _ => LinkLayer::InfiniBand,
    };
    // iWARP has no such packets, and reports an arbitrary value or none.
    let mtu = |code| Mtu::from_code(code).unwrap_or(Mtu::B1024);
    PortAttr {
        gid: Gid::default(),
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        lid: Lid(attr.lid),
        sm_lid: Lid(attr.sm_lid),
        gid_tbl_len: u16::try_from(attr.gid_tbl_len.max(0)).unwrap_or(u16::MAX),
        pkey_tbl_len: attr.pkey_tbl_len,
        state,
        max_mtu: mtu(attr.max_mtu),
        active_mtu: mtu(attr.active_mtu),
        sm_sl: attr.sm_sl,
        lmc: attr.lmc,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        link_layer,
    }
}

/// The address as a C structure.
///
/// # Errors
/// [`Error::Invalid`] for an index of a GID that the structure has no room for.
pub(crate) fn av_out(av: &Av) -> Result<abi::AhAttr, Error> {
    match av.global.map_or(0, |global| global.sgid_index) {
        index @ 256.. => Err(Error::Invalid {
            attr: Attr::GidIndex,
            got: u32::from(index),
            max: u32::from(u8::MAX),
        }),
        _ => Ok(abi::shown_av(av)),
    }
}

/// The attributes that a modify names.
///
/// # Errors
/// As [`av_out`], and [`Error::NoCapability`] for path migration, which was tried with no NIC.
pub(crate) fn qp_attr_out(attr: &QpAttr) -> Result<abi::QpAttr, Error> {
    let asked = match (attr.alt_path, attr.path_mig_state) {
        (Some(_), _) => Some(Attr::AltPath),
        (None, Some(_)) => Some(Attr::PathMigState),
        (None, None) => None,
    };
    if let Some(attr) = asked {
        // No device has the bit here: see `USABLE`.
        let missing = Capability::of(DeviceCap::AUTO_PATH_MIG);
        return Err(Error::NoCapability { attr, missing });
    }
    attr.av.as_ref().map(av_out).transpose()?;
    let mut written = abi::QpAttr::default();
    abi::write_attr(attr, &mut written);
    Ok(written)
}

/// The state of that number. An unknown number is taken for ERR.
pub(crate) fn qp_state(number: u32) -> QpState {
    abi::state_of(number).unwrap_or(QpState::Err)
}

/// A completion.
#[inline]
pub(crate) fn completion(wc: &abi::Wc) -> Wc {
    let flags = WcFlags::from_bits_truncate(wc.wc_flags as u16);
    let imm = match flags.contains(WcFlags::WITH_IMM) {
        true => u32::from_be(wc.imm_or_key),
        false => wc.imm_or_key,
    };
    let number = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    Wc {
        wr_id: wc.wr_id,
        status: WcStatus::from_u8(number(wc.status)).unwrap_or(WcStatus::GeneralErr),
        // For a work request that failed, C leaves this undefined.
        opcode: WcOpcode::from_u8(number(wc.opcode)).unwrap_or_default(),
        flags,
        byte_len: wc.byte_len,
        qpn: Qpn::new(wc.qp_num),
        imm,
        src_qpn: Qpn::new(wc.src_qp),
        slid: Lid(wc.slid),
        pkey_index: wc.pkey_index,
        sl: wc.sl,
        dlid_path_bits: wc.dlid_path_bits,
        vendor_err: wc.vendor_err,
        timestamp_ns: 0,
    }
}

/// The error of a verb for an error number.
pub(crate) fn error(errno: Errno) -> Error {
    match errno {
        Errno::NOMEM => Error::NoMemory,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::PROTONOSUPPORT => Error::Unsupported(Attr::Verb),
        Errno::PERM | Errno::ACCESS => Error::AccessDenied,
        // The kernel also answers EIO when it has removed the device; the removal informs clients of that.
        Errno::NODEV => Error::DeviceRemoved,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => Error::Mismatch {
            attr: Attr::Av,
            why: Why::Unreachable,
        },
        errno => Error::Os {
            errno: errno.raw_os_error(),
        },
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::{Access, AltPath, Psn, QKey, QpAttrMask};

    use super::*;

    /// Goal: what is written for C is read back from C unchanged.
    #[test]
    fn attributes_go_there_and_back() {
        let mut av = Av::to_gid(1, 3, Gid([7; 16]));
        av.sl = 5;
        let attr = QpAttr {
            state: Some(QpState::Rtr),
            access: Some(Access::REMOTE_WRITE),
            pkey_index: Some(2),
            port: Some(1),
            qkey: Some(QKey(9)),
            av: Some(av),
            path_mtu: Some(Mtu::B4096),
            timeout: Some(14),
            retry_cnt: Some(6),
            rnr_retry: Some(5),
            rq_psn: Some(Psn::new(0xff_fffe)),
            sq_psn: Some(Psn::new(4)),
            max_rd_atomic: Some(3),
            max_dest_rd_atomic: Some(2),
            min_rnr_timer: Some(12),
            dest_qpn: Some(Qpn::new(77)),
            en_sqd_async_notify: Some(true),
            ..QpAttr::default()
        };
        let c = qp_attr_out(&attr).expect("all of it has a place");
        assert_eq!(abi::attr_of(&c, attr.mask()), attr);
        assert_eq!(
            abi::attr_of(&c, QpAttrMask::PORT),
            QpAttr {
                port: Some(1),
                ..QpAttr::default()
            }
        );
    }

    #[test]
    fn what_c_has_no_place_for_is_refused() {
        let far = Av::to_gid(1, 256, Gid::default());
        let refused = av_out(&far).err();
        let expected = Error::Invalid {
            attr: Attr::GidIndex,
            got: 256,
            max: 255,
        };
        assert_eq!(refused, Some(expected));
        let alt_path = AltPath::new(Av::default(), 0, 0);
        let missing = Capability::of(DeviceCap::AUTO_PATH_MIG);
        for (change, attr) in [
            (QpAttr::load_path(alt_path), Attr::AltPath),
            (QpAttr::migrate(), Attr::PathMigState),
        ] {
            let refused = Error::NoCapability { attr, missing };
            assert_eq!(qp_attr_out(&change).err(), Some(refused));
        }
    }

    #[test]
    fn immediate_data_is_in_the_networks_order_and_a_key_is_not() {
        let mut wc = abi::Wc {
            wr_id: 1,
            status: 5,
            opcode: 255,
            vendor_err: 0,
            byte_len: 0,
            imm_or_key: 0x0102_0304_u32.to_be(),
            qp_num: 17,
            src_qp: 0,
            wc_flags: 2,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        };
        let ours = completion(&wc);
        assert_eq!(ours.immediate(), Some(0x0102_0304));
        assert_eq!(
            (ours.status, ours.opcode),
            (WcStatus::WrFlushErr, WcOpcode::Send)
        );
        (wc.wc_flags, wc.imm_or_key, wc.status) = (8, 0x0102_0304, 99);
        let ours = completion(&wc);
        assert_eq!(
            ours.invalidated().map(verbs_core::RKey::value),
            Some(0x0102_0304)
        );
        assert_eq!(ours.status, WcStatus::GeneralErr);
    }
}
