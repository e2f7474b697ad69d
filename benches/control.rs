//! The cost of a request to a device, through each front end and through the two usual alternatives: a thread that
//! blocks, and a boxed future sent to a worker.
//!
//! Measured: a query (no object) and the creation of a queue pair with its destruction, over a device that answers at
//! once and over one whose commands take 10 us; with 1 and with 64 requests outstanding; and the destruction of 10,000
//! queue pairs. A tokio oneshot and a loopback TCP connection are measured for comparison. All methods take turns,
//! repetition by repetition, so that load of the machine affects them equally; medians are printed, with ratios to the
//! first of each group.
//!
//! Last, messages, compared with words through a channel.
//!
//! Runs under `cargo bench`; with `--test` every method runs once, to find crashes and not for times. A word that is
//! not an option selects the groups that have it in their title.

mod mad;
mod message;

use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::channel::mpsc as channel;
use futures::executor::block_on;
use tokio::sync::oneshot;
use verbs_benches::control::{Delayed, Inline, Subject};
use verbs_core::qp::CreateQp;
use verbs_core::{Cq, Device, Pd, Provider, Qp, QpInit, Request};

/// Repetitions that take turns.
const TURNS: usize = 15;
/// The intended duration of one repetition.
const TURN: Duration = Duration::from_millis(3);
/// Queue pairs that are destroyed at once.
const MANY: u64 = 10_000;

