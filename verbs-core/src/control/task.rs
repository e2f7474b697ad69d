//! Futures that run where routines run: on the thread that wakes them, when it is done with what it is
//! doing.
//!
//! A service that takes several requests one after the other can be written as an async function, and
//! needs neither a thread nor an executor of the program's for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Wake, Waker};

use crate::routine;
use crate::sync::combiner::Combiner;
use crate::sync::{Arc, Mutex};

pub use crate::routine::wake;
#[doc(hidden)]
pub use crate::sync::park::block_on;

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs `future` to its end. It is polled first here, or when the present routine is done, and later
/// by the thread that wakes it; always under NoBlock, so it must not wait in any other way than by `await`.
///
/// Like a detached request it cannot be cancelled. A future without a waker left is dropped
/// with the last waker that it gave away.
pub fn detach(future: impl Future<Output = ()> + Send + 'static) {
    Arc::new(Task {
        future: Mutex::new(Some(Box::pin(future))),
        calls: Combiner::default(),
    })
    .wake();
}

/// A waker that is to be left under a lock.
///
/// Wakers are foreign code, which must not run under a lock (K4); cloning and dropping them is that too. So make
/// this before the lock is taken: what is not left under it is dropped with this, when the lock is free again.
///
/// ```
/// use std::task::{Context, Poll, Waker};
/// use verbs_core::sync::Mutex;
/// use verbs_core::task::OwnWaker;
///
/// fn poll_done(state: &Mutex<(bool, Vec<Waker>)>, cx: &Context<'_>) -> Poll<()> {
///     let mut waker = OwnWaker::of(cx.waker());
///     let mut state = state.lock();
///     if state.0 {
///         return Poll::Ready(());
///     }
///     waker.join(&mut state.1);
///     Poll::Pending
/// }
/// # let state = Mutex::new((false, Vec::new()));
/// # let cx = Context::from_waker(Waker::noop());
/// # assert!(poll_done(&state, &cx).is_pending() && poll_done(&state, &cx).is_pending());
/// # assert_eq!(state.lock().1.len(), 1);
/// ```
#[derive(Debug)]
pub struct OwnWaker(Option<Waker>);

impl OwnWaker {
    /// A clone of it.
    pub fn of(waker: &Waker) -> Self {
        Self(Some(waker.clone()))
    }

    /// Leaves it with others, unless one of them wakes the same task.
    pub fn join(&mut self, waiting: &mut Vec<Waker>) {
        let is_new = |new: &mut Waker| !waiting.iter().any(|known| known.will_wake(new));
        let new = self.0.take_if(is_new);
        waiting.extend(new);
    }

    /// Leaves it where there is room for one.
    pub fn replace(&mut self, place: &mut Option<Waker>) {
        std::mem::swap(&mut self.0, place);
    }
}

struct Task {
    /// Taken out while it is polled, so that no lock is held then (K4).
    future: Mutex<Option<Running>>,
    calls: Combiner,
}

impl Wake for Task {
    /// A waker does not poll inline (K3): the poll comes when the thread has left its routines.
    fn wake(self: Arc<Self>) {
        if self.calls.enter() {
            routine::defer(move || self.run());
        }
    }
}

impl Task {
    fn run(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        loop {
            let taken = self.future.lock().take();
            if let Some(mut future) = taken
                && future
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            {
                *self.future.lock() = Some(future);
            }
            if !self.calls.again() {
                return;
            }
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;
    use crate::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use crate::{collect, no_block};

    #[test]
    fn k3_a_wake_polls_when_the_routine_is_done() {
        let polls = Arc::new(AtomicU32::new(0));
        let parked: Arc<Mutex<Option<Waker>>> = Arc::default();
        let (seen, place) = (Arc::clone(&polls), Arc::clone(&parked));
        detach(poll_fn(move |cx| {
            assert!(no_block());
            *place.lock() = Some(cx.waker().clone());
            match seen.fetch_add(1, SeqCst) {
                2 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }));
        assert_eq!(polls.load(SeqCst), 1);
        let wake = || {
            let waker = parked.lock().clone();
            waker.expect("it was polled").wake();
        };
        collect(|| {
            wake();
            assert_eq!(polls.load(SeqCst), 1, "not inline");
        });
        assert_eq!(polls.load(SeqCst), 2);
        wake();
        wake();
        assert_eq!(polls.load(SeqCst), 3, "never after its end");
    }
}
