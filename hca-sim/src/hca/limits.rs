//! The attributes that describe what an HCA can do.

use verbs_core::mad::sm::PortInfo;
use verbs_core::{DeviceAttr, DeviceCap, Guid, Lid, LinkLayer, Mtu, PortAttr, QpType};

use crate::port::features::{FAST_REG_PAGES, Features};
use crate::port::{Port, PortSettings};
use crate::queue::base::limits::{
    CQE, MAX_INLINE, MAX_MESSAGE, MAX_SGE, MCAST_GROUPS, MCAST_QPS, PORT, QP_WR, RD_ATOMIC, SRQ_WR,
};

/// Types of queue pair on a port with streams.
const QP_TYPES_IWARP: &[QpType] = &[QpType::Rc];

/// The supported types of queue pair: the optional ones first, then that of ports with a subnet manager.
const QP_TYPES: &[QpType] = &[
    QpType::XrcSend,
    QpType::XrcRecv,
    QpType::Gsi,
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::Smi,
];

/// Those that an HCA with these features has on such a port.
fn qp_types(features: &Features, is_managed: bool) -> &'static [QpType] {
    let first = if features.has(DeviceCap::XRC) { 0 } else { 2 };
    let last = QP_TYPES.len() - usize::from(!is_managed);
    &QP_TYPES[first..last]
}

/// How many objects of a kind an HCA has. Memory is used for objects that exist, except for regions, whose table of
/// about 200 bytes an entry is made with the HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Protection domains; 65,536 by default.
    pub max_pd: u32,
    /// Completion queues; 65,536 by default.
    pub max_cq: u32,
    /// Queue pairs; 262,144 by default.
    pub max_qp: u32,
    /// Memory regions and memory windows; 8,192 by default, which takes 1.6 MB.
    pub max_mr: u32,
    /// Shared receive queues; 65,536 by default.
    pub max_srq: u32,
    /// Domains of extended reliable connections; 65,536 by default.
    pub max_xrcd: u32,
    /// Address handles; 65,536 by default.
    pub max_ah: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pd: 1 << 16,
            max_cq: 1 << 16,
            max_qp: 1 << 18,
            max_mr: 1 << 13,
            max_srq: 1 << 16,
            max_xrcd: 1 << 16,
            max_ah: 1 << 16,
        }
    }
}

/// The attributes of an HCA with that name on that port.
pub(crate) fn device_attr(name: &str, port: &Port, limits: &Limits) -> DeviceAttr {
    let is_iwarp = port.streams.is_some();
    DeviceAttr {
        name: name.to_owned(),
        fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
        node_guid: port.guid,
        sys_image_guid: if port.features.has(DeviceCap::SYS_IMAGE_GUID) {
            system_guid(port)
        } else {
            Guid::default()
        },
        phys_port_cnt: PORT,
        max_mr_size: u64::MAX,
        caps: port.features.caps,
        max_qp: limits.max_qp,
        max_qp_wr: QP_WR,
        max_sge: MAX_SGE as u32,
        max_inline_data: MAX_INLINE as u32,
        max_cq: limits.max_cq,
        max_cqe: CQE,
        max_mr: limits.max_mr,
        max_pd: limits.max_pd,
        max_qp_rd_atom: RD_ATOMIC as u8,
        max_qp_init_rd_atom: RD_ATOMIC as u8,
        atomic_cap: port.features.atomics,
        masked_atomic_cap: port.features.masked_atomics,
        max_fast_reg_pages: FAST_REG_PAGES,
        qp_types: if is_iwarp {
            QP_TYPES_IWARP
        } else {
            qp_types(&port.features, port.managed.is_some())
        },
        // They share their keys with regions.
        max_mw: limits.max_mr,
        max_ah: if is_iwarp { 0 } else { limits.max_ah },
        max_xrcd: if port.features.has(DeviceCap::XRC) {
            limits.max_xrcd
        } else {
            0
        },
        max_srq: limits.max_srq,
        max_srq_wr: SRQ_WR,
        max_srq_sge: MAX_SGE as u32,
        max_mcast_grp: if is_iwarp { 0 } else { MCAST_GROUPS },
        max_mcast_qp_attach: if is_iwarp { 0 } else { MCAST_QPS },
        max_pkeys: u16::try_from(port.pkey_count()).unwrap_or(u16::MAX),
        max_pending: verbs_core::device::MAX_PENDING,
        ..DeviceAttr::default()
    }
}

fn system_guid(port: &Port) -> Guid {
    let managed = port.managed.as_ref();
    managed.map_or(port.guid, |managed| managed.tables().system_guid)
}

/// The attributes of the port.
pub(crate) fn port_attr(port: &Port) -> PortAttr {
    let settings = port.settings();
    let plain = plain_attr(port, &settings);
    let Some(info) = settings.info else {
        return plain;
    };
    PortAttr {
        lid: info.lid,
        sm_lid: info.sm_lid,
        sm_sl: info.sm_sl.byte(),
        lmc: info.lmc.byte(),
        max_mtu: Mtu::from_code(info.mtu_cap.value()).unwrap_or(plain.max_mtu),
        active_width: info.link_width_active.bits(),
        active_speed: speed_of(&info),
        link_layer: LinkLayer::InfiniBand,
        ..plain
    }
}

/// A link's speed in the encoding that applications know: its bit, the extended speeds after the others.
fn speed_of(info: &PortInfo) -> u8 {
    match info.link_speed_ext_active.byte() {
        0 => info.link_speed_active.byte(),
        extended => extended << 4,
    }
}

/// The attributes of a port without a subnet manager.
fn plain_attr(port: &Port, settings: &PortSettings) -> PortAttr {
    PortAttr {
        gid: settings.gids.first().copied().unwrap_or_default(),
        max_msg_sz: MAX_MESSAGE,
        bad_pkey_cntr: match port.features.has(DeviceCap::BAD_PKEY_CNTR) {
            true => u32::try_from(port.counters.bad_pkeys.get()).unwrap_or(u32::MAX),
            false => 0,
        },
        qkey_viol_cntr: u32::try_from(port.counters.bad_qkeys.get()).unwrap_or(u32::MAX),
        lid: if port.is_wire() { Lid(0) } else { port.lid },
        // There is no subnet manager: the link itself hands out LIDs.
        sm_lid: Lid(0),
        gid_tbl_len: settings.gids.len() as u16,
        pkey_tbl_len: settings.pkeys.len() as u16,
        state: settings.state,
        max_mtu: Mtu::B4096,
        active_mtu: port.mtu(),
        sm_sl: 0,
        lmc: 0,
        // 4 lanes of 50 Gbit/s, as Ethernet ports have: many programs know no width of 12 lanes.
        active_width: 2,
        active_speed: 64,
        link_layer: if port.is_wire() {
            LinkLayer::Ethernet
        } else {
            LinkLayer::InfiniBand
        },
    }
}
