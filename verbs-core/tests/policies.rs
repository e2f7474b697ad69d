//! Where routines run is the client's choice: one program under three policies, and what the client
//! queue promises.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use verbs_core::testing::{Hold, Null};
use verbs_core::{
    ClientQueue, Device, Error, Issued, ObjectKind, PortAttr, QpAttr, QpInit, QpState, Request,
    Verb, no_block,
};

/// How a client learns of its results.
trait Policy {
    fn perform<V: Verb>(&self, request: Request<'_, V>) -> Result<V::Output, V::Error>;
}

/// Where a routine leaves a result.
type Place<T> = Arc<Mutex<Option<T>>>;

fn place<T>() -> (Place<T>, Place<T>) {
    let place = Place::default();
    (Arc::clone(&place), place)
}

fn taken<T>(place: &Place<T>) -> T {
    place.lock().unwrap().take().expect("the routine has run")
}

/// Routines run where requests complete; `Hold` completes when the client lets it.
struct Inline(Arc<Hold>);
/// Routines run when the client drains its queue.
struct Queued(Arc<Hold>, ClientQueue);
/// No routines: futures.
struct Futures(Arc<Hold>);

impl Policy for Inline {
    fn perform<V: Verb>(&self, request: Request<'_, V>) -> Result<V::Output, V::Error> {
        let (theirs, result) = place();
        let _ = request.issue(move |r| *theirs.lock().unwrap() = Some(r));
        self.0.run();
        taken(&result)
    }
}

impl Policy for Queued {
    fn perform<V: Verb>(&self, request: Request<'_, V>) -> Result<V::Output, V::Error> {
        let (theirs, result) = place();
        let routine = move |r| *theirs.lock().unwrap() = Some(r);
        let _ = request.issue_on(&self.1, routine).unwrap();
        self.0.run();
        assert!(result.lock().unwrap().is_none(), "nobody drained");
        assert_eq!((self.1.len(), self.1.run()), (1, 1));
        taken(&result)
    }
}

impl Policy for Futures {
    fn perform<V: Verb>(&self, request: Request<'_, V>) -> Result<V::Output, V::Error> {
        let mut future = pin!(request.into_future());
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(result) => return result,
                Poll::Pending => assert!(self.0.step(), "nothing will ever complete"),
            }
        }
    }
}

/// One client: what it was told, in words.
fn program(hold: &Arc<Hold>, policy: &impl Policy) -> Vec<String> {
    let device = policy.perform(Device::open(hold.clone())).unwrap();
    let pd = policy.perform(device.alloc_pd()).unwrap();
    let cq = policy.perform(device.create_cq(8)).unwrap();
    let qp = policy.perform(pd.create_qp(QpInit::rc(&cq, &cq))).unwrap();
    let mut told = vec![format!("{:?}", policy.perform(device.query_port(7)))];
    let attr = QpAttr::to(QpState::Rts);
    told.push(format!("{:?}", policy.perform(qp.modify(attr))));
    told.push(format!("{:?}", policy.perform(qp.query()).unwrap().state));
    let refused = policy.perform(pd.dealloc()).unwrap_err();
    told.push(refused.to_string());
    policy.perform(qp.destroy()).unwrap();
    policy
        .perform(refused.handle.unwrap().dealloc_when_idle())
        .unwrap();
    policy.perform(cq.destroy()).unwrap();
    policy.perform(device.close()).unwrap();
    told
}

#[test]
fn a12_one_program_under_three_policies() {
    let null = Arc::new(Null::default());
    let hold = Hold::over(null.clone());
    let inline = program(&hold, &Inline(hold.clone()));
    let queued = program(&hold, &Queued(hold.clone(), ClientQueue::new(1)));
    let futures = program(&hold, &Futures(hold.clone()));
    assert_eq!(inline, queued);
    assert_eq!(inline, futures);
    assert_eq!(inline.len(), 4);
    assert!(inline[3].ends_with("(held by 1: 1 QP)"), "{inline:?}");
    assert_eq!(null.live(), 0);
}

