//! Buffers that all channels share, for data that are copied between an initiator and a logical unit.

use std::ops::Range;
use std::task::Waker;

use verbs_core::sync::{Arc, Mutex};
use verbs_core::task::{self, OwnWaker};
use verbs_core::{Access, Error, LKey, Memory, Mr, Pd, Sge};

use crate::lun::{Piece, Returned};

/// The buffers: one registered region, cut into equal parts.
#[derive(Debug)]
pub(crate) struct Pool {
    mr: Mr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// The offsets of free buffers; the most recently used one is taken first, because it is in the caches.
    starts: Vec<usize>,
    /// Tasks that found no free buffer.
    waiting: Vec<Waker>,
}

impl Pool {
    pub(crate) async fn new(pd: &Pd, buffers: u32, bytes: u32) -> Result<Self, Error> {
        let (buffers, bytes) = (buffers as usize, bytes as usize);
        let len = buffers.checked_mul(bytes).ok_or(Error::NoMemory)?;
        let mr = pd
            .register(Memory::alloc(len)?, Access::LOCAL_WRITE)
            .await?;
        let starts = (0..buffers).rev().map(|n| n * bytes).collect();
        let free = Mutex::new(Free {
            starts,
            waiting: Vec::new(),
        });
        let state = Arc::new(State { free });
        Ok(Self { mr, state })
    }

    /// A buffer's first `len` bytes; if all buffers are taken, `waker` is woken when one is returned.
    pub(crate) fn take(&self, len: usize, waker: &Waker) -> Option<Piece> {
        let found = self.state.free.lock().starts.pop();
        let start = found.or_else(|| self.state.take_or_wait(waker))?;
        let memory = Arc::clone(self.mr.memory());
        let owner: Arc<dyn Returned> = Arc::<State>::clone(&self.state);
        Some(Piece::lent(memory, start..start + len, owner))
    }

    /// The key of the buffers for work requests.
    pub(crate) fn lkey(&self) -> LKey {
        self.mr.lkey()
    }
}

impl State {
    /// Usually there is a free one, and the waker is not needed.
    #[cold]
    fn take_or_wait(&self, waker: &Waker) -> Option<usize> {
        let mut waker = OwnWaker::of(waker);
        let mut free = self.free.lock();
        let start = free.starts.pop();
        if start.is_none() {
            waker.join(&mut free.waiting);
        }
        start
    }
}

impl Returned for State {
    fn take_back(&self, range: Range<usize>) {
        let mut free = self.free.lock();
        free.starts.push(range.start);
        let waiting = std::mem::take(&mut free.waiting);
        drop(free);
        waiting.into_iter().for_each(task::wake);
    }
}

/// Part of a piece of registered memory, for a work request.
pub(crate) fn sge(piece: &Piece, lkey: LKey, range: Range<usize>) -> Sge {
    let part = piece.part(range);
    Sge {
        // The address of a region is that of its memory.
        addr: part.memory().addr() + part.range().start as u64,
        // Buffers have less than 4 GiB.
        len: part.len() as u32,
        lkey,
    }
}
