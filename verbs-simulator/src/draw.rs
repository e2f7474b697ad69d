//! Draws of a run: integers, each from a stream of the seed.

use std::ops::RangeInclusive;
use std::time::Duration;

use verbs_link::rng::Rng;

/// A stream of draws. Parts of a run draw from streams of their own ([`Draw::fork`]), so that a part
/// that draws less leaves the others as they were.
#[derive(Debug)]
pub struct Draw(Rng);

/// A chance in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ppm(pub u32);

impl Ppm {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(1_000_000);

    /// So many in a hundred.
    pub const fn percent(percent: u32) -> Self {
        Self(percent * 10_000)
    }
}

impl Draw {
    /// The stream of that seed.
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// A stream of its own.
    pub fn fork(&mut self) -> Self {
        Self::new(self.number())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number of the range, each equally likely up to one part in 2^64.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start(), *range.end());
        let values = u128::from(high.saturating_sub(low)) + 1;
        // The upper half of the product lies below `values`, which fits whenever `values` does.
        let offset = (u128::from(self.number()) * values) >> 64;
        low.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }

    /// A number below `count`; 0 if that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        let last = count.saturating_sub(1) as u64;
        usize::try_from(self.within(0..=last)).unwrap_or(0)
    }

    /// A duration of the range, to the nanosecond.
    pub fn duration(&mut self, range: RangeInclusive<Duration>) -> Duration {
        let nanos = |duration: &Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.within(nanos(range.start())..=nanos(range.end())))
    }

    /// Whether an event of that chance happens.
    pub fn chance(&mut self, chance: Ppm) -> bool {
        self.within(0..=999_999) < u64::from(chance.0)
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// Fills a buffer.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.number().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_reach_both_ends_of_their_range_and_leave_it_never() {
        let mut draw = Draw::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| draw.within(7..=9)).collect();
        assert!((7..=9).all(|value| drawn.contains(&value)));
        assert!(drawn.iter().all(|value| (7..=9).contains(value)));
        assert_eq!(draw.within(5..=5), 5);
        assert_eq!(draw.below(0), 0);
    }

    #[test]
    fn chances_are_kept() {
        let mut draw = Draw::new(2);
        let hits = (0..100_000)
            .filter(|_| draw.chance(Ppm::percent(10)))
            .count();
        assert!((9_000..11_000).contains(&hits), "{hits}");
        assert!(!draw.chance(Ppm::NEVER));
        assert!(draw.chance(Ppm::ALWAYS));
    }
}
