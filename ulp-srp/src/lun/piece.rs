//! A piece of memory through which blocks are moved.

use std::fmt;
use std::ops::Range;

use verbs_core::sync::Arc;
use verbs_core::{Error, Memory};

/// The owner of a piece of memory, which gets it back after the last holder has dropped it.
pub trait Returned: Send + Sync + fmt::Debug {
    /// Takes the range of the piece back. Never blocks.
    fn take_back(&self, range: Range<usize>);
}

/// Part of a piece of memory, held by the code that moves bytes through it. Clones are the same part: the lender
/// gets it back when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Piece {
    memory: Arc<Memory>,
    range: Range<usize>,
    _held: Option<Arc<Held>>,
}

#[derive(Debug)]
struct Held {
    range: Range<usize>,
    owner: Arc<dyn Returned>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.owner.take_back(self.range.clone());
    }
}

impl Piece {
    /// All of that memory.
    pub fn of(memory: Arc<Memory>) -> Self {
        Self {
            range: 0..memory.len(),
            memory,
            _held: None,
        }
    }

    /// Part of that memory; it returns to `owner` in the end.
    pub fn lent(memory: Arc<Memory>, range: Range<usize>, owner: Arc<dyn Returned>) -> Self {
        let held = Held {
            range: range.clone(),
            owner,
        };
        Self {
            memory,
            range,
            _held: Some(Arc::new(held)),
        }
    }

    /// A part of this piece, relative to its beginning, cut to the bytes that exist.
    pub fn part(&self, range: Range<usize>) -> Self {
        let end = self
            .range
            .end
            .min(self.range.start.saturating_add(range.end));
        let start = end.min(self.range.start.saturating_add(range.start));
        Self {
            range: start..end,
            ..self.clone()
        }
    }

    /// The memory that contains it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The range within the memory.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Copies bytes out, from `at` on, relative to its beginning.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the piece.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Error> {
        self.memory.read(self.place(at, into.len())?, into)
    }

    /// Copies bytes in, from `at` on, relative to its beginning.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the piece.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), Error> {
        self.memory.write(self.place(at, from.len())?, from)
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        // The piece lies within its memory, and this is all of it.
        let read = self.memory.read(self.range.start, &mut bytes);
        debug_assert_eq!(read, Ok(()));
        bytes
    }

    fn place(&self, at: usize, len: usize) -> Result<usize, Error> {
        let end = at.checked_add(len).filter(|end| *end <= self.len());
        end.map(|_| self.range.start + at).ok_or(Error::OutOfRange {
            end: verbs_core::ByteCount::new(at.saturating_add(len) as u64),
            size: verbs_core::ByteCount::new(self.len() as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Back(Mutex<Vec<Range<usize>>>);

    impl Returned for Back {
        fn take_back(&self, range: Range<usize>) {
            self.0.lock().push(range);
        }
    }

    #[test]
    fn a_piece_goes_back_with_its_last_holder() {
        let memory = Arc::new(Memory::alloc(4096).unwrap());
        let back = Arc::new(Back::default());
        let owner: Arc<dyn Returned> = Arc::<Back>::clone(&back);
        let piece = Piece::lent(Arc::clone(&memory), 1024..2048, owner);
        let part = piece.part(1000..5000);
        assert_eq!((part.len(), part.range()), (24, 2024..2048));
        part.write(20, b"last").unwrap();
        assert!(part.write(21, b"last").is_err());
        drop(piece);
        assert!(back.0.lock().is_empty(), "a part of it is held");
        assert_eq!(&part.to_vec()[20..], b"last");
        drop(part);
        assert_eq!(*back.0.lock(), vec![1024..2048], "whole, and once");
    }
}
