//! The ring of a completion queue as pushers see it: entries, tail, and the mode that says which threads may push.
//!
//! A queue has one buffer at a time. A resize takes it away, as any object is taken away from pinned threads, and puts
//! another in its place; positions continue. A thread that still holds the old buffer finds it dead and asks the queue
//! for the new one.

use verbs_core::mem::{Pin, Seen, TouchWord};
use verbs_core::ring_index::RingIndex;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use verbs_core::tracked::Tracked;
use verbs_core::{Error, Qpn, SendFlags, WcOpcode};

use super::entry::{Cqe, DATAGRAM, HAS_TIME, INLINE_CQE, LAP, LENGTH_SHIFT, Overrun, Pushed, Way};
use crate::clock::Clock;
use crate::queue::cqe_inline::InlineCqe;

/// In the mode: the number of the thread that pushes alone.
pub(super) const OWNER: u32 = 0x1f;
/// In the mode: the queue is being taken from its owner.
pub(super) const CONVERTING: u32 = 1 << 6;
/// In the mode: any thread pushes.
pub(super) const SHARED: u32 = 1 << 7;
/// In the mode: pushers check whether the consumer wants an event.
pub(super) const ARMED: u32 = 1 << 8;
/// In the mode: entries carry the time.
pub(super) const STAMPED: u32 = 1 << 9;
/// In the mode: events may be held back, so that [`ARMED`] stays.
pub(super) const MODERATED: u32 = 1 << 10;
/// Pushes in a row that find no event wanted, after which an owner no longer checks for a consumer on another thread.
/// The next arm then passes the process-wide barrier, which costs as much as several messages.
///
/// With assertions on the number is small, so that tests see it.
pub(super) const IDLE: u32 = if cfg!(verbs_loom) {
    1
} else if cfg!(debug_assertions) {
    4
} else {
    256
};

/// The same for a consumer on the owner's thread, whose next arm passes no barrier: a look costs a tenth of what it costs
/// to take the flag away and put it back.
pub(super) const IDLE_NEAR: u32 = if cfg!(verbs_loom) { 1 } else { 2 };

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct CqEntry(pub(super) [AtomicU64; 8], pub(super) Tracked);

/// The fields that pushers write.
#[derive(Debug)]
#[repr(align(128))]
struct Pushers {
    mode: TouchWord,
    tail: AtomicU32,
    /// The first position for which there is no room, by the head as a pusher saw it last.
    end: AtomicU32,
    /// Entries that a pusher that pushes alone may fill before it looks again.
    left: AtomicU32,
    /// Pushes of the owner since one found an event wanted. Only the owner uses it.
    idle: AtomicU32,
}

impl Pushers {
    /// There is room before that position, for the pusher that fills `at` next.
    fn set_end(&self, end: u32, at: u32) {
        self.end.store(end, Relaxed);
        self.left.store(end.wrapping_sub(at), Relaxed);
    }

    /// Takes the next position, if there is room.
    #[inline(always)]
    fn claim(&self) -> u32 {
        let at = self.tail.load(Relaxed);
        self.tail.store(at.wrapping_add(1), Relaxed);
        let left = self.left.load(Relaxed);
        self.left.store(left.wrapping_sub(1), Relaxed);
        at
    }
}

/// The fields that the consumer writes. They stay when the buffer changes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CqConsumer {
    pub(super) head: AtomicU32,
    pub(super) arm: AtomicU32,
    /// What the consumer armed the queue for last, and in the bits above for how many completions.
    pub(super) want: AtomicU32,
    /// The number of the thread that armed the queue last.
    pub(super) armer: AtomicU32,
    /// The consumer is inside an `arm` that pushers do not know of yet.
    pub(super) arming: AtomicBool,
    /// Inline CQEs that were scattered by other threads and wait to be polled.
    pub(super) aside: AtomicU32,
}

/// That mode, changed so that any thread may push.
pub(super) fn shared(mode: u32) -> u32 {
    mode & !(CONVERTING | OWNER) | SHARED
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct CqBuffer {
    pushers: Pushers,
    entries: RingIndex<Box<[CqEntry]>>,
    /// Another buffer has taken its place.
    replaced: AtomicBool,
    consumer: Arc<CqConsumer>,
    clock: Option<Clock>,
}

/// An entry that was claimed by a pusher that pushes alone.
pub(crate) struct ClaimedEntry<'l> {
    pub(crate) at: u32,
    entry: &'l CqEntry,
    lap: u64,
}

