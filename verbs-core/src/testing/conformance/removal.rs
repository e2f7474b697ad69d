//! What clients without pending requests hear of a removal: K17.

use std::pin::pin;
use std::task::{Context, Wake, Waker};

use super::Make;
use crate::cq::Cq;
use crate::device::Device;
use crate::error::Error;
use crate::event::{AsyncEvent, EventType, Subject as About};
use crate::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire},
};
use crate::sync::{Arc, Mutex};
use crate::testing::Subject;

/// What every client hears.
const FATAL: AsyncEvent = AsyncEvent {
    event: EventType::DeviceFatal,
    subject: About::Device,
};

/// Counts calls.
#[derive(Debug, Default)]
struct Calls(AtomicUsize);

impl Calls {
    fn count(&self) -> usize {
        self.0.load(Acquire)
    }

    fn up(&self) {
        self.0.fetch_add(1, AcqRel);
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.up();
    }
}

/// The events that a handler has heard.
type Heard = Arc<Mutex<Vec<AsyncEvent>>>;

fn listen(device: &Device) -> Heard {
    let heard = Heard::default();
    let theirs = Arc::clone(&heard);
    device.on_event(move |event| theirs.lock().push(event));
    heard
}

fn queue(subject: &Subject, device: &Device, calls: &Arc<Calls>) -> Cq {
    let calls = Arc::clone(calls);
    subject.must(device.create_cq(4).handler(move || calls.up()))
}

/// A client that only waits finds out, in each way in which it can wait, and once.
pub fn k17_an_idle_client_hears_of_the_removal(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let (heard, called) = (listen(&device), Arc::new(Calls::default()));
    let handled = queue(&subject, &device, &called);
    let mut awaited = subject.must(device.create_cq(4));
    let (fatal_woken, ready_woken) = (Arc::new(Calls::default()), Arc::new(Calls::default()));
    let (fatal, ready) = (
        Waker::from(Arc::clone(&fatal_woken)),
        Waker::from(Arc::clone(&ready_woken)),
    );
    let (mut fatal, mut ready) = (Context::from_waker(&fatal), Context::from_waker(&ready));
    let mut end = pin!(device.fatal());
    assert!(end.as_mut().poll(&mut fatal).is_pending());
    assert!(awaited.poll_ready(&mut ready).is_pending());
    if !subject.take_away() {
        return;
    }
    subject.until("a handler hears of the removal (K17)", || {
        !heard.lock().is_empty()
    });
    subject.until("a queue's handler is called", || called.count() > 0);
    subject.until("who waits for completions is woken", || {
        ready_woken.count() > 0
    });
    subject.until("who waits for the end is woken", || fatal_woken.count() > 0);
    subject.take_away();
    for _ in 0..4 {
        subject.advance();
    }
    assert_eq!(*heard.lock(), [FATAL], "a handler hears of it once (K17)");
    assert_eq!(called.count(), 1, "a queue's handler is called once");
    assert_eq!(
        end.poll(&mut fatal),
        std::task::Poll::Ready(Error::DeviceRemoved)
    );
    assert_eq!(
        awaited.poll_ready(&mut ready),
        std::task::Poll::Ready(Err(Error::DeviceRemoved)),
        "an idle queue of a removed device"
    );
    assert_eq!(
        subject.must_fail(device.next_event()),
        Error::DeviceRemoved,
        "the handler has taken the event"
    );
    drop((handled, awaited));
    subject.until("queues of a removed device go", || device.objects() == 0);
    subject.must(device.close());
}

/// What was raised before comes before it, and it waits for a client that asks late. A parked request
/// is told in its own way.
pub fn k17_whoever_asks_later_hears_of_the_removal(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let port = About::Port(1);
    device.target().raise(EventType::PortErr, port);
    if !subject.take_away() {
        return;
    }
    let heard = listen(&device);
    subject.until("a late handler hears of the removal (K17)", || {
        heard.lock().last() == Some(&FATAL)
    });
    let events: Vec<_> = heard.lock().iter().map(|event| event.event).collect();
    assert_eq!(events, [EventType::PortErr, EventType::DeviceFatal]);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(device.fatal()).poll(&mut context).is_ready());
    subject.must(device.close());

    let subject = make();
    let device = subject.device();
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let _ = device
        .next_event()
        .issue(move |result| *theirs.lock() = Some(result));
    subject.take_away();
    subject.until("a parked request ends (K15)", || place.lock().is_some());
    assert_eq!(*place.lock(), Some(Err(Error::DeviceRemoved)));
    subject.must(device.close());
}
