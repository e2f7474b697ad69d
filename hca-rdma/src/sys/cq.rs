//! Completion queues, and the channel that delivers their events.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;
use verbs_core::{Arm, Wc};

use super::context::unblock;
use super::stamp::Functions;
use super::table::entry;
use super::{Context, check, destroyed, errno};
use crate::convert::completion;

pub(crate) mod stamp;

/// Completions that are taken in one call.
const AT_A_TIME: usize = 16;

/// Where C writes completions. It leaves out fields without meaning, so their previous contents remain visible.
pub(crate) struct Entries([abi::Wc; AT_A_TIME]);

impl Default for Entries {
    fn default() -> Self {
        // SAFETY: all fields are numbers, for which zero is valid.
        Self(unsafe { zeroed() })
    }
}

type PollCq = unsafe extern "C" fn(*mut abi::Cq, c_int, *mut abi::Wc) -> c_int;
type ReqNotify = unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int;

/// A channel for the events of completion queues. Destroyed when it is dropped.
pub(crate) struct Channel {
    pub(super) context: Arc<Context>,
    pub(super) raw: NonNull<abi::CompChannel>,
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
        // SAFETY: the descriptor is open as long as the channel exists, and the field does not change.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// The number of a completion queue that has an event, if there is one. The event is acknowledged, so that the
    /// queue's destroy does not wait until it has been handled.
    pub(crate) fn next(&self) -> Option<u64> {
        let verbs = &self.context.library.verbs;
        let (mut cq, mut number) = (null_mut(), null_mut());
        // SAFETY: the channel exists, both pointers are written during the call, which does not wait: the descriptor is
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
        // SAFETY: the channel has no other owner: its queues hold it.
        let _ = destroyed("completion channel", unsafe {
            (self.context.library.verbs.destroy_comp_channel)(self.raw.as_ptr())
        });
    }
}

/// The number as C has it.
pub(super) fn int(value: u32) -> Result<c_int, Errno> {
    c_int::try_from(value).map_err(|_| Errno::INVAL)
}

/// A completion queue. Destroyed when it is dropped.
pub(crate) struct Cq {
    channel: Arc<Channel>,
    pub(super) raw: NonNull<abi::Cq>,
    poll: PollCq,
    req_notify: ReqNotify,
    /// The functions of a queue whose completions carry the time.
    pub(super) extended: Option<Box<Functions>>,
}

// SAFETY: libibverbs locks inside, and a queue is destroyed by its last owner.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue with room for at least that many completions. `number` is returned with its events.
    pub(crate) fn create(
        channel: &Arc<Channel>,
        cqe: u32,
        vector: u32,
        number: u64,
    ) -> Result<Self, Errno> {
        let context = &channel.context;
        let (cqe, vector) = (int(cqe)?, int(vector)?);
        let number: *mut c_void = std::ptr::without_provenance_mut(number as usize);
        let create = context.library.verbs.create_cq;
        // SAFETY: context and channel exist; the number is returned and not dereferenced.
        let raw = unsafe {
            create(
                context.raw.as_ptr(),
                cqe,
                number,
                channel.raw.as_ptr(),
                vector,
            )
        };
        Self::of(channel, raw)
    }

    /// The queue that the library has just made, or null if it has set an error.
    pub(super) fn of(channel: &Arc<Channel>, raw: *mut abi::Cq) -> Result<Self, Errno> {
        let (context, raw) = (&channel.context, NonNull::new(raw).ok_or_else(errno)?);
        // SAFETY: the context is open, its table does not change.
        let ops = unsafe { &(*context.raw.as_ptr()).ops };
        let ops = ops.poll_cq.zip(ops.req_notify_cq);
        let Some((poll, req_notify)) = ops else {
            // SAFETY: it was just made, and no other code knows it.
            unsafe { (context.library.verbs.destroy_cq)(raw.as_ptr()) };
            return Err(Errno::OPNOTSUPP);
        };
        Ok(Self {
            channel: Arc::clone(channel),
            raw,
            poll,
            req_notify,
            extended: None,
        })
    }

    /// Its address, by which asynchronous events name it.
    pub(crate) fn address(&self) -> usize {
        self.raw.as_ptr().expose_provenance()
    }

    /// The entries that it has room for.
    pub(crate) fn cqe(&self) -> u32 {
        // SAFETY: the queue exists; only `resize`, which its owner calls, changes the field.
        let cqe = unsafe { (*self.raw.as_ptr()).cqe };
        u32::try_from(cqe).unwrap_or(0)
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), Errno> {
        let cqe = int(cqe)?;
        // SAFETY: the queue exists.
        check(unsafe { (self.channel.context.library.verbs.resize_cq)(self.raw.as_ptr(), cqe) })
    }

    /// Raises an event at `count` completions, or that many microseconds after the first.
    pub(crate) fn moderate(&self, count: u16, period_us: u16) -> Result<(), Errno> {
        let attr = abi::ModifyCqAttr {
            attr_mask: 1,
            cq_count: count,
            cq_period: period_us,
        };
        let modify = entry!(self.channel.context, modify_cq).ok_or(Errno::OPNOTSUPP)?;
        // SAFETY: the queue exists, the attributes are read during the call.
        check(unsafe { modify(self.raw.as_ptr(), &attr) })
    }

    /// Takes completions, oldest first, and returns how many. A queue in error returns none.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [Wc], entries: &mut Entries) -> usize {
        let mut taken = 0;
        for part in out.chunks_mut(AT_A_TIME) {
            let wcs = &mut entries.0;
            // SAFETY: the queue exists; as many entries are requested as there is room for, and 16 fit into an int.
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
        // SAFETY: the queue exists. Only a failure of the device can make the call fail, and that raises an event.
        let code = unsafe { (self.req_notify)(self.raw.as_ptr(), solicited_only) };
        if let Err(errno) = check(code) {
            tracing::debug!(%errno, "a completion queue cannot be armed");
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the queue has no other owner: queue pairs hold theirs. Waits until its events are acknowledged, which
        // the thread that takes one does at once.
        let _ = destroyed("completion queue", unsafe {
            (self.channel.context.library.verbs.destroy_cq)(self.raw.as_ptr())
        });
    }
}
