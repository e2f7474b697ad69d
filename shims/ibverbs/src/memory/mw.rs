//! Memory windows.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};

use verbs_abi as abi;
use verbs_core::{RKey, WindowType};

use super::Pd;
use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, code, pointer};

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    shown: UnsafeCell<abi::Mw>,
    inner: verbs_core::Mw,
    _pd: Held<Pd>,
    users: Users,
}

// SAFETY: the key in the C structure changes in the calls that bind it, which a program makes one at a time.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

// SAFETY: the C part is at the front.
unsafe impl Object for Mw {
    const KIND: Kind = Kind::Mw;

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Mw {
    /// Its current key.
    pub(crate) fn rkey(&self) -> RKey {
        // SAFETY: see `Sync`.
        RKey::new(unsafe { (*self.shown.get()).rkey })
    }

    /// A bind to that key was posted.
    pub(crate) fn bound(&self, rkey: RKey) {
        // SAFETY: see `Sync`.
        unsafe { (*self.shown.get()).rkey = rkey.value() }
    }
}

/// `alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut abi::Pd, mw_type: c_uint) -> *mut abi::Mw {
    pointer(|| {
        // SAFETY: the program does not destroy it now.
        let owner = unsafe { look::<Pd, _>(pd) }?;
        let window_type = match mw_type {
            1 => WindowType::One,
            2 => WindowType::TwoB,
            _ => return Err(Errno::INVAL),
        };
        let inner = owner.alloc_mw(window_type).wait()?;
        let shown = abi::Mw {
            context: owner.context.shown(),
            pd,
            rkey: inner.rkey().value(),
            handle: 0,
            mw_type,
        };
        let mw = Mw {
            shown: UnsafeCell::new(shown),
            inner,
            _pd: Held::new(owner),
            users: Users::default(),
        };
        Ok(publish(room(), mw))
    })
}

/// `dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut abi::Mw) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now.
        unsafe {
            end::<Mw, _>(mw, |Mw { inner, .. }| {
                // It is never in use, and a device that has been removed has no windows.
                let _ = inner.dealloc().wait();
                Ending::Over
            })
        }
    })
}
