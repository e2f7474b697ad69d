//! Paths: how one port reaches another, found by following the switches' routes.

use std::cmp::Ordering;

use verbs_core::mad::Bits;
use verbs_core::mad::sa::{
    DATA_LEN, McMemberRecord, PathMask, PathRecord, PathRecordView, SaStatus, Selector,
};
use verbs_core::{Gid, Lid, PKey};

use crate::config::mtu_code;
use crate::fabric::{End, Port, is_rate, port_gid, rate_below, rate_order, slower_of};
use crate::sa::records::{Found, Records};
use crate::sa::{Administrator, Scene};

/// Switches that a packet passes at most.
const HOPS_MAX: usize = 64;

/// Pairs of ports that are examined per record that an answer may have: a request that names neither end and
/// matches nothing costs no more than that, whatever the subnet's size.
const PAIRS_PER_RECORD: usize = 16;

/// Finds paths between the named ports; between all if none is named.
pub(super) fn paths(
    sa: &Administrator,
    scene: Scene<'_>,
    like: &[u8; DATA_LEN],
    mask: u64,
) -> Found {
    let asked = PathRecordView::new(like).map(PathRecord::parse);
    let asked = asked.unwrap_or_default();
    let mask = PathMask::from_bits_truncate(mask);
    if mask.contains(PathMask::DGID) && asked.dgid.is_multicast() {
        return path_of_group(sa, scene, &asked, mask);
    }
    let sgid = mask.contains(PathMask::SGID).then_some(asked.sgid);
    let slid = mask.contains(PathMask::SLID).then_some(asked.slid);
    let dgid = mask.contains(PathMask::DGID).then_some(asked.dgid);
    let dlid = mask.contains(PathMask::DLID).then_some(asked.dlid);
    let sources = ends(scene, sgid, slid)?;
    let destinations = ends(scene, dgid, dlid)?;
    let pairs = sources.len().saturating_mul(destinations.len());
    let pairs_max = sa.config.answer_records_max;
    if pairs > pairs_max.saturating_mul(PAIRS_PER_RECORD) {
        return Err(SaStatus::NoResources);
    }
    let mut found = Records::default();
    for source in &sources {
        for destination in &destinations {
            let path = path(sa, scene, source, destination, &asked, mask);
            let Some(path) = path else {
                continue;
            };
            if found.len() >= sa.config.answer_records_max {
                return Err(SaStatus::NoResources);
            }
            let mut bytes = [0; PathRecord::LEN];
            path.emit(&mut bytes);
            found.push(&bytes);
        }
    }
    Ok(found)
}

/// A path, if there is one that matches.
fn path(
    sa: &Administrator,
    scene: Scene<'_>,
    source: &(End, &Port),
    destination: &(End, &Port),
    asked: &PathRecord,
    mask: PathMask,
) -> Option<PathRecord> {
    let (from, to) = (source.1, destination.1);
    let pkey = shared_pkey(
        sa,
        from,
        to,
        mask.contains(PathMask::PKEY).then_some(asked.pkey),
    )?;
    let most = Bits::truncated(mtu_code(sa.config.mtu_max));
    let (mtu, rate) = walk(scene, source, destination, most)?;
    let mtu = asked_mtu(mtu, asked, mask)?;
    let rate = asked_rate(rate, asked, mask)?;
    let sl_fits = !mask.contains(PathMask::SL) || asked.sl == Bits::default();
    sl_fits.then(|| PathRecord {
        dgid: port_gid(to),
        sgid: port_gid(from),
        dlid: to.info.lid,
        slid: from.info.lid,
        traffic_class: if mask.contains(PathMask::TRAFFIC_CLASS) {
            asked.traffic_class
        } else {
            0
        },
        reversible: true,
        pkey,
        mtu_selector: Selector::Exactly,
        mtu,
        rate_selector: Selector::Exactly,
        rate,
        packet_lifetime_selector: Selector::Exactly,
        packet_lifetime: Bits::saturating(sa.config.packet_lifetime.code().into()),
        ..PathRecord::default()
    })
}

/// The requested partition, or the first one that both ports are in.
fn shared_pkey(sa: &Administrator, from: &Port, to: &Port, asked: Option<PKey>) -> Option<PKey> {
    let partitions = sa.config.partitions.iter().map(crate::Partition::full);
    let mut candidates = partitions.filter(|own| asked.is_none_or(|asked| own.matches(asked)));
    candidates.find(|&key| from.has_pkey(key) && to.has_pkey(key))
}

