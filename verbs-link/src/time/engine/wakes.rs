//! The engine as the timer of services above the verbs.

use std::task::Waker;

use verbs_core::Timer;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task;

use crate::time::{Due, Engine, Instant};

impl Timer for Engine {
    fn now(&self) -> Instant {
        Self::now(self)
    }

    fn wake_at(&self, deadline: Instant, waker: Waker) {
        let wakes = &self.core.wakes;
        let place = wakes.keep(waker);
        let _ = self.at(deadline, Arc::<Wakes>::clone(wakes), place);
    }
}

/// Wakers that wait for their times, each in a place of its own: a timer's token is the place. Memory is taken only when more
/// wait than ever before.
#[derive(Default)]
pub(super) struct Wakes(Mutex<Places>);

#[derive(Default)]
struct Places {
    wakers: Vec<Option<Waker>>,
    free: Vec<u64>,
}

impl Wakes {
    /// Keeps a waker. Yields its place.
    fn keep(&self, waker: Waker) -> u64 {
        let mut places = self.0.lock();
        let place = places.free.pop();
        let place = place.unwrap_or(places.wakers.len() as u64);
        match places.wakers.get_mut(place as usize) {
            Some(free) => *free = Some(waker),
            None => places.wakers.push(Some(waker)),
        }
        place
    }

    fn take(&self, place: u64) -> Option<Waker> {
        let mut places = self.0.lock();
        let waker = places.wakers.get_mut(place as usize)?.take()?;
        places.free.push(place);
        Some(waker)
    }
}

impl Due for Wakes {
    fn due(&self, _now: Instant, place: u64) {
        if let Some(waker) = self.take(place) {
            task::wake(waker);
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use std::task::Wake;

    use verbs_core::collect;

    use super::*;

    struct Takes(Arc<Mutex<u32>>);

    impl Wake for Takes {
        fn wake(self: Arc<Self>) {
            *self.0.try_lock().expect("its caller has let go") += 1;
        }
    }

    /// Goal: a waker runs under no lock (K4). Method: a caller that has one and collects what becomes due.
    #[test]
    fn k4_a_waker_may_take_the_lock_of_its_caller() {
        let lock = Arc::new(Mutex::new(0));
        let waker = Waker::from(Arc::new(Takes(Arc::clone(&lock))));
        let wakes = Wakes::default();
        let place = wakes.keep(waker);
        collect(|| {
            let _held = lock.lock();
            wakes.due(Instant::default(), place);
        });
        assert_eq!(*lock.lock(), 1);
    }

    /// Goal: each is woken once, and a place serves the next. Method: two that wait, one whose time comes twice, a third one.
    #[test]
    fn a_waker_is_woken_once_and_its_place_serves_the_next() {
        let lock = Arc::new(Mutex::new(0));
        let waker = || Waker::from(Arc::new(Takes(Arc::clone(&lock))));
        let wakes = Wakes::default();
        let places = [wakes.keep(waker()), wakes.keep(waker())];
        for _ in 0..2 {
            wakes.due(Instant::default(), places[0]);
        }
        assert_eq!(*lock.lock(), 1);
        assert_eq!(wakes.keep(waker()), places[0]);
        places
            .iter()
            .for_each(|place| wakes.due(Instant::default(), *place));
        assert_eq!(*lock.lock(), 3);
    }
}
