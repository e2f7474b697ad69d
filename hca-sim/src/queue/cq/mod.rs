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
//! whoever finds it puts its work request aside ([`crate::qp::worker`]) and is called when it is over.
//! Pushing takes a pin from the look at the mode to the entry, which is what the grace period waits
//! for.
//!
//! # Arm
//!
//! The consumer stores *armed* and then looks for entries; a pusher publishes its entry and then looks
//! for *armed*. Both need a full fence between the two. The pusher issues it only if the mode has the flag
//! [`ARMED`]. An arm that does not find the flag sets it, and has the ring looked at once more after a grace
//! period, when every push that did not know of it is over.
//!
//! A thread that pushes alone takes the flag away when no event is wanted any more, and so pushes by the
//! short path again: at once if it is the consumer's thread, which then arms without a barrier, and
//! otherwise after some pushes. Shared queues and moderated ones keep the flag.

use std::collections::VecDeque;
use std::fmt;

use verbs_core::mem::{Pin, Touched, grace, pin};
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{CqNotify, Error, EventType};

use crate::clock::Clock;
use crate::queue::base::counters::Counters;
use crate::queue::base::events::{Job, WaitsForCq};
use crate::queue::cqe_inline::{Aside, KNOWN, Rider};

mod buffer;
mod entry;
#[cfg(all(test, verbs_loom))]
mod models;
mod moderation;
mod opcodes;
mod poller;
mod resize;
#[cfg(all(test, not(verbs_loom)))]
mod tests;
mod unload;

use buffer::{ARMED, CONVERTING, Consumer, MODERATED, SHARED, shared};
use moderation::Moderation;

pub(crate) use buffer::{CqBuffer, Place, Strip};
pub(crate) use entry::{Cqe, Origin, Overrun, Pushed, Way};
pub(crate) use poller::{CqPoller, Pump};