fn open() -> Device {
    Device::open(Arc::new(Null::default())).wait().unwrap()
}

fn ask(device: &Device, queue: &ClientQueue, routine: impl FnOnce() + Send + 'static) {
    let issued = device.query_port(1).issue_on(queue, |_| routine());
    assert!(matches!(issued, Ok(Issued::Completed)));
}

#[test]
fn routines_run_oldest_first_under_no_block_on_the_draining_thread() {
    let (device, queue) = (open(), ClientQueue::new(8));
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..4 {
        let order = Arc::clone(&order);
        ask(&device, &queue, move || {
            assert!(no_block());
            order.lock().unwrap().push((n, std::thread::current().id()));
        });
    }
    assert!(queue.run_one() && queue.run_one());
    let (rest, other) = std::thread::scope(|scope| {
        let drains = || (queue.run(), std::thread::current().id());
        scope.spawn(drains).join().unwrap()
    });
    let here = std::thread::current().id();
    assert_eq!((rest, queue.run_one()), (2, false));
    assert_eq!(
        *order.lock().unwrap(),
        [(0, here), (1, here), (2, other), (3, other)]
    );
}

#[test]
fn k7_a_full_queue_refuses_and_gives_request_and_routine_back() {
    let null = Arc::new(Null::default());
    let device = Device::open(null.clone()).wait().unwrap();
    let queue = ClientQueue::new(1);
    let ran = Arc::new(AtomicU32::new(0));
    let count = || {
        let ran = Arc::clone(&ran);
        move |_| {
            ran.fetch_add(1, SeqCst);
        }
    };
    let _ = device.alloc_pd().issue_on(&queue, count()).unwrap();
    let refused = device.alloc_pd().issue_on(&queue, count()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the client queue has room for 1 requests, and all of it is taken; drain it"
    );
    assert_eq!(null.live(), 1, "the second was not issued");
    assert_eq!(queue.run(), 1);
    let again = refused.request.issue_on(&queue, refused.routine);
    assert!(matches!(again, Ok(Issued::Completed)));
    assert_eq!(queue.run(), 1);
    assert_eq!((ran.load(SeqCst), null.live()), (2, 0));
}

#[test]
fn k1_drained_from_a_routine_they_run_when_it_is_done() {
    let (device, queue) = (open(), Arc::new(ClientQueue::new(4)));
    let depth = Arc::new(AtomicU32::new(0));
    let ran = Arc::new(AtomicU32::new(0));
    for _ in 0..2 {
        let (depth, ran) = (Arc::clone(&depth), Arc::clone(&ran));
        ask(&device, &queue, move || {
            assert_eq!(depth.load(SeqCst), 0, "inside another routine");
            ran.fetch_add(1, SeqCst);
        });
    }
    let (inner, level) = (Arc::clone(&queue), Arc::clone(&depth));
    let _ = device.query_port(1).issue(move |_| {
        level.fetch_add(1, SeqCst);
        assert_eq!(inner.run(), 2);
        level.fetch_sub(1, SeqCst);
    });
    assert_eq!(ran.load(SeqCst), 2);
}

#[test]
fn a_routine_may_issue_on_the_queue_that_it_runs_from() {
    fn chain(device: Arc<Device>, queue: Arc<ClientQueue>, left: u32) {
        let (next, on) = (Arc::clone(&device), Arc::clone(&queue));
        let routine = move |_: Result<PortAttr, Error>| {
            if left > 0 {
                chain(next, on, left - 1);
            }
        };
        let _ = device.query_port(1).issue_on(&queue, routine).unwrap();
    }
    let (device, queue) = (Arc::new(open()), Arc::new(ClientQueue::new(1)));
    chain(device, Arc::clone(&queue), 10_000);
    assert_eq!(queue.run(), 10_001, "the one place is enough");
}

