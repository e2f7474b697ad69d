//! Queue pairs in multicast groups.

use std::ffi::c_int;

use verbs_abi as abi;
use verbs_core::{Gid, Lid};

use super::pair::{Attachment, Qp};
use crate::call::live::{Lent, lend};
use crate::call::{Errno, code};

/// The queue pair and the group that a call names. Ids call for groups of theirs, in other calls than those in which a program
/// names their queue pairs.
///
/// # Safety
/// The program passes a valid group.
unsafe fn named(qp: *mut abi::Qp, gid: *const [u64; 2]) -> Result<(Lent<Qp>, Gid), Errno> {
    // SAFETY: guaranteed by the caller.
    let gid = unsafe { gid.as_ref() }.ok_or(Errno::INVAL)?;
    Ok((lend(qp)?, abi::gid_of(*gid)))
}

/// `ibv_attach_mcast`. Attaching to the same group twice is one attachment, as in the kernel.
pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut abi::Qp,
    gid: *const [u64; 2],
    lid: u16,
) -> c_int {
    code(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (qp, mgid) = unsafe { named(qp, gid) }?;
        qp.attach(mgid, lid)
    })
}

impl Qp {
    /// Attaches it to a group, unless it is.
    pub(crate) fn attach(&self, mgid: Gid, mlid: u16) -> Result<(), Errno> {
        let mut attachments = self.attachments.lock();
        let is_it = |one: &Attachment| (one.mgid, one.mlid) == (mgid, mlid);
        if attachments.iter().any(is_it) {
            return Ok(());
        }
        let mcast = self.control.attach_mcast(mgid, Lid(mlid)).wait()?;
        attachments.push(Attachment { mgid, mlid, mcast });
        Ok(())
    }
}

/// `ibv_detach_mcast`.
pub(crate) unsafe extern "C" fn detach_mcast(
    qp: *mut abi::Qp,
    gid: *const [u64; 2],
    lid: u16,
) -> c_int {
    code(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (qp, mgid) = unsafe { named(qp, gid) }?;
        let mut attachments = qp.attachments.lock();
        let place = attachments
            .iter()
            .position(|one| (one.mgid, one.mlid) == (mgid, lid))
            .ok_or(Errno::INVAL)?;
        let Attachment { mcast, .. } = attachments.swap_remove(place);
        // It cannot be in use, and a device that has been removed has no groups.
        let _ = mcast.detach().wait();
        Ok(())
    })
}
