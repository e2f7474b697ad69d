//! Several managers on a subnet: who leads, and how the lead changes (IBTA vol. 1, 14.4).

use verbs_core::Guid;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, CapabilityMask, SmInfo, SmInfoView, SmState};
use verbs_core::mad::{Address, AttributeId, MadBytes, MadHeader, Method, Status, Time};

use crate::fabric::{End, Route};
use crate::manager::{Phase, Purpose, Rival, SubnetManager};
use crate::smp::Smp;

#[cfg(test)]
mod tests;

/// What a Set of the manager's information does, by its modifier.
const HANDOVER: u32 = 1;
const ACKNOWLEDGE: u32 = 2;
const DISABLE: u32 = 3;
const STANDBY: u32 = 4;
const DISCOVER: u32 = 5;

/// Of two managers the greater leads: more priority, or else the lower GUID.
fn rank(info: &SmInfo) -> (u32, std::cmp::Reverse<Guid>) {
    (info.priority.value(), std::cmp::Reverse(info.guid))
}

impl SubnetManager {
    /// Asks all other managers that were found.
    pub(crate) fn ask_managers(&mut self) {
        for (end, route) in self.others() {
            self.get(&route, AttributeId::SM_INFO, 0, Purpose::Manager(end));
        }
    }

    /// Ports where other managers are.
    pub(crate) fn others(&self) -> Vec<(End, Route)> {
        let fabric = match self.phase {
            Phase::Light => &self.view,
            _ => &self.found,
        };
        let others = fabric.end_ports().filter(|(_, port)| {
            port.info.capability_mask.contains(CapabilityMask::IS_SM) && port.guid != self.own_guid
        });
        others
            .map(|(end, port)| (end, port.route.clone()))
            .collect()
    }

    /// Everybody has answered: who leads? Returns whether it is this manager, and goes on.
    pub(crate) fn decide(&mut self, now: Time) -> bool {
        let own = self.info();
        let mut others: Vec<(SmInfo, Route)> = Vec::new();
        for (_, port) in self.found.end_ports() {
            if let Some(info) = port.manager.filter(|info| info.guid != own.guid) {
                others.push((info, port.route.clone()));
            }
        }
        others.sort_by_key(|(info, _)| std::cmp::Reverse(rank(info)));
        let above = |info: &SmInfo| rank(info) > rank(&own);
        if self.takes_over {
            self.takes_over = false;
            self.lead();
            return true;
        }
        let master = others
            .iter()
            .find(|(info, _)| info.state == SmState::MASTER);
        if self.state == SmState::MASTER {
            let heir = others.iter().find(|(info, _)| {
                above(info) && matches!(info.state, SmState::MASTER | SmState::STANDBY)
            });
            if let Some((_, route)) = heir.cloned() {
                let smp = Smp::set(&route, AttributeId::SM_INFO, HANDOVER, &self.emit_info());
                self.stand_by(now, route);
                self.ask(smp, Purpose::Handover);
                return false;
            }
            return true;
        }
        let active = |info: &SmInfo| info.state != SmState::NOT_ACTIVE;
        let first = others.iter().find(|(info, _)| above(info) && active(info));
        if let Some((_, route)) = master.or(first).cloned() {
            self.stand_by(now, route);
            return false;
        }
        self.lead();
        true
    }

    /// Becomes the master: clients are told, and tables are written as if they were empty.
    fn lead(&mut self) {
        self.state = SmState::MASTER;
        self.rival = None;
        self.greeted.clear();
        self.tables.forget();
    }

    /// Leaves the lead to the manager at the end of that route, and asks it from time to time.
    fn stand_by(&mut self, now: Time, route: Route) {
        self.state = SmState::STANDBY;
        self.rival = Some(Rival { route, misses: 0 });
        self.is_stale = false;
        self.phase = Phase::Idle;
        self.due = Some(now + self.config.poll_interval);
    }

    /// Asks the master whether it lives.
    pub(crate) fn poll_master(&mut self) {
        if let Some(rival) = &self.rival {
            let route = rival.route.clone();
            self.get(&route, AttributeId::SM_INFO, 0, Purpose::Poll);
        }
    }

    /// The master has answered, or has not.
    pub(crate) fn polled(&mut self, answer: Option<SmInfo>) {
        let Some(rival) = &mut self.rival else {
            return;
        };
        match answer {
            Some(info) if info.state == SmState::MASTER => rival.misses = 0,
            _ => rival.misses += 1,
        }
        if rival.misses >= self.config.poll_misses {
            self.rival = None;
            self.state = SmState::DISCOVERING;
            self.is_stale = true;
        }
    }

    /// Another manager asks, or tells what to be.
    pub(crate) fn handle_sm_info(&mut self, now: Time, from: Address, mad: &MadBytes) {
        let header = MadHeader::parse(header_of(mad));
        let mut status = Status::OK;
        if header.method == Method::SET {
            let next = match (header.modifier, self.state) {
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
                Some(SmState::DISCOVERING) => self.discover(header.modifier == HANDOVER),
                Some(SmState::NOT_ACTIVE) => {
                    self.state = SmState::NOT_ACTIVE;
                    self.due = None;
                }
                Some(state) => {
                    self.state = state;
                    self.due = Some(now);
                }
                None => {}
            }
        }
        let mut answer = *mad;
        emit_header(&header.response(status), &mut answer);
        // On a directed route the way back is in the datagram.
        if sm::is_directed(mad) {
            let header = header.response(status | sm::DIRECTION);
            emit_header(&header, &mut answer);
        }
        sm::put_attribute(&mut answer, &self.emit_info());
        self.send(from, answer);
    }

    /// Looks around anew, to lead unless somebody else does; or to lead in any case, as the master
    /// has said.
    fn discover(&mut self, takes_over: bool) {
        if takes_over && let Some(rival) = &self.rival {
            let route = rival.route.clone();
            let smp = Smp::set(&route, AttributeId::SM_INFO, ACKNOWLEDGE, &self.emit_info());
            self.ask(smp, Purpose::Handover);
        }
        self.takes_over = takes_over;
        self.state = SmState::DISCOVERING;
        self.rival = None;
        self.is_stale = true;
    }

    /// What this manager says of itself.
    pub(crate) fn info(&self) -> SmInfo {
        SmInfo {
            guid: self.own_guid,
            sm_key: self.config.sm_key,
            activity: self.activity,
            priority: self.config.priority,
            state: self.state,
        }
    }

    fn emit_info(&mut self) -> [u8; SmInfo::LEN] {
        self.activity = self.activity.wrapping_add(1);
        let mut bytes = [0; SmInfo::LEN];
        self.info().emit(&mut bytes);
        bytes
    }

    pub(crate) fn manager_found(&mut self, end: End, bytes: &[u8]) {
        let info = SmInfoView::new(bytes).map(SmInfo::parse);
        if self.phase == Phase::Light {
            let own = self.info();
            let leads = |info: &SmInfo| {
                rank(info) > rank(&own) && matches!(info.state, SmState::MASTER | SmState::STANDBY)
            };
            self.is_stale |= info.as_ref().is_some_and(leads);
        }
        if let Some(port) = self.found.port_mut(end) {
            port.manager = info;
        }
    }
}
