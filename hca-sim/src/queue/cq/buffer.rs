//! The ring of a completion queue, as those see it who push: entries, tail, and the mode that says who
//! may push.
//!
//! A queue has one buffer at a time. A resize takes it away, as any object is taken away from pinned
//! threads, and puts another in its place; positions go on counting. Whoever keeps a buffer finds the old
//! one dead and asks the queue for the new one.

use verbs_core::laps::Laps;
use verbs_core::mem::{Pin, TouchWord};
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use verbs_core::tracked::Tracked;
use verbs_core::{Error, Qpn, SendFlags, WcOpcode};

use super::entry::{Cqe, DATAGRAM, HAS_TIME, LAP, LENGTH_SHIFT, Overrun, Pushed, RIDES, Way};
use crate::clock::Clock;
use crate::queue::cqe_inline::Rider;

/// In the mode: the number of the thread that pushes alone.
pub(super) const OWNER: u32 = 0x1f;
/// In the mode: an owner is losing the queue.
pub(super) const CONVERTING: u32 = 1 << 6;
/// In the mode: any thread pushes.
pub(super) const SHARED: u32 = 1 << 7;
/// In the mode: pushers look whether the consumer wants an event.
pub(super) const ARMED: u32 = 1 << 8;
/// In the mode: entries carry the time.
pub(super) const STAMPED: u32 = 1 << 9;
/// In the mode: events may be held back, so that [`ARMED`] stays.
pub(super) const MODERATED: u32 = 1 << 10;
/// Pushes in a row that find no event wanted, after which an owner stops to look for a consumer on another
/// thread. The next arm then passes the process-wide barrier, which costs as much as several messages.
///
/// With assertions on it is few, so that tests see it.
pub(super) const IDLE: u32 = if cfg!(verbs_loom) {
    1
} else if cfg!(debug_assertions) {
    4
} else {
    256
};

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Entry(pub(super) [AtomicU64; 8], pub(super) Tracked);

/// What pushers write.
#[derive(Debug)]
#[repr(align(128))]
struct Pushers {
    mode: TouchWord,
    tail: AtomicU32,
    /// The first position for which there is no room, by the head as a pusher saw it last.
    end: AtomicU32,
    /// Entries that a pusher who is alone may fill before it looks again.
    left: AtomicU32,
    /// Pushes of the owner since one found an event wanted. Only the owner uses it.
    idle: AtomicU32,
}

impl Pushers {
    /// There is room before that position, for who is to fill `at` next.
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

/// What the consumer writes. It stays when the buffer changes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Consumer {
    pub(super) head: AtomicU32,
    pub(super) arm: AtomicU32,
    /// What the consumer armed the queue for last.
    pub(super) want: AtomicU32,
    /// The number of the thread that armed the queue last.
    pub(super) armer: AtomicU32,
    /// The consumer is inside an `arm` of which pushers do not know yet.
    pub(super) arming: AtomicBool,
    /// Riders that were unloaded by others and wait to be polled.
    pub(super) aside: AtomicU32,
}

/// That mode, when any thread may push.
pub(super) fn shared(mode: u32) -> u32 {
    mode & !(CONVERTING | OWNER) | SHARED
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct CqBuffer {
    pushers: Pushers,
    entries: Laps<Box<[Entry]>>,
    /// Another buffer has taken its place.
    replaced: AtomicBool,
    consumer: Arc<Consumer>,
    clock: Option<Clock>,
}

/// An entry that was claimed by a pusher who is alone.
pub(crate) struct Place<'l> {
    pub(crate) at: u32,
    entry: &'l Entry,
    lap: u64,
}

