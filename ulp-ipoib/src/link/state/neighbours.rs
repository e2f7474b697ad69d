//! Neighbours: the hardware address of each IP address, and packets that wait for it.

use std::net::IpAddr;

use verbs_core::task::OwnWaker;
use verbs_core::time::Instant;
use verbs_core::{Gid, Qpn};

use super::State;
use super::action::{Action, Verdict};
use crate::config::{ASK_PAUSE, ASKS_MAX, NEIGHBOURS_MAX};
use crate::link::buffers::Packet;
use crate::link::entry::neighbour::Neighbour;
use crate::link::entry::path::Path;
use crate::wire::HardwareAddress;

impl State {
    /// Sends a packet to a neighbour, or queues it for its address or path.
    pub(in crate::link) fn send_to_neighbour(
        &mut self,
        hop: IpAddr,
        packet: Packet,
        now: Instant,
    ) -> Verdict {
        let known = match self.neighbours.get_mut(&hop) {
            Some(neighbour) => {
                neighbour.used = now;
                neighbour.at
            }
            None => {
                self.add_neighbour(hop, now);
                self.ask(hop, now);
                None
            }
        };
        let verdict = match known {
            Some(at) => self.send_to(at, packet, now),
            None => Verdict::Waits,
        };
        if verdict == Verdict::Waits {
            self.wait_for_neighbour(hop, packet);
            return Verdict::Taken;
        }
        verdict
    }

    /// Sends a packet to a known hardware address, on a connection if there is one.
    pub(in crate::link) fn send_to(
        &mut self,
        at: HardwareAddress,
        packet: Packet,
        now: Instant,
    ) -> Verdict {
        if !self.has_path(at.gid, now) {
            if let Some(Path::Refused(_)) = self.paths.get(&at.gid) {
                self.counters.unreachable += 1;
                self.give_back(packet.slot);
                return Verdict::Taken;
            }
            return Verdict::Waits;
        }
        if let Some(verdict) = self.send_connected(at, packet, now) {
            return verdict;
        }
        self.send_datagram(at, packet)
    }

    pub(in crate::link) fn send_datagram(
        &mut self,
        at: HardwareAddress,
        packet: Packet,
    ) -> Verdict {
        let mtu = self.datagram_mtu();
        if packet.len as usize > mtu + crate::wire::HEADER_LEN {
            return Verdict::TooBig(mtu);
        }
        let path = self.paths.get(&at.gid);
        match path.and_then(|path| self.datagram(path, at.qpn)) {
            Some(to) => self.post(packet, &to),
            None => Verdict::Waits,
        }
    }

    fn wait_for_neighbour(&mut self, hop: IpAddr, packet: Packet) {
        let Some(neighbour) = self.neighbours.get_mut(&hop) else {
            self.give_back(packet.slot);
            return;
        };
        let oldest = neighbour.queue.is_full().then(|| neighbour.queue.remove(0));
        neighbour.queue.push(packet);
        self.counters.pushed_out += self.drop_all(oldest);
    }

    /// A message reports where a neighbour is.
    pub(in crate::link) fn learn(&mut self, hop: IpAddr, at: HardwareAddress, now: Instant) {
        if !self.neighbours.contains_key(&hop) {
            self.add_neighbour(hop, now);
        }
        let Some(neighbour) = self.neighbours.get_mut(&hop) else {
            return;
        };
        neighbour.at = Some(at);
        neighbour.confirmed = now;
        neighbour.is_doubted = false;
        neighbour.asked = 0;
        let wakers = std::mem::take(&mut neighbour.wakers);
        self.actions.extend(wakers.into_iter().map(Action::Wake));
        self.flush_neighbour(hop, now);
    }

    /// A neighbour's address may be wrong: it is asked as soon as it is used.
    pub(in crate::link) fn doubt(&mut self, hop: IpAddr) {
        if let Some(neighbour) = self.neighbours.get_mut(&hop) {
            neighbour.is_doubted = true;
        }
    }

    /// The queue pair may no longer exist. Doubts the neighbours whose address names it: they are asked for at once, by a
    /// request to all neighbours.
    pub(in crate::link) fn doubt_at(&mut self, qpn: Qpn, gid: Gid) {
        for neighbour in self.neighbours.values_mut() {
            if neighbour.at.is_some_and(|at| is_at(at, qpn, gid)) {
                neighbour.is_doubted = true;
                neighbour.asked = neighbour.asked.max(ASKS_MAX - 1);
            }
        }
    }

    /// Sends packets that wait for a neighbour, as far as that is possible now.
    fn flush_neighbour(&mut self, hop: IpAddr, now: Instant) {
        let Some(neighbour) = self.neighbours.get_mut(&hop) else {
            return;
        };
        let Some(at) = neighbour.at else { return };
        let mut waiting = std::mem::take(&mut neighbour.queue);
        while let Some(&packet) = waiting.first() {
            match self.send_to(at, packet, now) {
                Verdict::Taken => {}
                Verdict::TooBig(_) => {
                    self.counters.too_big += 1;
                    self.give_back(packet.slot);
                }
                Verdict::Waits | Verdict::Full => break,
            }
            waiting.remove(0);
        }
        if let Some(neighbour) = self.neighbours.get_mut(&hop) {
            neighbour.queue = waiting;
        }
    }

