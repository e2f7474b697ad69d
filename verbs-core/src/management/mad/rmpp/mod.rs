//! Reliable multi-packet transfers: attributes longer than one datagram (IBTA vol. 1, 13.6).
//!
//! A [`Sender`] cuts a payload into segments, keeps as many in flight as the receiver's window
//! allows and sends again what is not acknowledged; a [`Receiver`] puts them together. Both are
//! sans-IO: received datagrams and the time go in, datagrams come out. The classes that use it put
//! their own header behind the RMPP header ([`Layout`]), which is repeated in every segment.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bitflags::bitflags;

use crate::mad::header::{Class, MAD_LEN, MadBytes};
use crate::mad::time_code::TimeCode;
use crate::{number_fields, wire_record};

pub use receiver::{Received, Receiver};
pub use sender::{Sender, Sent};

/// Where the RMPP header stands in a datagram.
const AT: usize = 24;

/// The version of the protocol.
pub const VERSION: u8 = 1;

wire_record! {
    /// The RMPP header.
    pub struct RmppHeader, RmppHeaderView: 12 bytes {
        /// Version; [`VERSION`] is the only one.
        version: u8 = (0, 0, 8),
        /// What this datagram is to the transfer.
        kind: Kind = (1, 0, 8),
        /// Within what time the sender of a request answers; 31 for the default.
        response_time: TimeCode = (2, 0, 5),
        /// First, last, active.
        flags: RmppFlags = (2, 5, 3),
        /// Why the transfer was stopped or aborted.
        status: RmppStatus = (3, 0, 8),
        /// Number of the segment, from 1; of the last one received, in an ACK.
        segment: u32 = (4, 0, 32),
        /// Data: bytes of the whole transfer in the first segment (if known), of this segment in the
        /// last one, class header included. ACK: the last segment that may be sent.
        length_or_window: u32 = (8, 0, 32),
    }
}

impl RmppHeader {
    /// The header in a datagram of a class that has one.
    pub fn of(mad: &MadBytes) -> Self {
        let bytes = mad.get(AT..).and_then(RmppHeaderView::new);
        bytes.map_or_else(Self::default, Self::parse)
    }

    /// Writes the header into a datagram.
    pub fn put(&self, mad: &mut MadBytes) {
        if let Some(place) = mad.get_mut(AT..).and_then(<[u8]>::first_chunk_mut) {
            self.emit(place);
        }
    }

    /// Whether a datagram is part of a transfer at all.
    pub const fn is_active(&self) -> bool {
        self.flags.contains(RmppFlags::ACTIVE)
    }
}

/// What a datagram is to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Kind(pub u8);

impl Kind {
    /// Carries a segment.
    pub const DATA: Self = Self(1);
    /// Acknowledges segments, and opens the window.
    pub const ACK: Self = Self(2);
    /// The sender or receiver ran out of something.
    pub const STOP: Self = Self(3);
    /// The peer broke the protocol.
    pub const ABORT: Self = Self(4);
}

/// Why a transfer ended early (IBTA vol. 1, table 185).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RmppStatus(pub u8);

impl RmppStatus {
    /// All is well.
    pub const NORMAL: Self = Self(0);
    /// Out of resources.
    pub const RESOURCES: Self = Self(1);
    /// The whole transfer took too long.
    pub const TOTAL_TIME: Self = Self(118);
    /// The length of the last segment does not fit that of the transfer.
    pub const INCONSISTENT_LENGTH: Self = Self(119);
    /// First flag and segment number disagree.
    pub const INCONSISTENT_FIRST: Self = Self(120);
    /// The kind is unknown.
    pub const BAD_KIND: Self = Self(121);
    /// The window is smaller than what it acknowledges.
    pub const WINDOW_TOO_SMALL: Self = Self(122);
    /// The segment number is not in the transfer.
    pub const SEGMENT_TOO_BIG: Self = Self(123);
    /// The status goes with another kind.
    pub const ILLEGAL_STATUS: Self = Self(124);
    /// The version is unknown.
    pub const BAD_VERSION: Self = Self(125);
    /// Too many retries.
    pub const TOO_MANY_RETRIES: Self = Self(126);
    /// No reason given.
    pub const UNSPECIFIED: Self = Self(127);
}

bitflags! {
    /// The flags of an RMPP header.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct RmppFlags: u8 {
        /// The datagram is part of a transfer.
        const ACTIVE = 1;
        /// The first segment.
        const FIRST = 2;
        /// The last segment.
        const LAST = 4;
    }
}

number_fields! {
    Kind: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
    RmppStatus: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
    RmppFlags: |bits| Self::from_bits_truncate(bits.to_le_bytes()[0]), |value| u64::from(value.bits());
}

/// How the datagrams of a class are laid out behind the RMPP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the class's own header, which every segment repeats.
    pub class_header: usize,
}

impl Layout {
    /// That of subnet administration.
    pub const SA: Self = Self { class_header: 20 };

    /// That of a class, if it has transfers.
    pub const fn of(class: Class) -> Option<Self> {
        match class {
            Class::SA => Some(Self::SA),
            // Vendor classes with an OUI: a reserved byte and three of the OUI.
            Class(0x30..=0x4f) => Some(Self { class_header: 4 }),
            _ => None,
        }
    }

    /// Where the data of a segment begin.
    pub const fn data_at(self) -> usize {
        AT + RmppHeader::LEN + self.class_header
    }

    /// Bytes of data in a full segment.
    pub const fn segment_len(self) -> usize {
        MAD_LEN - self.data_at()
    }
}

/// Limits of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmppConfig {
    /// Segments in flight, and those that a receiver lets the sender send ahead. 64 by default: a
    /// receive queue of a port's service holds more.
    pub window_segments: u32,
    /// Bytes that a receiver takes in one transfer. 1 MiB by default: 16,000 path records.
    pub transfer_bytes_max: usize,
    /// Time without an answer until the oldest unacknowledged segment is sent again. 2 s by default.
    pub resend_after: Duration,
    /// How often in a row that is done. 7 by default.
    pub retries_max: u32,
    /// Time without a segment until a receiver gives up. 20 s by default: longer than all retries.
    pub receive_idle_max: Duration,
}

impl Default for RmppConfig {
    fn default() -> Self {
        Self {
            window_segments: 64,
            transfer_bytes_max: 1 << 20,
            resend_after: Duration::from_secs(2),
            retries_max: 7,
            receive_idle_max: Duration::from_secs(20),
        }
    }
}
