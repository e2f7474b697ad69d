//! Randomness that a seed decides. Draws are integers only, so that a run repeats on every machine.

use std::ops::Range;

/// A generator of numbers: the same seed gives the same sequence.
///
/// Not for secrets. It makes queue pair numbers, sequence numbers and keys hard to guess for
/// programs that would otherwise come to rely on them.
#[derive(Debug)]
pub(crate) struct Rng(oorandom::Rand64);

impl Rng {
    /// The sequence of that seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(oorandom::Rand64::new(u128::from(seed)))
    }

    /// The next number.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0.rand_u64()
    }

    /// A number within a range of 24-bit numbers, which must not be empty.
    pub(crate) fn within(&mut self, range: Range<u32>) -> u32 {
        let range = u64::from(range.start)..u64::from(range.end);
        // Below 2^32 because the range is.
        (self.0.rand_range(range) & 0xffff_ffff) as u32
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_sequence() {
        let draws = |seed| {
            let mut rng = Rng::new(seed);
            [(); 4].map(|()| rng.draw())
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn draws_stay_within_their_range() {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            assert!((16..19).contains(&rng.within(16..19)));
        }
    }
}
