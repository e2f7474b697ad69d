//! Multicast groups that ids are in.

use parking_lot::Mutex;
use verbs_core::Gid;

use crate::call::Errno;
use crate::call::live::Lent;
use crate::qp::{Qp, detach_mcast};

/// Groups that an id is in.
#[derive(Default)]
pub(in crate::rdmacm) struct Groups(Mutex<Vec<Group>>);

struct Group {
    mgid: Gid,
    /// The queue pair was attached, and is detached when the id leaves.
    is_attached: bool,
    /// It sends to the group and receives nothing from it.
    sends_only: bool,
}

impl Groups {
    /// Adds a group; refused if the id is in it.
    pub(in crate::rdmacm) fn add(&self, mgid: Gid, sends_only: bool) -> Result<(), Errno> {
        let mut groups = self.0.lock();
        if groups.iter().any(|known| known.mgid == mgid) {
            return Err(Errno(libc::EADDRINUSE));
        }
        groups.push(Group {
            mgid,
            is_attached: false,
            sends_only,
        });
        Ok(())
    }

    /// Attaches the id's queue pair to a group that it is in, if it receives from the group.
    pub(in crate::rdmacm) fn attach(&self, mgid: Gid, qp: Option<&Lent<Qp>>) -> Result<(), Errno> {
        let mut groups = self.0.lock();
        let group = groups.iter_mut().find(|group| group.mgid == mgid);
        if let (Some(group), Some(qp)) = (group.filter(|group| !group.sends_only), qp) {
            qp.attach(mgid, 0)?;
            group.is_attached = true;
        }
        Ok(())
    }

    /// Leaves a group.
    pub(in crate::rdmacm) fn leave(&self, mgid: Gid, qp: *mut verbs_abi::Qp) -> Result<(), Errno> {
        let mut groups = self.0.lock();
        let place = groups.iter().position(|known| known.mgid == mgid);
        let left = groups.swap_remove(place.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        drop(groups);
        left.leave(qp);
        Ok(())
    }

    /// Leaves all groups; `qp` is the id's queue pair, or NULL.
    pub(in crate::rdmacm) fn leave_all(&self, qp: *mut verbs_abi::Qp) {
        for group in std::mem::take(&mut *self.0.lock()) {
            group.leave(qp);
        }
    }
}

impl Group {
    fn leave(&self, qp: *mut verbs_abi::Qp) {
        if self.is_attached && !qp.is_null() {
            // SAFETY: the id's own; the program may have detached it itself.
            unsafe { detach_mcast(qp, &verbs_abi::gid_words(self.mgid), 0) };
        }
    }
}
