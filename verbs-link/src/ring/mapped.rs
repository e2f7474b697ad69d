//! The two rings of a port, in a file that two processes map.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use verbs_core::Memory;
use verbs_core::mem::Window;
use verbs_core::sync::Arc;

use super::{Reader, Shared, Word, Writer};
use crate::sys;

/// Bytes for the words before each ring, a page.
const WORDS_LEN: usize = 4096;
/// Bytes from one word to the next: two cache lines, because processors fetch them in pairs.
const WORD_STEP: usize = 128;

/// Bytes of the file of two rings of that many bytes. Not a multiple of 2 MiB: see [`sys::map`].
fn file_len(ring_len: usize) -> usize {
    assert!(ring_len.is_power_of_two() && ring_len >= WORDS_LEN);
    2 * (WORDS_LEN + ring_len)
}

/// A file of two rings of that many bytes each, a power of two from 4096 on, which two other processes
/// [open](Rings::open).
///
/// # Errors
/// The system's error.
pub fn file(ring_len: usize) -> io::Result<OwnedFd> {
    sys::create_file(file_len(ring_len))
}

/// A ring in a mapped file.
#[derive(Clone)]
pub struct Mapped {
    memory: Arc<Memory>,
    base: usize,
    len: usize,
}

/// Which end of a pair of rings a process has: each writes to the ring that the other reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It writes to the first ring of the file.
    First,
    /// It writes to the second one.
    Second,
}

/// Both directions between two processes: the ring that is read here, and the one that is written.
#[derive(Debug)]
pub struct Rings {
    /// Messages from the other process.
    pub reader: Reader<Mapped>,
    /// Messages to the other process.
    pub writer: Writer<Mapped>,
}

impl Rings {
    /// Creates rings of that many bytes each, a power of two from 4096 on, and the file through which the other process
    /// opens them, at [`End::Second`].
    ///
    /// # Errors
    /// The system's error.
    pub fn create(ring_len: usize) -> io::Result<(OwnedFd, Self)> {
        let file = file(ring_len)?;
        let rings = Self::open(&file, ring_len, End::First)?;
        Ok((file, rings))
    }

    /// Opens rings of that many bytes each that another process has created.
    ///
    /// # Errors
    /// The system's error; [`InvalidInput`](io::ErrorKind::InvalidInput) if the file is not such a file.
    pub fn open(file: &OwnedFd, ring_len: usize, end: End) -> io::Result<Self> {
        let memory = Arc::new(sys::map(file.as_fd(), file_len(ring_len))?);
        let numbers = match end {
            End::First => [0, 1],
            End::Second => [1, 0],
        };
        Ok(Self::over(&memory, ring_len, numbers))
    }

    /// The memory of both rings of such a file, for whoever checks what is in it: that which [`End::First`] writes to, and
    /// the other one.
    ///
    /// # Errors
    /// As [`Rings::open`].
    pub fn memory(file: &OwnedFd, ring_len: usize) -> io::Result<[Mapped; 2]> {
        let memory = Arc::new(sys::map(file.as_fd(), file_len(ring_len))?);
        Ok([0, 1].map(|number| Mapped::ring(&memory, ring_len, number)))
    }

    /// The first number is the index of the ring that is written.
    fn over(memory: &Arc<Memory>, len: usize, numbers: [usize; 2]) -> Self {
        let [written, read] = numbers.map(|number| Mapped::ring(memory, len, number));
        Self {
            reader: Reader::new(read),
            writer: Writer::new(written),
        }
    }
}

impl Mapped {
    fn ring(memory: &Arc<Memory>, len: usize, number: usize) -> Self {
        Self {
            memory: Arc::clone(memory),
            base: number * (WORDS_LEN + len),
            len,
        }
    }

    fn word_at(&self, word: Word) -> usize {
        self.base + word as usize * WORD_STEP
    }

    fn byte_at(&self, at: u64) -> usize {
        self.base + WORDS_LEN + at as usize
    }
}

/// All accesses are within the file: positions are taken modulo the ring's length, which the file has, and copies
/// end where the ring does.
impl Shared for Mapped {
    fn capacity(&self) -> u64 {
        self.len as u64
    }

    fn load(&self, word: Word) -> u64 {
        let loaded = self.memory.load_u64(self.word_at(word));
        debug_assert!(loaded.is_ok());
        loaded.unwrap_or_default()
    }

    fn store(&self, word: Word, value: u64) {
        let stored = self.memory.store_u64(self.word_at(word), value);
        debug_assert!(stored.is_ok());
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let read = self.memory.read(self.byte_at(at), into);
        debug_assert!(read.is_ok());
    }

    fn write(&self, at: u64, from: &[u8]) {
        let written = self.memory.write(self.byte_at(at), from);
        debug_assert!(written.is_ok());
    }

    fn window(&self, at: u64, len: usize) -> Window<'_> {
        let window = self.memory.window(self.byte_at(at), len);
        debug_assert!(window.is_ok());
        window.unwrap_or(Window::empty())
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}
