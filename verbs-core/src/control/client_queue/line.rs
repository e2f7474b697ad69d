//! The lock-free line of a [`ClientQueue`](super::ClientQueue): reserved places, and what is due.
//!
//! A place is an index. It is in one of four hands:
//!
//! ```text
//! free   --take_place--> reserved --push--> fresh --pop--> (due --pop-->) free
//! reserved --give_back--> free
//! ```
//!
//! *Free* and *fresh* are stacks of indices. Taking a place and pushing need no lock, so that a
//! completion never waits for a client (K2). The popping thread takes all that is fresh at once and turns it
//! round into `due`, oldest first; that lock is between clients that drain, and its holders run
//! bounded code of ours.
//!
//! *Rights.* A cell's item belongs to the thread that reserved the place until the push, and to the one that popped the
//! index afterwards. The cells' locks are therefore never contended and never wait; they stand in
//! for unsafe code.
//!
//! *The race that looks bad*: a pop of the free stack that was overtaken by pop, pop, push of the
//! same index would link a place that is in use. The tag in the head's upper half moves on with
//! every pop. The fresh stack is only pushed to and taken whole, and needs no tag.
//!
//! *Ready against push*: a waiting thread registers its waker and then looks; a pushing thread does so before it
//! wakes. One of the two sees the other.
//!
//! *Close against push*: the closing thread marks and then drains; a pushing thread looks for the mark afterwards.
//! With a fence between the two steps on both sides, one of the two runs the item (K1).
//!
//! *Why no queue of crossbeam's*: a completion must neither find the line full nor wait for a client. Its place is reserved
//! when the request is issued; a counter beside an `ArrayQueue` would do that too, but a client that stands still in the
//! middle of a pop keeps its slot there, and when the ring has come round to it, a push waits. `SegQueue` allocates while
//! it pushes. And the models have to see every access, as loom does not in that crate. A routine that is queued and
//! then run takes 74 ns so, 35 by `ArrayQueue`, 56 by `SegQueue`, with its verb, and 10 if it runs at once
//! (`cargo bench -p verbs-benches --bench queues`, group `client-queue`).
//!
//! *What loom does not show*: the wrap of the tag after 2^32 pops during one pop.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use crate::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use crate::sync::{AtomicWaker, Mutex};

/// No index; others are stored plus one.
const END: u32 = 0;
const INDEX: u64 = 0xffff_ffff;
const TAG: u64 = 1 << 32;

/// One place.
struct Cell<T> {
    /// The next in the stack that the place is in.
    next: AtomicU32,
    item: Mutex<Option<T>>,
}

/// See the module's documentation.
pub(super) struct Line<T> {
    cells: Box<[Cell<T>]>,
    free: AtomicU64,
    /// Newest first.
    fresh: AtomicU32,
    /// Oldest first; older than all that is fresh.
    due: Mutex<VecDeque<u32>>,
    /// Items pushed and not popped.
    len: AtomicU32,
    waker: AtomicWaker,
    closed: AtomicBool,
}

/// A place in the line, to be named at the push.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

/// What a push leaves to its caller.
#[must_use = "nobody else wakes, or drains a line that is closed"]
pub(super) struct Pushed {
    /// The task that waits for an item, to be woken.
    pub(super) waker: Option<Waker>,
    /// The line was closed, and the caller pops until it is empty.
    pub(super) closed: bool,
}

impl<T> Line<T> {
    pub(super) fn new(capacity: u32) -> Self {
        let cell = |n: u32| Cell {
            next: AtomicU32::new(if n + 1 < capacity { n + 2 } else { END }),
            item: Mutex::new(None),
        };
        Self {
            cells: (0..capacity).map(cell).collect(),
            free: AtomicU64::new(u64::from(capacity.min(1))),
            fresh: AtomicU32::new(END),
            due: Mutex::new(VecDeque::with_capacity(capacity as usize)),
            len: AtomicU32::new(0),
            waker: AtomicWaker::new(),
            closed: AtomicBool::new(false),
        }
    }

    fn cell(&self, stored: u32) -> &Cell<T> {
        &self.cells[stored as usize - 1]
    }

    /// Reserves a place.
    pub(super) fn take_place(&self) -> Option<Place> {
        let mut head = self.free.load(Acquire);
        loop {
            let first = (head & INDEX) as u32;
            if first == END {
                return None;
            }
            let next = u64::from(self.cell(first).next.load(Relaxed));
            let then = (head & !INDEX).wrapping_add(TAG) | next;
            match self.free.compare_exchange_weak(head, then, AcqRel, Acquire) {
                Ok(_) => return Some(Place(first)),
                Err(now) => head = now,
            }
        }
    }

