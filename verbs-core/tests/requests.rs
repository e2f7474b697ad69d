//! The contract's rules on the control path, over the two providers for tests.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use verbs_core::testing::{Hold, Null};
use verbs_core::{
    AnyCommand, Device, Done, Error, Frame, Hook, Issued, Kind, ObjectKind, Origin, Provider,
    QpAttr, QpInit, QpState, RequestId, collect, no_block,
};

fn open(provider: Arc<dyn Provider>) -> Device {
    Device::open(provider).wait().unwrap()
}

/// A device whose commands the test passes on one by one, once it is open.
fn held() -> (Arc<Null>, Arc<Hold>, Device) {
    let null = Arc::new(Null::default());
    let hold = Hold::over(null.clone());
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let _ = Device::open(hold.clone()).issue(move |device| *theirs.lock().unwrap() = device.ok());
    hold.run();
    let device = place.lock().unwrap().take().unwrap();
    (null, hold, device)
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn three_front_ends_agree() {
    let device = open(Arc::new(Null::default()));
    let waited = device.query_port(1).wait().unwrap();
    let awaited = block_on(device.query_port(1).into_future()).unwrap();
    let seen = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&seen);
    let issued = device
        .query_port(1)
        .issue(move |r| *theirs.lock().unwrap() = Some(r.unwrap()));
    assert!(matches!(issued, Issued::Completed));
    let issued = *seen.lock().unwrap();
    assert_eq!((Some(waited), Some(awaited)), (issued, issued));
    let error = device.query_port(9).wait().unwrap_err();
    assert_eq!(
        error.to_string(),
        "port_num = 9 is out of range (at most 1)"
    );
}

#[test]
fn k1_the_routine_runs_after_the_provider_has_returned_and_never_nested() {
    /// Completes inline and then looks whether a routine ran in the meantime.
    struct Looks(Arc<AtomicU32>, Null);
    impl Provider for Looks {
        fn issue(&self, command: AnyCommand<'_>) {
            assert!(no_block(), "a provider runs under NoBlock");
            let before = self.0.load(SeqCst);
            self.1.issue(command);
            assert_eq!(
                self.0.load(SeqCst),
                before,
                "a routine ran in the provider's frame"
            );
        }
    }
    let ran = Arc::new(AtomicU32::new(0));
    let device = Arc::new(open(Arc::new(Looks(Arc::clone(&ran), Null::default()))));
    let (count, inner) = (Arc::clone(&ran), Arc::clone(&device));
    let _ = device.query_port(1).issue(move |_| {
        count.fetch_add(1, SeqCst);
        let again = Arc::clone(&count);
        let issued = inner.query_port(1).issue(move |_| {
            again.fetch_add(1, SeqCst);
        });
        assert!(matches!(issued, Issued::Completed));
        assert_eq!(count.load(SeqCst), 1, "`issue` under NoBlock returns first");
    });
    assert_eq!(ran.load(SeqCst), 2);
}

#[test]
fn k3_wait_under_no_block_refuses_and_has_no_effect() {
    let null = Arc::new(Null::default());
    let device = open(null.clone());
    collect(|| {
        assert!(matches!(device.alloc_pd().wait(), Err(Error::WouldBlock)));
        assert_eq!((null.live(), device.objects()), (0, 0));
    });
    let pd = device.alloc_pd().wait().unwrap();
    let refused = collect(|| pd.dealloc().wait()).unwrap_err();
    assert_eq!(refused.error, Error::WouldBlock);
    refused.handle.unwrap().dealloc().wait().unwrap();
}

#[test]
fn k5_a_million_chained_verbs_need_the_stack_of_one() {
    fn chain(device: Arc<Device>, left: u32, done: Arc<AtomicU32>) {
        let next = Arc::clone(&device);
        let _ = device.query_port(1).issue(move |_| match left {
            0 => done.store(1, SeqCst),
            _ => chain(next, left - 1, done),
        });
    }
    let small = std::thread::Builder::new().stack_size(64 * 1024);
    let run = || {
        let done = Arc::new(AtomicU32::new(0));
        chain(
            Arc::new(open(Arc::new(Null::default()))),
            1_000_000,
            Arc::clone(&done),
        );
        assert_eq!(done.load(SeqCst), 1);
    };
    small.spawn(run).unwrap().join().unwrap();
}

