//! What operations ask the device for.

use verbs_core::{Dest, Payload, PostError, SendFlags, SendOp, SendQueue, SendWr, Sge};

use crate::error::Operation;

/// A kind of operation. Its request is a constant but for places and values, so that posting it folds to the call
/// that the device has for it.
pub(crate) trait Kind {
    /// Posts it, by the call that the device has for it.
    fn post(&self, queue: &mut SendQueue, id: u64, sge: Sge) -> Result<(), PostError>;

    /// The request, with the memory of this side; atomics have none yet.
    fn what(&self, memory: Option<(Sge, u32)>) -> What;
}

/// What an operation does, for a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct What {
    pub(crate) op: SendOp,
    pub(crate) operation: Operation,
    /// The memory of this side; atomics get theirs when they are posted.
    pub(crate) sge: Option<Sge>,
    /// The buffer of that memory.
    pub(crate) buf: u32,
}

impl What {
    /// The memory of this side, and its buffer.
    pub(crate) fn memory(&self) -> Option<(Sge, u32)> {
        self.sge.map(|sge| (sge, self.buf))
    }
}

/// One that waited for room.
impl Kind for What {
    fn post(&self, queue: &mut SendQueue, id: u64, sge: Sge) -> Result<(), PostError> {
        queue.post(work_request(id, self.op, sge))
    }

    fn what(&self, _: Option<(Sge, u32)>) -> What {
        *self
    }
}

/// The work request of an operation.
#[inline(always)]
pub(crate) fn work_request(wr_id: u64, op: SendOp, sge: Sge) -> SendWr<'static> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::One(sge),
        dest: Dest::Peer,
    }
}
