//! Code of the client's that panics takes nothing from others, and is never run twice at a time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use verbs_core::device::DeviceCore;
use verbs_core::event::EventWatcher;
use verbs_core::testing::{Hold, Null};
use verbs_core::{
    AnyCommand, Arm, Armed, AsyncEvent, ClientQueue, CompletionChannel, CqNotify, Device,
    EventType, Provider, RawCq, Shared, Subject, Wc, collect, no_block,
};

/// Keeps what a provider announces with, and pushes nothing.
#[derive(Default)]
struct Fires {
    null: Null,
    device: Mutex<Option<Arc<DeviceCore>>>,
    notify: Mutex<Vec<Arc<CqNotify>>>,
}

impl Provider for Fires {
    fn issue(&self, command: AnyCommand<'_>) {
        match &command {
            AnyCommand::OpenDevice(command) => {
                *self.device.lock().unwrap() = Some(Arc::clone(command.target()));
            }
            AnyCommand::CreateCq(command) => {
                self.notify
                    .lock()
                    .unwrap()
                    .push(Arc::clone(&command.notify));
            }
            _ => {}
        }
        self.null.issue(command);
    }
}

impl Fires {
    fn open() -> (Arc<Self>, Device) {
        let provider = Arc::new(Self::default());
        let device = Device::open(provider.clone()).wait().unwrap();
        (provider, device)
    }

    fn notify(&self, n: usize) -> Arc<CqNotify> {
        Arc::clone(&self.notify.lock().unwrap()[n])
    }

    fn device(&self) -> Arc<DeviceCore> {
        self.device.lock().unwrap().clone().unwrap()
    }
}

/// What `call` panics with.
fn panic_of(call: impl FnOnce()) -> &'static str {
    let payload = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    payload
        .downcast_ref::<&str>()
        .copied()
        .unwrap_or("another panic")
}

fn counter() -> (Arc<AtomicU32>, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    (Arc::clone(&count), count)
}

/// A waker that counts, and then panics if it is to.
struct Counts(Arc<AtomicU32>, Option<&'static str>);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        assert!(no_block(), "K3");
        self.0.fetch_add(1, SeqCst);
        if let Some(text) = self.1 {
            panic!("{}", text);
        }
    }
}

fn waker(count: &Arc<AtomicU32>) -> Waker {
    Waker::from(Arc::new(Counts(Arc::clone(count), None)))
}

#[test]
fn of_several_routines_that_panic_in_one_trampoline_all_run_and_the_first_is_told() {
    let device = Arc::new(Device::open(Arc::new(Null::default())).wait().unwrap());
    let (ran, theirs) = counter();
    let told = panic_of(|| {
        let inner = Arc::clone(&device);
        let _ = device.alloc_pd().issue(move |_| {
            for text in ["second", "third"] {
                let ran = Arc::clone(&theirs);
                let _ = inner.alloc_pd().issue(move |_| {
                    ran.fetch_add(1, SeqCst);
                    panic!("{}", text);
                });
            }
            theirs.fetch_add(1, SeqCst);
            std::panic::panic_any("first");
        });
    });
    assert_eq!((told, ran.load(SeqCst)), ("first", 3));
    assert!(!no_block(), "the level is lowered");
    // No thread unwinds: the first of those that were queued is told.
    let told = panic_of(|| {
        collect(|| {
            for text in ["one", "two"] {
                let _ = device
                    .alloc_pd()
                    .issue(move |_| std::panic::panic_any(text));
            }
        });
    });
    assert_eq!((told, no_block()), ("one", false));
}

