//! Device memory: memory of this process that programs access only through calls and keys.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use verbs_abi::{self as abi, AllocDmAttr};
use verbs_core::{Access, Memory};

use super::{Pd, mr};
use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, code, pointer};
use crate::device::{Context, DM_MAX};

/// A piece of device memory. Regions over it keep it: it is deallocated when there are none left.
#[repr(C)]
pub(crate) struct Dm {
    shown: abi::Dm,
    memory: Arc<Memory>,
    _context: Held<Context>,
    users: Users,
}

// SAFETY: programs change nothing in the C structure.
unsafe impl Send for Dm {}
// SAFETY: as above.
unsafe impl Sync for Dm {}

// SAFETY: the C part is at the front.
unsafe impl Object for Dm {
    const KIND: Kind = Kind::Dm;

    fn users(&self) -> &Users {
        &self.users
    }
}

/// `alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut abi::Context,
    attr: *const AllocDmAttr,
) -> *mut abi::Dm {
    /// The largest alignment of an allocation, as a power of two: a page.
    const ALIGN_LOG_MAX: u32 = 12;
    pointer(|| {
        // SAFETY: the program passes valid arguments.
        let (owner, attr) = unsafe {
            let owner = look::<Context, _>(context)?;
            (owner, attr.as_ref().ok_or(Errno::INVAL)?)
        };
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > ALIGN_LOG_MAX {
            return Err(Errno::INVAL);
        }
        if attr.length as u64 > DM_MAX {
            return Err(Errno::NOMEM);
        }
        let shown = abi::Dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: 0,
        };
        let dm = Dm {
            shown,
            memory: Arc::new(Memory::alloc(attr.length)?),
            _context: Held::new(owner),
            users: Users::default(),
        };
        Ok(publish(room(), dm))
    })
}

/// `free_dm`.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut abi::Dm) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now.
        unsafe {
            end::<Dm, _>(dm, |dm| match Arc::strong_count(&dm.memory) {
                1 => Ending::Over,
                _ => Ending::Refused(dm, Errno::BUSY),
            })
        }
    })
}

/// The start of a copy. Offset and length are multiples of 4, as on devices that have such memory.
fn place(offset: u64, length: usize) -> Result<usize, Errno> {
    match usize::try_from(offset) {
        Ok(offset) if offset.is_multiple_of(4) && length.is_multiple_of(4) => Ok(offset),
        _ => Err(Errno(libc::EFAULT)),
    }
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut abi::Dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program does not free it now, and has that many bytes.
        let (dm, bytes) = unsafe {
            let bytes = std::slice::from_raw_parts(from.cast::<u8>(), length);
            (look::<Dm, _>(dm)?, bytes)
        };
        let offset = place(offset, length)?;
        dm.memory
            .write(offset, bytes)
            .map_err(|_| Errno(libc::EFAULT))
    })
}

unsafe extern "C" fn memcpy_from_dm(
    into: *mut c_void,
    dm: *mut abi::Dm,
    offset: u64,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: as above, for writing.
        let (dm, bytes) = unsafe {
            let bytes = std::slice::from_raw_parts_mut(into.cast::<u8>(), length);
            (look::<Dm, _>(dm)?, bytes)
        };
        let offset = place(offset, length)?;
        dm.memory
            .read(offset, bytes)
            .map_err(|_| Errno(libc::EFAULT))
    })
}

/// `reg_dm_mr`: a region over a part of it, whose addresses count from 0.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut abi::Pd,
    dm: *mut abi::Dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut abi::Mr {
    pointer(|| {
        // SAFETY: the program destroys neither now.
        let (owner, dm) = unsafe { (look::<Pd, _>(pd)?, look::<Dm, _>(dm)?) };
        let access = Access::from_bits_retain(access);
        if !access.contains(Access::ZERO_BASED) {
            return Err(Errno::INVAL);
        }
        access.check()?;
        let start = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let fits = start
            .checked_add(length)
            .is_some_and(|end| end <= dm.memory.len());
        if !fits {
            return Err(Errno::INVAL);
        }
        let at = std::ptr::with_exposed_provenance_mut::<u8>(dm.memory.addr() as usize + start);
        let at = NonNull::new(at).ok_or(Errno::INVAL)?;
        let keep = Box::new(Arc::clone(&dm.memory));
        // SAFETY: a part of that memory, which is kept; it is accessed by copies only.
        let part = unsafe { Memory::foreign(at, length, keep) };
        mr::register(pd, owner, part, (null_mut(), 0), access)
    })
}
