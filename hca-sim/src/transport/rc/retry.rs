//! When the requester tries again, and how often.

use crate::clock::Instant;
use crate::transport::Path;
use crate::transport::timing::{ack_timeout, rnr_delay};

/// Of `rnr_retry`: for ever (IBTA vol. 1, 9.7.5.2.8). Of `retry_cnt` the IBTA does not say so, and here a
/// peer that is gone is given up on after 7 retries, as HCAs do; Linux rxe never gives up at 7.
const RNR_FOREVER: u8 = 7;

/// The requester's timers and counters. Counters are filled again whenever the peer confirms something.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// What is left; `None` for all of it.
    left: Option<u8>,
    rnr_left: Option<u8>,
    /// When the peer will have been silent for too long.
    ack: Option<Instant>,
    /// Until when the peer wants to be left alone.
    rnr: Option<Instant>,
    /// All was sent again because something is missing, and nothing has been confirmed since. Other
    /// signs that something is missing are most likely of the same loss.
    restarted: bool,
}

impl Retry {
    /// The next point in time at which something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.rnr.or(self.ack)
    }

    /// Whether the peer wants to be left alone.
    pub(super) fn is_waiting(&self) -> bool {
        self.rnr.is_some()
    }

    /// A packet was sent, to which an answer is due.
    pub(super) fn sent(&mut self, now: Instant, path: &Path) {
        if self.ack.is_none() {
            self.ack = ack_timeout(path.timeout).map(|timeout| now + timeout);
        }
    }

    /// The peer has confirmed something; `outstanding` says whether not all of it.
    pub(super) fn progress(&mut self, now: Instant, path: &Path, outstanding: bool) {
        *self = Self::default();
        if outstanding {
            self.sent(now, path);
        }
    }

    /// Something is missing at the peer: whether to send again.
    pub(super) fn missing(&mut self, path: &Path) -> Verdict {
        if self.restarted || self.rnr.is_some() {
            return Verdict::Wait;
        }
        self.restarted = true;
        self.again(path)
    }

    /// The time has come to look at: whether the peer was silent for too long.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.rnr.is_none() && self.ack.is_some_and(|deadline| deadline <= now)
    }

    /// The peer was silent for too long: whether to send again.
    pub(super) fn silent(&mut self, path: &Path) -> Verdict {
        self.restarted = false;
        self.again(path)
    }

    fn again(&mut self, path: &Path) -> Verdict {
        self.ack = None;
        take(&mut self.left, path.retry_cnt)
    }

    /// The peer has no receive: whether to wait as long as it asks for.
    pub(super) fn not_ready(&mut self, now: Instant, path: &Path, code: u8) -> Verdict {
        if self.rnr.is_some() {
            return Verdict::Wait;
        }
        self.ack = None;
        let verdict = match path.rnr_retry {
            RNR_FOREVER => Verdict::Again,
            limit => take(&mut self.rnr_left, limit),
        };
        if verdict == Verdict::Again {
            self.rnr = Some(now + rnr_delay(code));
        }
        verdict
    }

    /// Ends the wait that the peer asked for, if it is over: whether it was.
    pub(super) fn end_wait(&mut self, now: Instant) -> bool {
        let over = self.rnr.is_some_and(|until| until <= now);
        if over {
            self.rnr = None;
        }
        over
    }
}

/// What to do about a missing answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// What has been done about it already is enough.
    Wait,
    /// Everything that is not confirmed is to be sent again.
    Again,
    /// It was tried as often as it may be.
    GiveUp,
}

fn take(left: &mut Option<u8>, limit: u8) -> Verdict {
    let now = left.get_or_insert(limit);
    match now.checked_sub(1) {
        Some(less) => {
            *now = less;
            Verdict::Again
        }
        None => Verdict::GiveUp,
    }
}
