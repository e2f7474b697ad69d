//! Events that ports report, and the manager they report to (IBTA vol. 1, 13.4.8.2 and 14.2.5.13).

use std::fmt;

use crate::addr::{Gid, Guid, Lid, Qpn};
use crate::mad::field::{Bits, Blob, Field, Run, put_number};
use crate::mad::header::code;
use crate::mad::sm::{CapabilityMask, NodeType};
use crate::{number_fields, wire_record};

wire_record! {
    /// An event.
    pub struct Notice, NoticeView: 80 bytes {
        /// Whether the architecture defines it.
        is_generic: bool = (0, 0, 1),
        /// 0 fatal, 1 urgent, 2 security, 3 subnet management, 4 information.
        kind: Bits<7> = (0, 1, 7),
        /// The reporter: a [`NodeType`], or 4 for a manager.
        producer: u32 = (1, 0, 24),
        /// Which event.
        trap: TrapNumber = (4, 0, 16),
        /// The port that reports.
        issuer_lid: Lid = (6, 0, 16),
        /// Changes with each notice in a queue of them.
        toggle: bool = (8, 0, 1),
        /// Notices in the queue.
        count: u16 = (8, 1, 15),
        /// What the event says.
        details: Blob<54> = (10, 0, 432),
        /// The port that reports, in reports of a manager.
        issuer_gid: Gid = (64, 0, 128),
    }
}

/// Details are numbered from where the notice begins, as the specification's tables do.
const DETAILS_AT: usize = 10;

/// Where the GID stands in notices about one.
const GID_AT: usize = 16;

impl Notice {
    /// Bytes of a notice in a trap, which has no issuer's GID.
    pub const TRAP_LEN: usize = 64;

    /// The producer that stands for a subnet manager.
    pub const MANAGER: u32 = 4;

    /// A notice of a node of that type at that LID.
    fn generic(trap: TrapNumber, kind: u32, producer: NodeType, issuer_lid: Lid) -> Self {
        Self {
            is_generic: true,
            kind: Bits::truncated(kind),
            producer: u32::from(producer.0),
            trap,
            issuer_lid,
            ..Self::default()
        }
    }

    /// The notice with a number set into its details, at byte `at` of the notice.
    fn with(mut self, at: usize, width: usize, value: u64) -> Self {
        let run = Run {
            byte: at - DETAILS_AT,
            bit: 0,
            width,
        };
        put_number(&mut self.details.0, run, value);
        self
    }

    /// A port of the switch at that LID has changed its state.
    pub fn link_state_changed(switch: Lid) -> Self {
        Self::generic(TrapNumber::LINK_STATE, 1, NodeType::SWITCH, switch).with(
            10,
            16,
            u64::from(switch.0),
        )
    }

    /// What the port at that LID offers has changed.
    pub fn capabilities_changed(producer: NodeType, lid: Lid, now: CapabilityMask) -> Self {
        Self::generic(TrapNumber::LOCAL_CHANGES, 4, producer, lid)
            .with(12, 16, u64::from(lid.0))
            .with(16, 32, u64::from(now.bits()))
    }

    /// Something else about the port at that LID has changed: bit 0 of `what` is the description,
    /// bit 1 the enabled widths, bit 2 the enabled speeds, bit 3 the manager's priority.
    pub fn other_changes(producer: NodeType, lid: Lid, mask: CapabilityMask, what: u16) -> Self {
        Self::capabilities_changed(producer, lid, mask)
            .with(15, 8, 1)
            .with(20, 16, u64::from(what))
    }

    /// What a subnet administrator reports of a port's or a group's GID: [`GID_IN_SERVICE`], ...
    ///
    /// [`GID_IN_SERVICE`]: TrapNumber::GID_IN_SERVICE
    pub fn about_gid(trap: TrapNumber, issuer_lid: Lid, gid: Gid) -> Self {
        let mut notice = Self {
            producer: Self::MANAGER,
            ..Self::generic(trap, 3, NodeType::default(), issuer_lid)
        };
        let run = Run {
            byte: GID_AT - DETAILS_AT,
            bit: 0,
            width: 128,
        };
        gid.write(&mut notice.details.0, run);
        notice
    }

    /// The GID that it is about, where it is about one.
    pub fn gid(&self) -> Option<Gid> {
        let run = Run {
            byte: GID_AT - DETAILS_AT,
            bit: 0,
            width: 128,
        };
        let has_one = (TrapNumber::GID_IN_SERVICE..=TrapNumber::GROUP_DELETED).contains(&self.trap);
        has_one.then(|| Gid::read(&self.details.0, run))
    }