impl Place<'_> {
    /// Fills it with a success: the consumer may see it now.
    #[inline(always)]
    pub(crate) fn publish(&self, cqe: &Cqe) {
        let Entry(words, cell) = self.entry;
        cell.write();
        words[1].store(cqe.wr_id, Relaxed);
        words[2].store(cqe.who, Relaxed);
        words[0].store(cqe.what | self.lap, Release);
    }

    /// As [`Place::publish`], of a rider.
    #[inline(always)]
    pub(crate) fn publish_rider(&self, rider: &Rider, flags: SendFlags) {
        let Entry(words, cell) = self.entry;
        cell.write();
        let [.., a, b, c, d] = words;
        words[1].store(u64::from(rider.receive), Relaxed);
        words[2].store(u64::from(rider.qpn.value()), Relaxed);
        a.store(rider.bytes[0], Relaxed);
        if rider.len > 8 {
            b.store(rider.bytes[1], Relaxed);
            c.store(rider.bytes[2], Relaxed);
            d.store(rider.bytes[3], Relaxed);
        }
        let cqe = Cqe::success(0, rider.qpn, WcOpcode::Recv, rider.len).asked_for(flags);
        words[0].store(cqe.what | RIDES | HAS_TIME | self.lap, Release);
    }
}

/// Places of one lap that a pusher who is alone fills one after the other, and claims when they are filled.
pub(crate) struct Strip<'l> {
    first: u32,
    /// The position of the next.
    at: u32,
    lap: u64,
    entries: std::slice::Iter<'l, Entry>,
}

impl<'l> Strip<'l> {
    /// Whether there is none.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.entries.as_slice().is_empty()
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Place<'l>> {
        let (at, entry) = (self.at, self.entries.next()?);
        self.at = at.wrapping_add(1);
        Some(Place {
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
        consumer: Arc<Consumer>,
        clock: Option<Clock>,
        shared: bool,
    ) -> Result<Self, Error> {
        debug_assert!(cqe.is_power_of_two());
        let mut entries = Vec::new();
        entries
            .try_reserve_exact(cqe as usize)
            .map_err(|_| Error::NoMemory)?;
        let words = || std::array::from_fn(|_| AtomicU64::new(0));
        entries.extend((0..cqe).map(|_| Entry(words(), Tracked::new())));
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
            entries: Laps::new(entries.into_boxed_slice()),
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

    /// Nobody pushes here, now or for ever.
    pub(crate) fn is_dead(&self) -> bool {
        self.pushers.mode.is_dead()
    }

    /// Whether another has taken its place.
    #[inline]
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Acquire)
    }

    /// Another has taken its place, where it can be found by now.
    pub(super) fn replace(&self) {
        self.replaced.store(true, Release);
    }

    /// Takes over what waits in `old`, where nobody pushes, at the positions that it has there; `false`
    /// if that is more than fits. The consumer may go on polling the old one. For a new buffer that nobody
    /// knows.
    pub(super) fn take_over(&self, old: &Self) -> bool {
        let head = self.consumer.head.load(Acquire);
        // Where a completion was lost, nothing behind it was ever to be seen.
        let mut tail = head;
        while old.published(tail).is_some() {
            if tail.wrapping_sub(head) == self.len() {
                return false;
            }
            tail = tail.wrapping_add(1);
        }
        for at in (0..self.len()).map(|n| head.wrapping_add(n)) {
            let (Entry(to, _), lap) = self.place(at);
            if at.wrapping_sub(head) >= tail.wrapping_sub(head) {
                to[0].store(lap ^ LAP, Relaxed);
                continue;
            }
            let (Entry(from, _), _) = old.place(at);
            for (to, from) in to.iter().zip(from).skip(1) {
                to.store(from.load(Relaxed), Relaxed);
            }
            to[0].store(from[0].load(Relaxed) & !LAP | lap, Relaxed);
        }
        self.pushers.tail.store(tail, Relaxed);
        self.pushers.set_end(head.wrapping_add(self.len()), tail);
        true
    }

    /// The mode of a buffer that is dead, for the one that follows: who was to lose it has lost it.
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
        // Nobody owns a queue as `NO_NUMBER`.
        self.pushers.mode.admits_owner(pin)
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

    /// Whether what was polled meanwhile makes room for two when there was none.
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

    /// What was taken of a strip of this buffer was filled. The consumer need not know of it.
    pub(crate) fn claim_strip(&self, strip: &Strip<'_>) {
        let count = strip.at.wrapping_sub(strip.first);
        // Where others push, the strip was empty, and all here is theirs.
        if count != 0 {
            let Pushers { tail, left, .. } = &self.pushers;
            tail.store(strip.at, Relaxed);
            left.store(left.load(Relaxed).wrapping_sub(count), Relaxed);
        }
    }

