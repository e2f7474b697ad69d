//! Queues that several threads use: the same handles behind a lock that costs its only user next to
//! nothing.
//!
//! [`SendQueue`], [`RecvQueue`], [`Srq`] and [`Cq`] are owned by one thread at a time, which the borrow
//! checker ensures; that is the cheapest, also for queues that many hold and one thread at a time uses
//! ([`ThreadDomain`](crate::ThreadDomain)). [`Shared`] is for callers that cannot promise it, such as a C
//! program behind a shim: its calls take `&self`.
//!
//! The lock is biased to the first thread that comes. While no other comes, a call costs two stores
//! more than the handle's own and no atomic read-modify-write: about 35 instructions. The first call of a second
//! thread ends that for good (once, about 20 us: a process-wide barrier), and from then on a call
//! takes an ordinary lock.
//!
//! ```
//! use verbs_core::testing::Null;
//! use verbs_core::{Device, Shared, Wc};
//!
//! let device = Device::open(std::sync::Arc::new(Null::default())).wait()?;
//! let cq = Shared::new(device.create_cq(64).wait()?);
//! std::thread::scope(|scope| {
//!     for _ in 0..2 {
//!         scope.spawn(|| assert!(cq.poll(&mut [Wc::default(); 4]).is_empty()));
//!     }
//! });
//! cq.into_inner().destroy().wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Context
//! Calls are legal from every context. Where another thread is inside they wait for it, for as long as a
//! post or poll takes; the holder of the lock may be off its processor. Routines that become due inside
//! run after the lock was released (K4).

use std::fmt;
use std::time::Duration;

pub use crate::cq::CqRef;
use crate::cq::{self, Cq, CqCore, ModifyCq, ResizeCq};
use crate::object::{ObjectId, Target};
use crate::qp::{RecvQueue, SendQueue};
use crate::queue::{Arm, Armed, BatchError, PostError};
use crate::request::Request;
use crate::routine::collect;
pub use crate::srq::SrqRef;
use crate::srq::{self, ModifySrq, QuerySrq, Srq, SrqCore};
use crate::sync::Arc;
use crate::sync::biased::Biased;
use crate::wc::Wc;
use crate::wr::{Recv, SendWr};

/// A queue that several threads use; see the [module](self).
pub struct Shared<Q: Shareable> {
    /// What requests that name the queue need, apart from the lock.
    core: Q::Core,
    queue: Biased<Q>,
}

pub(crate) mod sealed {
    use super::{Arc, Cq, CqCore, RecvQueue, SendQueue, Srq, SrqCore};

    /// A queue of this crate: no other crate's may run under the lock.
    pub trait Queue {
        /// What requests that name the queue need of it.
        type Core: Send + Sync;

        fn core_of(&self) -> Self::Core;
    }

    impl Queue for Cq {
        type Core = Arc<CqCore>;

        fn core_of(&self) -> Self::Core {
            Arc::clone(self.core())
        }
    }

    impl Queue for Srq {
        type Core = Arc<SrqCore>;

        fn core_of(&self) -> Self::Core {
            Arc::clone(self.core())
        }
    }

    impl Queue for SendQueue {
        type Core = ();

        fn core_of(&self) {}
    }

    impl Queue for RecvQueue {
        type Core = ();

        fn core_of(&self) {}
    }
}

/// A queue that can be [`Shared`]: [`Cq`], [`Srq`], [`SendQueue`] or [`RecvQueue`].
pub trait Shareable: sealed::Queue {}

impl Shareable for Cq {}
impl Shareable for Srq {}
impl Shareable for SendQueue {}
impl Shareable for RecvQueue {}

impl CqRef for Shared<Cq> {}
impl SrqRef for Shared<Srq> {}

impl cq::sealed::NamesCq for Shared<Cq> {
    fn cq_core(&self) -> &Arc<CqCore> {
        &self.core
    }
}

impl srq::sealed::NamesSrq for Shared<Srq> {
    fn srq_core(&self) -> &Arc<SrqCore> {
        &self.core
    }
}

impl<Q: Shareable> Shared<Q> {
    /// The queue behind a lock that the first caller from now on owns.
    pub fn new(queue: Q) -> Self {
        Self {
            core: queue.core_of(),
            queue: Biased::new(queue),
        }
    }

