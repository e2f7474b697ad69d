//! What a switch can do (IBTA vol. 1, 14.2.5.4).

use crate::mad::field::Bits;
use crate::wire_record;

wire_record! {
    /// A switch's tables, and what management has set about them.
    pub struct SwitchInfo, SwitchInfoView: 20 bytes {
        /// Entries of the linear forwarding table.
        linear_cap: u16 = (0, 0, 16),
        /// Entries of the random forwarding table; 0 where there is none.
        random_cap: u16 = (2, 0, 16),
        /// Entries of the multicast forwarding table.
        multicast_cap: u16 = (4, 0, 16),
        /// Highest LID that the linear table forwards.
        linear_top: u16 = (6, 0, 16),
        /// Where packets go that the random table does not have.
        default_port: u8 = (8, 0, 8),
        /// Where multicasts from below go that have no entry; 0xff for nowhere.
        default_multicast_primary: u8 = (9, 0, 8),
        /// Where all other multicasts go that have no entry; 0xff for nowhere.
        default_multicast_other: u8 = (10, 0, 8),
        /// How long a packet may be in the switch: 4.096 us * 2^n, for ever from 20 on.
        life_time: Bits<5> = (11, 0, 5),
        /// A port has changed its state. A Set of 1 clears it.
        port_state_change: bool = (11, 5, 1),
        /// How SLtoVL tables can be written for many ports at once.
        optimized_sl_to_vl: Bits<2> = (11, 6, 2),
        /// LIDs of a port, for random tables.
        lids_per_port: u16 = (12, 0, 16),
        /// Entries of the P_Key table of each external port.
        enforcement_cap: u16 = (14, 0, 16),
        /// P_Keys of incoming packets can be checked.
        inbound_enforcement: bool = (16, 0, 1),
        /// P_Keys of outgoing packets can be checked.
        outbound_enforcement: bool = (16, 1, 1),
        /// Incoming raw packets can be dropped.
        filter_raw_in: bool = (16, 2, 1),
        /// Outgoing raw packets can be dropped.
        filter_raw_out: bool = (16, 3, 1),
        /// Port 0 is a port like those of adapters.
        enhanced_port_0: bool = (16, 4, 1),
        /// Highest multicast LID that is forwarded.
        multicast_top: u16 = (18, 0, 16),
    }
}
