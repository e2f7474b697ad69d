//! What a class can do at a port, in any class (IBTA vol. 1, 13.4.8.1).

use crate::addr::{Gid, Lid, PKey, QKey, Qpn};
use crate::mad::field::Bits;
use crate::mad::time_code::TimeCode;
use crate::wire_record;

wire_record! {
    /// What a class can do, and where its requests and traps go.
    pub struct ClassPortInfo, ClassPortInfoView: 72 bytes {
        /// Version of the base format.
        base_version: u8 = (0, 0, 8),
        /// Version of the class's formats.
        class_version: u8 = (1, 0, 8),
        /// What the class offers; the upper byte is the class's own.
        capability_mask: u16 = (2, 0, 16),
        /// More of that.
        capability_mask2: Bits<27> = (4, 0, 27),
        /// How long an answer takes at most.
        response_time: TimeCode = (7, 3, 5),
        /// Where requests are to go instead.
        redirect_gid: Gid = (8, 0, 128),
        /// Traffic class of the way there.
        redirect_traffic_class: u8 = (24, 0, 8),
        /// Service level of the way there.
        redirect_sl: Bits<4> = (25, 0, 4),
        /// Flow label of the way there.
        redirect_flow_label: Bits<20> = (25, 4, 20),
        /// LID there.
        redirect_lid: Lid = (28, 0, 16),
        /// Partition there.
        redirect_pkey: PKey = (30, 0, 16),
        /// Queue pair there.
        redirect_qpn: Qpn = (33, 0, 24),
        /// Its Q_Key.
        redirect_qkey: QKey = (36, 0, 32),
        /// Where traps go.
        trap_gid: Gid = (40, 0, 128),
        /// Traffic class of the way there.
        trap_traffic_class: u8 = (56, 0, 8),
        /// Service level of the way there.
        trap_sl: Bits<4> = (57, 0, 4),
        /// Flow label of the way there.
        trap_flow_label: Bits<20> = (57, 4, 20),
        /// LID there.
        trap_lid: Lid = (60, 0, 16),
        /// Partition there.
        trap_pkey: PKey = (62, 0, 16),
        /// Hop limit of the way there.
        trap_hop_limit: u8 = (64, 0, 8),
        /// Queue pair there.
        trap_qpn: Qpn = (65, 0, 24),
        /// Its Q_Key.
        trap_qkey: QKey = (68, 0, 32),
    }
}
