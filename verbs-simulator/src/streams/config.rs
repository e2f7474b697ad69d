//! The properties of streams, and the faults that have occurred on them.

use std::fmt;
use std::time::Duration;

use crate::Ppm;

/// The properties of all streams of a [`StreamNetwork`](crate::StreamNetwork). By default there are no faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// From the departure of bytes to their arrival; 2 us by default.
    pub latency: Duration,
    /// Bytes per second; 12.5 GB/s by default, which is 100 Gbit/s.
    pub rate: u64,
    /// The most bytes that have been sent and not been read, in one direction; 256 KiB by default.
    pub window: usize,
    /// The maximum segment size that sockets report; 1448 by default.
    pub segment: usize,
    /// Whether what is sent in one call arrives in several pieces of any length; off by default.
    pub splits: bool,
    /// Pieces that arrive later than they should. What is behind them arrives with them, as one.
    pub delays: Ppm,
    /// The largest delay of such a piece.
    pub delay: Duration,
    /// Pieces at which the connection is reset: both ends lose it.
    pub resets: Ppm,
    /// Pieces behind which their direction ends: the receiver reads the end there, and the sender is not told.
    pub half_closes: Ppm,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(2),
            rate: 12_500_000_000,
            window: 256 << 10,
            segment: 1448,
            splits: false,
            delays: Ppm::NEVER,
            delay: Duration::from_micros(20),
            resets: Ppm::NEVER,
            half_closes: Ppm::NEVER,
        }
    }
}

impl StreamConfig {
    /// The same without what ends connections.
    pub fn healed(self) -> Self {
        Self {
            resets: Ppm::NEVER,
            half_closes: Ppm::NEVER,
            ..self
        }
    }

    /// Whether connections can end.
    pub fn breaks(&self) -> bool {
        self.resets > Ppm::NEVER || self.half_closes > Ppm::NEVER
    }
}

impl fmt::Display for StreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (latency, rate) = (self.latency, self.rate / 1_000_000);
        write!(
            f,
            "{latency:?} at {rate} MB/s, windows of {} bytes",
            self.window
        )?;
        if self.splits {
            f.write_str(", split")?;
        }
        let odds = [
            (self.delays, "delays"),
            (self.resets, "resets"),
            (self.half_closes, "half closes"),
        ];
        for (Ppm(ppm), name) in odds.into_iter().filter(|&(odds, _)| odds > Ppm::NEVER) {
            write!(f, ", {name} {}.{} %", ppm / 10_000, ppm / 1_000 % 10)?;
        }
        Ok(())
    }
}

/// How often faults have occurred on streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StreamHits {
    /// Pieces that were split off what was sent in one call.
    pub split: u64,
    /// Pieces that arrived later than they should.
    pub delayed: u64,
    /// Connections reset.
    pub reset: u64,
    /// Directions that ended.
    pub half_closed: u64,
}
