//! Several managers on a subnet: which one is master, and how mastership changes (IBTA vol. 1, 14.4).

use verbs_core::Guid;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, CapabilityMask, SmInfo, SmInfoView, SmState};
use verbs_core::mad::{Address, AttributeId, MadBytes, MadHeader, Method, Status};
use verbs_core::time::Instant;

use crate::fabric::{End, Route};
use crate::manager::{Phase, Purpose, Rival, SubnetManager};
use crate::smp::Smp;

#[cfg(test)]
pub(crate) mod tests;

/// The action of a Set of the manager's information, by its modifier.
const HANDOVER: u32 = 1;
const ACKNOWLEDGE: u32 = 2;
const DISABLE: u32 = 3;
const STANDBY: u32 = 4;
const DISCOVER: u32 = 5;

/// The greater of two managers becomes master: higher priority, or else the lower GUID.
fn rank(info: &SmInfo) -> (u32, std::cmp::Reverse<Guid>) {
    (info.priority.value(), std::cmp::Reverse(info.guid))
}

/// Polls all other managers that were found.
pub(crate) fn ask_managers(manager: &mut SubnetManager) {
    for (end, route) in others(manager) {
        manager.get(&route, AttributeId::SM_INFO, 0, Purpose::Manager(end));
    }
}

/// Ports with other managers.
pub(crate) fn others(manager: &SubnetManager) -> Vec<(End, Route)> {
    let fabric = match manager.phase {
        Phase::Light => &manager.view,
        _ => &manager.found,
    };
    let others = fabric.end_ports().filter(|(_, port)| {
        port.info.capability_mask.contains(CapabilityMask::IS_SM) && port.guid != manager.own_guid
    });
    others
        .map(|(end, port)| (end, port.route.clone()))
        .collect()
}

/// All have answered: decides which manager is master. Returns whether it is this one, and continues.
pub(crate) fn decide(manager: &mut SubnetManager, now: Instant) -> bool {
    let own = own_info(manager);
    let mut others: Vec<(SmInfo, Route)> = Vec::new();
    for (_, port) in manager.found.end_ports() {
        if let Some(info) = port.manager.filter(|info| info.guid != own.guid) {
            others.push((info, port.route.clone()));
        }
    }
    others.sort_by_key(|(info, _)| std::cmp::Reverse(rank(info)));
    let above = |info: &SmInfo| rank(info) > rank(&own);
    if manager.takes_over {
        manager.takes_over = false;
        lead(manager);
        return true;
    }
    let master = others
        .iter()
        .find(|(info, _)| info.state == SmState::MASTER);
    if manager.state == SmState::MASTER {
        let heir = others.iter().find(|(info, _)| {
            above(info) && matches!(info.state, SmState::MASTER | SmState::STANDBY)
        });
        if let Some((_, route)) = heir.cloned() {
            let smp = Smp::set(&route, AttributeId::SM_INFO, HANDOVER, &emit_info(manager));
            stand_by(manager, now, route);
            manager.ask(smp, Purpose::Handover);
            return false;
        }
        return true;
    }
    let active = |info: &SmInfo| info.state != SmState::NOT_ACTIVE;
    let first = others.iter().find(|(info, _)| above(info) && active(info));
    if let Some((_, route)) = master.or(first).cloned() {
        stand_by(manager, now, route);
        return false;
    }
    lead(manager);
    true
}

/// Becomes the master: clients are notified, and tables are written as if they were empty.
fn lead(manager: &mut SubnetManager) {
    manager.state = SmState::MASTER;
    manager.rival = None;
    manager.greeted.clear();
    manager.tables.forget();
}

/// Leaves mastership to the manager at the end of that route, and polls it from time to time.
fn stand_by(manager: &mut SubnetManager, now: Instant, route: Route) {
    manager.state = SmState::STANDBY;
    manager.rival = Some(Rival { route, misses: 0 });
    manager.is_stale = false;
    manager.phase = Phase::Idle;
    manager.due = Some(now + manager.config.poll_interval);
}

