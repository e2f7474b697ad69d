//! Multicast member records: the members of a group, and how the group sends (IBTA vol. 1, 15.2.5.17).

use bitflags::bitflags;

use crate::addr::{Gid, Lid, PKey, QKey};
use crate::mad::field::Bits;
use crate::mad::sa::Selector;
use crate::{number_fields, wire_record};

wire_record! {
    /// A port's membership in a multicast group. A Set joins, a Delete leaves.
    pub struct McMemberRecord, McMemberRecordView: 52 bytes {
        /// The group.
        mgid: Gid = (0, 0, 128),
        /// The member.
        port_gid: Gid = (16, 0, 128),
        /// Q_Key of the group's packets.
        qkey: QKey = (32, 0, 32),
        /// The group's LID, 0xC000 to 0xFFFE.
        mlid: Lid = (36, 0, 16),
        /// How the MTU is meant.
        mtu_selector: Selector = (38, 0, 2),
        /// MTU, by its code (1 to 5, see [`Mtu`](crate::Mtu)).
        mtu: Bits<6> = (38, 2, 6),
        /// Traffic class.
        traffic_class: u8 = (39, 0, 8),
        /// Partition.
        pkey: PKey = (40, 0, 16),
        /// How the rate is meant.
        rate_selector: Selector = (42, 0, 2),
        /// Rate, by its code.
        rate: Bits<6> = (42, 2, 6),
        /// How the lifetime is meant.
        packet_lifetime_selector: Selector = (43, 0, 2),
        /// How long a packet may be on its way: the exponent n of 4.096 us * 2^n.
        packet_lifetime: Bits<6> = (43, 2, 6),
        /// Service level.
        sl: Bits<4> = (44, 0, 4),
        /// Flow label.
        flow_label: Bits<20> = (44, 4, 20),
        /// Hop limit.
        hop_limit: u8 = (47, 0, 8),
        /// Scope of the group's address.
        scope: Bits<4> = (48, 0, 4),
        /// What kind of member.
        join_state: JoinState = (48, 4, 4),
        /// Whether another requester joined for the port.
        proxy_join: bool = (49, 0, 1),
    }
}

bitflags! {
    /// What kind of member a port is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JoinState: u8 {
        /// Sends and receives, and keeps the group alive.
        const FULL_MEMBER = 1;
        /// Sends and receives.
        const NON_MEMBER = 2;
        /// Sends only.
        const SEND_ONLY_NON_MEMBER = 4;
        /// Sends only, and keeps the group alive.
        const SEND_ONLY_FULL_MEMBER = 8;
    }
}

number_fields! {
    JoinState: |bits| Self::from_bits_truncate(bits.to_le_bytes()[0]), |value| u64::from(value.bits());
}

bitflags! {
    /// Which fields of a multicast member record a request means.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct McMemberMask: u64 {
        /// `mgid`.
        const MGID = 1;
        /// `port_gid`.
        const PORT_GID = 1 << 1;
        /// `qkey`.
        const QKEY = 1 << 2;
        /// `mlid`.
        const MLID = 1 << 3;
        /// `mtu_selector`.
        const MTU_SELECTOR = 1 << 4;
        /// `mtu`.
        const MTU = 1 << 5;
        /// `traffic_class`.
        const TRAFFIC_CLASS = 1 << 6;
        /// `pkey`.
        const PKEY = 1 << 7;
        /// `rate_selector`.
        const RATE_SELECTOR = 1 << 8;
        /// `rate`.
        const RATE = 1 << 9;
        /// `packet_lifetime_selector`.
        const PACKET_LIFETIME_SELECTOR = 1 << 10;
        /// `packet_lifetime`.
        const PACKET_LIFETIME = 1 << 11;
        /// `sl`.
        const SL = 1 << 12;
        /// `flow_label`.
        const FLOW_LABEL = 1 << 13;
        /// `hop_limit`.
        const HOP_LIMIT = 1 << 14;
        /// `scope`.
        const SCOPE = 1 << 15;
        /// `join_state`.
        const JOIN_STATE = 1 << 16;
        /// `proxy_join`.
        const PROXY_JOIN = 1 << 17;
    }
}

impl McMemberMask {
    /// What a Set must name to join a group that exists.
    pub const JOIN: Self = Self::MGID.union(Self::PORT_GID).union(Self::JOIN_STATE);

    /// What a Set must name to join a group, creating it where there is none.
    pub const CREATE: Self = Self::JOIN
        .union(Self::QKEY)
        .union(Self::PKEY)
        .union(Self::SL)
        .union(Self::FLOW_LABEL)
        .union(Self::TRAFFIC_CLASS);
}