    /// The first half of a push for which there is room, after [`CqBuffer::is_plain`]; the second is
    /// [`Place::publish`].
    #[inline(always)]
    pub(crate) fn claim_plain(&self) -> Place<'_> {
        let at = self.pushers.claim();
        let (entry, lap) = self.place(at);
        Place { at, entry, lap }
    }

    /// The rider at that position, if the entry has been published and is one.
    #[inline(always)]
    pub(super) fn rider(&self, at: u32) -> Option<Rider> {
        let what = self.published(at).filter(|what| what & RIDES != 0)?;
        let (Entry(words, _), _) = self.place(at);
        let [.., a, b, c, d] = words;
        let mut bytes = [a.load(Relaxed), 0, 0, 0];
        let len = (what >> LENGTH_SHIFT) as u32;
        if len > 8 {
            bytes = [a, b, c, d].map(|word| word.load(Relaxed));
        }
        Some(Rider {
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
            // Others may be ahead of this position, in either word.
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
        let mut cqe = *cqe;
        if let Some(clock) = &self.clock {
            self.place(at).0.0[4].store(clock.now().as_nanos(), Relaxed);
            cqe.what |= HAS_TIME;
        } else if cqe.what & DATAGRAM != 0 {
            self.place(at).0.0[4].store(0, Relaxed);
        }
        self.fill(at, &cqe);
        let mut fire = false;
        if way.0 & ARMED != 0 {
            fence(SeqCst);
            let wanted = self.consumer.arm.load(Relaxed);
            fire = Cqe::fires(cqe.what, wanted) && self.consumer.arm.swap(0, AcqRel) != 0;
            if way == Way::ARMED && (fire || wanted == 0) {
                self.disarm(fire);
            }
        }
        Ok(Pushed { fire })
    }

    /// No event is wanted any more: the owner, who has pushed alone under its pin, takes [`ARMED`] out of the
    /// mode, so that its next push is plain. `fired`: one was wanted until this push.
    fn disarm(&self, fired: bool) {
        let Pushers { mode, idle, .. } = &self.pushers;
        let owner = mode.tag() & OWNER;
        if self.consumer.armer.load(Relaxed) != owner {
            let count = if fired { 0 } else { idle.load(Relaxed) + 1 };
            idle.store(count, Relaxed);
            if count < IDLE {
                return;
            }
        }
        idle.store(0, Relaxed);
        // A thread that takes the queue from its owner, or that has events moderated, keeps the flag.
        let alone = owner | ARMED;
        let taken = mode.update(|tag| (tag == alone).then_some(owner));
        if taken.is_none() {
            return;
        }
        // The consumer wants an event and then looks for the flag, with a fence between the two: it finds the
        // flag gone and puts it back, or this finds the event wanted. No push of the owner comes in between.
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

    /// How far the consumer has polled, and with it how much room there is for who is to fill `at` next.
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
        // A shared tail has been moved already: its entry stays empty and the consumer ends there.
        Err(Overrun)
    }

    fn fill(&self, at: u32, cqe: &Cqe) {
        let (Entry(words, cell), lap) = self.place(at);
        cell.write();
        words[1].store(cqe.wr_id, Relaxed);
        words[2].store(cqe.who, Relaxed);
        words[3].store(cqe.more, Relaxed);
        words[0].store(cqe.what | lap, Release);
    }

    /// The entry of a position and its lap bit: 1 on the first lap, so that a fresh ring is empty.
    #[inline(always)]
    pub(super) fn place(&self, at: u32) -> (&Entry, u64) {
        (self.entries.at(at), self.lap(at))
    }

    #[inline(always)]
    fn lap(&self, at: u32) -> u64 {
        u64::from(self.entries.is_even_lap(at)) * LAP
    }

    /// The entries from a position to the end of its lap, and their lap bit.
    #[inline(always)]
    pub(super) fn rest_of_lap(&self, at: u32) -> (&[Entry], u64) {
        (self.entries.rest_of_lap(at), self.lap(at))
    }

    /// The first word of the entry at that position, if it has been published.
    #[inline(always)]
    pub(super) fn published(&self, at: u32) -> Option<u64> {
        let (Entry(words, _), lap) = self.place(at);
        let what = words[0].load(Acquire);
        ((what ^ lap) & LAP == 0).then_some(what)
    }
}