#[test]
fn removal_completes_every_request_whatever_their_routines_do() {
    let hold = Hold::over(Arc::new(Null::default()));
    let place: Arc<Mutex<Option<Device>>> = Arc::default();
    let theirs = Arc::clone(&place);
    let _ = Device::open(hold.clone()).issue(move |device| *theirs.lock().unwrap() = device.ok());
    hold.run();
    let device = place.lock().unwrap().take().unwrap();
    let (ran, theirs) = counter();
    for text in ["first", "second", "third"] {
        let (ran, too) = (Arc::clone(&theirs), Arc::clone(&theirs));
        let _ = device.alloc_pd().issue(move |_| {
            ran.fetch_add(1, SeqCst);
            std::panic::panic_any(text);
        });
        let _ = device.next_event().issue(move |_| {
            too.fetch_add(1, SeqCst);
            std::panic::panic_any(text);
        });
        hold.step_nth(hold.len() - 1);
    }
    assert_eq!(
        panic_of(|| {
            device.target().remove();
        }),
        "first"
    );
    assert_eq!(ran.load(SeqCst), 6);
    assert!(device.in_flight().is_empty());
}

#[test]
fn an_event_reaches_waker_channel_and_handler_whichever_panics() {
    let (provider, device) = Fires::open();
    let channel = CompletionChannel::new().unwrap();
    let (handled, theirs) = counter();
    let mut cq = device
        .create_cq(4)
        .channel(&channel, 7)
        .handler(move || {
            theirs.fetch_add(1, SeqCst);
            std::panic::panic_any("handler");
        })
        .wait()
        .unwrap();
    let woken = Arc::new(AtomicU32::new(0));
    for round in 1..3 {
        let bad = Waker::from(Arc::new(Counts(Arc::clone(&woken), Some("waker"))));
        let _ = cq.poll_ready(&mut Context::from_waker(&bad));
        let told = panic_of(|| provider.notify(0).fire());
        assert_ne!(told, "handler", "the waker came first");
        assert_eq!((woken.load(SeqCst), handled.load(SeqCst)), (round, round));
        assert_eq!(channel.try_next().map(|event| event.token()), Some(7));
    }
}

#[test]
fn k4_a_waker_runs_when_the_thread_is_done_with_what_it_is_doing() {
    let (provider, device) = Fires::open();
    let mut cq = device.create_cq(4).wait().unwrap();
    let woken = Arc::new(AtomicU32::new(0));
    let _ = cq.poll_ready(&mut Context::from_waker(&waker(&woken)));
    collect(|| {
        provider.notify(0).fire();
        assert_eq!(woken.load(SeqCst), 0, "not within what fires");
    });
    assert_eq!(woken.load(SeqCst), 1);

    // As do those of futures, of client queues and of channels.
    let hold = Hold::over(Arc::new(Null::default()));
    let open = Device::open(hold.clone());
    let mut open = Box::pin(open.into_future());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(open.as_mut().poll(&mut cx).is_pending());
    hold.run();
    let Poll::Ready(Ok(slow)) = open.as_mut().poll(&mut cx) else {
        panic!("it is open");
    };
    let woken = Arc::new(AtomicU32::new(0));
    let mine = waker(&woken);
    let mut cx = Context::from_waker(&mine);
    let mut future = Box::pin(slow.alloc_pd().into_future());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    let queue = ClientQueue::new(4);
    let _ = device.alloc_pd().issue_on(&queue, |_| ()).unwrap();
    assert!(queue.run_one() && queue.poll_ready(&mut cx).is_pending());
    let events = device.event_channel().unwrap();
    let mut next = Box::pin(events.next());
    assert!(next.as_mut().poll(&mut cx).is_pending());
    collect(|| {
        hold.run();
        let _ = device.alloc_pd().issue_on(&queue, |_| ()).unwrap();
        provider
            .device()
            .raise(EventType::PortErr, Subject::Port(1));
        assert_eq!(woken.load(SeqCst), 0);
    });
    assert_eq!(woken.load(SeqCst), 3);
    assert!(future.as_mut().poll(&mut cx).is_ready());
    drop(next);
    queue.run();
}

