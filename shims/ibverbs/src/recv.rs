//! Posting receives, to a queue pair or a shared queue, and what posting sends shares with it.

use std::ffi::{c_int, c_void};

use arrayvec::ArrayVec;
use verbs_abi::{self as abi, RecvWr};
use verbs_core::{BatchError, Payload, Recv, Sge};

use crate::call::{Errno, caught};

/// Work requests of a list that go to the device together.
const AT_A_TIME: usize = 16;

/// Posts a list of receives.
///
/// # Safety
/// The program's list, until NULL, and where it wants the first that was not accepted.
#[inline(always)]
pub(crate) unsafe fn receives(
    first: *const RecvWr,
    bad: *mut *const RecvWr,
    post: impl Fn(Recv<'_>) -> Result<(), Errno>,
    post_batch: impl Fn(&[Recv<'_>]) -> Result<(), BatchError>,
) -> c_int {
    let mut next = first;
    let posted = caught(|| {
        // SAFETY: the caller's.
        while let Some(wr) = unsafe { next.as_ref() } {
            if wr.next.is_null() {
                // SAFETY: the caller's.
                post(unsafe { receive(wr) })?;
                return Ok(());
            }
            let mut some = ArrayVec::<_, AT_A_TIME>::new();
            let mut behind = next;
            while let (Some(wr), false) = (
                // SAFETY: the caller's.
                unsafe { behind.as_ref() },
                some.is_full(),
            ) {
                // SAFETY: the caller's.
                some.push(unsafe { receive(wr) });
                behind = wr.next;
            }
            if let Err(BatchError { posted, error }) = post_batch(&some) {
                for _ in 0..posted {
                    // SAFETY: as many were there.
                    next = unsafe { (*next).next };
                }
                return Err(error.into());
            }
            next = behind;
        }
        Ok(())
    });
    // SAFETY: the caller's.
    unsafe { answer(posted, bad, next) }
}

/// What a post returns. `next` is the first work request that was not accepted, if one was not.
///
/// # Safety
/// `bad` is where the program wants it.
#[inline(always)]
pub(crate) unsafe fn answer<T>(
    posted: Result<(), Errno>,
    bad: *mut *const T,
    next: *const T,
) -> c_int {
    match posted {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the caller's.
            unsafe { bad.write(next) };
            errno.0
        }
    }
}

/// Bytes of the program's memory.
///
/// # Safety
/// They are the program's, and no other thread of it writes them now.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: the caller's.
        length => unsafe { std::slice::from_raw_parts(addr.cast(), length) },
    }
}

/// # Safety
/// What it names is the program's.
#[inline(always)]
unsafe fn receive<'a>(wr: &RecvWr) -> Recv<'a> {
    // SAFETY: the caller's.
    let payload = match unsafe { pieces(wr.sg_list, wr.num_sge) } {
        [one] => Payload::One(*one),
        list => Payload::List(list),
    };
    Recv {
        wr_id: wr.wr_id,
        payload,
    }
}

/// The pieces that a work request names.
///
/// # Safety
/// The program's list has that many entries, for as long as the post takes.
#[inline(always)]
pub(crate) unsafe fn pieces<'a>(list: *const abi::Sge, count: c_int) -> &'a [Sge] {
    match usize::try_from(count) {
        Ok(count @ 1..) => {
            // SAFETY: the caller's; the entries are laid out alike, see `abi`.
            unsafe { std::slice::from_raw_parts(list.cast::<Sge>(), count) }
        }
        _ => &[],
    }
}
