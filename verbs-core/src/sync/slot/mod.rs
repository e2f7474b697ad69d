//! The slot of a *pended* request: where its consumer and its completer meet.
//!
//! One word decides which thread may touch the cells: generation in the upper half, these bits below.
//!
//! ```text
//! vacant --occupy: body and meta, then store Release--> ISSUED (+ROUTINE)
//! ISSUED --cancel: CAS--> +CANCEL             a hint; the canceller never completes (K8)
//! ISSUED --claim: CAS--> CLAIMED              provider or removal sweep; exactly one (K1)
//! CLAIMED, ROUTINE: the completer takes the body and vacates
//! CLAIMED: result into the body, take the waker if the claimed word had WAKER, fetch_or DONE, wake
//! consumer: +WAKER by CAS; +DETACHED by fetch_or; DONE seen: take the body, vacate
//! DONE finds DETACHED: the completer cleans up; DETACHED finds DONE: the consumer does
//! ```
//!
//! *Rights.* The body belongs to the occupier before ISSUED, to the claimer from CLAIMED to DONE, to
//! the consumer after DONE (or to the claimer, if DETACHED came first). The waker cell belongs to
//! the consumer while WAKER is clear and no thread claimed with WAKER set; to the claimer if the word
//! that it claimed had WAKER.
//!
//! *The race that looks bad*: a consumer that polls again with another waker while the completer
//! claims. It first takes the cell back (clears WAKER by compare-exchange); a claim after that does
//! not look at the cell, and the consumer's attempt to set WAKER then sees the claim. Between claim
//! and DONE a poll wakes itself and returns `Pending`: two instructions wide, no lost wake.
//!
//! *What loom does not show*: the generation's wrap. A stale cancel handle hits after 2^32 reuses of
//! one slot while it is kept; that is accepted.

mod location;
#[cfg(all(test, verbs_loom))]
mod loom_tests;
pub mod ring_index;
mod slab;
pub mod slab_alloc;
pub mod tracked;

use std::panic::Location;
use std::task::{Context, Poll, Waker};

pub(crate) use location::AtomicLocation;
pub(crate) use slab::Slab;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

const ISSUED: u64 = 1;
const CLAIMED: u64 = 1 << 1;
const DONE: u64 = 1 << 2;
const WAKER: u64 = 1 << 3;
const DETACHED: u64 = 1 << 4;
const CANCEL: u64 = 1 << 5;
const ROUTINE: u64 = 1 << 6;
const GENERATION: u32 = 32;

/// What a list of pending requests shows of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) verb: u32,
    pub(crate) origin: u32,
    pub(crate) target: u64,
    pub(crate) location: &'static Location<'static>,
    pub(crate) since_ns: u64,
}

/// A pending request as [`Slot::inspect`] saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) meta: Meta,
    pub(crate) generation: u32,
    pub(crate) cancel_requested: bool,
}

/// See the module's documentation. `B` is what travels with the request.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot<B> {
    word: AtomicU64,
    next: AtomicU32,
    verb: AtomicU32,
    origin: AtomicU32,
    target: AtomicU64,
    since_ns: AtomicU64,
    location: AtomicLocation,
    waker: UnsafeCell<Option<Waker>>,
    body: UnsafeCell<Option<B>>,
}

// SAFETY: the cells are reached only under the rights that the word hands out, to one thread at a
// time; what they hold is Send.
unsafe impl<B: Send> Send for Slot<B> {}
// SAFETY: as above.
unsafe impl<B: Send> Sync for Slot<B> {}

impl<B> Default for Slot<B> {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(0),
            next: AtomicU32::new(0),
            verb: AtomicU32::new(0),
            origin: AtomicU32::new(0),
            target: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            location: AtomicLocation::default(),
            waker: UnsafeCell::new(None),
            body: UnsafeCell::new(None),
        }
    }
}

const fn generation(word: u64) -> u32 {
    (word >> GENERATION) as u32
}

impl<B> Slot<B> {
    /// Makes a vacant slot, which the caller has from the free list, a pending request.
    ///
    /// Meta goes first and the word last: a list that sees ISSUED sees the meta.
    pub(crate) fn occupy(&self, meta: &Meta, body: B, routine: bool) -> u32 {
        let generation = generation(self.word.load(Relaxed));
        // SAFETY: a vacant slot's cells belong to the thread that took it from the free list.
        self.body.with_mut(|cell| unsafe { *cell = Some(body) });
        // Writer's side of the sequence lock in `inspect`: the vacant word is visible before any
        // new meta. Without it a list can show old meta under the old generation, half overwritten.
        fence(Release);
        self.verb.store(meta.verb, Relaxed);
        self.origin.store(meta.origin, Relaxed);
        self.target.store(meta.target, Relaxed);
        self.location.store(meta.location);
        self.since_ns.store(meta.since_ns, Relaxed);
        let bits = if routine { ISSUED | ROUTINE } else { ISSUED };
        self.word
            .store(u64::from(generation) << GENERATION | bits, Release);
        generation
    }

    /// What is pending here, if anything; never a mixture of two requests.
    pub(crate) fn inspect(&self) -> Option<Seen> {
        let word = self.word.load(Acquire);
        // Completed and not looked at yet is not pending.
        if word & (ISSUED | DONE) != ISSUED {
            return None;
        }
        let meta = Meta {
            verb: self.verb.load(Relaxed),
            origin: self.origin.load(Relaxed),
            target: self.target.load(Relaxed),
            location: self.location.load()?,
            since_ns: self.since_ns.load(Relaxed),
        };
        fence(Acquire);
        let again = self.word.load(Relaxed);
        let same = generation(again) == generation(word) && again & ISSUED != 0;
        same.then_some(Seen {
            meta,
            generation: generation(word),
            cancel_requested: word & CANCEL != 0,
        })
    }

