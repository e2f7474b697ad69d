//! The face of a send queue that its handle posts to.

use std::fmt;
use std::marker::PhantomData;

use verbs_core::extension::Work;
use verbs_core::queue::post_shortest;
use verbs_core::sync::Arc;
use verbs_core::{
    BatchError, Dest, How, Payload, Piece, PostCode, PostError, QpType, RawSendQueue, Remote,
    SendFlags, SendOp, SendWr,
};

use super::SendPoster;
use super::barrier::Barrier;
use super::ends::{FromMemory, Inline, IntoMemory, IntoReceive};
use super::moves::Moves;
use crate::qp::QueuePair;

/// The poster of one queue pair, whose short paths copy in one of two ways: [`Unguarded`](super::moves::Unguarded) or
/// [`Guarded`](super::moves::Guarded).
// A choice at each message would cost instructions.
#[repr(transparent)]
pub(crate) struct Poster<M> {
    inner: SendPoster,
    moves: PhantomData<fn() -> M>,
}

impl<M: Moves> Poster<M> {
    /// The one poster of a new queue pair.
    pub(crate) fn new(qp: Arc<QueuePair>) -> Self {
        Self {
            inner: SendPoster::new(qp),
            moves: PhantomData,
        }
    }
}

impl<M: Moves> RawSendQueue for Poster<M> {
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.inner.post_any(wr)
    }

    fn post_extension(
        &mut self,
        wr_id: u64,
        work: Work<'_>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        if self.inner.qp.qp_type != QpType::Rc || work.get::<Barrier>().is_none() {
            return Err(PostError::Unsupported);
        }
        self.inner.post_any(&SendWr {
            wr_id,
            op: SendOp::Write(Remote::default()),
            flags,
            payload: Payload::List(&[]),
            dest: Dest::Peer,
        })
    }

    fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        if self.inner.qp.port.features.early_invalidates {
            // One doorbell: hardware sees all of them at once.
            wrs.iter().for_each(|wr| self.inner.invalidate_early(wr));
        }
        if self.inner.by_packets {
            return self.inner.post_together(wrs);
        }
        let mut posted = 0;
        while posted < wrs.len() {
            posted += self.inner.burst::<M>(&wrs[posted..]);
            // The work request that is first now takes the other paths.
            if let Some(wr) = wrs.get(posted) {
                post_shortest(self, wr).map_err(|error| BatchError { posted, error })?;
                posted += 1;
            }
        }
        Ok(())
    }

    fn send(&mut self, wr_id: u64, piece: Piece, flags: SendFlags) -> Result<(), PostCode> {
        self.inner
            .short::<M, _, _>(wr_id, piece, IntoReceive, flags)
    }

    fn send_inline(&mut self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), PostCode> {
        if bytes.len() > self.inner.max_inline as usize {
            return self
                .inner
                .post_parts(wr_id, SendOp::Send, flags, Payload::Inline(bytes));
        }
        self.inner
            .short::<M, _, _>(wr_id, Inline(bytes), IntoReceive, flags)
    }

    fn write(&mut self, wr_id: u64, piece: Piece, to: u64, how: How) -> Result<(), PostCode> {
        self.inner
            .short::<M, _, _>(wr_id, piece, IntoMemory(to, how.key()), how.flags())
    }

    fn write_inline(
        &mut self,
        wr_id: u64,
        bytes: &[u8],
        to: u64,
        how: How,
    ) -> Result<(), PostCode> {
        if bytes.len() > self.inner.max_inline as usize {
            let (op, payload) = (SendOp::Write(how.remote(to)), Payload::Inline(bytes));
            return self.inner.post_parts(wr_id, op, how.flags(), payload);
        }
        self.inner
            .short::<M, _, _>(wr_id, Inline(bytes), IntoMemory(to, how.key()), how.flags())
    }

    fn read(&mut self, wr_id: u64, piece: Piece, from: u64, how: How) -> Result<(), PostCode> {
        self.inner
            .short::<M, _, _>(wr_id, piece, FromMemory(from, how.key()), how.flags())
    }
}

impl<M> fmt::Debug for Poster<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
