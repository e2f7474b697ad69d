//! The NIC's timer: the thread that waits for events wakes what is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;
use std::time::{Duration, Instant};

use verbs_core::Timer;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::time;

use crate::bell::Bell;

/// Measures the time since it was made, and wakes.
pub(crate) struct Clock {
    start: Instant,
    /// Locked only for a push or a pop.
    due: Mutex<BinaryHeap<Reverse<Due>>>,
    bell: Arc<Bell>,
}

struct Due {
    at: time::Instant,
    waker: Waker,
}

impl Clock {
    pub(crate) fn new(bell: &Arc<Bell>) -> Self {
        Self {
            start: Instant::now(),
            due: Mutex::default(),
            bell: Arc::clone(bell),
        }
    }

    /// How long the thread may wait; `None` without a limit.
    pub(crate) fn until_next(&self) -> Option<Duration> {
        let next = self.due.lock().peek().map(|Reverse(due)| due.at);
        next.map(|at| at.since(self.now()))
    }

    /// Wakes what is due. Called under NoBlock.
    pub(crate) fn wake_due(&self) {
        let now = self.now();
        while let Some(waker) = self.take_due(now) {
            verbs_core::task::wake(waker);
        }
    }

    fn take_due(&self, now: time::Instant) -> Option<Waker> {
        let mut due = self.due.lock();
        match due.peek() {
            Some(Reverse(first)) if first.at <= now => due.pop().map(|Reverse(first)| first.waker),
            _ => None,
        }
    }
}

impl Timer for Clock {
    fn now(&self) -> time::Instant {
        time::Instant::ZERO + self.start.elapsed()
    }

    fn wake_at(&self, deadline: time::Instant, waker: Waker) {
        let due = Due {
            at: deadline,
            waker,
        };
        let is_first = {
            let mut all = self.due.lock();
            let is_first = all.peek().is_none_or(|Reverse(first)| deadline < first.at);
            all.push(Reverse(due));
            is_first
        };
        // The thread waits for the deadline that was first until now.
        if is_first {
            self.bell.ring();
        }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}
