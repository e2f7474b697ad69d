//! Connections that this end makes: packets are sent on them, none is received (RFC 4755).

use arrayvec::ArrayVec;
use verbs_cm::Connection;
use verbs_core::Qpn;
use verbs_core::time::Instant;

use super::State;
use super::action::{Action, Verdict};
use super::outbox::Target;
use crate::config::{CONNECTIONS_MAX, Mode, REFUSAL_PAUSE};
use crate::link::buffers::Packet;
use crate::link::entry::active::{Active, Key, Phase};
use crate::wire::{HEADER_LEN, HardwareAddress};

impl State {
    /// Sends a packet on a connection. `None` if it must be sent as a datagram.
    pub(in crate::link) fn send_connected(
        &mut self,
        at: HardwareAddress,
        packet: Packet,
        now: Instant,
    ) -> Option<Verdict> {
        if self.config.mode != Mode::Connected || !at.takes_rc() {
            return None;
        }
        let key = (at.qpn, at.gid);
        let is_long = packet.len as usize > self.datagram_mtu() + HEADER_LEN;
        let Some(active) = self.active.get_mut(&key) else {
            return self.begin_connection(at, packet, is_long, now);
        };
        match &mut active.phase {
            Phase::Up { mtu, .. } => {
                if packet.len as usize > *mtu + HEADER_LEN {
                    return Some(Verdict::TooBig(*mtu));
                }
                active.used = now;
                Some(self.put(packet, Target::Connection(key)))
            }
            Phase::Connecting if is_long => {
                let oldest = active.queue.is_full().then(|| active.queue.remove(0));
                active.queue.push(packet);
                self.counters.pushed_out += self.drop_all(oldest);
                Some(Verdict::Taken)
            }
            Phase::Connecting => None,
            Phase::Failed(until) if *until > now => None,
            Phase::Failed(_) => {
                self.active.remove(&key);
                self.begin_connection(at, packet, is_long, now)
            }
        }
    }

    fn begin_connection(
        &mut self,
        at: HardwareAddress,
        packet: Packet,
        is_long: bool,
        now: Instant,
    ) -> Option<Verdict> {
        let route = self.paths.get(&at.gid)?.route()?;
        if self.active.len() >= CONNECTIONS_MAX {
            return None;
        }
        let mut active = Active {
            phase: Phase::Connecting,
            used: now,
            queue: ArrayVec::new(),
        };
        if is_long {
            active.queue.push(packet);
        }
        self.active.insert((at.qpn, at.gid), active);
        self.actions.push(Action::Connect(at, route));
        is_long.then_some(Verdict::Taken)
    }

    /// A connection was made, or could not be. Returns a connection that is no longer wanted.
    pub(in crate::link) fn connected(
        &mut self,
        key: Key,
        made: Option<(Connection, usize)>,
        now: Instant,
    ) -> Option<Connection> {
        let Some(active) = self.active.get_mut(&key) else {
            return made.map(|(connection, _)| connection);
        };
        let queue = std::mem::take(&mut active.queue);
        match made {
            Some((connection, mtu)) => {
                let qpn = connection.qpn();
                active.phase = Phase::Up {
                    connection,
                    qpn,
                    mtu,
                };
                self.counters.connections_made += 1;
            }
            None => {
                active.phase = Phase::Failed(now + REFUSAL_PAUSE);
                self.counters.connections_failed += 1;
                self.doubt_at(key.0, key.1);
            }
        }
        // As before it was made: sent on it, or dropped as too long for a datagram.
        let at = self.flags_of(key.0, key.1);
        for packet in queue {
            match at.map(|at| self.send_to(at, packet, now)) {
                Some(Verdict::Taken) => {}
                Some(_) | None => {
                    self.counters.too_big += 1;
                    self.give_back(packet.slot);
                }
            }
        }
        None
    }

    /// A connection is over. The next packet requests another. If this side did not end it, the neighbour may be gone, or be
    /// there again with another address.
    pub(in crate::link) fn connection_over(&mut self, key: Key) {
        if let Some(active) = self.active.remove(&key) {
            self.hang(active);
            self.doubt_at(key.0, key.1);
        }
    }

    /// A send has failed: the connection with that queue pair can no longer be used.
    pub(in crate::link) fn connection_broken(&mut self, qpn: Qpn) {
        let broken = self.active.iter().find(|(_, active)| match &active.phase {
            Phase::Up { qpn: own, .. } => *own == Some(qpn),
            Phase::Connecting | Phase::Failed(_) => false,
        });
        if let Some(key) = broken.map(|(&key, _)| key) {
            self.connection_over(key);
        }
    }

    /// Closes all connections that this end has made.
    pub(in crate::link) fn drop_connections(&mut self) {
        for active in std::mem::take(&mut self.active).into_values() {
            self.hang(active);
        }
    }

    /// Ends unused connections.
    pub(in crate::link) fn tick_connections(&mut self, now: Instant) {
        let idle = self.config.idle;
        let unused = self.active.iter().filter(|(_, active)| match active.phase {
            Phase::Up { .. } => now.since(active.used) >= idle,
            Phase::Failed(until) => until <= now,
            Phase::Connecting => false,
        });
        let unused: Vec<_> = unused.map(|(&key, _)| key).collect();
        for key in unused {
            let Some(active) = self.active.remove(&key) else {
                continue;
            };
            if matches!(active.phase, Phase::Up { .. }) {
                self.counters.connections_reaped += 1;
            }
            self.hang(active);
        }
        self.tick_passive(now);
    }

    /// Established connections that packets are sent on.
    pub(in crate::link) fn connections_up(&self) -> usize {
        let up = |active: &&Active| matches!(active.phase, Phase::Up { .. });
        self.active.values().filter(up).count()
    }

    fn hang(&mut self, active: Active) {
        self.counters.too_big += self.drop_all(active.queue);
        if let Phase::Up { connection, .. } = active.phase {
            self.actions.push(Action::Hang(connection));
        }
    }
}
