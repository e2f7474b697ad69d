//! Subnet management: its datagrams (SMPs) and the attributes of nodes, ports and switches (IBTA
//! vol. 1, 14.2).
//!
//! An SMP has its own header behind the common one, 64 bytes of an attribute, and for directed routes
//! the two paths. Attributes are views and reprs like all formats here; [`attribute`] and
//! [`put_attribute`] find their place in a datagram.

mod node;
mod notice;
mod port;
mod route;
mod switch;
mod tables;

use crate::mad::header::{AttributeId, Class, MadBytes, header_of};
use crate::{addr::Lid, wire_record};

pub use node::{NodeDescription, NodeInfo, NodeInfoView, NodeType};
pub use notice::{BadKey, Notice, NoticeView, SmInfo, SmInfoView, SmState, TrapNumber};
pub use port::{
    CapabilityMask, LinkState, LinkWidth, MKeyProtect, PhysState, PortInfo, PortInfoView,
};
pub use route::{DIRECTION, HOPS_MAX, Hops, PATH_LEN};
pub use switch::{SwitchInfo, SwitchInfoView};
pub use tables::{
    ForwardingBlock, GuidBlock, GuidBlockView, MulticastBlock, MulticastBlockView, PKeyBlock,
    PKeyBlockView, SlToVl, SlToVlView, VlArbitration, VlArbitrationView, VlWeight,
};

/// Version of the class's formats, LID-routed and directed.
pub const CLASS_VERSION: u8 = 1;

/// Where an attribute stands in a datagram.
pub const DATA_AT: usize = 64;

/// Bytes of an attribute.
pub const DATA_LEN: usize = 64;

/// The LID that stands for "no LID needed": an end of a path that is all directed.
pub const PERMISSIVE_LID: Lid = Lid(0xffff);

/// Where the class's own header stands.
const HEADER_AT: usize = 24;

/// Attributes of the class.
impl SmpHeader {
    /// That of a request whose whole route is directed: from the requester on by ports, without LIDs (14.2.2).
    pub const fn directed(m_key: u64) -> Self {
        Self {
            m_key,
            dr_slid: PERMISSIVE_LID,
            dr_dlid: PERMISSIVE_LID,
        }
    }
}

impl AttributeId {
    /// 64 bytes of text.
    pub const NODE_DESCRIPTION: Self = Self(0x0010);
    /// [`NodeInfo`].
    pub const NODE_INFO: Self = Self(0x0011);
    /// [`SwitchInfo`].
    pub const SWITCH_INFO: Self = Self(0x0012);
    /// [`GuidBlock`].
    pub const GUID_INFO: Self = Self(0x0014);
    /// [`PortInfo`].
    pub const PORT_INFO: Self = Self(0x0015);
    /// [`PKeyBlock`].
    pub const PKEY_TABLE: Self = Self(0x0016);
    /// [`SlToVl`].
    pub const SL_TO_VL: Self = Self(0x0017);
    /// [`VlArbitration`].
    pub const VL_ARBITRATION: Self = Self(0x0018);
    /// [`ForwardingBlock`].
    pub const LINEAR_FORWARDING: Self = Self(0x0019);
    /// [`MulticastBlock`].
    pub const MULTICAST_FORWARDING: Self = Self(0x001b);
    /// [`SmInfo`].
    pub const SM_INFO: Self = Self(0x0020);
}

wire_record! {
    /// What stands behind the common header of an SMP. Only directed routes have the LIDs.
    pub struct SmpHeader, SmpHeaderView: 12 bytes {
        /// Key that a protected port compares.
        m_key: u64 = (0, 0, 64),
        /// Where the directed part of a route begins; [`PERMISSIVE_LID`] at the requester.
        dr_slid: Lid = (8, 0, 16),
        /// Where the directed part ends; [`PERMISSIVE_LID`] at the responder.
        dr_dlid: Lid = (10, 0, 16),
    }
}

impl SmpHeader {
    /// The header in a datagram.
    pub fn of(mad: &MadBytes) -> Self {
        let bytes = mad.get(HEADER_AT..).and_then(SmpHeaderView::new);
        bytes.map_or_else(Self::default, Self::parse)
    }

    /// Writes the header into a datagram.
    pub fn put(&self, mad: &mut MadBytes) {
        if let Some(place) = mad.get_mut(HEADER_AT..).and_then(<[u8]>::first_chunk_mut) {
            self.emit(place);
        }
    }
}

/// Whether a datagram is one of subnet management, by either route.
pub fn is_smp(mad: &MadBytes) -> bool {
    matches!(
        header_of(mad).class(),
        Class::SUBN_LID | Class::SUBN_DIRECTED
    )
}

/// Whether a datagram follows a directed route.
pub fn is_directed(mad: &MadBytes) -> bool {
    header_of(mad).class() == Class::SUBN_DIRECTED
}

/// The attribute in a datagram.
pub fn attribute(mad: &MadBytes) -> &[u8; DATA_LEN] {
    let Some(data) = mad.get(DATA_AT..).and_then(<[u8]>::first_chunk) else {
        unreachable!("a datagram is longer than that");
    };
    data
}

/// Writes an attribute into a datagram; what is behind it, up to the paths, becomes zero.
pub fn put_attribute<const N: usize>(mad: &mut MadBytes, bytes: &[u8; N]) {
    const { assert!(N <= DATA_LEN, "the attribute does not fit") };
    let data = mad.get_mut(DATA_AT..DATA_AT + DATA_LEN).unwrap_or_default();
    data.fill(0);
    if let Some(place) = data.first_chunk_mut() {
        *place = *bytes;
    }
}

#[cfg(test)]
mod tests;
