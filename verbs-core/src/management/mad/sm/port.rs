//! What a port is and does (IBTA vol. 1, 14.2.5.6).

use std::fmt;

use bitflags::bitflags;

use crate::addr::Lid;
use crate::caps::PortState;
use crate::mad::field::Bits;
use crate::mad::header::code;
use crate::mad::time_code::TimeCode;
use crate::{number_fields, wire_record};

wire_record! {
    /// A port: what it can do, what management has set, and how its link is.
    pub struct PortInfo, PortInfoView: 64 bytes {
        /// Key that requests must show; 0 for none.
        m_key: u64 = (0, 0, 64),
        /// Upper half of the port's GIDs.
        gid_prefix: u64 = (8, 0, 64),
        /// The port's LID, of several the first.
        lid: Lid = (16, 0, 16),
        /// Where the subnet manager is.
        sm_lid: Lid = (18, 0, 16),
        /// What the port offers.
        capability_mask: CapabilityMask = (20, 0, 32),
        /// What the vendor diagnoses.
        diag_code: u16 = (24, 0, 16),
        /// Seconds from a wrong key until the protection is lifted; 0 for never.
        m_key_lease_s: u16 = (26, 0, 16),
        /// The port that the question came through.
        local_port: u8 = (28, 0, 8),
        /// Widths that the link may use; 255 in a request for all supported ones.
        link_width_enabled: LinkWidth = (29, 0, 8),
        /// Widths that the port can.
        link_width_supported: LinkWidth = (30, 0, 8),
        /// Width of the link.
        link_width_active: LinkWidth = (31, 0, 8),
        /// Speeds that the port can: 1 for 2.5 Gb/s a lane, 2 for 5, 4 for 10.
        link_speed_supported: Bits<4> = (32, 0, 4),
        /// State of the link.
        state: LinkState = (32, 4, 4),
        /// State below that.
        phys_state: PhysState = (33, 0, 4),
        /// State that a link falls to.
        link_down_default: PhysState = (33, 4, 4),
        /// How the key protects.
        m_key_protect: MKeyProtect = (34, 0, 2),
        /// The port has 2^n LIDs.
        lmc: Bits<3> = (34, 5, 3),
        /// Speed of the link.
        link_speed_active: Bits<4> = (35, 0, 4),
        /// Speeds that the link may use; 15 in a request for all supported ones.
        link_speed_enabled: Bits<4> = (35, 4, 4),
        /// MTU of the link, by its code.
        neighbor_mtu: Bits<4> = (36, 0, 4),
        /// Service level of packets to the subnet manager.
        sm_sl: Bits<4> = (36, 4, 4),
        /// Virtual lanes that the port can: 1 for one, 2 for two, 3 for four, 4 for eight, 5 for 15.
        vl_cap: Bits<4> = (37, 0, 4),
        /// What the port asks of the subnet manager.
        init_type: Bits<4> = (37, 4, 4),
        /// How much of the high-priority table goes out before one of low priority.
        vl_high_limit: u8 = (38, 0, 8),
        /// Entries of the high-priority table.
        vl_arb_high_cap: u8 = (39, 0, 8),
        /// Entries of the low-priority table.
        vl_arb_low_cap: u8 = (40, 0, 8),
        /// What the subnet manager has done of it.
        init_type_reply: Bits<4> = (41, 0, 4),
        /// Largest MTU that the port can, by its code.
        mtu_cap: Bits<4> = (41, 4, 4),
        /// Packets dropped in a row until a lane counts as stalled.
        vl_stall_count: Bits<3> = (42, 0, 3),
        /// How long a packet may be at the head of a queue.
        hoq_life: Bits<5> = (42, 3, 5),
        /// Virtual lanes in use, numbered like `vl_cap`.
        operational_vls: Bits<4> = (43, 0, 4),
        /// Whether a switch drops packets of other partitions that come in here.
        enforce_in: bool = (43, 4, 1),
        /// Whether a switch drops packets of other partitions that would go out here.
        enforce_out: bool = (43, 5, 1),
        /// Whether a switch drops raw packets that come in here.
        filter_raw_in: bool = (43, 6, 1),
        /// Whether a switch drops raw packets that would go out here.
        filter_raw_out: bool = (43, 7, 1),
        /// Requests with the wrong key.
        m_key_violations: u16 = (44, 0, 16),
        /// Packets of partitions that the port is not in.
        pkey_violations: u16 = (46, 0, 16),
        /// Packets with the wrong Q_Key.
        qkey_violations: u16 = (48, 0, 16),
        /// Entries of the GUID table.
        guid_cap: u8 = (50, 0, 8),
        /// In a request: clients have to register again.
        client_reregister: bool = (51, 0, 1),
        /// Longest way through the subnet.
        subnet_timeout: TimeCode = (51, 3, 5),
        /// How long an answer takes at most.
        response_time: TimeCode = (52, 3, 5),
        /// Threshold of physical errors.
        local_phy_errors: Bits<4> = (53, 0, 4),
        /// Threshold of overruns.
        overrun_errors: Bits<4> = (53, 4, 4),
        /// Credits that would be of use.
        max_credit_hint: u16 = (54, 0, 16),
        /// Time that a round trip on the link takes.
        link_round_trip: u32 = (57, 0, 24),
        /// More of what the port offers.
        capability_mask2: u16 = (60, 0, 16),
        /// Extended speed of the link; 0 for none.
        link_speed_ext_active: Bits<4> = (62, 0, 4),
        /// Extended speeds that the port can.
        link_speed_ext_supported: Bits<4> = (62, 4, 4),
        /// Extended speeds that the link may use.
        link_speed_ext_enabled: Bits<5> = (63, 3, 5),
    }
}

