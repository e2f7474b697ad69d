//! A lock that costs its first user two stores.
//!
//! # How it is sound
//!
//! One word names the owner: none yet, a thread, or *all threads*. The thread that it names goes in
//! by storing a mark and looking at the word once more; no other thread touches the value while the
//! word names that one. A second thread takes the word away for good: it sets *all threads*, passes the
//! process-wide barrier (`mem::barrier`) and waits until the mark is clear. That is the pattern
//! of [pins](crate::mem::pin()): the barrier falls after the owner's store of the mark, and the second
//! thread sees it, or before, and the owner's second look finds *all threads*. From then on all threads,
//! the first one too, take the mutex.
//!
//! A thread that is inside must not come back: it would have the value twice, or wait for itself. That is
//! tested on every way in. The mark and the word beside the mutex are names of threads, and a thread finds
//! its own name only in what it has written itself.
//!
//! Where the kernel has no such barrier the word begins as *all threads*.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::mem::barrier::{self, Side};
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::sync::plain::AtomicU64 as Names;
use crate::sync::{Mutex, MutexGuard, UnsafeCell, spin_loop, thread, thread_local};

/// No thread has come yet.
const NOBODY: u64 = 0;
/// More than one thread has come, or the kernel does not fence for us.
const ALL_THREADS: u64 = u64::MAX;
/// The name of a thread before it has one. It stands in no word, so that looking whether the owner is this
/// thread is one comparison.
const UNNAMED: u64 = u64::MAX - 1;
/// Looks at the mark before the processor is given to another thread: the owner may not be running.
const SPINS: u32 = 100;

// This thread's name in owner words, once it has needed one.
#[cfg(not(verbs_loom))]
thread_local! {
    static ME: Cell<u64> = const { Cell::new(UNNAMED) };
}
#[cfg(verbs_loom)]
thread_local! {
    static ME: Cell<u64> = Cell::new(UNNAMED);
}

/// A value that threads use in turns, the first of them at the price of two stores.
pub struct Biased<T> {
    owner: AtomicU64,
    /// The owner's name while it is inside, otherwise 0.
    mark: AtomicU64,
    all: Mutex<()>,
    /// The name of the thread that has the mutex, otherwise 0.
    holder: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by one thread at a time, see the head of the file.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The value of a [`Biased`] lock, for one thread alone until this is dropped. Its thread must not wait, or call
/// foreign code, before.
pub struct Inside<'a, T> {
    lock: &'a Biased<T>,
    /// What this thread holds if it is not the owner. The owner has the mark; so this is one look for it.
    turn: Option<Turn<'a>>,
    /// The words hold this thread's name, so the guard stays on it.
    _here: PhantomData<*mut ()>,
}

/// The mutex, for one of several threads.
struct Turn<'a> {
    // Dropped in this order: the name is gone before another thread gets the mutex.
    _holds: Marked<'a>,
    _all: MutexGuard<'a, ()>,
}

impl<T> Drop for Inside<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.turn.is_none() {
            drop(Marked(&self.lock.mark));
        }
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this value exists only while its thread is inside, see the head.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and a thread comes in once.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

/// Clears the mark, or the holder's name, also when what ran inside panics.
struct Marked<'a>(&'a AtomicU64);

impl Drop for Marked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: a thread that finds the mark clear has seen what was done under it.
        self.0.store(NOBODY, Release);
    }
}

impl<T> Biased<T> {
    /// A lock that no thread has used.
    pub fn new(value: T) -> Self {
        let owner = if barrier::prepare() {
            NOBODY
        } else {
            ALL_THREADS
        };
        Self {
            owner: AtomicU64::new(owner),
            mark: AtomicU64::new(NOBODY),
            all: Mutex::new(()),
            holder: AtomicU64::new(NOBODY),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `f` with the value, alone. `f` must not wait, or call foreign code.
    ///
    /// # Panics
    /// If `f` comes back to this lock.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let me = ME.with(Cell::get);
        if self.owner.load(Relaxed) != me || !self.enter(me) {
            return self.with_slowly(f);
        }
        let _marked = Marked(&self.mark);
        self.run(f)
    }

    /// As [`Biased::with`], for a caller that goes in and out at places of its own.
    ///
    /// # Panics
    /// If this thread is inside already.
    #[inline(always)]
    pub fn lock(&self) -> Inside<'_, T> {
        let me = ME.with(Cell::get);
        let mut turn = None;
        if self.owner.load(Relaxed) != me || !self.enter(me) {
            turn = self.lock_slowly();
        }
        Inside {
            lock: self,
            turn,
            _here: PhantomData,
        }
    }

