//! Subscriptions to events (IBTA vol. 1, 13.4.8.3).

use crate::addr::{Gid, Lid, Qpn};
use crate::mad::time_code::TimeCode;
use crate::wire_record;

wire_record! {
    /// Subscribes to events, or ends that.
    pub struct InformInfo, InformInfoView: 36 bytes {
        /// The port whose events are wanted; zero for a range of LIDs.
        gid: Gid = (0, 0, 128),
        /// First port of the range; 0xffff for all.
        lid_range_begin: Lid = (16, 0, 16),
        /// Last port of the range.
        lid_range_end: Lid = (18, 0, 16),
        /// 1 for events that the architecture defines.
        is_generic: u8 = (22, 0, 8),
        /// 1 to subscribe, 0 to end it.
        subscribe: u8 = (23, 0, 8),
        /// Type of event; 0xffff for all.
        event_type: u16 = (24, 0, 16),
        /// Number of the trap; 0xffff for all.
        trap_number: u16 = (26, 0, 16),
        /// The queue pair that gets the reports.
        qpn: Qpn = (28, 0, 24),
        /// Within what time the subscriber answers a report.
        response_time: TimeCode = (31, 3, 5),
        /// What reports the events: 1 CA, 2 switch, 3 router, 4 manager, 0xffffff all.
        producer_type: u32 = (33, 0, 24),
    }
}
