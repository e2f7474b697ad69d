//! Records about nodes, their ports and links (IBTA vol. 1, 15.2.5.2, 15.2.5.3 and 15.2.5.13).

use bitflags::bitflags;

use crate::addr::Lid;
use crate::mad::field::{Field, Run};
use crate::mad::sm::{NodeDescription, NodeInfo, NodeInfoView, PortInfo, PortInfoView};
use crate::wire_record;

wire_record! {
    /// A node, as one of its ports shows it.
    pub struct NodeRecord, NodeRecordView: 108 bytes {
        /// The port; of a switch, its port 0.
        lid: Lid = (0, 0, 16),
        /// The node.
        info: NodeInfo = (4, 0, 320),
        /// Its text.
        description: NodeDescription = (44, 0, 512),
    }
}

wire_record! {
    /// A port.
    pub struct PortInfoRecord, PortInfoRecordView: 68 bytes {
        /// The port; of a switch, the LID of its port 0.
        lid: Lid = (0, 0, 16),
        /// Number of the port at its node.
        port: u8 = (2, 0, 8),
        /// How the capability mask is compared.
        options: u8 = (3, 0, 8),
        /// The port.
        info: PortInfo = (4, 0, 512),
    }
}

wire_record! {
    /// A link, seen from one of its ends.
    pub struct LinkRecord, LinkRecordView: 6 bytes {
        /// The node it leads from.
        from_lid: Lid = (0, 0, 16),
        /// The port there.
        from_port: u8 = (2, 0, 8),
        /// The port at the other end.
        to_port: u8 = (3, 0, 8),
        /// The node at its other end.
        to_lid: Lid = (4, 0, 16),
    }
}

/// Attributes as parts of records.
macro_rules! parts {
    ($($repr:ident $view:ident),*) => {$(
        impl Field for $repr {
            fn read(bytes: &[u8], run: Run) -> Self {
                let view = bytes.get(run.byte..).and_then($view::new);
                view.map_or_else(Self::default, Self::parse)
            }

            fn write(self, bytes: &mut [u8], run: Run) {
                let place = bytes.get_mut(run.byte..).and_then(<[u8]>::first_chunk_mut);
                if let Some(place) = place {
                    self.emit(place);
                }
            }
        }
    )*};
}

parts!(NodeInfo NodeInfoView, PortInfo PortInfoView);

bitflags! {
    /// Which fields of a node record a request means; those of [`NodeInfo`] have a bit each.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct NodeMask: u64 {
        /// `lid`.
        const LID = 1;
        /// `info.node_type`.
        const NODE_TYPE = 1 << 4;
        /// `info.ports`.
        const PORTS = 1 << 5;
        /// `info.system_guid`.
        const SYSTEM_GUID = 1 << 6;
        /// `info.node_guid`.
        const NODE_GUID = 1 << 7;
        /// `info.port_guid`.
        const PORT_GUID = 1 << 8;
        /// `info.device_id`.
        const DEVICE_ID = 1 << 10;
        /// `info.vendor_id`.
        const VENDOR_ID = 1 << 13;
        /// `description`.
        const DESCRIPTION = 1 << 14;
    }
}

bitflags! {
    /// Which fields of a port record a request means.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct PortInfoMask: u64 {
        /// `lid`.
        const LID = 1;
        /// `port`.
        const PORT = 1 << 1;
        /// `info.lid`.
        const BASE_LID = 1 << 5;
        /// `info.sm_lid`.
        const SM_LID = 1 << 6;
        /// `info.capability_mask`: equal, or where bit 7 of `options` is set, all its bits.
        const CAPABILITY_MASK = 1 << 7;
        /// `info.state`.
        const STATE = 1 << 15;
    }
}

bitflags! {
    /// Which fields of a link record a request means.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct LinkMask: u64 {
        /// `from_lid`.
        const FROM_LID = 1;
        /// `from_port`.
        const FROM_PORT = 1 << 1;
        /// `to_port`.
        const TO_PORT = 1 << 2;
        /// `to_lid`.
        const TO_LID = 1 << 3;
    }
}
