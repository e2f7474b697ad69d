//! What the engine's thread of a counted HCA waits with: nothing but its end wakes it.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use hca_sim::link::Waiter;

/// How long a wait takes when the HCA is about to end.
const WHILE_IT_ENDS: Duration = Duration::from_millis(1);

/// Whether the thread may wake up.
#[derive(Debug, Default)]
pub(crate) struct Asleep {
    is_over: Mutex<bool>,
    ends: Condvar,
}

impl Asleep {
    pub(crate) fn end(&self) {
        *self.is_over.lock().expect("no thread has panicked") = true;
        self.ends.notify_all();
    }
}

impl Waiter for Asleep {
    fn wait(&self, _: Option<Duration>, _: bool) {
        let mut is_over = self.is_over.lock().expect("no thread has panicked");
        while !*is_over {
            is_over = self.ends.wait(is_over).expect("no thread has panicked");
        }
        drop(is_over);
        // The HCA takes a while to end. A thread that looked again and again until then would keep the processor, which
        // valgrind shares out to one thread at a time, from the one that ends it: a minute for each bench.
        thread::sleep(WHILE_IT_ENDS);
    }

    fn wake(&self) {}
}
