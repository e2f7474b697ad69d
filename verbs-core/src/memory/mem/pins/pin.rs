//! Pins: "this thread may be using shared objects now", at the cost of two stores.
//!
//! # How it is sound
//!
//! A thread that is about to use an object stores *inside* in its own record, then loads the object's [touch
//! word](crate::mem::TouchWord). A thread that takes the object away first marks the word dead, then reads the
//! records. That is Dekker's pattern and needs a full fence between store and load on **both** sides. The
//! frequent side has none: instead, the rare side makes a system call that puts a full fence into every running
//! thread of the process, at some point of its execution. If that point is after the store of *inside*, the rare
//! side sees the store; if it is before, the load of the word follows the kill and sees *dead*. Leaving is the
//! mirror image: the rare side sees *outside*, or the leaver sees that a job waits for it and helps.
//!
//! If the system call is missing, threads enter and leave by the slow path, with a real fence; each record says
//! so. Models have the fence in the fast path. loom cannot model the system call; the torture test of this folder
//! covers it.
//!
//! # Fork
//!
//! The child of a fork inherits the records of threads that it does not have. A record that was inside at that
//! moment stays so for ever: grace jobs for objects that its thread touched never run in the child, and the
//! memory they hold is kept. That is safe; a shim that supports fork resets the records.

use std::cell::Cell;
use std::marker::PhantomData;

use super::barrier::{self, Side, light};
use super::touch;
use crate::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::sync::thread_local;

/// Threads that have a bit of their own in a touch mask. All later ones share the next bit. Models
/// have few threads, so a single bit lets them reach the shared one.
pub(super) const OWN: usize = if cfg!(verbs_loom) { 1 } else { 30 };

/// The bit that the later threads share.
pub(super) const SHARED: u32 = 1 << OWN;

/// In [`Record::active`]: the thread is inside a pin. The bits from 3 up count the pins it has left.
const INSIDE: u64 = 0b001;
/// In [`Record::active`]: leaving needs the slow path (pins are nested, or the record is borrowed).
const SLOW: u64 = 0b010;
/// In [`Record::active`], for ever: the kernel does not fence for the thread, so it fences itself.
const FENCES: u64 = 0b100;
/// From inside to outside, the next count: clears `INSIDE`.
const LEAVE: u64 = 0b111;
const COUNT_SHIFT: u32 = 3;

/// Enters a pin: until it is dropped, nothing that this thread finds alive through a
/// [`TouchWord`](crate::mem::TouchWord) is freed.
///
/// Never blocks; two stores and no fence. Pins nest. Keep one only for bounded work, never across a system call
/// or foreign code: deregistrations by other threads stay pending in the meantime. Dropping the last one may run
/// grace jobs.
#[inline(always)]
pub fn pin() -> Pin {
    Pin::enter(my_record())
}

/// As [`pin`], for code that must stay short: `None` if more than the two stores is needed, for instance when
/// this thread is already inside or enters for the first time.
#[inline(always)]
pub fn pin_at_once() -> Option<Pin> {
    let record = RECORD.try_with(Cell::get).ok().flatten()?;
    let active = record.active.load(Relaxed);
    (active & (INSIDE | FENCES) == 0).then(|| Pin::enter_first(record, active))
}

/// The proof of being inside; see [`pin`]. Not `Send`.
#[must_use = "the pin is left at once if it is not kept"]
#[derive(Debug)]
pub struct Pin {
    record: &'static Record,
    not_send: PhantomData<*mut ()>,
}

impl Pin {
    #[inline(always)]
    fn enter(record: &'static Record) -> Self {
        let active = record.active.load(Relaxed);
        if active & (INSIDE | FENCES) == 0 {
            return Self::enter_first(record, active);
        }
        record.enter_slow(active);
        Self {
            record,
            not_send: PhantomData,
        }
    }