impl ClaimedEntry<'_> {
    /// Fills it with a success: the consumer may see it now.
    #[inline(always)]
    pub(crate) fn publish(&self, cqe: &Cqe) {
        let CqEntry(words, cell) = self.entry;
        cell.write();
        words[1].store(cqe.wr_id, Relaxed);
        words[2].store(cqe.who, Relaxed);
        words[0].store(cqe.what | self.lap, Release);
    }

    /// As [`ClaimedEntry::publish`], for an inline CQE.
    #[inline(always)]
    pub(crate) fn publish_inline_cqe(&self, inline_cqe: &InlineCqe, flags: SendFlags) {
        let CqEntry(words, cell) = self.entry;
        cell.write();
        let [.., a, b, c, d] = words;
        words[1].store(u64::from(inline_cqe.receive), Relaxed);
        words[2].store(u64::from(inline_cqe.qpn.value()), Relaxed);
        a.store(inline_cqe.bytes[0], Relaxed);
        if inline_cqe.len > 8 {
            b.store(inline_cqe.bytes[1], Relaxed);
            c.store(inline_cqe.bytes[2], Relaxed);
            d.store(inline_cqe.bytes[3], Relaxed);
        }
        let cqe = Cqe::success(0, inline_cqe.qpn, WcOpcode::Recv, inline_cqe.len).asked_for(flags);
        words[0].store(cqe.what | INLINE_CQE | HAS_TIME | self.lap, Release);
    }
}

/// Places of one lap that a pusher that pushes alone fills one after the other, and claims when they are filled.
pub(crate) struct Strip<'l> {
    first: u32,
    /// The position of the next.
    at: u32,
    lap: u64,
    entries: std::slice::Iter<'l, CqEntry>,
}

impl<'l> Strip<'l> {
    /// Whether it has no places left.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.entries.as_slice().is_empty()
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<ClaimedEntry<'l>> {
        let (at, entry) = (self.at, self.entries.next()?);
        self.at = at.wrapping_add(1);
        Some(ClaimedEntry {
            at,
            entry,
            lap: self.lap,
        })
    }
}

