//! The events of a device: those that wait, the handler, parked requests, and what is held until a create is delivered.

use std::collections::VecDeque;

use super::kind::{AsyncEvent, EventType, EventWatcher, Subject, Undelivered};
use crate::command::{Command, Pending, RequestId};
use crate::device::DeviceCore;
use crate::error::Error;
use crate::object::header::User;
use crate::object::{Base, InUse, Target};
use crate::panics::FirstPanic;
use crate::routine;
use crate::sync::combiner::Combiner;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Mutex, Weak, atomic::Ordering::Relaxed};
use crate::verb::verb;

/// Events that wait for a client at most. A device without a listener loses the oldest ones
/// beyond that; they are counted.
pub const MAX_WAITING: usize = 4096;

/// Asks for the next event; arguments of the verb. It pends in the device until there is one.
#[derive(Debug)]
pub struct NextEvent(pub(super) ());

verb!(NextEvent, DeviceCore => AsyncEvent);

impl Command<'_, NextEvent> {
    /// Answers with an event that waits, or parks the request in the device: all that a provider
    /// does with this verb.
    pub fn park(self) {
        let device = Arc::clone(self.target());
        if let Some((_, pending)) = self.pend() {
            device.events.wait(pending);
        }
    }
}

impl EventType {
    /// Raises the event about an object on the object's device: see [`DeviceCore::raise_for`].
    pub fn raise_for<T: Target>(self, target: &Arc<T>) {
        T::device(target).raise_for(&**target, self);
    }
}

impl DeviceCore {
    /// Raises an event about the device or a port. For providers; hold no lock.
    ///
    /// [`EventType::DeviceFatal`] about the device says that it has failed. It is heard once: a device
    /// that has failed or was [removed](DeviceCore::remove) does not become unusable again.
    pub fn raise(self: &Arc<Self>, event: EventType, subject: Subject) {
        if (event, subject) == (EventType::DeviceFatal, Subject::Device) {
            if self.end(Error::DeviceFailed) {
                self.events.show(AsyncEvent { event, subject });
            }
            return;
        }
        let event = AsyncEvent { event, subject };
        self.events.push(event);
        self.deliver_events();
        self.events.show(event);
    }

    /// The device has become unusable, by failure or removal: the client hears so, once, as its last
    /// event of the device, and so do the tasks that wait for that or for completions. `false`: they have
    /// heard already.
    pub(crate) fn end(self: &Arc<Self>, reason: Error) -> bool {
        let Some(concerned) = self.fatal.end(reason) else {
            return false;
        };
        // Handlers run at the end: one that panics does not keep the others from hearing of it.
        routine::collect(|| {
            self.events.push(AsyncEvent {
                event: EventType::DeviceFatal,
                subject: Subject::Device,
            });
            self.deliver_events();
            concerned.tell(|queue| {
                if !self.events.hold_end(queue) {
                    queue.tell_end();
                }
            });
        });
        true
    }

    /// Raises an event about an object. It waits until the create's result has been delivered (K14)
    /// and is dropped when the object's destroy has been accepted (K11). For providers; hold no
    /// lock.
    pub fn raise_for(self: &Arc<Self>, target: &dyn Target, event: EventType) {
        let base = target.base();
        if base.header.is_closing() {
            return;
        }
        let event = AsyncEvent {
            event,
            subject: Subject::Object(base.id()),
        };
        if self.events.hold(base, event) {
            return;
        }
        self.events.push(event);
        self.deliver_events();
        self.events.show(event);
    }

    /// Has `watcher` see every event besides the client, from now until it is dropped: for services
    /// that share the device with its client, which still sees each event once.
    pub fn watch_events(&self, watcher: &Arc<dyn EventWatcher>) {
        self.events.watchers.lock().push(Arc::downgrade(watcher));
    }

    /// Tells services that the network has reported a management datagram as not delivered. For
    /// providers; hold no lock.
    pub fn report_undelivered(&self, mad: Undelivered) {
        self.events
            .each_watcher(move |watcher| watcher.undelivered(mad));
    }

    /// The result of the create has been delivered: its events may go.
    pub(crate) fn announce(self: &Arc<Self>, target: &dyn Target) {
        let announced = self.events.announce(target.base());
        if announced.has_events {
            self.deliver_events();
        }
        if announced.has_ended {
            target.tell_end();
        }
    }

    pub(super) fn deliver_events(self: &Arc<Self>) {
        if !self.events.calls.enter() {
            return;
        }
        let target: Arc<dyn Target> = Arc::<Self>::clone(self);
        // A device whose close was accepted hears nothing more; the thread that closes it drops the rest.
        let Some(in_use) = InUse::try_enter(target, User::Handler) else {
            return;
        };
        let core = Arc::clone(self);
        routine::defer(move || {
            core.events.deliver();
            drop(in_use);
        });
    }
}

