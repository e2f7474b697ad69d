//! Subnet administration: the header of its datagrams and the records it keeps (IBTA vol. 1, 15.2).
//!
//! A request names the fields of a record that it means with a component mask; each record type has
//! one of its own ([`PathMask`], [`McMemberMask`], ...). Records are views and reprs like everything
//! here: [`put_record`] and [`record`] set them into a datagram, a table of several is the payload of
//! a segmented transfer ([`rmpp`](crate::mad::rmpp)) and is walked with [`records`].

mod inform;
mod mcmember;
mod node;
mod path;
mod service;

use std::fmt;

use crate::mad::header::{AttributeId, MadBytes, Status};
use crate::{number_fields, wire_record};

pub use inform::{InformInfo, InformInfoView};
pub use mcmember::{JoinState, McMemberMask, McMemberRecord, McMemberRecordView};
pub use node::{
    LinkMask, LinkRecord, LinkRecordView, NodeMask, NodeRecord, NodeRecordView, PortInfoMask,
    PortInfoRecord, PortInfoRecordView,
};
pub use path::{PathMask, PathRecord, PathRecordView};
pub use service::{ServiceMask, ServiceRecord, ServiceRecordView};

/// Version of the class's formats.
pub const CLASS_VERSION: u8 = 2;

/// Where the class's own header stands in a datagram, behind the common and the RMPP one.
const HEADER_AT: usize = 36;

/// Where an attribute stands in a datagram.
pub const DATA_AT: usize = 56;

/// Bytes of an attribute in one datagram.
pub const DATA_LEN: usize = 200;

/// Attributes of the class.
impl AttributeId {
    /// [`NodeRecord`].
    pub const NODE_RECORD: Self = Self(0x0011);
    /// [`PortInfoRecord`].
    pub const PORT_INFO_RECORD: Self = Self(0x0012);
    /// [`LinkRecord`].
    pub const LINK_RECORD: Self = Self(0x0020);
    /// [`ServiceRecord`].
    pub const SERVICE_RECORD: Self = Self(0x0031);
    /// [`PathRecord`].
    pub const PATH_RECORD: Self = Self(0x0035);
    /// [`McMemberRecord`].
    pub const MC_MEMBER_RECORD: Self = Self(0x0038);
}

wire_record! {
    /// What stands behind the RMPP header of a subnet administration datagram.
    pub struct SaHeader, SaHeaderView: 20 bytes {
        /// Key that lets trusted requests see more.
        sm_key: u64 = (0, 0, 64),
        /// From one record of a table to the next, in units of 8 bytes; 0 where there is none.
        attribute_offset: u16 = (8, 0, 16),
        /// Which fields of the attribute are meant.
        component_mask: u64 = (12, 0, 64),
    }
}

impl SaHeader {
    /// The header in a datagram.
    pub fn of(mad: &MadBytes) -> Self {
        let bytes = mad.get(HEADER_AT..).and_then(SaHeaderView::new);
        bytes.map_or_else(Self::default, Self::parse)
    }

    /// Writes the header into a datagram.
    pub fn put(&self, mad: &mut MadBytes) {
        if let Some(place) = mad.get_mut(HEADER_AT..).and_then(<[u8]>::first_chunk_mut) {
            self.emit(place);
        }
    }
}

/// The attribute in a datagram.
pub fn record(mad: &MadBytes) -> &[u8; DATA_LEN] {
    let Some(data) = mad.last_chunk() else {
        unreachable!("the attribute is the datagram's end");
    };
    data
}

/// Writes an attribute into a datagram; what is behind it becomes zero.
pub fn put_record<const N: usize>(mad: &mut MadBytes, bytes: &[u8; N]) {
    const { assert!(N <= DATA_LEN, "the attribute does not fit one datagram") };
    let data = mad.get_mut(DATA_AT..).unwrap_or_default();
    data.fill(0);
    if let Some(place) = data.first_chunk_mut() {
        *place = *bytes;
    }
}

/// The records of a table response: `payload` is what the segments carried behind their SA headers,
/// `attribute_offset` is from the first of these. A record shorter than `len`, or an offset that
/// is shorter, ends the walk.
pub fn records(payload: &[u8], attribute_offset: u16, len: usize) -> impl Iterator<Item = &[u8]> {
    let step = usize::from(attribute_offset) * 8;
    let usable = if step >= len && len > 0 { payload } else { &[] };
    usable
        .chunks(step.max(1))
        .filter_map(move |chunk| chunk.get(..len))
}

/// What the high byte of the status says in this class (IBTA vol. 1, 15.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaStatus {
    /// The administrator has no room.
    NoResources,
    /// The request makes no sense.
    RequestInvalid,
    /// Nothing fits.
    NoRecords,
    /// More fit than a Get may return.
    TooManyRecords,
    /// A GID is none of the requester's.
    InvalidGid,
    /// Fields are missing from the component mask.
    InsufficientComponents,
    /// The requester may not.
    Denied,
    /// A code without a meaning.
    Other(u8),
}

