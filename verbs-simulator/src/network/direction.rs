//! One direction from a port to another: when packets leave, and what becomes of them.

use std::time::Duration;

use arrayvec::ArrayVec;
use verbs_link::time::Instant;

use crate::Draw;
use crate::network::{Hits, LinkConfig};

/// The ECN bits of a traffic class: not capable of it, and congestion experienced.
const ECN: u8 = 0b11;

/// See the module's documentation.
pub(super) struct Direction {
    pub(super) config: LinkConfig,
    pub(super) hits: Hits,
    /// When the last packet has left.
    busy_until: Instant,
    /// When the last packet that is not late arrives.
    arrived: Instant,
}

/// A packet as it arrives.
pub(super) struct Copy {
    pub(super) at: Instant,
    pub(super) tclass: u8,
    pub(super) bytes: Box<[u8]>,
}

impl Direction {
    pub(super) fn new(config: LinkConfig) -> Self {
        Self {
            config,
            hits: Hits::default(),
            busy_until: Instant::ZERO,
            arrived: Instant::ZERO,
        }
    }

    /// Whether the sender has to wait until there is room for that many bytes.
    pub(super) fn pushes_back(&self, now: Instant, len: usize) -> bool {
        let waiting = self.waiting(now);
        self.config.lossless && waiting != 0 && waiting + len > self.config.queue
    }

    /// Bytes that wait for their departure.
    fn waiting(&self, now: Instant) -> usize {
        let nanos = self.busy_until.since(now).as_nanos();
        let bytes = nanos * u128::from(self.config.rate) / NANOS_PER_SECOND;
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Carries a packet: as many copies of it as arrive.
    pub(super) fn carry(
        &mut self,
        now: Instant,
        draw: &mut Draw,
        bytes: &[u8],
        tclass: u8,
    ) -> ArrayVec<Copy, 2> {
        let config = self.config;
        let waiting = self.waiting(now);
        let mut copies = ArrayVec::new();
        if !config.lossless && waiting + bytes.len() > config.queue {
            self.hits.dropped += 1;
            return copies;
        }
        let time = bytes.len() as u128 * NANOS_PER_SECOND / u128::from(config.rate.max(1));
        let time = Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX));
        self.busy_until = self.busy_until.max(now) + time;
        // Every packet takes the same draws, whatever becomes of it.
        let lost = draw.chance(config.loss);
        let twice = draw.chance(config.duplication);
        let late = [(); 2].map(|()| {
            let late = draw.chance(config.reordering);
            let by = draw.duration(Duration::ZERO..=config.delay);
            if late { by } else { Duration::ZERO }
        });
        let damaged = draw.chance(config.corruption).then(|| damage(draw, bytes));
        if lost {
            self.hits.lost += 1;
            return copies;
        }
        let mut tclass = tclass;
        if config.marking && tclass & ECN != 0 && waiting > config.queue / 2 {
            tclass |= ECN;
            self.hits.marked += 1;
        }
        self.hits.duplicated += u64::from(twice);
        self.hits.corrupted += u64::from(damaged.is_some());
        self.hits.reordered += late.iter().filter(|late| !late.is_zero()).count() as u64;
        // A direction whose latency decreases lets no packet overtake another; only reordering does.
        let arrival = self.arrived.max(self.busy_until + config.latency);
        self.arrived = arrival;
        let whole: Box<[u8]> = bytes.into();
        if twice {
            let (at, bytes) = (arrival + late[1], whole.clone());
            copies.push(Copy { at, tclass, bytes });
        }
        let (at, bytes) = (arrival + late[0], damaged.unwrap_or(whole));
        copies.insert(0, Copy { at, tclass, bytes });
        copies
    }
}

/// The packet with up to three bits inverted, or without its end.
fn damage(draw: &mut Draw, bytes: &[u8]) -> Box<[u8]> {
    if draw.below(8) == 0 {
        let len = draw.below(bytes.len());
        return bytes[..len].into();
    }
    let mut damaged: Box<[u8]> = bytes.into();
    for _ in 0..=draw.below(3) {
        if !damaged.is_empty() {
            let bit = draw.below(damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
    }
    damaged
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;
