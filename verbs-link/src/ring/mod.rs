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
//!
//! A *long* message is copied once in and once out: its writer fills the payload where it lies in the ring, and its reader
//! copies it from there to where it belongs. Only the head in front of it is copied before it is examined, so nothing may
//! be decided by the payload, which its writer can still change. A writer may send long messages when the reader
//! [takes](Reader::take_long) them.
//!
//! ```text
//!   [len, payload|head ..slack.. |payload ......]     the payload is contiguous, in the middle of a page
//! ```

mod mapped;
#[cfg(all(test, verbs_loom))]
mod models;
mod reader;
#[cfg(all(test, not(verbs_loom)))]
mod tests;
mod writer;

use verbs_core::mem::Window;

pub use mapped::{End, Mapped, Rings, file};
pub use reader::{Long, Next, Reader, Watch};
pub use writer::Writer;

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
    /// Contiguous bytes, to be copied from and to.
    fn window(&self, at: u64, len: usize) -> Window<'_>;
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
    /// The reader takes long messages.
    Long,
}

impl Word {
    /// How many there are.
    pub const COUNT: usize = 6;
}

/// Bytes before a message for its length; messages begin at multiples of it.
const LEN: u64 = 8;
/// The length of a message is in the lower half of that word, and the length of its payload, if it is a long one, in the
/// upper half.
const PAYLOAD_SHIFT: u32 = 32;
const LEN_MAX: u64 = u32::MAX as u64;

/// Bytes of the head of a long message, at most.
pub const HEAD_MAX: usize = 128;
/// Bytes of a ring in which half is enough for any long message.
const LONG_RING_MIN: u64 = if cfg!(verbs_loom) { 64 } else { 4096 };

/// Payloads begin there in a page, as buffers of [`verbs_core::Bounce`] do, and for the same reason.
const IN_PAGE: u64 = 2048;
const PAGE: u64 = 4096;
/// The shortest payload whose place in the page matters.
const PAGED_MIN: usize = 4096;
/// Other payloads begin with a cache line; the rings of models have none.
const CACHE_LINE: u64 = if cfg!(verbs_loom) { LEN } else { 64 };

/// The place of a payload of that many bytes, at or behind that position, in a ring of that capacity: not across its end.
fn place_of(position: u64, len: usize, capacity: u64) -> u64 {
    let next = |position: u64| match len {
        0..PAGED_MIN => position.next_multiple_of(CACHE_LINE),
        _ => (position + IN_PAGE).next_multiple_of(PAGE) - IN_PAGE,
    };
    let place = next(position);
    match place % capacity + len as u64 <= capacity {
        true => place,
        false => next(place.next_multiple_of(capacity)),
    }
}

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

/// Clears a word that the other end has set, after a fence.
fn take_bell<S: Shared>(shared: &S, word: Word) -> Bell {
    if shared.load(word) == 0 {
        return Bell::Quiet;
    }
    shared.store(word, 0);
    Bell::Ring
}