/// Repeats an operation that often, and returns how long it took.
type Way = Box<dyn FnMut(u64) -> Duration>;
/// Methods that are compared with the first of them.
type Group = (String, Vec<(&'static str, Way)>);
type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

fn timed(f: impl FnOnce()) -> Duration {
    let start = Instant::now();
    f();
    start.elapsed()
}

/// A device and the parents of queue pairs, for many threads.
struct Site {
    device: Device,
    pd: Pd,
    cq: Mutex<Cq>,
}

impl Site {
    fn over(provider: Arc<dyn Provider>) -> Arc<Self> {
        let device = Device::open(provider).wait().expect("a device");
        let pd = device.alloc_pd().wait().expect("a PD");
        let cq = Mutex::new(device.create_cq(4).wait().expect("a CQ"));
        Arc::new(Self { device, pd, cq })
    }

    fn create_qp(&self) -> Request<'_, CreateQp> {
        let cq = self.cq.lock().unwrap_or_else(PoisonError::into_inner);
        self.pd.create_qp(QpInit::rc(&*cq, &*cq))
    }
}

/// The operations that are requested.
#[derive(Clone, Copy)]
enum Ask {
    Query,
    CreateDestroy,
}

impl Ask {
    fn routine(self, site: &Site, done: &Arc<AtomicU64>) {
        let done = Arc::clone(done);
        let count = move || {
            done.fetch_add(1, SeqCst);
        };
        let _ = match self {
            Self::Query => site.device.query_port(1).issue(move |port| {
                black_box(port).expect("port 1");
                count();
            }),
            Self::CreateDestroy => site.create_qp().issue(move |qp| {
                let destroy = qp.expect("a QP").destroy();
                let _ = destroy.issue(move |destroyed| {
                    destroyed.expect("idle");
                    count();
                });
            }),
        };
    }

    fn blocking(self, site: &Site) {
        match self {
            Self::Query => {
                black_box(site.device.query_port(1).wait()).expect("port 1");
            }
            Self::CreateDestroy => {
                let qp = site.create_qp().wait().expect("a QP");
                qp.destroy().wait().expect("idle");
            }
        }
    }

    async fn future(self, site: Arc<Site>) {
        match self {
            Self::Query => {
                black_box(site.device.query_port(1).await).expect("port 1");
            }
            Self::CreateDestroy => {
                let create = site.create_qp();
                let qp = create.await.expect("a QP");
                qp.destroy().await.expect("idle");
            }
        }
    }
}

/// (a) Routines; the issuer yields the processor while the window is full.
fn routines(ask: Ask, site: Arc<Site>, window: u64) -> Way {
    Box::new(move |times| {
        let done = Arc::new(AtomicU64::new(0));
        timed(|| {
            for issued in 0..times {
                while issued - done.load(SeqCst) >= window {
                    std::thread::yield_now();
                }
                ask.routine(&site, &done);
            }
            while done.load(SeqCst) < times {
                std::thread::yield_now();
            }
        })
    })
}

/// (b) Futures on the issuer's thread.
fn futures(ask: Ask, site: Arc<Site>, window: u64) -> Way {
    Box::new(move |times| {
        let one = |_| ask.future(Arc::clone(&site));
        timed(|| match window {
            1 => (0..times).for_each(|n| block_on(one(n))),
            _ => {
                let all = futures::stream::iter(0..times);
                block_on(all.for_each_concurrent(window as usize, one));
            }
        })
    })
}

/// (c) As many threads as requests, each of which blocks; the issuer hands over and waits.
fn blocked_threads(ask: Ask, site: &Arc<Site>, window: u64) -> Way {
    let (done, idle) = mpsc::channel();
    let drivers: Vec<_> = (0..window as usize)
        .map(|n| {
            let (hand, requests) = mpsc::channel::<()>();
            let (site, done) = (Arc::clone(site), done.clone());
            std::thread::spawn(move || {
                for () in requests {
                    ask.blocking(&site);
                    if done.send(n).is_err() {
                        break;
                    }
                }
            });
            hand
        })
        .collect();
    Box::new(move |times| {
        timed(|| {
            let mut free: Vec<_> = (0..drivers.len()).collect();
            let mut wait = || idle.recv().expect("a driver answers");
            for _ in 0..times {
                let driver = free.pop().unwrap_or_else(&mut wait);
                drivers[driver].send(()).expect("a driver listens");
            }
            (free.len()..drivers.len()).for_each(|_| {
                wait();
            });
        })
    })
}

/// (d) Boxed futures sent to a worker's executor, the results through oneshots.
fn worker(ask: Ask, site: Arc<Site>, window: u64) -> Way {
    let (hand, work) = channel::unbounded::<Boxed>();
    std::thread::spawn(move || block_on(work.for_each_concurrent(None, |future| future)));
    Box::new(move |times| {
        let mut waiting = VecDeque::new();
        timed(|| {
            for _ in 0..times {
                if waiting.len() as u64 == window {
                    let first: Option<oneshot::Receiver<()>> = waiting.pop_front();
                    block_on(first.expect("the window is full")).expect("the worker answers");
                }
                let (done, receiver) = oneshot::channel();
                let future = ask.future(Arc::clone(&site));
                let work = async move {
                    future.await;
                    let _ = done.send(());
                };
                hand.unbounded_send(Box::pin(work)).expect("a worker");
                waiting.push_back(receiver);
            }
            for receiver in waiting {
                block_on(receiver).expect("the worker answers");
            }
        })
    })
}

/// The comparison: the operation, how long the device takes, how many are outstanding.
fn comparison() -> Vec<Group> {
    let mut groups = Vec::new();
    for (name, ask) in [
        ("query", Ask::Query),
        ("create and destroy a QP", Ask::CreateDestroy),
    ] {
        for time_us in [0, 10] {
            let site = match time_us {
                0 => Site::over(Arc::new(Inline::new())),
                us => Site::over(Delayed::by(Duration::from_micros(us))),
            };
            for window in [1, 64] {
                let ways = vec![
                    ("routine", routines(ask, Arc::clone(&site), window)),
                    ("future", futures(ask, Arc::clone(&site), window)),
                    ("blocked thread", blocked_threads(ask, &site, window)),
                    ("boxed to a worker", worker(ask, Arc::clone(&site), window)),
                ];
                let title = format!("{name}, {time_us} us, {window} outstanding");
                groups.push((title, ways));
            }
        }
    }
    groups
}

/// The ratios that the project promises.
fn peers() -> Vec<Group> {
    let subject = Arc::new(Mutex::new(Subject::inline()));
    let way = |operation: fn(&Subject, u64)| -> Way {
        let subject = Arc::clone(&subject);
        Box::new(move |times| {
            let subject = subject.lock().unwrap_or_else(PoisonError::into_inner);
            timed(|| operation(&subject, times))
        })
    };
    let inline = vec![
        ("tokio oneshot", Box::new(own_oneshot) as Way),
        ("query, routine", way(Subject::query_routine)),
        ("query, future", way(Subject::query_future)),
        ("modify, routine", way(Subject::modify_routine)),
    ];
    let across = vec![
        ("tokio oneshot", across_oneshot()),
        (
            "query, pended",
            futures(Ask::Query, Site::over(Delayed::by(Duration::ZERO)), 1),
        ),
    ];
    let connect = vec![
        ("TCP connect, accept, close", tcp()),
        (
            "QP pair to RTS, destroyed",
            way(|subject, times| subject.qp_to_rts(2 * times)),
        ),
    ];
    vec![
        ("one thread".into(), inline),
        ("answered by another thread".into(), across),
        ("a connection".into(), connect),
    ]
}

fn own_oneshot(times: u64) -> Duration {
    timed(|| {
        for n in 0..times {
            let (sender, receiver) = oneshot::channel();
            sender.send(n).expect("the receiver lives");
            black_box(block_on(receiver)).expect("it was sent");
        }
    })
}

fn across_oneshot() -> Way {
    let (hand, asked) = mpsc::channel::<oneshot::Sender<u64>>();
    std::thread::spawn(move || {
        for sender in asked {
            let _ = sender.send(1);
        }
    });
    Box::new(move |times| {
        timed(|| {
            for _ in 0..times {
                let (sender, receiver) = oneshot::channel();
                hand.send(sender).expect("the thread lives");
                black_box(block_on(receiver)).expect("it answers");
            }
        })
    })
}

fn tcp() -> Way {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    Box::new(move |times| {
        timed(|| {
            for _ in 0..times {
                let ours = TcpStream::connect(address).expect("loopback");
                drop((ours, listener.accept().expect("it connected")));
            }
        })
    })
}

/// Destroys as many queue pairs as there are at once, through routines and through futures.
fn many(time_us: u64) -> Vec<(&'static str, Duration)> {
    let site = match time_us {
        0 => Site::over(Arc::new(Inline::new())),
        us => Site::over(Delayed::by(Duration::from_micros(us))),
    };
    let create = || -> Vec<Qp> {
        let one = |_| site.create_qp().wait().expect("a QP");
        (0..MANY).map(one).collect()
    };
    let (qps, done) = (create(), Arc::new(AtomicU64::new(0)));
    let routines = timed(|| {
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
    });
    let qps = create();
    let futures = timed(|| {
        let one = |qp: Qp| async { qp.destroy().await.expect("idle") };
        block_on(futures::stream::iter(qps).for_each_concurrent(None, one));
    });
    vec![("routine", routines), ("future", futures)]
}

/// Repetitions that make one turn.
fn calibrate(way: &mut Way) -> u64 {
    way(10);
    let once = way(20).as_nanos().max(1) as u64 / 20;
    (TURN.as_nanos() as u64 / once.max(1)).clamp(1, 100_000)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn run(group: Group, smoke: bool) {
    let (title, mut ways) = group;
    println!("\n{title}");
    let counts: Vec<u64> = ways.iter_mut().map(|(_, way)| calibrate(way)).collect();
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..if smoke { 1 } else { TURNS } {
        for (n, (_, way)) in ways.iter_mut().enumerate() {
            let count = if smoke { 1 } else { counts[n] };
            times[n].push(way(count).as_nanos() as f64 / count as f64);
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    for ((name, _), ns) in ways.iter().zip(&medians) {
        println!("  {name:<28} {ns:>12.1} ns  {:>8.2}", ns / medians[0]);
    }
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--test");
    let only = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let is_wanted = |title: &str| {
        only.as_ref()
            .is_none_or(|only| title.contains(only.as_str()))
    };
    let others = [mad::group(), message::group()];
    for group in peers().into_iter().chain(comparison()).chain(others) {
        if is_wanted(&group.0) {
            run(group, smoke);
        }
    }
    for time_us in [0, 10] {
        let title = format!("destroy {MANY} QPs, {time_us} us each");
        if !is_wanted(&title) {
            continue;
        }
        println!("\n{title}");
        for (name, time) in many(time_us) {
            let each = time.as_nanos() as f64 / MANY as f64;
            println!("  {name:<28} {each:>12.1} ns each, {time:.1?} in all");
        }
    }
}