type Handler = Box<dyn FnMut(AsyncEvent) + Send>;

/// A device's events and the requests that wait for them.
#[derive(Default)]
pub(crate) struct EventHub {
    queue: Mutex<Queue>,
    /// Taken out while it runs, so that no lock is held then (K4).
    handler: Mutex<Option<Handler>>,
    calls: Combiner,
    pub(super) lost: AtomicU64,
    watchers: Mutex<Vec<Weak<dyn EventWatcher>>>,
}

/// What waited for the delivery of a create.
struct Announced {
    has_events: bool,
    /// The device has become unusable.
    has_ended: bool,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<AsyncEvent>,
    waiters: VecDeque<Pending<NextEvent>>,
    /// Events of objects whose create has not been delivered.
    held: Vec<AsyncEvent>,
    listened: bool,
    /// The device's close was accepted, or the device has gone.
    closed: bool,
    /// Counts calls of `listen`, so that a handler that ran is not put back over its successor.
    generation: u64,
}

impl EventHub {
    fn wait(&self, pending: Pending<NextEvent>) {
        let event = {
            let mut queue = self.queue.lock();
            match queue.events.pop_front() {
                Some(event) => Ok(event),
                // The canceller marks the request, then looks here under the lock: one of us sees it.
                None if pending.cancelled() => Err(Error::Cancelled),
                None if queue.closed => Err(Error::Closing),
                None => {
                    queue.waiters.push_back(pending);
                    return;
                }
            }
        };
        pending.complete(event);
    }

    /// There will be no further events: completes all parked requests.
    pub(crate) fn close(&self, error: Error) {
        let waiters = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.waiters)
        };
        let mut panics = FirstPanic::default();
        for waiter in waiters {
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
            .map(|waiter| waiter.complete(Err(Error::Cancelled)))
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

    fn push(&self, event: AsyncEvent) {
        let mut queue = self.queue.lock();
        if queue.events.len() >= MAX_WAITING {
            queue.events.pop_front();
            self.lost.fetch_add(1, Relaxed);
        }
        queue.events.push_back(event);
    }

    /// Shows the event to the watchers.
    fn show(&self, event: AsyncEvent) {
        self.each_watcher(move |watcher| watcher.event(event));
    }

    /// Tells the watchers that the device has gone.
    pub(crate) fn tell_removed(&self) {
        self.each_watcher(|watcher| watcher.removed());
    }

    /// Calls the watchers, and forgets those that have gone.
    fn each_watcher(&self, call: impl Fn(&dyn EventWatcher) + Copy + Send + 'static) {
        let watchers: Vec<_> = {
            let mut watchers = self.watchers.lock();
            watchers.retain(|watcher| watcher.strong_count() > 0);
            watchers.iter().filter_map(Weak::upgrade).collect()
        };
        let mut panics = FirstPanic::default();
        for watcher in watchers {
            panics.catch(|| routine::defer(move || call(&*watcher)));
        }
        panics.resume();
    }

    /// Keeps the event if the object has not been announced.
    fn hold(&self, base: &Base, event: AsyncEvent) -> bool {
        let mut queue = self.queue.lock();
        let held = !base.announced.load(Relaxed);
        if held {
            queue.held.push(event);
        }
        held
    }

    /// As [`EventHub::hold`], for the end of the device, of which the object tells by itself.
    pub(crate) fn hold_end(&self, target: &dyn Target) -> bool {
        let base = target.base();
        let event = AsyncEvent {
            event: EventType::DeviceFatal,
            subject: Subject::Object(base.id()),
        };
        self.hold(base, event)
    }

    /// Lets the object's events go, and says what there was.
    fn announce(&self, base: &Base) -> Announced {
        let mut queue = self.queue.lock();
        base.announced.store(true, Relaxed);
        let subject = Subject::Object(base.id());
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

    fn deliver(&self) {
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
            Some(waiter) => {
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
    use crate::object::{Base, ObjectKind};

    #[test]
    fn loom_k14_an_event_during_create_is_delivered_once_and_not_before() {
        loom::model(|| {
            let shared = Arc::new((EventHub::default(), Base::root(ObjectKind::Qp, 7)));
            shared.1.announced.store(false, Relaxed);
            let event = AsyncEvent {
                event: EventType::CommEst,
                subject: Subject::Object(shared.1.id()),
            };
            let other = Arc::clone(&shared);
            let raising = thread::spawn(move || {
                if !other.0.hold(&other.1, event) {
                    assert!(
                        other.1.announced.load(Relaxed),
                        "out before the create was delivered"
                    );
                    other.0.push(event);
                }
            });
            shared.0.announce(&shared.1);
            raising.join().unwrap();
            let queue = shared.0.queue.lock();
            assert_eq!((queue.events.len(), queue.held.len()), (1, 0));
        });
    }
}
