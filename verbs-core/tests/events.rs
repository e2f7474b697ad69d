//! Asynchronous events: which client sees them, when, and how often (K14, K17).
#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use futures::executor::block_on;
use futures::future::{Either, select};
use verbs_core::device::DeviceCore;
use verbs_core::testing::{Hold, Null};
use verbs_core::{
    AnyCommand, AsyncEvent, Device, Error, EventType, Issued, Provider, QpInit, RequestId, Subject,
    Target, collect, no_block,
};

/// A provider that hands its device out, so that the test can raise events, and raises one about
/// every queue pair while it is being created.
#[derive(Default)]
struct Raises {
    null: Null,
    device: Mutex<Option<Arc<DeviceCore>>>,
}

impl Raises {
    fn device(&self) -> Arc<DeviceCore> {
        self.device.lock().unwrap().clone().unwrap()
    }
}

impl Provider for Raises {
    fn issue(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::OpenDevice(command) => {
                *self.device.lock().unwrap() = Some(Arc::clone(command.target()));
                self.null.issue(AnyCommand::OpenDevice(command));
            }
            other => self.null.issue(other),
        }
    }
}

fn open() -> (Arc<Raises>, Device) {
    let provider = Arc::new(Raises::default());
    let device = Device::open(provider.clone()).wait().unwrap();
    (provider, device)
}

const PORT: Subject = Subject::Port(1);

#[test]
fn k17_parked_requests_take_events_in_turn_and_each_event_once() {
    let (provider, device) = open();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for waiter in 0..2 {
        let seen = Arc::clone(&seen);
        let _ = device
            .next_event()
            .issue(move |event| seen.lock().unwrap().push((waiter, event.unwrap().event)));
    }
    for event in [
        EventType::PortErr,
        EventType::PortActive,
        EventType::LidChange,
    ] {
        provider.device().raise(event, PORT);
    }
    assert_eq!(
        *seen.lock().unwrap(),
        [(0, EventType::PortErr), (1, EventType::PortActive)]
    );
    let third = device.next_event().wait().unwrap();
    assert_eq!(
        third,
        AsyncEvent {
            event: EventType::LidChange,
            subject: PORT
        }
    );
    assert_eq!(third.to_string(), "LID change (port 1)");
}

#[test]
fn k17_a_handler_sees_what_waited_and_what_comes_under_no_block() {
    let (provider, device) = open();
    provider.device().raise(EventType::PortErr, PORT);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    device.on_event(move |event| {
        assert!(no_block());
        theirs.lock().unwrap().push(event.event);
    });
    provider.device().raise(EventType::PortActive, PORT);
    collect(|| {
        provider.device().raise(EventType::SmChange, PORT);
        assert_eq!(seen.lock().unwrap().len(), 2, "a handler does not nest");
    });
    assert_eq!(
        *seen.lock().unwrap(),
        [
            EventType::PortErr,
            EventType::PortActive,
            EventType::SmChange
        ]
    );
    device.ignore_events();
    provider.device().raise(EventType::LidChange, PORT);
    assert_eq!(
        device.next_event().wait().unwrap().event,
        EventType::LidChange
    );
}

#[test]
fn k14_a_handler_that_raises_is_called_again_not_nested() {
    let (provider, device) = open();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (theirs, core) = (Arc::clone(&seen), provider.device());
    device.on_event(move |event| {
        theirs.lock().unwrap().push(format!("in {}", event.event));
        if event.event == EventType::PortErr {
            core.raise(EventType::PortActive, PORT);
        }
        theirs.lock().unwrap().push(format!("out {}", event.event));
    });
    provider.device().raise(EventType::PortErr, PORT);
    assert_eq!(
        *seen.lock().unwrap(),
        [
            "in port error",
            "out port error",
            "in port active",
            "out port active"
        ]
    );
}

