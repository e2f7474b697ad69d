//! Grace jobs: what has to wait until everybody who may be using something has left.
//!
//! Nobody waits. [`after`] runs a job at once if nobody is inside; otherwise it parks the job, and
//! the last thread to leave runs it, or whoever calls [`help`] later.
//!
//! # How it is sound
//!
//! * Before it looks at the threads, `after` tells each that somebody waits for it and issues the
//!   barrier. So each is seen outside, or sees on leaving that it has to [`help`] (module
//!   [`mod@super::pin`]).
//! * Threads that share the last bit are in a list, which grows. One that has just put its record there
//!   finds the bit set by another, and so comes in without an RMW on the object's word that would show its
//!   record to the killer. So a barrier stands between the kill and the look at the list as well: the list
//!   has the record, or the thread finds the object dead.
//! * A thread that left between that look and the parking of the job may have helped in vain; `after`
//!   looks once more when the job is parked. The leaver's search and the parking are RMWs on one
//!   word: the search finds the job, or the second look sees the thread outside.
//! * Jobs are searched by one thread at a time, without a lock: a helper who finds another at work
//!   adds to a count and goes; the other searches again until the count stands still.

use std::ptr::null_mut;

use super::barrier;
use super::pin::{self, OWN, Record, SHARED, Sighting};
use super::touch::Touched;
use crate::panics::FirstPanic;
use crate::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Runs `job` once every thread in `touched` has left the pin it is in now: at once if there is
/// none, otherwise from the thread that leaves last or that calls [`help`] after it.
///
/// Never blocks. `job` runs exactly once, outside any pin of its thread and with no lock of this
/// module held. Called inside a pin, the job waits for that one too. Threads beyond the first 30 are
/// told apart by nothing: if one of them is in `touched`, the job waits for all of them. One
/// allocation, made here, if the job has to be parked; none when it runs.
pub fn after(touched: Touched, job: impl FnOnce() + Send + 'static) {
    let me = pin::current();
    let mut threads = touched.threads;
    if let Some(me) = me {
        // A bit of my own says nothing about others, and I know whether I am inside.
        if me.bit() != SHARED {
            threads &= !me.bit();
        }
        if me.look().inside() {
            threads |= me.bit();
        }
    }
    if threads == 0 {
        return run(job);
    }
    let mut waits = Waits::announce(threads, touched.fenced);
    if touched.fenced {
        // Who gets in fences, so a fence is enough to know who is inside. Only if somebody is, it
        // takes the barrier to be sure that he helps on leaving.
        barrier::full_fence();
        waits.look();
        if waits.over() {
            return run(job);
        }
        barrier::heavy();
        if waits.over() {
            return run(job);
        }
    } else {
        barrier::heavy();
        waits.look();
        if waits.over() {
            return run(job);
        }
    }
    let second_look = waits.clone();
    jobs().park(Box::new(Parked {
        waits,
        job: Box::new(job),
        next: null_mut(),
    }));
    if second_look.nobody_is_left() {
        help();
    }
}

/// Whether every thread in `touched`, but for this one, has left the pin that it was in then, as far as
/// one look tells: a thread that is inside may be in a later pin. Who has left is taken out. Never blocks,
/// allocates nothing.
pub fn is_over(touched: &mut Touched) -> bool {
    let me = pin::current();
    let mine = me.map_or(0, Record::bit);
    let inside = |record: &Record| record.look().inside();
    if !me.is_some_and(inside) && mine != SHARED {
        touched.threads &= !mine;
    }
    let others = touched.threads & !if mine == SHARED { 0 } else { mine };
    if others == 0 {
        return true;
    }
    if touched.fenced {
        // Who gets in fences, so a fence is enough to see who is inside.
        barrier::full_fence();
    } else {
        barrier::heavy();
    }
    let mut left = 0;
    for i in bits(others & (SHARED - 1)) {
        if !pin::threads().own(i).is_some_and(inside) {
            left |= 1 << i;
        }
    }
    let mut at = (others & SHARED != 0)
        .then(|| pin::threads().newest_shared())
        .flatten();
    let is_me = |record: &Record| me.is_some_and(|me| std::ptr::eq(me, record));
    let mut shared = false;
    while let Some(record) = at {
        shared |= inside(record) && !is_me(record);
        at = record.next();
    }
    if !(shared || mine == SHARED && me.is_some_and(inside)) {
        left |= SHARED;
    }
    touched.threads &= !left;
    others & !left & (SHARED - 1) == 0 && !shared
}

/// Runs the parked jobs that nobody is in the way of any more. Any thread may call it, any time;
/// inside a pin it does nothing. Never blocks.
///
/// # Panics
/// As the first job that does, when all have run; not while the thread is unwinding.
#[cold]
pub fn help() {
    if pin::current().is_some_and(|me| me.look().inside()) {
        return;
    }
    let mut ready = jobs().search();
    let mut panics = FirstPanic::default();
    while let Some(parked) = ready.pop() {
        panics.catch(|| run(parked.job));
    }
    panics.resume();
}

/// The one place where jobs are run: they end in completion routines.
fn run(job: impl FnOnce()) {
    job();
}

