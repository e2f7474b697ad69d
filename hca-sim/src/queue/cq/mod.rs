//! Completion queues: a ring that threads push to and one consumer polls.
//!
//! An entry is eight atomic words. A bit of the first says which lap of the ring it belongs to, so the consumer never
//! looks at the tail; the producers look at the consumer's head only when the ring seems full.
//!
//! # Which threads push
//!
//! The tail is *biased*: while a single thread pushes, it moves the tail by a load and a store. The mode says which
//! thread that is.
//!
//! ```text
//!            first push              another thread wants to push        grace period over
//!   NOBODY ------------> OWNED(t) ---------------------------> CONVERTING -----------------> SHARED
//! ```
//!
//! In SHARED the tail is moved by one read-modify-write. No thread may push while CONVERTING, and no thread waits for
//! it inside a pin, where two threads that convert each other's queue would wait for ever: a thread that finds it puts
//! its work request aside ([`crate::qp::worker`]) and is called when it is over. Pushing takes a pin from the look at
//! the mode to the entry; the grace period waits for that pin.
//!
//! # Arm
//!
//! The consumer stores *armed* and then looks for entries; a pusher publishes its entry and then looks
//! for *armed*. Both need a full fence between the two. The pusher issues it only if the mode has the flag
//! [`ARMED`]. An arm that does not find the flag sets it, and has the ring looked at once more after a grace
//! period, when every push that did not know of it is over.
//!
//! A thread that pushes alone clears the flag when it finds no event wanted, and so pushes by the
//! short path again: after two pushes if it is the consumer's thread, which then arms without a barrier, and
//! otherwise after many. Shared queues and moderated ones keep the flag.

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
use crate::queue::cqe_inline::{Aside, InlineCqe, KNOWN};

mod buffer;
mod entry;
#[cfg(all(test, verbs_loom))]
mod models;
mod moderation;
mod opcodes;
mod poller;
mod resize;
mod scatter;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

use buffer::{ARMED, CONVERTING, CqConsumer, MODERATED, SHARED, shared};
use moderation::Moderation;

pub(crate) use buffer::{ClaimedEntry, CqBuffer, Strip};
pub(crate) use entry::{Cqe, Origin, Overrun, Pushed, Way};
pub(crate) use poller::{CqPoller, Pump};

/// The part of a completion queue that all its users share.
pub(crate) struct CqRing {
    consumer: Arc<CqConsumer>,
    /// The buffer that the queue was created with.
    first: Arc<CqBuffer>,
    /// The buffer that it has now. A thread locks this only if it finds the first buffer replaced. The owner, the flags
    /// and the life of buffers in their modes change under this lock.
    latest: Mutex<Arc<CqBuffer>>,
    notify: Arc<CqNotify>,
    clock: Option<Clock>,
    /// Queue pairs that want to push and wait for the end of CONVERTING or of a resize.
    waiting: Mutex<Vec<Arc<dyn WaitsForCq>>>,
    /// Resizes that wait for the one under way, if one is.
    resizes: Mutex<Option<VecDeque<Job>>>,
    /// The client was informed that completions were lost.
    told: AtomicBool,
    /// Inline CQEs that were scattered by threads other than the consumer, oldest first.
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
        let consumer = Arc::new(CqConsumer::default());
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

