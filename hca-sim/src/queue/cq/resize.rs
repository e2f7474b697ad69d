//! The buffers of a queue that is resized. [`crate::qp::cq_resize`] describes the order of events.

use std::collections::VecDeque;

use verbs_core::mem::Touched;
use verbs_core::sync::Arc;
use verbs_core::{Attr, Error, Why};

use super::CqRing;
use super::buffer::CqBuffer;
use crate::queue::base::events::Job;

impl CqRing {
    /// Room for a resize to that many entries, which is a power of two.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn next_lane(&self, cqe: u32) -> Result<CqBuffer, Error> {
        CqBuffer::new(cqe, Arc::clone(&self.consumer), self.clock.clone(), false)
    }

    /// Runs that resize, now or when earlier ones are over. Called outside pins and locks.
    pub(crate) fn in_turn(&self, resize: Job) {
        let mut resizes = self.resizes.lock();
        if let Some(later) = resizes.as_mut() {
            return later.push_back(resize);
        }
        *resizes = Some(VecDeque::new());
        drop(resizes);
        resize();
    }

    /// The current resize is over: the next one runs. Called outside pins and locks.
    pub(crate) fn turn_is_over(&self) {
        let next = {
            let mut resizes = self.resizes.lock();
            let next = resizes.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *resizes = None;
            }
            next
        };
        if let Some(next) = next {
            next();
        }
    }

    /// Keeps pushers out. Returns the threads to wait for until none is inside.
    pub(crate) fn kill_lane(&self) -> Touched {
        // Under the lock, so that no thread begins to convert a dead buffer.
        self.latest.lock().mode().kill().unwrap_or(Touched::NOBODY)
    }

    /// Undoes [`CqRing::kill_lane`].
    pub(crate) fn revive_lane(&self) {
        let latest = self.latest.lock();
        latest.mode().revive(latest.last_mode());
    }

    /// Puts the new buffer in the place of the old one, which pushers are kept out of, and returns its size.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if more waits than fits; in that case the old one is in use again.
    pub(crate) fn change_lane(&self, buffer: CqBuffer) -> Result<u32, Error> {
        let (old, cqe) = (self.buffer(), buffer.len());
        if !buffer.take_over(&old) {
            self.revive_lane();
            let (attr, why) = (Attr::Cqe, Why::StillUsed);
            return Err(Error::Mismatch { attr, why });
        }
        let mut latest = self.latest.lock();
        let _ = buffer.mode().update(|_| Some(old.last_mode()));
        // In this order, under the lock: a thread that finds the new buffer knows that the old one is not
        // the last.
        old.replace();
        *latest = Arc::new(buffer);
        Ok(cqe)
    }
}