    /// A peer has shown a wrong key to the port at that LID.
    pub fn bad_m_key(producer: NodeType, lid: Lid, from: Lid, method: u8, key: u64) -> Self {
        Self::generic(TrapNumber::BAD_M_KEY, 2, producer, lid)
            .with(12, 16, u64::from(lid.0))
            .with(14, 16, u64::from(from.0))
            .with(20, 8, u64::from(method))
            .with(28, 64, key)
    }

    /// A packet with a key that does not fit has come to the adapter's port at that LID.
    pub fn bad_key(lid: Lid, packet: &BadKey) -> Self {
        let trap = if packet.is_qkey {
            TrapNumber::BAD_Q_KEY
        } else {
            TrapNumber::BAD_P_KEY
        };
        let mut notice = Self::generic(trap, 2, NodeType::CA, lid)
            .with(12, 16, u64::from(packet.from.0))
            .with(14, 16, u64::from(lid.0))
            .with(16, 32, u64::from(packet.key))
            .with(20, 4, u64::from(packet.sl))
            .with(21, 24, u64::from(packet.src_qpn.value()))
            .with(25, 24, u64::from(packet.dest_qpn.value()));
        let (gids, _) = packet.gids.as_flattened().as_chunks();
        for (at, &half) in (28..).step_by(8).zip(gids) {
            notice = notice.with(at, 64, u64::from_be_bytes(half));
        }
        notice
    }
}

/// What a port reports of a packet with a key that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BadKey {
    /// Whether it was the Q_Key; else it was the P_Key.
    pub is_qkey: bool,
    /// The key that the packet had.
    pub key: u32,
    /// Service level of the packet.
    pub sl: u8,
    /// The sender.
    pub from: Lid,
    /// The sender's queue pair; 0 if the packet does not tell.
    pub src_qpn: Qpn,
    /// The queue pair that it was for.
    pub dest_qpn: Qpn,
    /// GIDs of sender and receiver; zero if the packet has none.
    pub gids: [[u8; 16]; 2],
}

code! {
    /// Which event (IBTA vol. 1, 14.2.5.1).
    TrapNumber(u16), "6" digits {
        /// A GID is in service.
        GID_IN_SERVICE = 64, "GidInService";
        /// A GID is out of service.
        GID_OUT_OF_SERVICE = 65, "GidOutOfService";
        /// A multicast group was created.
        GROUP_CREATED = 66, "GroupCreated";
        /// A multicast group was deleted.
        GROUP_DELETED = 67, "GroupDeleted";
        /// A port of a switch has changed its state.
        LINK_STATE = 128, "LinkState";
        /// A port's capabilities or other settings have changed.
        LOCAL_CHANGES = 144, "LocalChanges";
        /// A manager has shown a wrong management key.
        BAD_M_KEY = 256, "BadMKey";
        /// A packet of a partition that the port is not in has come to an adapter.
        BAD_P_KEY = 257, "BadPKey";
        /// A packet with a wrong Q_Key has come to an adapter.
        BAD_Q_KEY = 258, "BadQKey";
    }
}

wire_record! {
    /// A subnet manager.
    pub struct SmInfo, SmInfoView: 21 bytes {
        /// The port that it is at.
        guid: Guid = (0, 0, 64),
        /// Key that lets managers trust each other.
        sm_key: u64 = (8, 0, 64),
        /// Grows as long as the manager lives.
        activity: u32 = (16, 0, 32),
        /// Of two managers the one with more leads.
        priority: Bits<4> = (20, 0, 4),
        /// What it is doing.
        state: SmState = (20, 4, 4),
    }
}

code! {
    /// State of a subnet manager (IBTA vol. 1, 14.4.1).
    SmState(u8), "4" digits {
        /// Told to rest.
        NOT_ACTIVE = 0, "NotActive";
        /// Looking around.
        DISCOVERING = 1, "Discovering";
        /// Ready to take over.
        STANDBY = 2, "Standby";
        /// In charge.
        MASTER = 3, "Master";
    }
}

number_fields! {
    TrapNumber: |bits| {
        let [low, high, ..] = bits.to_le_bytes();
        Self(u16::from_le_bytes([low, high]))
    }, |value| u64::from(value.0);
    SmState: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
}
