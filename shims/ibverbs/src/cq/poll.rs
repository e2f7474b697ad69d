//! Polling and asking for notification: called through pointers, without any lookup.

use std::ffi::c_int;

use verbs_abi as abi;
use verbs_core::{Arm, Wc};

use super::queue::{AT_A_TIME, Cq};
use crate::call::{caught, code};

/// `poll_cq`: returns how many completions there were.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, max: c_int, wc: *mut abi::Wc) -> c_int {
    if max != 1 {
        // SAFETY: guaranteed by the caller.
        return unsafe { poll_some(cq, max, wc) };
    }
    let polled = caught(|| {
        // SAFETY: a queue that the program does not destroy now.
        let cq = unsafe { &*cq.cast::<Cq>() };
        let mut one = [Wc::default()];
        let [only] = cq.poll(&mut one) else {
            return Ok(0);
        };
        // SAFETY: one entry is the program's.
        unsafe { wc.write(cq.shown(only)) };
        Ok(1)
    });
    polled.unwrap_or_else(|errno| -errno.0)
}

/// The same for any number. It is apart because most programs poll for one, which takes few registers.
///
/// # Safety
/// As [`poll_cq`].
#[inline(never)]
unsafe fn poll_some(cq: *mut abi::Cq, max: c_int, wc: *mut abi::Wc) -> c_int {
    let polled = caught(|| {
        // SAFETY: a queue that the program does not destroy now.
        let cq = unsafe { &*cq.cast::<Cq>() };
        let max = usize::try_from(max).unwrap_or(0);
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
        // The program finds out whether completions wait already, by polling once more.
        let _ = cq.queue.arm(when);
        Ok(())
    })
}
