//! Which queue pairs of a port are attached to which multicast groups.

use std::fmt;
use std::net::IpAddr;

use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Attr, Error, Gid};

use crate::port::Driver;
use crate::qp::QueuePair;
use crate::queue::base::limits::{MCAST_GROUPS, MCAST_QPS};

/// The attachments of one port. The lock is taken for a look or a change and nothing else.
#[derive(Default)]
pub(crate) struct Groups(Mutex<State>);

#[derive(Default)]
struct State {
    /// By group, as often as a queue pair is attached.
    attached: Vec<(Gid, Arc<QueuePair>)>,
    /// By group, each queue pair once: made anew with every change, so that no packet makes it.
    members: Vec<(Gid, Members)>,
}

/// Who is attached to a group, each once.
pub(crate) type Members = Arc<[Arc<QueuePair>]>;

impl State {
    fn of(&self, group: Gid) -> impl Iterator<Item = &Arc<QueuePair>> {
        self.attached
            .iter()
            .filter(move |(own, _)| *own == group)
            .map(|(_, qp)| qp)
    }

    /// The attachments of a group have changed.
    fn renew(&mut self, group: Gid) {
        let mut members: Vec<Arc<QueuePair>> = Vec::new();
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

impl Groups {
    /// Attaches a queue pair; the port joins the group with the first one.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limits, [`Error::Unsupported`] if the link has no multicast,
    /// [`Error::DeviceFailed`] if it could not join.
    pub(crate) fn attach(
        &self,
        driver: &Driver,
        group: Gid,
        qp: &Arc<QueuePair>,
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
        // Each attachment joins, and the link counts: so none that goes takes it from another.
        driver.join(IpAddr::from(group)).map_err(|error| {
            self.remove(group, qp);
            match error.kind() {
                std::io::ErrorKind::Unsupported => Error::Unsupported(Attr::Mgid),
                _ => Error::DeviceFailed,
            }
        })
    }

    /// Undoes one [`Groups::attach`].
    pub(crate) fn detach(&self, driver: &Driver, group: Gid, qp: &Arc<QueuePair>) {
        if self.remove(group, qp) {
            driver.leave(IpAddr::from(group));
        }
    }

    /// Attachments that there are.
    #[cfg(not(verbs_loom))]
    pub(crate) fn attachments(&self) -> usize {
        self.0.lock().attached.len()
    }

    fn remove(&self, group: Gid, qp: &Arc<QueuePair>) -> bool {
        let mut state = self.0.lock();
        let own = |(at, member): &(Gid, Arc<QueuePair>)| *at == group && Arc::ptr_eq(member, qp);
        let found = state.attached.iter().position(own);
        if let Some(found) = found {
            state.attached.swap_remove(found);
            state.renew(group);
        }
        found.is_some()
    }

    /// Who is attached to that group, each once; `None` if nobody is.
    pub(crate) fn members(&self, group: Gid) -> Option<Members> {
        let state = self.0.lock();
        let of_group = state.members.iter().find(|&&(own, _)| own == group);
        of_group.map(|(_, members)| Arc::clone(members))
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attached = self.0.lock().attached.len();
        f.debug_struct("Groups")
            .field("attached", &attached)
            .finish()
    }
}
