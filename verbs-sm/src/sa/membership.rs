//! Requests about multicast groups: ports join and leave them, and look for them (IBTA vol. 1, 15.2.5.17).

use std::collections::BTreeSet;

use verbs_core::mad::Bits;
use verbs_core::mad::sa::{
    DATA_LEN, JoinState, McMemberMask, McMemberRecord, McMemberRecordView, SaStatus, Selector,
};
use verbs_core::mad::sm::TrapNumber;
use verbs_core::{Gid, Lid};

use crate::fabric::{Fabric, Port, is_rate, rate_below, rate_order, slower_of};
use crate::sa::groups::exact;
use crate::sa::paths::selected;
use crate::sa::records::{Found, Records};
use crate::sa::{Administrator, Scene};

/// What who makes a group has to say besides the group and itself.
const CREATES: McMemberMask = McMemberMask::CREATE;

impl Administrator {
    /// A port joins, and makes the group if need be.
    pub(super) fn join(&mut self, scene: Scene<'_>, like: &[u8; DATA_LEN], mask: u64) -> Found {
        let mut wanted = asked(like);
        let mask = McMemberMask::from_bits_truncate(mask);
        if !mask.contains(McMemberMask::PORT_GID | McMemberMask::JOIN_STATE) {
            return Err(SaStatus::InsufficientComponents);
        }
        if wanted.join_state.is_empty() {
            return Err(SaStatus::RequestInvalid);
        }
        let port = member(scene, &wanted)?;
        if wanted.mgid == Gid::default() {
            wanted.mgid = self.groups.free_address(wanted.scope.byte());
        }
        if !wanted.mgid.is_multicast() {
            return Err(SaStatus::RequestInvalid);
        }
        match self.groups.get(wanted.mgid) {
            Some(group) => admit(&group.record, &wanted, mask, port)?,
            None => {
                let record = self.found_group(&wanted, mask, port)?;
                // All is there for the group and its member, or neither is made.
                if !self.groups.has_room(scene.from) {
                    return Err(SaStatus::NoResources);
                }
                let made = self.groups.insert(record, Some(scene.from));
                made.ok_or(SaStatus::NoResources)?;
                self.events
                    .about_gid(scene.fabric, TrapNumber::GROUP_CREATED, wanted.mgid);
            }
        }
        let record = self
            .groups
            .enter(wanted.mgid, wanted.port_gid, wanted.join_state)?;
        Ok(Records::one(&emitted(&record)))
    }

    /// A port leaves.
    pub(super) fn leave(&mut self, scene: Scene<'_>, like: &[u8; DATA_LEN], mask: u64) -> Found {
        let wanted = asked(like);
        let mask = McMemberMask::from_bits_truncate(mask);
        if !mask.contains(McMemberMask::JOIN) {
            return Err(SaStatus::InsufficientComponents);
        }
        member(scene, &wanted)?;
        let left = self
            .groups
            .quit(wanted.mgid, wanted.port_gid, wanted.join_state)?;
        let (record, is_gone) = left;
        if is_gone {
            self.events
                .about_gid(scene.fabric, TrapNumber::GROUP_DELETED, wanted.mgid);
        }
        Ok(Records::one(&emitted(&record)))
    }

    /// Groups, for those who have shown the key each member by itself.
    pub(super) fn find_groups(&self, scene: Scene<'_>, like: &[u8; DATA_LEN], mask: u64) -> Found {
        let wanted = asked(like);
        let mask = McMemberMask::from_bits_truncate(mask);
        let mut found = Records::default();
        for group in self.groups.by_mgid.values() {
            let by_group = mask - (McMemberMask::PORT_GID | McMemberMask::JOIN_STATE);
            if !agrees(&group.record, &wanted, by_group) {
                continue;
            }
            let mut members = group.members.iter().filter(|(gid, state)| {
                (!mask.contains(McMemberMask::PORT_GID) || **gid == wanted.port_gid)
                    && (!mask.contains(McMemberMask::JOIN_STATE)
                        || state.contains(wanted.join_state))
            });
            if scene.is_trusted {
                for (&port_gid, &join_state) in members {
                    let record = McMemberRecord {
                        port_gid,
                        join_state,
                        ..group.record
                    };
                    found.push(&emitted(&record));
                }
            } else if !mask.intersects(McMemberMask::PORT_GID | McMemberMask::JOIN_STATE)
                || members.next().is_some()
            {
                found.push(&emitted(&group.record));
            }
        }
        Ok(found)
    }

