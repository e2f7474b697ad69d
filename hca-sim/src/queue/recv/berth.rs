//! Which receives riders may have, and what becomes of them ([`crate::queue::cqe_inline`]).
//!
//! The sender of a rider does not read the receive that it takes. Its producer says which ones will do
//! (*berths*), and whoever unloads the rider reads it. So a receive that a rider has taken is free only
//! when that has been unloaded, and the two ends keep count of it:
//!
//! ```text
//!   berths     the producer: these receives may be taken by riders
//!   rode       the sender: riders have taken receives up to here
//!   unloaded   who unloads: and they have been placed up to here
//! ```
//!
//! Between riders there are messages that are placed by the sender. None of either kind goes while one of
//! the other kind is under way, so that nothing is placed before what was sent earlier: a message is
//! placed only if `rode` is `unloaded`, and a rider that follows such messages moves `unloaded` up to
//! itself, as nobody else can be writing it then.

use verbs_core::mem::{Pin, TouchWord, Touched};
use verbs_core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::RecvRing;

/// Berths, as their producer offers them: so many receives up to a position, each with room for so many
/// bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Offer {
    count: u32,
    to: u32,
    room: u32,
}

/// In [`Offer`] as a word: room, above the count, above the position.
const ROOM_SHIFT: u32 = 56;
const COUNT_SHIFT: u32 = 32;
const COUNT: u32 = (1 << (ROOM_SHIFT - COUNT_SHIFT)) - 1;

impl Offer {
    /// With one more, at that position.
    fn and(self, at: u32, room: u32) -> Self {
        let to = at.wrapping_add(1);
        if self.count == 0 || self.to != at {
            // The first, or receives were posted in between of which nobody knows.
            let count = 1;
            return Self { count, to, room };
        }
        Self {
            count: (self.count + 1).min(COUNT),
            to,
            room: self.room.min(room),
        }
    }

    fn word(self) -> u64 {
        let (count, room) = (u64::from(self.count), u64::from(self.room));
        room << ROOM_SHIFT | count << COUNT_SHIFT | u64::from(self.to)
    }

    fn of(word: u64) -> Self {
        Self {
            count: (word >> COUNT_SHIFT) as u32 & COUNT,
            to: word as u32,
            room: (word >> ROOM_SHIFT) as u32,
        }
    }
}

/// Berths that a sender knows of when it looks for more.
const FEW: u32 = 2;

/// The berths that a sender knows of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// The position behind the last.
    to: u32,
    /// Bytes that each has room for.
    room: u32,
}

impl RecvRing {
    /// Entries before this position may be filled anew. For the producer.
    pub(crate) fn freed(&self) -> u32 {
        let head = self.consumer.head.load(Acquire);
        // In this order: riders that the head is past are in `rode`, and `unloaded` is no older.
        let rode = self.consumer.rode.load(Acquire);
        let unloaded = self.unloaded.load(Acquire);
        if rode == unloaded || head.wrapping_sub(unloaded).cast_signed() < 0 {
            head
        } else {
            unloaded
        }
    }

    /// Riders of so many bytes may have the receive at that position, which is filled. For the producer.
    pub(crate) fn offer(&self, at: u32, room: u32) {
        let berths = &self.producer.berths;
        let offered = Offer::of(berths.load(Relaxed)).and(at, room);
        // Release: whoever unloads such a rider finds the receive, by way of its sender.
        berths.store(offered.word(), Release);
    }

    /// That thread posts receives now.
    pub(crate) fn post_from(&self, thread: u32) {
        self.producer.poster.store(thread, Relaxed);
    }

    /// The thread that posts receives, when it was looked at last; 0: nobody has.
    pub(crate) fn poster(&self) -> u32 {
        self.producer.poster.load(Relaxed)
    }

    /// Forgets which receives riders could have when it was asked before: that may be very old. If the producer
    /// says something at this moment, that is lost at most. For the consumer.
    pub(crate) fn forget_offers(&self) {
        self.producer.berths.store(0, Relaxed);
    }

    /// The position that is next, if a rider of `len` bytes may have it. For the consumer.
    #[inline(always)]
    pub(crate) fn berth(&self, known: &mut Known, len: u32) -> Option<u32> {
        let at = self.consumer.head.load(Relaxed);
        let is_known = known.to.wrapping_sub(at).cast_signed() > 0;
        let has = len <= known.room && is_known || self.find_berths(at, known, len);
        has.then_some(at)
    }

