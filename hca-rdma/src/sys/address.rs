//! Address handles.

use std::ptr::NonNull;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;

use super::{Pd, destroyed, errno};

/// An address handle. Destroyed when it is dropped.
pub(crate) struct Ah {
    pd: Arc<Pd>,
    pub(super) raw: NonNull<abi::Ah>,
}

// SAFETY: libibverbs locks inside, and a handle is destroyed by its last owner.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    pub(crate) fn create(pd: &Arc<Pd>, mut attr: abi::AhAttr) -> Result<Self, Errno> {
        // SAFETY: the domain lives, the address is read during the call.
        let raw = unsafe { (pd.context.library.verbs.create_ah)(pd.raw.as_ptr(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let pd = Arc::clone(pd);
        Ok(Self { pd, raw })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner.
        let _ = destroyed("address handle", unsafe {
            (self.pd.context.library.verbs.destroy_ah)(self.raw.as_ptr())
        });
    }
}
