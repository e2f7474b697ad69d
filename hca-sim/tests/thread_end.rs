//! Every kind of value that a thread can own, kept in a thread-local variable when the thread ends.
#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::any::Any;
use std::cell::RefCell;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::command::{CommandConfig, CommandTime};
use verbs_core::{
    Access, ClientQueue, CompletionChannel, Device, FmrPoolAttr, Issued, Memory, QpInit, Recv,
    Send, Shared, Wc, WindowType,
};

thread_local! {
    static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps it until the thread's values are dropped, the newest last.
fn keep(what: impl Any) {
    KEPT.with(|kept| kept.borrow_mut().push(Box::new(what)));
}

/// Does something when it is dropped.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs `work` on a thread that ends; what it keeps is dropped before the values of the libraries, and
/// after them.
fn ends_well(work: impl Fn() + Sync + std::marker::Send) {
    for kept_first in [false, true] {
        thread::scope(|scope| {
            let ends = scope.spawn(|| {
                let device = Hca::loopback().open().wait().unwrap();
                let use_all = || {
                    // A verb within a routine, a pin, a name, a record.
                    let inner = Arc::new(device.alloc_pd().wait().unwrap());
                    let _ = device.query_port(1).issue(move |_| drop(inner));
                    let cq = Shared::new(device.create_cq(4).wait().unwrap());
                    assert!(cq.poll(&mut [Wc::default()]).is_empty());
                };
                if kept_first {
                    keep(());
                }
                use_all();
                work();
                use_all();
            });
            ends.join().expect("the thread does not panic");
        });
    }
}

fn count(ran: &AtomicU32) {
    ran.fetch_add(1, SeqCst);
}

fn until_empty(device: &Device) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while device.objects() != 0 || !device.in_flight().is_empty() {
        assert!(Instant::now() < deadline, "{} objects", device.objects());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Goal: a handle of every kind, dropped when its thread ends, destroys its object and nothing else.
#[test]
fn handles_of_every_kind_are_dropped_with_the_values_of_a_thread() {
    let device = Hca::loopback().open().wait().unwrap();
    ends_well(|| {
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(64).wait().unwrap();
        let memory = || Memory::alloc(4096).unwrap();
        let mr = pd.register(memory(), Access::LOCAL_WRITE | Access::MW_BIND);
        let srq = pd.create_srq(16, 1).wait().unwrap();
        let [a, b] = [(); 2].map(|()| pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap());
        let shared = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
        let (shared, sends, receives) = shared.split().unwrap();
        keep(Hca::loopback().open().wait().unwrap());
        keep(mr.wait().unwrap());
        keep(pd.alloc_mr(4).wait().unwrap());
        keep(pd.alloc_mw(WindowType::TwoB).wait().unwrap());
        keep(
            pd.create_fmr_pool(FmrPoolAttr::new(2, 4, Access::LOCAL_WRITE))
                .wait()
                .unwrap(),
        );
        keep(device.alloc_xrcd().wait().unwrap());
        keep((a, b, shared, Shared::new(sends), Shared::new(receives)));
        keep((Shared::new(srq), Shared::new(cq)));
        keep(pd);
        keep(memory());
    });
    until_empty(&device);
}

/// Goal: what is under way is dropped as anywhere else: cancel handles, futures, queues of the client, events.
#[test]
fn what_is_under_way_is_dropped_with_the_values_of_a_thread() {
    let slow = CommandConfig {
        time: CommandTime::Fixed(Duration::from_millis(1)),
        ..CommandConfig::default()
    };
    // Futures borrow it.
    let device = Hca::loopback().commands(slow).open().wait().unwrap();
    let device: &'static Device = Box::leak(Box::new(device));
    let ran = Arc::new(AtomicU32::new(0));
    ends_well(|| {
        let mut future = Box::pin(device.alloc_pd().into_future());
        assert!(
            future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        keep(future.cancel_handle());
        keep(future);
        let theirs = Arc::clone(&ran);
        let issued = device.alloc_pd().issue(move |_| count(&theirs));
        let Issued::Pending(cancel) = issued else {
            panic!("it takes a millisecond");
        };
        keep(AtEnd(move || {
            let _ = cancel.cancel();
        }));
        let queue = ClientQueue::new(4);
        let theirs = Arc::clone(&ran);
        let routine = move |_| count(&theirs);
        let _ = device.query_port(1).issue_on(&queue, routine).unwrap();
        keep(queue);
        let channel = CompletionChannel::new().unwrap();
        let cq = device.create_cq(4).channel(&channel, 1).wait().unwrap();
        keep((channel, cq));
    });
    until_empty(device);
    assert_eq!(ran.load(SeqCst), 4, "every routine ran");
}

/// Goal: verbs, posts and polls of an ending thread are like any others. Method: a destructor that uses all of them,
/// with routines that issue verbs.
#[test]
fn an_ending_thread_may_use_the_device() {
    let device = Arc::new(Hca::loopback().open().wait().unwrap());
    let ran = Arc::new(AtomicU32::new(0));
    ends_well(|| {
        let pd = device.alloc_pd().wait().unwrap();
        let cq = Shared::new(device.create_cq(64).wait().unwrap());
        let mr = pd
            .register(Memory::alloc(64).unwrap(), Access::LOCAL_WRITE)
            .wait()
            .unwrap();
        let make = || pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
        let (mut a, mut b) = (make(), make());
        block_on(hca_sim::connect(&mut a, &mut b)).unwrap();
        let (device, ran) = (Arc::clone(&device), Arc::clone(&ran));
        keep(AtEnd(move || {
            b.post_recv(Recv::new(1).into(mr.slice(0..8))).unwrap();
            a.post_send(Send::new(2).from(mr.slice(8..16)).signaled())
                .unwrap();
            assert_eq!(cq.poll(&mut [Wc::default(); 4]).len(), 2);
            let pd = device.alloc_pd().wait().unwrap();
            let (inner, ran) = (Arc::clone(&device), Arc::clone(&ran));
            let _ = device.query_port(1).issue(move |_| {
                let again = Arc::clone(&ran);
                let _ = inner.query_port(1).issue(move |_| count(&again));
                assert_eq!(ran.load(SeqCst) % 2, 0, "not within this routine");
                ran.fetch_add(1, SeqCst);
            });
            drop(pd);
        }));
    });
    assert_eq!(ran.load(SeqCst), 4);
    until_empty(&device);
}
