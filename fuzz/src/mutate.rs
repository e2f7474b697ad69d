//! Inputs from a corpus and a seed.

/// Values at which behaviour often changes.
const EDGES: [u8; 10] = [0, 1, 2, 3, 4, 0x7f, 0x80, 0x81, 0xfe, 0xff];

/// Makes inputs: stored ones with changes, two of them spliced, and noise. The same seed gives the same inputs.
#[derive(Clone, Debug)]
pub struct Mutator {
    seed: u64,
    corpus: Vec<Vec<u8>>,
    longest: usize,
}

impl Mutator {
    /// Over those stored inputs, for inputs of up to `longest` bytes.
    pub fn new(corpus: Vec<Vec<u8>>, longest: usize) -> Self {
        Self {
            seed: 0,
            corpus,
            longest,
        }
    }

    /// The input of that number. It does not depend on earlier ones, so that an input that fails can be made again
    /// without the others.
    pub fn input(&mut self, seed: u64, number: u64, input: &mut Vec<u8>) {
        // SplitMix64 keeps the streams of neighbouring numbers apart.
        self.seed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        input.clear();
        if self.corpus.is_empty() || self.below(8) == 0 {
            self.noise(input);
        } else {
            let one = self.below(self.corpus.len());
            input.extend_from_slice(&self.corpus[one]);
            if self.below(4) == 0 {
                let other = self.below(self.corpus.len());
                self.splice(other, input);
            }
        }
        // One in sixteen is used unchanged: stored inputs are worth running under every build.
        let changes = self.below(16).min(8);
        for _ in 0..changes {
            self.change(input);
        }
        input.truncate(self.longest);
    }

    fn next(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        match self.below(3) {
            0 => EDGES[self.below(EDGES.len())],
            _ => self.next().to_le_bytes()[0],
        }
    }

    fn noise(&mut self, input: &mut Vec<u8>) {
        let most = [16, 64, 256, self.longest][self.below(4)].min(self.longest);
        let len = self.below(most + 1);
        input.extend((0..len).map(|_| self.byte()));
    }

    /// The head of the input, and the tail of a stored one.
    fn splice(&mut self, other: usize, input: &mut Vec<u8>) {
        let head = self.below(input.len() + 1);
        let from = self.below(self.corpus[other].len() + 1);
        input.truncate(head);
        input.extend_from_slice(&self.corpus[other][from..]);
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        if input.is_empty() {
            return self.noise(input);
        }
        let at = self.below(input.len());
        let len = 1 + self.below(8).min(input.len() - at - 1);
        match self.below(9) {
            0 => input[at] ^= 1 << self.below(8),
            1 => input[at] = self.byte(),
            2 => input[at] = input[at].wrapping_add(1 + self.below(8) as u8),
            3 => input[at] = input[at].wrapping_sub(1 + self.below(8) as u8),
            4 => input[at..at + len].fill_with(|| self.byte()),
            5 => drop(input.drain(at..at + len)),
            6 => {
                let byte = self.byte();
                input.splice(at..at, std::iter::repeat_n(byte, len));
            }
            7 => {
                // Repetition: the same command twice, the same table.
                let from = self.below(input.len());
                let end = (from + 1 + self.below(64)).min(input.len());
                let again = input[from..end].to_vec();
                input.splice(at..at, again);
            }
            _ => input.truncate(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_follow_from_seed_and_number() {
        let mut mutator = Mutator::new(vec![vec![1; 40], vec![2; 80]], 64);
        let (mut one, mut again, mut other) = (Vec::new(), Vec::new(), Vec::new());
        let mut differ = 0;
        for number in 0..200 {
            mutator.input(7, number, &mut one);
            assert!(one.len() <= 64);
            mutator.input(8, number, &mut other);
            differ += u32::from(one != other);
            mutator.input(7, number, &mut again);
            assert_eq!(one, again);
        }
        assert!(differ > 150, "{differ} of 200");
    }
}