    /// Pushes a completion in the mode that [`CqRing::enter`] has found, under the same pin.
    ///
    /// The consumer may see it and act on it before this returns. What it must find then is done by `first`, which is
    /// given the position, or before the call.
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
        // This is the buffer that was entered: no other takes its place while the pin is held.
        self.with_lane(|buffer| buffer.push(way, cqe, first))
    }

    /// A queue pair's receives complete here from now on, or no longer.
    pub(crate) fn count_receiver(&self, is_there: bool) {
        match is_there {
            true => self.receivers.fetch_add(1, Relaxed),
            false => self.receivers.fetch_sub(1, Relaxed),
        };
    }

    /// Whether the consumer knows all queue pairs whose receives complete here.
    pub(crate) fn takes_inline_cqes(&self) -> bool {
        self.receivers.load(Relaxed) as usize <= KNOWN
    }

    /// Scatters the inline CQEs whose completions wait, by `scatter`, which is given every entry that holds one, oldest
    /// first, and returns what became of those that it scatters. One caller at a time is served.
    ///
    /// Entries that are polled in the meantime may be filled again; entries of queue pairs whose pollers are kept out
    /// are not.
    pub(crate) fn scatter(&self, mut scatter: impl FnMut(&InlineCqe) -> Option<Aside>) {
        let mut aside = self.aside.lock();
        let (buffer, mut at) = (self.buffer(), self.head());
        loop {
            if let Some(inline_cqe) = buffer.inline_cqe(at) {
                aside.extend(scatter(&inline_cqe));
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

    /// The outcome of an inline CQE that another thread has scattered.
    fn take_aside(&self, inline_cqe: &InlineCqe) -> Option<Aside> {
        let mut aside = self.aside.lock();
        let at = aside.iter().position(|aside| aside.is_of(inline_cqe))?;
        let found = aside.remove(at);
        self.consumer.aside.store(aside.len() as u32, Release);
        Some(found)
    }

    /// How far the consumer has polled: all positions before it.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.consumer.head.load(Acquire)
    }

    /// Whether the completion at that position, which was pushed, was not polled yet.
    pub(crate) fn is_waiting(&self, at: u32) -> bool {
        let ahead = at.wrapping_sub(self.head());
        // A position that is far behind may look far ahead.
        ahead < self.buffer().len()
    }

    /// Completions were lost: informs the client, once. Called outside pins and locks.
    pub(crate) fn tell_overrun(&self, counters: &Counters) {
        if !self.told.swap(true, AcqRel) {
            counters.overruns.up();
            if let Some(core) = self.notify.target() {
                EventType::CqErr.raise_for(&core);
            }
        }
    }

    /// Makes a queue that [`CqRing::enter`] has refused shared, unless it is being resized, and calls `waiter` when
    /// pushing is possible. Returns `true` if it is possible already; then `waiter` is not called. Called outside any
    /// pin.
    pub(crate) fn convert(self: &Arc<Self>, waiter: Arc<dyn WaitsForCq>) -> bool {
        // As long as a queue keeps its buffer, what was refused stays refused until `waiter` is called.
        if self.first.is_replaced() && self.enter(&pin()).is_some() {
            return true;
        }
        let latest = self.latest.lock();
        if latest.is_dead() {
            // The thread that puts the next buffer in its place calls after that.
            self.waiting.lock().push(waiter);
        } else {
            drop(latest);
            self.share(waiter);
        }
        false
    }

    /// Makes the queue one that any thread pushes to, and calls `waiter` when it is. Called outside any pin.
    pub(crate) fn share(self: &Arc<Self>, waiter: Arc<dyn WaitsForCq>) {
        let latest = self.latest.lock();
        self.waiting.lock().push(waiter);
        if latest.is_dead() {
            // The next buffer will be shared, and the thread that puts it in place calls after that.
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

    /// The queue is armed. Returns which threads to wait for, if pushers did not check whether it is.
    fn tell_armed(&self) -> Option<Touched> {
        // Under the lock, so that the next buffer knows it as well.
        let latest = self.latest.lock();
        let first = latest
            .mode()
            .update(|tag| (tag & ARMED == 0).then_some(tag | ARMED));
        first.map(|(_, touched)| touched)
    }

    /// Events may be held back from now on. Returns which threads to wait for until every pusher checks whether one is
    /// wanted.
    fn tell_moderated(&self) -> Touched {
        let latest = self.latest.lock();
        let told = latest.mode().update(|tag| Some(tag | MODERATED | ARMED));
        told.map_or(Touched::NOBODY, |(_, touched)| touched)
    }

    /// Calls the queue pairs that were put off. Called outside pins and locks.
    pub(crate) fn call_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for waiter in waiting {
            waiter.go_on();
        }
    }

    /// All threads that pushed without knowing that the queue is armed have finished: fires for what they pushed.
    fn look_again(&self) {
        // As long as `arm` has not returned it looks itself, and no handler may run inside it. Two read-modify-writes
        // of one word: either this one sees that `arm` is past, or `arm`, when it looks, sees what this thread has
        // seen.
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

/// Records what remains to be done after a push.
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
