//! The queue of a switch before a port: all packets to the port share it, and it marks them for congestion.

use std::time::Duration;

use verbs_link::time::Instant;

use crate::{Draw, Ppm};

/// The ECN bits of a traffic class; all of them: congestion experienced.
const ECN: u8 = 0b11;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The queue of a switch before a port. By default it serves 10 Gbit/s and marks as the paper on DCQCN has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchQueue {
    /// Bytes per second; 1.25 GB/s by default.
    pub rate: u64,
    /// The most bytes that wait; further packets are lost. 4 MB by default.
    pub limit: usize,
    /// Below this nothing is marked, Kmin; 5 kB by default.
    pub mark_min: usize,
    /// From this on every packet is marked, Kmax; 200 kB by default.
    pub mark_max: usize,
    /// The packets that are marked just below `mark_max`, Pmax, falling to none at `mark_min`; 1 % by default.
    pub marking: Ppm,
}

impl Default for SwitchQueue {
    fn default() -> Self {
        Self {
            rate: 1_250_000_000,
            limit: 4_000_000,
            mark_min: 5_000,
            mark_max: 200_000,
            marking: Ppm::percent(1),
        }
    }
}

impl SwitchQueue {
    /// The chance that a packet is marked when that many bytes wait before it.
    pub(crate) fn chance(&self, waiting: usize) -> Ppm {
        if waiting >= self.mark_max {
            return Ppm::ALWAYS;
        }
        let above = waiting.saturating_sub(self.mark_min) as u64;
        let width = self.mark_max.saturating_sub(self.mark_min).max(1) as u64;
        Ppm(u32::try_from(u64::from(self.marking.0) * above / width).unwrap_or(u32::MAX))
    }
}

/// What a switch's queue has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QueueHits {
    /// Packets that have passed.
    pub passed: u64,
    /// Those of them that were marked.
    pub marked: u64,
    /// Packets lost because the queue was full.
    pub dropped: u64,
    /// The most bytes that have waited.
    pub longest: usize,
}

/// See the module's documentation.
pub(super) struct Egress {
    pub(super) config: SwitchQueue,
    pub(super) hits: QueueHits,
    /// When the last packet has left.
    busy_until: Instant,
}

impl Egress {
    pub(super) fn new(config: SwitchQueue) -> Self {
        Self {
            config,
            hits: QueueHits::default(),
            busy_until: Instant::ZERO,
        }
    }

    /// Bytes that have not left yet.
    pub(super) fn waiting(&self, now: Instant) -> usize {
        let nanos = self.busy_until.since(now).as_nanos();
        let waiting = nanos * u128::from(self.config.rate) / NANOS_PER_SECOND;
        usize::try_from(waiting).unwrap_or(usize::MAX)
    }

    /// Takes a packet of that length, which is marked if need be. Returns when it has left; `None` if it is lost.
    pub(super) fn pass(
        &mut self,
        now: Instant,
        draw: &mut Draw,
        len: usize,
        tclass: &mut u8,
    ) -> Option<Instant> {
        let config = self.config;
        let waiting = self.waiting(now);
        if waiting.saturating_add(len) > config.limit {
            self.hits.dropped += 1;
            return None;
        }
        self.hits.passed += 1;
        self.hits.longest = self.hits.longest.max(waiting + len);
        if *tclass & ECN != 0 && draw.chance(config.chance(waiting)) {
            *tclass |= ECN;
            self.hits.marked += 1;
        }
        let time = len as u128 * NANOS_PER_SECOND / u128::from(config.rate.max(1));
        let time = Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX));
        self.busy_until = self.busy_until.max(now) + time;
        Some(self.busy_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_begin_at_kmin_and_are_certain_from_kmax_on() {
        let config = SwitchQueue::default();
        let marked = [0, 5_000, 102_500, 199_999, 200_000].map(|waiting| config.chance(waiting));
        let expected = [0, 0, 5_000, 9_999, 1_000_000].map(Ppm);
        assert_eq!(marked, expected);
    }

    /// Goal: packets leave at the rate, wait behind each other, are lost beyond the limit, and are only marked if they
    /// say that they may be.
    #[test]
    fn a_queue_serves_at_its_rate() {
        let config = SwitchQueue {
            rate: 1_000_000_000,
            limit: 3_000,
            mark_min: 0,
            mark_max: 1,
            marking: Ppm::NEVER,
        };
        let (mut egress, mut draw) = (Egress::new(config), Draw::new(1));
        let at = Instant::from_nanos;
        let mut pass = |now: u64, tclass: u8| {
            let mut tclass = tclass;
            let left = egress.pass(at(now), &mut draw, 1_000, &mut tclass);
            (left.map(|left| left.as_nanos()), tclass)
        };
        assert_eq!(pass(0, 2), (Some(1_000), 2), "nothing waits");
        assert_eq!(pass(0, 2), (Some(2_000), 3));
        assert_eq!(pass(0, 0), (Some(3_000), 0), "not capable");
        assert_eq!(pass(0, 2), (None, 2), "full");
        assert_eq!(pass(1_500, 1), (Some(4_000), 3));
        assert_eq!(pass(9_000, 1), (Some(10_000), 1));
        let expected = QueueHits {
            passed: 5,
            marked: 2,
            dropped: 1,
            longest: 3_000,
        };
        assert_eq!(egress.hits, expected);
    }
}
