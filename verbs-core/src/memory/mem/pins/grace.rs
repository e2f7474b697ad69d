//! Grace jobs: work that must wait until all threads that may be using something have left.
//!
//! No thread waits. [`after`] runs a job at once if no thread is inside; otherwise it parks the job, and the last
//! thread to leave runs it, or a later caller of [`help`].
//!
//! # How it is sound
//!
//! * Before `after` looks at the threads, it tells each that a job waits for it and issues the barrier. So each
//!   is either seen outside, or sees on leaving that it must [`help`] (module [`mod@super::pin`]).
//! * Threads that share the last bit are in a list, which grows. A thread that has just added its record may find
//!   the bit already set by another, and enter without an RMW on the object's word that would show its record to
//!   the killer. So there is a barrier between the kill and the read of the list as well: either the list has the
//!   record, or the thread finds the object dead.
//! * A thread that left between that look and the parking of the job may have helped in vain; `after` looks once
//!   more after parking the job. The leaver's search and the parking are RMWs on one word: either the search
//!   finds the job, or the second look sees the thread outside.
//! * One thread at a time searches the jobs, without a lock: a helper that finds another at work increments a
//!   count and leaves; the other searches again until the count stays the same.

use std::ptr::null_mut;

use super::barrier;
use super::pin::{self, OWN, Record, SHARED, Sighting};
use super::touch::Touched;
use crate::panics::FirstPanic;
use crate::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Runs `job` once every thread in `touched` has left its current pin: at once if there is none, otherwise on the
/// thread that leaves last or on a later caller of [`help`].
///
/// Never blocks. `job` runs exactly once, outside any pin of its thread and with no lock of this module held. If
/// this is called inside a pin, the job waits for that pin too. Threads beyond the first 30 cannot be
/// distinguished: if one of them is in `touched`, the job waits for all of them. If the job must be parked, this
/// makes one allocation; running the job makes none.
pub fn after(touched: Touched, job: impl FnOnce() + Send + 'static) {
    let me = pin::current();
    let mut threads = touched.threads;
    if let Some(me) = me {
        // This thread's bit says nothing about other threads, and it knows whether it is inside.
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
        // Entering threads fence, so a fence is enough to see which threads are inside. Only if one is, the
        // barrier is needed to make sure that it helps on leaving.
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

/// Whether every thread in `touched`, except this one, has left the pin that it was in then, as far as one look
/// tells: a thread that is inside may be in a later pin. Threads that have left are removed. Never blocks,
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
        // Entering threads fence, so a fence is enough to see which threads are inside.
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

/// Runs the parked jobs whose threads have all left. Any thread may call it at any time; inside a pin it does
/// nothing. Never blocks.
///
/// # Panics
/// If a job panics, with the first panic, after all jobs have run; not while the thread is unwinding.
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

/// The only place where jobs are run: they end in completion routines.
fn run(job: impl FnOnce()) {
    job();
}

/// The pins that a job waits for. Each thread in it is notified once, and again when it is no longer waited for.
#[derive(Clone)]
pub(super) struct Waits {
    /// Threads with a bit of their own that have not left yet, by their bits.
    own: u32,
    /// Their sightings when they were last looked at.
    seen: [Sighting; OWN],
    /// The first of the threads that share a bit and have not left yet. They are passed one by one, newest first,
    /// so the wait may be for a later pin than the one that was seen first.
    shared: Option<&'static Record>,
    shared_seen: Sighting,
}

impl Waits {
    /// Tells every thread in the mask that a job waits for it. `fenced` as in [`Touched`].
    pub(super) fn announce(threads: u32, fenced: bool) -> Self {
        let shared = if threads & SHARED != 0 {
            // The list may be older than the kill, see the module's documentation.
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

    /// Records the current pins of the threads. Must follow the barrier after [`announce`](Self::announce).
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

    /// Skips the threads that have left; true if none remains.
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

    /// The sighting of the first thread.
    #[cfg(all(test, verbs_loom))]
    pub(super) fn first_seen(&self) -> Sighting {
        self.seen[0]
    }

    /// Whether all have left, so that possibly no thread will help. Changes nothing: another thread may already
    /// have the job.
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
        // SAFETY: lists consist of boxes given up by `Box::into_raw`, and this thread owns this list.
        let parked = unsafe { Box::from_raw(self.0) };
        self.0 = parked.next;
        Some(parked)
    }
}

/// All parked jobs of the process.
struct Jobs {
    parked: AtomicPtr<Parked>,
    /// The searching thread plus the threads that have wanted to search since; 0 if there is none.
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
            // SAFETY: no other thread knows the job before the exchange succeeds.
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

    /// Takes out the jobs whose waits are over, oldest first; none if another thread is searching, which then
    /// searches again.
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

crate::mem::process_wide! {
    /// The parked jobs of this process.
    fn jobs() -> Jobs { Jobs::new() }
}