    #[inline(always)]
    fn enter_first(record: &'static Record, active: u64) -> Self {
        // Release, so a thread that sees this pin also sees everything done under earlier ones.
        record.active.store(active + INSIDE, Release);
        light(Side::Enter);
        Self {
            record,
            not_send: PhantomData,
        }
    }

    /// This thread's bit in touch masks.
    #[inline(always)]
    pub(super) fn bit(&self) -> u64 {
        self.record.bit
    }

    /// The bit of [`Pin::bit`] with the bits that a check of a whole tag compares, see
    /// [`TouchWord`](crate::mem::TouchWord).
    #[inline(always)]
    pub(super) fn whole(&self) -> u64 {
        self.record.whole
    }

    /// A word with the tag [`Pin::thread`] that this thread has touched.
    #[inline(always)]
    pub(super) fn own(&self) -> u64 {
        self.record.own
    }

    /// A number from 1 to 30 that no other living thread has, for words that name their owner; [`Pin::NO_NUMBER`]
    /// for later threads, which have none.
    #[inline(always)]
    pub fn thread(&self) -> u32 {
        self.record.number
    }

    /// The value of [`Pin::thread`] for all threads without a number of their own.
    pub const NO_NUMBER: u32 = 31;

    /// This thread's note to itself: why its last check refused.
    #[inline(always)]
    pub(in crate::memory::mem) fn note(&self) -> &AtomicU8 {
        &self.record.note
    }
}

impl Drop for Pin {
    #[inline(always)]
    fn drop(&mut self) {
        let record = self.record;
        let active = record.active.load(Relaxed);
        if active & (SLOW | FENCES) != 0 {
            return record.leave_slow(active);
        }
        record.active.store(active + LEAVE, Release);
        light(Side::Leave);
        if record.waited_for.load(Relaxed) != 0 {
            super::grace::help();
        }
    }
}

/// The process's state of one thread. Written by the thread itself, except `waited_for`; it has a cache line (and
/// its neighbour, which processors fetch with it) to itself.
#[derive(Debug)]
#[repr(align(128))]
pub(in crate::memory::mem) struct Record {
    active: AtomicU64,
    /// The number of jobs that wait for this thread to leave a pin.
    waited_for: AtomicU32,
    bit: u64,
    /// See [`Pin::thread`].
    number: u32,
    /// See [`Pin::whole`].
    whole: u64,
    /// See [`Pin::own`].
    own: u64,
    /// Pins inside the outermost one.
    depth: AtomicU32,
    /// A thread owns the record.
    taken: AtomicBool,
    /// Owned for one pin only, by a thread whose thread-local values are already destroyed.
    borrowed: AtomicBool,
    note: AtomicU8,
    /// Next older record that shares the last bit.
    next: AtomicPtr<Record>,
}