#[test]
fn k7_a_dropped_command_fails_and_returns_what_it_owned() {
    struct Drops(Null);
    impl Provider for Drops {
        fn issue(&self, command: AnyCommand<'_>) {
            match command.kind() {
                Kind::QueryPort | Kind::DeallocPd => drop(command),
                Kind::QueryDevice => drop(command.pend()),
                _ => self.0.issue(command),
            }
        }
    }
    let device = open(Arc::new(Drops(Null::default())));
    assert_eq!(device.query_port(1).wait().unwrap_err(), Error::Dropped);
    assert_eq!(device.query().wait().unwrap_err(), Error::Dropped);
    let refused = device
        .alloc_pd()
        .wait()
        .unwrap()
        .dealloc()
        .wait()
        .unwrap_err();
    assert_eq!(refused.error, Error::Dropped);
}

#[test]
fn k8_cancel_asks_the_provider_and_late_is_late() {
    let (_null, hold, device) = held();
    let result = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&result);
    let Issued::Pending(handle) = device
        .query_port(1)
        .issue(move |r| *theirs.lock().unwrap() = Some(r))
    else {
        panic!("it is held")
    };
    assert!(handle.cancel());
    assert_eq!(*result.lock().unwrap(), Some(Err(Error::Cancelled)));
    assert!(!handle.cancel(), "too late");

    let Issued::Pending(handle) = device.query_port(1).issue(|_| ()) else {
        panic!("it is held")
    };
    hold.run();
    assert!(!handle.cancel(), "too late");
}

/// Goal: the handle of a request that has completed does not cancel the one that has its slot now.
#[test]
fn k13_a_stale_cancel_handle_leaves_the_slots_next_request_alone() {
    let (_null, hold, device) = held();
    let Issued::Pending(stale) = device.query_port(1).issue(|_| ()) else {
        panic!("it is held")
    };
    hold.run();
    let done = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&done);
    let Issued::Pending(current) = device.query_port(1).issue(move |result| {
        result.unwrap();
        theirs.fetch_add(1, SeqCst);
    }) else {
        panic!("it is held")
    };
    let slot = |handle: &verbs_core::CancelHandle| {
        let id = format!("{:?}", handle.id());
        id.split('.').next().map(str::to_owned)
    };
    assert_eq!(slot(&stale), slot(&current), "the same slot");
    assert_ne!(stale.id(), current.id());
    assert!(!stale.cancel());
    assert!(!device.in_flight()[0].cancel_requested);
    hold.run();
    assert_eq!(done.load(SeqCst), 1);
}

/// Goal: a destroy that has waited reaches the provider when that has returned, though the last user of the
/// object goes in its frame.
#[test]
fn k1_a_parked_destroy_does_not_reenter_the_provider() {
    #[derive(Default)]
    struct LetsGo {
        null: Null,
        inside: AtomicU32,
        held: Mutex<Option<verbs_core::object::Hold>>,
        destroyed: AtomicU32,
    }
    impl Provider for LetsGo {
        fn issue(&self, command: AnyCommand<'_>) {
            assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "within the provider");
            match command.kind() {
                Kind::QueryPort => drop(self.held.lock().unwrap().take()),
                Kind::DeregMr => drop(self.destroyed.fetch_add(1, SeqCst)),
                _ => {}
            }
            self.null.issue(command);
            self.inside.fetch_sub(1, SeqCst);
        }
    }
    let provider = Arc::new(LetsGo::default());
    let device = open(provider.clone());
    let pd = device.alloc_pd().wait().unwrap();
    let memory = verbs_core::Memory::alloc(64).unwrap();
    let mr = pd.register(memory, verbs_core::Access::empty());
    let mr = mr.wait().unwrap();
    let target: Arc<dyn verbs_core::Target> = Arc::clone(mr.target()) as _;
    let hold = verbs_core::object::Hold::try_new(&target, ObjectKind::Mw);
    *provider.held.lock().unwrap() = hold;
    let Issued::Pending(_) = mr.dereg_when_idle().issue(|done| done.unwrap()) else {
        panic!("a window is bound")
    };
    assert_eq!(provider.destroyed.load(SeqCst), 0);
    device.query_port(1).wait().unwrap();
    assert_eq!(provider.destroyed.load(SeqCst), 1);
}

