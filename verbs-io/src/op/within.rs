//! Operations that are given up after a time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use verbs_core::sync::Arc;
use verbs_core::time::Instant;
use verbs_core::timer::Timer;

use crate::error::Error;
use crate::link::Link;

/// An operation, or a wait for a message, that is given up after a time: `within` of each, such as
/// [`Send::within`](super::Send::within).
///
/// # Errors
/// Those of the operation, and [`Error::TimedOut`].
///
/// # Cancel safety
/// As the operation.
#[must_use = "nothing happens until it is awaited"]
pub struct Within<'a, F> {
    link: &'a Link,
    /// Until it has ended or is given up.
    op: Option<F>,
    time: Duration,
    wait: Option<Wait>,
}

/// It has not completed at once.
struct Wait {
    timer: Arc<dyn Timer>,
    until: Instant,
    /// What the timer wakes.
    waker: Waker,
}

impl<'a, F> Within<'a, F> {
    pub(super) fn new(link: &'a Link, op: F, time: Duration) -> Self {
        Self {
            link,
            op: Some(op),
            time,
            wait: None,
        }
    }

    /// Whether the time is over; if not, the task is woken then.
    #[cold]
    fn is_over(&mut self, waker: &Waker) -> bool {
        let Some(wait) = &mut self.wait else {
            let provider = self.link.core().device.target().provider_of();
            // A device without a timer cannot tell when the time is over.
            let Some(timer) = provider.timer() else {
                return false;
            };
            let until = timer.now() + self.time;
            let waker = waker.clone();
            timer.wake_at(until, waker.clone());
            self.wait = Some(Wait {
                timer,
                until,
                waker,
            });
            return self.time.is_zero();
        };
        if wait.timer.now() >= wait.until {
            return true;
        }
        if !wait.waker.will_wake(waker) {
            wait.waker.clone_from(waker);
            wait.timer.wake_at(wait.until, waker.clone());
        }
        false
    }
}

impl<F, T, E> Future for Within<'_, F>
where
    F: Future<Output = Result<T, E>> + Unpin,
    E: From<Error>,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let op = self.op.as_mut();
        let op = op.expect("a future is not polled after its end");
        if let Poll::Ready(result) = Pin::new(op).poll(cx) {
            self.op = None;
            return Poll::Ready(result);
        }
        if !self.is_over(cx.waker()) {
            return Poll::Pending;
        }
        // Dropped as its cancel safety has it.
        self.op = None;
        let after = self.time;
        Poll::Ready(Err(Error::TimedOut { after }.into()))
    }
}

impl<F> fmt::Debug for Within<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Within")
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}
