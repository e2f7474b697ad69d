//! Being woken at a time: what services ask of a provider, since this crate has no clock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::sync::Arc;
use crate::time::Instant;

/// A device's timer. A simulated device tells simulated time, so that what runs above it needs no
/// clock of its own and is decided by the simulation too.
pub trait Timer: Send + Sync {
    /// The time, since a start that the device chooses. Never goes backwards.
    fn now(&self) -> Instant;

    /// Wakes when `deadline` has passed, once; never inside this call.
    ///
    /// It cannot be taken back: the receiver looks at the time when it is woken. Never blocks, and is
    /// legal under NoBlock. The waker is called under NoBlock (K3).
    fn wake_at(&self, deadline: Instant, waker: Waker);
}

/// Ends when a time has passed by a device's timer: a wait that simulated time can be let pass of.
///
/// ```
/// # use futures::executor::block_on;
/// # use std::sync::Arc;
/// # use std::task::Waker;
/// # use std::time::Duration;
/// use verbs_core::time::Instant;
/// use verbs_core::timer::{Sleep, Timer};
///
/// # struct Early(std::sync::Mutex<Instant>);
/// # impl Timer for Early {
/// #     fn now(&self) -> Instant { *self.0.lock().unwrap() }
/// #     fn wake_at(&self, deadline: Instant, waker: Waker) {
/// #         *self.0.lock().unwrap() = deadline;
/// #         waker.wake();
/// #     }
/// # }
/// # let timer: Arc<dyn Timer> = Arc::new(Early(Instant::ZERO.into()));
/// // `Provider::timer` gives one.
/// block_on(Sleep::new(&timer, Duration::from_secs(2)));
/// assert_eq!(timer.now(), Instant::ZERO + Duration::from_secs(2));
/// ```
///
/// # Cancel safety
/// Dropping it has no effect but on itself.
pub struct Sleep {
    timer: Arc<dyn Timer>,
    until: Instant,
}

impl Sleep {
    /// From now on.
    pub fn new(timer: &Arc<dyn Timer>, span: Duration) -> Self {
        Self {
            until: timer.now() + span,
            timer: Arc::clone(timer),
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.timer.now() >= self.until {
            return Poll::Ready(());
        }
        self.timer.wake_at(self.until, cx.waker().clone());
        Poll::Pending
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}
