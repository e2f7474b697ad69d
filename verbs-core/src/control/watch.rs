//! What each thread is issuing right now (K15).
//!
//! A request that has not pended has no slot. So that a provider stuck inside its `issue` is
//! visible all the same, each thread keeps one record of the verb it is in: four plain stores going
//! in and one going out. Ages are not kept: reading a clock would cost three times the verb.

use std::cell::{Cell, RefCell};
use std::panic::Location;

use crate::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::sync::plain::Mutex;
use crate::sync::slot::AtomicLocation;

/// One thread's record.
#[derive(Debug, Default)]
struct Watch {
    /// The device's number; 0 while the thread issues nothing. Written last, cleared first.
    device: AtomicU64,
    /// Verb in the lower half, origin in the upper.
    what: AtomicU64,
    target: AtomicU64,
    location: AtomicLocation,
}

/// What a thread is issuing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) verb: u32,
    pub(crate) origin: u32,
    pub(crate) target: u64,
    pub(crate) location: &'static Location<'static>,
}

impl Current {
    #[inline(always)]
    fn store(&self, watch: &Watch, device: u64) {
        watch
            .what
            .store(u64::from(self.origin) << 32 | u64::from(self.verb), Relaxed);
        watch.target.store(self.target, Relaxed);
        watch.location.store(self.location);
        watch.device.store(device, Release);
    }

    fn load(watch: &Watch) -> Option<Self> {
        let what = watch.what.load(Relaxed);
        Some(Self {
            verb: (what & 0xffff_ffff) as u32,
            origin: (what >> 32) as u32,
            target: watch.target.load(Relaxed),
            location: watch.location.load()?,
        })
    }
}

/// Every record there is, for the list; and those that no living thread has.
///
/// Locked when a thread issues its first verb, when it ends, and when a caller lists.
static RECORDS: Mutex<Records> = Mutex::new(Records {
    all: Vec::new(),
    free: Vec::new(),
});

struct Records {
    all: Vec<&'static Watch>,
    free: Vec<&'static Watch>,
}

thread_local! {
    /// The thread's record; `None` before its first verb, and again when the thread is ending.
    static MINE: Cell<Option<&'static Watch>> = const { Cell::new(None) };
    /// Gives the record back. Touched with a thread's first verb only.
    static LEASE: RefCell<Option<Lease>> = const { RefCell::new(None) };
}

struct Lease(&'static Watch);

impl Drop for Lease {
    fn drop(&mut self) {
        MINE.set(None);
        self.0.device.store(0, Release);
        RECORDS.lock().free.push(self.0);
    }
}

/// The record shows what it showed before when this goes, also when a provider panics.
struct Restore<'a> {
    watch: &'a Watch,
    outer: Option<(u64, Current)>,
}

impl Drop for Restore<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.outer {
            None => self.watch.device.store(0, Release),
            Some((device, current)) => current.store(self.watch, device),
        }
    }
}

/// Runs `f` with `current` as the thread's verb on that device.
#[inline(always)]
pub(crate) fn during(device: u64, current: Current, f: impl FnOnce()) {
    match MINE.get() {
        Some(watch) if watch.device.load(Relaxed) == 0 => {
            current.store(watch, device);
            let _restore = Restore { watch, outer: None };
            f();
        }
        mine => during_rare(mine, device, current, f),
    }
}

/// A thread's first verb, one inside another, or one of a thread that is ending.
#[cold]
#[inline(never)]
fn during_rare(mine: Option<&'static Watch>, device: u64, current: Current, f: impl FnOnce()) {
    // A thread that is ending no longer has a record; the verb runs unlisted.
    let Some(watch) = mine.or_else(lease) else {
        return f();
    };
    let outer = match watch.device.load(Relaxed) {
        0 => None,
        outer => Current::load(watch).map(|current| (outer, current)),
    };
    current.store(watch, device);
    let _restore = Restore { watch, outer };
    f();
}

/// What all threads are issuing on that device. A record may mix two verbs of one thread if it
/// moved on while being read; that is looked for and left out.
pub(crate) fn current(device: u64) -> Vec<Current> {
    let all = RECORDS.lock().all.clone();
    let read = |watch: &Watch| {
        if watch.device.load(Acquire) != device {
            return None;
        }
        let first = Current::load(watch)?;
        let second = Current::load(watch)?;
        let same = first.target == second.target && std::ptr::eq(first.location, second.location);
        (same && watch.device.load(Acquire) == device).then_some(second)
    };
    all.into_iter().filter_map(read).collect()
}

/// A record for this thread, until it ends.
fn lease() -> Option<&'static Watch> {
    let watch = LEASE
        .try_with(|lease| {
            let mut records = RECORDS.lock();
            let watch = match records.free.pop() {
                Some(watch) => watch,
                None => {
                    // Room for its return is made now: a thread's end allocates nothing.
                    let spare = records.all.len() + 1 - records.free.len();
                    records.free.reserve(spare);
                    let watch: &'static Watch = Box::leak(Box::default());
                    records.all.push(watch);
                    watch
                }
            };
            *lease.borrow_mut() = Some(Lease(watch));
            watch
        })
        .ok()?;
    MINE.set(Some(watch));
    Some(watch)
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;
    use crate::sync::thread;

    const DEVICE: u64 = u64::MAX;

    fn verb(verb: u32) -> Current {
        Current {
            verb,
            origin: 0,
            target: 0,
            location: Location::caller(),
        }
    }

    fn listed(device: u64) -> Vec<u32> {
        current(device).iter().map(|seen| seen.verb).collect()
    }

    #[test]
    fn a_nested_verb_is_shown_and_then_the_outer_one_again() {
        during(DEVICE, verb(1), || {
            assert_eq!(listed(DEVICE), [1]);
            during(DEVICE - 1, verb(2), || {
                assert_eq!((listed(DEVICE), listed(DEVICE - 1)), (vec![], vec![2]));
            });
            assert_eq!((listed(DEVICE), listed(DEVICE - 1)), (vec![1], vec![]));
        });
        assert_eq!(listed(DEVICE), []);
    }

    #[test]
    fn a_panicking_provider_leaves_nothing_in_the_list() {
        let device = DEVICE - 2;
        for nested in [false, true] {
            let panics = || during(device, verb(3), || panic!("as a provider might"));
            let caught = std::panic::catch_unwind(|| match nested {
                false => panics(),
                true => during(device, verb(4), panics),
            });
            assert!(caught.is_err());
            assert_eq!(listed(device), []);
        }
    }

    #[test]
    fn threads_that_end_pass_their_records_on() {
        let records = || RECORDS.lock().all.len();
        let run = || {
            let thread = thread::spawn(|| during(DEVICE - 3, verb(5), || {}));
            thread.join().expect("the thread does not panic");
        };
        run();
        let before = records();
        (0..100).for_each(|_| run());
        // Other tests of this process start threads of their own.
        assert!(records() < before + 50, "{} records", records());
    }

    #[test]
    fn a_verb_of_an_ending_thread_runs_unlisted() {
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                let mut ran = false;
                during(DEVICE - 4, verb(6), || ran = true);
                assert!(ran);
            }
        }
        thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });
        let register = || LAST.with(|last| *last.borrow_mut() = Some(Last));
        // One order of registration destroys the lease first, the other one `Last`.
        for lease_first in [false, true] {
            let ends = thread::spawn(move || {
                if !lease_first {
                    register();
                }
                during(DEVICE - 4, verb(7), || {});
                if lease_first {
                    register();
                }
            });
            ends.join().expect("the thread does not panic");
            assert_eq!(listed(DEVICE - 4), []);
        }
    }
}
