//! Operations that have completed, and those whose future is gone before.

use std::task::Waker;

use crate::buf::Buf;
use crate::lane::Lane;
use crate::lane::slot::{Fault, NONE, State};
use crate::link::Link;

/// What the slot of an operation that has completed says.
pub(super) struct Finished {
    pub(super) fault: Option<Fault>,
    pub(super) value: u64,
    pub(super) buf: Option<Buf>,
    /// Dropped when the lane is left.
    _waker: Option<Waker>,
}

/// Takes what an operation has come to, if it has completed, and releases its slot.
pub(super) fn finish(lane: &mut Lane, slot: u32) -> Option<Finished> {
    let done = lane.slots.get(slot);
    if done.state != State::Done {
        return None;
    }
    let (fault, value, buf, len) = (done.fault, done.value, done.buf, done.len);
    let _waker = lane.slots.release(slot);
    Some(Finished {
        fault,
        value,
        buf: (buf != NONE).then(|| lane.loans.lend(buf, len)),
        _waker,
    })
}

/// The buffer stays with the operation until it has completed.
#[cold]
pub(super) fn abandon(conn: &Link, slot: u32) {
    let waker = conn.core().with(|lane| lane.forget(slot));
    drop(waker);
}
