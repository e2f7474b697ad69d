//! Randomness from a seed. Draws are integers only, so that a run repeats on every machine.

use std::ops::Range;

use verbs_core::Seed;
use verbs_core::seed::Draws;

/// A generator of numbers: the same seed gives the same sequence.
///
/// If the seed is a secret, an observer of some of the numbers cannot predict the others. If it is a number, as in
/// simulations, the sequence repeats and can be worked out from a few of its numbers.
#[derive(Debug)]
pub struct Rng(Source);

#[derive(Debug)]
enum Source {
    Repeats(oorandom::Rand64),
    Secret(Draws),
}

impl Rng {
    /// The sequence of that seed.
    pub fn new(seed: impl Into<Seed>) -> Self {
        let seed = seed.into();
        Self(match seed.number() {
            Some(number) => Source::Repeats(oorandom::Rand64::new(u128::from(number))),
            None => Source::Secret(Draws::new(seed)),
        })
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        match &mut self.0 {
            Source::Repeats(rand) => rand.rand_u64(),
            Source::Secret(draws) => draws.draw(),
        }
    }

    /// A number within a range of 24-bit numbers, which must not be empty.
    pub fn within(&mut self, range: Range<u32>) -> u32 {
        let (start, end) = (u64::from(range.start), u64::from(range.end));
        let drawn = match &mut self.0 {
            Source::Repeats(rand) => rand.rand_range(start..end),
            Source::Secret(draws) => start + draws.below(end - start),
        };
        // Below 2^32 because the range is.
        (drawn & 0xffff_ffff) as u32
    }
}

/// A number from the system that no other process can guess.
pub fn system_entropy() -> u64 {
    Draws::new(Seed::from_system()).draw()
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
        for mut rng in [Rng::new(1), Rng::new(Seed::secret([1; 16]))] {
            let mut seen = [false; 3];
            for _ in 0..1000 {
                let drawn = rng.within(16..19);
                seen[drawn as usize - 16] = true;
            }
            assert_eq!(seen, [true; 3]);
        }
    }
}