    /// The owner goes in, unless it is no longer the owner; it has the mark then.
    #[inline(always)]
    fn enter(&self, me: u64) -> bool {
        // Only the owner sets it.
        if self.mark.load(Relaxed) != NOBODY {
            came_back();
        }
        self.mark.store(me, Relaxed);
        barrier::light(Side::Enter);
        let is_owner = self.owner.load(Relaxed) == me;
        if !is_owner {
            drop(Marked(&self.mark));
        }
        is_owner
    }

    #[inline(always)]
    fn run<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.value.with_mut(|value| {
            // SAFETY: the caller has the mark while the word names this thread, or the mutex while it
            // names all threads and the last owner's mark was seen clear: exclusive, see the head.
            f(unsafe { &mut *value })
        })
    }

    #[cold]
    #[inline(never)]
    fn with_slowly<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut inside = Inside {
            lock: self,
            turn: self.lock_slowly(),
            _here: PhantomData,
        };
        f(&mut inside)
    }

    /// Goes in with the mutex, or as the first owner, which has only the mark.
    #[cold]
    #[inline(never)]
    fn lock_slowly(&self) -> Option<Turn<'_>> {
        let me = my_name();
        if self
            .owner
            .compare_exchange(NOBODY, me, AcqRel, Relaxed)
            .is_ok()
            && self.enter(me)
        {
            return None;
        }
        if self.mark.load(Relaxed) == me || self.holder.load(Relaxed) == me {
            came_back();
        }
        let all = self.all.lock();
        self.holder.store(me, Relaxed);
        let holds = Marked(&self.holder);
        // Under the mutex, so no other thread revokes at the same time.
        if self.owner.load(Relaxed) != ALL_THREADS {
            self.revoke();
        }
        Some(Turn {
            _holds: holds,
            _all: all,
        })
    }

    /// Takes the word from its owner, and waits until that is outside.
    fn revoke(&self) {
        self.owner.store(ALL_THREADS, Relaxed);
        barrier::heavy();
        let mut looks = 0;
        while self.mark.load(Acquire) != NOBODY {
            looks += 1;
            if looks % SPINS == 0 || cfg!(verbs_loom) {
                thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Whether a second thread has come, so that all take the mutex now.
    #[cfg(all(test, not(verbs_loom)))]
    pub(crate) fn is_revoked(&self) -> bool {
        self.owner.load(Relaxed) == ALL_THREADS
    }

    /// The value without a lock, by the borrow checker.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` is exclusive.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    /// The value, of a lock that no other thread has.
    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

#[cold]
#[inline(never)]
fn came_back() -> ! {
    panic!(
        "this thread is inside this shared queue already: a provider's code that runs within post, poll or \
         arm must not use the same queue; defer what it has to do (verbs_core::defer), and it runs when the \
         queue is free"
    )
}

/// This thread's name: none of the words above, never that of another thread of this process, living or dead.
fn my_name() -> u64 {
    // Not loom's: names are given once, and what models look at does not hang on their order.
    static NEXT: Names = Names::new(1);
    ME.with(|me| {
        if me.get() == UNNAMED {
            me.set(NEXT.fetch_add(1, Relaxed));
        }
        me.get()
    })
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::Biased;
    use crate::sync::thread;

    fn came_back(outcome: Result<(), Box<dyn std::any::Any + Send>>) -> bool {
        let text = outcome.expect_err("it panics");
        let text = text.downcast_ref::<&str>().copied();
        text.is_some_and(|text| text.contains("inside this shared queue already"))
    }

    fn enter_twice(lock: &Biased<u32>) {
        lock.with(|outer| {
            *outer += 1;
            lock.with(|inner| *inner += 1);
        });
    }

    /// Goal: a guard is the lock: it is exclusive, and its end lets another thread in. Method: a guard held while
    /// a second thread comes, alone and behind the mutex.
    #[test]
    fn a_guard_keeps_others_out_until_it_is_dropped() {
        let lock = Biased::new(0);
        for round in 0..2 {
            let mut inside = lock.lock();
            thread::scope(|scope| {
                scope.spawn(|| lock.with(|value| *value += 10));
                while !lock.is_revoked() {
                    thread::yield_now();
                }
                *inside += 1;
                assert_eq!(*inside % 10, round + 1, "the other thread waits");
                drop(inside);
            });
        }
        assert_eq!(lock.into_inner(), 22);
    }

    /// Goal: the second entry of a thread is refused, whichever thread else uses the lock, and the lock works on.
    /// Method: as its only user; behind the mutex; and as an owner from which another thread is taking it.
    #[test]
    fn a_thread_that_is_inside_does_not_come_in_again() {
        let lock = Biased::new(0);
        let twice =
            || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| enter_twice(&lock)));
        assert!(came_back(twice()), "alone");
        thread::scope(|scope| {
            scope.spawn(|| lock.with(|value| *value += 1));
        });
        assert!(lock.is_revoked());
        assert!(came_back(twice()), "behind the mutex");
        assert_eq!(
            lock.into_inner(),
            3,
            "the outer calls and the other thread's"
        );

        let lock = Biased::new(0);
        lock.with(|value| *value += 1);
        thread::scope(|scope| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                lock.with(|_| {
                    scope.spawn(|| lock.with(|value| *value += 1));
                    while !lock.is_revoked() {
                        thread::yield_now();
                    }
                    lock.with(|value| *value += 1);
                });
            }));
            assert!(came_back(outcome), "while another thread waits");
        });
        assert_eq!(lock.into_inner(), 2);
    }

    /// One thread is inside nearly always when the other comes; no addition is lost.
    #[test]
    fn a_second_thread_takes_the_lock_from_its_owner_under_fire() {
        const EACH: u64 = 200_000;
        for _ in 0..20 {
            let lock = Biased::new(0_u64);
            let add = || {
                for _ in 0..EACH {
                    // Two halves, so that a thread in between would show.
                    lock.with(|value| {
                        let seen = *value;
                        *std::hint::black_box(&mut *value) = seen + 1;
                    });
                }
            };
            thread::scope(|scope| {
                scope.spawn(add);
                scope.spawn(add);
            });
            assert!(lock.is_revoked());
            assert_eq!(lock.into_inner(), 2 * EACH);
        }
    }

    #[test]
    fn one_thread_keeps_its_lock_and_a_panic_inside_lets_go_of_it() {
        let lock = Biased::new(0);
        for _ in 0..1000 {
            lock.with(|value| *value += 1);
        }
        let inside = std::panic::AssertUnwindSafe(|| lock.with(|_| panic!("inside")));
        assert!(std::panic::catch_unwind(inside).is_err());
        assert!(!lock.is_revoked());
        // The second thread does not wait for the one that panicked.
        thread::scope(|scope| {
            scope.spawn(|| lock.with(|value| *value += 1));
        });
        assert_eq!(lock.into_inner(), 1001);
    }
}

/// Every interleaving up to three preemptions. As with pins, the barrier is a fence on both sides here;
/// the test above shows the real one.
#[cfg(all(test, verbs_loom))]
mod loom_tests {
    use super::Biased;
    use crate::mem::barrier::{Part, leave_out};
    use crate::sync::{Arc, thread};

    fn model(others: usize, preemptions: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        builder.check(move || {
            let lock = Arc::new(Biased::new(0));
            let threads: Vec<_> = (0..others)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || lock.with(|value| *value += 1))
                })
                .collect();
            lock.with(|value| *value += 1);
            lock.with(|value| *value += 1);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(lock.with(|value| *value), 2 + others);
        });
    }

    #[test]
    fn loom_biased_owner_against_another() {
        model(1, 3);
    }

    #[test]
    fn loom_biased_owner_against_two() {
        model(2, 2);
    }

    #[test]
    #[should_panic = "Causality violation"]
    fn loom_biased_fails_without_the_owners_fence() {
        leave_out(&[Part::Enter]);
        model(1, 3);
    }

    #[test]
    #[should_panic = "Causality violation"]
    fn loom_biased_fails_without_the_others_fence() {
        leave_out(&[Part::Heavy]);
        model(1, 3);
    }
}
