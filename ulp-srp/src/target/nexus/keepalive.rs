//! Detecting a dead initiator: a channel without traffic carries an RDMA WRITE of no bytes, which the initiator's
//! device acknowledges and its software never sees.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use verbs_core::Device;
use verbs_core::sync::Arc;
use verbs_core::time::Instant;
use verbs_core::timer::Timer;

/// When to probe a channel.
pub(crate) struct Keepalive {
    timer: Arc<dyn Timer>,
    interval: Duration,
    /// When the current interval ends.
    until: Instant,
    /// The initiator sent or acknowledged something in this interval.
    heard: bool,
    /// The timer is set to wake the channel at the end of this interval.
    timed: bool,
}

impl Keepalive {
    /// `None` if probes are off, and on a device without a timer.
    pub(crate) fn new(device: &Device, interval: Option<Duration>) -> Option<Self> {
        let timer = device.target().provider_of().timer()?;
        let interval = interval?;
        Some(Self {
            until: timer.now() + interval,
            timer,
            interval,
            heard: false,
            timed: false,
        })
    }

    /// A completion shows that the initiator was there in this interval.
    pub(crate) fn heard(&mut self) {
        self.heard = true;
    }

    /// Whether an interval has passed without a sign of the initiator; true once per interval. The waker is
    /// called when the current interval ends.
    pub(crate) fn is_due(&mut self, waker: &Waker) -> bool {
        let now = self.timer.now();
        let is_over = now >= self.until;
        let is_due = is_over && !self.heard;
        if is_over {
            self.until = now + self.interval;
            self.heard = false;
            self.timed = false;
        }
        if !std::mem::replace(&mut self.timed, true) {
            self.timer.wake_at(self.until, waker.clone());
        }
        is_due
    }
}

impl fmt::Debug for Keepalive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keepalive")
            .field("until", &self.until)
            .field("heard", &self.heard)
            .finish_non_exhaustive()
    }
}