    /// The queue without the lock, where the borrow checker knows that it has no other holder.
    pub fn get_mut(&mut self) -> &mut Q {
        self.queue.get_mut()
    }

    /// The queue again, for instance to destroy it.
    pub fn into_inner(self) -> Q {
        self.queue.into_inner()
    }

    /// Runs `call` alone; what becomes due inside runs when the lock has been released.
    #[inline(always)]
    fn alone<R>(&self, call: impl FnOnce(&mut Q) -> R) -> R {
        collect(|| self.queue.with(call))
    }
}

impl Shared<SendQueue> {
    /// As [`SendQueue::post`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post<'w>(&self, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
        let wr = wr.into();
        self.alone(|queue| queue.post(wr))
    }

    /// As [`SendQueue::post_batch`]; no other thread's work requests come in between.
    ///
    /// # Errors
    /// [`BatchError`] says how many were accepted; those are under way.
    pub fn post_batch(&self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        self.alone(|queue| queue.post_batch(wrs))
    }
}

impl Shared<RecvQueue> {
    /// As [`RecvQueue::post`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post(&self, wr: Recv<'_>) -> Result<(), PostError> {
        self.alone(|queue| queue.post(wr))
    }

    /// As [`RecvQueue::post_batch`]; no other thread's receives come in between.
    ///
    /// # Errors
    /// [`BatchError`] says how many were accepted; those wait for messages.
    pub fn post_batch(&self, wrs: &[Recv<'_>]) -> Result<(), BatchError> {
        self.alone(|queue| queue.post_batch(wrs))
    }
}

impl Shared<Srq> {
    /// As [`Srq::post_recv`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(&self, wr: Recv<'_>) -> Result<(), PostError> {
        self.alone(|queue| queue.post_recv(wr))
    }

    /// As [`Srq::post_batch`]; no other thread's receives come in between.
    ///
    /// # Errors
    /// [`BatchError`] says how many were accepted; those wait for messages.
    pub fn post_batch(&self, wrs: &[Recv<'_>]) -> Result<(), BatchError> {
        self.alone(|queue| queue.post_batch(wrs))
    }
}

impl Shared<Srq> {
    /// As [`Srq::arm_limit`].
    ///
    /// # Errors
    /// As [`Srq::arm_limit`].
    pub fn arm_limit(&self, limit: u32) -> Request<'_, ModifySrq> {
        ModifySrq::request(&self.core, None, Some(limit))
    }

    /// As [`Srq::resize`].
    ///
    /// # Errors
    /// As [`Srq::resize`].
    pub fn resize(&self, max_wr: u32) -> Request<'_, ModifySrq> {
        ModifySrq::request(&self.core, Some(max_wr), None)
    }

    /// As [`Srq::query`].
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Request<'_, QuerySrq> {
        QuerySrq::request(&self.core)
    }
}

impl Shared<Cq> {
    /// As [`Cq::poll`]. Each completion goes to one caller.
    #[inline]
    pub fn poll<'o>(&self, out: &'o mut [Wc]) -> &'o mut [Wc] {
        let n = self.alone(|cq| cq.poll(out).len());
        &mut out[..n]
    }

    /// As [`Cq::arm`].
    #[inline]
    pub fn arm(&self, when: Arm) -> Armed {
        self.alone(|cq| cq.arm(when))
    }

    /// As [`Cq::resize`]. Other threads poll on: a provider lets them.
    ///
    /// # Errors
    /// As [`Cq::resize`].
    pub fn resize(&self, cqe: u32) -> Request<'_, ResizeCq> {
        ResizeCq::request(&self.core, cqe)
    }

    /// As [`Cq::moderate`].
    ///
    /// # Errors
    /// As [`Cq::moderate`].
    pub fn moderate(&self, count: u16, period: Duration) -> Request<'_, ModifyCq> {
        ModifyCq::request(&self.core, count, period)
    }

    /// Its kind and number, as events name it.
    pub fn id(&self) -> ObjectId {
        self.core.base().id()
    }
}

impl<Q: Shareable> fmt::Debug for Shared<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
