//! A completion queue, and taking completions from it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::lock_api::RawMutex as _;
use parking_lot::{Mutex, RawMutex};
use verbs_abi::{self as abi, CqEx};
use verbs_core::{Qpn, Shared, Wc, WcFlags};

use super::channel::Channel;
use crate::call::live::{Held, Kind, Object, Unacknowledged, Users};
use crate::device::Context;
use crate::inbox::event::Watched;
use crate::memory::Pd;

/// Completions that are taken from the queue at once.
pub(super) const AT_A_TIME: usize = 8;

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(super) shown: UnsafeCell<CqEx>,
    pub(super) queue: Shared<verbs_core::Cq>,
    /// Completions that were taken out while those of a queue pair were searched for.
    pub(super) set_aside: SetAside,
    /// The current completion of an extended poll.
    pub(super) current: UnsafeCell<Wc>,
    pub(super) turn: Turn,
    pub(super) packet_type: Option<u8>,
    pub(super) context: Held<Context>,
    pub(super) channel: Option<Held<Channel>>,
    /// Events of the channel.
    pub(super) comp_events: Unacknowledged,
    /// Whether there are any: not once its destroy has begun.
    pub(super) delivers: Arc<AtomicBool>,
    /// Asynchronous events.
    pub(super) watched: Watched,
    pub(super) _parent_domain: Option<Held<Pd>>,
    pub(super) users: Users,
}

// SAFETY: what is not behind a lock of its own changes only in an extended poll, which holds `turn`, and in calls that
// a program makes one at a time.
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

impl Cq {
    /// The queue itself, to be named when a queue pair is made.
    pub(crate) fn queue(&self) -> &Shared<verbs_core::Cq> {
        &self.queue
    }
}

/// The thread that may use the extended poll, from its start to its end.
pub(super) enum Turn {
    /// Any thread's.
    Locked(RawMutex),
    /// The only thread's.
    Single,
}

impl Turn {
    pub(super) fn locked() -> Self {
        Self::Locked(RawMutex::INIT)
    }

    pub(super) fn begin(&self) {
        if let Self::Locked(lock) = self {
            lock.lock();
        }
    }

    /// # Safety
    /// This thread has begun it.
    pub(super) unsafe fn end(&self) {
        if let Self::Locked(lock) = self {
            // SAFETY: guaranteed by the caller.
            unsafe { lock.unlock() }
        }
    }
}

/// Completions that wait before those of the queue.
#[derive(Default)]
pub(super) struct SetAside {
    is_any: AtomicBool,
    completions: Mutex<VecDeque<Wc>>,
}

impl Cq {
    /// Takes completions, oldest first.
    #[inline(always)]
    pub(super) fn poll<'o>(&self, out: &'o mut [Wc]) -> &'o mut [Wc] {
        if self.set_aside.is_any.load(Ordering::Acquire) {
            return self.poll_aside(out);
        }
        self.queue.poll(out)
    }

    #[cold]
    fn poll_aside<'o>(&self, out: &'o mut [Wc]) -> &'o mut [Wc] {
        let mut waiting = self.set_aside.completions.lock();
        let count = waiting.len().min(out.len());
        for (to, from) in out.iter_mut().zip(waiting.drain(..count)) {
            *to = from;
        }
        self.set_aside
            .is_any
            .store(!waiting.is_empty(), Ordering::Release);
        drop(waiting);
        let (_, rest) = out.split_at_mut(count);
        let more = self.queue.poll(rest).len();
        &mut out[..count + more]
    }

    /// A completion in the form that programs know.
    #[inline(always)]
    pub(super) fn shown(&self, wc: &Wc) -> abi::Wc {
        abi::Wc {
            wr_id: wc.wr_id,
            status: wc.status as c_uint,
            opcode: wc.opcode as c_uint,
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            imm_or_key: imm_or_key(wc),
            qp_num: wc.qpn.value(),
            src_qp: wc.src_qpn.value(),
            wc_flags: c_uint::from(wc.flags.bits()),
            pkey_index: wc.pkey_index,
            slid: wc.slid.0,
            sl: self.service_level(wc),
            dlid_path_bits: wc.dlid_path_bits,
        }
    }

    #[inline(always)]
    pub(super) fn service_level(&self, wc: &Wc) -> u8 {
        match self.packet_type {
            Some(packet_type) if wc.flags.contains(WcFlags::GRH) => packet_type,
            _ => wc.sl,
        }
    }

    /// Drops the completions of a queue pair that is reset or destroyed. Programs rely on it: the memory that `wr_id`
    /// points to may have been freed.
    pub(crate) fn forget(&self, qpn: Qpn) {
        let mut waiting = self.set_aside.completions.lock();
        let mut some = [Wc::default(); AT_A_TIME];
        loop {
            let taken = self.queue.poll(&mut some);
            waiting.extend(taken.iter().copied());
            if taken.len() < AT_A_TIME {
                break;
            }
        }
        waiting.retain(|wc| wc.qpn != qpn);
        self.set_aside
            .is_any
            .store(!waiting.is_empty(), Ordering::Release);
    }
}

/// Immediate data are in network byte order, an invalidated key in the machine's.
#[inline(always)]
pub(super) fn imm_or_key(wc: &Wc) -> u32 {
    if wc.flags.contains(WcFlags::WITH_INV) {
        wc.imm
    } else {
        wc.imm.to_be()
    }
}
