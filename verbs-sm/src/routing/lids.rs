//! The assignment of LIDs.

use std::collections::BTreeMap;

use verbs_core::{Guid, Lid};

/// The last LID that one port can have; higher ones belong to groups (IBTA vol. 1, 4.1.3).
pub(crate) const LID_MAX: u16 = 0xbfff;

/// LIDs by the GUIDs of ports. A port that disappears keeps its LID for its return, as long as others do not need
/// it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lids {
    by_guid: BTreeMap<Guid, u16>,
    by_lid: BTreeMap<u16, Guid>,
}

impl Lids {
    /// Gives each port a LID: the one it had; else the one that it reports, if no other port has it; else the
    /// first free one. A port for which none is left has 0.
    pub(crate) fn assign(&mut self, ports: &[(Guid, Lid)], max: u16) -> BTreeMap<Guid, Lid> {
        let max = max.min(LID_MAX);
        for &(guid, lid) in ports {
            let fits = (1..=max).contains(&lid.0) && !self.by_lid.contains_key(&lid.0);
            if fits && !self.by_guid.contains_key(&guid) {
                self.give(guid, lid.0);
            }
        }
        let mut next = 1;
        for &(guid, _) in ports {
            if self.by_guid.get(&guid).is_some_and(|&lid| lid <= max) {
                continue;
            }
            while next <= max && self.by_lid.contains_key(&next) {
                next += 1;
            }
            if next <= max {
                self.give(guid, next);
            } else if let Some(lid) = self.reclaim(ports, max) {
                self.give(guid, lid);
            }
        }
        let lid = |guid: &Guid| Lid(self.by_guid.get(guid).copied().unwrap_or(0));
        ports.iter().map(|(guid, _)| (*guid, lid(guid))).collect()
    }

    fn give(&mut self, guid: Guid, lid: u16) {
        if let Some(before) = self.by_guid.insert(guid, lid) {
            self.by_lid.remove(&before);
        }
        self.by_lid.insert(lid, guid);
    }

    /// Takes back the LID of a port that is not present.
    fn reclaim(&mut self, ports: &[(Guid, Lid)], max: u16) -> Option<u16> {
        let is_here = |guid: &Guid| ports.iter().any(|(here, _)| here == guid);
        let absent = self.by_lid.range(..=max).find(|(_, guid)| !is_here(guid));
        let (&lid, &guid) = absent?;
        self.by_guid.remove(&guid);
        self.by_lid.remove(&lid);
        Some(lid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_are_kept_and_given_away_last() {
        let mut lids = Lids::default();
        let given = lids.assign(
            &[(Guid(1), Lid(0)), (Guid(2), Lid(7)), (Guid(3), Lid(7))],
            10,
        );
        assert_eq!(given[&Guid(2)], Lid(7), "what a port says it has");
        assert_eq!((given[&Guid(1)], given[&Guid(3)]), (Lid(1), Lid(2)));
        let given = lids.assign(&[(Guid(3), Lid(0)), (Guid(9), Lid(1))], 10);
        assert_eq!((given[&Guid(3)], given[&Guid(9)]), (Lid(2), Lid(3)));
        // Full: the LIDs of absent ports are taken back.
        let ports: Vec<_> = (20..24).map(|guid| (Guid(guid), Lid(0))).collect();
        let given = lids.assign(&ports, 4);
        let mut all: Vec<_> = given.values().map(|lid| lid.0).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
        let given = lids.assign(&[&ports[..], &[(Guid(30), Lid(0))]].concat(), 4);
        assert_eq!(given[&Guid(30)], Lid(0), "there is none left");
        let again = lids.assign(&ports, 4);
        let before: Vec<_> = ports.iter().map(|(guid, _)| given[guid]).collect();
        let after: Vec<_> = ports.iter().map(|(guid, _)| again[guid]).collect();
        assert_eq!(before, after, "who has one keeps it, the last LID too");
    }

    /// Goal: present ports keep their LIDs whatever other ports do, and ports that report the same LID do not
    /// share it; LIDs beyond the limit are taken back. Method: a port that disappears, one that appears, a lower
    /// limit.
    #[test]
    fn lids_are_stable() {
        let mut lids = Lids::default();
        let ports: Vec<_> = (1..=9).map(|guid| (Guid(guid), Lid(0))).collect();
        let given = lids.assign(&ports, LID_MAX);
        let less: Vec<_> = ports
            .iter()
            .copied()
            .filter(|(guid, _)| guid.0 != 5)
            .collect();
        // It reports the LID of another port.
        let more = [&less[..], &[(Guid(20), Lid(3))]].concat();
        let after = lids.assign(&more, 9);
        for (guid, _) in &less {
            assert_eq!(after[guid], given[guid]);
        }
        assert_eq!(after[&Guid(20)], given[&Guid(5)], "all others are taken");
        let back = lids.assign(&ports, LID_MAX);
        assert!(less.iter().all(|(guid, _)| back[guid] == given[guid]));
        assert_eq!(back[&Guid(5)], Lid(10), "its own was needed");
        let few = lids.assign(&ports[..3], 3);
        let mut few: Vec<_> = few.into_values().collect();
        few.sort_unstable();
        assert_eq!(few, [Lid(1), Lid(2), Lid(3)]);
        let far = lids.assign(&[(Guid(40), Lid(0xc000))], LID_MAX);
        assert!(far[&Guid(40)].0 <= LID_MAX, "that one is of a group");
    }
}
