//! The writing end of a ring.

use std::fmt;

use verbs_core::sync::atomic::{Ordering::SeqCst, fence};

use super::{
    Bell, Broken, HEAD_MAX, LEN, LONG_RING_MIN, PAYLOAD_SHIFT, Shared, Word, place_of, room_of,
    take_bell, write_round,
};

/// The writing end.
pub struct Writer<S> {
    shared: S,
    pub(super) tail: u64,
    told: u64,
    /// The reader has been told that the writer waits.
    waits: bool,
    /// The reader's last seen position.
    pub(super) head: u64,
    /// The reader takes long messages.
    may_be_long: bool,
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
            may_be_long: false,
        }
    }

    /// The longest message: half of the ring, so one fits when the reader rings.
    pub fn longest(&self) -> usize {
        (self.shared.capacity() / 2 - LEN) as usize
    }

    /// The longest payload of a long message: with all that may be in front of it, it takes less than half of the ring.
    /// `None` as long as the reader takes none.
    pub fn longest_payload(&mut self) -> Option<usize> {
        if !self.may_be_long {
            self.may_be_long = self.shared.load(Word::Long) != 0;
        }
        let capacity = self.shared.capacity();
        (self.may_be_long && capacity >= LONG_RING_MIN).then_some((capacity / 8) as usize)
    }

    /// Writes a long message: a head of `head_len` bytes, [`HEAD_MAX`] at most, in pieces; and a payload of `len` bytes,
    /// from 1 to [`longest_payload`](Self::longest_payload), which `fill` writes to that place in the memory. `Ok(None)` if
    /// there is no room; the reader rings when there is.
    ///
    /// # Errors
    /// [`Broken`]; within, what `fill` fails with: nothing was written then.
    pub fn write_long<'p, E>(
        &mut self,
        (head_len, head): (usize, impl Iterator<Item = &'p [u8]>),
        len: usize,
        fill: impl FnOnce(&S, u64) -> Result<(), E>,
    ) -> Result<Result<Option<Bell>, E>, Broken> {
        debug_assert!(self.longest_payload().is_some_and(|longest| len <= longest));
        debug_assert!(len > 0 && head_len <= HEAD_MAX);
        let capacity = self.shared.capacity();
        let begin = self.tail + LEN;
        let place = place_of(begin + head_len as u64, len, capacity);
        let whole = (place - begin) as usize + len;
        if !self.has_room(room_of(whole))? {
            return Ok(Ok(None));
        }
        if let Err(error) = fill(&self.shared, place % capacity) {
            return Ok(Err(error));
        }
        let lens = (len as u64) << PAYLOAD_SHIFT | whole as u64;
        Ok(Ok(Some(self.publish(lens, head, room_of(whole)))))
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
        Ok(Some(self.publish(len as u64, pieces, room_of(len))))
    }

    /// Writes the lengths and the pieces of a message that takes so many bytes, and lets the reader see it.
    #[inline]
    fn publish<'p>(&mut self, lens: u64, pieces: impl Iterator<Item = &'p [u8]>, all: u64) -> Bell {
        write_round(&self.shared, self.tail, &lens.to_ne_bytes());
        let mut position = self.tail + LEN;
        for piece in pieces {
            write_round(&self.shared, position, piece);
            position += piece.len() as u64;
        }
        debug_assert!(
            position <= self.tail + all,
            "the pieces are longer than was said"
        );
        self.tail += all;
        self.shared.store(Word::Tail, self.tail);
        fence(SeqCst);
        take_bell(&self.shared, Word::Sleeps)
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

impl<S> fmt::Debug for Writer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("tail", &self.tail)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}