    /// Gives a place back that nothing was pushed to.
    pub(super) fn give_back(&self, place: Place) {
        let mut head = self.free.load(Relaxed);
        loop {
            self.cell(place.0)
                .next
                .store((head & INDEX) as u32, Relaxed);
            let then = head & !INDEX | u64::from(place.0);
            match self
                .free
                .compare_exchange_weak(head, then, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Puts an item at the end.
    pub(super) fn push(&self, place: Place, item: T) -> Pushed {
        let cell = self.cell(place.0);
        *cell.item.lock() = Some(item);
        self.len.fetch_add(1, Relaxed);
        let mut head = self.fresh.load(Relaxed);
        loop {
            cell.next.store(head, Relaxed);
            match self
                .fresh
                .compare_exchange_weak(head, place.0, Release, Relaxed)
            {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let waker = self.waker.take();
        fence(SeqCst);
        Pushed {
            waker,
            closed: self.closed.load(Relaxed),
        }
    }

    /// The oldest item.
    pub(super) fn pop(&self) -> Option<T> {
        let place = {
            let mut due = self.due.lock();
            if due.is_empty() {
                self.turn_round(&mut due);
            }
            Place(due.pop_front()?)
        };
        let item = self.cell(place.0).item.lock().take();
        self.len.fetch_sub(1, Relaxed);
        self.give_back(place);
        item
    }

    /// Moves what is fresh behind what is due. `due` has room for every place.
    fn turn_round(&self, due: &mut VecDeque<u32>) {
        let mut newest = self.fresh.swap(END, Acquire);
        let older = due.len();
        while newest != END {
            due.push_back(newest);
            newest = self.cell(newest).next.load(Relaxed);
        }
        due.make_contiguous()[older..].reverse();
    }

    /// Items pushed and not popped.
    pub(super) fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }

    /// Ready when there is something to pop.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        let due = self.due.lock();
        if due.is_empty() && self.fresh.load(Acquire) == END {
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// From now on a thread that pushes also pops; the caller pops what is there.
    pub(super) fn close(&self) {
        self.closed.store(true, Relaxed);
        fence(SeqCst);
    }
}

#[cfg(all(test, verbs_loom))]
mod loom_tests {
    //! Each was tried with a defect put in: without the tag two threads get one place; when `fresh` is
    //! not turned round the order is lost; a `poll_ready` that looks before it registers sleeps for
    //! ever; without the fence in `push` an item stays in a closed line.

    use loom::future::block_on;
    use loom::sync::Arc;
    use loom::thread;
    use std::future::poll_fn;

    use super::*;

    fn push(line: &Line<u32>, item: u32) -> bool {
        let place = line.take_place().expect("the models reserve enough");
        let Pushed { waker, closed } = line.push(place, item);
        if let Some(waker) = waker {
            waker.wake();
        }
        closed
    }

    #[test]
    fn loom_k7_a_place_has_one_holder() {
        loom::model(|| {
            let line = Arc::new(Line::<u32>::new(2));
            let other = Arc::clone(&line);
            let thread = thread::spawn(move || {
                let (first, second) = (other.take_place(), other.take_place());
                if let Some(place) = first {
                    other.give_back(place);
                }
                second
            });
            let mine = line.take_place();
            let theirs = thread.join().unwrap();
            assert!(mine != theirs || mine.is_none(), "{mine:?}, {theirs:?}");
            let rest = std::iter::from_fn(|| line.take_place()).count();
            let taken = usize::from(mine.is_some()) + usize::from(theirs.is_some());
            assert_eq!(rest + taken, 2, "none is lost");
        });
    }

    #[test]
    fn loom_k1_each_item_once_and_in_order() {
        loom::model(|| {
            let line = Arc::new(Line::new(3));
            let pushers = [[1, 2].as_slice(), &[3]].map(|items| {
                let line = Arc::clone(&line);
                thread::spawn(move || {
                    for &item in items {
                        assert!(!push(&line, item));
                    }
                })
            });
            let mut seen: Vec<u32> = line.pop().into_iter().collect();
            for pusher in pushers {
                pusher.join().unwrap();
            }
            seen.extend(std::iter::from_fn(|| line.pop()));
            let place = |item| seen.iter().position(|&s| s == item).unwrap();
            assert!(place(1) < place(2), "{seen:?}");
            assert_eq!((seen.len(), line.len()), (3, 0), "{seen:?} {}", place(3));
        });
    }

    #[test]
    fn loom_k1_two_drainers_share_the_line() {
        loom::model(|| {
            let line = Arc::new(Line::new(2));
            assert!(!push(&line, 1) && !push(&line, 2));
            let other = Arc::clone(&line);
            let drainer = thread::spawn(move || other.pop());
            let mine = line.pop();
            let theirs = drainer.join().unwrap();
            assert_eq!(mine.unwrap() + theirs.unwrap(), 3, "one each");
            assert_eq!(line.pop(), None);
        });
    }

    #[test]
    fn loom_ready_is_not_lost() {
        loom::model(|| {
            let line = Arc::new(Line::new(1));
            let other = Arc::clone(&line);
            let pusher = thread::spawn(move || push(&other, 7));
            // A wake that is lost ends as a deadlock, which loom reports.
            block_on(poll_fn(|cx| line.poll_ready(cx)));
            assert_eq!(line.pop(), Some(7));
            pusher.join().unwrap();
        });
    }

    #[test]
    fn loom_k1_close_against_push_leaves_nothing() {
        loom::model(|| {
            let line = Arc::new(Line::new(1));
            let other = Arc::clone(&line);
            let pusher = thread::spawn(move || match push(&other, 7) {
                true => other.pop(),
                false => None,
            });
            line.close();
            let mine = line.pop();
            let theirs = pusher.join().unwrap();
            assert_eq!(mine.or(theirs), Some(7), "somebody runs it");
            assert!(mine.is_none() || theirs.is_none(), "and nobody else");
        });
    }
}
