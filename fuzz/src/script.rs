//! The bytes of an input as decisions.

/// Reads an input as a sequence of decisions. Behind its end all decisions are zero, so that a truncated script still
/// has a meaning.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a> {
    bytes: &'a [u8],
    steps: u32,
}

impl<'a> Script<'a> {
    /// The script in those bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, steps: 0 }
    }

    /// The byte that chooses the next step, as long as there is one and fewer than `most` were taken.
    pub fn step(&mut self, most: u32) -> Option<u8> {
        if self.bytes.is_empty() || self.steps == most {
            return None;
        }
        self.steps += 1;
        Some(self.byte())
    }

    /// Steps taken so far.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((&byte, rest)) => {
                self.bytes = rest;
                byte
            }
            None => 0,
        }
    }

    /// A number below `end`, which is from 1 to 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// One of several values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        // Zero, as for all decisions behind the end, is no.
        self.below(times) == times - 1
    }

    /// Two bytes as a number.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Four bytes as a number.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Eight bytes as a number.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// That many bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// That many of the remaining bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// Changes up to three bytes of `bytes`, and sometimes their number.
    pub fn change(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let (at, value) = (usize::from(self.u16()), self.byte());
            let len = bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at % len) {
                *byte = value;
            }
        }
        match self.below(8) {
            6 => bytes.truncate(usize::from(self.u16()) % (bytes.len() + 1)),
            7 => bytes.extend_from_slice(self.take(64)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_ends_with_its_bytes_or_its_steps() {
        let mut script = Script::new(&[1, 2, 3]);
        assert_eq!((script.step(9), script.u16()), (Some(1), 0x0203));
        assert_eq!(
            (script.step(9), script.byte(), script.steps()),
            (None, 0, 1)
        );
        let mut script = Script::new(&[7; 9]);
        assert_eq!((script.step(1), script.step(1)), (Some(7), None));
        assert!(!script.once_in(5) && script.take(100).len() == 7);
    }
}
