//! Waiting for a time, by the device's timer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use verbs_core::Timer;
use verbs_core::mad::Time;
use verbs_core::sync::Arc;

/// Ends when the time has come.
pub(super) struct Sleep {
    timer: Arc<dyn Timer>,
    until: Time,
}

impl Sleep {
    pub(super) fn new(timer: &Arc<dyn Timer>, span: Duration) -> Self {
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
