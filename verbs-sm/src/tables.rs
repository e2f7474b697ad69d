//! Forwarding tables: what is in the switches, as far as was written, and what belongs there.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::{Guid, Lid};

/// LIDs of a block of a linear table, and of a multicast table.
const LINEAR_BLOCK: u16 = 64;
const GROUP_BLOCK: u16 = 32;

/// Ports of one mask of a multicast table.
const MASK_PORTS: u8 = 16;

/// The first LID of groups.
pub(crate) const GROUPS_AT: u16 = 0xc000;

/// A port that stands for none.
const NOWHERE: u8 = 0xff;

/// What was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    linear: BTreeMap<(Guid, u16), [u8; 64]>,
    /// By switch, block, sixteen ports.
    groups: BTreeMap<(Guid, u16, u8), [u16; 32]>,
    /// By group's LID: what belongs to it at each switch.
    trees: BTreeMap<u16, BTreeMap<Guid, BTreeSet<u8>>>,
}

impl Tables {
    /// Everything has to be written again.
    pub(crate) fn forget(&mut self) {
        self.linear.clear();
        self.groups.clear();
    }

    /// No group has members.
    pub(crate) fn forget_trees(&mut self) {
        self.trees.clear();
    }

    /// What belongs to a group at each switch.
    pub(crate) fn plant(&mut self, mlid: Lid, tree: BTreeMap<Guid, BTreeSet<u8>>) {
        if tree.is_empty() {
            self.trees.remove(&mlid.0);
        } else {
            self.trees.insert(mlid.0, tree);
        }
    }

    /// The port through which packets for a LID leave a switch.
    pub(crate) fn next(&self, guid: Guid, lid: Lid) -> Option<u8> {
        let block = self.linear.get(&(guid, lid.0 / LINEAR_BLOCK))?;
        let port = block.get(usize::from(lid.0 % LINEAR_BLOCK)).copied();
        port.filter(|&port| port != NOWHERE)
    }

    /// Everything of that switch has to be written again.
    pub(crate) fn forget_switch(&mut self, guid: Guid) {
        self.linear.retain(|key, _| key.0 != guid);
        self.groups.retain(|key, _| key.0 != guid);
    }

    /// The blocks of a switch's linear table that are to be written, which count as written.
    pub(crate) fn linear(
        &mut self,
        guid: Guid,
        table: &BTreeMap<u16, u8>,
        top: u16,
    ) -> Vec<(u16, [u8; 64])> {
        let mut blocks = Vec::new();
        for block in 0..=top / LINEAR_BLOCK {
            let mut ports = [NOWHERE; 64];
            let first = block * LINEAR_BLOCK;
            for (&lid, &port) in table.range(first..=first + (LINEAR_BLOCK - 1)) {
                if let Some(place) = ports.get_mut(usize::from(lid - first)) {
                    *place = port;
                }
            }
            if self.linear.get(&(guid, block)) != Some(&ports) {
                self.linear.insert((guid, block), ports);
                blocks.push((block, ports));
            }
        }
        blocks
    }

    /// The blocks of a switch's multicast table that are to be written, which count as written.
    pub(crate) fn groups(&mut self, guid: Guid, ports: u8) -> Vec<(u16, u8, [u16; 32])> {
        let mut wanted: BTreeMap<(u16, u8), [u16; 32]> = BTreeMap::new();
        // Blocks that were written once are looked at even if no group is there any more.
        for &(_, block, position) in self.groups.keys().filter(|key| key.0 == guid) {
            wanted.insert((block, position), [0; 32]);
        }
        for (&mlid, tree) in &self.trees {
            let Some(members) = tree.get(&guid) else {
                continue;
            };
            let at = mlid - GROUPS_AT;
            for &port in members.iter().filter(|&&port| port <= ports) {
                let masks = wanted.entry((at / GROUP_BLOCK, port / MASK_PORTS));
                let masks = masks.or_insert([0; 32]);
                if let Some(mask) = masks.get_mut(usize::from(at % GROUP_BLOCK)) {
                    *mask |= 1 << (port % MASK_PORTS);
                }
            }
        }
        let mut blocks = Vec::new();
        for ((block, position), masks) in wanted {
            let before = self.groups.insert((guid, block, position), masks);
            if before != Some(masks) {
                blocks.push((block, position, masks));
            }
        }
        blocks
    }
}
