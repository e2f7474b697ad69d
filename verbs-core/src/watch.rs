//! What each thread is issuing right now (K15).
//!
//! A request that has not pended has no slot. So that a provider stuck inside its `issue` is
//! visible all the same, each thread keeps one record of the verb it is in: four plain stores going
//! in and one going out. Ages are not kept: reading a clock would cost three times the verb.

use std::cell::OnceCell;
use std::panic::Location;

use crate::slot::AtomicLocation;
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::sync::plain::Mutex;
use crate::sync::{Arc, Weak};

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

/// Every thread's record, for the list; locked when a thread issues its first verb and when
/// somebody lists.
static ALL: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: OnceCell<Arc<Watch>> = const { OnceCell::new() };
}

/// Runs `f` with `current` as the thread's verb on that device.
#[inline]
pub(crate) fn during(device: u64, current: Current, f: impl FnOnce()) {
    let watched = MINE.try_with(|mine| {
        let watch = mine.get_or_init(register);
        let outer = watch.device.load(Relaxed);
        let nested = if outer == 0 {
            None
        } else {
            Current::load(watch)
        };
        current.store(watch, device);
        (outer, nested)
    });
    f();
    // A thread that is exiting has no record any more; the verb runs unlisted.
    if let Ok((outer, nested)) = watched {
        let _ = MINE.try_with(|mine| match (nested, mine.get()) {
            (Some(nested), Some(watch)) => nested.store(watch, outer),
            (None, Some(watch)) => watch.device.store(0, Release),
            (_, None) => {}
        });
    }
}

/// What all threads are issuing on that device. A record may mix two verbs of one thread if it
/// moved on while being read; that is looked for and left out.
pub(crate) fn current(device: u64) -> Vec<Current> {
    let all = ALL.lock();
    let read = |watch: Arc<Watch>| {
        if watch.device.load(Acquire) != device {
            return None;
        }
        let first = Current::load(&watch)?;
        let second = Current::load(&watch)?;
        let same = first.target == second.target && std::ptr::eq(first.location, second.location);
        (same && watch.device.load(Acquire) == device).then_some(second)
    };
    all.iter()
        .filter_map(Weak::upgrade)
        .filter_map(read)
        .collect()
}

#[cold]
fn register() -> Arc<Watch> {
    let watch = Arc::new(Watch::default());
    let mut all = ALL.lock();
    all.retain(|other| other.strong_count() > 0);
    all.push(Arc::downgrade(&watch));
    watch
}