    /// There is now a path to a port, or none.
    pub(in crate::link) fn path_changed(&mut self, gid: Gid, is_there: bool, now: Instant) {
        let behind = |neighbour: &Neighbour| neighbour.at.is_some_and(|at| at.gid == gid);
        let waiting = self
            .neighbours
            .iter()
            .filter(|(_, neighbour)| behind(neighbour));
        let waiting: Vec<_> = waiting.map(|(&hop, _)| hop).collect();
        for hop in waiting {
            if is_there {
                self.flush_neighbour(hop, now);
            } else if let Some(neighbour) = self.neighbours.get_mut(&hop) {
                let queue = std::mem::take(&mut neighbour.queue);
                self.counters.unreachable += self.drop_all(queue);
            }
            if let Some(neighbour) = self.neighbours.get_mut(&hop) {
                let wakers = std::mem::take(&mut neighbour.wakers);
                self.actions.extend(wakers.into_iter().map(Action::Wake));
            }
        }
    }

    /// The hardware address of the neighbour with that queue pair and GID, if it is one; used to find the neighbour
    /// of a connection.
    pub(in crate::link) fn flags_of(&self, qpn: Qpn, gid: Gid) -> Option<HardwareAddress> {
        let known = self.neighbours.values();
        let mut known = known.filter_map(|neighbour| neighbour.at);
        known.find(|&at| is_at(at, qpn, gid))
    }

    fn add_neighbour(&mut self, hop: IpAddr, now: Instant) {
        if self.neighbours.len() >= NEIGHBOURS_MAX {
            let oldest = self.neighbours.iter().min_by_key(|(_, one)| one.confirmed);
            if let Some(hop) = oldest.map(|(&hop, _)| hop) {
                self.remove_neighbour(hop);
            }
        }
        self.neighbours.insert(hop, Neighbour::new(now));
    }

    fn remove_neighbour(&mut self, hop: IpAddr) {
        if let Some(neighbour) = self.neighbours.remove(&hop) {
            self.counters.unresolved += self.drop_all(neighbour.queue);
            self.actions
                .extend(neighbour.wakers.into_iter().map(Action::Wake));
        }
    }

    /// Asks a neighbour for its address, and sets the time of the next solicitation.
    fn ask(&mut self, hop: IpAddr, now: Instant) {
        let Some(neighbour) = self.neighbours.get_mut(&hop) else {
            return;
        };
        neighbour.asked += 1;
        neighbour.ask_at = now + ASK_PAUSE;
        // The last known address alone is asked, except in the last attempt.
        let known = neighbour.at.filter(|_| neighbour.asked < ASKS_MAX);
        self.counters.asked += 1;
        self.send_question(hop, known, now);
    }

    /// Asks neighbours again that have not been heard of for a while, and gives up those that do not answer.
    pub(in crate::link) fn tick_neighbours(&mut self, now: Instant) {
        let reachable = self.config.reachable;
        let (mut asked, mut silent) = (Vec::new(), Vec::new());
        for (&hop, neighbour) in &self.neighbours {
            let is_old = neighbour.is_doubted || now.since(neighbour.confirmed) >= reachable;
            let is_due = neighbour.at.is_none() || is_old;
            if !is_due || neighbour.ask_at > now {
                continue;
            }
            let is_used = now.since(neighbour.used) < reachable || !neighbour.wakers.is_empty();
            match neighbour.asked < ASKS_MAX && is_used {
                true => asked.push(hop),
                false => silent.push(hop),
            }
        }
        for hop in silent {
            self.remove_neighbour(hop);
        }
        for hop in asked {
            self.ask(hop, now);
        }
    }

    /// The address of a neighbour if there is a path to it; `None` while that is unknown: the waker is then kept,
    /// and called when it is known. For callers that send no packet.
    pub(in crate::link) fn resolve(
        &mut self,
        hop: IpAddr,
        begins: bool,
        waker: &mut OwnWaker,
        now: Instant,
    ) -> Option<Option<HardwareAddress>> {
        if begins && !self.neighbours.contains_key(&hop) {
            self.add_neighbour(hop, now);
            self.ask(hop, now);
        }
        let Some(neighbour) = self.neighbours.get_mut(&hop) else {
            return Some(None);
        };
        neighbour.used = now;
        if let Some(at) = neighbour.at {
            if self.has_path(at.gid, now) {
                return Some(Some(at));
            }
            if let Some(Path::Refused(_)) = self.paths.get(&at.gid) {
                return Some(None);
            }
        }
        if let Some(neighbour) = self.neighbours.get_mut(&hop) {
            waker.join(&mut neighbour.wakers);
        }
        None
    }

    /// Drops all waiting packets: the interface goes down for good.
    pub(in crate::link) fn drop_neighbours(&mut self) {
        while let Some((&hop, _)) = self.neighbours.first_key_value() {
            self.remove_neighbour(hop);
        }
    }
}

/// Whether a hardware address is of that queue pair and GID, whatever its flags.
fn is_at(at: HardwareAddress, qpn: Qpn, gid: Gid) -> bool {
    (at.qpn, at.gid) == (qpn, gid)
}
