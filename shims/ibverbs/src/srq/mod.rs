//! Shared receive queues.

pub(crate) mod recv;
pub(crate) mod xrcd;

use std::ffi::c_int;

use verbs_abi::{self as abi, RecvWr, SrqAttr, SrqInitAttr, SrqInitAttrEx};
use verbs_core::{Shared, Target};

use crate::call::live::{Ending, Held, Kind, Object, Users, end, look, publish, room};
use crate::call::{Errno, code, pointer};
use crate::cq::Cq;
use crate::device::Context;
use crate::inbox::event::Watched;
use crate::memory::Pd;
use crate::srq::recv::receives;
use crate::srq::xrcd::Xrcd;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    shown: abi::Srq,
    queue: Shared<verbs_core::Srq>,
    number: u32,
    is_xrc: bool,
    _context: Held<Context>,
    /// Asynchronous events.
    watched: Watched,
    _pd: Held<Pd>,
    _xrc: Option<(Held<Xrcd>, Held<Cq>)>,
    users: Users,
}

// SAFETY: programs change nothing in the C structure.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

// SAFETY: the C part is at the front.
unsafe impl Object for Srq {
    const KIND: Kind = Kind::Srq;

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Srq {
    /// The queue itself, to be named when a queue pair is made.
    pub(crate) fn queue(&self) -> &Shared<verbs_core::Srq> {
        &self.queue
    }
}

/// # Safety
/// No named object is destroyed during the call.
unsafe fn create(
    pd: *mut abi::Pd,
    xrc: Option<(*mut abi::Xrcd, *mut abi::Cq)>,
    srq_context: *mut std::ffi::c_void,
    attr: &mut SrqAttr,
) -> Result<*mut abi::Srq, Errno> {
    // SAFETY: guaranteed by the caller.
    let owner = unsafe { look::<Pd, _>(pd) }?;
    let (queue, xrc) = match xrc {
        None => (owner.create_srq(attr.max_wr, attr.max_sge).wait()?, None),
        Some((xrcd, cq)) => {
            // SAFETY: guaranteed by the caller.
            let (xrcd, cq) = unsafe { (look::<Xrcd, _>(xrcd)?, look::<Cq, _>(cq)?) };
            let made = owner.create_xrc_srq(xrcd.domain(), cq.queue(), attr.max_wr, attr.max_sge);
            (made.wait()?, Some((Held::new(xrcd), Held::new(cq))))
        }
    };
    let has = queue.query().wait()?;
    if attr.srq_limit > 0 {
        queue.arm_limit(attr.srq_limit).wait()?;
    }
    (attr.max_wr, attr.max_sge) = (has.max_wr, has.max_sge);
    let number = queue.srqn().value();
    let id = queue.target().base().id();
    let place = room::<Srq>();
    let srq = Srq {
        shown: abi::Srq::new(pd, owner.context.shown(), srq_context),
        queue: Shared::new(queue),
        number,
        is_xrc: xrc.is_some(),
        _context: owner.context.clone(),
        watched: owner
            .context
            .events
            .watch(id, place.as_ptr().expose_provenance()),
        _pd: Held::new(owner),
        _xrc: xrc,
        users: Users::default(),
    };
    Ok(publish(place, srq))
}

/// `ibv_create_srq`. The actual sizes of the queue are written back.
pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut abi::Pd,
    attr: *mut SrqInitAttr,
) -> *mut abi::Srq {
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        unsafe {
            let attr = attr.as_mut().ok_or(Errno::INVAL)?;
            create(pd, None, attr.srq_context, &mut attr.attr)
        }
    })
}

/// `create_srq_ex`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut abi::Context,
    attr: *mut SrqInitAttrEx,
) -> *mut abi::Srq {
    const TYPE: u32 = 1;
    const PD: u32 = 1 << 1;
    const XRCD: u32 = 1 << 2;
    const CQ: u32 = 1 << 3;
    /// `IBV_SRQT_BASIC` and `IBV_SRQT_XRC`.
    const BASIC: u32 = 0;
    const XRC: u32 = 1;
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let attr = unsafe {
            look::<Context, _>(context)?;
            attr.as_mut().ok_or(Errno::INVAL)?
        };
        let srq_type = match attr.comp_mask & TYPE {
            0 => BASIC,
            _ => attr.srq_type,
        };
        if attr.comp_mask & PD == 0 {
            return Err(Errno::INVAL);
        }
        let xrc = match (srq_type, attr.comp_mask & !(TYPE | PD)) {
            (BASIC, 0) => None,
            (XRC, mask) if mask == XRCD | CQ => Some((attr.xrcd, attr.cq)),
            (BASIC | XRC, _) => return Err(Errno::INVAL),
            // Tag matching.
            _ => return Err(Errno::NOTSUP),
        };
        // SAFETY: as above.
        unsafe { create(attr.pd, xrc, attr.srq_context, &mut attr.attr) }
    })
}

/// `ibv_modify_srq`.
pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut abi::Srq,
    attr: *const SrqAttr,
    named: c_int,
) -> c_int {
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 1 << 1;
    code(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (srq, attr) = unsafe { (look::<Srq, _>(srq)?, attr.as_ref().ok_or(Errno::INVAL)?) };
        if named & !(MAX_WR | LIMIT) != 0 {
            return Err(Errno::INVAL);
        }
        if named & MAX_WR != 0 {
            srq.queue.resize(attr.max_wr).wait()?;
        }
        if named & LIMIT != 0 {
            srq.queue.arm_limit(attr.srq_limit).wait()?;
        }
        Ok(())
    })
}

/// `ibv_query_srq`.
pub(crate) unsafe extern "C" fn query_srq(srq: *mut abi::Srq, attr: *mut SrqAttr) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now.
        let found = unsafe { look::<Srq, _>(srq) }?.queue.query().wait()?;
        // SAFETY: the program passes the place for the answer.
        unsafe {
            attr.write(SrqAttr {
                max_wr: found.max_wr,
                max_sge: found.max_sge,
                srq_limit: found.srq_limit,
            });
        }
        Ok(())
    })
}

/// `get_srq_num`: for a queue for extended reliable connections.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut abi::Srq, number: *mut u32) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now.
        let srq = unsafe { look::<Srq, _>(srq) }?;
        if !srq.is_xrc {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program passes the place for the result.
        unsafe { number.write(srq.number) };
        Ok(())
    })
}

/// `ibv_destroy_srq`: `EBUSY` while queue pairs use it. Waits until the program has acknowledged its events.
pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut abi::Srq) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now, except to acknowledge events.
        unsafe {
            let ending = look::<Srq, _>(srq)?;
            if ending.users.any() {
                return Err(Errno::BUSY);
            }
            ending.watched.end();
            end::<Srq, _>(srq, |srq| {
                // Without users it is refused only by a device that has been removed, which has no queues.
                let _ = srq.queue.into_inner().destroy().wait();
                Ending::Over
            })
        }
    })
}

/// `post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    first: *const RecvWr,
    bad: *mut *const RecvWr,
) -> c_int {
    // SAFETY: a queue that the program does not destroy now, and its list.
    unsafe {
        let srq = &*srq.cast::<Srq>();
        receives(
            first,
            bad,
            |one| Ok(srq.queue.post_recv(one)?),
            |some| srq.queue.post_batch(some),
        )
    }
}
