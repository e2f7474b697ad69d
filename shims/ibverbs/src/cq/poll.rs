//! Polling and asking for notification: called through pointers, without looking anything up.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use verbs_core::{Arm, Qpn, Wc, WcFlags};

use super::Cq;
use crate::abi;
use crate::call::{caught, code};

/// Completions that are taken from the queue at a time.
const AT_A_TIME: usize = 8;

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

    /// A completion as programs have it.
    #[inline(always)]
    fn shown(&self, wc: &Wc) -> abi::Wc {
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

    /// Drops the completions of a queue pair that is reset or destroyed. Programs rely on it: what `wr_id` points to
    /// may be gone.
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

/// `poll_cq`: how many there were.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, max: c_int, wc: *mut abi::Wc) -> c_int {
    let polled = caught(|| {
        // SAFETY: a queue that the program does not destroy now.
        let cq = unsafe { &*cq.cast::<Cq>() };
        let max = usize::try_from(max).unwrap_or(0);
        if max == 1 {
            let mut one = [Wc::default()];
            let taken = cq.poll(&mut one);
            if let [only] = taken {
                // SAFETY: one entry is the program's.
                unsafe { wc.write(cq.shown(only)) };
            }
            return Ok(taken.len());
        }
        let mut done = 0;
        let mut some = [Wc::default(); AT_A_TIME];
        while done < max {
            let wanted = AT_A_TIME.min(max - done);
            let taken = cq.poll(&mut some[..wanted]);
            for (n, one) in taken.iter().enumerate() {
                // SAFETY: `max` entries are the program's.
                unsafe { wc.add(done + n).write(cq.shown(one)) };
            }
            done += taken.len();
            if taken.len() < wanted {
                break;
            }
        }
        Ok(done)
    });
    polled.map_or_else(|errno| -errno.0, |count| count as c_int)
}

/// `req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    code(|| {
        // SAFETY: as for polling.
        let cq = unsafe { &*cq.cast::<Cq>() };
        let when = if solicited_only == 0 {
            Arm::Next
        } else {
            Arm::Solicited
        };
        // Whether completions wait already is for the program to find out, by polling once more.
        let _ = cq.queue.arm(when);
        Ok(())
    })
}

/// Immediate data are in the network's order, an invalidated key in the machine's.
#[inline(always)]
pub(super) fn imm_or_key(wc: &Wc) -> u32 {
    if wc.flags.contains(WcFlags::WITH_INV) {
        wc.imm
    } else {
        wc.imm.to_be()
    }
}
