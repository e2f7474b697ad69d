//! The table of functions in front of a context. It grows at its front, so an entry is used only if the table is long
//! enough, and offsets count from its end.

use std::mem::{MaybeUninit, offset_of};
use std::ptr::null;

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_abi::VerbsContext;

use crate::sys::{Context, check};

/// An entry of a context's table, if the library and the driver have it.
macro_rules! entry {
    ($context:expr, $field:ident) => {{
        let offset = std::mem::offset_of!(verbs_abi::VerbsContext, $field);
        // SAFETY: that field is at that offset.
        unsafe { $context.entry(offset, |table| table.$field) }
    }};
}

pub(in crate::sys) use entry;

impl Context {
    /// The entry at that offset of the table.
    ///
    /// # Safety
    /// The field that `_typed` reads is at that offset, and is a function or null.
    pub(in crate::sys) unsafe fn entry<F>(
        &self,
        offset: usize,
        _typed: fn(&VerbsContext) -> Option<F>,
    ) -> Option<F> {
        const END: usize = offset_of!(VerbsContext, context);
        const SZ: usize = END - offset_of!(VerbsContext, sz);
        let raw = self.raw.as_ptr();
        // SAFETY: the context is open.
        if unsafe { (*raw).abi_compat }.addr() != usize::MAX {
            return None;
        }
        // SAFETY: all ones say that the context is the end of a `verbs_context`, whose size is before it.
        let sz = unsafe { raw.byte_sub(SZ).cast::<usize>().read() };
        if sz < size_of::<VerbsContext>() - offset {
            return None;
        }
        // SAFETY: the table is long enough, and the caller guarantees what is there.
        unsafe { raw.byte_sub(END - offset).cast::<Option<F>>().read() }
    }

    /// The attributes that later versions have added; `None` if the driver reports none.
    pub(crate) fn query_more(&self) -> Option<abi::DeviceAttrEx> {
        let query = entry!(self, query_device_ex)?;
        let mut attr = MaybeUninit::<abi::DeviceAttrEx>::zeroed();
        let (raw, size) = (self.raw.as_ptr(), size_of::<abi::DeviceAttrEx>());
        // SAFETY: the context is open; the attributes, whose size is passed, are written during the call.
        let asked: Result<(), Errno> =
            check(unsafe { query(raw, null(), attr.as_mut_ptr(), size) });
        asked.ok()?;
        // SAFETY: all fields are numbers, for which zero is valid.
        Some(unsafe { attr.assume_init() })
    }
}
