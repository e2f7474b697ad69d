//! What became of flows.

use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip128::SipHasher24;

use crate::Digest;

/// What became of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Its hosts.
    pub from: usize,
    /// Where to.
    pub to: usize,
    /// Whether it had no part in the incast.
    pub is_bystander: bool,
    /// From its beginning until its last byte had come.
    pub took: Duration,
    /// How long that would have taken alone.
    pub alone: Duration,
}

impl Completion {
    /// How many times as long as alone.
    pub fn slowdown(&self) -> f64 {
        self.took.as_secs_f64() / self.alone.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What became of a [`FlowRun`](crate::FlowRun).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowReport {
    /// The flows, in the order of their numbers.
    pub flows: Vec<Completion>,
    /// How often a link's end told its sender to pause.
    pub pauses: u64,
    /// Packets that were marked.
    pub marked: u64,
    /// Notifications that senders got.
    pub notified: u64,
    /// The most bytes that have waited for one link.
    pub longest: usize,
    /// When the last flow was complete.
    pub took: Duration,
}

/// How slowdowns of flows are spread: how many times as long they took as alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Flows.
    pub count: usize,
    /// The average.
    pub mean: f64,
    /// The median.
    pub median: f64,
    /// 99 of a hundred were not slower.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl FlowReport {
    /// The slowdowns of all flows that were bystanders, or of all that were not; `None` if there were none.
    pub fn spread(&self, bystanders: bool) -> Option<Spread> {
        let flows = self.flows.iter();
        let asked = flows.filter(|flow| flow.is_bystander == bystanders);
        let mut all: Vec<_> = asked.map(Completion::slowdown).collect();
        all.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| all[(all.len() * part).div_ceil(100).max(1) - 1];
        Some(Spread {
            count: all.len(),
            mean: all.iter().sum::<f64>() / all.len() as f64,
            max: *all.last()?,
            median: at(50),
            p99: at(99),
        })
    }

    /// The digest of when each flow was complete, and of what happened on the way.
    pub fn digest(&self) -> Digest {
        let mut hasher = SipHasher24::new();
        for flow in &self.flows {
            let took = u64::try_from(flow.took.as_nanos()).unwrap_or(u64::MAX);
            for number in [flow.from as u64, flow.to as u64, took] {
                hasher.write(&number.to_le_bytes());
            }
        }
        for count in [self.pauses, self.marked, self.notified, self.longest as u64] {
            hasher.write(&count.to_le_bytes());
        }
        Digest::of(&hasher)
    }
}
