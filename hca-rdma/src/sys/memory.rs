//! Protection domains and memory regions.

use std::ptr::NonNull;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;
use verbs_core::{Access, Memory};

use super::{Context, destroyed, errno};

/// A protection domain. Deallocated when it is dropped.
pub(crate) struct Pd {
    pub(super) context: Arc<Context>,
    pub(super) raw: NonNull<abi::Pd>,
}

// SAFETY: libibverbs locks inside, and a domain is deallocated by its last owner.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn alloc(context: &Arc<Context>) -> Result<Self, Errno> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.verbs.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let context = Arc::clone(context);
        Ok(Self { context, raw })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: the domain has no other owner: objects that were made in it hold it.
        let _ = destroyed("protection domain", unsafe {
            (self.context.library.verbs.dealloc_pd)(self.raw.as_ptr())
        });
    }
}

/// A memory region. Deregistered when it is dropped; it holds the memory until then.
pub(crate) struct Mr {
    pd: Arc<Pd>,
    pub(super) raw: NonNull<abi::Mr>,
    /// `None` when it has been leaked.
    memory: Option<Arc<Memory>>,
}

// SAFETY: as for a domain.
unsafe impl Send for Mr {}
// SAFETY: as for a domain.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers memory, which is pinned. Its first byte has the address `iova`.
    pub(crate) fn register(
        pd: &Arc<Pd>,
        memory: &Arc<Memory>,
        iova: u64,
        access: Access,
    ) -> Result<Self, Errno> {
        let verbs = &pd.context.library.verbs;
        let (at, len) = (memory.addr(), memory.len());
        let at = std::ptr::with_exposed_provenance_mut(at as usize);
        let raw = match verbs.reg_mr_iova2 {
            // SAFETY: the domain lives. The memory exists as long as the region, which holds it, and every user of a
            // `Memory` reads and writes it as something that a device may write at any time.
            Some(register) => unsafe { register(pd.raw.as_ptr(), at, len, iova, access.bits()) },
            None if iova == memory.addr() => {
                let access = access.bits().cast_signed();
                // SAFETY: as above.
                unsafe { (verbs.reg_mr)(pd.raw.as_ptr(), at, len, access) }
            }
            None => return Err(Errno::OPNOTSUPP),
        };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let (pd, memory) = (Arc::clone(pd), Some(Arc::clone(memory)));
        Ok(Self { pd, raw, memory })
    }

    /// The local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is registered; nothing changes its keys.
        let mr = unsafe { self.raw.as_ref() };
        (mr.lkey, mr.rkey)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the region has no other owner.
        let code = unsafe { (self.pd.context.library.verbs.dereg_mr)(self.raw.as_ptr()) };
        if destroyed("memory region", code).is_err() {
            // The device may still write to it.
            std::mem::forget(self.memory.take());
        }
    }
}
