//! The receives that inline CQEs may use, and what becomes of them ([`crate::queue::cqe_inline`]).
//!
//! The sender of an inline CQE does not read the receive that it takes. Its producer says which ones are suitable
//! (*inline credits*), and the thread that scatters the inline CQE reads it. So a receive that an inline CQE has taken
//! is free only when that CQE has been scattered, and the two ends count both:
//!
//! ```text
//!   inline_credits   the producer: these receives may be taken by inline CQEs
//!   inline_end       the sender: inline CQEs have taken receives up to here
//!   scattered        the scattering thread: and they have been placed up to here
//! ```
//!
//! Between inline CQEs there are messages that are placed by the sender. None of either kind is sent while one of the
//! other kind is under way, so that nothing is placed before what was sent earlier: a message is placed only if
//! `inline_end` equals `scattered`, and an inline CQE that follows such messages moves `scattered` up to itself,
//! because no other thread can be writing it at that moment.

use verbs_core::mem::{Pin, TouchWord, Touched};
use verbs_core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::RecvRing;

/// Inline credits, as their producer offers them: their number, up to a position, and the bytes that each has room for.
#[derive(Clone, Copy, Debug, Default)]
struct CreditOffer {
    count: u32,
    to: u32,
    room: u32,
}

/// In [`CreditOffer`] as a word: room, above the count, above the position.
const ROOM_SHIFT: u32 = 56;
const COUNT_SHIFT: u32 = 32;
const COUNT: u32 = (1 << (ROOM_SHIFT - COUNT_SHIFT)) - 1;

