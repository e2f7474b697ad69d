//! Polling.

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::{Arm, Armed, RawCq, Wc};

use crate::slot::Slot;
use crate::sys::{Cq, Entries};

/// A completion queue.
pub(crate) struct CompletionQueue {
    cq: Arc<Slot<Cq>>,
    /// What arming has found: C cannot look without taking.
    found: Option<Wc>,
    entries: Entries,
}

impl CompletionQueue {
    pub(crate) fn new(cq: Arc<Slot<Cq>>) -> Self {
        Self {
            cq,
            found: None,
            entries: Entries::default(),
        }
    }

    #[inline]
    fn take(&mut self, out: &mut [Wc]) -> usize {
        let entries = &mut self.entries;
        self.cq.with(|cq| cq.poll(out, entries)).unwrap_or(0)
    }
}

impl RawCq for CompletionQueue {
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

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}