    /// The one decision which thread completes. `None`: too late, or another request lives here by now.
    pub(crate) fn claim(&self, wanted: u32) -> Option<Claim<'_, B>> {
        let mut word = self.word.load(Acquire);
        loop {
            if generation(word) != wanted || word & (ISSUED | CLAIMED) != ISSUED {
                return None;
            }
            let next = (word | CLAIMED) & !WAKER;
            match self.word.compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => {
                    return Some(Claim {
                        slot: self,
                        had: word,
                    });
                }
                Err(now) => word = now,
            }
        }
    }

    /// The consumer looks for the result. `Ready` hands over the body and vacates the slot, which
    /// the caller then gives back to the free list.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<B> {
        let mut word = self.word.load(Acquire);
        loop {
            if word & DONE != 0 {
                return Poll::Ready(self.take_done());
            }
            if word & CLAIMED != 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if word & WAKER != 0 {
                match self
                    .word
                    .compare_exchange(word, word & !WAKER, AcqRel, Acquire)
                {
                    Ok(_) => word &= !WAKER,
                    Err(now) => {
                        word = now;
                        continue;
                    }
                }
            }
            let old = self.waker.with_mut(|cell| {
                // SAFETY: WAKER is clear, and a claim without WAKER never touches the cell.
                let cell = unsafe { &mut *cell };
                match cell {
                    Some(waker) if waker.will_wake(cx.waker()) => None,
                    _ => cell.replace(cx.waker().clone()),
                }
            });
            drop(old);
            match self
                .word
                .compare_exchange(word, word | WAKER, AcqRel, Acquire)
            {
                Ok(_) => return Poll::Pending,
                Err(now) => word = now,
            }
        }
    }

    /// The consumer goes away. `Some`: the result was there already and the slot is vacated.
    pub(crate) fn detach(&self) -> Option<B> {
        (self.word.fetch_or(DETACHED, AcqRel) & DONE != 0).then(|| self.take_done())
    }

    /// Marks the request as one that should end early. `false`: too late.
    pub(crate) fn cancel(&self, wanted: u32) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            if generation(word) != wanted || word & (ISSUED | CLAIMED) != ISSUED {
                return false;
            }
            match self
                .word
                .compare_exchange_weak(word, word | CANCEL, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Whether the request of that generation was asked to end early.
    pub(crate) fn cancelled(&self, wanted: u32) -> bool {
        let word = self.word.load(Acquire);
        generation(word) == wanted && word & CANCEL != 0
    }

    /// The consumer's right after DONE.
    fn take_done(&self) -> B {
        // SAFETY: DONE was seen with Acquire: the completer no longer touches anything, and there is
        // one consumer.
        let waker = self.waker.with_mut(|cell| unsafe { (*cell).take() });
        let body = self.take_body();
        drop(waker);
        body
    }

    /// Empties the body cell and vacates. The caller has the right to it.
    fn take_body(&self) -> B {
        // SAFETY: the callers argue exclusivity: after DONE, or between CLAIMED and vacating.
        let body = self.body.with_mut(|cell| unsafe { (*cell).take() });
        let next = generation(self.word.load(Relaxed)).wrapping_add(1);
        self.word.store(u64::from(next) << GENERATION, Release);
        body.expect("an issued slot has a body until it is vacated")
    }
}

/// The right to complete a request.
#[must_use = "a claimed request that is not completed hangs"]
pub(crate) struct Claim<'a, B> {
    slot: &'a Slot<B>,
    had: u64,
}

/// What became of a published result.
pub(crate) enum Published<B> {
    /// The consumer has it, or will; wake it if it left a waker.
    Consumer(Option<Waker>),
    /// The consumer had gone: here is the body, and the slot is vacated.
    Orphan(B),
}

impl<B> Claim<'_, B> {
    /// Whether the request is finished by a routine, and no task polls.
    pub(crate) fn by_routine(&self) -> bool {
        self.had & ROUTINE != 0
    }

    /// The body, for writing the result.
    pub(crate) fn with_body<R>(&mut self, f: impl FnOnce(&mut B) -> R) -> R {
        self.slot.body.with_mut(|cell| {
            // SAFETY: from CLAIMED to DONE the claimer alone touches the body.
            let body = unsafe { (*cell).as_mut() };
            f(body.expect("an issued slot has a body until it is vacated"))
        })
    }

    /// Takes the body and vacates the slot: for requests finished by a routine.
    pub(crate) fn into_body(self) -> B {
        debug_assert!(self.by_routine());
        self.slot.take_body()
    }

    /// Makes the result final for a consumer that polls. Afterwards the slot is not touched, unless
    /// the consumer had gone.
    pub(crate) fn publish(self) -> Published<B> {
        let waker = if self.had & WAKER != 0 {
            // SAFETY: the claimed word had WAKER, so the cell came with the claim.
            self.slot.waker.with_mut(|cell| unsafe { (*cell).take() })
        } else {
            None
        };
        let before = self.slot.word.fetch_or(DONE, AcqRel);
        debug_assert!(before & (CLAIMED | DONE) == CLAIMED);
        if before & DETACHED == 0 {
            return Published::Consumer(waker);
        }
        drop(waker);
        Published::Orphan(self.slot.take_done())
    }
}
