//! The cost of a request to a device, through each front end and through the two usual alternatives: a thread that
//! blocks, and a boxed future sent to a worker.
//!
//! Measured: a query (no object) and the creation of a queue pair with its destruction, over a device that answers at
//! once and over one whose commands take 10 us, with 1 and with 64 requests outstanding (the parameter); the destruction
//! of 1,000 queue pairs at once. Beside them: a oneshot of tokio, on one thread and answered by another one, and a
//! connection of TCP.
//!
//! `cargo bench -p verbs-benches --bench control -- query` runs the groups of the query.

mod settings;

use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::StreamExt;
use futures::channel::mpsc as channel;
use futures::executor::block_on;
use settings::{group, repeats, settings};
use tokio::sync::oneshot;
use verbs_benches::control::Subject;
use verbs_benches::site::{Ask, Site};
use verbs_benches::{rivals, timed};
use verbs_core::Qp;

/// How long a command of the slower device takes.
const SLOW: Duration = Duration::from_micros(10);
/// Queue pairs that are destroyed at once.
const MANY: u64 = 1_000;

/// A verb of a subject, repeated.
type Operation = fn(&Subject, u64);
type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The front ends, with one request and with several outstanding.
fn front_ends(c: &mut Criterion) {
    for (what, ask) in [("query", Ask::Query), ("qp", Ask::CreateDestroy)] {
        for (speed, time) in [("inline", None), ("10us", Some(SLOW))] {
            let mut group = group(c, &format!("{what}-{speed}"));
            let site = Site::taking(time);
            for window in [1, 64] {
                let one = Throughput::Elements(1);
                let id = |name: &str| BenchmarkId::new(name, window);
                repeats(&mut group, id("routine"), one.clone(), |times| {
                    routines(ask, &site, window, times);
                });
                repeats(&mut group, id("future"), one.clone(), |times| {
                    futures(ask, &site, window, times);
                });
                let threads = Threads::new(ask, &site, window);
                repeats(&mut group, id("blocked threads"), one.clone(), |times| {
                    threads.run(times);
                });
                drop(threads);
                let worker = Worker::new();
                repeats(&mut group, id("boxed to a worker"), one, |times| {
                    worker.run(ask, &site, window, times);
                });
            }
            group.finish();
        }
    }
}

/// Routines; the issuer yields the processor while the window is full.
fn routines(ask: Ask, site: &Site, window: u64, times: u64) {
    let done = Arc::new(AtomicU64::new(0));
    for issued in 0..times {
        while issued - done.load(SeqCst) >= window {
            std::thread::yield_now();
        }
        ask.routine(site, &done);
    }
    while done.load(SeqCst) < times {
        std::thread::yield_now();
    }
}

/// Futures on the issuer's thread.
fn futures(ask: Ask, site: &Arc<Site>, window: u64, times: u64) {
    let one = |_| ask.future(Arc::clone(site));
    match window {
        1 => (0..times).for_each(|n| block_on(one(n))),
        _ => {
            let all = futures::stream::iter(0..times);
            block_on(all.for_each_concurrent(window as usize, one));
        }
    }
}

/// As many threads as requests, each of which blocks; the issuer hands over and waits.
struct Threads {
    drivers: Vec<(mpsc::Sender<()>, JoinHandle<()>)>,
    idle: mpsc::Receiver<usize>,
}

impl Threads {
    fn new(ask: Ask, site: &Arc<Site>, window: u64) -> Self {
        let (done, idle) = mpsc::channel();
        let driver = |n| {
            let (hand, requests) = mpsc::channel::<()>();
            let (site, done) = (Arc::clone(site), done.clone());
            let thread = std::thread::spawn(move || {
                for () in requests {
                    ask.blocking(&site);
                    if done.send(n).is_err() {
                        break;
                    }
                }
            });
            (hand, thread)
        };
        let drivers = (0..window as usize).map(driver).collect();
        Self { drivers, idle }
    }

    fn run(&self, times: u64) {
        let mut free: Vec<_> = (0..self.drivers.len()).collect();
        let mut wait = || self.idle.recv().expect("a driver answers");
        for _ in 0..times {
            let driver = free.pop().unwrap_or_else(&mut wait);
            self.drivers[driver].0.send(()).expect("a driver listens");
        }
        for _ in free.len()..self.drivers.len() {
            wait();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for (hand, thread) in self.drivers.drain(..) {
            drop(hand);
            thread.join().expect("no driver panics");
        }
    }
}

/// Boxed futures sent to a worker's executor, the results through oneshots.
struct Worker {
    hand: channel::UnboundedSender<Boxed>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new() -> Self {
        let (hand, work) = channel::unbounded::<Boxed>();
        let thread = std::thread::spawn(move || {
            block_on(work.for_each_concurrent(None, |future| future));
        });
        Self {
            hand,
            thread: Some(thread),
        }
    }

