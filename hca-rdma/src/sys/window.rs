//! Memory windows.

use std::ptr::NonNull;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;

use super::{Pd, destroyed, errno};

/// A memory window. Deallocated when it is dropped.
pub(crate) struct Mw {
    pd: Arc<Pd>,
    pub(super) raw: NonNull<abi::Mw>,
}

// SAFETY: a window is deallocated by its last owner; its key, which posting a bind changes, is accessed only by the
// holder of the lock of `crate::keys`.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

impl Mw {
    /// A window of type 1 or 2. Returns its key as well.
    pub(crate) fn alloc(pd: &Arc<Pd>, mw_type: u32) -> Result<(Self, u32), Errno> {
        // SAFETY: the context is open, its table does not change.
        let ops = unsafe { &(*pd.context.raw.as_ptr()).ops };
        // A driver that has the one and not the other has no windows.
        let (alloc, _) = ops.alloc_mw.zip(ops.dealloc_mw).ok_or(Errno::OPNOTSUPP)?;
        // SAFETY: the domain exists.
        let raw = NonNull::new(unsafe { alloc(pd.raw.as_ptr(), mw_type) }).ok_or_else(errno)?;
        // The driver fills in only the key; `ibv_alloc_mw`, which is in the header, the others.
        // SAFETY: the window was just made, and no other code knows it.
        let key = unsafe {
            let mw = raw.as_ptr();
            (*mw).context = pd.context.raw.as_ptr();
            (*mw).pd = pd.raw.as_ptr();
            (*mw).mw_type = mw_type;
            (*mw).rkey
        };
        let pd = Arc::clone(pd);
        Ok((Self { pd, raw }, key))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: the context is open, its table does not change.
        let dealloc = unsafe { (*self.pd.context.raw.as_ptr()).ops.dealloc_mw };
        if let Some(dealloc) = dealloc {
            // SAFETY: the window has no other owner.
            let _ = destroyed("memory window", unsafe { dealloc(self.raw.as_ptr()) });
        }
    }
}