impl CreditOffer {
    /// With one more, at that position.
    fn and(self, at: u32, room: u32) -> Self {
        let to = at.wrapping_add(1);
        if self.count == 0 || self.to != at {
            // The first, or receives that were not offered were posted in between.
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

/// If a sender knows of this many inline credits or fewer, it looks for more.
const FEW: u32 = 2;

/// The inline credits that a sender knows of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InlineCredits {
    /// The position behind the last.
    to: u32,
    /// Bytes that each has room for.
    room: u32,
}

impl RecvRing {
    /// Entries before this position may be filled again. For the producer.
    pub(crate) fn freed(&self) -> u32 {
        let head = self.consumer.head.load(Acquire);
        // In this order: inline CQEs that the head is past are in `inline_end`, and `scattered` is no older.
        let inline_end = self.consumer.inline_end.load(Acquire);
        let scattered = self.scattered.load(Acquire);
        if inline_end == scattered || head.wrapping_sub(scattered).cast_signed() < 0 {
            head
        } else {
            scattered
        }
    }

    /// The receives that wait for a message, or were taken by inline CQEs that are not scattered. Those that are posted
    /// or taken at this moment are counted or not.
    pub(crate) fn outstanding(&self) -> u32 {
        let (freed, head) = (self.freed(), self.consumer.head.load(Acquire));
        let is_filled = |&n: &u32| self.is_filled(head.wrapping_add(n));
        let waiting = (0..self.room()).take_while(is_filled).count() as u32;
        head.wrapping_sub(freed).wrapping_add(waiting)
    }

    /// Inline CQEs of at most `room` bytes may use the receive at that position, which is filled. For the producer.
    pub(crate) fn offer(&self, at: u32, room: u32) {
        let inline_credits = &self.producer.inline_credits;
        let offered = CreditOffer::of(inline_credits.load(Relaxed)).and(at, room);
        // Release: the thread that scatters such an inline CQE finds the receive, through its sender.
        inline_credits.store(offered.word(), Release);
    }

    /// Records that this thread posts receives.
    pub(crate) fn post_from(&self, thread: u32) {
        self.producer.poster.store(thread, Relaxed);
    }

    /// The thread that posted receives at the last look; 0 if none has.
    pub(crate) fn poster(&self) -> u32 {
        self.producer.poster.load(Relaxed)
    }

    /// Forgets which receives inline CQEs could use according to earlier offers, which may be very old. If the producer
    /// makes an offer at this moment, at most that one is lost. For the consumer.
    pub(crate) fn forget_offers(&self) {
        self.producer.inline_credits.store(0, Relaxed);
    }

    /// The position that is next, if an inline CQE of `len` bytes may take it. For the consumer.
    #[inline(always)]
    pub(crate) fn inline_credit(&self, known: &mut InlineCredits, len: u32) -> Option<u32> {
        let at = self.consumer.head.load(Relaxed);
        let is_known = known.to.wrapping_sub(at).cast_signed() > 0;
        let has = len <= known.room && is_known || self.find_inline_credits(at, known, len);
        has.then_some(at)
    }

    /// Forgets inline credits that have been passed, so that an old position is not mistaken for one far ahead. The
    /// consumer calls this now and then.
    pub(crate) fn forget_inline_credits(&self, known: &mut InlineCredits) {
        let head = self.consumer.head.load(Relaxed);
        if known.to.wrapping_sub(head).cast_signed() <= 0 {
            *known = InlineCredits { to: head, room: 0 };
        }
    }

    /// Whether there are inline credits from that position on, and up to which.
    #[inline(never)]
    fn find_inline_credits(&self, at: u32, known: &mut InlineCredits, len: u32) -> bool {
        let CreditOffer { count, to, room } =
            CreditOffer::of(self.producer.inline_credits.load(Acquire));
        let left = to.wrapping_sub(at);
        let has = left != 0 && left <= count;
        let (to, room) = if has { (to, room) } else { (at, 0) };
        *known = InlineCredits { to, room };
        has && len <= room
    }

    /// Looks early for more inline credits: the cache line has to come from the producer, and no message waits for it
    /// yet. For the consumer.
    #[inline(always)]
    pub(crate) fn look_ahead(&self, known: &mut InlineCredits) {
        let at = self.consumer.head.load(Relaxed);
        if known.to.wrapping_sub(at) <= FEW {
            let CreditOffer { count, to, room } =
                CreditOffer::of(self.producer.inline_credits.load(Acquire));
            let left = to.wrapping_sub(at);
            if left != 0 && left <= count {
                *known = InlineCredits { to, room };
            }
        }
    }

    /// Takes an inline credit, unless messages were placed since the last inline CQE, which is still under way. For the
    /// consumer.
    #[inline(always)]
    pub(crate) fn take_inline_credit(&self, at: u32) -> bool {
        if at != self.consumer.inline_end.load(Relaxed) && !self.begin_inline_cqes(at) {
            return false;
        }
        let next = at.wrapping_add(1);
        // The head's store makes it visible to the producer; this store by itself would only make the room seem
        // smaller.
        self.consumer.inline_end.store(next, Release);
        self.consumer.head.store(next, Release);
        true
    }

    #[cold]
    #[inline(never)]
    fn begin_inline_cqes(&self, at: u32) -> bool {
        let may = !self.has_inline_cqes();
        if may {
            self.scattered.store(at, Release);
            self.consumer.scattered.store(at, Relaxed);
        }
        may
    }

    /// Whether inline CQEs have not been scattered. For the consumer.
    #[inline]
    pub(crate) fn has_inline_cqes(&self) -> bool {
        let inline_end = self.consumer.inline_end.load(Relaxed);
        if inline_end == self.consumer.scattered.load(Relaxed) {
            return false;
        }
        // Acquire: what is placed now is ordered after what was scattered.
        let scattered = self.scattered.load(Acquire);
        self.consumer.scattered.store(scattered, Relaxed);
        inline_end != scattered
    }

    /// How often inline CQEs were recalled. For the consumer.
    pub(crate) fn recalls(&self) -> u32 {
        self.consumer.recalls.load(Relaxed)
    }

    /// Counts a recall. For the consumer.
    pub(crate) fn count_recall(&self) {
        let recalls = self.consumer.recalls.load(Relaxed);
        self.consumer
            .recalls
            .store(recalls.wrapping_add(1), Relaxed);
    }

    /// Whether polling threads may scatter inline CQEs, until the pin is left.
    #[inline(always)]
    pub(crate) fn admits_pollers(&self, pin: &Pin) -> bool {
        self.door.admits(pin, TouchWord::TAG, 0)
    }

    /// Keeps pollers from scattering. Returns which threads to wait for until none does.
    pub(crate) fn shut_out_pollers(&self) -> Touched {
        let shut = self.door.update(|count| Some(count + 1));
        shut.map_or(Touched::NOBODY, |(_, touched)| touched)
    }

    /// Undoes that.
    pub(crate) fn let_pollers_in(&self) {
        let _ = self.door.update(|count| Some(count - 1));
    }

    /// Whether inline CQEs wait to be scattered, for threads other than the consumer.
    pub(crate) fn has_pending(&self) -> bool {
        self.consumer.inline_end.load(Acquire) != self.scattered.load(Acquire)
    }

    /// Whether the inline CQE at that position waits. For the thread that keeps the pollers out, and for pollers.
    pub(crate) fn is_pending(&self, at: u32) -> bool {
        let scattered = self.scattered.load(Relaxed);
        at.wrapping_sub(scattered).cast_signed() >= 0
    }

    /// The inline CQE at that position has been scattered, and all before it.
    #[inline(always)]
    pub(crate) fn scattered(&self, at: u32) {
        self.scattered.store(at.wrapping_add(1), Release);
    }
}
