//! Completion queues: a ring that threads push to and one consumer polls.
//!
//! An entry is eight atomic words. A bit of the first says whose lap of the ring it belongs to, so
//! the consumer never looks at the tail; the producers look at the consumer's head only when the ring
//! seems full.
//!
//! # Who pushes
//!
//! The tail is *biased*: while a single thread pushes, it moves the tail by a load and a store. The
//! mode says which thread that is.
//!
//! ```text
//!            first push              another thread wants to push        grace period over
//!   NOBODY ------------> OWNED(t) ---------------------------> CONVERTING -----------------> SHARED
//! ```
//!
//! In SHARED the tail is moved by one read-modify-write. Nobody may push while CONVERTING, and nobody
//! waits for it inside a pin, where two threads that convert each other's queue would wait for ever:
//! whoever finds it puts its work request aside ([`crate::engaged`]) and is called when it is over.
//! Pushing takes a pin from the look at the mode to the entry, which is what the grace period waits
//! for.
//!
//! # Arm
//!
//! The consumer stores *armed* and then looks for entries; a pusher publishes its entry and then looks
//! for *armed*. Both need a full fence between the two. The pusher issues it only if the mode says that
//! the queue was ever armed. The first arm sets that flag and has the ring looked at once more after a
//! grace period, when every push that did not know of it is over.

use std::fmt;

use verbs_core::mem::{Pin, TouchWord, grace};
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{CqNotify, Error, EventType, Lid, Qpn, RKey, WcFlags, WcOpcode, WcStatus};

use crate::clock::Clock;
use crate::port::Port;

#[cfg(all(test, verbs_loom))]
mod models;
mod moderation;
mod opcodes;
mod poller;

use moderation::Moderation;
pub(crate) use poller::CqPoller;

/// In the mode: the number of the thread that pushes alone.
const OWNER: u32 = 0x1f;
/// In the mode: an owner is losing the queue.
const CONVERTING: u32 = 1 << 6;
/// In the mode: any thread pushes.
const SHARED: u32 = 1 << 7;
/// In the mode: the queue was armed at some time.
const ARMED: u32 = 1 << 8;
/// In the mode: entries carry the time.
const STAMPED: u32 = 1 << 9;

/// In [`CqRing::arm`]: an event is wanted for solicited completions and errors.
const WANT_SOLICITED: u32 = 0b01;
/// In [`CqRing::arm`]: an event is wanted for any completion.
const WANT_NEXT: u32 = 0b11;

/// In an entry's first word, below opcode, flags and length.
const LAP: u64 = 1;
const STATUS_SHIFT: u32 = 1;
const STATUS: u64 = 0x1f;
/// The bits of the status, of which a success has none.
const FAILURE: u64 = STATUS << STATUS_SHIFT;
const HAS_TIME: u64 = 1 << 6;
const SOLICITED: u64 = 1 << 7;
const OPCODE_SHIFT: u32 = 8;
const FLAGS_SHIFT: u32 = 16;
const LENGTH_SHIFT: u32 = 32;

/// In an entry's first word, among the flags, where [`WcFlags`] has none: the fourth word tells about a
/// datagram. Such an entry has [`HAS_TIME`] too, so that the short way of polling leaves it alone; the
/// time is 0 if the queue has no clock.
const DATAGRAM: u64 = 1 << 31;
/// In the fourth word of a datagram's entry, above the sender's number.
const SL_SHIFT: u32 = 24;
const PKEY_SHIFT: u32 = 32;
const SLID_SHIFT: u32 = 48;

/// In an entry's third word, above the queue pair's number.
const IMM_SHIFT: u32 = 32;

/// What a completion says, as it stands in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub(crate) wr_id: u64,
    what: u64,
    who: u64,
    /// Of a failure, the crate's own reason; of a datagram, who sent it.
    more: u64,
}

/// Where a datagram came from, as its completion tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) qpn: Qpn,
    pub(crate) lid: Lid,
    pub(crate) sl: u8,
    pub(crate) pkey_index: u16,
}

impl Cqe {
    /// A success.
    #[inline(always)]
    pub(crate) const fn success(wr_id: u64, qpn: Qpn, opcode: WcOpcode, byte_len: u32) -> Self {
        let what = (byte_len as u64) << LENGTH_SHIFT | (opcode as u64) << OPCODE_SHIFT;
        Self {
            wr_id,
            what,
            who: qpn.value() as u64,
            more: 0,
        }
    }

