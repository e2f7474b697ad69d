//! A ring in memory that two processes share: whole messages, one way, and no system call as long as both
//! ends are awake.
//!
//! ```text
//!      head (the reader's)              tail (the writer's)
//!   -----|---[len|message..][len|message..]--|----------------
//!        |<-- written, not yet read -------->|<-- room ... -->   positions count bytes and never wrap
//! ```
//!
//! Who has nothing to do says so and looks once more before it sleeps; who changes something looks at that
//! word afterwards, and rings a bell, any way that wakes the other end and is kept until it does:
//!
//! * The reader *sleeps*: [`Watch::sleep`] sets the word, then looks at the tail. The writer moves the tail,
//!   then looks at the word.
//! * The writer *waits* for room: it sets the word, then looks at the head. The reader moves the head, then
//!   looks at the word once half of the ring is free, so that the two do not wake each other for each message.
//!
//! Between the two steps of each stands a sequentially consistent fence, so that at least one of them sees what
//! the other did. A word that is cleared too late or too early costs a bell, as whoever clears the other's word
//! rings afterwards.
//!
//! Nothing that the other end writes is trusted. A position or a length that cannot be makes an end
//! [`Broken`]; messages are copied out before anybody looks at them. An end that never moves fills the ring or
//! leaves it empty, as one does that is stopped.

mod mapped;

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};

pub use mapped::{Mapped, Rings};

/// The other end has written what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end of a ring has written what makes no sense")]
pub struct Broken;

/// Whether the bell is to be rung for the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the other end may sleep until it is rung"]
pub enum Bell {
    /// It sleeps, or waits for room.
    Ring,
    /// It sees by itself.
    Quiet,
}

/// Memory that both ends see: some words, and bytes. Loads acquire, stores release.
pub trait Shared {
    /// Bytes of the ring, a power of two.
    fn capacity(&self) -> u64;
    /// Loads a word.
    fn load(&self, word: Word) -> u64;
    /// Stores a word.
    fn store(&self, word: Word, value: u64);
    /// Copies bytes out, which lie in one piece.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Copies bytes in, to where they lie in one piece.
    fn write(&self, at: u64, from: &[u8]);
}

/// The words of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// What has been written; the writer's.
    Tail,
    /// What has been read; the reader's.
    Head,
    /// The reader sleeps.
    Sleeps,
    /// The writer waits for room.
    Waits,
    /// Messages that the writer has sent another way: those are read before what it writes afterwards.
    Told,
}

/// Bytes in front of a message that say its length; messages begin at multiples of it.
const LEN: u64 = 8;

/// Bytes that a message of that many takes.
const fn room_of(len: usize) -> u64 {
    LEN + (len as u64).next_multiple_of(LEN)
}

/// Copies out of the ring, where it goes round.
fn read_round<S: Shared>(shared: &S, position: u64, into: &mut [u8]) {
    let at = position & (shared.capacity() - 1);
    let first = into.len().min((shared.capacity() - at) as usize);
    let (first, second) = into.split_at_mut(first);
    shared.read(at, first);
    if !second.is_empty() {
        shared.read(0, second);
    }
}

fn write_round<S: Shared>(shared: &S, position: u64, from: &[u8]) {
    let at = position & (shared.capacity() - 1);
    let (first, second) = from.split_at(from.len().min((shared.capacity() - at) as usize));
    shared.write(at, first);
    if !second.is_empty() {
        shared.write(0, second);
    }
}

/// The end that writes.
pub struct Writer<S> {
    shared: S,
    tail: u64,
    told: u64,
    /// The reader was told that it is waited for.
    waits: bool,
    /// The reader's position, as it was seen last.
    head: u64,
}

impl<S: Shared> Writer<S> {
    /// The only one of a new ring.
    pub fn new(shared: S) -> Self {
        Self {
            shared,
            tail: 0,
            told: 0,
            waits: false,
            head: 0,
        }
    }

    /// Bytes of a message at most: half of the ring, so that one fits when the reader rings.
    pub fn longest(&self) -> usize {
        (self.shared.capacity() / 2 - LEN) as usize
    }

    /// Writes a message of `len` bytes, in pieces. `None` if there is no room, and the bell is rung when there
    /// is.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn write<'p>(
        &mut self,
        len: usize,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> Result<Option<Bell>, Broken> {
        debug_assert!(len <= self.longest());
        if !self.has_room(room_of(len))? {
            return Ok(None);
        }
        write_round(&self.shared, self.tail, &(len as u64).to_ne_bytes());
        let mut position = self.tail + LEN;
        for piece in pieces {
            write_round(&self.shared, position, piece);
            position += piece.len() as u64;
        }
        debug_assert_eq!(position, self.tail + LEN + len as u64);
        self.tail += room_of(len);
        self.shared.store(Word::Tail, self.tail);
        fence(SeqCst);
        Ok(Some(take_bell(&self.shared, Word::Sleeps)))
    }

    /// A message was sent another way.
    pub fn tell(&mut self) {
        self.told += 1;
        self.shared.store(Word::Told, self.told);
    }