#[test]
fn ready_is_woken_by_a_completion_and_says_at_once_what_waits() {
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let null = Arc::new(Null::default());
    let hold = Hold::over(null);
    let device = Inline(hold.clone())
        .perform(Device::open(hold.clone()))
        .unwrap();
    let queue = ClientQueue::new(4);
    let _ = device.query_port(1).issue_on(&queue, |_| ()).unwrap();
    let wakes = Arc::new(Count(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    {
        let mut ready = pin!(queue.ready());
        assert!(ready.as_mut().poll(&mut cx).is_pending());
        hold.run();
        assert_eq!(wakes.0.load(SeqCst), 1);
        assert!(ready.as_mut().poll(&mut cx).is_ready());
    }
    assert!(pin!(queue.ready()).poll(&mut cx).is_ready(), "still there");
    assert_eq!(queue.run(), 1);
    assert!(pin!(queue.ready()).poll(&mut cx).is_pending());
}

#[test]
fn k1_a_dropped_queue_runs_what_waits_and_lets_the_rest_run_inline() {
    let hold = Hold::over(Arc::new(Null::default()));
    let device = Inline(hold.clone())
        .perform(Device::open(hold.clone()))
        .unwrap();
    let queue = ClientQueue::new(2);
    let ran = Arc::new(AtomicU32::new(0));
    for _ in 0..2 {
        let ran = Arc::clone(&ran);
        let routine = move |_| {
            ran.fetch_add(1, SeqCst);
        };
        let _ = device.query_port(1).issue_on(&queue, routine).unwrap();
    }
    hold.step();
    drop(queue);
    assert_eq!(ran.load(SeqCst), 1, "had completed");
    hold.step();
    assert_eq!(ran.load(SeqCst), 2, "completed later");
}

#[test]
fn k8_and_k15_hold_for_requests_on_a_queue() {
    let hold = Hold::over(Arc::new(Null::default()));
    let device = Inline(hold.clone())
        .perform(Device::open(hold.clone()))
        .unwrap();
    let queue = ClientQueue::new(2);
    let (theirs, result) = place();
    let routine = move |r| *theirs.lock().unwrap() = Some(r);
    let issued = device.query_port(1).issue_on(&queue, routine);
    let line = line!() - 1;
    assert_eq!(device.in_flight()[0].location.line(), line);
    let Ok(Issued::Pending(handle)) = issued else {
        panic!("it is held")
    };
    assert!(handle.cancel());
    assert!(result.lock().unwrap().is_none(), "not drained");
    queue.run();
    assert_eq!(taken(&result), Err(Error::Cancelled));
}

#[test]
fn completions_of_many_threads_all_arrive() {
    const THREADS: u32 = 3;
    const EACH: u32 = 1_000;
    let (device, queue) = (open(), ClientQueue::new(16));
    let ran = Arc::new(AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let count = Arc::clone(&ran);
                    let mut routine = move |_| {
                        count.fetch_add(1, SeqCst);
                    };
                    let mut request = device.query_port(1);
                    // Full: make room, as any thread that may drain can.
                    while let Err(refused) = request.issue_on(&queue, routine) {
                        (request, routine) = (refused.request, refused.routine);
                        queue.run_one();
                    }
                }
            });
        }
    });
    queue.run();
    assert_eq!(ran.load(SeqCst), THREADS * EACH);
    assert_eq!(device.objects(), 0);
}

#[test]
fn k10_a_refused_destroy_comes_back_through_the_queue() {
    let (device, queue) = (open(), ClientQueue::new(1));
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(4).wait().unwrap();
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    let (theirs, result) = place();
    let routine = move |r| *theirs.lock().unwrap() = Some(r);
    let _ = pd.dealloc().issue_on(&queue, routine).unwrap();
    queue.run();
    let refused = taken(&result).unwrap_err();
    assert_eq!(refused.busy.unwrap().of(ObjectKind::Qp), 1);
    qp.destroy().wait().unwrap();
    refused.handle.unwrap().dealloc().wait().unwrap();
}