/// The pins that a job waits for. Each thread in it has been told, once, and is told when it is no
/// longer waited for.
#[derive(Clone)]
pub(super) struct Waits {
    /// Threads with a bit of their own that have not left yet, by their bits.
    own: u32,
    /// Where those were when they were looked at.
    seen: [Sighting; OWN],
    /// The first of the threads that share a bit which has not left yet. They are passed one by
    /// one, newest first, so the wait may be for a later pin than the one that was seen first.
    shared: Option<&'static Record>,
    shared_seen: Sighting,
}

impl Waits {
    /// Tells every thread in the mask that it is waited for. `fenced` as in [`Touched`].
    pub(super) fn announce(threads: u32, fenced: bool) -> Self {
        let shared = if threads & SHARED != 0 {
            // The list may be older than the kill, see the head.
            match fenced {
                true => barrier::full_fence(),
                false => barrier::heavy(),
            }
            pin::threads().newest_shared()
        } else {
            None
        };
        let waits = Self {
            own: threads & (SHARED - 1),
            seen: [Sighting::default(); OWN],
            shared,
            shared_seen: Sighting::default(),
        };
        for i in bits(waits.own) {
            if let Some(record) = pin::threads().own(i) {
                record.wait_for();
            }
        }
        let mut at = shared;
        while let Some(record) = at {
            record.wait_for();
            at = record.next();
        }
        waits
    }

    /// Remembers which pins the threads are in now. Must come after the barrier that follows
    /// [`announce`](Self::announce).
    pub(super) fn look(&mut self) {
        for i in bits(self.own) {
            if let Some(record) = pin::threads().own(i) {
                self.seen[i] = record.look();
            }
        }
        if let Some(record) = self.shared {
            self.shared_seen = record.look();
        }
    }

    /// Passes over the threads that have left; true when none remains.
    pub(super) fn over(&mut self) -> bool {
        for i in bits(self.own) {
            if let Some(record) = pin::threads().own(i)
                && (!self.seen[i].inside() || record.left_since(self.seen[i]))
            {
                record.waited();
                self.own &= !(1 << i);
            }
        }
        while let Some(record) = self.shared
            && record.left_since(self.shared_seen)
        {
            record.waited();
            self.shared = record.next();
            if let Some(next) = self.shared {
                self.shared_seen = next.look();
            }
        }
        self.own == 0 && self.shared.is_none()
    }

    /// Where the first thread was seen.
    #[cfg(all(test, verbs_loom))]
    pub(super) fn first_seen(&self) -> Sighting {
        self.seen[0]
    }

    /// Whether all have left, so that nobody may come to help. Changes nothing: the job itself is
    /// in other hands already.
    fn nobody_is_left(&self) -> bool {
        let own = bits(self.own).all(|i| {
            pin::threads()
                .own(i)
                .is_none_or(|record| record.left_since(self.seen[i]))
        });
        let mut at = self.shared;
        let mut seen = self.shared_seen;
        while own
            && let Some(record) = at
            && record.left_since(seen)
        {
            at = record.next();
            if let Some(next) = at {
                seen = next.look();
            }
        }
        own && at.is_none()
    }
}

/// The numbers of the bits in a mask, highest first.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let highest = mask.checked_ilog2()? as usize;
        mask &= !(1 << highest);
        Some(highest)
    })
}

/// A job that waits, in a list.
struct Parked {
    waits: Waits,
    job: Box<dyn FnOnce() + Send>,
    next: *mut Parked,
}

/// A list of jobs that one thread owns.
struct List(*mut Parked);

impl List {
    fn push(&mut self, mut parked: Box<Parked>) {
        parked.next = self.0;
        self.0 = Box::into_raw(parked);
    }

    fn pop(&mut self) -> Option<Box<Parked>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: lists are made of boxes given up by `Box::into_raw`, and this one is ours alone.
        let parked = unsafe { Box::from_raw(self.0) };
        self.0 = parked.next;
        Some(parked)
    }
}

/// All parked jobs of the process.
struct Jobs {
    parked: AtomicPtr<Parked>,
    /// Who searches plus who wanted to since; 0 if nobody does.
    searches: AtomicU32,
}

impl Jobs {
    fn new() -> Self {
        Self {
            parked: AtomicPtr::new(null_mut()),
            searches: AtomicU32::new(0),
        }
    }

    fn park(&self, job: Box<Parked>) {
        let job = Box::into_raw(job);
        let mut head = self.parked.load(Relaxed);
        loop {
            // SAFETY: nobody else knows the job before the exchange succeeds.
            unsafe { (*job).next = head };
            match self
                .parked
                .compare_exchange_weak(head, job, AcqRel, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes out the jobs whose waits are over, oldest first; none if another thread is at it,
    /// which then looks again.
    fn search(&self) -> List {
        let mut ready = List(null_mut());
        if self.searches.fetch_add(1, AcqRel) != 0 {
            return ready;
        }
        let mut wanted = 1;
        loop {
            let mut all = List(self.parked.swap(null_mut(), AcqRel));
            while let Some(mut parked) = all.pop() {
                if parked.waits.over() {
                    ready.push(parked);
                } else {
                    self.park(parked);
                }
            }
            match self.searches.compare_exchange(wanted, 0, AcqRel, Acquire) {
                Ok(_) => return ready,
                Err(now) => wanted = now,
            }
        }
    }
}

super::process_wide! {
    /// The parked jobs of this process.
    fn jobs() -> Jobs { Jobs::new() }
}
