//! A ring in memory that two processes share: whole messages, in one direction, without a system call while both
//! ends are awake.
//!
//! ```text
//!      head (the reader's)              tail (the writer's)
//!   -----|---[len|message..][len|message..]--|----------------
//!        |<-- written, not yet read -------->|<-- room ... -->   positions count bytes and never wrap
//! ```
//!
//! An end that has nothing to do sets a word and checks once more before it sleeps; an end that changes something
//! checks that word afterwards, and rings a bell. The bell is anything that wakes the other end and stays pending
//! until it does:
//!
//! * The reader *sleeps*: [`Watch::sleep`] sets the word, then looks at the tail. The writer moves the tail,
//!   then looks at the word.
//! * The writer *waits* for room: it sets the word, then looks at the head. The reader moves the head, then
//!   looks at the word once half of the ring is free, so that the two do not wake each other for each message. It looks
//!   when it has read a quarter of the ring since it looked last: a writer that waits has written more than half of the
//!   ring behind the head that it has seen, so the reader looks once more before it has read all of that.
//!
//! Between the two steps of each end there is a sequentially consistent fence, so at least one of them sees what
//! the other did. A word that is cleared too late or too early costs only a bell, because the end that clears the
//! other's word rings afterwards.
//!
//! Values that the other end writes are not trusted. An impossible position or length makes an end [`Broken`];
//! messages are copied out before they are examined. An end that never moves leaves the ring full or empty, like
//! a stopped process.

mod mapped;
#[cfg(all(test, verbs_loom))]
mod models;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};

pub use mapped::{End, Mapped, Rings, file};

/// The other end has written an impossible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end of a ring has written what makes no sense")]
pub struct Broken;

/// Whether the caller must ring the bell for the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the other end may sleep until it is rung"]
pub enum Bell {
    /// It sleeps, or waits for room.
    Ring,
    /// It notices by itself.
    Quiet,
}

/// Memory that both ends see: words, and bytes. Loads acquire, stores release.
pub trait Shared {
    /// Bytes of the ring, a power of two.
    fn capacity(&self) -> u64;
    /// Loads a word.
    fn load(&self, word: Word) -> u64;
    /// Stores a word.
    fn store(&self, word: Word, value: u64);
    /// Copies contiguous bytes out.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Copies bytes in, to a contiguous place.
    fn write(&self, at: u64, from: &[u8]);
}

/// The words of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Bytes written; set by the writer.
    Tail,
    /// Bytes read; set by the reader.
    Head,
    /// The reader sleeps.
    Sleeps,
    /// The writer waits for room.
    Waits,
    /// Messages that the writer has sent by the socket: the reader must read them before later messages of the
    /// ring.
    Told,
}

/// Bytes before a message for its length; messages begin at multiples of it.
const LEN: u64 = 8;

/// Bytes of the ring that a message of that length takes.
const fn room_of(len: usize) -> u64 {
    LEN + (len as u64).next_multiple_of(LEN)
}

/// Copies out of the ring, across its end if necessary.
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

/// The writing end.
pub struct Writer<S> {
    shared: S,
    tail: u64,
    told: u64,
    /// The reader has been told that the writer waits.
    waits: bool,
    /// The reader's last seen position.
    head: u64,
}

impl<S: Shared> Writer<S> {
    /// The only writer of a new ring.
    pub fn new(shared: S) -> Self {
        Self {
            shared,
            tail: 0,
            told: 0,
            waits: false,
            head: 0,
        }
    }

    /// The longest message: half of the ring, so one fits when the reader rings.
    pub fn longest(&self) -> usize {
        (self.shared.capacity() / 2 - LEN) as usize
    }

    /// Writes a message of `len` bytes, in pieces. `None` if there is no room; the reader rings when there is.
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

    /// Whether there is room for a message of `len` bytes; the reader rings when there is.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn fits(&mut self, len: usize) -> Result<bool, Broken> {
        self.has_room(room_of(len))
    }

    /// A message was sent by the socket.
    pub fn tell(&mut self) {
        self.told += 1;
        self.shared.store(Word::Told, self.told);
    }

    /// Whether there is room; if not, tells the reader that the writer waits.
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

    /// Bytes that the reader has read, as far as was looked.
    pub fn has_read(&self) -> u64 {
        self.head
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

/// The reading end.
pub struct Reader<S> {
    shared: S,
    head: u64,
    /// The reader's position, for the thread that sleeps: the other end may overwrite the shared one.
    watched: Arc<AtomicU64>,
    /// The writer's last seen position.
    tail: u64,
    /// The position where it has looked for a writer that waits.
    looked: u64,
    /// The writer has waited for room, and there is some now.
    rings: bool,
}

impl<S: Shared> Reader<S> {
    /// The only reader of a new ring.
    pub fn new(shared: S) -> Self {
        Self {
            shared,
            head: 0,
            watched: Arc::new(AtomicU64::new(0)),
            tail: 0,
            looked: 0,
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
            self.end()?;
        }
        Ok(self.head != self.tail)
    }

    /// The position behind all messages that have been written.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn end(&mut self) -> Result<u64, Broken> {
        let tail = self.shared.load(Word::Tail);
        if tail < self.tail
            || tail - self.head > self.shared.capacity()
            || !tail.is_multiple_of(LEN)
        {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(tail)
    }

    /// The position behind all messages that were read.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// The length of the next message, if there is one, as its writer states it.
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

    /// Takes a message, if there is one, and returns its length.
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
        let capacity = self.shared.capacity();
        let has_room = self.tail - self.head <= capacity / 2;
        if has_room && self.head - self.looked >= capacity / 4 {
            self.looked = self.head;
            fence(SeqCst);
            self.rings |= take_bell(&self.shared, Word::Waits) == Bell::Ring;
        }
        Ok(Some(len))
    }

    /// At least the number of messages sent by the socket before the last one that
    /// [`has_message`](Self::has_message) has seen.
    pub fn told(&self) -> u64 {
        self.shared.load(Word::Told)
    }

    /// The part that sleeps.
    pub fn watch(&self) -> Watch<S>
    where
        S: Clone,
    {
        Watch {
            shared: self.shared.clone(),
            head: Arc::clone(&self.watched),
        }
    }

    /// Whether to ring for the writer after reading messages.
    pub fn bell(&mut self) -> Bell {
        match std::mem::take(&mut self.rings) {
            true => Bell::Ring,
            false => Bell::Quiet,
        }
    }
}

/// Clears a word that the other end has set, after a fence.
fn take_bell<S: Shared>(shared: &S, word: Word) -> Bell {
    if shared.load(word) == 0 {
        return Bell::Quiet;
    }
    shared.store(word, 0);
    Bell::Ring
}

/// The sleeping side of a reader, on any thread.
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

    /// Called before waiting for the bell; `false` if there is something to read instead.
    pub fn sleep(&self) -> bool {
        self.shared.store(Word::Sleeps, 1);
        fence(SeqCst);
        // Another thread may be reading: then this one checks again.
        let is_empty = !self.has_message();
        if !is_empty {
            self.wake();
        }
        is_empty
    }

    /// Another thread sleeps on, and is rung for what is written from now on; this one reads what there is.
    pub fn sleeps_on(&self) {
        self.shared.store(Word::Sleeps, 1);
        fence(SeqCst);
    }

    /// The reader is awake, whatever has woken it.
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
