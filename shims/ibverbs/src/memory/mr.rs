//! Memory regions: the program's own memory.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use parking_lot::Mutex;
use rustix::mm::{MsyncFlags, msync};
use verbs_core::{Access, Memory};

use super::Pd;
use crate::abi;
use crate::call::{Errno, code, number, pointer, set_errno};
use crate::live::{Held, Kind, Object, Users, end, look, publish, room};

const PAGE: usize = 4096;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    shown: UnsafeCell<abi::Mr>,
    inner: Mutex<Inner>,
    users: Users,
}

struct Inner {
    /// `None` after a registration anew that has lost it.
    mr: Option<verbs_core::Mr>,
    pd: Held<Pd>,
}

// SAFETY: programs read the C structure; it changes under the lock, in a call that the program makes.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

// SAFETY: the C part is at the front.
unsafe impl Object for Mr {
    const KIND: Kind = Kind::Mr;

    fn users(&self) -> &Users {
        &self.users
    }
}

/// The rights that a registration has. Nothing is pinned, so that every region may fault on its pages.
fn rights(access: c_uint) -> Access {
    Access::from_bits_retain(access).difference(Access::ON_DEMAND)
}

/// The program's memory.
///
/// # Safety
/// It is the program's to have read and written by whom it gives the keys to, until it deregisters it.
unsafe fn memory(addr: *mut c_void, length: usize) -> Result<Memory, Errno> {
    if addr.addr().checked_add(length).is_none() {
        return Err(Errno::INVAL);
    }
    let Some(start) = NonNull::new(addr.cast::<u8>()) else {
        return match length {
            0 => Ok(Memory::alloc(0)?),
            // A region over all memory, which only devices with page tables of their own have.
            usize::MAX => Err(Errno::NOTSUP),
            _ => Err(Errno(libc::EFAULT)),
        };
    };
    if length > 0 {
        let page = addr.wrapping_byte_sub(addr.addr() % PAGE);
        let whole = length + addr.addr() % PAGE;
        // SAFETY: it only asks whether all pages are mapped.
        let mapped = unsafe { msync(page, whole, MsyncFlags::ASYNC) };
        mapped.map_err(|_| Errno(libc::EFAULT))?;
    }
    // SAFETY: the caller's.
    Ok(unsafe { Memory::foreign(start, length, Box::new(())) })
}

/// Registers memory that may be the program's or ours.
pub(super) fn register(
    shown_pd: *mut abi::Pd,
    pd: &Pd,
    memory: Memory,
    (addr, iova): (*mut c_void, u64),
    access: Access,
) -> Result<*mut abi::Mr, Errno> {
    let length = memory.len();
    let mut request = pd.register(memory, access);
    if !access.contains(Access::ZERO_BASED) {
        request = request.iova(iova);
    }
    let mr = request.wait()?;
    let shown = abi::Mr {
        context: pd.context.shown(),
        pd: shown_pd,
        addr,
        length,
        handle: 0,
        lkey: mr.lkey().value(),
        // One number for both, whatever the rights: those of the region decide.
        rkey: mr.lkey().value(),
    };
    let mr = Mr {
        shown: UnsafeCell::new(shown),
        inner: Mutex::new(Inner {
            mr: Some(mr),
            pd: Held::new(pd),
        }),
        users: Users::default(),
    };
    Ok(publish(room(), mr))
}

/// `ibv_reg_mr`.
pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the caller's.
    unsafe { reg_mr_iova2(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova`.
pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the caller's.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova2`, whose flags may have optional ones among them.
pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::Mr {
    pointer(|| {
        // SAFETY: the program does not destroy it now.
        let owner = unsafe { look::<Pd, _>(pd) }?;
        let access = rights(access);
        access.check()?;
        // SAFETY: that is what it registers it for.
        let memory = unsafe { memory(addr, length) }?;
        register(pd, owner, memory, (addr, iova), access)
    })
}

/// `ibv_reg_dmabuf_mr`: there is no device whose memory that could be.
pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    _pd: *mut abi::Pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut abi::Mr {
    set_errno(Errno::NOTSUP);
    null_mut()
}

/// `ibv_dereg_mr`: `EBUSY` while windows are bound to it.
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut abi::Mr) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now.
        unsafe {
            end::<Mr, _>(mr, |mr| {
                let taken = mr.inner.lock().mr.take();
                let Some(inner) = taken else { return Ok(()) };
                inner.dereg().wait().map_err(|refused| {
                    mr.inner.lock().mr = refused.handle;
                    (mr, refused.error.into())
                })
            })
        }
    })
}