    /// A failure. `vendor_err` is the crate's own reason.
    pub(crate) const fn failure(wr_id: u64, qpn: Qpn, status: WcStatus, vendor_err: u32) -> Self {
        let what = (status as u64) << STATUS_SHIFT;
        Self {
            wr_id,
            what,
            who: qpn.value() as u64,
            more: vendor_err as u64,
        }
    }

    /// Carries immediate data.
    #[inline(always)]
    pub(crate) const fn imm(mut self, imm: u32) -> Self {
        self.what |= (WcFlags::WITH_IMM.bits() as u64) << FLAGS_SHIFT;
        self.who |= (imm as u64) << IMM_SHIFT;
        self
    }

    /// Tells which key the message has made invalid.
    pub(crate) const fn inv(mut self, key: RKey) -> Self {
        self.what |= (WcFlags::WITH_INV.bits() as u64) << FLAGS_SHIFT;
        self.who |= (key.value() as u64) << IMM_SHIFT;
        self
    }

    /// Is of a datagram that came from there, with those flags.
    pub(crate) fn datagram(mut self, origin: &Origin, flags: WcFlags) -> Self {
        self.what |= DATAGRAM | HAS_TIME | u64::from(flags.bits()) << FLAGS_SHIFT;
        self.more = u64::from(origin.qpn.value())
            | u64::from(origin.sl & 15) << SL_SHIFT
            | u64::from(origin.pkey_index) << PKEY_SHIFT
            | u64::from(origin.lid.0) << SLID_SHIFT;
        self
    }

    /// Fires a queue that is armed for solicited completions.
    #[inline(always)]
    pub(crate) const fn solicited(mut self, solicited: bool) -> Self {
        self.what |= (solicited as u64) << SOLICITED.trailing_zeros();
        self
    }

    /// Whether an event that is wanted like this is due.
    fn fires(what: u64, wanted: u32) -> bool {
        wanted == WANT_NEXT || what & (SOLICITED | FAILURE) != 0 && wanted != 0
    }
}

/// How a thread may push, found out by [`CqRing::enter`] and valid until the pin is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way(u32);

impl Way {
    /// Alone, never armed, no time stamps.
    const PLAIN: Self = Self(0);
}

/// An entry that was pushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pushed {
    /// The event that the consumer wants is due; see [`CqRing::fire`].
    pub(crate) fire: bool,
}

/// Somebody who could not push, because the queue was changing hands.
pub(crate) trait WaitsForCq: Send + Sync {
    /// Any thread can push now. Outside pins and locks.
    fn go_on(self: Arc<Self>);
}

/// The queue has no room: the completion is lost and the queue is in error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overrun;

#[derive(Debug)]
#[repr(align(64))]
struct Entry([AtomicU64; 8]);

/// What pushers write.
#[derive(Debug)]
#[repr(align(128))]
struct Pushers {
    mode: TouchWord,
    tail: AtomicU32,
    /// The first position for which there is no room, by the head as a pusher saw it last.
    end: AtomicU32,
    /// A completion was lost.
    overrun: AtomicBool,
}

#[derive(Debug)]
#[repr(align(128))]
struct Consumer {
    head: AtomicU32,
    arm: AtomicU32,
    /// What the consumer armed the queue for last.
    want: AtomicU32,
    /// The consumer is inside its first `arm`.
    arming: AtomicBool,
}

/// The part of a completion queue that all share.
pub(crate) struct CqRing {
    pushers: Pushers,
    entries: Box<[Entry]>,
    /// Of a position: which entry it is.
    mask: u32,
    consumer: Consumer,
    notify: Arc<CqNotify>,
    clock: Option<Clock>,
    /// Who wants to push and waits for the end of CONVERTING.
    waiting: Mutex<Vec<Arc<dyn WaitsForCq>>>,
    /// The client was told that completions were lost.
    told: AtomicBool,
    /// Moderation was asked for at some time.
    moderated: AtomicBool,
    moderation: Mutex<Option<Moderation>>,
}

