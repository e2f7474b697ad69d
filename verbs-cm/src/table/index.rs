//! The ways to find a connection: by either side's id, by the peer's queue pair, by its deadline.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::addr::{Guid, Qpn};
use verbs_core::mad::Time;

use crate::event::ListenId;
use crate::machine::{Connection, State};
use crate::table::listen::Listeners;
use crate::wire::CommId;

/// What the indexes hold for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Keys {
    local: Option<CommId>,
    remote: Option<(Guid, CommId)>,
    qpn: Option<(Guid, Qpn)>,
    deadline: Option<Time>,
    /// For connections in timewait: whether there ever was a connection, and the deadline again.
    linger: Option<(bool, Time)>,
    backlog: Option<ListenId>,
}

impl Keys {
    /// What they should hold.
    fn of(conn: &Connection) -> Self {
        if conn.state() == State::Idle {
            return Self::default();
        }
        let is_lingering = conn.state() == State::Timewait;
        Self {
            local: Some(conn.local_id()),
            remote: conn.remote_key(),
            qpn: conn.qpn_key(),
            deadline: conn.deadline(),
            linger: conn
                .deadline()
                .filter(|_| is_lingering)
                .map(|deadline| (conn.was_told(), deadline)),
            backlog: conn.backlog_of(),
        }
    }
}

/// See the module's documentation. Values are slots of the table.
#[derive(Debug, Default)]
pub(super) struct Index {
    keys: BTreeMap<usize, Keys>,
    local: BTreeMap<CommId, usize>,
    remote: BTreeMap<(Guid, CommId), usize>,
    qpn: BTreeMap<(Guid, Qpn), usize>,
    deadlines: BTreeSet<(Time, usize)>,
    lingering: BTreeSet<((bool, Time), usize)>,
}

impl Index {
    /// Brings the indexes to where the connection is; returns whether the connection is gone.
    pub(super) fn settle(
        &mut self,
        slot: usize,
        conn: &Connection,
        listeners: &mut Listeners,
    ) -> bool {
        let old = self.keys.get(&slot).copied().unwrap_or_default();
        let new = Keys::of(conn);
        swap_map(&mut self.local, slot, old.local, new.local);
        swap_map(&mut self.remote, slot, old.remote, new.remote);
        swap_map(&mut self.qpn, slot, old.qpn, new.qpn);
        swap_set(&mut self.deadlines, slot, old.deadline, new.deadline);
        swap_set(&mut self.lingering, slot, old.linger, new.linger);
        if old.backlog != new.backlog {
            listeners.move_backlog(old.backlog, new.backlog);
        }
        let is_gone = conn.state() == State::Idle;
        if is_gone {
            self.keys.remove(&slot);
        } else {
            self.keys.insert(slot, new);
        }
        is_gone
    }

    pub(super) fn local(&self, id: CommId) -> Option<usize> {
        self.local.get(&id).copied()
    }

    pub(super) fn remote(&self, guid: Guid, id: CommId) -> Option<usize> {
        self.remote.get(&(guid, id)).copied()
    }

    pub(super) fn qpn(&self, guid: Guid, qpn: Qpn) -> Option<usize> {
        self.qpn.get(&(guid, qpn)).copied()
    }

    /// A connection whose deadline has passed.
    pub(super) fn due(&self, now: Time) -> Option<usize> {
        let first = self.deadlines.first().filter(|first| first.0 <= now);
        first.map(|&(_, slot)| slot)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Connections in timewait.
    pub(super) fn lingering(&self) -> usize {
        self.lingering.len()
    }

    /// Those, the one that is missed least first: rejected ones are kept for repeated messages only.
    pub(super) fn lingering_in_order(&self) -> impl Iterator<Item = usize> {
        self.lingering.iter().map(|&(_, slot)| slot)
    }

    /// Whether nothing is held at all.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
            && self.local.is_empty()
            && self.remote.is_empty()
            && self.qpn.is_empty()
            && self.deadlines.is_empty()
            && self.lingering.is_empty()
    }
}

fn swap_map<K: Ord + Copy>(
    map: &mut BTreeMap<K, usize>,
    slot: usize,
    old: Option<K>,
    new: Option<K>,
) {
    if old == new {
        return;
    }
    // Two connections never have a key at once: the table refuses whatever would bring that about.
    if let Some(old) = old {
        let owner = map.remove(&old);
        debug_assert_eq!(owner, Some(slot), "a key of another connection");
    }
    if let Some(new) = new {
        let owner = map.insert(new, slot);
        debug_assert_eq!(owner, None, "a key that another connection has");
    }
}

fn swap_set<K: Ord + Copy>(
    set: &mut BTreeSet<(K, usize)>,
    slot: usize,
    old: Option<K>,
    new: Option<K>,
) {
    if old == new {
        return;
    }
    if let Some(old) = old {
        set.remove(&(old, slot));
    }
    if let Some(new) = new {
        set.insert((new, slot));
    }
}
