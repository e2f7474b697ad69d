//! The handler of a completion queue: one call at a time, and after each event at least one that begins later.

use std::fmt;

use crate::panics::FirstPanic;
use crate::sync::OnceLock;
use crate::sync::combiner::Combiner;
use crate::sync::plain::Mutex;

type Handler = Box<dyn FnMut() + Send>;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct CqHandler {
    /// Set for a queue that has one. Taken out of the mutex while it runs, so that no lock is held then (K4).
    handler: OnceLock<Mutex<Option<Handler>>>,
    calls: Combiner,
}

impl CqHandler {
    pub(super) fn set(&self, handler: Handler) {
        *self.handler.get_or_init(Mutex::default).lock() = Some(handler);
    }

    /// Whether the queue has one. It is not in its place while it runs, and an event of that time needs a call as well.
    pub(super) fn is_set(&self) -> bool {
        self.handler.get().is_some()
    }

    /// There is an event. `true`: the caller [runs](Self::run) the handler; otherwise the thread that runs it does so again.
    #[must_use]
    pub(super) fn enter(&self) -> bool {
        self.calls.enter()
    }

    /// Runs the handler, for the caller that has entered, until no other event has come. A handler that panics is called
    /// for later events as well.
    pub(super) fn run(&self, panics: &mut FirstPanic) {
        loop {
            let place = self.handler.get();
            let handler = place.and_then(|place| place.lock().take());
            if let (Some(place), Some(mut handler)) = (place, handler) {
                panics.catch(&mut handler);
                place.lock().get_or_insert(handler);
            }
            if !self.calls.again() {
                break;
            }
        }
    }
}

impl fmt::Debug for CqHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqHandler").finish_non_exhaustive()
    }
}

#[cfg(all(test, verbs_loom))]
mod models {
    use loom::model;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    struct Queue {
        handler: CqHandler,
        events: [AtomicBool; 2],
        handled: AtomicU32,
    }

    fn event(queue: &Queue, number: usize) {
        queue.events[number].store(true, Relaxed);
        if queue.handler.is_set() && queue.handler.enter() {
            queue.handler.run(&mut FirstPanic::default());
        }
    }

    /// Goal: each event is handled, also one that comes while the handler returns on another thread. Tried with an event
    /// that is left alone when the handler is not in its place and nobody has entered: it is lost.
    #[test]
    fn loom_cq_handler_no_event_is_lost() {
        model(|| {
            let queue = Arc::new(Queue {
                handler: CqHandler::default(),
                events: [const { false }; 2].map(AtomicBool::new),
                handled: AtomicU32::new(0),
            });
            let mine = Arc::downgrade(&queue);
            queue.handler.set(Box::new(move || {
                let queue = mine.upgrade().expect("it is in use");
                for event in &queue.events {
                    if event.load(Relaxed) {
                        event.store(false, Relaxed);
                        queue
                            .handled
                            .store(queue.handled.load(Relaxed) + 1, Relaxed);
                    }
                }
            }));
            let other = Arc::clone(&queue);
            let thread = thread::spawn(move || event(&other, 0));
            event(&queue, 1);
            thread.join().expect("the other thread does not panic");
            assert_eq!(queue.handled.load(Relaxed), 2);
        });
    }
}
