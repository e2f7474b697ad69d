//! What a device and its ports can do, as `ibv_query_device` and `ibv_query_port` tell it.

use std::fmt;

use bitflags::bitflags;

use crate::addr::{Gid, Guid, Lid, Mtu};
use crate::qp_state::QpType;

bitflags! {
    /// Optional features, with the values of `ibv_device_cap_flags`. An operation whose bit is clear
    /// is refused when it is created or posted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct DeviceCap: u64 {
        /// The queues of a queue pair can be resized ([`Qp::resize`](crate::Qp::resize)).
        const RESIZE_MAX_WR = 1 << 0;
        /// Bad P_Keys are counted ([`PortAttr::bad_pkey_cntr`]); without it the count is 0.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Connected queue pairs have an alternate path ([`QpAttr::alt_path`](crate::QpAttr::alt_path)).
        const AUTO_PATH_MIG = 1 << 4;
        /// A modify may name another port for a queue pair in SQD.
        const CHANGE_PHY_PORT = 1 << 5;
        /// [`EventType::PortActive`](crate::EventType::PortActive) is raised.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// The system image GUID is told, and can be changed; without it it is 0.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Reliable connections answer receiver-not-ready.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// A completion queue can be armed for a number of completions ([`Arm::Count`](crate::Arm::Count)).
        const N_NOTIFY_CQ = 1 << 14;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Extended reliable connections.
        const XRC = 1 << 20;
        /// Local and remote invalidate, and fast registration where
        /// [`max_fast_reg_pages`](DeviceAttr::max_fast_reg_pages) is not 0.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2A.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Memory windows of type 2B.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// Regions whose pages are not pinned but faulted in ([`Access::ON_DEMAND`](crate::Access::ON_DEMAND)).
        const ON_DEMAND_PAGING = 1 << 31;
        /// Fast registration of pieces of any length and alignment.
        const SG_GAPS_REG = 1 << 32;
        /// FLUSH to where every other access sees it.
        const FLUSH_GLOBAL = 1 << 38;
        /// FLUSH to memory that outlives power.
        const FLUSH_PERSISTENT = 1 << 39;
        /// ATOMIC WRITE.
        const ATOMIC_WRITE = 1 << 40;
        /// SEND with immediate data. The field has no bit for it; this one is ours, like those below.
        const SEND_WITH_IMM = 1 << 58;
        /// RDMA WRITE with immediate data.
        const WRITE_WITH_IMM = 1 << 59;
        /// RDMA READ that invalidates the key of its sink, as one work request.
        const READ_WITH_INV = 1 << 60;
        /// Fast registration of blocks of any size, the first and the last in part.
        const BLOCK_LIST = 1 << 61;
        /// Addresses that count from the start of a region.
        const ZERO_BASED = 1 << 62;
        /// Pools of regions that are mapped by a direct call.
        const FMR_POOL = 1 << 63;
    }
}

/// What a device does not have, as errors name it: a bit of [`DeviceCap`], or one of the two kinds of atomics, which have
/// no bit. One byte, so that errors stay small.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capability(u8);

impl Capability {
    /// Atomics ([`DeviceAttr::atomic_cap`]).
    pub const ATOMICS: Self = Self(64);
    /// Masked atomics ([`DeviceAttr::masked_atomic_cap`]).
    pub const MASKED_ATOMICS: Self = Self(65);

    /// The lowest of these bits; of none, [`ATOMICS`](Self::ATOMICS), which have none.
    pub const fn of(caps: DeviceCap) -> Self {
        Self(caps.bits().trailing_zeros() as u8)
    }

    /// The bit, if it is one that this version knows.
    pub const fn bit(self) -> Option<DeviceCap> {
        match self.0 {
            number @ 0..64 => DeviceCap::from_bits(1 << number),
            _ => None,
        }
    }

    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            ..=65 => Some(Self(number)),
            _ => None,
        }
    }
}

/// Why an operation is refused: a part of a sentence.
impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ATOMICS => write!(f, "its atomic_cap is {}", AtomicCap::None),
            Self::MASKED_ATOMICS => write!(f, "its masked_atomic_cap is {}", AtomicCap::None),
            Self(number) => {
                let name = self.bit().and_then(|bit| bit.iter_names().next());
                match name {
                    Some((name, _)) => write!(f, "its capability bit {name} is clear"),
                    None => write!(f, "its capability bit {number} is clear"),
                }
            }
        }
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capability({self})")
    }
}

/// How far an atomic operation is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AtomicCap {
    /// There are none.
    #[default]
    None,
    /// Against atomics through the same device.
    Hca,
    /// Against every access in the machine.
    Glob,
}

impl fmt::Display for AtomicCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "ATOMIC_NONE",
            Self::Hca => "ATOMIC_HCA",
            Self::Glob => "ATOMIC_GLOB",
        })
    }
}

