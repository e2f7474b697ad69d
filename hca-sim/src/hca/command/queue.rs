//! The slots of the command interface and the requests that wait for one.
//!
//! One word counts both: requests that wait in the upper half, slots in use in the lower.
//!
//! ```text
//! try_enter: none waits, a slot is free   --CAS--> slots in use + 1      no lock
//! park:      lock; as try_enter, else waiting + 1 and into the line
//! leave:     none waits --CAS--> slots in use - 1                        no lock
//!            one waits: lock; the first in line gets the slot, waiting - 1
//! take:      lock; out of the line, waiting - 1
//! ```
//!
//! *Rights.* A slot belongs to the thread that entered, or was handed it by `leave`, until that thread leaves. The
//! upper half changes only under the lock, so under the lock it is the length of the line.
//!
//! *The race that looks bad*: one thread leaves and sees no request waiting while another sees no slot free and puts
//! its request into the line, which no thread would ever look at again. Both decide by compare-exchange of the one
//! word: the second one sees the first.
//!
//! *Park against cancel*: the canceller marks the request, then takes the lock and looks in the line; `park` takes the
//! lock, looks for the mark, and only then joins the line. Whichever takes the lock second sees what the first did, so
//! a marked request does not stay in line (K8).
//!
//! *Why no queue of crossbeam's*: a cancelled request is taken out of the middle of the line, and the word changes
//! together with the line, under its lock; no lock-free queue allows the first, nor do loom's models see into one. A
//! request joins the line and leaves it in 16 ns so, by `ArrayQueue` in 14, by `SegQueue` in 23 (the loops of `cargo bench
//! -p verbs-benches --bench queues -- command-line`, the least of many rounds on a busy machine).
//!
//! *What loom does not show*: overflow of the halves, which is prevented by the device's limits of pending requests and
//! of objects.

use std::collections::VecDeque;

use verbs_core::sync::Mutex;
use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

const SLOT: u64 = 1;
const WAITING: u64 = 1 << 32;
const SLOTS: u64 = WAITING - 1;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Queue<T> {
    word: AtomicU64,
    slots: u32,
    line: Mutex<Line<T>>,
}

#[derive(Debug)]
struct Line<T> {
    waiting: VecDeque<T>,
    longest: usize,
}

/// The outcome for a request that asked for a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parked<T> {
    /// A slot had become free: it belongs to the request, and the caller carries the request out.
    Enter(T),
    /// It waits in line.
    Waits,
    /// It was marked before it could join the line; it has no slot.
    Marked(T),
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotCounts {
    pub(super) executing: u32,
    pub(super) queued: u32,
}

impl<T> Queue<T> {
    pub(super) fn new(slots: u32) -> Self {
        let line = Line {
            waiting: VecDeque::new(),
            longest: 0,
        };
        Self {
            word: AtomicU64::new(0),
            slots,
            line: Mutex::new(line),
        }
    }

    /// Takes a slot if one is free and no request waits for it.
    pub(super) fn try_enter(&self) -> bool {
        let free = |word| (word < u64::from(self.slots)).then_some(word + SLOT);
        // Acquire: the holder of the slot sees what its last holder did.
        self.word.fetch_update(AcqRel, Relaxed, free).is_ok()
    }

    /// Takes a slot, or waits in line for one.
    pub(super) fn park(&self, item: T, marked: impl FnOnce(&T) -> bool) -> Parked<T> {
        let mut line = self.line.lock();
        if marked(&item) {
            return Parked::Marked(item);
        }
        let mut word = self.word.load(Acquire);
        loop {
            let enters = word < u64::from(self.slots);
            let next = if enters { word + SLOT } else { word + WAITING };
            match self.word.compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) if enters => return Parked::Enter(item),
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        line.waiting.push_back(item);
        line.longest = line.longest.max(line.waiting.len());
        Parked::Waits
    }

    /// Releases a slot. If a request waits, the first in line now has the slot, and the caller carries that request
    /// out.
    #[must_use = "a request that was handed a slot must be carried out"]
    pub(super) fn leave(&self) -> Option<T> {
        let mut word = self.word.load(Acquire);
        loop {
            if word < WAITING {
                match self
                    .word
                    .compare_exchange_weak(word, word - SLOT, AcqRel, Acquire)
                {
                    Ok(_) => return None,
                    Err(now) => {
                        word = now;
                        continue;
                    }
                }
            }
            let mut line = self.line.lock();
            if let Some(item) = line.waiting.pop_front() {
                self.word.fetch_sub(WAITING, AcqRel);
                return Some(item);
            }
            // The last one in line was taken out in the meantime.
            drop(line);
            word = self.word.load(Acquire);
        }
    }

    /// Takes the first item that `wanted` selects out of the line.
    pub(super) fn take(&self, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let mut line = self.line.lock();
        let place = line.waiting.iter().position(wanted)?;
        let item = line.waiting.remove(place);
        self.word.fetch_sub(WAITING, AcqRel);
        item
    }

    /// Takes all items out of the line.
    pub(super) fn take_all(&self) -> VecDeque<T> {
        let mut line = self.line.lock();
        let all = std::mem::take(&mut line.waiting);
        self.word.fetch_sub(WAITING * all.len() as u64, AcqRel);
        all
    }

    pub(super) fn counts(&self) -> SlotCounts {
        let word = self.word.load(Relaxed);
        SlotCounts {
            executing: (word & SLOTS) as u32,
            queued: (word / WAITING) as u32,
        }
    }

