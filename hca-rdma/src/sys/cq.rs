//! Completion queues, and the channel that their events come by.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;
use verbs_core::{Arm, Wc};

use super::context::unblock;
use super::{Context, check, destroyed, errno};
use crate::convert::completion;

/// Completions that are taken at a time.
const AT_A_TIME: usize = 16;

/// Where C writes completions. It leaves out fields that mean nothing, so that what was there before is seen.
pub(crate) struct Entries([abi::Wc; AT_A_TIME]);

impl Default for Entries {
    fn default() -> Self {
        // SAFETY: all of it are numbers, which zero is one of.
        Self(unsafe { zeroed() })
    }
}

type PollCq = unsafe extern "C" fn(*mut abi::Cq, c_int, *mut abi::Wc) -> c_int;
type ReqNotify = unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int;
type ModifyCq = unsafe extern "C" fn(*mut abi::Cq, *const abi::ModifyCqAttr) -> c_int;

/// A channel for the events of completion queues. Destroyed when it is dropped.
pub(crate) struct Channel {
    context: Arc<Context>,
    raw: NonNull<abi::CompChannel>,
}

// SAFETY: libibverbs locks inside, and a channel is destroyed by its last owner.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Self, Errno> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.verbs.create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let context = Arc::clone(context);
        let channel = Self { context, raw };
        unblock(channel.fd())?;
        Ok(channel)
    }

    /// Becomes readable when there is an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel is there, and the field does not change.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// The number of a completion queue that has an event, if there is one. The event is acknowledged, so that the
    /// queue's destroy need not wait for what is done with it.
    pub(crate) fn next(&self) -> Option<u64> {
        let verbs = &self.context.library.verbs;
        let (mut cq, mut number) = (null_mut(), null_mut());
        // SAFETY: the channel is there, both pointers are written during the call, which does not wait: the descriptor is
        // non-blocking.
        let code = unsafe { (verbs.get_cq_event)(self.raw.as_ptr(), &mut cq, &mut number) };
        if code != 0 {
            return None;
        }
        // SAFETY: a queue whose event has been taken and not acknowledged is not destroyed.
        unsafe { (verbs.ack_cq_events)(cq, 1) };
        Some(number.addr() as u64)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: nobody has the channel any more: its queues hold it.
        let _ = destroyed("completion channel", unsafe {
            (self.context.library.verbs.destroy_comp_channel)(self.raw.as_ptr())
        });
    }
}

/// A completion queue. Destroyed when it is dropped.
pub(crate) struct Cq {
    channel: Arc<Channel>,
    pub(super) raw: NonNull<abi::Cq>,
    poll: PollCq,
    req_notify: ReqNotify,
}