    /// Forgets berths that have been passed: long ago is not to be taken for far ahead. For the consumer,
    /// now and then.
    pub(crate) fn forget_berths(&self, known: &mut Known) {
        let head = self.consumer.head.load(Relaxed);
        if known.to.wrapping_sub(head).cast_signed() <= 0 {
            *known = Known { to: head, room: 0 };
        }
    }

    /// Whether there are berths from that position on, and up to which.
    #[inline(never)]
    fn find_berths(&self, at: u32, known: &mut Known, len: u32) -> bool {
        let Offer { count, to, room } = Offer::of(self.producer.berths.load(Acquire));
        let left = to.wrapping_sub(at);
        let has = left != 0 && left <= count;
        let (to, room) = if has { (to, room) } else { (at, 0) };
        *known = Known { to, room };
        has && len <= room
    }

    /// Looks early for more berths: the line that says so comes from the producer, and here nobody waits for
    /// it yet. For the consumer.
    #[inline(always)]
    pub(crate) fn look_ahead(&self, known: &mut Known) {
        let at = self.consumer.head.load(Relaxed);
        if known.to.wrapping_sub(at) <= FEW {
            let Offer { count, to, room } = Offer::of(self.producer.berths.load(Acquire));
            let left = to.wrapping_sub(at);
            if left != 0 && left <= count {
                *known = Known { to, room };
            }
        }
    }

    /// Takes a berth, unless messages were placed since the last rider and that is still under way.
    /// For the consumer.
    #[inline(always)]
    pub(crate) fn board(&self, at: u32) -> bool {
        if at != self.consumer.rode.load(Relaxed) && !self.begin_riding(at) {
            return false;
        }
        let next = at.wrapping_add(1);
        // The head's store carries it over to the producer; by itself it would only make room seem smaller.
        self.consumer.rode.store(next, Release);
        self.consumer.head.store(next, Release);
        true
    }

    #[cold]
    #[inline(never)]
    fn begin_riding(&self, at: u32) -> bool {
        let may = !self.has_riders();
        if may {
            self.unloaded.store(at, Release);
            self.consumer.unloaded.store(at, Relaxed);
        }
        may
    }

    /// Whether riders have not been unloaded. For the consumer.
    #[inline]
    pub(crate) fn has_riders(&self) -> bool {
        let rode = self.consumer.rode.load(Relaxed);
        if rode == self.consumer.unloaded.load(Relaxed) {
            return false;
        }
        // Acquire: what is placed now comes after what was unloaded.
        let unloaded = self.unloaded.load(Acquire);
        self.consumer.unloaded.store(unloaded, Relaxed);
        rode != unloaded
    }

    /// How often riders were called back. For the consumer.
    pub(crate) fn recalls(&self) -> u32 {
        self.consumer.recalls.load(Relaxed)
    }

    /// Counts that. For the consumer.
    pub(crate) fn count_recall(&self) {
        let recalls = self.consumer.recalls.load(Relaxed);
        self.consumer
            .recalls
            .store(recalls.wrapping_add(1), Relaxed);
    }

    /// Whether riders may be unloaded by whoever polls, until the pin is left.
    #[inline(always)]
    pub(crate) fn admits_pollers(&self, pin: &Pin) -> bool {
        self.door.admits(pin, TouchWord::TAG, 0)
    }

    /// Keeps pollers from unloading: whom to wait for until none does.
    pub(crate) fn shut_out_pollers(&self) -> Touched {
        let shut = self.door.update(|count| Some(count + 1));
        shut.map_or(Touched::NOBODY, |(_, touched)| touched)
    }

    /// Takes that back.
    pub(crate) fn let_pollers_in(&self) {
        let _ = self.door.update(|count| Some(count - 1));
    }

    /// Whether riders wait to be unloaded, for others than the consumer.
    pub(crate) fn are_loaded(&self) -> bool {
        self.consumer.rode.load(Acquire) != self.unloaded.load(Acquire)
    }

    /// Whether the rider at that position waits. For who keeps the pollers out, or is one.
    pub(crate) fn is_loaded(&self, at: u32) -> bool {
        let unloaded = self.unloaded.load(Relaxed);
        at.wrapping_sub(unloaded).cast_signed() >= 0
    }

    /// The rider at that position has been unloaded, and all before it.
    #[inline(always)]
    pub(crate) fn unloaded(&self, at: u32) {
        self.unloaded.store(at.wrapping_add(1), Release);
    }
}