/// Goal: a routine that panics takes no event of the object that it has kept. Method: inline, where the
/// provider completes at once, and behind what the thread is doing.
#[test]
fn k14_a_creates_routine_that_panics_does_not_take_the_objects_events() {
    let raises = Arc::new(Raises::default());
    let device = Device::open(raises.clone()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(4).wait().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&log);
    device.on_event(move |event| theirs.lock().unwrap().push(event.event));
    for nested in [false, true] {
        let (core, place) = (raises.device(), Arc::new(Mutex::new(None)));
        let kept = Arc::clone(&place);
        let create = || {
            let _ = pd.create_qp(QpInit::rc(&cq, &cq)).issue(move |qp| {
                let qp = qp.unwrap();
                core.raise_for(&**qp.target(), EventType::CommEst);
                *kept.lock().unwrap() = Some(qp);
                panic_any("the routine");
            });
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| match nested {
            false => create(),
            true => collect(create),
        }));
        assert_eq!(
            outcome.unwrap_err().downcast_ref(),
            Some(&"the routine"),
            "nested: {nested}"
        );
        let heard = std::mem::take(&mut *log.lock().unwrap());
        assert_eq!(heard, [EventType::CommEst], "nested: {nested}");
        assert!(place.lock().unwrap().is_some());
    }
}

#[test]
fn k14_events_wait_for_the_delivery_of_the_create() {
    /// Raises an event about the queue pair between its completion and its routine.
    struct Early {
        raises: Arc<Raises>,
        hold: Arc<Hold>,
    }
    impl Provider for Early {
        fn issue(&self, command: AnyCommand<'_>) {
            match command {
                AnyCommand::CreateQp(_) => self.hold.issue(command),
                other => self.raises.issue(other),
            }
        }
        fn cancel(&self, id: RequestId) {
            self.hold.cancel(id);
        }
    }
    let raises = Arc::new(Raises::default());
    let hold = Hold::over(raises.clone());
    let device = Device::open(Arc::new(Early {
        raises: raises.clone(),
        hold: hold.clone(),
    }))
    .wait()
    .unwrap();
    let (pd, cq) = (
        device.alloc_pd().wait().unwrap(),
        device.create_cq(4).wait().unwrap(),
    );
    let log = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&log);
    device.on_event(move |event| theirs.lock().unwrap().push(event.event.to_string()));
    let (theirs, core) = (Arc::clone(&log), raises.device());
    let place = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&place);
    let _ = pd.create_qp(QpInit::rc(&cq, &cq)).issue(move |qp| {
        let qp = qp.unwrap();
        core.raise_for(&**qp.target(), EventType::CommEst);
        theirs.lock().unwrap().push("routine".into());
        *kept.lock().unwrap() = Some(qp);
    });
    hold.run();
    assert_eq!(
        *log.lock().unwrap(),
        ["routine", "communication established"]
    );
    let qp = place.lock().unwrap().take().unwrap();
    raises
        .device()
        .raise_for(&**qp.target(), EventType::SqDrained);
    assert_eq!(log.lock().unwrap().len(), 3, "later events go at once");
    let core = Arc::clone(qp.target());
    qp.destroy().wait().unwrap();
    raises
        .device()
        .raise_for(&*core as &dyn Target, EventType::QpFatal);
    assert_eq!(
        log.lock().unwrap().len(),
        3,
        "nothing is heard of a destroyed object (K11)"
    );
}

#[test]
fn a_parked_request_can_be_cancelled_and_ends_with_the_device() {
    let (provider, device) = open();
    let results = Arc::new(Mutex::new(Vec::new()));
    let park = |results: &Arc<Mutex<Vec<_>>>| {
        let results = Arc::clone(results);
        device
            .next_event()
            .issue(move |event| results.lock().unwrap().push(event.unwrap_err()))
    };
    let Issued::Pending(handle) = park(&results) else {
        panic!("there is no event")
    };
    assert!(handle.cancel());
    assert_eq!(*results.lock().unwrap(), [Error::Cancelled]);
    let _ = park(&results);
    assert_eq!(provider.device().remove(), 0, "parked requests end first");
    assert_eq!(
        *results.lock().unwrap(),
        [Error::Cancelled, Error::DeviceRemoved]
    );

    let (_provider, device) = open();
    let theirs = Arc::clone(&results);
    let _ = device
        .next_event()
        .issue(move |event| theirs.lock().unwrap().push(event.unwrap_err()));
    device.close().wait().unwrap();
    assert_eq!(results.lock().unwrap()[2], Error::Closing);
}