#[test]
fn k8_an_accepted_destroy_is_not_cancellable() {
    let (_null, hold, device) = held();
    let pd = create(&hold, device.alloc_pd());
    let Issued::Pending(handle) = pd.dealloc().issue(|r| r.unwrap()) else {
        panic!("it is held")
    };
    handle.cancel();
    assert_eq!(hold.kinds(), [Kind::DeallocPd]);
    hold.run();
}

/// Issues a request on a holding device and passes it on.
fn create<V: verbs_core::Verb>(hold: &Hold, request: verbs_core::Request<'_, V>) -> V::Output {
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let _ = request.issue(move |result| *theirs.lock().unwrap() = result.ok());
    hold.run();
    place.lock().unwrap().take().unwrap()
}

#[test]
fn k9_futures_dropped_at_any_point_leave_nothing() {
    let (null, hold, device) = held();
    drop(device.alloc_pd().into_future());
    assert!(hold.is_empty(), "not polled: nothing happened");

    let mut future = device.alloc_pd().into_future();
    assert!(poll(&mut future).is_pending());
    drop(future);
    hold.run();
    assert_eq!(
        (null.live(), device.objects()),
        (0, 0),
        "created, orphaned, destroyed"
    );

    let mut future = device.alloc_pd().into_future();
    assert!(poll(&mut future).is_pending());
    hold.run();
    assert_eq!(null.live(), 1);
    drop(future);
    hold.run();
    assert_eq!(
        (null.live(), device.objects()),
        (0, 0),
        "completed, not looked at, destroyed"
    );
}

#[test]
fn k10_busy_names_what_holds_it_and_gives_the_handle_back() {
    let device = open(Arc::new(Null::default()));
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(8).wait().unwrap();
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    let refused = pd.dealloc().wait().unwrap_err();
    assert_eq!(refused.error, Error::Busy);
    assert_eq!(refused.busy.unwrap().of(ObjectKind::Qp), 1);
    let pd = refused.handle.unwrap();
    let cq = cq.destroy().wait().unwrap_err().handle.unwrap();
    let refused = device.close().wait().unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("{} (held by 2: 1 PD, 1 CQ)", Error::Busy)
    );
    let device = refused.handle.unwrap();
    qp.destroy().wait().unwrap();
    pd.dealloc().wait().unwrap();
    cq.destroy().wait().unwrap();
    device.close().wait().unwrap();
}

#[test]
fn k10_a_create_in_flight_counts_as_a_child() {
    let (_null, hold, device) = held();
    let pd = create(&hold, device.alloc_pd());
    let cq = create(&hold, device.create_cq(8));
    let _ = pd
        .create_qp(QpInit::rc(&cq, &cq))
        .issue(|qp| drop(qp.unwrap()));
    let (busy, seen) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU32::new(0)));
    let (theirs, count) = (Arc::clone(&busy), Arc::clone(&seen));
    let _ = pd.dealloc().issue(move |result| {
        count.fetch_add(1, SeqCst);
        *theirs.lock().unwrap() = result.unwrap_err().busy;
    });
    assert_eq!(seen.load(SeqCst), 1, "Busy is immediate");
    assert_eq!(busy.lock().unwrap().unwrap().of(ObjectKind::Qp), 1);
    hold.run();
    drop(cq);
    hold.run();
    assert_eq!(device.objects(), 0);
}

