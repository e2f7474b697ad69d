//! Posting receives, to a queue pair or a shared queue, and what it has in common with posting sends.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::null;

use arrayvec::ArrayVec;
use verbs_abi::{self as abi, RecvWr, SendWr};
use verbs_core::{BatchError, Payload, Recv, Sge};

use crate::call::{Errno, caught};

/// Work requests of a list that are posted to the device together.
const AT_A_TIME: usize = 16;

/// Posts a list of receives.
///
/// # Safety
/// The program passes a list that ends with NULL, and the place for the first receive that is not accepted.
#[inline(always)]
pub(crate) unsafe fn receives(
    first: *const RecvWr,
    bad: *mut *const RecvWr,
    post: impl Fn(Recv<'_>) -> Result<(), Errno>,
    post_batch: impl Fn(&[Recv<'_>]) -> Result<(), BatchError>,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let only = unsafe { aligned(first) }.filter(|wr| wr.next.is_null());
    let Some(wr) = only else {
        // SAFETY: guaranteed by the caller.
        return unsafe { receives_list(first, bad, &post_batch) };
    };
    // SAFETY: guaranteed by the caller.
    let posted = caught(|| post(unsafe { receive(wr) }));
    // SAFETY: guaranteed by the caller.
    unsafe { answer(posted, bad, first) }
}

/// The same for a list that is not of one, or not aligned, apart because most are.
///
/// # Safety
/// As [`receives`].
#[inline(never)]
unsafe fn receives_list(
    first: *const RecvWr,
    bad: *mut *const RecvWr,
    post_batch: &dyn Fn(&[Recv<'_>]) -> Result<(), BatchError>,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    if !unsafe { is_aligned(first) } {
        // SAFETY: an aligned copy of what the program passes.
        let post = |first, bad| unsafe { receives_list(first, bad, post_batch) };
        // SAFETY: guaranteed by the caller.
        return unsafe { post_copied(first, bad, post) };
    }
    let mut next = first;
    let posted = caught(|| {
        while !next.is_null() {
            let mut some = ArrayVec::<_, AT_A_TIME>::new();
            let mut behind = next;
            while let (Some(wr), false) = (
                // SAFETY: guaranteed by the caller.
                unsafe { behind.as_ref() },
                some.is_full(),
            ) {
                // SAFETY: guaranteed by the caller.
                some.push(unsafe { receive(wr) });
                behind = wr.next;
            }
            if let Err(BatchError { posted, error }) = post_batch(&some) {
                for _ in 0..posted {
                    // SAFETY: the list has that many.
                    next = unsafe { (*next).next };
                }
                return Err(error.into());
            }
            next = behind;
        }
        Ok(())
    });
    // SAFETY: guaranteed by the caller.
    unsafe { answer(posted, bad, next) }
}

/// The result of a post. `next` is the first work request that was not accepted, if any.
///
/// # Safety
/// The program passes `bad` as the place for it.
#[inline(always)]
pub(crate) unsafe fn answer<T>(
    posted: Result<(), Errno>,
    bad: *mut *const T,
    next: *const T,
) -> c_int {
    match posted {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: guaranteed by the caller.
            unsafe { bad.write(next) };
            errno.0
        }
    }
}

/// Bytes of the program's memory.
///
/// # Safety
/// They belong to the program, and no other thread of it writes them now.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: guaranteed by the caller.
        length => unsafe { std::slice::from_raw_parts(addr.cast(), length) },
    }
}

/// # Safety
/// The list that the work request names belongs to the program.
#[inline(always)]
unsafe fn receive<'a>(wr: &RecvWr) -> Recv<'a> {
    // SAFETY: guaranteed by the caller.
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
            // SAFETY: guaranteed by the caller; the entries are laid out alike, see `abi`.
            unsafe { std::slice::from_raw_parts(list.cast::<Sge>(), count) }
        }
        _ => &[],
    }
}

/// A work request of a program's list.
pub(crate) trait Linked: Sized {
    /// The next one, its pieces, and how many they are.
    fn links(&self) -> (*const Self, *const abi::Sge, c_int);

    /// Where the pieces of one at that address, which need not be aligned, are named.
    fn list_of(wr: *const Self) -> *const *const abi::Sge;

    /// Has it name these.
    fn link(&mut self, next: *const Self, list: *const abi::Sge);
}

macro_rules! linked {
    ($($Wr:ty),*) => { $(
        impl Linked for $Wr {
            #[inline(always)]
            fn links(&self) -> (*const Self, *const abi::Sge, c_int) {
                (self.next, self.sg_list, self.num_sge)
            }

            #[inline(always)]
            fn list_of(wr: *const Self) -> *const *const abi::Sge {
                wr.wrapping_byte_add(offset_of!(Self, sg_list)).cast()
            }

            fn link(&mut self, next: *const Self, list: *const abi::Sge) {
                (self.next, self.sg_list) = (next, list);
            }
        }
    )* };
}

linked!(RecvWr, SendWr);

/// Posts a list from a copy of it: C programs may keep work requests and pieces in packed structures, where fields are
/// not aligned; libiscsi does.
///
/// # Safety
/// The program passes a list that ends with NULL, and the place for the first one that is not accepted.
#[cold]
#[inline(never)]
pub(crate) unsafe fn post_copied<W: Linked>(
    first: *const W,
    bad: *mut *const W,
    post: impl FnOnce(*const W, *mut *const W) -> c_int,
) -> c_int {
    let mut copies: Vec<(*const W, W, Vec<abi::Sge>)> = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: guaranteed by the caller; wherever it is.
        let wr = unsafe { at.read_unaligned() };
        let (next, list, count) = wr.links();
        // SAFETY: as above, for each of its pieces.
        let pieces = (0..count.max(0) as usize).map(|n| unsafe { list.add(n).read_unaligned() });
        let pieces = pieces.collect();
        copies.push((at, wr, pieces));
        at = next;
    }
    let mut behind = null();
    for (_, wr, pieces) in copies.iter_mut().rev() {
        wr.link(behind, pieces.as_ptr());
        behind = wr;
    }
    let mut refused = null();
    let code = post(behind, &raw mut refused);
    if code != 0 {
        let named = copies.iter().find(|(_, wr, _)| std::ptr::eq(wr, refused));
        let named = named.map_or(null(), |&(at, ..)| at);
        // SAFETY: guaranteed by the caller.
        unsafe { bad.write(named) };
    }
    code
}

/// The work request, if there is one, and its fields and its first piece are aligned.
///
/// # Safety
/// As [`post_copied`].
#[inline(always)]
pub(crate) unsafe fn aligned<'a, W: Linked>(wr: *const W) -> Option<&'a W> {
    if wr.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller; wherever it is.
    let list = unsafe { W::list_of(wr).read_unaligned() };
    // One look for both, as most programs have neither elsewhere.
    if !(wr.addr() | list.addr()).is_multiple_of(align_of::<u64>()) {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    Some(unsafe { &*wr })
}

const _: () = assert!(
    align_of::<RecvWr>() == align_of::<u64>()
        && align_of::<SendWr>() == align_of::<u64>()
        && align_of::<abi::Sge>() == align_of::<u64>()
);

/// Whether the fields of all work requests of a list, and of their pieces, are aligned.
///
/// # Safety
/// As [`post_copied`].
#[inline]
pub(crate) unsafe fn is_aligned<W: Linked>(first: *const W) -> bool {
    let mut at = first;
    while !at.is_null() {
        // SAFETY: guaranteed by the caller.
        let Some(wr) = (unsafe { aligned(at) }) else {
            return false;
        };
        at = wr.links().0;
    }
    true
}