    fn run(&self, ask: Ask, site: &Arc<Site>, window: u64, times: u64) {
        let mut waiting = VecDeque::new();
        for _ in 0..times {
            if waiting.len() as u64 == window {
                let first: Option<oneshot::Receiver<()>> = waiting.pop_front();
                block_on(first.expect("the window is full")).expect("the worker answers");
            }
            let (done, receiver) = oneshot::channel();
            let future = ask.future(Arc::clone(site));
            let work = async move {
                future.await;
                let _ = done.send(());
            };
            self.hand.unbounded_send(Box::pin(work)).expect("a worker");
            waiting.push_back(receiver);
        }
        for receiver in waiting {
            block_on(receiver).expect("the worker answers");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.hand.close_channel();
        let thread = self.thread.take().expect("it is joined once");
        thread.join().expect("it does not panic");
    }
}

/// Verbs that are answered at once, by front end, beside a oneshot.
fn oneshots(c: &mut Criterion) {
    let mut inline = group(c, "verb");
    let subject = Subject::inline();
    let one = || Throughput::Elements(1);
    let ways: [(&str, Operation); 6] = [
        ("query, routine", Subject::query_routine),
        ("query, awaited", Subject::query_future),
        ("query, polled once", Subject::query_poll),
        ("query, waited for", Subject::query_wait),
        ("modify, routine", Subject::modify_routine),
        ("modify, awaited", Subject::modify_future),
    ];
    for (name, way) in ways {
        let id = BenchmarkId::from_parameter(name);
        repeats(&mut inline, id, one(), |times| way(&subject, times));
    }
    let id = BenchmarkId::from_parameter("tokio oneshot");
    repeats(&mut inline, id, one(), own_oneshot);
    inline.finish();

    let mut across = group(c, "answered-by-another-thread");
    let site = Site::taking(Some(Duration::ZERO));
    let id = BenchmarkId::from_parameter("query, awaited");
    repeats(&mut across, id, one(), |times| {
        futures(Ask::Query, &site, 1, times);
    });
    let (hand, asked) = mpsc::channel::<oneshot::Sender<u64>>();
    let thread = std::thread::spawn(move || {
        for sender in asked {
            let _ = sender.send(1);
        }
    });
    let id = BenchmarkId::from_parameter("tokio oneshot");
    repeats(&mut across, id, one(), |times| {
        for _ in 0..times {
            let (sender, receiver) = oneshot::channel();
            hand.send(sender).expect("the thread lives");
            black_box(block_on(receiver)).expect("it answers");
        }
    });
    drop(hand);
    thread.join().expect("it does not panic");
    across.finish();
}

fn own_oneshot(times: u64) {
    for n in 0..times {
        let (sender, receiver) = oneshot::channel();
        sender.send(n).expect("the receiver lives");
        black_box(block_on(receiver)).expect("it was sent");
    }
}

/// Two queue pairs brought to RTS and destroyed, ten verbs, beside a connection of TCP.
fn connected(c: &mut Criterion) {
    let mut group = group(c, "verbs-of-a-connection");
    let subject = Subject::inline();
    let id = BenchmarkId::from_parameter("two QPs to RTS, destroyed");
    repeats(&mut group, id, Throughput::Elements(1), |times| {
        subject.qp_to_rts(2 * times);
    });
    let id = BenchmarkId::from_parameter("tcp connect, accept, close");
    repeats(&mut group, id, Throughput::Elements(1), rivals::connections);
    group.finish();
}

/// As many queue pairs as there are, destroyed at once, through routines and through futures. They are created outside of
/// the measured time.
fn many(c: &mut Criterion) {
    for (speed, time) in [("inline", None), ("10us", Some(SLOW))] {
        let mut group = group(c, &format!("destroy-{MANY}-qps-{speed}"));
        group.throughput(Throughput::Elements(MANY));
        let site = Site::taking(time);
        let create = || -> Vec<Qp> {
            let one = |_| site.create_qp().wait().expect("a QP");
            (0..MANY).map(one).collect()
        };
        let destroyed = |by: fn(Vec<Qp>)| {
            move |times| {
                (0..times)
                    .map(|_| {
                        let qps = create();
                        timed(|| by(qps))
                    })
                    .sum::<Duration>()
            }
        };
        group.bench_function("routine", |b| b.iter_custom(destroyed(by_routines)));
        group.bench_function("future", |b| b.iter_custom(destroyed(by_futures)));
        group.finish();
    }
}

fn by_routines(qps: Vec<Qp>) {
    let done = Arc::new(AtomicU64::new(0));
    for qp in qps {
        let done = Arc::clone(&done);
        let _ = qp.destroy().issue(move |destroyed| {
            destroyed.expect("idle");
            done.fetch_add(1, SeqCst);
        });
    }
    while done.load(SeqCst) < MANY {
        std::thread::yield_now();
    }
}

fn by_futures(qps: Vec<Qp>) {
    let one = |qp: Qp| async { qp.destroy().await.expect("idle") };
    block_on(futures::stream::iter(qps).for_each_concurrent(None, one));
}

criterion_group! {
    name = control;
    config = settings();
    targets = oneshots, front_ends, connected, many
}
criterion_main!(control);
