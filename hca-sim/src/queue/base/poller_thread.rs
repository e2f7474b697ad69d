//! The threads that poll: whether one of them is at work in a port, and how long it has run.
//!
//! A thread that has not polled one port for a while may be busy with another port's packets, or have waited for a
//! processor. Neither is a reason to believe that it no longer polls.

use std::cell::Cell;
use std::time::Duration;

use verbs_core::sync::plain::{AtomicBool, AtomicU32, Ordering::Relaxed};
use verbs_link::sys;

/// Places for threads. If more have polled, two share a place, and what it shows is of the one or the other.
const PLACES: u32 = 128;

/// What is known of a thread.
struct Place {
    /// The bits of the name of its clock; 0 if it has none.
    clock: AtomicU32,
    /// It works on packets now.
    at_work: AtomicBool,
}

static THREADS: [Place; PLACES as usize] = [const {
    Place {
        clock: AtomicU32::new(0),
        at_work: AtomicBool::new(false),
    }
}; PLACES as usize];
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static MINE: Cell<Option<PollerThread>> = const { Cell::new(None) };
}

/// A thread that has polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollerThread(u32);

impl PollerThread {
    /// The calling thread.
    #[inline]
    pub(crate) fn me() -> Self {
        match MINE.get() {
            Some(mine) => mine,
            None => Self::first(),
        }
    }

    #[cold]
    fn first() -> Self {
        let index = TAKEN.fetch_add(1, Relaxed) % PLACES;
        let mine = Self(index);
        if let Some(place) = mine.place() {
            place.at_work.store(false, Relaxed);
            // No name of a thread's clock is 0: they are negative.
            let clock = sys::thread_clock().unwrap_or(0);
            place.clock.store(clock.cast_unsigned(), Relaxed);
        }
        MINE.set(Some(mine));
        mine
    }

    /// The calling thread works on packets while the result lives; it matters only if the thread has polled.
    #[inline]
    pub(crate) fn at_work() -> AtWork {
        let mine = MINE.get().and_then(Self::place);
        if let Some(place) = mine {
            place.at_work.store(true, Relaxed);
        }
        AtWork(mine)
    }

    /// As a number other than 0, and back.
    pub(crate) fn number(self) -> u32 {
        self.0 + 1
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        number.checked_sub(1).map(Self)
    }

    fn place(self) -> Option<&'static Place> {
        THREADS.get(self.0 as usize)
    }

    fn clock(self) -> Option<i32> {
        let clock = self.place()?.clock.load(Relaxed);
        (clock != 0).then_some(clock.cast_signed())
    }
}

/// What the engine's thread asks about a thread that has not polled for a while.
pub(crate) trait Whereabouts {
    /// Whether it works on packets, of whatever port.
    fn is_at_work(&self) -> bool;

    /// How long it has run; `None` if it has ended, or the system does not tell.
    fn has_run(&self) -> Option<Duration>;

    /// Whether it sleeps, rather than runs or waits for a processor.
    fn sleeps(&self) -> bool;
}

impl Whereabouts for PollerThread {
    fn is_at_work(&self) -> bool {
        self.place()
            .is_some_and(|place| place.at_work.load(Relaxed))
    }

    fn has_run(&self) -> Option<Duration> {
        sys::thread_time(self.clock()?)
    }

    fn sleeps(&self) -> bool {
        self.clock().and_then(sys::thread_sleeps) == Some(true)
    }
}

/// See [`PollerThread::at_work`].
pub(crate) struct AtWork(Option<&'static Place>);

impl Drop for AtWork {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.at_work.store(false, Relaxed);
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use verbs_core::sync::{Arc, thread};

    use super::*;

    #[test]
    fn a_thread_that_has_polled_is_seen_at_work_asleep_and_ended() {
        assert!(PollerThread::at_work().0.is_none(), "it has not polled");
        // The other thread's number; its work is over; it may end.
        let shared = Arc::new((
            AtomicU32::new(0),
            AtomicBool::new(false),
            AtomicBool::new(false),
        ));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let (number, is_over, ends) = &*other;
            let me = PollerThread::me();
            assert_eq!(me, PollerThread::me());
            let work = PollerThread::at_work();
            number.store(me.number(), Relaxed);
            while !is_over.load(Relaxed) {
                thread::park();
            }
            drop(work);
            number.store(0, Relaxed);
            while !ends.load(Relaxed) {
                thread::park();
            }
        });
        let (number, is_over, ends) = &*shared;
        let other = loop {
            match PollerThread::from_number(number.load(Relaxed)) {
                Some(other) => break other,
                None => thread::yield_now(),
            }
        };
        assert_ne!(other, PollerThread::me());
        assert!(other.is_at_work());
        assert!(other.has_run().is_some());
        while !other.sleeps() {
            thread::yield_now();
        }
        is_over.store(true, Relaxed);
        thread.thread().unpark();
        while number.load(Relaxed) != 0 {
            thread::yield_now();
        }
        assert!(!other.is_at_work());
        ends.store(true, Relaxed);
        thread.thread().unpark();
        thread.join().unwrap();
        // The system wakes who joins before the thread is quite gone.
        while other.has_run().is_some() {
            thread::yield_now();
        }
    }
}
