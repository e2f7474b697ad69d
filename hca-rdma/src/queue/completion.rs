//! Polling.

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::{Arm, Armed, RawCq, Wc};

use crate::keys::Keys;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys::{Cq, Entries, Ticks};

/// The consumer's side of a completion queue, which was created with or without time stamps.
pub(crate) fn completion_queue(nic: &Shared, cq: &Arc<Slot<Cq>>, stamps: bool) -> Box<dyn RawCq> {
    match nic.ticks.filter(|_| stamps) {
        None => Box::new(CompletionQueue::new(nic, cq, Plain::default())),
        Some(ticks) => Box::new(CompletionQueue::new(nic, cq, Stamped(ticks))),
    }
}

/// How completions are taken from the library.
trait Take: Send + Sync {
    fn take(&mut self, cq: &Cq, out: &mut [Wc]) -> usize;
}

/// Several at once.
#[derive(Default)]
struct Plain(Entries);

/// One at a time, with the time.
struct Stamped(Ticks);

impl Take for Plain {
    #[inline(always)]
    fn take(&mut self, cq: &Cq, out: &mut [Wc]) -> usize {
        cq.poll(out, &mut self.0)
    }
}

impl Take for Stamped {
    fn take(&mut self, cq: &Cq, out: &mut [Wc]) -> usize {
        cq.poll_stamped(out, self.0)
    }
}

/// A completion queue.
struct CompletionQueue<T> {
    cq: Arc<Slot<Cq>>,
    keys: Arc<Keys>,
    /// The completion that arming has found: C cannot look at one without taking it.
    found: Option<Wc>,
    how: T,
}

impl<T: Take> CompletionQueue<T> {
    fn new(nic: &Shared, cq: &Arc<Slot<Cq>>, how: T) -> Self {
        Self {
            cq: Arc::clone(cq),
            keys: Arc::clone(&nic.keys),
            found: None,
            how,
        }
    }

    #[inline]
    fn take(&mut self, out: &mut [Wc]) -> usize {
        let how = &mut self.how;
        let taken = self.cq.with(|cq| how.take(cq, out)).unwrap_or(0);
        self.keys.polled(&out[..taken]);
        taken
    }
}

impl<T: Take> RawCq for CompletionQueue<T> {
    #[inline]
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        if let Some(first) = out.first_mut()
            && let Some(found) = self.found.take()
        {
            *first = found;
            return 1 + self.take(&mut out[1..]);
        }
        self.take(out)
    }

    fn arm(&mut self, when: Arm) -> Armed {
        self.cq.with(|cq| cq.arm(when));
        if self.found.is_none() {
            let mut wc = Wc::default();
            let count = self.take(std::slice::from_mut(&mut wc));
            self.found = (count > 0).then_some(wc);
        }
        match self.found {
            Some(_) => Armed::Waiting,
            None => Armed::Empty,
        }
    }
}

impl<T> fmt::Debug for CompletionQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}
