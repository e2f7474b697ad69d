//! The list of queue pairs that have a reason for a round, and the combiner whose holder gives them one.
//!
//! Any thread *lists* a queue pair, and then tries to hold the combiner. It either gets it, and gives all that are
//! listed their rounds, or it leaves a mark, and the holder goes round once more. A queue pair is on the list at most
//! once: its [`Mark`] says that it is.
//!
//! ```text
//! thread              reason; mark.set(); if it was not set: push; hold
//! holder              take the list; for each: mark.clear(); round (looks for reasons)
//! ```
//!
//! The race: a thread has a new reason, finds the mark still set and does not push, while the holder clears it and
//! looks. Setting and clearing are read-modify-writes of one word, so one of them comes first. If the thread does, the
//! holder acquires its reason by clearing; if the holder does, the thread finds the mark cleared, and pushes. A plain
//! store that clears would not do: it may become visible only after the holder has looked.
//!
//! The list is a vector behind a lock, and not a queue of crossbeam's, because the holder takes all that are listed at
//! once and a poller appends several, each under one lock, and because the models below have to see every access. A thread
//! pushes one handle and takes it in 16 ns so, by `ArrayQueue` in 14, by `SegQueue` in 23; 16 of them in 177, 189 and 308
//! (the loops of `cargo bench -p verbs-benches --bench queues -- ready-list`, the least of many rounds on a busy machine).

use verbs_core::combiner::{Combiner, Held};
use verbs_core::sync::atomic::{AtomicBool, Ordering::AcqRel};
use verbs_core::sync::{Arc, Mutex};

/// Whether something is on its list.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicBool);

impl Mark {
    /// It is to be on the list. `true`: it is not there yet, and the caller puts it there.
    #[inline]
    pub(crate) fn set(&self) -> bool {
        !self.0.swap(true, AcqRel)
    }

    /// It is no longer on the list: whatever reasons there were, its round finds.
    #[inline]
    fn clear(&self) {
        self.0.swap(false, AcqRel);
    }
}

/// What can be on such a list.
pub(crate) trait Listed {
    fn mark(&self) -> &Mark;
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct ReadyList<T> {
    combiner: Combiner,
    ready: Mutex<Vec<Arc<T>>>,
}

impl<T> Default for ReadyList<T> {
    fn default() -> Self {
        Self {
            combiner: Combiner::default(),
            ready: Mutex::new(Vec::new()),
        }
    }
}

impl<T: Listed> ReadyList<T> {
    /// It gets a round in the next turn. Whoever has a reason calls this, and then [`ReadyList::hold`].
    pub(crate) fn list(&self, one: &Arc<T>) {
        if one.mark().set() {
            self.ready.lock().push(Arc::clone(one));
        }
    }

    /// Puts those on the list whose marks the caller has set.
    pub(crate) fn append(&self, marked: &mut Vec<Arc<T>>) {
        self.ready.lock().append(marked);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.lock().is_empty()
    }

    /// Holds the combiner; `None` if another thread does, which then goes round once more.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        self.combiner.hold()
    }

    /// Holds the combiner if it is free.
    pub(crate) fn try_hold(&self) -> Option<Held<'_>> {
        self.combiner.try_hold()
    }

    /// For the holder: moves all that are on the list behind those in `marked`, whose marks it has set.
    pub(crate) fn gather(&self, marked: &mut Vec<Arc<T>>) {
        let mut ready = self.ready.lock();
        if !ready.is_empty() {
            marked.append(&mut ready);
        }
    }

    /// For the holder: a round for each of those in `marked`.
    pub(crate) fn serve(&self, marked: &mut Vec<Arc<T>>, mut round: impl FnMut(Arc<T>)) {
        // Most often there is one; taking it off the end costs less than draining a list.
        if marked.len() > 1 {
            marked.reverse();
        }
        while let Some(one) = marked.pop() {
            // Before the round: a thread that has a reason from now on lists it again.
            one.mark().clear();
            round(one);
        }
    }

    /// Takes turns until no thread has a reason left. A turn notes its effects in a value of its own; `settle` carries
    /// them out after the combiner has been released, and returns whether there is another turn. It gets `true` if a
    /// thread has entered in the meantime.
    pub(crate) fn drive<'l, N>(
        &'l self,
        mut held: Held<'l>,
        note: impl Fn() -> N,
        mut turn: impl FnMut(&mut N),
        mut settle: impl FnMut(&mut N, bool) -> bool,
    ) {
        loop {
            let noted = &mut note();
            turn(noted);
            // Released first: what follows is foreign code, and may come back here.
            let marked = held.release();
            if !settle(noted, marked) {
                return;
            }
            match self.combiner.hold() {
                Some(again) => held = again,
                None => return,
            }
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Default)]
    struct Item {
        mark: Mark,
        number: u32,
    }

    impl Listed for Item {
        fn mark(&self) -> &Mark {
            &self.mark
        }
    }

    /// Goal: one round for one that was listed several times, in the order of the list, behind those that the holder
    /// has marked itself; one that is listed in its own round is there for the next turn.
    #[test]
    fn each_gets_one_round_a_turn() {
        let list = ReadyList::default();
        let [a, b, c] = [1, 2, 3].map(|number| {
            let mark = Mark::default();
            Arc::new(Item { mark, number })
        });
        assert!(c.mark().set() && !c.mark().set());
        let mut marked = vec![Arc::clone(&c)];
        for one in [&a, &b, &a, &c, &b] {
            list.list(one);
        }
        let mut rounds = Vec::new();
        list.gather(&mut marked);
        list.serve(&mut marked, |one| {
            rounds.push(one.number);
            if one.number == 2 {
                list.list(&one);
            }
        });
        assert_eq!(rounds, [3, 1, 2]);
        assert!(marked.is_empty() && !list.is_empty());
        list.gather(&mut marked);
        list.serve(&mut marked, |one| rounds.push(one.number));
        assert_eq!((rounds.len(), rounds[3], list.is_empty()), (4, 2, true));
    }

    /// Goal: there is a turn after each that left a reason, with effects of its own, and none after the last. Method: a
    /// thread that comes while the combiner is held; effects that are a reason.
    #[test]
    fn turns_end_with_the_reasons() {
        let list = ReadyList::<Item>::default();
        let (turns, settled) = (Cell::new(0), Cell::new(0));
        let turn = |noted: &mut u32| {
            turns.set(turns.get() + 1);
            *noted += 1;
            if turns.get() == 1 {
                assert!(list.hold().is_none() && list.try_hold().is_none());
            }
        };
        let settle = |noted: &mut u32, marked: bool| {
            assert_eq!(*noted, 1, "each turn notes its own");
            drop(list.try_hold().expect("it is released"));
            settled.set(settled.get() + 1);
            assert_eq!(marked, settled.get() == 1);
            settled.get() < 3
        };
        let held = list.hold().expect("it is free");
        list.drive(held, || 0, turn, settle);
        assert_eq!((turns.get(), settled.get()), (3, 3));
        assert!(list.try_hold().is_some());
    }
}

