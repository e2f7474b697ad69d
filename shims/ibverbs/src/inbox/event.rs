//! Asynchronous events: those that wait for the program, and those that it has not acknowledged.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use verbs_core::{AsyncEvent, Device, EventType, ObjectId, Subject};

use crate::call::live::Unacknowledged;
use crate::inbox::Inbox;

/// An event that waits for the program.
#[derive(Clone)]
pub(crate) struct Raised {
    pub(crate) event: EventType,
    pub(crate) subject: About,
}

/// The subject of an event.
#[derive(Clone)]
pub(crate) enum About {
    Device,
    Port(u8),
    /// An object, by its address.
    Object(usize, Arc<Unacknowledged>),
}

/// Addresses of objects, and their unacknowledged events.
type Subjects = HashMap<ObjectId, (usize, Arc<Unacknowledged>)>;

/// The events of an open device.
#[derive(Clone)]
pub(crate) struct Events {
    pub(crate) inbox: Arc<Inbox<Raised>>,
    /// The subjects of events, by their numbers.
    subjects: Arc<Mutex<Subjects>>,
}

/// The subjects of events, by their addresses: a program that acknowledges an event names nothing else.
static WATCHED: Mutex<Option<HashMap<usize, Arc<Unacknowledged>>>> = Mutex::new(None);

/// An object whose events are delivered, until [`end`](Self::end).
pub(crate) struct Watched {
    events: Events,
    id: ObjectId,
    at: usize,
    unacknowledged: Arc<Unacknowledged>,
}

impl Events {
    /// Delivers the device's events to `inbox`.
    pub(crate) fn of(device: &Device, inbox: Inbox<Raised>) -> Self {
        let this = Self {
            inbox: Arc::new(inbox),
            subjects: Arc::default(),
        };
        let events = this.clone();
        device.on_event(move |AsyncEvent { event, subject }| {
            // Held until the event waits: an object that ends looks for its events after it has left the table.
            let subjects = events.subjects.lock();
            let subject = match subject {
                Subject::Device => About::Device,
                Subject::Port(port) => About::Port(port),
                Subject::Object(id) => match subjects.get(&id) {
                    Some((at, count)) => About::Object(*at, Arc::clone(count)),
                    None => return,
                },
            };
            events.inbox.push(Raised { event, subject });
        });
        this
    }

    /// Events may concern the object at that address from now on.
    pub(crate) fn watch(&self, id: ObjectId, at: usize) -> Watched {
        let unacknowledged = Arc::<Unacknowledged>::default();
        let mut watched = WATCHED.lock();
        let watched = watched.get_or_insert_default();
        watched.insert(at, Arc::clone(&unacknowledged));
        self.subjects
            .lock()
            .insert(id, (at, Arc::clone(&unacknowledged)));
        Watched {
            events: self.clone(),
            id,
            at,
            unacknowledged,
        }
    }
}

impl Watched {
    /// The object is being destroyed: no further events of it are delivered. Waits until the program has acknowledged
    /// those that it has taken.
    pub(crate) fn end(&self) {
        let mut subjects = self.events.subjects.lock();
        // Numbers are reused: it may be another object's by now.
        if subjects.get(&self.id).is_some_and(|(at, _)| *at == self.at) {
            subjects.remove(&self.id);
        }
        drop(subjects);
        let mine =
            |raised: &Raised| matches!(raised.subject, About::Object(at, _) if at == self.at);
        self.events.inbox.purge(mine);
        self.unacknowledged.wait();
        if let Some(watched) = &mut *WATCHED.lock() {
            watched.remove(&self.at);
        }
    }
}

/// The program has acknowledged an event about the object at that address.
pub(crate) fn acknowledge(at: usize) {
    let watched = WATCHED.lock();
    let count = watched
        .as_ref()
        .and_then(|watched| watched.get(&at))
        .cloned();
    drop(watched);
    if let Some(count) = count {
        count.acknowledge(1);
    }
}
