//! Asynchronous events.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use verbs_core::{AsyncEvent, Device, EventType, ObjectId, ObjectKind, Subject};

use crate::abi;
use crate::call::{Errno, number};
use crate::cq::Cq;
use crate::device::Context;
use crate::inbox::Inbox;
use crate::live::{Unacknowledged, look};
use crate::qp::Qp;
use crate::srq::Srq;

/// An event that waits for the program.
#[derive(Clone, Copy)]
pub(crate) struct Raised {
    event: EventType,
    subject: About,
}

/// What an event is about.
#[derive(Clone, Copy)]
enum About {
    Device,
    Port(u8),
    /// An object, by its address.
    Object(ObjectKind, usize),
}

/// Has the device's events go to `events`.
pub(crate) fn listen(
    device: &Device,
    events: &Arc<Inbox<Raised>>,
    subjects: &Arc<Mutex<HashMap<ObjectId, usize>>>,
) {
    let (events, subjects) = (Arc::clone(events), Arc::clone(subjects));
    device.on_event(move |AsyncEvent { event, subject }| {
        let subject = match subject {
            Subject::Device => About::Device,
            Subject::Port(port) => About::Port(port),
            Subject::Object(id) => match subjects.lock().get(&id) {
                Some(&at) => About::Object(id.kind, at),
                None => return,
            },
        };
        events.push(Raised { event, subject });
    });
}

impl Context {
    /// The object at that address is one that events may be about.
    pub(crate) fn watch(&self, kind: ObjectKind, number: u32, at: usize) {
        self.subjects.lock().insert(ObjectId { kind, number }, at);
    }

    /// It is being destroyed: it is not heard of any more. Waits until what the program has taken is acknowledged.
    pub(crate) fn unwatch(
        &self,
        kind: ObjectKind,
        number: u32,
        at: usize,
        unacknowledged: &Unacknowledged,
    ) {
        let id = ObjectId { kind, number };
        let mut subjects = self.subjects.lock();
        // Numbers are used again: it may be another object's by now.
        if subjects.get(&id) == Some(&at) {
            subjects.remove(&id);
        }
        drop(subjects);
        let mine =
            |raised: &Raised| matches!(raised.subject, About::Object(_, other) if other == at);
        self.events.purge(mine);
        unacknowledged.wait();
    }
}

/// The count of an object's events; `None` for what is no object.
///
/// # Safety
/// The object is not being destroyed: its events were not purged.
unsafe fn count_of<'a>(kind: ObjectKind, at: usize) -> Option<&'a Unacknowledged> {
    let shown = std::ptr::with_exposed_provenance::<u8>(at);
    // SAFETY: the caller's.
    unsafe {
        match kind {
            ObjectKind::Cq => look::<Cq, _>(shown).ok().map(|cq| &cq.async_events),
            ObjectKind::Qp => look::<Qp, _>(shown).ok().map(|qp| &qp.async_events),
            ObjectKind::Srq => look::<Srq, _>(shown).ok().map(|srq| &srq.async_events),
            _ => None,
        }
    }
}

/// `ibv_get_async_event`.
pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut abi::Context,
    event: *mut abi::AsyncEvent,
) -> c_int {
    number(|| {
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        let taken = |raised: &Raised| {
            if let About::Object(kind, at) = raised.subject {
                // SAFETY: it is in the queue, so it was not purged.
                if let Some(count) = unsafe { count_of(kind, at) } {
                    count.taken();
                }
            }
        };
        let raised = context.events.take(taken)?;
        let element = match raised.subject {
            About::Device => 0,
            About::Port(port) => u64::from(port),
            About::Object(_, at) => at as u64,
        };
        let event_type = raised.event as u32;
        // SAFETY: where the program wants it.
        unsafe {
            event.write(abi::AsyncEvent {
                element,
                event_type,
            });
        }
        Ok(0)
    })
}

/// `ibv_ack_async_event`.
pub(crate) unsafe extern "C" fn ack_async_event(event: *mut abi::AsyncEvent) {
    number(|| {
        // SAFETY: an event that get_async_event has filled, so its object waits for this.
        let event = unsafe { event.as_ref() }.ok_or(Errno::INVAL)?;
        let kind = match event.event_type {
            // A completion queue's.
            0 => ObjectKind::Cq,
            // Queue pairs', and that a shared queue's last receive was taken.
            1..=7 | 16 => ObjectKind::Qp,
            14 | 15 => ObjectKind::Srq,
            _ => return Ok(0),
        };
        // SAFETY: as above.
        if let Some(count) = unsafe { count_of(kind, event.element as usize) } {
            count.acknowledge(1);
        }
        Ok(0)
    });
}
