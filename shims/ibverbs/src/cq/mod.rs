//! Completion queues and channels.

mod channel;
mod ex;
mod poll;

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::time::Duration;

use verbs_core::{ObjectKind, Shared, Wc};

use self::channel::Channel;
pub(crate) use self::channel::{
    ack_cq_events, create_comp_channel, destroy_comp_channel, get_cq_event,
};
use self::ex::Turn;
use self::poll::SetAside;
pub(crate) use self::poll::{poll_cq, req_notify_cq};
use crate::abi::{self, CqEx, CqExOps, CqInitAttrEx, ModifyCqAttr};
use crate::call::{Errno, code, pointer};
use crate::device::Context;
use crate::live::{Held, Kind, Object, Unacknowledged, Users, end, look, publish, room};
use crate::memory::Pd;

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    shown: UnsafeCell<CqEx>,
    queue: Shared<verbs_core::Cq>,
    /// Completions that were taken out while those of a queue pair were looked for.
    set_aside: SetAside,
    /// What an extended poll looks at.
    current: UnsafeCell<Wc>,
    turn: Turn,
    packet_type: Option<u8>,
    context: Held<Context>,
    channel: Option<Held<Channel>>,
    /// Events of the channel, and asynchronous ones.
    comp_events: Unacknowledged,
    pub(crate) async_events: Unacknowledged,
    _parent_domain: Option<Held<Pd>>,
    users: Users,
}

// SAFETY: what is not behind a lock of its own changes in an extended poll, which holds `turn`, and in calls that a
// program makes one by one.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

// SAFETY: the C part is at the front.
unsafe impl Object for Cq {
    const KIND: Kind = Kind::Cq;

    fn users(&self) -> &Users {
        &self.users
    }
}

/// How a queue is made.
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

impl Cq {
    /// The queue itself, to name it when a queue pair is made.
    pub(crate) fn queue(&self) -> &Shared<verbs_core::Cq> {
        &self.queue
    }
}

/// # Safety
/// Nothing that is named is destroyed meanwhile.
unsafe fn create(context: *mut abi::Context, init: Init) -> Result<*mut abi::Cq, Errno> {
    // SAFETY: the caller's.
    let owner = unsafe { look::<Context, _>(context) }?;
    let channel = match init.channel.is_null() {
        true => None,
        // SAFETY: the caller's.
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
    if let Some(channel) = &channel {
        let inbox = channel.inbox();
        request = request.handler(move || inbox.push(at));
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
        async_events: Unacknowledged::default(),
        _parent_domain: init.parent_domain,
        users: Users::default(),
    };
    let cq = publish(place, cq);
    owner.watch(ObjectKind::Cq, id.number, at);
    Ok(cq)
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
        // SAFETY: what the program gives.
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
        // SAFETY: the program does not use it now, but to acknowledge events.
        unsafe {
            let ending = look::<Cq, _>(cq)?;
            if ending.users.any() {
                return Err(Errno::BUSY);
            }
            let at = cq.expose_provenance();
            ending.forget_events(at);
            end::<Cq, _>(cq, |cq| {
                // Without users it is refused only by a device that is gone, which has no queues.
                let _ = cq.queue.into_inner().destroy().wait();
                if let Some(channel) = &cq.channel {
                    // A failing device may have fired it just now.
                    channel.inbox().purge(|&other| other == at);
                    channel.count(-1);
                }
                Ok(())
            })
        }
    })
}

impl Cq {
    /// No event of it is heard of any more.
    fn forget_events(&self, at: usize) {
        if let Some(channel) = &self.channel {
            channel.inbox().purge(|&other| other == at);
        }
        self.comp_events.wait();
        let number = self.queue.id().number;
        self.context
            .unwatch(ObjectKind::Cq, number, at, &self.async_events);
    }
}

/// `ibv_resize_cq`.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut abi::Cq, cqe: c_int) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now.
        let owner = unsafe { look::<Cq, _>(cq) }?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
        let depth = owner.queue.resize(cqe).wait()?;
        // SAFETY: the program waits for this call before it looks.
        unsafe { (*owner.shown.get()).cq.cqe = c_int::try_from(depth).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// `modify_cq`: moderation.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut abi::Cq, attr: *const ModifyCqAttr) -> c_int {
    /// `IBV_CQ_ATTR_MODERATE`.
    const MODERATE: u32 = 1;
    code(|| {
        // SAFETY: what the program gives, not destroyed now.
        let (cq, attr) = unsafe { (look::<Cq, _>(cq)?, attr.as_ref().ok_or(Errno::INVAL)?) };
        if attr.attr_mask != MODERATE {
            return Err(Errno::INVAL);
        }
        let period = Duration::from_micros(u64::from(attr.cq_period));
        Ok(cq.queue.moderate(attr.cq_count, period).wait()?)
    })
}