    /// What a group is to be like that does not exist.
    fn found_group(
        &self,
        wanted: &McMemberRecord,
        mask: McMemberMask,
        port: &Port,
    ) -> Result<McMemberRecord, SaStatus> {
        if !mask.contains(CREATES) {
            return Err(SaStatus::InsufficientComponents);
        }
        let keeps = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
        let partition = self
            .config
            .partitions
            .iter()
            .find(|own| own.full().matches(wanted.pkey));
        let partition = partition.filter(|own| port.has_pkey(own.full()));
        if !wanted.join_state.intersects(keeps) {
            return Err(SaStatus::RequestInvalid);
        }
        let pkey = partition.ok_or(SaStatus::RequestInvalid)?.full();
        let own_mtu = port.info.neighbor_mtu.value();
        let mtu = match (mask.contains(McMemberMask::MTU), wanted.mtu_selector) {
            (true, Selector::Exactly) => wanted.mtu.value(),
            (true, Selector::Less) => own_mtu.min(wanted.mtu.value().saturating_sub(1)),
            (true, Selector::Greater) if own_mtu <= wanted.mtu.value() => 0,
            _ => own_mtu,
        };
        let own_rate = port.rate();
        let rate = match (mask.contains(McMemberMask::RATE), wanted.rate_selector) {
            (true, Selector::Exactly) => wanted.rate,
            (true, Selector::Less) => {
                let slower = rate_below(wanted.rate).ok_or(SaStatus::RequestInvalid)?;
                slower_of(own_rate, slower)
            }
            (true, Selector::Greater) if rate_order(own_rate) <= rate_order(wanted.rate) => {
                return Err(SaStatus::RequestInvalid);
            }
            _ => own_rate,
        };
        let is_rate = is_rate(rate) && rate_order(rate) <= rate_order(own_rate);
        if !(1..=own_mtu).contains(&mtu) || !is_rate {
            return Err(SaStatus::RequestInvalid);
        }
        let has_life = mask.contains(McMemberMask::PACKET_LIFETIME);
        let longest = Bits::saturating(self.config.packet_lifetime.code().into());
        let has_hops = mask.contains(McMemberMask::HOP_LIMIT);
        Ok(McMemberRecord {
            mgid: wanted.mgid,
            qkey: wanted.qkey,
            mtu: Bits::truncated(mtu),
            traffic_class: wanted.traffic_class,
            pkey,
            rate,
            packet_lifetime: if has_life {
                wanted.packet_lifetime
            } else {
                longest
            },
            sl: wanted.sl,
            flow_label: wanted.flow_label,
            hop_limit: if has_hops { wanted.hop_limit } else { 0 },
            scope: Bits::truncated(u32::from(wanted.mgid.0[1] & 0xf)),
            ..exact()
        })
    }

    /// Members whose ports have gone are members no more.
    pub(crate) fn keep_members(&mut self, fabric: &Fabric) {
        let here: BTreeSet<Gid> = fabric
            .end_ports()
            .map(|(_, port)| crate::fabric::port_gid(port))
            .collect();
        let mgids: Vec<_> = self.groups.by_mgid.keys().copied().collect();
        for mgid in mgids {
            let Some(group) = self.groups.by_mgid.get_mut(&mgid) else {
                continue;
            };
            let before = group.members.len();
            group.members.retain(|gid, _| here.contains(gid));
            let gone = before - group.members.len();
            self.groups.members -= gone;
            if gone > 0 && self.groups.remove_if_idle(mgid) {
                self.events
                    .about_gid(fabric, TrapNumber::GROUP_DELETED, mgid);
            }
        }
    }

    /// No more groups from now on than all switches have room for.
    pub(crate) fn limit_groups(&mut self, max: usize) {
        self.groups.groups_max = max;
    }

    /// The LIDs of all groups.
    pub(crate) fn group_lids(&mut self) -> Vec<Lid> {
        self.groups.changed.clear();
        self.groups.by_mlid.keys().map(|&mlid| Lid(mlid)).collect()
    }

