//! Path records: how to get from one port to another (IBTA vol. 1, 15.2.5.16).

use bitflags::bitflags;

use crate::addr::{Gid, Lid, PKey};
use crate::mad::field::Bits;
use crate::mad::sa::Selector;
use crate::wire_record;

wire_record! {
    /// A path between two ports; in a request, what is asked of it.
    pub struct PathRecord, PathRecordView: 64 bytes {
        /// Service at the destination that the path is for.
        service_id: u64 = (0, 0, 64),
        /// Destination port.
        dgid: Gid = (8, 0, 128),
        /// Source port.
        sgid: Gid = (24, 0, 128),
        /// Destination port.
        dlid: Lid = (40, 0, 16),
        /// Source port.
        slid: Lid = (42, 0, 16),
        /// Whether raw packets may take it.
        raw_traffic: bool = (44, 0, 1),
        /// Flow label of its GRH.
        flow_label: Bits<20> = (44, 4, 20),
        /// Hop limit of its GRH.
        hop_limit: u8 = (47, 0, 8),
        /// Traffic class of its GRH.
        traffic_class: u8 = (48, 0, 8),
        /// Whether answers may come back the same way.
        reversible: bool = (49, 0, 1),
        /// How many paths are wanted at most.
        path_count: Bits<7> = (49, 1, 7),
        /// Partition.
        pkey: PKey = (50, 0, 16),
        /// Class of quality.
        qos_class: Bits<12> = (52, 0, 12),
        /// Service level.
        sl: Bits<4> = (53, 4, 4),
        /// How the MTU is meant.
        mtu_selector: Selector = (54, 0, 2),
        /// Path MTU, by its code (1 to 5, see [`Mtu`](crate::Mtu)).
        mtu: Bits<6> = (54, 2, 6),
        /// How the rate is meant.
        rate_selector: Selector = (55, 0, 2),
        /// Rate, by its code.
        rate: Bits<6> = (55, 2, 6),
        /// How the lifetime is meant.
        packet_lifetime_selector: Selector = (56, 0, 2),
        /// How long a packet may be on its way: the exponent n of 4.096 us * 2^n.
        packet_lifetime: Bits<6> = (56, 2, 6),
        /// Order among several, the smallest first.
        preference: u8 = (57, 0, 8),
    }
}

bitflags! {
    /// Which fields of a path record a request means.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct PathMask: u64 {
        /// `service_id`, both halves.
        const SERVICE_ID = 3;
        /// `dgid`.
        const DGID = 1 << 2;
        /// `sgid`.
        const SGID = 1 << 3;
        /// `dlid`.
        const DLID = 1 << 4;
        /// `slid`.
        const SLID = 1 << 5;
        /// `raw_traffic`.
        const RAW_TRAFFIC = 1 << 6;
        /// `flow_label`.
        const FLOW_LABEL = 1 << 8;
        /// `hop_limit`.
        const HOP_LIMIT = 1 << 9;
        /// `traffic_class`.
        const TRAFFIC_CLASS = 1 << 10;
        /// `reversible`.
        const REVERSIBLE = 1 << 11;
        /// `path_count`.
        const PATH_COUNT = 1 << 12;
        /// `pkey`.
        const PKEY = 1 << 13;
        /// `qos_class`.
        const QOS_CLASS = 1 << 14;
        /// `sl`.
        const SL = 1 << 15;
        /// `mtu_selector`.
        const MTU_SELECTOR = 1 << 16;
        /// `mtu`.
        const MTU = 1 << 17;
        /// `rate_selector`.
        const RATE_SELECTOR = 1 << 18;
        /// `rate`.
        const RATE = 1 << 19;
        /// `packet_lifetime_selector`.
        const PACKET_LIFETIME_SELECTOR = 1 << 20;
        /// `packet_lifetime`.
        const PACKET_LIFETIME = 1 << 21;
        /// `preference`.
        const PREFERENCE = 1 << 22;
    }
}
