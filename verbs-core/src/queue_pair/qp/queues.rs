//! The two queues of a queue pair, which are posted to directly.

use std::fmt;

use crate::extension::{Work, WorkExtension};
use crate::queue::{
    BatchError, PostError, RawRecvQueue, RawSendQueue, post_recv_shortest, post_shortest,
};
use crate::sync::slot::slab_alloc::SlabBox;
use crate::wr::{Recv, SendFlags, SendWr, Sge};

/// The sending half of a queue pair. Posting takes `&mut self`, which is its lock.
pub struct SendQueue(pub(super) SlabBox<dyn RawSendQueue>);

impl SendQueue {
    /// Posts a work request. A direct call: no lock, no allocation, no system call, never blocks.
    ///
    /// # Errors
    /// [`PostError`] for what can be said from the work request and the queue alone; nothing was
    /// posted then. Whatever takes looking at memory or at the peer is told by a completion.
    #[inline(always)]
    pub fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
        post_shortest(&mut *self.0, &wr.into())
    }

    /// Posts a work request of an extension, which takes effect in its place among the others.
    ///
    /// # Errors
    /// [`PostError::Unsupported`] if the device does not [have](crate::Device::extensions) it, or not on a queue pair of
    /// this type; otherwise as [`SendQueue::post`].
    pub fn post_extension<W: WorkExtension>(
        &mut self,
        wr_id: u64,
        work: &W,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.0.post_extension(wr_id, Work::new(work), flags)
    }

    /// Posts several with one doorbell. Stops at the first that is not accepted.
    ///
    /// # Errors
    /// [`BatchError`] says how many were accepted; those are under way.
    pub fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        self.0.post_batch(wrs)
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The receiving half of a queue pair. Posting takes `&mut self`, which is its lock.
pub struct RecvQueue(pub(super) SlabBox<dyn RawRecvQueue>);

impl RecvQueue {
    /// Posts a receive. A direct call: no lock, no allocation, no system call, never blocks.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline(always)]
    pub fn post(&mut self, wr: Recv<'_>) -> Result<(), PostError> {
        post_recv_shortest(&mut *self.0, &wr)
    }

    /// Posts several receives, which costs less than one after the other. Stops at the first that is not
    /// accepted.
    ///
    /// # Errors
    /// [`BatchError`] says how many were accepted; those wait for messages.
    pub fn post_batch(&mut self, wrs: &[Recv<'_>]) -> Result<(), BatchError> {
        self.0.post_batch(wrs)
    }
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The queues of a queue pair that has none.
#[derive(Debug)]
pub(super) struct NoQueue;

impl RawSendQueue for NoQueue {
    fn post(&mut self, _: &SendWr<'_>) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }
}

impl RawRecvQueue for NoQueue {
    fn post(&mut self, _: u64, _: &[Sge]) -> Result<(), PostError> {
        Err(PostError::UsesSrq)
    }
}
