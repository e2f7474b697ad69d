//! The events of a device: those that wait, the handler, parked requests, and what is held until a create is delivered.

use std::collections::VecDeque;

use smallbox::SmallBox;
use smallbox::space::S16;

use super::kind::{AsyncEvent, EventType, EventWatcher, Subject};
use crate::command::RequestId;
use crate::error::Error;
use crate::object::ObjectId;
use crate::panics::FirstPanic;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::combiner::Combiner;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Mutex, Weak};

/// Events that wait for a client at most. A device without a listener loses the oldest ones
/// beyond that; they are counted.
pub const MAX_WAITING: usize = 4096;

/// A request that waits for an event.
pub(super) trait Waiter: Send {
    fn id(&self) -> RequestId;

    /// Whether it should end early.
    fn is_cancelled(&self) -> bool;

    /// Answers it; the second time does nothing.
    fn complete(&mut self, event: Result<AsyncEvent, Error>);
}

/// A waiter, in place.
pub(super) type AnyWaiter = SmallBox<dyn Waiter, S16>;

type Handler = Box<dyn FnMut(AsyncEvent) + Send>;

/// A device's events and the requests that wait for them.
#[derive(Default)]
pub(crate) struct EventHub {
    queue: Mutex<Queue>,
    /// Taken out while it runs, so that no lock is held then (K4).
    handler: Mutex<Option<Handler>>,
    pub(super) calls: Combiner,
    pub(super) lost: AtomicU64,
    watchers: Mutex<Vec<Weak<dyn EventWatcher>>>,
}

/// What waited for the delivery of a create.
pub(super) struct Announced {
    pub(super) has_events: bool,
    /// The device has become unusable.
    pub(super) has_ended: bool,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<AsyncEvent>,
    waiters: VecDeque<AnyWaiter>,
    /// Events of objects whose create has not been delivered.
    held: Vec<AsyncEvent>,
    listened: bool,
    /// The device's close was accepted, or the device has gone.
    closed: bool,
    /// Counts calls of `listen`, so that a handler that ran is not put back over its successor.
    generation: u64,
}

impl EventHub {
    pub(super) fn wait(&self, mut waiter: AnyWaiter) {
        let event = {
            let mut queue = self.queue.lock();
            match queue.events.pop_front() {
                Some(event) => Ok(event),
                // The canceller marks the request, then looks here under the lock: one of us sees it.
                None if waiter.is_cancelled() => Err(Error::Cancelled),
                None if queue.closed => Err(Error::Closing),
                None => {
                    queue.waiters.push_back(waiter);
                    return;
                }
            }
        };
        waiter.complete(event);
    }

