//! Polling and asking for notification: called through pointers, without looking anything up.

use std::ffi::c_int;

use verbs_abi as abi;
use verbs_core::{Arm, Wc};

use super::queue::{AT_A_TIME, Cq};
use crate::call::{caught, code};

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
