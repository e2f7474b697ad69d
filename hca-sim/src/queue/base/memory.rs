//! Memory of queues: allocation that may fail, scatter-gather elements in words, and the reason why a look at
//! registered memory was refused.

use verbs_core::mem::{MrTable, Pin};
use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use verbs_core::{Error, Piece, Sge, WcCause};

/// A boxed slice, or the error that there is no memory for it.
pub(crate) fn allocate<T>(count: usize, make: impl Fn() -> T) -> Result<Box<[T]>, Error> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
    all.extend((0..count).map(|_| make()));
    Ok(all.into_boxed_slice())
}

#[inline(always)]
pub(crate) fn pack(addr: &AtomicU64, rest: &AtomicU64, sge: Sge) {
    let piece = Piece::from(sge);
    addr.store(piece.addr, Relaxed);
    rest.store(piece.len_key, Relaxed);
}

#[inline(always)]
pub(crate) fn unpack(addr: &AtomicU64, rest: &AtomicU64) -> Sge {
    let (addr, len_key) = (addr.load(Relaxed), rest.load(Relaxed));
    Piece { addr, len_key }.into()
}

/// Why the last check refused, for `vendor_err`: the code of a [`WcCause`].
pub(crate) fn reason(mrs: &MrTable, pin: &Pin) -> u32 {
    WcCause::from(mrs.why(pin)).code()
}