#[cfg(all(test, verbs_loom))]
mod models {
    use loom::model;
    use loom::sync::atomic::{AtomicBool as Reason, AtomicU32, Ordering::Relaxed};
    use loom::thread;

    use super::*;

    /// Relaxed and without read-modify-writes, so that only what the list orders can be right.
    #[derive(Default)]
    struct Item {
        mark: Mark,
        reasons: [Reason; 2],
        rounds: AtomicU32,
        done: AtomicU32,
    }

    impl Listed for Item {
        fn mark(&self) -> &Mark {
            &self.mark
        }
    }

    impl Item {
        fn round(&self) {
            self.rounds.store(self.rounds.load(Relaxed) + 1, Relaxed);
            for reason in &self.reasons {
                if reason.load(Relaxed) {
                    reason.store(false, Relaxed);
                    self.done.store(self.done.load(Relaxed) + 1, Relaxed);
                }
            }
        }
    }

    type List = ReadyList<Item>;

    fn rounds(list: &List) {
        let mut marked = Vec::new();
        list.gather(&mut marked);
        list.serve(&mut marked, |item| item.round());
    }

    fn turns(list: &List, held: Held<'_>) {
        list.drive(held, || (), |(): &mut ()| rounds(list), |(), marked| marked);
    }

    /// As a poster does.
    fn post(list: &List, item: &Arc<Item>, reason: usize) {
        item.reasons[reason].store(true, Relaxed);
        list.list(item);
        if let Some(held) = list.hold() {
            turns(list, held);
        }
    }

    /// Goal: no reason is lost, and a round that finds several makes the others unnecessary. Method: two threads have a
    /// reason for one queue pair. Tried with the mark cleared after the round, cleared by a plain store, and set by a
    /// load: a reason is lost each time.
    #[test]
    fn loom_ready_list_one_queue_pair() {
        model(|| {
            let (list, item) = (Arc::new(List::default()), Arc::new(Item::default()));
            let other = (Arc::clone(&list), Arc::clone(&item));
            let thread = thread::spawn(move || post(&other.0, &other.1, 0));
            post(&list, &item, 1);
            thread.join().expect("the other thread does not panic");
            assert_eq!(item.done.load(Relaxed), 2);
            assert!(
                (1..=2).contains(&item.rounds.load(Relaxed)),
                "once a listing"
            );
            assert!(list.is_empty());
        });
    }

    /// Goal: the holder takes over what others list while it is busy. Method: a queue pair each. Tried with `drive`
    /// ending whatever was marked, and holding the combiner on: the other one gets no round.
    #[test]
    fn loom_ready_list_two_queue_pairs() {
        model(|| {
            let list = Arc::new(List::default());
            let items = [0, 1].map(|_| Arc::new(Item::default()));
            let other = (Arc::clone(&list), Arc::clone(&items[0]));
            let thread = thread::spawn(move || post(&other.0, &other.1, 0));
            post(&list, &items[1], 0);
            thread.join().expect("the other thread does not panic");
            for item in &items {
                assert_eq!(item.done.load(Relaxed), 1);
            }
            assert!(list.is_empty());
        });
    }

    /// Goal: what a poller takes in and leaves to the next turn is not lost, and gets one round. Method: it marks, and
    /// appends, while a poster has a reason for the same queue pair; then somebody takes a turn.
    #[test]
    fn loom_ready_list_left_by_a_poller() {
        model(|| {
            let (list, item) = (Arc::new(List::default()), Arc::new(Item::default()));
            let other = (Arc::clone(&list), Arc::clone(&item));
            let thread = thread::spawn(move || post(&other.0, &other.1, 0));
            if let Some(held) = list.try_hold() {
                let receive = |(): &mut ()| {
                    item.reasons[1].store(true, Relaxed);
                    let mut marked = Vec::new();
                    if item.mark().set() {
                        marked.push(Arc::clone(&item));
                    }
                    list.append(&mut marked);
                };
                let mut is_first = true;
                let turn = |noted: &mut ()| match std::mem::take(&mut is_first) {
                    true => receive(noted),
                    false => rounds(&list),
                };
                list.drive(held, || (), turn, |(), marked| marked);
            }
            thread.join().expect("the other thread does not panic");
            if let Some(held) = list.hold() {
                turns(&list, held);
            }
            assert!(item.reasons.iter().all(|reason| !reason.load(Relaxed)));
            assert!(list.is_empty());
        });
    }
}
