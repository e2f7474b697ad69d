//! How long answers take.

use std::time::Duration;

use verbs_core::Psn;

use crate::clock::Instant;

/// If no answer was ever measured: more than a round trip within a continent.
pub(super) const FIRST: Duration = Duration::from_millis(100);
/// How long a peer in user space may delay an acknowledgement: its consumer polls now and then, and its threads wait
/// for a processor.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(4);
/// How often the timeout is doubled at most.
const DOUBLINGS_MAX: u32 = 6;
/// The factor for a round trip whose packet was not the one that was answered.
const UNSURE: u64 = 2;

/// The smoothed round trip and its variation, as in RFC 6298, section 2. One packet at a time is timed, but not one
/// that was sent twice or waits for one that was (Karn's rule: its answer might be to either).
#[derive(Debug, Default)]
pub(super) struct Rtt {
    /// The round trip and the variation, in nanoseconds: every answer changes them, and a [`Duration`] is divided in
    /// two parts.
    measured: Option<(u64, u64)>,
    /// A packet that is timed, when it was sent, and whether its answer may be to another.
    timed: Option<(Psn, Instant, bool)>,
    /// How often the timeout is doubled.
    doublings: u32,
}

impl Rtt {
    /// A packet was sent, `again` if not for the first time; `asks` says whether an answer to it is asked for.
    #[inline(always)]
    pub(super) fn sent(&mut self, psn: Psn, asks: bool, again: bool, now: Instant) {
        if again {
            self.timed.take_if(|timed| timed.0 == psn);
        }
        // Until something is measured, an answer that may be to another packet is better than none.
        let is_sure = asks && !again;
        if self.timed.is_none() && (is_sure || self.measured.is_none()) {
            self.timed = Some((psn, now, is_sure));
        }
    }

    /// Something is sent again.
    pub(super) fn repeated(&mut self) {
        match &mut self.timed {
            Some(timed) if self.measured.is_none() => timed.2 = false,
            timed => *timed = None,
        }
    }

    /// An answer is missed: the wait so far says nothing about the path, and the timeout may be too short. It is twice
    /// as long until an answer arrives.
    pub(super) fn missed(&mut self) {
        self.timed = None;
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
    }

    /// Nothing had been lost when an answer was missed: the timeout was too short.
    pub(super) fn was_early(&mut self) {
        if let Some((smoothed, variation)) = &mut self.measured {
            let more = variation.saturating_mul(2).max(*smoothed / 2);
            *variation = more.min(FIRST.as_nanos() as u64);
        }
    }

    /// The smoothed round trip, once one was measured.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.measured
            .map(|(smoothed, _)| Duration::from_nanos(smoothed))
    }

    /// Whether the peer has answered anything.
    pub(super) fn is_measured(&self) -> bool {
        self.measured.is_some()
    }

    /// Everything before that number is answered.
    pub(super) fn answered(&mut self, una: Psn, now: Instant) {
        self.doublings = 0;
        let Some((_, sent, is_sure)) = self.timed.take_if(|timed| una.since(timed.0) > 0) else {
            return;
        };
        let factor = if is_sure { 1 } else { UNSURE };
        let sample = now.as_nanos().saturating_sub(sent.as_nanos());
        let sample = sample.saturating_mul(factor);
        self.measured = Some(match self.measured {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                smoothed - smoothed / 8 + sample / 8,
                variation - variation / 4 + smoothed.abs_diff(sample) / 4,
            ),
        });
    }

    /// The time without an answer after which one is missed (RFC 9002, 6.2.1).
    pub(super) fn timeout(&self) -> Duration {
        let once = self.measured.map_or(FIRST, |(smoothed, variation)| {
            Duration::from_nanos(smoothed.saturating_add(variation.saturating_mul(4))) + ACK_DELAY
        });
        // A single loss is no reason to wait longer.
        once * (1 << self.doublings.saturating_sub(1))
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// Goal: the timeout follows round trips, up fast and down slowly, and what was sent twice is not timed.
    #[test]
    fn the_timeout_follows_round_trips() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), FIRST);
        rtt.sent(Psn::new(0xff_ffff), true, false, at(0));
        rtt.answered(Psn::new(0xff_ffff), at(50));
        assert_eq!(rtt.timeout(), FIRST, "only what was before it is answered");
        rtt.answered(Psn::new(0), at(100));
        assert_eq!(rtt.timeout(), ACK_DELAY + Duration::from_micros(300));
        for n in 1..100 {
            rtt.sent(Psn::new(n), true, false, at(1000 * u64::from(n)));
            rtt.answered(Psn::new(n + 1), at(1000 * u64::from(n) + 100));
        }
        assert!(rtt.timeout() < ACK_DELAY + Duration::from_micros(120));
        rtt.sent(Psn::new(100), true, false, at(0));
        rtt.sent(Psn::new(100), true, true, at(100));
        rtt.answered(Psn::new(101), at(1_000_000));
        assert!(rtt.timeout() < ACK_DELAY + Duration::from_micros(120));
        rtt.sent(Psn::new(101), true, false, at(0));
        rtt.answered(Psn::new(102), at(10_000));
        assert!(rtt.timeout() > ACK_DELAY + Duration::from_millis(10));
    }
}
