//! The two rings of a port, in a file that two processes map.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use verbs_core::Memory;
use verbs_core::sync::Arc;

use super::{Reader, Shared, Word, Writer};
use verbs_link::sys;

/// Bytes of each ring: of messages of 64 KiB, a few that are read while others are written. Half of what a reliable
/// connection has unconfirmed at most, so that it is the ring that holds a sender back and not its receiver that
/// loses packets.
const RING_LEN: usize = 512 << 10;
/// Bytes for the words in front of each ring, a page.
const WORDS_LEN: usize = 4096;
/// Bytes from one word to the next: two lines of a cache, as processors fetch them in pairs.
const WORD_STEP: usize = 128;
/// Bytes of the file. No multiple of 2 MiB: see [`sys::map`].
const FILE_LEN: usize = 2 * (WORDS_LEN + RING_LEN);

/// A ring in a file that is mapped.
#[derive(Clone)]
pub struct Mapped {
    memory: Arc<Memory>,
    base: usize,
}

/// Both ways between two processes: the ring that is read here, and the one that is written.
#[derive(Debug)]
pub struct Rings {
    /// What the other process sends.
    pub reader: Reader<Mapped>,
    /// What is sent to it.
    pub writer: Writer<Mapped>,
}

impl Rings {
    /// New rings, and the file by which the other process opens them.
    ///
    /// # Errors
    /// What the system says.
    pub fn create() -> io::Result<(OwnedFd, Self)> {
        let (file, memory) = sys::create(FILE_LEN)?;
        Ok((file, Self::over(memory, [0, 1])))
    }

    /// The rings that another process has made.
    ///
    /// # Errors
    /// What the system says; [`InvalidInput`](io::ErrorKind::InvalidInput) if the file is another one.
    pub fn open(file: &OwnedFd) -> io::Result<Self> {
        Ok(Self::over(sys::map(file.as_fd(), FILE_LEN)?, [1, 0]))
    }

    /// The first of the numbers is that of the ring that is written.
    fn over(memory: Memory, numbers: [usize; 2]) -> Self {
        let memory = Arc::new(memory);
        let [written, read] = numbers.map(|number| Mapped {
            memory: Arc::clone(&memory),
            base: number * (WORDS_LEN + RING_LEN),
        });
        Self {
            reader: Reader::new(read),
            writer: Writer::new(written),
        }
    }
}

impl Mapped {
    fn word_at(&self, word: Word) -> usize {
        self.base + word as usize * WORD_STEP
    }

    fn byte_at(&self, at: u64) -> usize {
        self.base + WORDS_LEN + at as usize
    }
}

/// All places are within the file: positions are taken modulo the ring's length, which the file has, and what
/// is copied ends where the ring does.
impl Shared for Mapped {
    fn capacity(&self) -> u64 {
        RING_LEN as u64
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
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}
