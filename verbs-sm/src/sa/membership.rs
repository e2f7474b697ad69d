//! Requests about multicast groups: ports join, leave and look for them (IBTA vol. 1, 15.2.5.17).

use std::collections::BTreeSet;

use verbs_core::Gid;
use verbs_core::mad::Bits;
use verbs_core::mad::sa::{
    DATA_LEN, JoinState, McMemberMask, McMemberRecord, McMemberRecordView, SaStatus, Selector,
};
use verbs_core::mad::sm::TrapNumber;

use crate::fabric::{Fabric, Port, is_rate, rate_below, rate_order, slower_of};
use crate::sa::groups::{Groups, exact};
use crate::sa::paths::selected;
use crate::sa::records::{Found, Records};
use crate::sa::{Administrator, Scene};

/// The fields that the creator of a group must give besides the group and itself.
const CREATES: McMemberMask = McMemberMask::CREATE;

/// A port joins, and creates the group if necessary.
pub(super) fn join(
    sa: &mut Administrator,
    scene: Scene<'_>,
    like: &[u8; DATA_LEN],
    mask: u64,
) -> Found {
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
        wanted.mgid = sa.groups.free_address(wanted.scope.byte());
    }
    if !wanted.mgid.is_multicast() {
        return Err(SaStatus::RequestInvalid);
    }
    match sa.groups.get(wanted.mgid) {
        Some(group) => admit(&group.record, &wanted, mask, port)?,
        None => {
            let record = found_group(sa, &wanted, mask, port)?;
            // There is room for the group and its member, or neither is created.
            if !sa.groups.has_room(scene.from) {
                return Err(SaStatus::NoResources);
            }
            let made = sa.groups.insert(record, Some(scene.from));
            made.ok_or(SaStatus::NoResources)?;
            sa.events
                .about_gid(scene.fabric, TrapNumber::GROUP_CREATED, wanted.mgid);
        }
    }
    let record = sa
        .groups
        .enter(wanted.mgid, wanted.port_gid, wanted.join_state)?;
    Ok(Records::one(&emitted(&record)))
}

/// A port leaves.
pub(super) fn leave(
    sa: &mut Administrator,
    scene: Scene<'_>,
    like: &[u8; DATA_LEN],
    mask: u64,
) -> Found {
    let wanted = asked(like);
    let mask = McMemberMask::from_bits_truncate(mask);
    if !mask.contains(McMemberMask::JOIN) {
        return Err(SaStatus::InsufficientComponents);
    }
    member(scene, &wanted)?;
    let left = sa
        .groups
        .quit(wanted.mgid, wanted.port_gid, wanted.join_state)?;
    let (record, is_gone) = left;
    if is_gone {
        sa.events
            .about_gid(scene.fabric, TrapNumber::GROUP_DELETED, wanted.mgid);
    }
    Ok(Records::one(&emitted(&record)))
}

/// Finds groups; a trusted requester gets each member separately.
pub(super) fn find_groups(
    groups: &Groups,
    scene: Scene<'_>,
    like: &[u8; DATA_LEN],
    mask: u64,
) -> Found {
    let wanted = asked(like);
    let mask = McMemberMask::from_bits_truncate(mask);
    let mut found = Records::default();
    for group in groups.by_mgid.values() {
        let by_group = mask - (McMemberMask::PORT_GID | McMemberMask::JOIN_STATE);
        if !agrees(&group.record, &wanted, by_group) {
            continue;
        }
        let mut members = group.members.iter().filter(|(gid, state)| {
            (!mask.contains(McMemberMask::PORT_GID) || **gid == wanted.port_gid)
                && (!mask.contains(McMemberMask::JOIN_STATE) || state.contains(wanted.join_state))
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

/// The properties of a group that does not exist yet.
fn found_group(
    sa: &Administrator,
    wanted: &McMemberRecord,
    mask: McMemberMask,
    port: &Port,
) -> Result<McMemberRecord, SaStatus> {
    if !mask.contains(CREATES) {
        return Err(SaStatus::InsufficientComponents);
    }
    let keeps = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
    let partition = sa
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
    let longest = Bits::saturating(sa.config.packet_lifetime.code().into());
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

/// Removes members whose ports have disappeared.
pub(crate) fn keep_members(sa: &mut Administrator, fabric: &Fabric) {
    let here: BTreeSet<Gid> = fabric
        .end_ports()
        .map(|(_, port)| crate::fabric::port_gid(port))
        .collect();
    let mgids: Vec<_> = sa.groups.by_mgid.keys().copied().collect();
    for mgid in mgids {
        let Some(group) = sa.groups.by_mgid.get_mut(&mgid) else {
            continue;
        };
        let before = group.members.len();
        group.members.retain(|gid, _| here.contains(gid));
        let gone = before - group.members.len();
        sa.groups.members -= gone;
        if gone > 0 && sa.groups.remove_if_idle(mgid) {
            sa.events.about_gid(fabric, TrapNumber::GROUP_DELETED, mgid);
        }
    }
}

/// The port that a request is about; it must be the requester itself, unless the request is trusted.
fn member<'a>(scene: Scene<'a>, wanted: &McMemberRecord) -> Result<&'a Port, SaStatus> {
    let found = scene.fabric.by_gid(wanted.port_gid);
    let (_, port) = found.ok_or(SaStatus::InvalidGid)?;
    if !scene.is_trusted && !port.info.has_lid(scene.from) {
        return Err(SaStatus::RequestInvalid);
    }
    Ok(port)
}

/// Whether a port may join a group: its request agrees with the group's properties, and the port supports them.
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

/// Whether a group agrees with the request.
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
