//! What a node is (IBTA vol. 1, 14.2.5.2 and 14.2.5.3).

use std::fmt;

use crate::addr::Guid;
use crate::mad::field::Blob;
use crate::mad::header::code;
use crate::{number_fields, wire_record};

/// Text of a node: UTF-8, filled up with zeros.
pub type NodeDescription = Blob<64>;

wire_record! {
    /// A node, and the port that it was asked through.
    pub struct NodeInfo, NodeInfoView: 40 bytes {
        /// Version of the base format; 1.
        base_version: u8 = (0, 0, 8),
        /// Version of the class's formats; 1.
        class_version: u8 = (1, 0, 8),
        /// Adapter, switch or router.
        node_type: NodeType = (2, 0, 8),
        /// Physical ports.
        ports: u8 = (3, 0, 8),
        /// Shared by all nodes of one box; 0 where there is none.
        system_guid: Guid = (4, 0, 64),
        /// The node.
        node_guid: Guid = (12, 0, 64),
        /// The port asked through; of a switch, its port 0.
        port_guid: Guid = (20, 0, 64),
        /// Entries of the P_Key table of each port of an adapter, or of a switch's port 0.
        pkey_capacity: u16 = (28, 0, 16),
        /// Kind of device, as its vendor numbers them.
        device_id: u16 = (30, 0, 16),
        /// Revision of the device.
        revision: u32 = (32, 0, 32),
        /// The port that the question came through.
        local_port: u8 = (36, 0, 8),
        /// IEEE number of the vendor.
        vendor_id: u32 = (37, 0, 24),
    }
}

code! {
    /// What kind of node.
    NodeType(u8), "4" digits {
        /// A channel adapter.
        CA = 1, "CA";
        /// A switch.
        SWITCH = 2, "Switch";
        /// A router.
        ROUTER = 3, "Router";
    }
}

number_fields! {
    NodeType: |bits| Self(bits.to_le_bytes()[0]), |value| u64::from(value.0);
}
