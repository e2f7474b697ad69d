//! Creating, changing and destroying completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use verbs_abi::{self as abi, CqEx, CqExOps, CqInitAttrEx, ModifyCqAttr};
use verbs_core::{Shared, Wc};

use super::channel::Channel;
use super::ex;
use super::queue::{Cq, SetAside, Turn};
use crate::call::live::{Ending, Held, Unacknowledged, Users, close, look, publish, room};
use crate::call::{Errno, code, pointer};
use crate::device::Context;
use crate::memory::Pd;

/// The parameters of a new queue.
struct Init {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: u32,
    ops: CqExOps,
    turn: Turn,
    stamps: bool,
    parent_domain: Option<Held<Pd>>,
}

/// # Safety
/// No named object is destroyed during the call.
unsafe fn create(context: *mut abi::Context, init: Init) -> Result<*mut abi::Cq, Errno> {
    // SAFETY: guaranteed by the caller.
    let owner = unsafe { look::<Context, _>(context) }?;
    let channel = match init.channel.is_null() {
        true => None,
        // SAFETY: guaranteed by the caller.
        false => Some(Held::new(unsafe { look::<Channel, _>(init.channel) }?)),
    };
    if init.comp_vector != 0 || init.cqe == 0 {
        return Err(Errno::INVAL);
    }
    let place = room::<Cq>();
    let at = place.as_ptr().expose_provenance();
    let mut request = owner.device.create_cq(init.cqe);
    if init.stamps {
        request = request.timestamps();
    }
    let delivers = Arc::new(AtomicBool::new(true));
    if let Some(channel) = &channel {
        let (inbox, delivers) = (channel.inbox(), Arc::clone(&delivers));
        request = request.handler(move || inbox.push_if(at, || delivers.load(Ordering::Relaxed)));
    }
    let queue = request.wait()?;
    let depth = queue.depth();
    let queue = Shared::new(queue);
    let mut shown = abi::Cq::new(context, init.channel);
    shown.cq_context = init.cq_context;
    shown.cqe = c_int::try_from(depth).unwrap_or(c_int::MAX);
    if let Some(channel) = &channel {
        channel.count(1);
    }
    let id = queue.id();
    let cq = Cq {
        shown: UnsafeCell::new(CqEx {
            cq: shown,
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            ops: init.ops,
        }),
        queue,
        set_aside: SetAside::default(),
        current: UnsafeCell::new(Wc::default()),
        turn: init.turn,
        packet_type: owner.packet_type,
        context: Held::new(owner),
        channel,
        comp_events: Unacknowledged::default(),
        delivers,
        watched: owner.events.watch(id, at),
        _parent_domain: init.parent_domain,
        users: Users::default(),
    };
    Ok(publish(place, cq))
}

/// `ibv_create_cq`.
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: c_int,
) -> *mut abi::Cq {
    pointer(|| {
        let init = Init {
            cqe: u32::try_from(cqe).map_err(|_| Errno::INVAL)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(|_| Errno::INVAL)?,
            ops: CqExOps::default(),
            turn: Turn::locked(),
            stamps: false,
            parent_domain: None,
        };
        // SAFETY: the program destroys none of them now.
        unsafe { create(context, init) }
    })
}

/// `create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut abi::Context,
    attr: *const CqInitAttrEx,
) -> *mut CqEx {
    /// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `_PD`.
    const FLAGS: u32 = 1;
    const PD: u32 = 1 << 1;
    /// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` and `_IGNORE_OVERRUN`.
    const SINGLE_THREADED: u32 = 1;
    const IGNORE_OVERRUN: u32 = 1 << 1;
    pointer(|| {
        // SAFETY: the program passes valid arguments.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if attr.comp_mask & !(FLAGS | PD) != 0 {
            return Err(Errno::INVAL);
        }
        let flags = if attr.comp_mask & FLAGS != 0 {
            attr.flags
        } else {
            0
        };
        if flags & !SINGLE_THREADED != 0 {
            return Err(match flags & !(SINGLE_THREADED | IGNORE_OVERRUN) {
                0 => Errno::NOTSUP,
                _ => Errno::INVAL,
            });
        }
        let parent_domain = match attr.comp_mask & PD != 0 {
            false => None,
            // SAFETY: the program does not destroy it now.
            true => Some(Held::new(unsafe { look::<Pd, _>(attr.parent_domain) }?)),
        };
        let init = Init {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            ops: ex::ops(attr.wc_flags)?,
            turn: match flags & SINGLE_THREADED {
                0 => Turn::locked(),
                _ => Turn::Single,
            },
            stamps: ex::wants_stamps(attr.wc_flags),
            parent_domain,
        };
        // SAFETY: the program destroys none of them now.
        unsafe { create(context, init) }.map(<*mut abi::Cq>::cast)
    })
}

/// `ibv_destroy_cq`: `EBUSY` while queue pairs use it. Waits until the program has acknowledged its events.
pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut abi::Cq) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now, except to acknowledge events.
        unsafe {
            let ending = close::<Cq, _>(cq)?;
            if ending.users.any() {
                return Err(Errno::BUSY);
            }
            let at = cq.expose_provenance();
            ending.forget_events(at);
            ending.end(|cq| {
                // Without users it is refused only by a device that has been removed, which has no queues.
                let _ = cq.queue.into_inner().destroy().wait();
                if let Some(channel) = &cq.channel {
                    channel.count(-1);
                }
                Ending::Over
            })
        }
    })
}

impl Cq {
    /// None of its events is delivered any longer, not even of a completion that another thread is telling of now.
    fn forget_events(&self, at: usize) {
        self.delivers.store(false, Ordering::Relaxed);
        if let Some(channel) = &self.channel {
            channel.inbox().purge(|&other| other == at);
        }
        self.comp_events.wait();
        self.watched.end();
    }
}

/// `ibv_resize_cq`.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut abi::Cq, cqe: c_int) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now.
        let owner = unsafe { look::<Cq, _>(cq) }?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
        let depth = owner.queue.resize(cqe).wait()?;
        // SAFETY: the program waits for this call before it reads it.
        unsafe { (*owner.shown.get()).cq.cqe = c_int::try_from(depth).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// `modify_cq`: moderation.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut abi::Cq, attr: *const ModifyCqAttr) -> c_int {
    /// `IBV_CQ_ATTR_MODERATE`.
    const MODERATE: u32 = 1;
    code(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (cq, attr) = unsafe { (look::<Cq, _>(cq)?, attr.as_ref().ok_or(Errno::INVAL)?) };
        if attr.attr_mask != MODERATE {
            return Err(Errno::INVAL);
        }
        let period = Duration::from_micros(u64::from(attr.cq_period));
        Ok(cq.queue.moderate(attr.cq_count, period).wait()?)
    })
}