    /// Whether there is room; if not, the reader is told that it is waited for.
    fn has_room(&mut self, need: u64) -> Result<bool, Broken> {
        let mut has_room = self.free() >= need || self.look()? >= need;
        if !has_room {
            self.waits = true;
            self.shared.store(Word::Waits, 1);
            fence(SeqCst);
            has_room = self.look()? >= need;
        }
        if has_room && std::mem::take(&mut self.waits) {
            self.shared.store(Word::Waits, 0);
        }
        Ok(has_room)
    }

    fn free(&self) -> u64 {
        self.shared.capacity() - (self.tail - self.head)
    }

    /// Bytes that are free now.
    fn look(&mut self) -> Result<u64, Broken> {
        let head = self.shared.load(Word::Head);
        if head < self.head || head > self.tail || !head.is_multiple_of(LEN) {
            return Err(Broken);
        }
        self.head = head;
        Ok(self.free())
    }
}

/// The end that reads.
pub struct Reader<S> {
    shared: S,
    head: u64,
    /// The same, for whoever sleeps: the other end may write to the one that it sees.
    watched: Arc<AtomicU64>,
    /// The writer's position, as it was seen last.
    tail: u64,
    /// The writer has waited for room that there is now.
    rings: bool,
}

impl<S: Shared> Reader<S> {
    /// The only one of a new ring.
    pub fn new(shared: S) -> Self {
        Self {
            shared,
            head: 0,
            watched: Arc::new(AtomicU64::new(0)),
            tail: 0,
            rings: false,
        }
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.shared.capacity() as usize
    }

    /// Whether there is a message.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn has_message(&mut self) -> Result<bool, Broken> {
        if self.head == self.tail {
            let tail = self.shared.load(Word::Tail);
            if tail < self.tail
                || tail - self.head > self.shared.capacity()
                || !tail.is_multiple_of(LEN)
            {
                return Err(Broken);
            }
            self.tail = tail;
        }
        Ok(self.head != self.tail)
    }

    /// How long the next message is, if there is one, as far as its writer says.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn next_len(&mut self) -> Result<Option<usize>, Broken> {
        if !self.has_message()? {
            return Ok(None);
        }
        let mut len = [0; LEN as usize];
        read_round(&self.shared, self.head, &mut len);
        let len = usize::try_from(u64::from_ne_bytes(len)).map_err(|_| Broken)?;
        Ok(Some(len))
    }

    /// Takes a message, if there is one, and says how long it is.
    ///
    /// # Errors
    /// [`Broken`], also for a message that does not fit.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        let Some(len) = self.next_len()? else {
            return Ok(None);
        };
        let into = into.get_mut(..len).ok_or(Broken)?;
        if room_of(len) > self.tail - self.head {
            return Err(Broken);
        }
        read_round(&self.shared, self.head + LEN, into);
        self.head += room_of(len);
        self.watched.store(self.head, Relaxed);
        self.shared.store(Word::Head, self.head);
        if self.tail - self.head <= self.shared.capacity() / 2 {
            fence(SeqCst);
            self.rings |= take_bell(&self.shared, Word::Waits) == Bell::Ring;
        }
        Ok(Some(len))
    }

    /// Messages that were sent another way before the last one that [`has_message`](Self::has_message) has seen,
    /// and perhaps more.
    pub fn told(&self) -> u64 {
        self.shared.load(Word::Told)
    }

    /// How it sleeps.
    pub fn watch(&self) -> Watch<S>
    where
        S: Clone,
    {
        Watch {
            shared: self.shared.clone(),
            head: Arc::clone(&self.watched),
        }
    }

    /// What the writer is to be told about the messages that were read.
    pub fn bell(&mut self) -> Bell {
        match std::mem::take(&mut self.rings) {
            true => Bell::Ring,
            false => Bell::Quiet,
        }
    }
}

/// Clears a word that the other end has set, behind a fence.
fn take_bell<S: Shared>(shared: &S, word: Word) -> Bell {
    if shared.load(word) == 0 {
        return Bell::Quiet;
    }
    shared.store(word, 0);
    Bell::Ring
}

/// How a reader sleeps, on whichever thread it does.
pub struct Watch<S> {
    shared: S,
    head: Arc<AtomicU64>,
}

impl<S: Shared> Watch<S> {
    /// Bytes that were read.
    pub fn head(&self) -> u64 {
        self.head.load(Relaxed)
    }

    /// Whether there seems to be a message.
    pub fn has_message(&self) -> bool {
        self.shared.load(Word::Tail) != self.head()
    }

    /// The reader is about to wait for the bell; `false` if there is something to read instead.
    pub fn sleep(&self) -> bool {
        self.shared.store(Word::Sleeps, 1);
        fence(SeqCst);
        // Another thread may be reading: then this one looks again.
        let is_empty = !self.has_message();
        if !is_empty {
            self.wake();
        }
        is_empty
    }

    /// The reader is awake, whoever has woken it.
    pub fn wake(&self) {
        self.shared.store(Word::Sleeps, 0);
    }
}

impl<S> fmt::Debug for Writer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("tail", &self.tail)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("head", &self.head)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for Watch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

#[cfg(all(test, verbs_loom))]
mod models;
#[cfg(all(test, not(verbs_loom)))]
mod tests;