    /// The longest that the line has been.
    pub(super) fn longest(&self) -> usize {
        self.line.lock().longest
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    fn never(_: &u32) -> bool {
        false
    }

    #[test]
    fn slots_are_handed_on_in_line() {
        let queue = Queue::new(2);
        assert!(queue.try_enter() && queue.try_enter());
        assert!(!queue.try_enter(), "both are in use");
        for n in 0..3 {
            assert_eq!(queue.park(n, never), Parked::Waits);
        }
        assert_eq!(
            queue.counts(),
            SlotCounts {
                executing: 2,
                queued: 3
            }
        );
        assert_eq!(queue.leave(), Some(0));
        assert!(!queue.try_enter(), "nobody jumps the line");
        assert_eq!(queue.take(|&n| n == 2), Some(2));
        assert_eq!(queue.leave(), Some(1));
        assert_eq!((queue.leave(), queue.leave()), (None, None));
        assert_eq!(
            queue.counts(),
            SlotCounts {
                executing: 0,
                queued: 0
            }
        );
        assert_eq!(queue.longest(), 3);
    }

    #[test]
    fn a_marked_request_never_joins() {
        let queue = Queue::new(1);
        assert!(queue.try_enter());
        assert_eq!(queue.park(7, |_| true), Parked::Marked(7));
        assert_eq!(queue.leave(), None);
        assert_eq!(queue.park(8, never), Parked::Enter(8), "a slot was free");
    }
}

/// Models of the slots' hand-over and of park against cancel.
///
/// Each was tried with a defect put in: if `leave` decides by an older look at the word, a request stays in line; if
/// the mark is looked at before the lock is taken, a cancelled one does; if `take` does not count down, the counts are
/// wrong; with relaxed orderings, loom reports the cell.
#[cfg(all(test, verbs_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// Carries out the commands that it was handed, and those that it is handed after that; returns how many.
    fn carry_out(queue: &Queue<usize>, done: &[AtomicU64]) -> usize {
        let mut n = 0;
        while let Some(item) = queue.leave() {
            done[item].fetch_add(1, Relaxed);
            n += 1;
        }
        n
    }

    fn issue(queue: &Queue<usize>, item: usize, done: &[AtomicU64]) {
        let entered = queue.try_enter() || {
            match queue.park(item, |_| false) {
                Parked::Enter(_) => true,
                Parked::Waits => false,
                Parked::Marked(_) => unreachable!("nobody marks"),
            }
        };
        if entered {
            done[item].fetch_add(1, Relaxed);
            carry_out(queue, done);
        }
    }

    /// Three threads, and at most two preemptions where the environment sets no bound: without one
    /// the model runs for minutes.
    fn bounded(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.check(model);
    }

    #[test]
    fn loom_k7_nobody_is_left_in_line() {
        bounded(|| {
            let queue = Arc::new(Queue::new(1));
            let done = Arc::new([const { 0 }; 3].map(AtomicU64::new));
            let others: Vec<_> = (1..3)
                .map(|n| {
                    let (queue, done) = (Arc::clone(&queue), Arc::clone(&done));
                    thread::spawn(move || issue(&queue, n, &done[..]))
                })
                .collect();
            issue(&queue, 0, &done[..]);
            for other in others {
                other.join().unwrap();
            }
            assert!(done.iter().all(|n| n.load(Relaxed) == 1), "each once");
            assert_eq!(
                queue.counts(),
                SlotCounts {
                    executing: 0,
                    queued: 0
                }
            );
        });
    }

    #[test]
    fn loom_k8_park_against_cancel() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(1));
            assert!(queue.try_enter());
            let marked = Arc::new(AtomicBool::new(false));
            let canceller = {
                let (queue, marked) = (Arc::clone(&queue), Arc::clone(&marked));
                thread::spawn(move || {
                    marked.store(true, Relaxed);
                    queue.take(|_| true)
                })
            };
            let parked = queue.park(7, |_| marked.load(Relaxed));
            let taken = canceller.join().unwrap();
            match parked {
                Parked::Waits => assert_eq!(taken, Some(7), "marked and still in line"),
                Parked::Marked(item) => assert_eq!((item, taken), (7, None)),
                Parked::Enter(_) => unreachable!("the slot was in use"),
            }
            assert_eq!(queue.leave(), None);
        });
    }

    #[test]
    fn loom_k8_a_slot_is_handed_over_or_the_request_is_taken_out() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(1));
            assert!(queue.try_enter());
            assert_eq!(queue.park(7, |_| false), Parked::Waits);
            let canceller = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.take(|_| true).is_some())
            };
            let handed = queue.leave().is_some();
            if handed {
                assert_eq!(queue.leave(), None);
            }
            let cancelled = canceller.join().unwrap();
            assert!(handed != cancelled, "carried out or cancelled, never both");
            assert_eq!(
                queue.counts(),
                SlotCounts {
                    executing: 0,
                    queued: 0
                }
            );
        });
    }

    #[test]
    fn loom_a_slot_passes_on_what_its_holder_wrote() {
        loom::model(|| {
            let queue = Arc::new(Queue::<usize>::new(1));
            let seen = Arc::new(verbs_core::sync::UnsafeCell::new(0_u32));
            let worker = |queue: Arc<Queue<usize>>,
                          seen: Arc<verbs_core::sync::UnsafeCell<u32>>| {
                if queue.try_enter() {
                    // Loom's cell itself reports two threads at a time.
                    seen.with_mut(|cell| assert!(!cell.is_null()));
                    assert_eq!(queue.leave(), None);
                }
            };
            let other = {
                let (queue, seen) = (Arc::clone(&queue), Arc::clone(&seen));
                thread::spawn(move || worker(queue, seen))
            };
            worker(queue, seen);
            other.join().unwrap();
        });
    }
}