    /// Whether members have come or gone since the tables were written.
    pub(crate) fn has_changed_groups(&self) -> bool {
        !self.groups.changed.is_empty()
    }

    /// The groups whose members have come or gone.
    pub(crate) fn take_changed(&mut self) -> Vec<Lid> {
        let changed = std::mem::take(&mut self.groups.changed);
        changed.into_iter().map(Lid).collect()
    }

    /// The members of a group, and whether each receives.
    pub(crate) fn members(&self, mlid: Lid) -> impl Iterator<Item = (Gid, bool)> + '_ {
        let mgid = self.groups.by_mlid.get(&mlid.0);
        let group = mgid.and_then(|mgid| self.groups.get(*mgid));
        let receives = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
        let members = group.into_iter().flat_map(|group| &group.members);
        members.map(move |(&gid, state)| (gid, state.intersects(receives)))
    }
}

/// The port that a request is about, which has to be the one that asks, unless that is trusted.
fn member<'a>(scene: Scene<'a>, wanted: &McMemberRecord) -> Result<&'a Port, SaStatus> {
    let found = scene.fabric.by_gid(wanted.port_gid);
    let (_, port) = found.ok_or(SaStatus::InvalidGid)?;
    if !scene.is_trusted && !port.info.has_lid(scene.from) {
        return Err(SaStatus::RequestInvalid);
    }
    Ok(port)
}

/// Whether a port may join a group: what it asks for is what the group is like, and it can what the group
/// needs.
fn admit(
    group: &McMemberRecord,
    wanted: &McMemberRecord,
    mask: McMemberMask,
    port: &Port,
) -> Result<(), SaStatus> {
    let can = port.info.neighbor_mtu.value() >= group.mtu.value()
        && rate_order(port.rate()) >= rate_order(group.rate)
        && port.has_pkey(group.pkey);
    // The hop limit and the lifetime are the group's.
    let compared = mask
        - (McMemberMask::JOIN
            | McMemberMask::MLID
            | McMemberMask::HOP_LIMIT
            | McMemberMask::PACKET_LIFETIME
            | McMemberMask::PROXY_JOIN);
    if can && agrees(group, wanted, compared) {
        Ok(())
    } else {
        Err(SaStatus::RequestInvalid)
    }
}

/// Whether a group is as asked for.
fn agrees(group: &McMemberRecord, wanted: &McMemberRecord, mask: McMemberMask) -> bool {
    let same = |bit: McMemberMask, is: bool| !mask.contains(bit) || is;
    let how = |bit: McMemberMask, selector| {
        if mask.contains(bit) {
            selector
        } else {
            Selector::Exactly
        }
    };
    let mtu = how(McMemberMask::MTU_SELECTOR, wanted.mtu_selector);
    let rate = how(McMemberMask::RATE_SELECTOR, wanted.rate_selector);
    let by_speed = rate_order(group.rate).cmp(&rate_order(wanted.rate));
    same(McMemberMask::MGID, group.mgid == wanted.mgid)
        && same(McMemberMask::QKEY, group.qkey == wanted.qkey)
        && same(McMemberMask::MLID, group.mlid == wanted.mlid)
        && same(
            McMemberMask::MTU,
            selected(Some(mtu), group.mtu.cmp(&wanted.mtu)),
        )
        && same(
            McMemberMask::TRAFFIC_CLASS,
            group.traffic_class == wanted.traffic_class,
        )
        && same(McMemberMask::PKEY, group.pkey.matches(wanted.pkey))
        && same(McMemberMask::RATE, selected(Some(rate), by_speed))
        && same(McMemberMask::SL, group.sl == wanted.sl)
        && same(
            McMemberMask::FLOW_LABEL,
            group.flow_label == wanted.flow_label,
        )
        && same(McMemberMask::SCOPE, group.scope == wanted.scope)
}

fn asked(bytes: &[u8; DATA_LEN]) -> McMemberRecord {
    let view = McMemberRecordView::new(bytes);
    view.map_or_else(McMemberRecord::default, McMemberRecord::parse)
}

fn emitted(record: &McMemberRecord) -> [u8; McMemberRecord::LEN] {
    let mut bytes = [0; McMemberRecord::LEN];
    record.emit(&mut bytes);
    bytes
}