impl PortInfo {
    /// Whether packets to that LID are for this port, in any of the ways that its LMC makes.
    pub const fn has_lid(&self, lid: Lid) -> bool {
        let path_bits = self.lmc.value();
        self.lid.0 != 0 && self.lid.0 >> path_bits == lid.0 >> path_bits
    }

    /// Which of its LIDs that is, by its low bits; 0 for one that is not the port's, such as a group's.
    pub const fn path_bits(&self, lid: Lid) -> u8 {
        if self.has_lid(lid) {
            lid.0.to_be_bytes()[1] & self.path_mask()
        } else {
            0
        }
    }

    /// The LID with those low bits. Of the bits, as many count as the port has LIDs for.
    pub const fn lid_of(&self, path_bits: u8) -> Lid {
        Lid(self.lid.0 | (path_bits & self.path_mask()) as u16)
    }

    const fn path_mask(&self) -> u8 {
        // An LMC has three bits.
        (1 << self.lmc.value()) - 1
    }
}

code! {
    /// State of a link (IBTA vol. 1, 7.2).
    LinkState(u8), "4" digits {
        /// In a request: leave it as it is.
        NO_CHANGE = 0, "NoChange";
        /// There is no link.
        DOWN = 1, "Down";
        /// Only subnet management passes.
        INIT = 2, "Initialize";
        /// Configured; packets may come, none may go.
        ARMED = 3, "Armed";
        /// In service.
        ACTIVE = 4, "Active";
    }
}

impl LinkState {
    /// The state as applications know it; `None` for a number without a meaning.
    pub const fn port_state(self) -> Option<PortState> {
        Some(match self {
            Self::NO_CHANGE => PortState::Nop,
            Self::DOWN => PortState::Down,
            Self::INIT => PortState::Init,
            Self::ARMED => PortState::Armed,
            Self::ACTIVE => PortState::Active,
            _ => return None,
        })
    }
}

code! {
    /// Physical state of a port (IBTA vol. 2, 5.9.2).
    PhysState(u8), "4" digits {
        /// In a request: leave it as it is.
        NO_CHANGE = 0, "NoChange";
        /// Neither sends nor listens.
        SLEEP = 1, "Sleep";
        /// Looks for a peer.
        POLLING = 2, "Polling";
        /// Switched off.
        DISABLED = 3, "Disabled";
        /// Agrees on width and speed.
        TRAINING = 4, "PortConfigurationTraining";
        /// Bits pass.
        LINK_UP = 5, "LinkUp";
        /// Recovers from errors.
        RECOVERY = 6, "LinkErrorRecovery";
    }
}

code! {
    /// What a management key protects against (IBTA vol. 1, 14.2.4).
    MKeyProtect(u8), "4" digits {
        /// Against changes.
        WRITES = 0, "Writes";
        /// Against changes, and the key is not shown.
        HIDDEN = 1, "Hidden";
        /// Against changes and questions.
        ALL = 2, "All";
        /// As [`ALL`](Self::ALL).
        ALL_TOO = 3, "AllToo";
    }
}

bitflags! {
    /// Widths of a link.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct LinkWidth: u8 {
        /// One lane.
        const X1 = 1;
        /// Four lanes.
        const X4 = 2;
        /// Eight lanes.
        const X8 = 4;
        /// Twelve lanes.
        const X12 = 8;
        /// Bits without a meaning, and all of them in a request.
        const _ = !0;
    }
}

impl LinkWidth {
    /// In a request: all that the port supports.
    pub const ALL_SUPPORTED: Self = Self::from_bits_retain(0xff);
}

bitflags! {
    /// What a port offers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CapabilityMask: u32 {
        /// A subnet manager runs here.
        const IS_SM = 1 << 1;
        /// Notices can be asked for.
        const NOTICE = 1 << 2;
        /// Notices are sent.
        const TRAP = 1 << 3;
        /// Service levels are mapped to virtual lanes.
        const SL_MAPPING = 1 << 6;
        /// The node has a system image GUID.
        const SYSTEM_IMAGE_GUID = 1 << 11;
        /// The node answers connection management.
        const CONNECTION_MANAGEMENT = 1 << 16;
        /// The node answers vendor classes.
        const VENDOR_CLASS = 1 << 20;
        /// Changes of this mask are told.
        const CAPABILITY_MASK_NOTICE = 1 << 22;
        /// The port can be told that clients have to register again.
        const CLIENT_REREGISTRATION = 1 << 25;
        /// Other changes of the port are told.
        const OTHER_CHANGES_NOTICE = 1 << 26;
        /// All other bits.
        const _ = !0;
    }
}

number_fields! {
    LinkState: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
    PhysState: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
    MKeyProtect: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
    LinkWidth: |bits| Self::from_bits_retain(bits.to_le_bytes()[0]), |value| u64::from(value.bits());
    CapabilityMask: |bits| Self::from_bits_retain(word(bits)), |value| u64::from(value.bits());
}

const fn word(bits: u64) -> u32 {
    let [a, b, c, d, ..] = bits.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
