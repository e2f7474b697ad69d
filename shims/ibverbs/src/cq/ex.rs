//! The extended poll: one completion at a time, read field by field.

use std::ffi::{c_int, c_uint, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use verbs_abi::{CqEx, CqExOps};
use verbs_core::Wc;

use super::queue::{Cq, imm_or_key};
use crate::call::{Errno, caught};

/// Fields that can be requested, as `ibv_create_cq_wc_flags`.
mod field {
    /// Byte count, immediate data, numbers and addresses.
    pub(super) const STANDARD: u64 = 0x7f;
    pub(super) const COMPLETION_TS: u64 = 1 << 7;
    pub(super) const WALLCLOCK: u64 = 1 << 11;
}

/// The functions for a queue whose completions have these fields.
pub(super) fn ops(wc_flags: u64) -> Result<CqExOps, Errno> {
    if wc_flags & !(field::STANDARD | field::COMPLETION_TS | field::WALLCLOCK) != 0 {
        return Err(Errno::NOTSUP);
    }
    Ok(CqExOps {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: (wc_flags & field::COMPLETION_TS != 0).then_some(read_completion_ts),
        read_completion_wallclock_ns: (wc_flags & field::WALLCLOCK != 0)
            .then_some(read_completion_wallclock_ns),
        ..CqExOps::default()
    })
}

pub(super) fn wants_stamps(wc_flags: u64) -> bool {
    wc_flags & (field::COMPLETION_TS | field::WALLCLOCK) != 0
}

/// # Safety
/// A queue that the program does not destroy now.
unsafe fn queue<'a>(cq: *mut CqEx) -> &'a Cq {
    // SAFETY: guaranteed by the caller: the C structure is at its front.
    unsafe { &*cq.cast::<Cq>() }
}

/// Takes one completion; `ENOENT` if there is none.
///
/// # Safety
/// As [`queue`], and this thread has the turn.
unsafe fn take(cq: &Cq) -> c_int {
    let taken = caught(|| {
        let mut one = [Wc::default()];
        Ok(cq.poll(&mut one).first().copied())
    });
    match taken {
        Ok(Some(wc)) => {
            // SAFETY: the turn is this thread's.
            unsafe {
                *cq.current.get() = wc;
                let shown = cq.shown.get();
                (*shown).wr_id = wc.wr_id;
                (*shown).status = wc.status as c_uint;
            }
            0
        }
        Ok(None) => libc::ENOENT,
        Err(errno) => errno.0,
    }
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *const c_void) -> c_int {
    // SAFETY: the program passes valid pointers; an attribute is a mask in which no bit is defined.
    let (cq, asks) = unsafe { (queue(cq), attr.cast::<u32>().as_ref()) };
    if asks.is_some_and(|mask| *mask != 0) {
        return libc::EINVAL;
    }
    cq.turn.begin();
    // SAFETY: it is this thread's turn.
    let taken = unsafe { take(cq) };
    if taken != 0 {
        // Without a completion there is no end_poll.
        // SAFETY: begun above.
        unsafe { cq.turn.end() };
    }
    taken
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: between start_poll and end_poll.
    unsafe { take(queue(cq)) }
}

unsafe extern "C" fn end_poll(cq: *mut CqEx) {
    // SAFETY: after start_poll, on the same thread.
    unsafe { queue(cq).turn.end() }
}

/// The current completion.
///
/// # Safety
/// Called between start_poll and end_poll.
unsafe fn current<'a>(cq: *mut CqEx) -> &'a Wc {
    // SAFETY: guaranteed by the caller: it is this thread's turn.
    unsafe { &*queue(cq).current.get() }
}

macro_rules! reads {
    ($($name:ident -> $Type:ty = |$wc:ident| $read:expr;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut CqEx) -> $Type {
            // SAFETY: the program reads between start_poll and end_poll.
            let $wc = unsafe { current(cq) };
            $read
        }
    )* };
}

reads! {
    read_opcode -> c_uint = |wc| wc.opcode as c_uint;
    read_vendor_err -> u32 = |wc| wc.vendor_err;
    read_byte_len -> u32 = |wc| wc.byte_len;
    read_imm_data -> u32 = |wc| imm_or_key(wc);
    read_qp_num -> u32 = |wc| wc.qpn.value();
    read_src_qp -> u32 = |wc| wc.src_qpn.value();
    read_wc_flags -> c_uint = |wc| c_uint::from(wc.flags.bits());
    read_slid -> u32 = |wc| u32::from(wc.slid.0);
    read_dlid_path_bits -> u8 = |wc| wc.dlid_path_bits;
    read_completion_ts -> u64 = |wc| wc.timestamp_ns;
}

unsafe extern "C" fn read_sl(cq: *mut CqEx) -> u8 {
    // SAFETY: the program reads between start_poll and end_poll.
    let (wc, queue) = unsafe { (current(cq), queue(cq)) };
    queue.service_level(wc)
}

/// By the wall clock, in nanoseconds since 1970.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut CqEx) -> u64 {
    // SAFETY: the program reads between start_poll and end_poll.
    let (stamp, queue) = unsafe { (current(cq).timestamp_ns, queue(cq)) };
    let now = queue.context.clock.now().as_nanos();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall = u64::try_from(wall.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
    wall.saturating_sub(now.saturating_sub(stamp))
}
