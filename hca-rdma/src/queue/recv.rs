//! Posting of receives.

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::AtomicBool;
use verbs_core::{Piece, PostCode, PostError, QpState, RawRecvQueue, Sge};

use super::{Limits, answer, present};
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys::{Qp, Srq};

/// The receive queue of a queue pair.
pub(crate) struct ReceiveQueue {
    qp: Arc<Slot<Qp>>,
    limits: Limits,
    uses_srq: bool,
}

impl ReceiveQueue {
    pub(crate) fn new(qp: Arc<Slot<Qp>>, limits: Limits, uses_srq: bool) -> Self {
        Self {
            qp,
            limits,
            uses_srq,
        }
    }
}

/// Refuses more pieces than the queue was created for.
#[inline(always)]
fn check_pieces(sges: &[Sge], max: u32) -> Result<(), PostError> {
    let got = u32::try_from(sges.len()).unwrap_or(u32::MAX);
    match got > max {
        true => Err(PostError::TooManySges { got, max }),
        false => Ok(()),
    }
}

impl ReceiveQueue {
    #[inline(always)]
    fn post_pieces(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.uses_srq {
            return Err(PostError::UsesSrq);
        }
        let limits = &self.limits;
        limits.check_present()?;
        limits.check_state(QpState::Init)?;
        check_pieces(sges, limits.cap.max_recv_sge)?;
        let posted = self.qp.with(|qp| qp.post_recv(wr_id, sges));
        answer(posted, limits.cap.max_recv_wr)
    }
}

impl RawRecvQueue for ReceiveQueue {
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.post_pieces(wr_id, sges)
    }

    fn post_one(&mut self, wr_id: u64, piece: Piece) -> Result<(), PostCode> {
        Ok(self.post_pieces(wr_id, &[piece.into()])?)
    }
}

impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveQueue")
            .field("state", &self.limits.state())
            .finish_non_exhaustive()
    }
}

/// A shared receive queue.
pub(crate) struct SharedReceiveQueue {
    srq: Arc<Slot<Srq>>,
    removed: Arc<AtomicBool>,
    max_wr: u32,
    max_sge: u32,
}

impl SharedReceiveQueue {
    pub(crate) fn new(nic: &Shared, srq: Arc<Slot<Srq>>, max_wr: u32, max_sge: u32) -> Self {
        Self {
            srq,
            removed: Arc::clone(&nic.removed),
            max_wr,
            max_sge,
        }
    }
}

impl RawRecvQueue for SharedReceiveQueue {
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        present(&self.removed)?;
        check_pieces(sges, self.max_sge)?;
        let posted = self.srq.with(|srq| srq.post_recv(wr_id, sges));
        answer(posted, self.max_wr)
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("max_wr", &self.max_wr)
            .finish_non_exhaustive()
    }
}