#[test]
fn k11_pending_requests_delay_a_destroy_without_making_it_busy() {
    let (null, hold, device) = held();
    let pd = create(&hold, device.alloc_pd());
    let cq = create(&hold, device.create_cq(8));
    let qp = create(&hold, pd.create_qp(QpInit::rc(&cq, &cq)));
    let order = Arc::new(Mutex::new(Vec::new()));
    let (first, second) = (Arc::clone(&order), Arc::clone(&order));
    let _ = qp
        .modify(QpAttr::to(QpState::Reset))
        .issue(move |_| first.lock().unwrap().push("modify"));
    let _ = qp.destroy().issue(move |r| {
        second
            .lock()
            .unwrap()
            .push(r.map_or("refused", |()| "destroy"));
    });
    assert_eq!(
        hold.kinds(),
        [Kind::ModifyQp],
        "the destroy waits in the object"
    );
    assert_eq!(device.in_flight().len(), 2, "and is listed");
    hold.run();
    assert_eq!(*order.lock().unwrap(), ["modify", "destroy"]);
    drop((pd, cq));
    hold.run();
    assert_eq!(null.live(), 0);
}

#[test]
fn k12_dropped_parents_go_after_their_children() {
    let null = Arc::new(Null::default());
    let device = open(null.clone());
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(8).wait().unwrap();
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    drop(pd);
    drop(cq);
    assert_eq!(null.live(), 3, "the queue pair holds its parents");
    assert_eq!(
        device.in_flight().len(),
        2,
        "their destroys wait and are listed"
    );
    drop(qp);
    assert_eq!(
        (null.live(), device.objects(), device.in_flight().len()),
        (0, 0, 0)
    );
    device.close().wait().unwrap();
}

#[test]
fn k12_destroy_when_idle_waits_for_the_last_child() {
    let device = open(Arc::new(Null::default()));
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(8).wait().unwrap();
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    let done = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&done);
    let _ = pd
        .dealloc_when_idle()
        .issue(move |r| theirs.store(r.map_or(2, |()| 1), SeqCst));
    assert_eq!(done.load(SeqCst), 0);
    qp.destroy().wait().unwrap();
    assert_eq!(done.load(SeqCst), 1);
}

#[test]
fn k15_what_is_pending_is_listed_with_file_and_line() {
    let (_null, hold, device) = held();
    let _ = device
        .query_port(1)
        .on_behalf_of(Origin::client(7).unwrap())
        .issue(|_| ());
    let line = line!() - 1;
    let list = device.in_flight();
    assert_eq!(list.len(), 1);
    assert_eq!(
        (list[0].verb, list[0].origin),
        (Kind::QueryPort, Origin::client(7).unwrap())
    );
    assert_eq!(
        (list[0].location.file(), list[0].location.line()),
        (file!(), line)
    );
    assert!(
        list[0].to_string().contains("QueryPort on device"),
        "{}",
        list[0]
    );
    hold.run();
    assert!(device.in_flight().is_empty());
}

#[test]
fn k15_the_location_of_an_awaited_request_is_that_of_the_await() {
    let (_null, hold, device) = held();
    let mut future = Box::pin(async { device.query_port(1).await });
    let line = line!() - 1;
    assert!(poll(&mut future).is_pending());
    assert_eq!(device.in_flight()[0].location.line(), line);
    hold.run();
    assert!(poll(&mut future).is_ready());
}

#[test]
fn k15_a_verb_inside_the_provider_is_listed_without_age() {
    struct Lists(Null, Mutex<Vec<String>>, Mutex<Option<Arc<Device>>>);
    impl Provider for Lists {
        fn issue(&self, command: AnyCommand<'_>) {
            if let Some(device) = &*self.2.lock().unwrap() {
                *self.1.lock().unwrap() =
                    device.in_flight().iter().map(ToString::to_string).collect();
            }
            self.0.issue(command);
        }
    }
    let provider = Arc::new(Lists(Null::default(), Mutex::default(), Mutex::default()));
    let device = Arc::new(open(provider.clone()));
    *provider.2.lock().unwrap() = Some(Arc::clone(&device));
    device.query_port(1).wait().unwrap();
    *provider.2.lock().unwrap() = None;
    let list = provider.1.lock().unwrap();
    assert!(
        list[0].starts_with("QueryPort on device") && list[0].contains("inside the provider"),
        "{list:?}"
    );
    assert!(device.in_flight().is_empty());
}

