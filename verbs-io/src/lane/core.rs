//! The lane behind its lock, and what runs when the lock is free again.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use arrayvec::ArrayVec;
use futures::future::BoxFuture;
use verbs_core::biased::Biased;
use verbs_core::mr::RegMr;
use verbs_core::sync::atomic::AtomicU32;
use verbs_core::sync::atomic::Ordering::{AcqRel, Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Access, Device, FirstPanic, Memory, Pd, Raise, Request, task};

use crate::buf::Lender;
use crate::lane::sleep;
use crate::lane::{Lane, Side};
use crate::name::Lookups;

/// Wakers that are taken out of the lane at a time.
const WAKERS: usize = 16;

/// A connection, for who ends all of an endpoint's.
pub(crate) trait Closes: Send + Sync {
    /// Waits until everything posted has completed, then ends it.
    fn close(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// What the handles of an endpoint share.
pub(crate) struct Core {
    lane: Biased<Lane>,
    /// How many [`Handle`]s there are.
    handles: AtomicU32,
    /// Private: no object of it is given out, so no other work request names the buffers.
    pub(crate) pd: Pd,
    pub(crate) device: Device,
    pub(crate) lookups: Lookups,
    /// The connections, with some that have gone.
    connections: Mutex<Vec<Weak<dyn Closes>>>,
    /// How long a connection is silent before its peer is asked, if it is.
    pub(crate) keepalive: Option<Duration>,
}

impl Core {
    /// Rights of buffers: each may be the sink of a READ, and peers have none, as the program holds references to it.
    pub(crate) const BUFFERS: Access = Access::LOCAL_WRITE.union(Access::READ_SINK);

    pub(crate) fn new(lane: Lane, pd: Pd, device: Device, keepalive: Option<Duration>) -> Self {
        Self {
            lane: Biased::new(lane),
            handles: AtomicU32::new(0),
            pd,
            device,
            lookups: Lookups::default(),
            connections: Mutex::default(),
            keepalive,
        }
    }

    /// A connection has been made. Those that have gone are forgotten whenever the list would need more memory.
    pub(crate) fn made(&self, connection: Weak<dyn Closes>) {
        let mut all = self.connections.lock();
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
        }
        all.push(connection);
    }

    /// The connections that are there.
    pub(crate) fn connections(&self) -> Vec<Arc<dyn Closes>> {
        let all = self.connections.lock();
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Registers memory for buffers.
    pub(crate) fn buffers(&self, memory: Memory) -> Request<'_, RegMr> {
        self.pd.register(memory, Self::BUFFERS)
    }

    /// Runs `f` inside the lane. When it has left, the wakers that `f` has put aside are called.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Lane) -> R) -> R {
        // Left in the other order: what becomes due while the lane is in use runs when it is free.
        let level = Raise::new();
        let mut lane = self.lane.lock();
        let result = f(&mut lane);
        let has_wakers = !lane.wake.is_empty();
        drop(lane);
        drop(level);
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

    /// The handler of that completion queue. It runs where wakers do, and wakes most often one task: by itself.
    pub(crate) fn on_event(&self, side: Side) {
        let level = Raise::new();
        let mut lane = self.lane.lock();
        sleep::on_event(&mut lane, side);
        let only = match lane.wake.len() {
            1 => lane.wake.pop(),
            _ => None,
        };
        let has_more = !lane.wake.is_empty();
        drop(lane);
        drop(level);
        if let Some(waker) = only {
            waker.wake();
        } else if has_more {
            self.wake();
        }
    }
}

/// The core, for what lends buffers out: endpoints, connections, listeners. With the last of them the buffers that
/// are out are all that keep it.
pub(crate) struct Handle(Arc<Core>);

impl Handle {
    /// The first one.
    pub(crate) fn new(core: Arc<Core>) -> Self {
        core.handles.fetch_add(1, Relaxed);
        Self(core)
    }

    /// For what lends nothing.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }
}

impl Deref for Handle {
    type Target = Core;

    #[inline(always)]
    fn deref(&self) -> &Core {
        &self.0
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, AcqRel) == 1 {
            let last = self.with(|lane| lane.loans.close());
            // Not the last: this handle has the core yet.
            drop(last);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Lender for Core {
    #[inline]
    fn take_back(&self, index: u32) -> Option<Arc<dyn Lender>> {
        self.with(|lane| {
            lane.give_back(index);
            lane.loans.returned(index)
        })
    }

    fn imm(&self, index: u32) -> Option<u32> {
        self.with(|lane| lane.loans.imm(index))
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}
