//! Forwarding tables: what has been written to the switches, and what should be there.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::{Guid, Lid};

/// LIDs of a block of a linear table, and of a multicast table.
const LINEAR_BLOCK: u16 = 64;
const GROUP_BLOCK: u16 = 32;

/// Ports of one mask of a multicast table.
const MASK_PORTS: u8 = 16;

/// The first LID of groups.
pub(crate) const GROUPS_AT: u16 = 0xc000;

/// The port number that stands for no port.
const NOWHERE: u8 = 0xff;

/// The tables as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    linear: BTreeMap<(Guid, u16), [u8; 64]>,
    /// By switch, block, sixteen ports.
    groups: BTreeMap<(Guid, u16, u8), [u16; 32]>,
    /// By group's LID: the ports that belong to it at each switch.
    trees: BTreeMap<u16, BTreeMap<Guid, BTreeSet<u8>>>,
}

impl Tables {
    /// Marks all tables to be written again.
    pub(crate) fn forget(&mut self) {
        self.linear.clear();
        self.groups.clear();
    }

    /// Removes the trees of all groups.
    pub(crate) fn forget_trees(&mut self) {
        self.trees.clear();
    }

    /// Sets the ports that belong to a group at each switch.
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

    /// Marks all tables of that switch to be written again.
    pub(crate) fn forget_switch(&mut self, guid: Guid) {
        self.linear.retain(|key, _| key.0 != guid);
        self.groups.retain(|key, _| key.0 != guid);
    }

    /// The blocks of a switch's linear table that must be written; they count as written.
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

    /// The blocks of a switch's multicast table that must be written; they count as written.
    pub(crate) fn groups(&mut self, guid: Guid, ports: u8) -> Vec<(u16, u8, [u16; 32])> {
        let mut wanted: BTreeMap<(u16, u8), [u16; 32]> = BTreeMap::new();
        // Blocks that were written once are checked even if they have no groups any longer.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: Guid = Guid(1);

    /// Goal: only blocks that have changed are written, and all of them after the switch has forgotten its tables.
    /// Method: routes in two blocks; the same ones again, one of them changed, one removed.
    #[test]
    fn linear_blocks_are_written_when_they_change() {
        let mut tables = Tables::default();
        let mut routes = BTreeMap::from([(1, 4), (64, 5), (127, 6)]);
        let blocks = |tables: &mut Tables, routes: &BTreeMap<u16, u8>| -> Vec<u16> {
            let written = tables.linear(SWITCH, routes, 127);
            written.iter().map(|(block, _)| *block).collect()
        };
        assert_eq!(blocks(&mut tables, &routes), [0, 1]);
        assert_eq!(blocks(&mut tables, &routes), []);
        routes.insert(64, 7);
        assert_eq!(blocks(&mut tables, &routes), [1]);
        routes.remove(&1);
        assert_eq!(blocks(&mut tables, &routes), [0]);
        assert_eq!(tables.next(SWITCH, Lid(1)), None);
        assert_eq!(tables.next(SWITCH, Lid(64)), Some(7));
        assert_eq!(tables.next(Guid(2), Lid(64)), None, "it is another's");
        tables.forget_switch(Guid(2));
        assert_eq!(blocks(&mut tables, &routes), []);
        tables.forget_switch(SWITCH);
        assert_eq!(blocks(&mut tables, &routes), [0, 1]);
        tables.forget();
        assert_eq!(blocks(&mut tables, &routes), [0, 1]);
    }

    /// Goal: the multicast table has the ports of all groups, and none of a group that has gone. Method: two groups in
    /// different blocks and positions, one of which goes.
    #[test]
    fn multicast_blocks_follow_their_groups() {
        let mut tables = Tables::default();
        let tree = |ports: &[u8]| BTreeMap::from([(SWITCH, ports.iter().copied().collect())]);
        let masks = |tables: &mut Tables| -> Vec<(u16, u8, usize, u16)> {
            let written = tables.groups(SWITCH, 36).into_iter();
            let places = written.flat_map(|(block, position, masks)| {
                let places = masks.into_iter().enumerate();
                places.map(move |(at, mask)| (block, position, at, mask))
            });
            places.filter(|&(.., mask)| mask != 0).collect()
        };
        tables.plant(Lid(0xc000), tree(&[1, 17]));
        tables.plant(Lid(0xc021), tree(&[0, 2, 36, 37]));
        let all = [(0, 0, 0, 2), (0, 1, 0, 2), (1, 0, 1, 5), (1, 2, 1, 16)];
        assert_eq!(masks(&mut tables), all);
        assert!(tables.groups(SWITCH, 36).is_empty(), "nothing has changed");
        tables.plant(Lid(0xc000), tree(&[17]));
        assert_eq!(tables.groups(SWITCH, 36), [(0, 0, [0; 32])]);
        tables.plant(Lid(0xc021), BTreeMap::new());
        let gone = [(1, 0, [0; 32]), (1, 2, [0; 32])];
        assert_eq!(tables.groups(SWITCH, 36), gone);
        tables.forget_trees();
        assert_eq!(tables.groups(SWITCH, 36), [(0, 1, [0; 32])]);
    }
}
