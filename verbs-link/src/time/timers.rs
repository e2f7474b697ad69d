//! Deadlines in order: the data structure behind an engine, without lock or clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use slab::Slab;
use verbs_core::sync::Arc;

use crate::time::{Due, Instant};

/// Names a timer, to cancel it. A stale one names nothing (K13).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timer {
    index: usize,
    order: u64,
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timer {}", self.order)
    }
}

/// A timer: the callback, and the engine that set it.
pub(crate) struct Entry {
    order: u64,
    /// The engine that set it.
    owner: u64,
    pub(crate) due: Arc<dyn Due>,
    pub(crate) token: u64,
}

/// Sorted by deadline, then by insertion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    deadline: Instant,
    order: u64,
    index: usize,
}

/// Deadlines in order, ties by insertion.
///
/// A cancelled timer leaves its key in the heap. Keys without an entry are skipped at the front, and
/// swept out when they are the majority, so the heap stays within twice the timers that are set and
/// cancelling costs constant time on average. Room is kept, and there is some from the start: unless more timers are set
/// than ever before, nothing is allocated.
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Key>>,
    entries: Slab<Entry>,
    /// Timers set so far.
    order: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::with_capacity(2 * FEW + SLACK + 1),
            entries: Slab::with_capacity(FEW),
            order: 0,
        }
    }
}

impl Timers {
    pub(crate) fn insert(
        &mut self,
        deadline: Instant,
        owner: u64,
        due: Arc<dyn Due>,
        token: u64,
    ) -> Timer {
        let order = self.order;
        self.order += 1;
        let index = self.entries.insert(Entry {
            order,
            owner,
            due,
            token,
        });
        self.heap.push(Reverse(Key {
            deadline,
            order,
            index,
        }));
        Timer { index, order }
    }

    /// Takes a timer out, unless it has been called or cancelled.
    pub(crate) fn remove(&mut self, timer: Timer) -> Option<Entry> {
        if self.entries.get(timer.index)?.order != timer.order {
            return None;
        }
        let entry = self.entries.remove(timer.index);
        if self.heap.len() > 2 * self.entries.len() + SLACK {
            let entries = &self.entries;
            self.heap.retain(|Reverse(key)| is_live(entries, key));
        }
        Some(entry)
    }

    /// Takes the first timer that is due by `until`, if it was set before the `order`-th.
    pub(crate) fn pop(&mut self, until: Instant, order: u64) -> Option<(Instant, Entry)> {
        let key = self.first()?;
        if key.deadline > until || key.order >= order {
            return None;
        }
        self.heap.pop();
        Some((key.deadline, self.entries.remove(key.index)))
    }

    /// The first deadline.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        self.first().map(|key| key.deadline)
    }

    /// How many timers have been set so far: an upper bound for [`Timers::pop`].
    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    /// Takes out everything that one engine has set.
    pub(crate) fn remove_all(&mut self, owner: u64) -> Vec<Entry> {
        let of_owner = |(index, entry): (usize, &Entry)| (entry.owner == owner).then_some(index);
        let indices: Vec<usize> = self.entries.iter().filter_map(of_owner).collect();
        let taken = indices
            .into_iter()
            .map(|index| self.entries.remove(index))
            .collect();
        let entries = &self.entries;
        self.heap.retain(|Reverse(key)| is_live(entries, key));
        taken
    }

    fn first(&mut self) -> Option<Key> {
        loop {
            let &Reverse(key) = self.heap.peek()?;
            if is_live(&self.entries, &key) {
                return Some(key);
            }
            self.heap.pop();
        }
    }
}

fn is_live(entries: &Slab<Entry>, key: &Key) -> bool {
    entries
        .get(key.index)
        .is_some_and(|entry| entry.order == key.order)
}

/// Keys without an entry that are always tolerated, so that small heaps are not swept all the time.
const SLACK: usize = 8;

/// Timers for which there is room from the start.
const FEW: usize = 8;

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    struct Nothing;
    impl Due for Nothing {
        fn due(&self, _now: Instant, _token: u64) {}
    }

    #[test]
    fn cancelled_keys_do_not_pile_up() {
        let mut timers = Timers::default();
        let room = timers.heap.capacity();
        let due: Arc<dyn Due> = Arc::new(Nothing);
        for n in 0..100_000 {
            let timer = timers.insert(Instant::from_nanos(1_000_000 - n), 0, Arc::clone(&due), n);
            assert!(timers.remove(timer).is_some());
            assert!(timers.remove(timer).is_none(), "a stale name misses");
            assert!(timers.heap.len() <= SLACK + 1);
        }
        assert_eq!(timers.heap.capacity(), room);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn steady_state_needs_no_more_room() {
        let mut timers = Timers::default();
        let due: Arc<dyn Due> = Arc::new(Nothing);
        let mut turn = |round: u64| {
            for n in 0..1000 {
                timers.insert(
                    Instant::from_nanos(round * 1000 + n * 7 % 1000),
                    0,
                    Arc::clone(&due),
                    n,
                );
            }
            while timers.pop(Instant::NEVER, u64::MAX).is_some() {}
            (timers.heap.capacity(), timers.entries.capacity())
        };
        let first = turn(0);
        assert!((1..100).all(|round| turn(round) == first));
    }
}