/// The path to a group is taken from the group's record.
fn path_of_group(
    sa: &Administrator,
    scene: Scene<'_>,
    asked: &PathRecord,
    mask: PathMask,
) -> Found {
    let group = sa.groups.get(asked.dgid).ok_or(SaStatus::NoRecords)?;
    let sgid = mask.contains(PathMask::SGID).then_some(asked.sgid);
    let slid = mask.contains(PathMask::SLID).then_some(asked.slid);
    let sources = ends(scene, sgid, slid)?;
    let source = sources.first().map(|(_, port)| *port);
    let source = source.ok_or(SaStatus::InsufficientComponents)?;
    let record: &McMemberRecord = &group.record;
    let is_as_asked = (!mask.contains(PathMask::PKEY) || record.pkey.matches(asked.pkey))
        && (!mask.contains(PathMask::SL) || asked.sl == record.sl)
        && (!mask.contains(PathMask::MTU)
            || selected(
                selector(mask, PathMask::MTU_SELECTOR, asked.mtu_selector),
                record.mtu.cmp(&asked.mtu),
            ))
        && (!mask.contains(PathMask::RATE)
            || selected(
                selector(mask, PathMask::RATE_SELECTOR, asked.rate_selector),
                rate_order(record.rate).cmp(&rate_order(asked.rate)),
            ));
    if !is_as_asked {
        return Err(SaStatus::NoRecords);
    }
    let path = PathRecord {
        dgid: record.mgid,
        sgid: port_gid(source),
        dlid: record.mlid,
        slid: source.info.lid,
        flow_label: record.flow_label,
        hop_limit: record.hop_limit,
        traffic_class: record.traffic_class,
        reversible: true,
        path_count: Bits::truncated(1),
        pkey: record.pkey,
        sl: record.sl,
        mtu_selector: Selector::Exactly,
        mtu: record.mtu,
        rate_selector: Selector::Exactly,
        rate: record.rate,
        packet_lifetime_selector: Selector::Exactly,
        packet_lifetime: record.packet_lifetime,
        ..PathRecord::default()
    };
    let mut bytes = [0; PathRecord::LEN];
    path.emit(&mut bytes);
    Ok(Records::one(&bytes))
}

/// The named ports: by GID, by LID, by both; all if none is named.
fn ends<'a>(
    scene: Scene<'a>,
    gid: Option<Gid>,
    lid: Option<Lid>,
) -> Result<Vec<(End, &'a Port)>, SaStatus> {
    let by_gid = gid.map(|gid| scene.fabric.by_gid(gid).ok_or(SaStatus::InvalidGid));
    let by_lid = lid.map(|lid| scene.fabric.by_lid(lid).ok_or(SaStatus::NoRecords));
    Ok(match (by_gid.transpose()?, by_lid.transpose()?) {
        (Some(one), Some(other)) if one.0 != other.0 => Vec::new(),
        (Some(end), _) | (None, Some(end)) => vec![end],
        (None, None) => scene
            .fabric
            .end_ports()
            .filter(|(_, port)| port.info.lid != Lid(0))
            .collect(),
    })
}

/// How to compare a number; `None` if the request does not say: the path's value must be at least that.
fn selector(mask: PathMask, bit: PathMask, how: Selector) -> Option<Selector> {
    mask.contains(bit).then_some(how)
}

/// The MTU of a path as requested, on a route that supports `most`: packets may always be shorter.
fn asked_mtu(most: Bits<6>, asked: &PathRecord, mask: PathMask) -> Option<Bits<6>> {
    if !mask.contains(PathMask::MTU) {
        return Some(most);
    }
    let wanted = asked.mtu;
    let below = wanted.value().checked_sub(1).map(Bits::truncated);
    let how = selector(mask, PathMask::MTU_SELECTOR, asked.mtu_selector);
    let mtu = match how {
        Some(Selector::Less) => most.min(below?),
        Some(Selector::Exactly) => wanted,
        how => return selected(how, most.cmp(&wanted)).then_some(most),
    };
    (mtu <= most && mtu != Bits::default()).then_some(mtu)
}

/// The rate of a path as requested, on a route that supports `most`: the rate may always be lower.
fn asked_rate(most: Bits<6>, asked: &PathRecord, mask: PathMask) -> Option<Bits<6>> {
    if !mask.contains(PathMask::RATE) {
        return Some(most);
    }
    let by_speed = rate_order(most).cmp(&rate_order(asked.rate));
    let how = selector(mask, PathMask::RATE_SELECTOR, asked.rate_selector);
    match how {
        Some(Selector::Less) => Some(slower_of(most, rate_below(asked.rate)?)),
        Some(Selector::Exactly) => (is_rate(asked.rate) && by_speed.is_ge()).then_some(asked.rate),
        how => selected(how, by_speed).then_some(most),
    }
}

/// Whether a comparison has the requested result.
pub(super) fn selected(how: Option<Selector>, order: Ordering) -> bool {
    match how {
        None => order.is_ge(),
        Some(Selector::Greater) => order.is_gt(),
        Some(Selector::Less) => order.is_lt(),
        Some(Selector::Exactly) => order.is_eq(),
        Some(Selector::Best) => true,
    }
}

/// Follows the switches' tables from one port to another: the least MTU and rate on the route; `None` if they do
/// not reach it.
fn walk(
    scene: Scene<'_>,
    source: &(End, &Port),
    destination: &(End, &Port),
    most: Bits<6>,
) -> Option<(Bits<6>, Bits<6>)> {
    let (fabric, to) = (scene.fabric, destination.0);
    let mut mtu = most;
    let mut rate = None;
    let mut pass = |end: End| {
        let port = fabric.port(end)?;
        mtu = mtu.min(Bits::truncated(port.info.neighbor_mtu.value()));
        rate = Some(rate.map_or(port.rate(), |known| slower_of(known, port.rate())));
        Some(())
    };
    let mut at = source.0;
    for _ in 0..HOPS_MAX {
        if at.0 == to.0 && (at.1 == to.1 || fabric.node(at.0)?.is_switch()) {
            let rate = rate.unwrap_or_else(|| source.1.rate());
            return Some((mtu, rate));
        }
        let out = if fabric.node(at.0)?.is_switch() {
            (at.0, scene.tables.next(at.0, destination.1.info.lid)?)
        } else if at == source.0 {
            at
        } else {
            return None;
        };
        pass(out)?;
        at = *fabric.links.get(&out)?;
    }
    None
}