#[test]
fn k14_a_queue_hears_of_the_removal_when_its_create_has_been_delivered() {
    let (provider, device) = open();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (routine, handler) = (Arc::clone(&log), Arc::clone(&log));
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    collect(|| {
        let create = device
            .create_cq(4)
            .handler(move || handler.lock().unwrap().push("handler"));
        let _ = create.issue(move |cq| {
            routine.lock().unwrap().push("create");
            *theirs.lock().unwrap() = cq.ok();
        });
        provider.device().remove();
        assert!(log.lock().unwrap().is_empty(), "not under NoBlock");
    });
    assert_eq!(*log.lock().unwrap(), ["create", "handler"]);
    drop(place.lock().unwrap().take());
}

#[test]
fn whoever_waits_for_the_end_hears_of_a_failure_a_removal_or_a_close_once() {
    let (provider, device) = open();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    device.on_event(move |event| theirs.lock().unwrap().push(event.event));
    let (first, second) = (device.fatal(), device.fatal());
    provider
        .device()
        .raise(EventType::DeviceFatal, Subject::Device);
    assert_eq!(block_on(first), Error::DeviceFailed);
    provider.device().remove();
    provider
        .device()
        .raise(EventType::DeviceFatal, Subject::Device);
    assert_eq!(block_on(second), Error::DeviceFailed, "the first of them");
    assert_eq!(block_on(device.fatal()), Error::DeviceFailed);
    assert_eq!(*seen.lock().unwrap(), [EventType::DeviceFatal]);

    let (_provider, device) = open();
    let cq = device.create_cq(4).wait().unwrap();
    let closing = device.fatal();
    let close = device.close_when_idle().issue(|result| result.unwrap());
    assert_eq!(block_on(closing), Error::Closing);
    drop((cq, close));
}

/// A device whose close waits for its queues can still be removed, and they hear of it.
#[test]
fn queues_hear_of_the_removal_of_a_device_that_waits_for_its_close() {
    let (provider, device) = open();
    let mut cq = device.create_cq(4).wait().unwrap();
    let _ = device.close_when_idle().issue(drop);
    let core = provider.device();
    let gone = async {
        core.remove();
        std::future::pending::<std::convert::Infallible>().await
    };
    let (ready, gone) = (pin!(cq.ready()), pin!(gone));
    let Either::Left((ended, _)) = block_on(select(ready, gone));
    assert_eq!(ended, Err(Error::DeviceRemoved));
}

#[test]
fn a_waker_that_panics_keeps_nobody_from_hearing_of_the_end() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    struct Counts(AtomicU32);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let (provider, device) = open();
    let counts = Arc::new(Counts(AtomicU32::new(0)));
    let (bad, good) = (
        Waker::from(Arc::new(Panics)),
        Waker::from(Arc::clone(&counts)),
    );
    let mut futures = [device.fatal(), device.fatal()];
    for (future, waker) in futures.iter_mut().zip([&bad, &good]) {
        let mut context = Context::from_waker(waker);
        assert!(Pin::new(&mut *future).poll(&mut context).is_pending());
        // Asked again, it waits once.
        assert!(Pin::new(&mut *future).poll(&mut context).is_pending());
    }
    let mut dropped = device.fatal();
    let mut context = Context::from_waker(&good);
    assert!(Pin::new(&mut dropped).poll(&mut context).is_pending());
    drop(dropped);
    let removed = catch_unwind(AssertUnwindSafe(|| provider.device().remove()));
    assert!(removed.is_err(), "the panic is not hidden");
    assert_eq!(counts.0.load(Relaxed), 1);
    assert_eq!(provider.device().remove(), 0);
}
