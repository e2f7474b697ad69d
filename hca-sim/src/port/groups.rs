//! Which queue pairs of a port are attached to which multicast groups.

use std::fmt;
use std::io;
use std::net::IpAddr;

use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Attr, Error, Gid};

use crate::queue::base::limits::{MCAST_GROUPS, MCAST_QPS};

/// The attachments of one port. The lock is taken for a look or a change and nothing else.
pub(crate) struct Groups<Q>(Mutex<State<Q>>);

struct State<Q> {
    /// By group, as often as a queue pair is attached.
    attached: Vec<(Gid, Arc<Q>)>,
    /// By group, each queue pair once: rebuilt with every change, so that no packet has to build it.
    members: Vec<(Gid, Members<Q>)>,
}

/// The queue pairs that are attached to a group, each once.
pub(crate) type Members<Q> = Arc<[Arc<Q>]>;

impl<Q> Default for Groups<Q> {
    fn default() -> Self {
        Self(Mutex::new(State {
            attached: Vec::new(),
            members: Vec::new(),
        }))
    }
}

impl<Q> State<Q> {
    fn of(&self, group: Gid) -> impl Iterator<Item = &Arc<Q>> {
        self.attached
            .iter()
            .filter(move |(own, _)| *own == group)
            .map(|(_, qp)| qp)
    }

    /// The attachments of a group have changed.
    fn renew(&mut self, group: Gid) {
        let mut members: Vec<Arc<Q>> = Vec::new();
        for qp in self.of(group) {
            if !members.iter().any(|known| Arc::ptr_eq(known, qp)) {
                members.push(Arc::clone(qp));
            }
        }
        self.members.retain(|&(own, _)| own != group);
        if !members.is_empty() {
            self.members.push((group, members.into()));
        }
    }
}

impl<Q> Groups<Q> {
    /// Attaches a queue pair; the link's `join` is called for each, and counts.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limits, [`Error::Unsupported`] if the link has no multicast,
    /// [`Error::DeviceFailed`] if it could not join.
    pub(crate) fn attach(
        &self,
        group: Gid,
        qp: &Arc<Q>,
        join: impl FnOnce(IpAddr) -> io::Result<()>,
    ) -> Result<(), Error> {
        let mut state = self.0.lock();
        let members = state.of(group).count();
        let (attr, max, full) = if members == 0 {
            (
                Attr::MaxMcastGrp,
                MCAST_GROUPS,
                state.members.len() >= MCAST_GROUPS as usize,
            )
        } else {
            (Attr::MaxMcast, MCAST_QPS, members >= MCAST_QPS as usize)
        };
        if full {
            return Err(Error::Exhausted { attr, max });
        }
        state.attached.push((group, Arc::clone(qp)));
        state.renew(group);
        drop(state);
        // Each attachment joins, and the link counts: so none that ends takes the membership from another.
        join(IpAddr::from(group)).map_err(|error| {
            self.detach(group, qp);
            match error.kind() {
                io::ErrorKind::Unsupported => Error::Unsupported(Attr::Mgid),
                _ => Error::DeviceFailed,
            }
        })
    }

    /// Undoes one [`Groups::attach`]. Returns whether there was one; the link leaves the group once for each.
    pub(crate) fn detach(&self, group: Gid, qp: &Arc<Q>) -> bool {
        let mut state = self.0.lock();
        let own = |(at, member): &(Gid, Arc<Q>)| *at == group && Arc::ptr_eq(member, qp);
        let found = state.attached.iter().position(own);
        if let Some(found) = found {
            state.attached.swap_remove(found);
            state.renew(group);
        }
        found.is_some()
    }

    /// How many attachments there are.
    #[cfg(not(verbs_loom))]
    pub(crate) fn attachments(&self) -> usize {
        self.0.lock().attached.len()
    }

    /// The queue pairs that are attached to that group, each once; `None` if there are none.
    pub(crate) fn members(&self, group: Gid) -> Option<Members<Q>> {
        let state = self.0.lock();
        let of_group = state.members.iter().find(|&&(own, _)| own == group);
        of_group.map(|(_, members)| Arc::clone(members))
    }
}

impl<Q> fmt::Debug for Groups<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attached = self.0.lock().attached.len();
        f.debug_struct("Groups")
            .field("attached", &attached)
            .finish()
    }
}
