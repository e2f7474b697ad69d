//! Memory regions: the program's own memory.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use parking_lot::Mutex;
use verbs_abi as abi;
use verbs_core::{Access, Memory, Refused};

use super::{Pd, maps};
use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, code, number, pointer, set_errno};

/// Rights for which the kernel wants memory that the process may write.
const WRITABLE: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    shown: UnsafeCell<abi::Mr>,
    inner: Mutex<Inner>,
    users: Users,
}

struct Inner {
    /// `None` after a reregistration that has lost it.
    mr: Option<verbs_core::Mr>,
    access: Access,
    /// It is the program's memory, and none of this library.
    is_programs: bool,
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

/// The rights of a registration. Nothing is pinned, so every region may fault on its pages.
fn rights(access: c_uint) -> Access {
    Access::from_bits_retain(access).difference(Access::ON_DEMAND)
}

/// The program's memory, if the process may access it in that way.
///
/// # Safety
/// The program permits every holder of the keys to read and write it, until it deregisters it.
unsafe fn memory(addr: *mut c_void, length: usize, access: Access) -> Result<Memory, Errno> {
    if addr.addr().checked_add(length).is_none() {
        return Err(Errno::INVAL);
    }
    let Some(start) = NonNull::new(addr.cast::<u8>()) else {
        return match length {
            0 => Ok(Memory::alloc(0)?),
            // A region over all memory, which only devices with page tables of their own support.
            usize::MAX => Err(Errno::NOTSUP),
            _ => Err(Errno(libc::EFAULT)),
        };
    };
    check(addr, length, access)?;
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { Memory::foreign(start, length, Box::new(())) })
}

/// Whether the process may access its memory in that way; `addr + length` is an address.
fn check(addr: *mut c_void, length: usize, access: Access) -> Result<(), Errno> {
    let all = addr.addr()..addr.addr() + length;
    maps::check(all, access.intersects(WRITABLE))
}

/// Registers memory of the program or of this library.
pub(super) fn register(
    shown_pd: *mut abi::Pd,
    pd: &Pd,
    memory: Memory,
    (addr, iova): (*mut c_void, u64),
    access: Access,
) -> Result<*mut abi::Mr, Errno> {
    let (length, is_programs) = (memory.len(), memory.addr() == addr.addr() as u64);
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
            access,
            is_programs,
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
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova2`, whose flags may include optional ones.
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
        // SAFETY: the program registers it for that purpose.
        let memory = unsafe { memory(addr, length, access) }?;
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
                match taken.map(|inner| inner.dereg().wait()) {
                    Some(Err(Refused {
                        error,
                        handle: handle @ Some(_),
                        ..
                    })) => {
                        mr.inner.lock().mr = handle;
                        Ending::Refused(mr, error.into())
                    }
                    _ => Ending::Over,
                }
            })
        }
    })
}

/// The flags and the error codes of `ibv_rereg_mr`.
mod rereg {
    use std::ffi::c_int;

    pub(super) const TRANSLATION: c_int = 1;
    pub(super) const PD: c_int = 1 << 1;
    pub(super) const ACCESS: c_int = 1 << 2;
    /// `IBV_REREG_MR_ERR_INPUT`: nothing was done.
    pub(super) const ERR_INPUT: c_int = -1;
    /// `IBV_REREG_MR_ERR_CMD`: the device has refused.
    pub(super) const ERR_CMD: c_int = -4;
}

/// `ibv_rereg_mr`: 0, or one of `ibv_rereg_mr_err_code`. After a refusal the region is as it was.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut abi::Mr,
    flags: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    number(|| {
        let known = rereg::TRANSLATION | rereg::PD | rereg::ACCESS;
        let has = |bit| flags & bit != 0;
        // SAFETY: the program destroys none of them now, and registers the memory for every holder of the keys.
        let asked = unsafe {
            look::<Mr, _>(mr).and_then(|mr| {
                let new_pd = has(rereg::PD).then(|| look::<Pd, _>(pd)).transpose()?;
                let new_access = has(rereg::ACCESS).then(|| rights(access.cast_unsigned()));
                let (old_access, is_programs) = mr.kind();
                let access = new_access.unwrap_or(old_access);
                let new_memory = match has(rereg::TRANSLATION) {
                    true => Some(memory(addr, length, access)?),
                    false if is_programs => {
                        let (addr, length) = ((*mr.shown.get()).addr, (*mr.shown.get()).length);
                        check(addr, length, access)?;
                        None
                    }
                    false => None,
                };
                Ok((mr, new_pd, new_memory, new_access))
            })
        };
        let (mr, new_pd, new_memory, new_access) = match asked {
            Ok(asked) if flags != 0 && flags & !known == 0 => asked,
            asked => {
                set_errno(asked.err().unwrap_or(Errno::INVAL));
                return Ok(rereg::ERR_INPUT);
            }
        };
        if let Err(errno) = mr.register_again(new_pd.zip(Some(pd)), new_memory, new_access) {
            set_errno(errno);
            return Ok(rereg::ERR_CMD);
        }
        if has(rereg::TRANSLATION) {
            // SAFETY: the program waits for this call before it reads it.
            unsafe { (*mr.shown.get()).addr = addr };
        }
        Ok(0)
    })
}

impl Mr {
    /// Its rights, and whether it is the program's memory.
    fn kind(&self) -> (Access, bool) {
        let inner = self.inner.lock();
        (inner.access, inner.is_programs)
    }

    /// Changes the named attributes, and keeps the keys.
    fn register_again(
        &self,
        pd: Option<(&Pd, *mut abi::Pd)>,
        memory: Option<Memory>,
        access: Option<Access>,
    ) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        let old = inner.mr.take().ok_or(Errno::INVAL)?;
        let mut request = old.rereg().keep_keys();
        let length = memory.as_ref().map(Memory::len);
        if let Some(memory) = memory {
            request = request.memory(memory);
        }
        if let Some(access) = access {
            request = request.access(access);
        }
        if let Some((pd, _)) = pd {
            request = request.pd(pd);
        }
        match request.wait() {
            Ok(new) => {
                // SAFETY: under the lock; the program waits for this call.
                let shown = unsafe { &mut *self.shown.get() };
                (shown.lkey, shown.rkey) = (new.lkey().value(), new.lkey().value());
                shown.length = length.unwrap_or(shown.length);
                if let Some((pd, at)) = pd {
                    shown.pd = at;
                    inner.pd = Held::new(pd);
                }
                inner.access = access.unwrap_or(inner.access);
                inner.is_programs |= length.is_some();
                inner.mr = Some(new);
                Ok(())
            }
            Err(refused) => {
                inner.mr = refused.handle;
                Err(refused.error.into())
            }
        }
    }
}

/// `advise_mr`: a software HCA needs no advice, because its pages are present when it accesses them. Only the arguments
/// are checked.
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
