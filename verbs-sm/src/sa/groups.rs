//! The table of multicast groups and their members.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::mad::Bits;
use verbs_core::mad::sa::{JoinState, McMemberRecord, SaStatus, Selector};
use verbs_core::{Gid, Lid};

use crate::config::{Config, mtu_code};
use crate::tables::GROUPS_AT;

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The record without the fields of a single member.
    pub(crate) record: McMemberRecord,
    pub(super) members: BTreeMap<Gid, JoinState>,
    /// The port that has created it; `None` for a group that exists even without members.
    made_by: Option<Lid>,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(super) by_mgid: BTreeMap<Gid, Group>,
    pub(super) by_mlid: BTreeMap<u16, Gid>,
    pub(super) changed: BTreeSet<u16>,
    pub(super) groups_max: usize,
    per_port_max: usize,
    members_max: usize,
    pub(super) members: usize,
    /// The next address for groups created without one.
    next_address: u64,
}

impl Groups {
    pub(crate) fn new(config: &Config) -> Self {
        let mut groups = Self {
            by_mgid: BTreeMap::new(),
            by_mlid: BTreeMap::new(),
            changed: BTreeSet::new(),
            groups_max: config.groups_max,
            per_port_max: config.groups_per_port_max,
            members_max: config.members_max,
            members: 0,
            next_address: 1,
        };
        for partition in config.partitions.iter().filter(|partition| partition.ipoib) {
            let record = McMemberRecord {
                mgid: partition.broadcast(),
                qkey: partition.qkey,
                mtu: Bits::truncated(mtu_code(partition.mtu)),
                pkey: partition.full(),
                rate: partition.rate,
                packet_lifetime: Bits::saturating(config.packet_lifetime.code().into()),
                scope: Bits::truncated(2),
                ..exact()
            };
            groups.insert(record, None);
        }
        groups
    }

    pub(crate) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.by_mgid.get(&mgid)
    }

    /// Gives a group a LID; `None` when there is none left.
    pub(super) fn insert(
        &mut self,
        record: McMemberRecord,
        made_by: Option<Lid>,
    ) -> Option<&mut Group> {
        let last = u16::try_from(self.groups_max).unwrap_or(u16::MAX);
        let mut mlids = (GROUPS_AT..0xffff).take(last.into());
        let mlid = mlids.find(|mlid| !self.by_mlid.contains_key(mlid))?;
        self.by_mlid.insert(mlid, record.mgid);
        let group = Group {
            record: McMemberRecord {
                mlid: Lid(mlid),
                ..record
            },
            members: BTreeMap::new(),
            made_by,
        };
        Some(self.by_mgid.entry(record.mgid).or_insert(group))
    }

    /// Whether a port may create a group, and be its first member.
    pub(super) fn has_room(&self, from: Lid) -> bool {
        let made = self.by_mgid.values();
        let made = made.filter(|group| group.made_by == Some(from));
        self.members < self.members_max && made.count() < self.per_port_max
    }

    /// An address for a group that was requested without one: transient, of the scope, assigned by this
    /// administrator.
    pub(super) fn free_address(&mut self, scope: u8) -> Gid {
        loop {
            let number = self.next_address.to_be_bytes();
            self.next_address += 1;
            let mut gid = [0; 16];
            gid[..4].copy_from_slice(&[0xff, 0x10 | scope & 0xf, 0xa0, 0x1b]);
            gid[8..].copy_from_slice(&number);
            if !self.by_mgid.contains_key(&Gid(gid)) {
                return Gid(gid);
            }
        }
    }

    /// Makes a port a member, adding that kind of membership.
    pub(super) fn enter(
        &mut self,
        mgid: Gid,
        port: Gid,
        how: JoinState,
    ) -> Result<McMemberRecord, SaStatus> {
        let group = self.by_mgid.get_mut(&mgid).ok_or(SaStatus::NoRecords)?;
        if !group.members.contains_key(&port) {
            if self.members >= self.members_max {
                return Err(SaStatus::NoResources);
            }
            self.members += 1;
        }
        let state = group.members.entry(port).or_default();
        *state |= how;
        self.changed.insert(group.record.mlid.0);
        Ok(McMemberRecord {
            port_gid: port,
            join_state: *state,
            ..group.record
        })
    }

    /// Ends a port's membership of that kind. Returns its earlier state, and whether the group is deleted.
    pub(super) fn quit(
        &mut self,
        mgid: Gid,
        port: Gid,
        how: JoinState,
    ) -> Result<(McMemberRecord, bool), SaStatus> {
        let group = self
            .by_mgid
            .get_mut(&mgid)
            .ok_or(SaStatus::RequestInvalid)?;
        let state = group
            .members
            .get_mut(&port)
            .ok_or(SaStatus::RequestInvalid)?;
        if how.is_empty() || !state.contains(how) {
            return Err(SaStatus::RequestInvalid);
        }
        *state -= how;
        let join_state = *state;
        if join_state.is_empty() {
            group.members.remove(&port);
            self.members -= 1;
        }
        let record = McMemberRecord {
            port_gid: port,
            join_state,
            ..group.record
        };
        self.changed.insert(record.mlid.0);
        Ok((record, self.remove_if_idle(mgid)))
    }

    /// Deletes a group without full members; returns whether it did.
    pub(super) fn remove_if_idle(&mut self, mgid: Gid) -> bool {
        let keeps = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
        let is_idle = self.by_mgid.get(&mgid).is_some_and(|group| {
            group.made_by.is_some() && !group.members.values().any(|state| state.intersects(keeps))
        });
        if is_idle && let Some(group) = self.by_mgid.remove(&mgid) {
            self.members -= group.members.len();
            self.by_mlid.remove(&group.record.mlid.0);
            self.changed.insert(group.record.mlid.0);
        }
        is_idle
    }

    /// Limits groups to the number that all switches have room for.
    pub(crate) fn limit(&mut self, max: usize) {
        self.groups_max = max;
    }

    /// The LIDs of all groups.
    pub(crate) fn lids(&mut self) -> Vec<Lid> {
        self.changed.clear();
        self.by_mlid.keys().map(|&mlid| Lid(mlid)).collect()
    }

    /// Whether members have changed since the tables were written.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The groups whose members have changed.
    pub(crate) fn take_changed(&mut self) -> Vec<Lid> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(Lid).collect()
    }

    /// The members of a group, and whether each receives.
    pub(crate) fn members(&self, mlid: Lid) -> impl Iterator<Item = (Gid, bool)> + '_ {
        let mgid = self.by_mlid.get(&mlid.0);
        let group = mgid.and_then(|mgid| self.get(*mgid));
        let receives = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
        let members = group.into_iter().flat_map(|group| &group.members);
        members.map(move |(&gid, state)| (gid, state.intersects(receives)))
    }
}

/// Selectors of records that give exact values.
pub(super) fn exact() -> McMemberRecord {
    McMemberRecord {
        mtu_selector: Selector::Exactly,
        rate_selector: Selector::Exactly,
        packet_lifetime_selector: Selector::Exactly,
        ..McMemberRecord::default()
    }
}
