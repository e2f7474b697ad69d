//! Performance management: counters of ports (IBTA vol. 1, 16.1).

use bitflags::bitflags;

use crate::mad::field::Bits;
use crate::mad::header::{AttributeId, MadBytes};
use crate::wire_record;

/// Version of the class's formats.
pub const CLASS_VERSION: u8 = 1;

/// Where an attribute stands in a datagram.
pub const DATA_AT: usize = 64;

/// Bytes of an attribute.
pub const DATA_LEN: usize = 192;

/// The port number that means all ports of a node.
pub const ALL_PORTS: u8 = 0xff;

/// Attributes of the class.
impl AttributeId {
    /// [`PortCounters`].
    pub const PORT_COUNTERS: Self = Self(0x0012);
    /// [`PortCountersExtended`].
    pub const PORT_COUNTERS_EXTENDED: Self = Self(0x001d);
}

bitflags! {
    /// What the class offers, in [`ClassPortInfo`](crate::mad::ClassPortInfo).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct PmCapabilities: u16 {
        /// [`ALL_PORTS`] can be asked for.
        const ALL_PORT_SELECT = 1 << 8;
        /// [`PortCountersExtended`] has all of its counters.
        const EXTENDED_WIDTH = 1 << 9;
        /// `xmit_wait` counts.
        const XMIT_WAIT = 1 << 12;
    }
}

wire_record! {
    /// What a port has counted. A counter stays at its largest value.
    pub struct PortCounters, PortCountersView: 44 bytes {
        /// Which port.
        port: u8 = (1, 0, 8),
        /// In a Set: which counters are written, from `symbol_errors` (bit 0) to `rcv_packets`
        /// (bit 15).
        select: u16 = (2, 0, 16),
        /// Errors on the lanes.
        symbol_errors: u16 = (4, 0, 16),
        /// Links that recovered.
        link_recoveries: u8 = (6, 0, 8),
        /// Links that went down.
        link_downed: u8 = (7, 0, 8),
        /// Packets that came damaged.
        rcv_errors: u16 = (8, 0, 16),
        /// Packets that came marked as bad.
        rcv_remote_errors: u16 = (10, 0, 16),
        /// Packets that a switch could not forward.
        rcv_relay_errors: u16 = (12, 0, 16),
        /// Packets that could not leave.
        xmit_discards: u16 = (14, 0, 16),
        /// Packets of other partitions that could not leave.
        xmit_constraints: u8 = (16, 0, 8),
        /// Packets of other partitions that came.
        rcv_constraints: u8 = (17, 0, 8),
        /// In a Set: whether `xmit_wait` is written (bit 0).
        select2: u8 = (18, 0, 8),
        /// Physical errors above their threshold.
        integrity_errors: Bits<4> = (19, 0, 4),
        /// Overruns above their threshold.
        overrun_errors: Bits<4> = (19, 4, 4),
        /// Datagrams for queue pair 1 that were dropped.
        qp1_dropped: u16 = (20, 0, 16),
        /// Datagrams on virtual lane 15 that were dropped.
        vl15_dropped: u16 = (22, 0, 16),
        /// Words of four bytes sent.
        xmit_data: u32 = (24, 0, 32),
        /// Words of four bytes received.
        rcv_data: u32 = (28, 0, 32),
        /// Packets sent.
        xmit_packets: u32 = (32, 0, 32),
        /// Packets received.
        rcv_packets: u32 = (36, 0, 32),
        /// Ticks in which there was something to send and no credit.
        xmit_wait: u32 = (40, 0, 32),
    }
}

wire_record! {
    /// What a port has carried, in counters that do not run full.
    pub struct PortCountersExtended, PortCountersExtendedView: 72 bytes {
        /// Which port.
        port: u8 = (1, 0, 8),
        /// In a Set: which counters are written, from `xmit_data` (bit 0) on.
        select: u16 = (2, 0, 16),
        /// Words of four bytes sent.
        xmit_data: u64 = (8, 0, 64),
        /// Words of four bytes received.
        rcv_data: u64 = (16, 0, 64),
        /// Packets sent.
        xmit_packets: u64 = (24, 0, 64),
        /// Packets received.
        rcv_packets: u64 = (32, 0, 64),
        /// Packets sent to one port.
        unicast_xmit_packets: u64 = (40, 0, 64),
        /// Packets received that were sent to one port.
        unicast_rcv_packets: u64 = (48, 0, 64),
        /// Packets sent to a group.
        multicast_xmit_packets: u64 = (56, 0, 64),
        /// Packets received that were sent to a group.
        multicast_rcv_packets: u64 = (64, 0, 64),
    }
}

/// The attribute in a datagram.
pub fn attribute(mad: &MadBytes) -> &[u8; DATA_LEN] {
    let Some(data) = mad.last_chunk() else {
        unreachable!("the attribute is the datagram's end");
    };
    data
}

/// Writes an attribute into a datagram; what is behind it becomes zero.
pub fn put_attribute<const N: usize>(mad: &mut MadBytes, bytes: &[u8; N]) {
    const { assert!(N <= DATA_LEN, "the attribute does not fit") };
    let data = mad.get_mut(DATA_AT..).unwrap_or_default();
    data.fill(0);
    if let Some(place) = data.first_chunk_mut() {
        *place = *bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: counters stand where the specification has them. Method: the offsets, by hand.
    #[test]
    fn counters_have_their_places() {
        let counters = PortCounters {
            port: 3,
            symbol_errors: 0x0102,
            link_downed: 7,
            vl15_dropped: 0x0304,
            xmit_data: 0x0a0b_0c0d,
            rcv_packets: 9,
            ..PortCounters::default()
        };
        let mut bytes = [0; PortCounters::LEN];
        counters.emit(&mut bytes);
        let mut mad = [0xff; 256];
        put_attribute(&mut mad, &bytes);
        assert_eq!(mad[64..72], [0, 3, 0, 0, 1, 2, 0, 7]);
        assert_eq!(mad[86..92], [3, 4, 0x0a, 0x0b, 0x0c, 0x0d]);
        assert_eq!((mad[103], mad[108]), (9, 0));
        let view = PortCountersView::new(attribute(&mad)).expect("long enough");
        assert_eq!(PortCounters::parse(view), counters);
    }
}
