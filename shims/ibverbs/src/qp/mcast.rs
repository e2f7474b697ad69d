//! Queue pairs in multicast groups.

use std::ffi::c_int;

use verbs_abi as abi;
use verbs_core::{Gid, Lid};

use super::pair::{Attachment, Qp};
use crate::call::{Errno, code};
use crate::live::look;

/// The queue pair and the group that a call names.
///
/// # Safety
/// The program passes valid arguments, and destroys none of them now.
unsafe fn named<'a>(qp: *mut abi::Qp, gid: *const [u64; 2]) -> Result<(&'a Qp, Gid), Errno> {
    // SAFETY: guaranteed by the caller.
    let (qp, gid) = unsafe { (look::<Qp, _>(qp)?, gid.as_ref().ok_or(Errno::INVAL)?) };
    Ok((qp, abi::gid_of(*gid)))
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
        let mut attachments = qp.attachments.lock();
        if attachments
            .iter()
            .any(|one| (one.mgid, one.mlid) == (mgid, lid))
        {
            return Ok(());
        }
        let mcast = qp.control.attach_mcast(mgid, Lid(lid)).wait()?;
        attachments.push(Attachment {
            mgid,
            mlid: lid,
            mcast,
        });
        Ok(())
    })
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