#[test]
fn a_handler_of_events_that_panics_hears_the_later_ones_and_so_do_watchers() {
    struct Watches(AtomicU32);
    impl EventWatcher for Watches {
        fn event(&self, _: AsyncEvent) {
            self.0.fetch_add(1, SeqCst);
            std::panic::panic_any("watcher");
        }
    }
    let (provider, device) = Fires::open();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    device.on_event(move |event| {
        theirs.lock().unwrap().push(event.event);
        std::panic::panic_any("handler");
    });
    let watches: Vec<_> = (0..2)
        .map(|_| Arc::new(Watches(AtomicU32::new(0))))
        .collect();
    for watcher in &watches {
        let watcher: Arc<dyn EventWatcher> = watcher.clone();
        provider.device().watch_events(&watcher);
    }
    for event in [EventType::PortErr, EventType::PortActive] {
        let told = panic_of(|| {
            collect(|| provider.device().raise(event, Subject::Port(1)));
        });
        assert_eq!(told, "handler");
    }
    assert_eq!(
        *seen.lock().unwrap(),
        [EventType::PortErr, EventType::PortActive]
    );
    assert!(watches.iter().all(|watcher| watcher.0.load(SeqCst) == 2));
}

#[test]
fn a_client_queue_runs_every_routine_however_it_ends() {
    let device = Device::open(Arc::new(Null::default())).wait().unwrap();
    let ran = Arc::new(AtomicU32::new(0));
    let fill = |queue: &ClientQueue| {
        for text in ["first", "second", "third"] {
            let ran = Arc::clone(&ran);
            let routine = move |_| {
                ran.fetch_add(1, SeqCst);
                std::panic::panic_any(text);
            };
            let _ = device.query_port(1).issue_on(queue, routine).unwrap();
        }
    };
    let queue = ClientQueue::new(3);
    fill(&queue);
    assert_eq!(
        panic_of(|| {
            queue.run();
        }),
        "first"
    );
    assert_eq!((ran.load(SeqCst), queue.len()), (3, 0));
    fill(&queue);
    assert_eq!(panic_of(|| drop(queue)), "first");
    assert_eq!(ran.load(SeqCst), 6);
}

/// A completion queue whose poll comes back to it.
#[derive(Debug, Default)]
struct ComesBack(Arc<Mutex<Option<std::sync::Weak<Shared<verbs_core::Cq>>>>>);

impl RawCq for ComesBack {
    fn poll(&mut self, _: &mut [Wc]) -> usize {
        let me = self
            .0
            .lock()
            .unwrap()
            .as_ref()
            .and_then(std::sync::Weak::upgrade);
        me.map_or(0, |me| me.poll(&mut [Wc::default()]).len())
    }

    fn arm(&mut self, _: Arm) -> Armed {
        Armed::Empty
    }
}

/// Makes queues that come back.
#[derive(Default)]
struct Returns {
    null: Null,
    place: Arc<Mutex<Option<std::sync::Weak<Shared<verbs_core::Cq>>>>>,
}

impl Provider for Returns {
    fn issue(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::CreateCq(command) => {
                let (args, reply) = command.split();
                let raw = ComesBack(Arc::clone(&self.place));
                reply.complete(Ok(args.build(1, 16, Box::new(()), Box::new(raw))));
            }
            other => self.null.issue(other),
        }
    }
}

/// Goal: a provider that comes back from within a poll has the queue once, and does not wait for itself for
/// ever. Method: with one thread, and after a second one has used the queue.
#[test]
fn k4_a_provider_that_comes_back_to_a_shared_queue_is_refused() {
    for two in [false, true] {
        let provider = Arc::new(Returns::default());
        let device = Device::open(provider.clone()).wait().unwrap();
        let cq = Arc::new(Shared::new(device.create_cq(16).wait().unwrap()));
        assert!(cq.poll(&mut [Wc::default()]).is_empty());
        if two {
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(cq.poll(&mut [Wc::default()]).is_empty()));
            });
        }
        *provider.place.lock().unwrap() = Some(Arc::downgrade(&cq));
        let told = panic_of(|| {
            cq.poll(&mut [Wc::default()]);
        });
        assert!(told.contains("inside this shared queue already"), "{told}");
        *provider.place.lock().unwrap() = None;
        assert!(cq.poll(&mut [Wc::default()]).is_empty(), "it works on");
    }
}
