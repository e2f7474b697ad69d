//! The properties of a direction of the network between two ports, and the faults that have occurred on it.

use std::ops::Add;
use std::time::Duration;

use crate::Ppm;

/// The properties of one direction between two ports. By default there are no faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// From the departure of a packet to its arrival; 2 us by default, a switch and some metres.
    pub latency: Duration,
    /// Bytes per second; 12.5 GB/s by default, which is 100 Gbit/s.
    pub rate: u64,
    /// The most bytes that wait for their departure; 1 MiB by default.
    pub queue: usize,
    /// Whether a full queue makes the sender wait instead of losing packets; off by default.
    pub lossless: bool,
    /// Packets that are lost.
    pub loss: Ppm,
    /// Packets that arrive twice.
    pub duplication: Ppm,
    /// Packets that arrive later than the packets behind them.
    pub reordering: Ppm,
    /// The largest delay of such a packet.
    pub delay: Duration,
    /// Packets in which bits are inverted, or whose end is missing.
    pub corruption: Ppm,
    /// Packets that are marked for congestion when more than half of the queue waits.
    pub marking: bool,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(2),
            rate: 12_500_000_000,
            queue: 1 << 20,
            lossless: false,
            loss: Ppm::NEVER,
            duplication: Ppm::NEVER,
            reordering: Ppm::NEVER,
            delay: Duration::from_micros(20),
            corruption: Ppm::NEVER,
            marking: false,
        }
    }
}

impl LinkConfig {
    /// The same direction without faults.
    pub fn healed(self) -> Self {
        Self {
            loss: Ppm::NEVER,
            duplication: Ppm::NEVER,
            reordering: Ppm::NEVER,
            corruption: Ppm::NEVER,
            queue: Self::default().queue,
            ..self
        }
    }

    /// Whether packets can get lost on it.
    pub fn loses(&self) -> bool {
        self.loss > Ppm::NEVER || self.corruption > Ppm::NEVER
    }
}

/// How often faults have occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hits {
    /// Packets lost at random.
    pub lost: u64,
    /// Packets lost because the queue was full.
    pub dropped: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that others overtook.
    pub reordered: u64,
    /// Packets damaged.
    pub corrupted: u64,
    /// Packets marked for congestion.
    pub marked: u64,
}

impl Add for Hits {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            lost: self.lost + other.lost,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            corrupted: self.corrupted + other.corrupted,
            marked: self.marked + other.marked,
        }
    }
}
