//! The ways to find a connection: by either side's id, by the peer's queue pair, by its deadline.

use std::collections::{BTreeMap, BTreeSet};

use verbs_core::addr::{Gid, Guid, Lid, Qpn};
use verbs_core::mad::Address;
use verbs_core::time::Instant;

use crate::event::ListenId;
use crate::machine::{Connection, State};
use crate::table::listen::Listeners;
use crate::wire::CommId;

/// Where a message comes from: the GID, or the LID where there is none.
pub(super) type Source = (Option<Gid>, Lid);

/// Where messages with that address come from.
pub(super) fn source_of(from: &Address) -> Source {
    match from.av.global {
        Some(global) => (Some(global.dgid), Lid(0)),
        None => (None, from.av.dlid),
    }
}

/// The age of a half-open connection; see [`Connection::half_open`].
type Age = (bool, u64);

/// What the indexes hold for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Keys {
    local: Option<CommId>,
    remote: Option<(Guid, CommId)>,
    qpn: Option<(Guid, Qpn)>,
    deadline: Option<Instant>,
    /// For connections in timewait: whether there ever was a connection, and the deadline again.
    linger: Option<(bool, Instant)>,
    backlog: Option<ListenId>,
    half_open: Option<Age>,
    half_open_of: Option<(Source, Age)>,
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
            half_open: conn.half_open(),
            half_open_of: conn.half_open().map(|age| (source_of(conn.peer()), age)),
        }
    }
}

/// See the module's documentation. Values are slots of the table.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By slot; of slots without a connection, none.
    keys: Vec<Keys>,
    local: BTreeMap<CommId, usize>,
    remote: BTreeMap<(Guid, CommId), usize>,
    qpn: BTreeMap<(Guid, Qpn), usize>,
    deadlines: BTreeSet<(Instant, usize)>,
    lingering: BTreeSet<((bool, Instant), usize)>,
    half_open: BTreeSet<(Age, usize)>,
    half_open_of: BTreeSet<((Source, Age), usize)>,
    /// How many of each source are half-open.
    sources: BTreeMap<Source, usize>,
}

impl Index {
    /// Brings the indexes to where the connection is; returns whether the connection is gone.
    pub(super) fn settle(
        &mut self,
        slot: usize,
        conn: &Connection,
        listeners: &mut Listeners,
    ) -> bool {
        if self.keys.len() <= slot {
            self.keys.resize(slot + 1, Keys::default());
        }
        let (old, new) = (self.keys[slot], Keys::of(conn));
        let is_gone = conn.state() == State::Idle;
        if old == new {
            return is_gone;
        }
        self.keys[slot] = new;
        swap_map(&mut self.local, slot, old.local, new.local);
        swap_map(&mut self.remote, slot, old.remote, new.remote);
        swap_map(&mut self.qpn, slot, old.qpn, new.qpn);
        swap_set(&mut self.deadlines, slot, old.deadline, new.deadline);
        swap_set(&mut self.lingering, slot, old.linger, new.linger);
        swap_set(&mut self.half_open, slot, old.half_open, new.half_open);
        let (before, after) = (old.half_open_of, new.half_open_of);
        swap_set(&mut self.half_open_of, slot, before, after);
        self.count_sources(before.map(|of| of.0), after.map(|of| of.0));
        if old.backlog != new.backlog {
            listeners.move_backlog(old.backlog, new.backlog);
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
    pub(super) fn due(&self, now: Instant) -> Option<usize> {
        let first = self.deadlines.first().filter(|first| first.0 <= now);
        first.map(|&(_, slot)| slot)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
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

    /// Half-open connections, of all sources and of one.
    pub(super) fn half_open(&self, source: Source) -> [usize; 2] {
        let of_source = self.sources.get(&source).copied();
        [self.half_open.len(), of_source.unwrap_or(0)]
    }

    /// The oldest half-open connection that does not wait for the user.
    pub(super) fn oldest_half_open(&self) -> Option<usize> {
        let &((awaits_user, _), slot) = self.half_open.first()?;
        (!awaits_user).then_some(slot)
    }

    /// The same among those of a source.
    pub(super) fn oldest_half_open_of(&self, source: Source) -> Option<usize> {
        let all = (source, (false, 0))..(source, (true, 0));
        let mut found = self.half_open_of.range((all.start, 0)..(all.end, 0));
        found.next().map(|&(_, slot)| slot)
    }

    fn count_sources(&mut self, before: Option<Source>, after: Option<Source>) {
        if before == after {
            return;
        }
        if let Some(count) = before.and_then(|source| self.sources.get_mut(&source)) {
            *count -= 1;
        }
        if let Some(source) = before.filter(|source| self.sources.get(source) == Some(&0)) {
            self.sources.remove(&source);
        }
        if let Some(source) = after {
            *self.sources.entry(source).or_default() += 1;
        }
    }

    /// Whether nothing is held at all.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.iter().all(|keys| *keys == Keys::default())
            && self.local.is_empty()
            && self.remote.is_empty()
            && self.qpn.is_empty()
            && self.deadlines.is_empty()
            && self.lingering.is_empty()
            && self.half_open.is_empty()
            && self.half_open_of.is_empty()
            && self.sources.is_empty()
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