    /// There will be no further events: completes all parked requests.
    pub(crate) fn close(&self, error: Error) {
        let waiters = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.waiters)
        };
        let mut panics = FirstPanic::default();
        for mut waiter in waiters {
            panics.catch(|| waiter.complete(Err(error)));
        }
        panics.resume();
    }

    /// Takes a parked request out to cancel it.
    pub(crate) fn cancel(&self, id: RequestId) -> bool {
        let taken = {
            let mut queue = self.queue.lock();
            let place = queue.waiters.iter().position(|waiter| waiter.id() == id);
            place.and_then(|n| queue.waiters.remove(n))
        };
        taken
            .map(|mut waiter| waiter.complete(Err(Error::Cancelled)))
            .is_some()
    }

    pub(super) fn listen(&self, handler: Option<Handler>) {
        let listened = handler.is_some();
        // Marked as not listening while the handlers are exchanged, so no event is taken without a handler.
        self.queue.lock().listened = false;
        let old = std::mem::replace(&mut *self.handler.lock(), handler);
        {
            let mut queue = self.queue.lock();
            queue.listened = listened;
            queue.generation += 1;
        }
        // A destructor of the client's, run under no lock.
        drop(old);
    }

    pub(super) fn push(&self, event: AsyncEvent) {
        let mut queue = self.queue.lock();
        if queue.events.len() >= MAX_WAITING {
            queue.events.pop_front();
            self.lost.fetch_add(1, Relaxed);
        }
        queue.events.push_back(event);
    }

    /// The watchers that are there; those that have gone are forgotten.
    pub(super) fn watchers(&self) -> Vec<Arc<dyn EventWatcher>> {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Has `watcher` see every event from now on.
    pub(super) fn watch(&self, watcher: &Arc<dyn EventWatcher>) {
        self.watchers.lock().push(Arc::downgrade(watcher));
    }

    /// Keeps the event if its object has not been announced.
    pub(super) fn hold(&self, announced: &AtomicBool, event: AsyncEvent) -> bool {
        let mut queue = self.queue.lock();
        let held = !announced.load(Relaxed);
        if held {
            queue.held.push(event);
        }
        held
    }

    /// Lets the object's events go, and says what there was.
    pub(super) fn announce(&self, announced: &AtomicBool, object: ObjectId) -> Announced {
        let mut queue = self.queue.lock();
        announced.store(true, Relaxed);
        let subject = Subject::Object(object);
        let before = queue.events.len();
        let (mine, others) = std::mem::take(&mut queue.held)
            .into_iter()
            .partition(|e| e.subject == subject);
        queue.held = others;
        let mine: Vec<AsyncEvent> = mine;
        let all = mine.len();
        let is_end = |e: &AsyncEvent| e.event == EventType::DeviceFatal;
        queue.events.extend(mine.into_iter().filter(|e| !is_end(e)));
        let events = queue.events.len() - before;
        Announced {
            has_events: events > 0,
            has_ended: all > events,
        }
    }

    pub(super) fn deliver(&self) {
        let mut panics = FirstPanic::default();
        loop {
            while self.deliver_one(&mut panics) {}
            if !self.calls.again() {
                break;
            }
        }
        panics.resume();
    }

    /// Hands one event to the handler or to a parked request; `false` when there is no event, or neither of these.
    fn deliver_one(&self, panics: &mut FirstPanic) -> bool {
        let (event, waiter, generation) = {
            let mut queue = self.queue.lock();
            let waiter = if queue.listened {
                None
            } else if queue.events.is_empty() {
                return false;
            } else {
                match queue.waiters.pop_front() {
                    Some(waiter) => Some(waiter),
                    None => return false,
                }
            };
            let Some(event) = queue.events.pop_front() else {
                return false;
            };
            (event, waiter, queue.generation)
        };
        match waiter {
            Some(mut waiter) => {
                panics.catch(|| waiter.complete(Ok(event)));
                true
            }
            None => self.handle(event, generation, panics),
        }
    }

    /// `false`: the handler is being exchanged; the thread that does so delivers again.
    /// A handler that panics is called for later events as well.
    fn handle(&self, event: AsyncEvent, generation: u64, panics: &mut FirstPanic) -> bool {
        let handler = self.handler.lock().take();
        let Some(mut handler) = handler else {
            self.queue.lock().events.push_front(event);
            return false;
        };
        panics.catch(|| handler(event));
        let mut place = self.handler.lock();
        let is_current = self.queue.lock().generation == generation && place.is_none();
        if is_current {
            *place = Some(handler);
            return true;
        }
        drop(place);
        // A destructor of the client's, run under no lock.
        panics.catch(|| drop(handler));
        true
    }
}

#[cfg(all(test, verbs_loom))]
mod loom_tests {
    //! Tried with `hold` looking at `announced` before it takes the lock: the event is held for ever.

    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::object::ObjectKind;

    #[test]
    fn loom_k14_an_event_during_create_is_delivered_once_and_not_before() {
        loom::model(|| {
            let shared = Arc::new((EventHub::default(), AtomicBool::new(false)));
            let (kind, number) = (ObjectKind::Qp, 7);
            let object = ObjectId { kind, number };
            let event = AsyncEvent {
                event: EventType::CommEst,
                subject: Subject::Object(object),
            };
            let other = Arc::clone(&shared);
            let raising = thread::spawn(move || {
                if !other.0.hold(&other.1, event) {
                    assert!(other.1.load(Relaxed), "out before the create was delivered");
                    other.0.push(event);
                }
            });
            shared.0.announce(&shared.1, object);
            raising.join().unwrap();
            let queue = shared.0.queue.lock();
            assert_eq!((queue.events.len(), queue.held.len()), (1, 0));
        });
    }
}
