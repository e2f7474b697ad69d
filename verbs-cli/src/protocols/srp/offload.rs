//! A few threads that may wait, for the files behind logical units.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use ulp_srp::lun::{Offload, Work};
use verbs_core::sync::{Arc, thread};

/// Calls that wait for a thread at most; initiators are told to try again beyond.
const QUEUE_MAX: usize = 4096;

/// The threads. They end with the process.
#[derive(Default)]
pub(super) struct Threads {
    queue: Mutex<VecDeque<Work>>,
    filled: Condvar,
}

impl Threads {
    /// Starts so many.
    pub(super) fn start(count: u32) -> io::Result<Arc<Self>> {
        let threads = Arc::new(Self::default());
        for number in 0..count {
            let threads = Arc::clone(&threads);
            let builder = thread::Builder::new().name(format!("disk {number}"));
            builder.spawn(move || threads.serve())?;
        }
        Ok(threads)
    }

    fn serve(&self) {
        loop {
            let mut queue = self.queue();
            let work = loop {
                match queue.pop_front() {
                    Some(work) => break work,
                    None => {
                        let woken = self.filled.wait(queue);
                        queue = woken.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(queue);
            work();
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Work>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offload for Threads {
    fn submit(&self, work: Work) {
        let mut queue = self.queue();
        if queue.len() >= QUEUE_MAX {
            // Dropped outside of the lock: the thread that waits for it is told then.
            drop(queue);
            return drop(work);
        }
        queue.push_back(work);
        drop(queue);
        self.filled.notify_one();
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("waiting", &self.queue().len())
            .finish_non_exhaustive()
    }
}