impl CqRing {
    /// A ring for `cqe` entries, which is a power of two; `clock` stamps them if there is one. `shared`:
    /// any thread pushes, from the first push on.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(
        cqe: u32,
        notify: Arc<CqNotify>,
        clock: Option<Clock>,
        shared: bool,
    ) -> Result<Self, Error> {
        debug_assert!(cqe.is_power_of_two());
        let mut entries = Vec::new();
        entries
            .try_reserve_exact(cqe as usize)
            .map_err(|_| Error::NoMemory)?;
        entries.extend((0..cqe).map(|_| Entry(std::array::from_fn(|_| AtomicU64::new(0)))));
        let stamped = if clock.is_some() { STAMPED } else { 0 };
        let mode = TouchWord::new(stamped | if shared { SHARED } else { 0 });
        Ok(Self {
            pushers: Pushers {
                mode,
                tail: AtomicU32::new(0),
                end: AtomicU32::new(cqe),
                overrun: AtomicBool::new(false),
            },
            entries: entries.into_boxed_slice(),
            mask: cqe - 1,
            consumer: Consumer {
                head: AtomicU32::new(0),
                arm: AtomicU32::new(0),
                want: AtomicU32::new(0),
                arming: AtomicBool::new(false),
            },
            notify,
            clock,
            waiting: Mutex::new(Vec::new()),
            told: AtomicBool::new(false),
            moderated: AtomicBool::new(false),
            moderation: Mutex::new(None),
        })
    }

    /// Asks to push under this pin. `None`: not now; see [`CqRing::convert`].
    #[inline(always)]
    pub(crate) fn enter(&self, pin: &Pin) -> Option<Way> {
        if self.is_plain(pin) {
            Some(Way::PLAIN)
        } else {
            self.enter_slow(pin)
        }
    }

    /// Whether this thread pushes alone, to a queue that was never armed and has no time stamps.
    #[inline(always)]
    pub(crate) fn is_plain(&self, pin: &Pin) -> bool {
        // Nobody owns a queue as `NO_NUMBER`.
        self.pushers.mode.admits_owner(pin)
    }

    #[inline(never)]
    fn enter_slow(&self, pin: &Pin) -> Option<Way> {
        let mode = &self.pushers.mode;
        let me = pin.thread();
        let numbered = me != Pin::NO_NUMBER;
        loop {
            let tag = mode.tag();
            let owner = tag & OWNER;
            if tag & CONVERTING != 0 {
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

    /// Pushes a completion the way that [`CqRing::enter`] has found, under the same pin.
    ///
    /// The consumer may see it and act on it before this returns. What it must find then is done by
    /// `first`, which is given the position, or before the call.
    ///
    /// # Errors
    /// [`Overrun`]; `first` was not called.
    #[inline]
    pub(crate) fn push(
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

    /// Whether there is room for that many more, after [`CqRing::is_plain`].
    #[inline(always)]
    pub(crate) fn has_room(&self, count: u32) -> bool {
        let room = self
            .pushers
            .end
            .load(Relaxed)
            .wrapping_sub(self.pushers.tail.load(Relaxed));
        room >= count
    }

    /// Whether what was polled meanwhile makes room for that many when there was none.
    pub(crate) fn makes_room(&self, pin: &Pin, count: u32) -> bool {
        if !self.is_plain(pin) || self.has_room(count) {
            return false;
        }
        let end = self.head().wrapping_add(self.entries.len() as u32);
        self.pushers.end.store(end, Relaxed);
        self.has_room(count)
    }

    /// The first half of a push for which there is room, after [`CqRing::is_plain`]: the position.
    #[inline(always)]
    pub(crate) fn claim_plain(&self) -> u32 {
        let at = self.pushers.tail.load(Relaxed);
        self.pushers.tail.store(at.wrapping_add(1), Relaxed);
        at
    }

    /// The second half, of a success: the consumer may see it now.
    #[inline(always)]
    pub(crate) fn publish_plain(&self, at: u32, cqe: &Cqe) {
        let (Entry(words), lap) = self.place(at);
        words[1].store(cqe.wr_id, Relaxed);
        words[2].store(cqe.who, Relaxed);
        words[0].store(cqe.what | lap, Release);
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
            fire = Cqe::fires(cqe.what, self.consumer.arm.load(Relaxed))
                && self.consumer.arm.swap(0, AcqRel) != 0;
        }
        Ok(Pushed { fire })
    }

    #[inline(always)]
    fn claim_alone(&self) -> Result<u32, Overrun> {
        let at = self.pushers.tail.load(Relaxed);
        if at == self.pushers.end.load(Relaxed) {
            self.look_for_room(at)?;
        }
        self.pushers.tail.store(at.wrapping_add(1), Relaxed);
        Ok(at)
    }

    #[cold]
    fn look_for_room(&self, at: u32) -> Result<(), Overrun> {
        let head = self.consumer.head.load(Acquire);
        self.pushers
            .end
            .store(head.wrapping_add(self.entries.len() as u32), Relaxed);
        if (at.wrapping_sub(head) as usize) < self.entries.len() {
            return Ok(());
        }
        // A shared tail has been moved already: its entry stays empty and the consumer ends there.
        self.pushers.overrun.store(true, Relaxed);
        Err(Overrun)
    }

    fn fill(&self, at: u32, cqe: &Cqe) {
        let (Entry(words), lap) = self.place(at);
        words[1].store(cqe.wr_id, Relaxed);
        words[2].store(cqe.who, Relaxed);
        words[3].store(cqe.more, Relaxed);
        words[0].store(cqe.what | lap, Release);
    }

    /// The entry of a position and its lap bit: 1 on the first lap, so that a fresh ring is empty.
    #[inline(always)]
    fn place(&self, at: u32) -> (&Entry, u64) {
        let slot = (at & self.mask) as usize;
        let Some(entry) = self.entries.get(slot) else {
            no_entry();
        };
        (
            entry,
            u64::from(at as usize & self.entries.len() == 0) * LAP,
        )
    }

    /// The first word of the entry at that position, if it has been published.
    #[inline(always)]
    fn published(&self, at: u32) -> Option<u64> {
        let (Entry(words), lap) = self.place(at);
        let what = words[0].load(Acquire);
        ((what ^ lap) & LAP == 0).then_some(what)
    }

    /// How far the consumer has polled: all positions before it.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.consumer.head.load(Acquire)
    }

    /// Completions were lost: tells the client, once, and takes every queue pair on the queue to ERR, as
    /// none can go on (IBTA vol. 1, 11.2.6.1). Outside pins and locks.
    pub(crate) fn tell_overrun(self: &Arc<Self>, port: &Port) {
        if !self.told.swap(true, AcqRel) {
            port.counters.overruns.up();
            if let Some(core) = self.notify.target() {
                EventType::CqErr.raise_for(&core);
            }
        }
        for qp in port.link.queue_pairs_on(self) {
            if qp.fail() {
                // Its own completion may be the lost one, so nothing else tells it.
                qp.raise(EventType::QpFatal);
            }
        }
    }

    /// Makes a queue that [`CqRing::enter`] has refused shared, and calls `waiter` when it is.
    /// Outside any pin.
    pub(crate) fn convert(self: &Arc<Self>, waiter: Arc<dyn WaitsForCq>) {
        self.waiting.lock().push(waiter);
        let begun = self.pushers.mode.update(|tag| {
            let begun = tag & (SHARED | CONVERTING) != 0;
            (!begun).then_some(tag | CONVERTING)
        });
        match begun {
            Some((_, touched)) => {
                let ring = Arc::clone(self);
                grace::after(touched, move || {
                    let now_shared = |tag| Some(tag & !(CONVERTING | OWNER) | SHARED);
                    let _ = ring.pushers.mode.update(now_shared);
                    ring.call_waiting();
                });
            }
            // With CONVERTING still there, the job comes after our entry in the list.
            None if self.pushers.mode.tag() & SHARED != 0 => self.call_waiting(),
            None => {}
        }
    }

    fn call_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for waiter in waiting {
            waiter.go_on();
        }
    }

    /// Whoever pushed without knowing that the queue is armed has finished: fires for what they
    /// pushed.
    fn look_again(&self) {
        // As long as `arm` has not returned it looks itself, and no handler may run inside of it.
        // Two read-modify-writes of one word: either this one sees that `arm` is past, or `arm`,
        // when it looks, sees what this thread has seen.
        if self.consumer.arming.fetch_or(false, AcqRel) {
            return;
        }
        let mut at = self.head();
        while let Some(what) = self.published(at) {
            if Cqe::fires(what, self.consumer.arm.load(Relaxed)) {
                if self.consumer.arm.swap(0, AcqRel) != 0 {
                    self.fire();
                }
                return;
            }
            at = at.wrapping_add(1);
        }
    }
}

impl fmt::Debug for CqRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqRing")
            .field("entries", &self.entries.len())
            .field("head", &self.consumer.head)
            .field("pushers", &self.pushers)
            .finish_non_exhaustive()
    }
}

/// A position under the mask of its ring is within the ring, so this cannot be. It does not unwind:
/// posts would have to be prepared for that.
#[cold]
#[inline(never)]
pub(crate) fn no_entry() -> ! {
    std::process::abort()
}
