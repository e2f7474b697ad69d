//! Thread domains: queues that one thread at a time uses, reached by the thread that has the domain.
//!
//! A queue has one owner, as the borrow checker ensures. That is enough where one struct holds all that
//! a thread works with. Where queues lie about in a program, a completion queue and a shared receive queue
//! that all of its connections use for instance, libibverbs has the thread domain (`ibv_alloc_td`): the
//! promise that whatever is in it is used by one thread at a time, so that nothing is locked. Here the
//! promise is kept by the compiler: many may hold a queue that is [`InDomain`], and only the holder of its
//! [`ThreadDomain`] exclusively gets at it. The domain may move from thread to thread.
//!
//! That costs a comparison for each use, and no memory access that a queue would not have. Queues that
//! threads cannot agree about are [`Shared`](crate::Shared).
//!
//! ```
//! use std::sync::Arc;
//! use verbs_core::testing::Null;
//! use verbs_core::{Cq, Device, InDomain, ThreadDomain, Wc};
//!
//! struct Connection {
//!     done: Arc<InDomain<Cq>>,
//! }
//!
//! let device = Device::open(Arc::new(Null::default())).wait()?;
//! let mut domain = ThreadDomain::new();
//! let done = Arc::new(domain.put(device.create_cq(64).wait()?));
//! let connections = [(); 3].map(|()| Connection { done: Arc::clone(&done) });
//! std::thread::spawn(move || {
//!     // This thread works for all of them.
//!     for connection in &connections {
//!         let cq = connection.done.of(&mut domain)?;
//!         assert!(cq.poll(&mut [Wc::default(); 4]).is_empty());
//!     }
//!     Ok::<_, verbs_core::OtherDomain>(())
//! })
//! .join()
//! .expect("it does not panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Context
//! All calls are legal from every context: nothing is locked, and nothing waits.

use std::fmt;

use qcell::{QCell, QCellOwner, QCellOwnerID};

use crate::cq::sealed::NamesCq;
use crate::cq::{Cq, CqCore, CqRef};
use crate::shared::Shareable;
use crate::srq::sealed::NamesSrq;
use crate::srq::{Srq, SrqCore, SrqRef};
use crate::sync::Arc;

/// What gives access to the queues that were put in it; see the [module](self).
///
/// Dropping it loses the access and nothing else: [`InDomain::into_inner`] still gives a queue back. A domain
/// that is made later may then be taken for the one that has gone; never are there two such at a time.
pub struct ThreadDomain(QCellOwner);

/// A queue in a thread domain; see the [module](self).
pub struct InDomain<Q: Shareable> {
    domain: QCellOwnerID,
    /// What requests that name the queue need, apart from the domain.
    core: Q::Core,
    queue: QCell<Q>,
}

/// A queue was asked for with a domain that it is not in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue was put in another thread domain than the one that it is asked for with")]
pub struct OtherDomain;

impl ThreadDomain {
    /// A domain with nothing in it.
    pub fn new() -> Self {
        Self(QCellOwner::new())
    }

    /// Puts a queue in it.
    pub fn put<Q: Shareable>(&self, queue: Q) -> InDomain<Q> {
        InDomain {
            domain: self.0.id(),
            core: queue.core_of(),
            queue: self.0.cell(queue),
        }
    }
}

impl Default for ThreadDomain {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadDomain").finish_non_exhaustive()
    }
}

impl<Q: Shareable> InDomain<Q> {
    /// The queue, for as long as the domain is borrowed.
    ///
    /// # Errors
    /// [`OtherDomain`] if it was put in another one.
    #[inline(always)]
    pub fn of<'a>(&'a self, domain: &'a mut ThreadDomain) -> Result<&'a mut Q, OtherDomain> {
        if self.domain == domain.0.id() {
            Ok(domain.0.rw(&self.queue))
        } else {
            Err(OtherDomain)
        }
    }

    /// The queue without the domain, where the borrow checker knows that it has no other holder.
    pub fn get_mut(&mut self) -> &mut Q {
        self.queue.get_mut()
    }

    /// The queue again, for instance to destroy it.
    pub fn into_inner(self) -> Q {
        self.queue.into_inner()
    }
}

impl CqRef for InDomain<Cq> {}
impl SrqRef for InDomain<Srq> {}

impl NamesCq for InDomain<Cq> {
    fn cq_core(&self) -> &Arc<CqCore> {
        &self.core
    }
}

impl NamesSrq for InDomain<Srq> {
    fn srq_core(&self) -> &Arc<SrqCore> {
        &self.core
    }
}

impl<Q: Shareable> fmt::Debug for InDomain<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InDomain").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;
    use crate::sync::thread;
    use crate::testing::Null;
    use crate::{Device, RecvQueue, SendQueue, Wc};

    fn device() -> Device {
        Device::open(Arc::new(Null::default()))
            .wait()
            .expect("it opens")
    }

    #[test]
    fn only_its_own_domain_gets_at_a_queue() {
        let device = device();
        let (mut mine, mut other) = (ThreadDomain::new(), ThreadDomain::new());
        let mut cq = mine.put(device.create_cq(4).wait().expect("a queue"));
        assert_eq!(cq.of(&mut other).err(), Some(OtherDomain));
        let polled = cq.of(&mut mine).expect("it is in this one");
        assert!(polled.poll(&mut [Wc::default()]).is_empty());
        drop(mine);
        assert_eq!(cq.get_mut().depth(), 4);
        cq.into_inner().destroy().wait().expect("nobody uses it");
    }

    #[test]
    fn a_domain_moves_from_thread_to_thread() {
        let device = device();
        let mut domain = ThreadDomain::new();
        let cq = domain.put(device.create_cq(4).wait().expect("a queue"));
        for _ in 0..2 {
            domain = thread::scope(|scope| {
                let work = || {
                    let cq = cq.of(&mut domain).expect("it is in this one");
                    assert!(cq.poll(&mut [Wc::default()]).is_empty());
                    domain
                };
                scope.spawn(work).join().expect("it does not panic")
            });
        }
    }

    #[test]
    fn all_queues_may_be_in_one_and_threads_hold_them() {
        fn held_by_threads<T: Send + Sync>() {}
        held_by_threads::<InDomain<Cq>>();
        held_by_threads::<InDomain<Srq>>();
        held_by_threads::<InDomain<SendQueue>>();
        held_by_threads::<InDomain<RecvQueue>>();
        held_by_threads::<ThreadDomain>();
    }
}
