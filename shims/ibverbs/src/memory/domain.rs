//! Protection domains, parent domains and thread domains.

use std::ffi::c_int;
use std::ops::Deref;

use verbs_abi::{self as abi, ParentDomainInitAttr};
use verbs_core::Refused;

use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, code, pointer};
use crate::device::Context;

/// A protection domain, or a parent domain: one with a thread domain, or allocators, beside it.
#[repr(C)]
pub(crate) struct Pd {
    shown: abi::Pd,
    pub(crate) context: Held<Context>,
    of: Of,
    users: Users,
}

enum Of {
    Itself(verbs_core::Pd),
    Parent { pd: Held<Pd>, _td: Option<Held<Td>> },
}

/// A thread domain: the program promises that one thread at a time uses what is made with it. Queues have a lock
/// nevertheless: it costs its only user two stores.
#[repr(C)]
pub(crate) struct Td {
    shown: abi::Td,
    _context: Held<Context>,
    users: Users,
}

// SAFETY: programs change nothing in the C structure.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}
// SAFETY: as above.
unsafe impl Send for Td {}
// SAFETY: as above.
unsafe impl Sync for Td {}

// SAFETY: the C part is at the front.
unsafe impl Object for Pd {
    const KIND: Kind = Kind::Pd;

    fn users(&self) -> &Users {
        &self.users
    }
}

// SAFETY: the C part is at the front.
unsafe impl Object for Td {
    const KIND: Kind = Kind::Td;

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Deref for Pd {
    type Target = verbs_core::Pd;

    fn deref(&self) -> &verbs_core::Pd {
        match &self.of {
            Of::Itself(pd) => pd,
            Of::Parent { pd, .. } => pd,
        }
    }
}

/// `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    pointer(|| {
        // SAFETY: the program does not close it now.
        let owner = unsafe { look::<Context, _>(context) }?;
        let pd = owner.device.alloc_pd().wait()?;
        let shown = abi::Pd { context, handle: 0 };
        let pd = Pd {
            shown,
            context: Held::new(owner),
            of: Of::Itself(pd),
            users: Users::default(),
        };
        Ok(publish(room(), pd))
    })
}

/// `ibv_dealloc_pd`.
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut abi::Pd) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now.
        unsafe {
            end::<Pd, _>(pd, |pd| match pd.of {
                Of::Parent { .. } => Ending::Over,
                Of::Itself(inner) => match inner.dealloc().wait() {
                    Err(Refused {
                        error,
                        handle: Some(inner),
                        ..
                    }) => Ending::Refused(
                        Pd {
                            of: Of::Itself(inner),
                            ..pd
                        },
                        error.into(),
                    ),
                    _ => Ending::Over,
                },
            })
        }
    })
}

/// `alloc_parent_domain`. The program's own allocators are for queues of hardware: they are not called.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut abi::Context,
    attr: *const ParentDomainInitAttr,
) -> *mut abi::Pd {
    /// Allocators, and their argument.
    const KNOWN: u32 = 0b11;
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (owner, attr) = unsafe {
            let owner = look::<Context, _>(context)?;
            (owner, attr.as_ref().ok_or(Errno::INVAL)?)
        };
        if attr.comp_mask & !KNOWN != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: as above.
        let pd = Held::new(unsafe { look::<Pd, _>(attr.pd) }?);
        let td = match attr.td.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(Held::new(unsafe { look::<Td, _>(attr.td) }?)),
        };
        let shown = abi::Pd { context, handle: 0 };
        let parent = Pd {
            shown,
            context: Held::new(owner),
            of: Of::Parent { pd, _td: td },
            users: Users::default(),
        };
        Ok(publish(room(), parent))
    })
}

/// `alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut abi::Context,
    comp_mask: *const u32,
) -> *mut abi::Td {
    pointer(|| {
        // SAFETY: the program passes valid arguments.
        let (owner, mask) = unsafe { (look::<Context, _>(context)?, comp_mask.as_ref()) };
        if mask.is_none_or(|mask| *mask != 0) {
            return Err(Errno::INVAL);
        }
        let td = Td {
            shown: abi::Td { context },
            _context: Held::new(owner),
            users: Users::default(),
        };
        Ok(publish(room(), td))
    })
}

/// `dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut abi::Td) -> c_int {
    // SAFETY: the program does not use it now.
    code(|| unsafe { end::<Td, _>(td, |_| Ending::Over) })
}