// SAFETY: libibverbs locks inside, and a queue is destroyed by its last owner.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue with room for that many completions at least. `number` comes back with its events.
    pub(crate) fn create(
        channel: &Arc<Channel>,
        cqe: u32,
        vector: u32,
        number: u64,
    ) -> Result<Self, Errno> {
        let context = &channel.context;
        let int = |value: u32| c_int::try_from(value).map_err(|_| Errno::INVAL);
        let (cqe, vector) = (int(cqe)?, int(vector)?);
        let number: *mut c_void = std::ptr::without_provenance_mut(number as usize);
        let create = context.library.verbs.create_cq;
        // SAFETY: context and channel are there; the number is handed back and not looked at.
        let raw = unsafe {
            create(
                context.raw.as_ptr(),
                cqe,
                number,
                channel.raw.as_ptr(),
                vector,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        // SAFETY: the context is open, its table does not change.
        let ops = unsafe { &(*context.raw.as_ptr()).ops };
        let ops = ops.poll_cq.zip(ops.req_notify_cq);
        let Some((poll, req_notify)) = ops else {
            // SAFETY: it was just made, and nobody else knows it.
            unsafe { (context.library.verbs.destroy_cq)(raw.as_ptr()) };
            return Err(Errno::OPNOTSUPP);
        };
        Ok(Self {
            channel: Arc::clone(channel),
            raw,
            poll,
            req_notify,
        })
    }

    /// Names it in asynchronous events.
    pub(crate) fn address(&self) -> usize {
        self.raw.addr().get()
    }

    /// Entries that it has room for.
    pub(crate) fn cqe(&self) -> u32 {
        // SAFETY: the queue is there; only `resize`, which its owner calls, changes the field.
        let cqe = unsafe { (*self.raw.as_ptr()).cqe };
        u32::try_from(cqe).unwrap_or(0)
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), Errno> {
        let cqe = c_int::try_from(cqe).map_err(|_| Errno::INVAL)?;
        // SAFETY: the queue is there.
        check(unsafe { (self.channel.context.library.verbs.resize_cq)(self.raw.as_ptr(), cqe) })
    }

    /// An event at `count` completions, or that many microseconds after the first.
    pub(crate) fn moderate(&self, count: u16, period_us: u16) -> Result<(), Errno> {
        let attr = abi::ModifyCqAttr {
            attr_mask: 1,
            cq_count: count,
            cq_period: period_us,
        };
        let modify = self.channel.context.modify_cq().ok_or(Errno::OPNOTSUPP)?;
        // SAFETY: the queue is there, the attributes are read during the call.
        check(unsafe { modify(self.raw.as_ptr(), &attr) })
    }

    /// Takes completions, oldest first, and says how many. A queue that is in error gives none.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [Wc], entries: &mut Entries) -> usize {
        let mut taken = 0;
        for part in out.chunks_mut(AT_A_TIME) {
            let wcs = &mut entries.0;
            // SAFETY: the queue is there; as many entries are asked for as there is room for, and 16 fit into an int.
            let count =
                unsafe { (self.poll)(self.raw.as_ptr(), part.len() as c_int, wcs.as_mut_ptr()) };
            let count = usize::try_from(count).unwrap_or(0).min(part.len());
            for (to, from) in part[..count].iter_mut().zip(wcs) {
                *to = completion(from);
            }
            taken += count;
            if count < part.len() {
                break;
            }
        }
        taken
    }

    /// Asks for an event.
    pub(crate) fn arm(&self, when: Arm) {
        let solicited_only = c_int::from(when == Arm::Solicited);
        // SAFETY: the queue is there. What could fail is the device, of which there is an event.
        let code = unsafe { (self.req_notify)(self.raw.as_ptr(), solicited_only) };
        if let Err(errno) = check(code) {
            tracing::debug!(%errno, "a completion queue cannot be armed");
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: nobody has the queue any more: queue pairs hold theirs. Waits until its events are acknowledged, which
        // whoever takes one does at once.
        let _ = destroyed("completion queue", unsafe {
            (self.channel.context.library.verbs.destroy_cq)(self.raw.as_ptr())
        });
    }
}

impl Context {
    /// `modify_cq` of the table that is before the context, if the table is so long. It grows at its front, so that
    /// places count from its end.
    fn modify_cq(&self) -> Option<ModifyCq> {
        const FROM_CONTEXT: usize =
            offset_of!(abi::VerbsContext, context) - offset_of!(abi::VerbsContext, modify_cq);
        const FROM_END: usize =
            size_of::<abi::VerbsContext>() - offset_of!(abi::VerbsContext, modify_cq);
        const SZ: usize =
            offset_of!(abi::VerbsContext, context) - offset_of!(abi::VerbsContext, sz);
        let raw = self.raw.as_ptr();
        // SAFETY: the context is open.
        if unsafe { (*raw).abi_compat }.addr() != usize::MAX {
            return None;
        }
        // SAFETY: all ones say that the context is the end of a `verbs_context`, whose size is before it.
        let sz = unsafe { raw.byte_sub(SZ).cast::<usize>().read() };
        if sz < FROM_END {
            return None;
        }
        // SAFETY: the table is long enough, and there is a function or none.
        unsafe { raw.byte_sub(FROM_CONTEXT).cast::<Option<ModifyCq>>().read() }
    }
}
