//! Nodes, ports and links, as records.

use verbs_core::mad::sa::{
    DATA_LEN, LinkRecord, NodeRecord, PortInfoMask, PortInfoRecord, PortInfoRecordView,
};
use verbs_core::mad::sm::NodeInfo;

use crate::sa::Scene;
use crate::sa::records::{Found, Records, alike};

/// Fields of a node record: bit of the mask, first byte, bytes.
const NODE: [(u32, usize, usize); 14] = [
    (0, 0, 2),
    (2, 4, 1),
    (3, 5, 1),
    (4, 6, 1),
    (5, 7, 1),
    (6, 8, 8),
    (7, 16, 8),
    (8, 24, 8),
    (9, 32, 2),
    (10, 34, 2),
    (11, 36, 4),
    (12, 40, 1),
    (13, 41, 3),
    (14, 44, 64),
];

/// Fields of a port's record that are compared as bytes.
const PORT: [(u32, usize, usize); 4] = [(0, 0, 2), (1, 2, 1), (5, 20, 2), (6, 22, 2)];

/// Fields of a link's record.
const LINK: [(u32, usize, usize); 4] = [(0, 0, 2), (1, 2, 1), (2, 3, 1), (3, 4, 2)];

/// In the options of a port's record: all requested bits of the capability mask must be set.
const ALL_CAPABILITIES: u8 = 0x80;

/// Finds nodes, one record for each port of an adapter.
pub(super) fn nodes(scene: Scene<'_>, like: &[u8; DATA_LEN], mask: u64) -> Found {
    let mut found = Records::default();
    for (end, port) in scene.fabric.end_ports() {
        let Some(node) = scene.fabric.node(end.0) else {
            continue;
        };
        let record = NodeRecord {
            lid: port.info.lid,
            info: NodeInfo {
                port_guid: port.guid,
                local_port: if node.is_switch() {
                    node.info.local_port
                } else {
                    end.1
                },
                ..node.info
            },
            description: node.description,
        };
        let mut bytes = [0; NodeRecord::LEN];
        record.emit(&mut bytes);
        if alike(mask, &NODE, like, &bytes) {
            found.push(&bytes);
        }
    }
    Ok(found)
}

/// Finds ports, including those of switches.
pub(super) fn ports(scene: Scene<'_>, like: &[u8; DATA_LEN], mask: u64) -> Found {
    let mut found = Records::default();
    let asked = PortInfoRecordView::new(like).map(PortInfoRecord::parse);
    let asked = asked.unwrap_or_default();
    let named = PortInfoMask::from_bits_retain(mask);
    for (&guid, node) in &scene.fabric.nodes {
        for (&number, port) in &node.ports {
            let record = PortInfoRecord {
                lid: scene.fabric.lid((guid, number)),
                port: number,
                options: 0,
                info: port.info,
            };
            let mut bytes = [0; PortInfoRecord::LEN];
            record.emit(&mut bytes);
            let (has, wants) = (port.info.capability_mask, asked.info.capability_mask);
            let is_capable = match asked.options & ALL_CAPABILITIES {
                0 => has == wants,
                _ => has.contains(wants),
            };
            let fits = (is_capable || !named.contains(PortInfoMask::CAPABILITY_MASK))
                && (port.info.state == asked.info.state || !named.contains(PortInfoMask::STATE));
            if fits && alike(mask, &PORT, like, &bytes) {
                found.push(&bytes);
            }
        }
    }
    Ok(found)
}

/// Finds links, from both ends.
pub(super) fn links(scene: Scene<'_>, like: &[u8; DATA_LEN], mask: u64) -> Found {
    let mut found = Records::default();
    for (&from, &to) in &scene.fabric.links {
        let record = LinkRecord {
            from_lid: scene.fabric.lid(from),
            from_port: from.1,
            to_port: to.1,
            to_lid: scene.fabric.lid(to),
        };
        let mut bytes = [0; LinkRecord::LEN];
        record.emit(&mut bytes);
        if alike(mask, &LINK, like, &bytes) {
            found.push(&bytes);
        }
    }
    Ok(found)
}
