//! The machine under a benchmark: its processors, and the threads that were interrupted on them.

use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use verbs_core::sync::thread;

use super::error::BenchError;

/// How long a thread waits for something that takes a microsecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fruitless polls between two looks at the clock.
const POLLS: u32 = 1 << 14;

/// The processors that this process may use.
#[derive(Debug)]
pub(crate) struct Machine {
    cpus: Vec<usize>,
}

impl Machine {
    /// Asks the system. One that does not tell counts as a single processor.
    pub(crate) fn new() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        Self {
            cpus: cpus.collect(),
        }
    }

    /// Processors that may be used.
    pub(crate) fn processors(&self) -> usize {
        self.cpus.len().max(1)
    }

    /// Keeps the calling thread on the processor of that party, if there is one for each of two.
    /// Returns whether it is kept there.
    pub(crate) fn pin(&self, party: usize) -> bool {
        let [first, second, ..] = self.cpus[..] else {
            return false;
        };
        let mut only = CpuSet::new();
        only.set(if party == 0 { first } else { second });
        sched_setaffinity(None, &only).is_ok()
    }
}

/// How often the calling thread was taken off its processor against its will, ever.
///
/// rustix has no `getrusage`; the same counter stands in procfs. `None` where procfs is not mounted.
pub(crate) fn preemptions() -> Option<u64> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

/// Bounds a loop that polls.
///
/// It does not pause between polls: a pause takes as long as a cache line needs from the other core.
#[derive(Debug)]
pub(crate) struct Patience {
    /// What the loop waits for.
    what: &'static str,
    polls: u32,
    since: Option<Instant>,
}

impl Patience {
    #[inline]
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            polls: 0,
            since: None,
        }
    }

    /// Counts a fruitless poll. Yields the processor now and then, for machines that have one only.
    ///
    /// # Errors
    /// [`BenchError::Stalled`] after ten seconds.
    #[inline]
    pub(crate) fn lose(&mut self) -> Result<(), BenchError> {
        self.polls += 1;
        if self.polls < POLLS {
            return Ok(());
        }
        self.rest()
    }

    #[cold]
    fn rest(&mut self) -> Result<(), BenchError> {
        self.polls = 0;
        if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(BenchError::Stalled {
                what: self.what,
                seconds: PATIENCE.as_secs(),
            });
        }
        thread::yield_now();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preemptions_are_counted_for_this_thread() {
        let before = preemptions().expect("procfs");
        // Yielding while runnable counts as involuntary whenever another thread runs; it never
        // takes anything off the count.
        thread::yield_now();
        assert!(preemptions().expect("procfs") >= before);
    }

    #[test]
    fn parties_stay_where_they_are_put() {
        let machine = Machine::new();
        assert!(machine.processors() >= 1);
        thread::spawn(move || {
            for party in [0, 1] {
                assert_eq!(machine.pin(party), machine.processors() > 1);
                let at = rustix::thread::sched_getcpu();
                assert!(machine.processors() == 1 || at == machine.cpus[party]);
            }
        })
        .join()
        .expect("both parties have a processor");
    }
}