/// Polls the master.
pub(crate) fn poll_master(manager: &mut SubnetManager) {
    if let Some(rival) = &manager.rival {
        let route = rival.route.clone();
        manager.get(&route, AttributeId::SM_INFO, 0, Purpose::Poll);
    }
}

/// The master has answered, or has not.
pub(crate) fn polled(manager: &mut SubnetManager, answer: Option<SmInfo>) {
    let Some(rival) = &mut manager.rival else {
        return;
    };
    match answer {
        Some(info) if info.state == SmState::MASTER => rival.misses = 0,
        _ => rival.misses += 1,
    }
    if rival.misses >= manager.config.poll_misses {
        manager.rival = None;
        manager.state = SmState::DISCOVERING;
        manager.is_stale = true;
    }
}

/// Another manager asks for this one's state, or sets it.
pub(crate) fn handle_sm_info(
    manager: &mut SubnetManager,
    now: Instant,
    from: Address,
    mad: &MadBytes,
) {
    let header = MadHeader::parse(header_of(mad));
    let mut status = Status::OK;
    if header.method == Method::SET {
        let next = match (header.modifier, manager.state) {
            (HANDOVER, SmState::STANDBY | SmState::MASTER) => Some(SmState::DISCOVERING),
            (ACKNOWLEDGE, _) => None,
            (DISABLE, SmState::STANDBY) => Some(SmState::NOT_ACTIVE),
            (STANDBY, SmState::NOT_ACTIVE) => Some(SmState::STANDBY),
            (DISCOVER, SmState::STANDBY) => Some(SmState::DISCOVERING),
            _ => {
                status = Status::BAD_VALUE;
                None
            }
        };
        match next {
            Some(SmState::DISCOVERING) => discover(manager, header.modifier == HANDOVER),
            Some(SmState::NOT_ACTIVE) => {
                manager.state = SmState::NOT_ACTIVE;
                manager.due = None;
            }
            Some(state) => {
                manager.state = state;
                manager.due = Some(now);
            }
            None => {}
        }
    }
    let mut answer = *mad;
    emit_header(&header.response(status), &mut answer);
    // A directed route contains its own return path.
    if sm::is_directed(mad) {
        let header = header.response(status | sm::DIRECTION);
        emit_header(&header, &mut answer);
    }
    sm::put_attribute(&mut answer, &emit_info(manager));
    manager.send(from, answer);
}

/// Starts discovery again: to become master unless another manager is, or in any case if the master has
/// handed over.
fn discover(manager: &mut SubnetManager, takes_over: bool) {
    if takes_over && let Some(rival) = &manager.rival {
        let route = rival.route.clone();
        let smp = Smp::set(
            &route,
            AttributeId::SM_INFO,
            ACKNOWLEDGE,
            &emit_info(manager),
        );
        manager.ask(smp, Purpose::Handover);
    }
    manager.takes_over = takes_over;
    manager.state = SmState::DISCOVERING;
    manager.rival = None;
    manager.is_stale = true;
}

/// This manager's information.
pub(crate) fn own_info(manager: &SubnetManager) -> SmInfo {
    SmInfo {
        guid: manager.own_guid,
        sm_key: manager.config.sm_key,
        activity: manager.activity,
        priority: manager.config.priority,
        state: manager.state,
    }
}

fn emit_info(manager: &mut SubnetManager) -> [u8; SmInfo::LEN] {
    manager.activity = manager.activity.wrapping_add(1);
    let mut bytes = [0; SmInfo::LEN];
    own_info(manager).emit(&mut bytes);
    bytes
}

pub(crate) fn manager_found(manager: &mut SubnetManager, end: End, bytes: &[u8]) {
    let info = SmInfoView::new(bytes).map(SmInfo::parse);
    if manager.phase == Phase::Light {
        let own = own_info(manager);
        let leads = |info: &SmInfo| {
            rank(info) > rank(&own) && matches!(info.state, SmState::MASTER | SmState::STANDBY)
        };
        manager.is_stale |= info.as_ref().is_some_and(leads);
    }
    if let Some(port) = manager.found.port_mut(end) {
        port.manager = info;
    }
}