/// The part of a completion queue that all share.
pub(crate) struct CqRing {
    consumer: Arc<Consumer>,
    /// The buffer that the queue was created with.
    first: Arc<CqBuffer>,
    /// The one that it has now. Only who finds the first replaced has to lock this for it; the modes of
    /// buffers lose or gain owners, flags and life under it.
    latest: Mutex<Arc<CqBuffer>>,
    notify: Arc<CqNotify>,
    clock: Option<Clock>,
    /// Who wants to push and waits for the end of CONVERTING or of a resize.
    waiting: Mutex<Vec<Arc<dyn WaitsForCq>>>,
    /// Resizes that wait for the one under way, if one is.
    resizes: Mutex<Option<VecDeque<Job>>>,
    /// The client was told that completions were lost.
    told: AtomicBool,
    /// Riders that were unloaded by others than the consumer, oldest first.
    aside: Mutex<Vec<Aside>>,
    /// Queue pairs whose receives complete here.
    receivers: AtomicU32,
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
        let consumer = Arc::new(Consumer::default());
        let first = CqBuffer::new(cqe, Arc::clone(&consumer), clock.clone(), shared)?;
        let first = Arc::new(first);
        Ok(Self {
            consumer,
            latest: Mutex::new(Arc::clone(&first)),
            first,
            notify,
            clock,
            waiting: Mutex::new(Vec::new()),
            resizes: Mutex::new(None),
            told: AtomicBool::new(false),
            aside: Mutex::new(Vec::new()),
            receivers: AtomicU32::new(0),
            moderated: AtomicBool::new(false),
            moderation: Mutex::new(None),
        })
    }

    /// The buffer that the queue has now.
    pub(crate) fn buffer(&self) -> Arc<CqBuffer> {
        self.with_lane(Arc::clone)
    }

    #[inline(always)]
    fn with_lane<R>(&self, look: impl FnOnce(&Arc<CqBuffer>) -> R) -> R {
        if self.first.is_replaced() {
            let buffer = Arc::clone(&*self.latest.lock());
            look(&buffer)
        } else {
            look(&self.first)
        }
    }

    /// Asks to push under this pin. `None`: not now; see [`CqRing::convert`].
    #[inline]
    pub(crate) fn enter(&self, pin: &Pin) -> Option<Way> {
        self.with_lane(|buffer| buffer.enter(pin))
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
        // It is the buffer that was entered: no other takes its place while the pin is there.
        self.with_lane(|buffer| buffer.push(way, cqe, first))
    }

    /// A queue pair's receives complete here from now on, or no more.
    pub(crate) fn count_receiver(&self, is_there: bool) {
        match is_there {
            true => self.receivers.fetch_add(1, Relaxed),
            false => self.receivers.fetch_sub(1, Relaxed),
        };
    }

    /// Whether the consumer knows all whose receives complete here.
    pub(crate) fn takes_riders(&self) -> bool {
        self.receivers.load(Relaxed) as usize <= KNOWN
    }

    /// Has riders unloaded whose completions wait, by `unload`, which is given every entry of a rider,
    /// oldest first, and says what becomes of those that it unloads. One caller at a time is served.
    ///
    /// An entry that is polled meanwhile may be filled anew; those of whom the consumer is kept from are
    /// not.
    pub(crate) fn unload(&self, mut unload: impl FnMut(&Rider) -> Option<Aside>) {
        let mut aside = self.aside.lock();
        let (buffer, mut at) = (self.buffer(), self.head());
        loop {
            if let Some(rider) = buffer.rider(at) {
                aside.extend(unload(&rider));
            } else if buffer.published(at).is_none() {
                let head = self.head();
                if head.wrapping_sub(at).cast_signed() <= 0 {
                    break;
                }
                at = head;
                continue;
            }
            at = at.wrapping_add(1);
        }
        self.consumer.aside.store(aside.len() as u32, Release);
    }

    /// What became of a rider that somebody else has unloaded.
    fn take_aside(&self, rider: &Rider) -> Option<Aside> {
        let mut aside = self.aside.lock();
        let at = aside.iter().position(|aside| aside.is_of(rider))?;
        let found = aside.remove(at);
        self.consumer.aside.store(aside.len() as u32, Release);
        Some(found)
    }

    /// How far the consumer has polled: all positions before it.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.consumer.head.load(Acquire)
    }

    /// Completions were lost: tells the client, once. Outside pins and locks.
    pub(crate) fn tell_overrun(&self, counters: &Counters) {
        if !self.told.swap(true, AcqRel) {
            counters.overruns.up();
            if let Some(core) = self.notify.target() {
                EventType::CqErr.raise_for(&core);
            }
        }
    }

    /// Makes a queue that [`CqRing::enter`] has refused shared, unless it is being resized, and calls
    /// `waiter` when there is a way; `true`: there is one already, and nobody is called. Outside any pin.
    pub(crate) fn convert(self: &Arc<Self>, waiter: Arc<dyn WaitsForCq>) -> bool {
        // As long as a queue keeps its buffer, a way that was refused stays refused until we are called.
        if self.first.is_replaced() && self.enter(&pin()).is_some() {
            return true;
        }
        let latest = self.latest.lock();
        if latest.is_dead() {
            // Who puts the next buffer in its place calls after that.
            self.waiting.lock().push(waiter);
        } else {
            drop(latest);
            self.share(waiter);
        }
        false
    }

    /// Makes the queue one that any thread pushes to, and calls `waiter` when it is. Outside any pin.
    pub(crate) fn share(self: &Arc<Self>, waiter: Arc<dyn WaitsForCq>) {
        let latest = self.latest.lock();
        self.waiting.lock().push(waiter);
        if latest.is_dead() {
            // The next buffer is then, and who puts it in its place calls after that.
            let _ = latest.mode().update(|tag| Some(shared(tag)));
            return;
        }
        let begun = latest.mode().update(|tag| {
            let begun = tag & (SHARED | CONVERTING) != 0;
            (!begun).then_some(tag | CONVERTING)
        });
        let buffer = Arc::clone(&latest);
        drop(latest);
        match begun {
            Some((_, touched)) => {
                let ring = Arc::clone(self);
                grace::after(touched, move || {
                    let over = |tag| (tag & CONVERTING != 0).then(|| shared(tag));
                    let _ = buffer.mode().update(over);
                    ring.call_waiting();
                });
            }
            // With CONVERTING still there, the job comes after our entry in the list.
            None if buffer.mode().tag() & SHARED != 0 => self.call_waiting(),
            None => {}
        }
    }

    /// The queue is armed: whom to wait for if pushers did not look whether it is.
    fn tell_armed(&self) -> Option<Touched> {
        // Under the lock, so that the next buffer knows it as well.
        let latest = self.latest.lock();
        let first = latest
            .mode()
            .update(|tag| (tag & ARMED == 0).then_some(tag | ARMED));
        first.map(|(_, touched)| touched)
    }

    /// Events may be held back from now on: whom to wait for until every pusher looks whether one is wanted.
    fn tell_moderated(&self) -> Touched {
        let latest = self.latest.lock();
        let told = latest.mode().update(|tag| Some(tag | MODERATED | ARMED));
        told.map_or(Touched::NOBODY, |(_, touched)| touched)
    }

    /// Calls the queue pairs that were put off. Outside pins and locks.
    pub(crate) fn call_waiting(&self) {
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
        // A consumer that wants an event after this one, and then looks at the ring, sees what this thread has seen.
        self.consumer.arm.fetch_or(0, AcqRel);
        let (mut at, buffer) = (self.head(), self.buffer());
        while let Some(what) = buffer.published(at) {
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

/// Notes what a push leaves to be done.
pub(crate) fn note(pushed: Result<Pushed, Overrun>, fire: &mut bool, overrun: &mut bool) {
    match pushed {
        Ok(pushed) => *fire |= pushed.fire,
        Err(Overrun) => *overrun = true,
    }
}

impl fmt::Debug for CqRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqRing")
            .field("consumer", &self.consumer)
            .field("buffer", &self.buffer())
            .finish_non_exhaustive()
    }
}