/// Attributes of a device. Limits are counts of objects or entries unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceAttr {
    /// Name, as `hca_id` is printed.
    pub name: String,
    /// Version of what implements it.
    pub fw_ver: String,
    /// Identifies the node.
    pub node_guid: Guid,
    /// Identifies the system the node is part of.
    pub sys_image_guid: Guid,
    /// IEEE vendor number; 0 for none.
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// Revision.
    pub hw_ver: u32,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Largest registration in bytes.
    pub max_mr_size: u64,
    /// Optional features.
    pub caps: DeviceCap,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests on one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one work request.
    pub max_sge: u32,
    /// Inline bytes of one work request.
    pub max_inline_data: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// READs and atomics a queue pair answers at once.
    pub max_qp_rd_atom: u8,
    /// READs and atomics a queue pair has outstanding at once.
    pub max_qp_init_rd_atom: u8,
    /// How far atomics are atomic.
    pub atomic_cap: AtomicCap,
    /// How far masked atomics are.
    pub masked_atomic_cap: AtomicCap,
    /// Pages of one fast registration.
    pub max_fast_reg_pages: u32,
    /// Types of queue pair that can be created.
    pub qp_types: &'static [QpType],
    /// Memory windows.
    pub max_mw: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Domains of extended reliable connections; 0 also where the device does not report it.
    pub max_xrcd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Entries of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of one of its receives.
    pub max_srq_sge: u32,
    /// Entries of a P_Key table.
    pub max_pkeys: u16,
    /// How long a local acknowledgement may be delayed, as the exponent n of 4.096 us * 2^n.
    pub local_ca_ack_delay: u8,
    /// Pending requests that the device takes.
    pub max_pending: u32,
}

/// State of a port; numbers as `ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum PortState {
    /// No state change has been reported.
    #[default]
    Nop = 0,
    /// The link is down.
    Down = 1,
    /// The link is up; the subnet manager has not configured the port.
    Init = 2,
    /// Configured, not yet in service.
    Armed = 3,
    /// In service.
    Active = 4,
    /// In service, the link is failing.
    ActiveDefer = 5,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "PORT_NOP",
            Self::Down => "PORT_DOWN",
            Self::Init => "PORT_INIT",
            Self::Armed => "PORT_ARMED",
            Self::Active => "PORT_ACTIVE",
            Self::ActiveDefer => "PORT_ACTIVE_DEFER",
        })
    }
}

/// What a port's link speaks below the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum LinkLayer {
    /// InfiniBand: LIDs, a subnet manager.
    #[default]
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// Attributes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Its own address.
    pub gid: Gid,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
    /// Packets that arrived with a P_Key that is not in the table.
    pub bad_pkey_cntr: u32,
    /// Packets that arrived with a wrong Q_Key.
    pub qkey_viol_cntr: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: Lid,
    /// The subnet manager's; 0 when there is none.
    pub sm_lid: Lid,
    /// Entries of the GID table.
    pub gid_tbl_len: u16,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// State.
    pub state: PortState,
    /// Largest MTU the port could use.
    pub max_mtu: Mtu,
    /// MTU in use.
    pub active_mtu: Mtu,
    /// The subnet manager's service level.
    pub sm_sl: u8,
    /// LID mask control: the port answers to 2^lmc LIDs.
    pub lmc: u8,
    /// Width code: 1, 2, 4, 8 for 1x, 4x, 8x, 12x.
    pub active_width: u8,
    /// Speed code, as `ibv_port_attr` has it.
    pub active_speed: u8,
    /// Link layer.
    pub link_layer: LinkLayer,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is missing is said by its name, whatever it is.
    #[test]
    fn a_capability_says_what_is_missing() {
        for (name, bit) in DeviceCap::all().iter_names() {
            let missing = Capability::of(bit);
            assert_eq!(missing.bit(), Some(bit));
            let said = format!("its capability bit {name} is clear");
            assert_eq!(missing.to_string(), said);
        }
        let unknown = Capability::of(DeviceCap::from_bits_retain(1 << 2));
        assert_eq!(unknown.bit(), None);
        assert_eq!(unknown.to_string(), "its capability bit 2 is clear");
        for (kind, name) in [
            (Capability::ATOMICS, "atomic_cap"),
            (Capability::MASKED_ATOMICS, "masked_atomic_cap"),
        ] {
            assert_eq!(kind.bit(), None);
            assert_eq!(kind.to_string(), format!("its {name} is ATOMIC_NONE"));
        }
    }

    #[test]
    fn numbers_that_name_nothing_are_none() {
        for number in 0..=u8::MAX {
            let read = Capability::from_number(number);
            assert_eq!(
                read.map(Capability::number),
                (number <= 65).then_some(number)
            );
        }
    }
}