/// `ibv_rereg_mr`: 0, or one of `ibv_rereg_mr_err_code`. After a refusal of the device the region is as it was.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut abi::Mr,
    flags: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;
    /// `IBV_REREG_MR_ERR_INPUT`: nothing was done.
    const ERR_INPUT: c_int = -1;
    /// `IBV_REREG_MR_ERR_CMD`: the device has refused.
    const ERR_CMD: c_int = -4;
    let failed = |code, errno| {
        set_errno(errno);
        Ok(code)
    };
    number(|| {
        if flags == 0 || flags & !(TRANSLATION | PD | ACCESS) != 0 {
            return failed(ERR_INPUT, Errno::INVAL);
        }
        // SAFETY: the program destroys none of them now.
        let looked = unsafe {
            let new_pd = (flags & PD != 0).then(|| look::<Pd, _>(pd)).transpose();
            look::<Mr, _>(mr).and_then(|mr| Ok((mr, new_pd?)))
        };
        let (mr, new_pd) = match looked {
            Ok(looked) => looked,
            Err(errno) => return failed(ERR_INPUT, errno),
        };
        let new_memory = match flags & TRANSLATION != 0 {
            false => None,
            // SAFETY: that is what it registers it for.
            true => match unsafe { memory(addr, length) } {
                Ok(memory) if length > 0 => Some(memory),
                Ok(_) => return failed(ERR_INPUT, Errno::INVAL),
                Err(errno) => return failed(ERR_INPUT, errno),
            },
        };
        let new_access = (flags & ACCESS != 0).then(|| rights(access.cast_unsigned()));
        let mut inner = mr.inner.lock();
        let Some(old) = inner.mr.take() else {
            return failed(ERR_INPUT, Errno::INVAL);
        };
        let mut request = old.rereg().keep_keys();
        let moves = new_memory.is_some();
        if let Some(memory) = new_memory {
            request = request.memory(memory);
        }
        if let Some(access) = new_access {
            request = request.access(access);
        }
        if let Some(pd) = new_pd {
            request = request.pd(pd);
        }
        match request.wait() {
            Ok(new) => {
                // SAFETY: under the lock; the program waits for this call.
                let shown = unsafe { &mut *mr.shown.get() };
                (shown.lkey, shown.rkey) = (new.lkey().value(), new.lkey().value());
                if moves {
                    (shown.addr, shown.length) = (addr, length);
                }
                if let Some(new_pd) = new_pd {
                    shown.pd = pd;
                    inner.pd = Held::new(new_pd);
                }
                inner.mr = Some(new);
                Ok(0)
            }
            Err(refused) => {
                inner.mr = refused.handle;
                failed(ERR_CMD, refused.error.into())
            }
        }
    })
}

/// `advise_mr`: the pages of a software HCA's regions are there when it touches them. Only what the advice is about
/// is checked.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut abi::Pd,
    advice: c_uint,
    flags: u32,
    list: *const abi::Sge,
    count: u32,
) -> c_int {
    /// `IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT`, the last.
    const ADVICE_MAX: c_uint = 2;
    /// `IBV_ADVISE_MR_FLAG_FLUSH`.
    const FLUSH: u32 = 1;
    code(|| {
        // SAFETY: the program does not destroy it now.
        unsafe { look::<Pd, _>(pd) }?;
        if advice > ADVICE_MAX {
            return Err(Errno::NOTSUP);
        }
        if flags & !FLUSH != 0 || count == 0 || list.is_null() {
            return Err(Errno::INVAL);
        }
        Ok(())
    })
}
