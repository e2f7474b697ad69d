//! What numbers that others see are drawn from: keys, queue pair numbers, packet sequence numbers,
//! communication ids.
//!
//! A peer sees some of them, and may reach memory or disturb a connection if it can tell others. So outside
//! simulations they come from a cipher whose key is the system's entropy. Simulations draw them from a
//! number, so that a run repeats.

use std::fmt;
use std::hash::Hasher;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use siphasher::sip::SipHasher24;

/// Where a sequence of numbers begins, and whether others can tell how it goes on.
///
/// ```
/// use verbs_core::mem::MrTable;
/// use verbs_core::{Seed, seed::Draws};
///
/// // Repeats; a reader of some numbers can work out all others.
/// let (mut one, mut same) = (Draws::new(7), Draws::new(7));
/// assert_eq!(one.draw(), same.draw());
/// // Does not, and no reader can.
/// let (mut one, mut other) = (Draws::new(Seed::from_system()), Draws::new(Seed::from_system()));
/// assert_ne!(one.draw(), other.draw());
/// ```
#[derive(Clone, Copy)]
pub struct Seed(Kind);

#[derive(Clone, Copy)]
enum Kind {
    Number(u64),
    Secret([u8; 16]),
}

impl Seed {
    /// A secret key: as long as it is unknown, numbers that were seen do not help to tell others.
    pub const fn secret(key: [u8; 16]) -> Self {
        Self(Kind::Secret(key))
    }

    /// A secret key of the system's entropy. Waits for nothing once the system has started.
    pub fn from_system() -> Self {
        let mut key = [0; 16];
        fill(&mut key);
        Self::secret(key)
    }

    /// The number, if it is one: the sequence repeats, and is no secret.
    pub fn number(&self) -> Option<u64> {
        match self.0 {
            Kind::Number(number) => Some(number),
            Kind::Secret(_) => None,
        }
    }
}

impl From<u64> for Seed {
    fn from(number: u64) -> Self {
        Self(Kind::Number(number))
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Number(number) => write!(f, "Seed({number})"),
            Kind::Secret(_) => f.write_str("Seed(secret)"),
        }
    }
}

/// Fills the bytes from the system's entropy.
fn fill(bytes: &mut [u8]) {
    let mut filled = 0;
    // At most 256 bytes come whole, once the system has gathered entropy after its start.
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "no entropy: keys and numbers can be guessed");
                break;
            }
        }
    }
}

/// The sequence of a [`Seed`].
///
/// Of a secret seed it is SipHash-2-4 of 0, 1, 2 and so on under that key: a pseudo-random function, so the
/// numbers are not to be told from random ones, however many of them are known. Of a number it is SplitMix64,
/// which anyone can turn round.
pub struct Draws(Source);

enum Source {
    Mixed(u64),
    Ciphered { cipher: SipHasher24, drawn: u64 },
}

impl Draws {
    /// The sequence that begins there.
    pub fn new(seed: impl Into<Seed>) -> Self {
        Self(match seed.into().0 {
            Kind::Number(number) => Source::Mixed(number),
            Kind::Secret(key) => Source::Ciphered {
                cipher: SipHasher24::new_with_key(&key),
                drawn: 0,
            },
        })
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        match &mut self.0 {
            Source::Mixed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            Source::Ciphered { cipher, drawn } => {
                let mut cipher = *cipher;
                cipher.write_u64(*drawn);
                *drawn += 1;
                cipher.finish()
            }
        }
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // Below 2^64 because `end` is.
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }
}

impl fmt::Debug for Draws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draws").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    /// What SplitMix64 has mixed, turned round: the state that gave this number.
    fn turned_round(number: u64) -> u64 {
        let unshift = |z: u64, by: u32| (0..64 / by).fold(z, |x, _| z ^ (x >> by));
        let inverse = |odd: u64| {
            (0..6).fold(odd, |x, _| {
                x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)))
            })
        };
        let z = unshift(number, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
        let z = unshift(z, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
        unshift(z, 30)
    }

    /// Whether a reader of a number knows the one that follows.
    fn is_told_by_the_one_before(seed: Seed) -> bool {
        let mut draws = Draws::new(seed);
        (0..1000).any(|_| {
            let state = turned_round(draws.draw());
            Draws::new(state).draw() == draws.draw()
        })
    }

    #[test]
    fn a_number_that_was_seen_tells_the_next_only_without_a_secret() {
        assert!(
            is_told_by_the_one_before(Seed::from(42)),
            "the attack works"
        );
        assert!(!is_told_by_the_one_before(Seed::secret([7; 16])));
        assert!(!is_told_by_the_one_before(Seed::from_system()));
    }

    /// Goal: it is SipHash-2-4. Method: the vector of its authors for the bytes 0 to 7.
    #[test]
    fn the_cipher_is_the_one_that_is_named() {
        let key = std::array::from_fn(|n| n as u8);
        let mut draws = Draws(Source::Ciphered {
            cipher: SipHasher24::new_with_key(&key),
            drawn: u64::from_le_bytes(std::array::from_fn(|n| n as u8)),
        });
        assert_eq!(draws.draw(), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut draws = Draws::new(Seed::secret([1; 16]));
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[draws.below(7) as usize] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }

    #[test]
    fn a_secret_is_not_printed() {
        let text = format!(
            "{:?} {:?}",
            Seed::secret([9; 16]),
            Draws::new(Seed::secret([9; 16]))
        );
        assert_eq!(text, "Seed(secret) Draws { .. }");
    }
}