impl SaStatus {
    /// What the class's part of a status says; `None` when it says nothing.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::NoResources,
            2 => Self::RequestInvalid,
            3 => Self::NoRecords,
            4 => Self::TooManyRecords,
            5 => Self::InvalidGid,
            6 => Self::InsufficientComponents,
            7 => Self::Denied,
            other => Self::Other(other),
        })
    }
}

impl From<SaStatus> for Status {
    /// The status of a response that says so.
    fn from(status: SaStatus) -> Self {
        let code = match status {
            SaStatus::NoResources => 1,
            SaStatus::RequestInvalid => 2,
            SaStatus::NoRecords => 3,
            SaStatus::TooManyRecords => 4,
            SaStatus::InvalidGid => 5,
            SaStatus::InsufficientComponents => 6,
            SaStatus::Denied => 7,
            SaStatus::Other(code) => code,
        };
        Self::from_bits_retain(u16::from(code) << 8)
    }
}

impl fmt::Display for SaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoResources => "the subnet administrator has no resources for the request",
            Self::RequestInvalid => "the request is invalid",
            Self::NoRecords => "there is no such record",
            Self::TooManyRecords => "more than one record fits",
            Self::InvalidGid => "the GID is invalid",
            Self::InsufficientComponents => "the request names too few components",
            Self::Denied => "the request was denied",
            Self::Other(code) => return write!(f, "subnet administration status {code:#04x}"),
        })
    }
}

/// How a number in a request is to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Selector {
    /// Greater than the number.
    #[default]
    Greater,
    /// Less than the number.
    Less,
    /// The number; the only one in responses.
    Exactly,
    /// The largest there is (for a packet lifetime the smallest).
    Best,
}

impl Selector {
    /// Two bits.
    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Greater,
            1 => Self::Less,
            2 => Self::Exactly,
            _ => Self::Best,
        }
    }

    const fn bits(self) -> u64 {
        match self {
            Self::Greater => 0,
            Self::Less => 1,
            Self::Exactly => 2,
            Self::Best => 3,
        }
    }
}

number_fields! {
    Selector: |bits| Self::from_bits(bits), |value| value.bits();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gid, Lid, PKey};
    use crate::mad::field::Bits;

    /// Goal: records stand where the specification has them. Method: the offsets given for a path
    /// record, by hand.
    #[test]
    fn a_path_record_has_its_fields_in_place() {
        let path = PathRecord {
            dgid: Gid([0xdd; 16]),
            dlid: Lid(0x1234),
            flow_label: Bits::truncated(0xa_bcde),
            hop_limit: 0x77,
            reversible: true,
            pkey: PKey(0x8001),
            sl: Bits::truncated(5),
            mtu_selector: Selector::Exactly,
            mtu: Bits::truncated(4),
            packet_lifetime: Bits::truncated(18),
            packet_lifetime_selector: Selector::Exactly,
            ..PathRecord::default()
        };
        let mut bytes = [0; PathRecord::LEN];
        path.emit(&mut bytes);
        let mut mad = [0xff; 256];
        put_record(&mut mad, &bytes);
        assert_eq!(
            mad[64..80],
            [0xdd; 16],
            "the DGID is at byte 64 of the datagram"
        );
        assert_eq!(
            bytes[40..52],
            [0x12, 0x34, 0, 0, 0x0a, 0xbc, 0xde, 0x77, 0, 0x80, 0x80, 1]
        );
        assert_eq!(bytes[52..57], [0, 5, 0x84, 0, 0x92]);
        let view = PathRecordView::new(record(&mad)).expect("long enough");
        assert_eq!(PathRecord::parse(view), path);
    }

    #[test]
    fn tables_are_walked_record_by_record() {
        let payload: Vec<u8> = (0..24).flat_map(|n| [n; 8]).collect();
        let found: Vec<_> = records(&payload, 8, 60).map(|record| record[0]).collect();
        assert_eq!(found, [0, 8, 16]);
        assert_eq!(
            records(&payload[..190], 8, 64).count(),
            2,
            "the last one is cut"
        );
        assert_eq!(records(&payload, 7, 64).count(), 0, "records would overlap");
        assert_eq!(records(&payload, 0, 64).count(), 0);
    }

    #[test]
    fn masks_have_the_numbers_of_the_specification() {
        assert_eq!(PathMask::PACKET_LIFETIME.bits(), 1 << 21);
        assert_eq!(McMemberMask::JOIN_STATE.bits(), 1 << 16);
        assert_eq!(ServiceMask::DATA64.bits(), 3 << 34);
    }
}
