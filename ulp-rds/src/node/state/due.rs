//! What is to be done when the lock is free.

use std::task::Waker;

use smallvec::SmallVec;
use verbs_core::task::OwnWaker;

use crate::node::id::LinkId;
use crate::node::maps::Kept;

/// Tasks that are woken at a time without memory from the allocator.
const WAKES: usize = 8;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Due {
    /// Tasks that are to be woken.
    pub(crate) wakes: SmallVec<[Waker; WAKES]>,
    /// Connections whose drivers are to be started.
    pub(crate) newborn: Vec<(LinkId, u64)>,
    /// Keys that are taken away.
    pub(crate) released: Vec<Kept>,
    /// Lists of tasks that wait for something, those that are empty not counted.
    sleeping: usize,
}

impl Due {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.newborn.is_empty() && self.released.is_empty()
    }

    /// All that is to be done.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            wakes: std::mem::take(&mut self.wakes),
            newborn: std::mem::take(&mut self.newborn),
            released: std::mem::take(&mut self.released),
            sleeping: 0,
        }
    }

    /// Whether some task waits.
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleeping > 0
    }

    /// A task waits.
    pub(super) fn sleep(&mut self, waker: &mut OwnWaker, wakers: &mut Vec<Waker>) {
        self.sleeping += usize::from(wakers.is_empty());
        waker.join(wakers);
        self.sleeping -= usize::from(wakers.is_empty());
    }

    /// All of them go on.
    #[inline]
    pub(super) fn wake(&mut self, wakers: &mut Vec<Waker>) {
        if !wakers.is_empty() {
            self.sleeping -= 1;
            self.wakes.extend(wakers.drain(..));
        }
    }
}