impl CqBuffer {
    /// A buffer of `cqe` entries, which is a power of two, for a queue that has none yet. `shared`: any
    /// thread pushes, from the first push on.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn new(
        cqe: u32,
        consumer: Arc<CqConsumer>,
        clock: Option<Clock>,
        shared: bool,
    ) -> Result<Self, Error> {
        debug_assert!(cqe.is_power_of_two());
        let mut entries = Vec::new();
        entries
            .try_reserve_exact(cqe as usize)
            .map_err(|_| Error::NoMemory)?;
        let words = || std::array::from_fn(|_| AtomicU64::new(0));
        entries.extend((0..cqe).map(|_| CqEntry(words(), Tracked::new())));
        let stamped = if clock.is_some() { STAMPED } else { 0 };
        let mode = TouchWord::new(stamped | if shared { SHARED } else { 0 });
        Ok(Self {
            pushers: Pushers {
                mode,
                tail: AtomicU32::new(0),
                end: AtomicU32::new(cqe),
                left: AtomicU32::new(cqe),
                idle: AtomicU32::new(0),
            },
            entries: RingIndex::new(entries.into_boxed_slice()),
            replaced: AtomicBool::new(false),
            consumer,
            clock,
        })
    }

    pub(super) fn mode(&self) -> &TouchWord {
        &self.pushers.mode
    }

    /// How many entries it has.
    pub(super) fn len(&self) -> u32 {
        self.entries.len()
    }

    /// No thread pushes here, now or later.
    pub(crate) fn is_dead(&self) -> bool {
        self.pushers.mode.is_dead()
    }

    /// Whether another has taken its place.
    #[inline]
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Acquire)
    }

    /// Another has taken its place, and can already be found there.
    pub(super) fn replace(&self) {
        self.replaced.store(true, Release);
    }

    /// Takes over what waits in `old`, where no thread pushes, at the same positions; `false` if it does not fit. The
    /// consumer may continue to poll the old one. For a new buffer that no other thread knows.
    pub(super) fn take_over(&self, old: &Self) -> bool {
        let head = self.consumer.head.load(Acquire);
        // Where a completion was lost, nothing behind it could ever be seen.
        let mut tail = head;
        while old.published(tail).is_some() {
            if tail.wrapping_sub(head) == self.len() {
                return false;
            }
            tail = tail.wrapping_add(1);
        }
        for at in (0..self.len()).map(|n| head.wrapping_add(n)) {
            let (CqEntry(to, _), lap) = self.place(at);
            if at.wrapping_sub(head) >= tail.wrapping_sub(head) {
                to[0].store(lap ^ LAP, Relaxed);
                continue;
            }
            let (CqEntry(from, _), _) = old.place(at);
            for (to, from) in to.iter().zip(from).skip(1) {
                to.store(from.load(Relaxed), Relaxed);
            }
            to[0].store(from[0].load(Relaxed) & !LAP | lap, Relaxed);
        }
        self.pushers.tail.store(tail, Relaxed);
        self.pushers.set_end(head.wrapping_add(self.len()), tail);
        true
    }

    /// The mode of a dead buffer, for the next one: an owner that was losing the queue has lost it.
    pub(super) fn last_mode(&self) -> u32 {
        let mode = self.pushers.mode.tag();
        if mode & CONVERTING == 0 {
            mode
        } else {
            shared(mode)
        }
    }

    /// Asks to push under this pin. `None`: not now.
    #[inline(always)]
    pub(super) fn enter(&self, pin: &Pin) -> Option<Way> {
        if self.is_plain(pin) {
            Some(Way::PLAIN)
        } else {
            self.enter_slow(pin)
        }
    }

    /// Whether this thread pushes alone, to a queue that is not armed and has no time stamps.
    #[inline(always)]
    pub(crate) fn is_plain(&self, pin: &Pin) -> bool {
        // No thread owns a queue as `NO_NUMBER`.
        self.pushers.mode.admits_owner(pin)
    }

    /// Whether this thread pushes alone, to a queue that has no time stamps and whose events are not held back.
    #[inline(always)]
    pub(crate) fn is_owned(&self, pin: &Pin) -> bool {
        let mode = &self.pushers.mode;
        let armed = pin.thread() | ARMED;
        mode.admits_owner(pin) || mode.admits_as_seen(pin, Seen::new(armed))
    }

    /// Whether pushers look if the consumer wants an event.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        self.pushers.mode.tag() & ARMED != 0
    }

    /// Whether [`CqBuffer::is_plain`] says so, or will after the first push.
    pub(crate) fn may_be_plain(&self, pin: &Pin) -> bool {
        let owner = self.pushers.mode.tag();
        let mine = pin.thread() != Pin::NO_NUMBER && (owner == 0 || owner == pin.thread());
        mine && !self.is_dead()
    }

    #[inline(never)]
    fn enter_slow(&self, pin: &Pin) -> Option<Way> {
        let mode = &self.pushers.mode;
        let tag = mode.tag();
        // What packets complete is pushed so, and each packet enters anew.
        if tag & (SHARED | CONVERTING) == SHARED && mode.admits_as_seen(pin, Seen::new(tag)) {
            return Some(Way(tag & !OWNER));
        }
        self.enter_slowly(pin)
    }

    #[inline(never)]
    fn enter_slowly(&self, pin: &Pin) -> Option<Way> {
        let mode = &self.pushers.mode;
        let me = pin.thread();
        let numbered = me != Pin::NO_NUMBER;
        loop {
            let tag = mode.tag();
            let owner = tag & OWNER;
            if tag & CONVERTING != 0 || mode.is_dead() {
                return None;
            }
            if tag & SHARED != 0 || owner == me && numbered {
                if mode.admits(pin, TouchWord::TAG, tag) {
                    return Some(Way(tag & !OWNER));
                }
            } else if owner == 0 && numbered {
                // Losing this to another thread is seen in the next round.
                let _ = mode.update(|now| (now == tag).then_some(now | me));
            } else {
                return None;
            }
        }
    }

    /// As [`CqRing::push`](super::CqRing::push).
    #[inline]
    pub(super) fn push(
        &self,
        way: Way,
        cqe: &Cqe,
        first: impl FnOnce(u32),
    ) -> Result<Pushed, Overrun> {
        if way != Way::PLAIN {
            return self.push_slow(way, cqe, first);
        }
        let at = self.claim_alone()?;
        first(at);
        self.fill(at, cqe);
        Ok(Pushed { fire: false })
    }

    /// Whether there is room for both completions of a message, after [`CqBuffer::is_plain`].
    #[inline(always)]
    pub(crate) fn has_room_for_two(&self) -> bool {
        self.pushers.left.load(Relaxed) > 1
    }

    /// Whether polls in the meantime have made room for two where there was none.
    pub(crate) fn makes_room_for_two(&self, pin: &Pin) -> bool {
        if !self.is_plain(pin) || self.has_room_for_two() {
            return false;
        }
        self.look_at_head(self.pushers.tail.load(Relaxed));
        self.has_room_for_two()
    }

    /// The places that this thread may fill under this pin, if [`CqBuffer::is_plain`], up to the end of a lap.
    pub(crate) fn strip(&self, pin: &Pin) -> Strip<'_> {
        let at = self.pushers.tail.load(Relaxed);
        let left = match self.is_plain(pin) {
            true => self.pushers.left.load(Relaxed),
            false => 0,
        };
        let entries = self.entries.rest_of_lap(at);
        Strip {
            first: at,
            at,
            lap: self.lap(at),
            entries: entries.get(..left as usize).unwrap_or(entries).iter(),
        }
    }

    /// The places that were taken of a strip of this buffer were filled. The consumer does not need to know.
    pub(crate) fn claim_strip(&self, strip: &Strip<'_>) {
        let count = strip.at.wrapping_sub(strip.first);
        // Where other threads push, the strip was empty, and all here is theirs.
        if count != 0 {
            let Pushers { tail, left, .. } = &self.pushers;
            tail.store(strip.at, Relaxed);
            left.store(left.load(Relaxed).wrapping_sub(count), Relaxed);
        }
    }

    /// The first half of a push for which there is room, after [`CqBuffer::is_plain`]; the second is
    /// [`ClaimedEntry::publish`].
    #[inline(always)]
    pub(crate) fn claim_plain(&self) -> ClaimedEntry<'_> {
        let at = self.pushers.claim();
        let (entry, lap) = self.place(at);
        ClaimedEntry { at, entry, lap }
    }

    /// The inline CQE at that position, if the entry has been published and is one.
    #[inline(always)]
    pub(super) fn inline_cqe(&self, at: u32) -> Option<InlineCqe> {
        let what = self.published(at).filter(|what| what & INLINE_CQE != 0)?;
        let (CqEntry(words, _), _) = self.place(at);
        let [.., a, b, c, d] = words;
        let mut bytes = [a.load(Relaxed), 0, 0, 0];
        let len = (what >> LENGTH_SHIFT) as u32;
        if len > 8 {
            bytes = [a, b, c, d].map(|word| word.load(Relaxed));
        }
        Some(InlineCqe {
            qpn: Qpn::kept(words[2].load(Relaxed) as u32),
            receive: words[1].load(Relaxed) as u32,
            len,
            bytes,
        })
    }

    #[inline(never)]
    fn push_slow(&self, way: Way, cqe: &Cqe, first: impl FnOnce(u32)) -> Result<Pushed, Overrun> {
        let at = if way.0 & SHARED == 0 {
            self.claim_alone()?
        } else {
            let at = self.pushers.tail.fetch_add(1, Relaxed);
            // Other threads may be ahead of this position, in either word.
            if self
                .pushers
                .end
                .load(Relaxed)
                .wrapping_sub(at)
                .cast_signed()
                <= 0
            {
                self.look_for_room(at)?;
            }
            at
        };
        first(at);
        let mut what = cqe.what;
        if let Some(clock) = &self.clock {
            self.place(at).0.0[4].store(clock.now().as_nanos(), Relaxed);
            what |= HAS_TIME;
        } else if what & DATAGRAM != 0 {
            self.place(at).0.0[4].store(0, Relaxed);
        }
        self.fill_as(at, cqe, what);
        let fire = match way {
            Way::ARMED => self.fires_for(cqe),
            way => way.0 & ARMED != 0 && self.takes_want(cqe).1,
        };
        Ok(Pushed { fire })
    }

    /// What event the consumer wants, and whether it is due with that completion, which has been published; who is
    /// told so delivers it.
    #[inline(always)]
    fn takes_want(&self, cqe: &Cqe) -> (u32, bool) {
        fence(SeqCst);
        let wanted = self.consumer.arm.load(Relaxed);
        let fires = Cqe::fires(cqe.what, wanted) && self.consumer.arm.swap(0, AcqRel) != 0;
        (wanted, fires)
    }

    /// As [`CqBuffer::takes_want`], for the owner, which has pushed alone under its pin. When no event is wanted for a
    /// time its next push is plain.
    #[inline(always)]
    pub(crate) fn fires_for(&self, cqe: &Cqe) -> bool {
        let (wanted, fires) = self.takes_want(cqe);
        if fires {
            self.pushers.idle.store(0, Relaxed);
        } else if wanted == 0 {
            self.disarm();
        }
        fires
    }

    /// A push has found no event wanted: the owner takes [`ARMED`] out of the mode when that were enough in a row.
    #[cold]
    #[inline(never)]
    fn disarm(&self) {
        let Pushers { mode, idle, .. } = &self.pushers;
        let owner = mode.tag() & OWNER;
        let is_near = self.consumer.armer.load(Relaxed) == owner;
        let count = idle.load(Relaxed) + 1;
        if count < if is_near { IDLE_NEAR } else { IDLE } {
            idle.store(count, Relaxed);
            return;
        }
        idle.store(0, Relaxed);
        // A thread that takes the queue from its owner, or that turns moderation on, keeps the flag.
        let alone = owner | ARMED;
        let taken = mode.update(|tag| (tag == alone).then_some(owner));
        if taken.is_none() {
            return;
        }
        // The consumer wants an event and then looks for the flag, with a fence between the two: either it finds the
        // flag cleared and sets it again, or this finds the event wanted. The owner pushes nothing in between.
        fence(SeqCst);
        if self.consumer.arm.load(Relaxed) != 0 {
            let _ = mode.update(|tag| Some(tag | ARMED));
        }
    }

    #[inline(always)]
    fn claim_alone(&self) -> Result<u32, Overrun> {
        if self.pushers.left.load(Relaxed) == 0 {
            self.look_for_room(self.pushers.tail.load(Relaxed))?;
        }
        Ok(self.pushers.claim())
    }

    /// How far the consumer has polled, and with it how much room there is for the pusher that fills `at` next.
    fn look_at_head(&self, at: u32) -> u32 {
        let head = self.consumer.head.load(Acquire);
        self.pushers.set_end(head.wrapping_add(self.len()), at);
        head
    }

    #[cold]
    fn look_for_room(&self, at: u32) -> Result<(), Overrun> {
        let head = self.look_at_head(at);
        if at.wrapping_sub(head) < self.len() {
            return Ok(());
        }
        // A shared tail has been moved already: its entry stays empty and the consumer stops there.
        Err(Overrun)
    }

    fn fill(&self, at: u32, cqe: &Cqe) {
        self.fill_as(at, cqe, cqe.what);
    }

    #[inline]
    fn fill_as(&self, at: u32, cqe: &Cqe, what: u64) {
        let (CqEntry(words, cell), lap) = self.place(at);
        cell.write();
        words[1].store(cqe.wr_id, Relaxed);
        words[2].store(cqe.who, Relaxed);
        words[3].store(cqe.more, Relaxed);
        words[0].store(what | lap, Release);
    }

    /// The entry of a position and its lap bit: 1 on the first lap, so that a fresh ring is empty.
    #[inline(always)]
    pub(super) fn place(&self, at: u32) -> (&CqEntry, u64) {
        (self.entries.at(at), self.lap(at))
    }

    #[inline(always)]
    fn lap(&self, at: u32) -> u64 {
        u64::from(self.entries.is_even_lap(at)) * LAP
    }

    /// The entries from a position to the end of its lap, and their lap bit.
    #[inline(always)]
    pub(super) fn rest_of_lap(&self, at: u32) -> (&[CqEntry], u64) {
        (self.entries.rest_of_lap(at), self.lap(at))
    }

    /// The first word of the entry at that position, if it has been published.
    #[inline(always)]
    pub(super) fn published(&self, at: u32) -> Option<u64> {
        let (CqEntry(words, _), lap) = self.place(at);
        let what = words[0].load(Acquire);
        ((what ^ lap) & LAP == 0).then_some(what)
    }
}