#[test]
fn the_limit_of_pending_requests_refuses_and_exempts_destroys() {
    let null = Arc::new(Null::default());
    let hold = Hold::over(null);
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let _ = Device::open_with(hold.clone(), 2).issue(move |d| *theirs.lock().unwrap() = d.ok());
    hold.run();
    let device = place.lock().unwrap().take().unwrap();
    let pds: Vec<_> = (0..3).map(|_| create(&hold, device.alloc_pd())).collect();
    let refused = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let count = Arc::clone(&refused);
        let _ = device.query_port(1).issue(move |r| {
            count.fetch_add(
                usize::from(r == Err(Error::TooManyRequests { max: 2 })),
                SeqCst,
            );
        });
    }
    assert_eq!(refused.load(SeqCst), 3);
    for pd in pds {
        let _ = pd.dealloc().issue(|r| r.unwrap());
    }
    assert_eq!(hold.len(), 5, "two queries and three destroys");
    hold.run();
}

#[test]
fn a5_stacked_filters_unwind_innermost_first_and_may_worsen_the_result() {
    type Log = Arc<Mutex<Vec<&'static str>>>;
    struct Layer {
        inner: Arc<dyn Provider>,
        hook: Arc<dyn Hook>,
    }
    struct Notes(&'static str, Log);
    impl Hook for Notes {
        fn completed(&self, token: u64, done: &mut dyn Done) {
            assert_eq!(token, 5);
            self.1.lock().unwrap().push(self.0);
            if done.kind() == Kind::AllocPd && self.0 == "inner" {
                done.fail(Error::DeviceFailed);
            }
        }
    }
    impl Provider for Layer {
        fn issue(&self, command: AnyCommand<'_>) {
            let frame = Frame {
                hook: &self.hook,
                token: 5,
                next: command.frames(),
            };
            self.inner.issue(command.through(&frame));
        }
        fn cancel(&self, id: RequestId) {
            self.inner.cancel(id);
        }
    }
    let log = Log::default();
    let layer = |name, inner| -> Arc<dyn Provider> {
        Arc::new(Layer {
            inner,
            hook: Arc::new(Notes(name, Arc::clone(&log))),
        })
    };
    let null = Arc::new(Null::default());
    let hold = Hold::over(null.clone());
    for (bottom, pends) in [
        (null.clone() as Arc<dyn Provider>, false),
        (hold.clone(), true),
    ] {
        let device_place = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&device_place);
        let stack = layer("outer", layer("inner", bottom));
        let _ = Device::open(stack).issue(move |d| *theirs.lock().unwrap() = d.ok());
        hold.run();
        let device = device_place.lock().unwrap().take().unwrap();
        log.lock().unwrap().clear();
        let result = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&result);
        let issued = device
            .alloc_pd()
            .issue(move |r| *theirs.lock().unwrap() = Some(r.map(drop)));
        assert_eq!(matches!(issued, Issued::Pending(_)), pends);
        hold.run();
        assert_eq!(*result.lock().unwrap(), Some(Err(Error::DeviceFailed)));
        assert_eq!(log.lock().unwrap()[..2], ["inner", "outer"]);
        hold.run();
        assert_eq!(
            null.live(),
            0,
            "the object that the failed result carried is destroyed"
        );
    }
}

#[test]
fn a_panicking_routine_takes_no_other_with_it() {
    let device = Arc::new(open(Arc::new(Null::default())));
    let ran = Arc::new(AtomicU32::new(0));
    let (inner, count) = (Arc::clone(&device), Arc::clone(&ran));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = device.query_port(1).issue(move |_| {
            let _ = inner.query_port(1).issue(|_| panic!("on purpose"));
            let _ = inner.query_port(1).issue(move |_| {
                count.fetch_add(1, SeqCst);
            });
        });
    }));
    assert!(caught.is_err());
    assert_eq!(ran.load(SeqCst), 1);
    assert!(!no_block(), "the level is back");
}