impl Record {
    fn new(bit: u32, taken: bool) -> Self {
        let number = if bit == SHARED {
            Pin::NO_NUMBER
        } else {
            bit.trailing_zeros() + 1
        };
        let fences = if barrier::prepare() { 0 } else { FENCES };
        Self {
            active: AtomicU64::new(fences),
            waited_for: AtomicU32::new(0),
            bit: u64::from(bit),
            number,
            whole: touch::WHOLE | u64::from(bit),
            own: touch::word(number) | u64::from(bit),
            depth: AtomicU32::new(0),
            taken: AtomicBool::new(taken),
            borrowed: AtomicBool::new(false),
            note: AtomicU8::new(0),
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// A value that tells later whether the thread has left since. Acquire: when the thread is found outside,
    /// everything that it did inside is visible.
    pub(in crate::memory::mem) fn look(&self) -> Sighting {
        Sighting(self.active.load(Acquire))
    }

    /// Whether the thread was outside, or in a later pin, at some time since `then`.
    pub(super) fn left_since(&self, then: Sighting) -> bool {
        let now = self.look();
        !now.inside() || now.count() != then.count()
    }

    /// Makes the thread check for finished jobs when it leaves its pin.
    pub(super) fn wait_for(&self) {
        self.waited_for.fetch_add(1, AcqRel);
    }

    pub(super) fn waited(&self) {
        self.waited_for.fetch_sub(1, AcqRel);
    }

    pub(super) fn bit(&self) -> u32 {
        self.bit as u32
    }

    #[cold]
    fn enter_slow(&self, active: u64) {
        if active & INSIDE == 0 {
            self.active.store(active + INSIDE, Release);
            return barrier::full_fence();
        }
        let Some(depth) = self.depth.load(Relaxed).checked_add(1) else {
            // Four thousand million pins were leaked. Continuing would lose their count, and a panic could be
            // caught.
            std::process::abort();
        };
        self.depth.store(depth, Relaxed);
        self.active.store(active | SLOW, Release);
    }

    #[cold]
    fn leave_slow(&'static self, active: u64) {
        let borrowed = self.borrowed.load(Relaxed);
        let depth = self.depth.load(Relaxed);
        if depth > 0 {
            self.depth.store(depth - 1, Relaxed);
            if depth == 1 && !borrowed {
                self.active.store(active & !SLOW, Release);
            }
            return;
        }
        self.active.store((active & !SLOW) + LEAVE, Release);
        barrier::full_fence();
        let help = self.waited_for.load(Relaxed) != 0;
        if borrowed {
            self.release();
        }
        if help {
            super::grace::help();
        }
    }

    fn take(&self) -> bool {
        !self.taken.load(Relaxed)
            && self
                .taken
                .compare_exchange(false, true, Acquire, Relaxed)
                .is_ok()
    }

    /// Releases the record for the next thread, unless a pin was leaked: then it stays inside for ever.
    fn release(&self) {
        if self.active.load(Relaxed) & INSIDE == 0 {
            self.borrowed.store(false, Relaxed);
            self.taken.store(false, Release);
        }
    }
}

/// A value of [`Record::active`], seen by another thread.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::memory::mem) struct Sighting(u64);

impl Sighting {
    pub(in crate::memory::mem) fn inside(self) -> bool {
        self.0 & INSIDE != 0
    }

    pub(super) fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT
    }
}

/// Every thread that ever entered a pin.
pub(super) struct Threads {
    own: [Record; OWN],
    /// Newest of the records that share the last bit. Records are only ever added.
    shared: AtomicPtr<Record>,
}

impl Threads {
    fn new() -> Self {
        Self {
            own: std::array::from_fn(|i| Record::new(1 << i, false)),
            shared: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The record with a bit of its own, by the bit's number.
    pub(super) fn own(&self, i: usize) -> Option<&Record> {
        self.own.get(i)
    }

    /// The newest record that shares the last bit; [`Record::next`] links to the others.
    pub(super) fn newest_shared(&self) -> Option<&'static Record> {
        leaked(self.shared.load(Acquire))
    }

    /// A record for a thread that has none: a released one, or a new one.
    fn claim(&'static self) -> &'static Record {
        if let Some(record) = self.own.iter().find(|record| record.take()) {
            return record;
        }
        let mut at = self.newest_shared();
        while let Some(record) = at {
            if record.take() {
                return record;
            }
            at = record.next();
        }
        let record: &'static Record = Box::leak(Box::new(Record::new(SHARED, true)));
        let mut head = self.shared.load(Relaxed);
        loop {
            record.next.store(head, Relaxed);
            let new = std::ptr::from_ref(record).cast_mut();
            match self.shared.compare_exchange(head, new, AcqRel, Relaxed) {
                Ok(_) => return record,
                Err(now) => head = now,
            }
        }
    }
}

impl Record {
    pub(super) fn next(&self) -> Option<&'static Record> {
        leaked(self.next.load(Relaxed))
    }
}

/// A record from the list of shared ones.
fn leaked(record: *mut Record) -> Option<&'static Record> {
    // SAFETY: only `claim` puts pointers into the list, to records that it has leaked, and publishes them with
    // release; they are changed only through their atomics.
    unsafe { record.as_ref() }
}

crate::mem::process_wide! {
    /// The records of this process.
    pub(super) fn threads() -> Threads { Threads::new() }
}

#[cfg(not(verbs_loom))]
thread_local! {
    static RECORD: Cell<Option<&'static Record>> = const { Cell::new(None) };
    static OWNER: Owner = const { Owner(Cell::new(None)) };
}
#[cfg(verbs_loom)]
thread_local! {
    static RECORD: Cell<Option<&'static Record>> = Cell::new(None);
    static OWNER: Owner = Owner(Cell::new(None));
}

/// Releases the thread's record when the thread ends. Separate from [`RECORD`], whose access is cheaper because
/// it has no destructor.
struct Owner(Cell<Option<&'static Record>>);

impl Drop for Owner {
    fn drop(&mut self) {
        #[cfg(verbs_loom)]
        if crate::sync::panicking() {
            // A failed model no longer exists, and neither do its atomics.
            return;
        }
        // From here on a pin of this thread borrows a record.
        let _ = RECORD.try_with(|mine| mine.set(None));
        if let Some(record) = self.0.take() {
            record.release();
        }
    }
}

/// This thread's record, if it ever entered a pin and has not ended.
pub(in crate::memory::mem) fn current() -> Option<&'static Record> {
    RECORD.try_with(Cell::get).ok().flatten()
}

/// The value of [`Pin::thread`] on this thread; [`Pin::NO_NUMBER`] also before its first pin, because it has no
/// number until then. Enters no pin.
pub fn my_number() -> u32 {
    current().map_or(Pin::NO_NUMBER, |record| record.number)
}

#[inline(always)]
fn my_record() -> &'static Record {
    match RECORD.try_with(Cell::get) {
        Ok(Some(record)) => record,
        _ => first_record(),
    }
}

