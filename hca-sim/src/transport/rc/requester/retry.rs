//! When the requester tries again, and how often.

use verbs_core::Psn;

use super::rtt::Rtt;
use crate::clock::Instant;
use crate::transport::Path;
use crate::transport::timing::{ack_timeout, rnr_delay};

/// For `rnr_retry`: for ever (IBTA vol. 1, 9.7.5.2.8). For `retry_cnt` the IBTA does not say so, and here a peer that
/// is gone is given up after 7 retries, as HCAs do; Linux rxe never gives up at 7.
const RNR_FOREVER: u8 = 7;

/// The requester's timers and counters. Counters are reset whenever the peer confirms something.
///
/// The local ACK timeout decides when the peer counts as silent, and only that counts against `retry_cnt`, so that no
/// peer is given up earlier than was agreed. Most losses are detected much earlier: from the time that answers have
/// taken so far. The reaction to that is a *probe*, which is not counted; each waits twice as long as the last.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// Retries that are left; `None` for all of them.
    left: Option<u8>,
    rnr_left: Option<u8>,
    /// When the peer will have been silent for too long.
    ack: Option<Instant>,
    /// When an answer counts as missed, if that is earlier.
    probe: Option<Instant>,
    /// Probes since the peer last confirmed something.
    probes: u32,
    /// What the last probe asked for, and whether something was confirmed since. If an answer follows that confirms
    /// nothing, the packet's own answer was on its way when the probe was sent.
    probed: Option<(Psn, bool)>,
    pub(super) rtt: Rtt,
    /// The end of the wait that the peer has asked for.
    rnr: Option<Instant>,
    /// Everything was sent again because something is missing, and nothing has been confirmed since. Other signs that
    /// something is missing most likely concern the same loss.
    restarted: bool,
}

impl Retry {
    /// The next point in time at which something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.rnr.or(self.probe).or(self.ack)
    }

    /// Whether the peer has asked for a wait that is not over.
    pub(super) fn is_waiting(&self) -> bool {
        self.rnr.is_some()
    }

    /// A packet was sent that has to be answered.
    pub(super) fn sent(&mut self, now: Instant, path: &Path) {
        if self.ack.is_none() {
            self.ack = ack_timeout(path.timeout).map(|timeout| now + timeout);
        }
        // A peer that has never sent anything may have been named by a stranger: it gets only what the ACK timeout
        // allows.
        if self.rtt.is_measured()
            && self.probe.is_none()
            && let Some(ack) = self.ack
        {
            self.probe = Some(now + self.rtt.timeout()).filter(|&probe| probe < ack);
        }
    }

    /// The peer has confirmed everything before that number; `outstanding` says whether more was sent.
    pub(super) fn progress(&mut self, now: Instant, path: &Path, una: Psn, outstanding: bool) {
        let Self {
            left,
            rnr_left,
            ack,
            probe,
            probes,
            probed,
            rtt,
            rnr,
            restarted,
        } = self;
        rtt.answered(una, now);
        *probed = match *probed {
            Some((psn, false)) => Some((psn, true)),
            _ => None,
        };
        // Field by field: the rest is as in the beginning, and what was measured is not moved.
        (*left, *rnr_left, *probes, *restarted) = (None, None, 0, false);
        (*ack, *probe, *rnr) = (None, None, None);
        if outstanding {
            self.sent(now, path);
        }
    }

    /// Something is missing at the peer. Returns whether to send again.
    pub(super) fn missing(&mut self, path: &Path) -> Verdict {
        if self.restarted || self.rnr.is_some() {
            return Verdict::Wait;
        }
        self.restarted = true;
        self.again(path)
    }

    /// The missing packets are being sent again.
    pub(super) fn repeats(&mut self) {
        self.restarted = true;
        self.probed = None;
        self.rtt.repeated();
    }

    /// Whether an answer is missed, and how often since the peer last confirmed something. The peer is asked again
    /// then, and that is not counted against `retry_cnt`.
    pub(super) fn misses(&mut self, now: Instant, una: Psn) -> Option<u32> {
        self.probe
            .take_if(|probe| self.rnr.is_none() && *probe <= now)?;
        self.probes += 1;
        self.probed = Some((una, false));
        self.restarted = false;
        self.rtt.missed();
        Some(self.probes)
    }

    /// An answer arrived to what is confirmed already.
    pub(super) fn answered_again(&mut self, psn: Psn) {
        let answers = |probed: &mut (Psn, bool)| probed.1 && psn.since(probed.0) >= 0;
        if self.probed.take_if(answers).is_some() {
            self.rtt.was_early();
        }
    }

    /// Whether the peer has been silent for too long by now.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.rnr.is_none() && self.ack.is_some_and(|deadline| deadline <= now)
    }

    /// The peer was silent for too long. Returns whether to send again.
    pub(super) fn silent(&mut self, path: &Path) -> Verdict {
        self.restarted = false;
        self.rtt.missed();
        self.again(path)
    }

    fn again(&mut self, path: &Path) -> Verdict {
        (self.ack, self.probe) = (None, None);
        take(&mut self.left, path.retry_cnt)
    }

    /// The peer has no receive. Returns whether to wait as long as it asks for.
    pub(super) fn not_ready(&mut self, now: Instant, path: &Path, code: u8) -> Verdict {
        if self.rnr.is_some() {
            return Verdict::Wait;
        }
        (self.ack, self.probe) = (None, None);
        let verdict = match path.rnr_retry {
            RNR_FOREVER => Verdict::Again,
            limit => take(&mut self.rnr_left, limit),
        };
        if verdict == Verdict::Again {
            self.rnr = Some(now + rnr_delay(code));
        }
        verdict
    }

    /// Ends the wait that the peer asked for, if it is over. Returns whether it was.
    pub(super) fn end_wait(&mut self, now: Instant) -> bool {
        let over = self.rnr.is_some_and(|until| until <= now);
        if over {
            self.rnr = None;
        }
        over
    }
}

/// The reaction to a missing answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// What has been done already is enough.
    Wait,
    /// Everything that is not confirmed is to be sent again.
    Again,
    /// It was tried as often as permitted.
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
