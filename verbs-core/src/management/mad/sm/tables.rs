//! Tables of ports and switches, block by block (IBTA vol. 1, 14.2.5.5 and 14.2.5.7 to 14.2.5.12).

use crate::addr::{Guid, PKey};
use crate::mad::field::{Bits, Blob};
use crate::{number_fields, wire_record};

/// Ports of 64 LIDs; 0xff for none. The modifier numbers the blocks.
pub type ForwardingBlock = Blob<64>;

wire_record! {
    /// Eight GUIDs of a port. The modifier numbers the blocks.
    pub struct GuidBlock, GuidBlockView: 64 bytes {
        /// The GUIDs; the very first one is the port's own.
        guids: [Guid; 8] = (0, 0, 512),
    }
}

wire_record! {
    /// 32 partitions of a port. The modifier has the block in its low half, the port of a switch
    /// in its upper one.
    pub struct PKeyBlock, PKeyBlockView: 64 bytes {
        /// The keys; 0 where there is none.
        keys: [PKey; 32] = (0, 0, 512),
    }
}

wire_record! {
    /// The virtual lane of each service level; 15 drops. Of a switch the modifier has the port
    /// that packets come in through in bits 8 to 15, the one that they leave through in bits 0 to 7.
    pub struct SlToVl, SlToVlView: 8 bytes {
        /// The lanes.
        vls: [Bits<4>; 16] = (0, 0, 64),
    }
}

wire_record! {
    /// 32 entries of the tables that arbitrate virtual lanes. The modifier has which 32 in its
    /// upper half (1, 2 low priority, 3, 4 high), the port in its lower one.
    pub struct VlArbitration, VlArbitrationView: 64 bytes {
        /// The entries.
        entries: [VlWeight; 32] = (0, 0, 512),
    }
}

wire_record! {
    /// 16 ports of 32 multicast LIDs. The modifier has the block in bits 0 to 8, and in bits 28 to
    /// 31 which 16 ports.
    pub struct MulticastBlock, MulticastBlockView: 64 bytes {
        /// A bit for each port.
        masks: [u16; 32] = (0, 0, 512),
    }
}

/// An entry of an arbitration table: a lane, and how much of it goes out at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VlWeight {
    /// The lane; only its low four bits have a meaning, the others are kept.
    pub vl: u8,
    /// Units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

number_fields! {
    VlWeight: |bits| {
        let [weight, vl, ..] = bits.to_le_bytes();
        Self { vl, weight }
    }, |value| u64::from(u16::from_be_bytes([value.vl, value.weight]));
}