#[cold]
fn first_record() -> &'static Record {
    let record = threads().claim();
    if OWNER.try_with(|owner| owner.0.set(Some(record))).is_ok() {
        let _ = RECORD.try_with(|mine| mine.set(Some(record)));
    } else {
        // The thread's destructors are running: keep the record for this one pin.
        record.borrowed.store(true, Relaxed);
        record
            .active
            .store(record.active.load(Relaxed) | SLOW, Relaxed);
    }
    record
}

#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests {
    use super::*;
    use crate::sync::thread;

    /// Sightings of this thread's own record.
    fn me() -> Sighting {
        current().expect("this thread has entered a pin").look()
    }

    #[test]
    fn pins_nest_and_may_be_dropped_in_any_order() {
        drop(pin());
        let before = me();
        let (outer, inner) = (pin(), pin());
        let innermost = pin();
        drop(outer);
        drop(innermost);
        assert!(me().inside());
        assert_eq!(me().count(), before.count(), "still the same pin");
        drop(inner);
        assert!(!me().inside());
        assert_eq!(me().count(), before.count() + 1);
        drop(pin());
        assert_eq!(me().count(), before.count() + 2, "the fast path again");
    }

    #[test]
    fn a_leaked_pin_keeps_its_record_inside_for_ever() {
        let record = thread::spawn(|| {
            std::mem::forget(pin());
            current().expect("entered")
        })
        .join()
        .unwrap();
        assert!(record.look().inside());
        assert!(!record.take(), "nobody may reuse it");
    }

    /// Goal: pins work in destructors that run after the thread has released its record.
    #[test]
    fn a_dying_thread_borrows_a_record_for_each_pin() {
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                for _ in 0..3 {
                    let (outer, inner) = (pin(), pin());
                    drop(outer);
                    assert!(inner.record.look().inside());
                    drop(inner);
                }
            }
        }
        std::thread_local! { static LATE: Late = const { Late }; }
        thread::spawn(|| {
            // Registered before the record's owner, so destroyed after it.
            LATE.with(|_| ());
            drop(pin());
        })
        .join()
        .unwrap();
    }
}
