//! The reading end of a ring.

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};

use super::{
    Bell, Broken, HEAD_MAX, LEN, LEN_MAX, PAYLOAD_SHIFT, Shared, Word, read_round, room_of,
    take_bell,
};

/// A message that was read.
#[derive(Debug)]
pub enum Next {
    /// It has so many bytes, which were copied.
    Whole(usize),
    /// Its head was copied; its payload is where the writer wrote it, until [`Reader::finish`].
    Long(Long),
}

/// A long message that is being read.
#[derive(Debug)]
#[must_use = "the message stays in the ring until it is finished"]
pub struct Long {
    /// The bytes that were copied: the head, and perhaps something behind it.
    pub head: usize,
    /// Where the payload begins in the memory.
    pub at: u64,
    /// Bytes of the payload, contiguous.
    pub len: usize,
    /// What the message takes of the ring.
    all: u64,
}

/// The reading end.
pub struct Reader<S> {
    shared: S,
    pub(super) head: u64,
    /// The reader's position, for the thread that sleeps: the other end may overwrite the shared one.
    watched: Arc<AtomicU64>,
    /// The writer's last seen position.
    pub(super) tail: u64,
    /// The position where it has looked for a writer that waits.
    looked: u64,
    /// The writer has waited for room, and there is some now.
    rings: bool,
    takes_long: bool,
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
            takes_long: false,
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
        let Some(lens) = self.lens()? else {
            return Ok(None);
        };
        usize::try_from(lens).map(Some).map_err(|_| Broken)
    }

    /// The word in front of the next message, if there is one.
    #[inline]
    fn lens(&mut self) -> Result<Option<u64>, Broken> {
        if !self.has_message()? {
            return Ok(None);
        }
        let mut lens = [0; LEN as usize];
        read_round(&self.shared, self.head, &mut lens);
        Ok(Some(u64::from_ne_bytes(lens)))
    }

    /// Takes a message, if there is one, and returns its length.
    ///
    /// # Errors
    /// [`Broken`], also for a message that does not fit, and for a long one.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        let Some(len) = self.next_len()? else {
            return Ok(None);
        };
        self.take(len, into).map(Some)
    }

    /// Copies a message out that says it has that length.
    #[inline]
    fn take(&mut self, len: usize, into: &mut [u8]) -> Result<usize, Broken> {
        let into = into.get_mut(..len).ok_or(Broken)?;
        if room_of(len) > self.tail - self.head {
            return Err(Broken);
        }
        read_round(&self.shared, self.head + LEN, into);
        self.pass(room_of(len));
        Ok(len)
    }

    /// From now on the writer may send long messages.
    pub fn take_long(&mut self) {
        self.shared.store(Word::Long, 1);
        self.takes_long = true;
    }

    /// Takes a message, if there is one. A long one stays until [`finish`](Self::finish): otherwise it is read again.
    ///
    /// # Errors
    /// [`Broken`], also for a message that does not fit, and for a long one that is not taken.
    pub fn next(&mut self, into: &mut [u8]) -> Result<Option<Next>, Broken> {
        let Some(lens) = self.lens()? else {
            return Ok(None);
        };
        let len = (lens & LEN_MAX) as usize;
        let payload = (lens >> PAYLOAD_SHIFT) as usize;
        if payload == 0 {
            return self.take(len, into).map(|len| Some(Next::Whole(len)));
        }
        let capacity = self.shared.capacity();
        let before = len.checked_sub(payload).ok_or(Broken)?;
        let at = (self.head + LEN + before as u64) % capacity;
        let is_whole = room_of(len) <= self.tail - self.head && at + payload as u64 <= capacity;
        if !self.takes_long || !is_whole {
            return Err(Broken);
        }
        let head = before.min(HEAD_MAX).min(into.len());
        read_round(&self.shared, self.head + LEN, &mut into[..head]);
        Ok(Some(Next::Long(Long {
            head,
            at,
            len: payload,
            all: room_of(len),
        })))
    }

    /// The payload of a long message has been copied: its room is the writer's again.
    pub fn finish(&mut self, long: Long) {
        self.pass(long.all);
    }

    /// The memory that both ends see.
    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// What takes so many bytes of the ring was read.
    #[inline]
    fn pass(&mut self, all: u64) {
        self.head += all;
        self.watched.store(self.head, Relaxed);
        self.shared.store(Word::Head, self.head);
        let capacity = self.shared.capacity();
        let has_room = self.tail - self.head <= capacity / 2;
        if has_room && self.head - self.looked >= capacity / 4 {
            self.looked = self.head;
            fence(SeqCst);
            self.rings |= take_bell(&self.shared, Word::Waits) == Bell::Ring;
        }
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
