//! The engine as the timer of services above the verbs.

use std::task::Waker;

use verbs_core::Timer;
use verbs_core::mad::Time;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task;

use crate::clock::Instant;
use crate::engine::{Due, Engine};

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
