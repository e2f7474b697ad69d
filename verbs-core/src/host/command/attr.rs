//! Attributes of objects, as bytes.

use crate::caps::{AtomicCap, DeviceAttr, DeviceCap, LinkLayer, PortAttr, PortState};
use crate::cm::{CmParam, CmReply};
use crate::cq::CqInfo;
use crate::fmr::FmrPoolAttr;
use crate::host::bytes::{Encode, Malformed, Reader, encode};
use crate::host::handle::Handle;
use crate::mem::{Access, Layout, WindowType};
use crate::mr::MrInfo;
use crate::mw::{MwInfo, MwRange};
use crate::qp_attr::{AltPath, Av, GlobalRoute, MigState, QpAttr, QpCap, QpInfo};
use crate::qp_state::QpType;
use crate::srq::SrqAttr;
use crate::xrcd::XrcdName;

/// An object that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its name from now on.
    pub handle: Handle,
    /// The number that peers or work requests know it by: of queue pairs and shared receive queues theirs, of memory the local
    /// key, of a window the remote one. 0 of objects that have none.
    pub number: u32,
}

encode! {
    struct Made { handle, number }
    struct GlobalRoute { dgid, sgid_index, flow_label, hop_limit, traffic_class }
    struct Av { global, dlid, sl, src_path_bits, port }
    enum MigState("state of path migration") { Migrated = 0, Rearm = 1, Armed = 2 }
    struct QpAttr {
        state, cur_state, en_sqd_async_notify, access, pkey_index, port, qkey, av, path_mtu, timeout, retry_cnt,
        rnr_retry, rq_psn, sq_psn, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, dest_qpn, alt_path,
        path_mig_state,
    }
    struct QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    struct QpInfo { state, attr, cap, sq_sig_all, sq_draining }
    struct SrqAttr { max_wr, max_sge, srq_limit }
    struct CqInfo { cqe, moderation_count, moderation_period_us, overrun }
    struct XrcdName { device, inode }
    struct MwRange { addr, len, access, qpn }
    struct MwInfo { rkey, window_type, bound }
    struct MrInfo { lkey, rkey, iova, len, access }
    struct FmrPoolAttr { size, max_pages, access, max_remaps, dirty_watermark, cache }
    struct CmParam { responder_resources, initiator_depth, retry_count, rnr_retry_count, min_rnr_timer, tos }
    struct PortAttr {
        gid, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, lid, sm_lid, gid_tbl_len, pkey_tbl_len, state, max_mtu,
        active_mtu, sm_sl, lmc, active_width, active_speed, link_layer,
    }
    struct DeviceAttr {
        name, fw_ver, node_guid, sys_image_guid, vendor_id, vendor_part_id, hw_ver, phys_port_cnt, max_mr_size,
        caps, max_qp, max_qp_wr, max_sge, max_inline_data, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_qp_init_rd_atom, atomic_cap, masked_atomic_cap, max_fast_reg_pages, qp_types, max_mw, max_mcast_grp,
        max_mcast_qp_attach, max_ah, max_xrcd, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        max_pending,
    }
    flags Access;
    flags DeviceCap;
    enum AtomicCap("atomicity") { None = 0, Hca = 1, Glob = 2 }
    enum LinkLayer("link layer") { InfiniBand = 1, Ethernet = 2 }
    enum PortState("state of a port") { Nop = 0, Down = 1, Init = 2, Armed = 3, Active = 4, ActiveDefer = 5 }
    enum WindowType("type of a window") { One = 1, TwoA = 2, TwoB = 3 }
}

impl Encode for AltPath {
    fn put(&self, out: &mut Vec<u8>) {
        self.av().put(out);
        self.pkey_index.put(out);
        self.timeout.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let av = from.read()?;
        Ok(Self::new(av, from.read()?, from.read()?))
    }
}

/// The types of queue pairs, as bits: a list that is as long as the program.
impl Encode for &'static [QpType] {
    fn put(&self, out: &mut Vec<u8>) {
        let bits = self
            .iter()
            .fold(0_u16, |bits, &kind| bits | 1 << kind as u16);
        bits.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let bits: u16 = from.read()?;
        // Those that devices of this program have, and then all that are known.
        const LISTS: &[&[QpType]] = &[
            &[],
            &[QpType::Rc],
            &[QpType::Rc, QpType::Uc, QpType::Ud],
            &[
                QpType::Rc,
                QpType::Uc,
                QpType::Ud,
                QpType::Gsi,
                QpType::XrcSend,
                QpType::XrcRecv,
            ],
            &[
                QpType::Rc,
                QpType::Uc,
                QpType::Ud,
                QpType::XrcSend,
                QpType::XrcRecv,
            ],
            &QpType::ALL,
        ];
        let of = |list: &&&[QpType]| {
            let theirs = list
                .iter()
                .fold(0_u16, |bits, &kind| bits | 1 << kind as u16);
            theirs & bits == bits
        };
        LISTS.iter().find(of).copied().ok_or(Malformed::Unknown {
            what: "set of queue pair types",
            got: bits.into(),
        })
    }
}

impl Encode for Layout {
    fn put(&self, out: &mut Vec<u8>) {
        let (number, size): (u16, u32) = match *self {
            Self::Pages(size) => (1, size),
            Self::Blocks(size) => (2, size),
            Self::Gaps => (3, 0),
        };
        number.put(out);
        size.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, size): (u16, u32) = (from.read()?, from.read()?);
        match number {
            1 => Ok(Self::Pages(size)),
            2 => Ok(Self::Blocks(size)),
            3 => Ok(Self::Gaps),
            got => Err(Malformed::Unknown {
                what: "layout",
                got: got.into(),
            }),
        }
    }
}

impl Encode for CmReply {
    fn put(&self, out: &mut Vec<u8>) {
        let reason;
        let (number, data): (u16, &[u8]) = match self {
            Self::Established(data) => (1, data),
            Self::Rejected(data) => (2, data),
            Self::ManagerRejected(why) => {
                reason = why.to_le_bytes();
                (6, &reason)
            }
            Self::Refused => (3, &[]),
            Self::Unreachable => (4, &[]),
            Self::TimedOut => (5, &[]),
        };
        number.put(out);
        data.to_vec().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, data): (u16, Vec<u8>) = (from.read()?, from.read()?);
        match number {
            1 => Ok(Self::Established(data.into())),
            2 => Ok(Self::Rejected(data.into())),
            3 => Ok(Self::Refused),
            4 => Ok(Self::Unreachable),
            5 => Ok(Self::TimedOut),
            6 => {
                let reason = data.first_chunk().ok_or(Malformed::Short)?;
                Ok(Self::ManagerRejected(u16::from_le_bytes(*reason)))
            }
            got => Err(Malformed::Unknown {
                what: "reply",
                got: got.into(),
            }),
        }
    }
}
