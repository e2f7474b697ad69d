//! The lane behind its lock, and what runs when the lock is free again.

use std::fmt;

use arrayvec::ArrayVec;
use verbs_core::biased::{Biased, Inside};
use verbs_core::sync::Arc;
use verbs_core::{Device, FirstPanic, Pd, Raise, task};

use crate::buf::Lender;
use crate::lane::Lane;

/// Wakers that are taken out of the lane at a time.
const WAKERS: usize = 16;

/// What the handles of an endpoint share.
pub(crate) struct Core {
    lane: Biased<Lane>,
    /// Private: no object of it is given out, so no other work request names the buffers.
    pub(crate) pd: Pd,
    pub(crate) device: Device,
}

/// The lane, for the thread that is inside.
struct Entered<'a> {
    // Dropped in this order: what becomes due while the lane is in use runs when it is free.
    lane: Inside<'a, Lane>,
    _level: Raise,
}

impl Core {
    pub(crate) fn new(lane: Lane, pd: Pd, device: Device) -> Self {
        Self {
            lane: Biased::new(lane),
            pd,
            device,
        }
    }

    /// Runs `f` inside the lane. When it has left, the wakers that `f` has put aside are called.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Lane) -> R) -> R {
        let (result, has_wakers) = {
            let level = Raise::new();
            let mut inside = Entered {
                lane: self.lane.lock(),
                _level: level,
            };
            let result = f(&mut inside.lane);
            (result, !inside.lane.wake.is_empty())
        };
        if has_wakers {
            self.wake();
        }
        result
    }

    /// Wakes under no lock. One that panics keeps no other task asleep.
    #[cold]
    #[inline(never)]
    fn wake(&self) {
        let mut panics = FirstPanic::default();
        loop {
            let wakers: ArrayVec<_, WAKERS> = {
                let _level = Raise::new();
                let mut lane = self.lane.lock();
                let n = lane.wake.len().min(WAKERS);
                lane.wake.drain(..n).collect()
            };
            if wakers.is_empty() {
                break;
            }
            for waker in wakers {
                panics.catch(|| task::wake(waker));
            }
        }
        panics.resume();
    }

    /// The handler of both completion queues.
    pub(crate) fn on_event(&self) {
        self.with(Lane::on_event);
    }
}

impl Lender for Core {
    #[inline]
    fn take_back(&self, index: u32) -> Option<Arc<dyn Lender>> {
        self.with(|lane| {
            let last = lane.loans.returned(index);
            lane.give_back(index);
            last
        })
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}
