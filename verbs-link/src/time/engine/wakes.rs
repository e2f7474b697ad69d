//! The engine as the timer of services above the verbs.

use std::task::Waker;

use verbs_core::Timer;
use verbs_core::mad::Time;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task;

use crate::time::{Due, Engine, Instant};

impl Timer for Engine {
    fn now(&self) -> Time {
        Time::from_nanos(Self::now(self).as_nanos())
    }

    fn wake_at(&self, deadline: Time, waker: Waker) {
        let wakes = Arc::new(Wakes(Mutex::new(Some(waker))));
        let _ = self.at(Instant::from_nanos(deadline.as_nanos()), wakes, 0);
    }
}

/// Wakes somebody, once.
struct Wakes(Mutex<Option<Waker>>);

impl Due for Wakes {
    fn due(&self, _now: Instant, _token: u64) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
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
        let wakes = Wakes(Mutex::new(Some(waker)));
        collect(|| {
            let _held = lock.lock();
            wakes.due(Instant::default(), 0);
        });
        assert_eq!(*lock.lock(), 1);
    }
}
