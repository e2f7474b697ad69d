//! Goal: an HCA without wall-clock deadlines has no thread, not even for destroys, and one with them has one. Method:
//! the threads of this process are counted, so this binary has a single test.

use std::fs;
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::{Clock, Instant, VirtualClock};
use hca_sim::engine::{Due, Engine};
use verbs_core::QpInit;
use verbs_core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use verbs_core::sync::{Arc, thread};

#[derive(Default)]
struct Count(AtomicU64);

impl Due for Count {
    fn due(&self, _now: Instant, _token: u64) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("procfs").count()
}

#[test]
fn thread_census() {
    let count = Arc::new(Count::default());
    let before = threads();

    let device = Hca::loopback().open().wait().expect("a device");
    for round in 0..100 {
        let pd = device.alloc_pd().wait().expect("a domain");
        let cq = device.create_cq(4).wait().expect("a queue");
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait();
        let qp = qp.expect("a queue pair");
        if round % 2 == 0 {
            qp.destroy().wait().expect("nothing holds it");
            cq.destroy().wait().expect("nothing holds it");
            pd.dealloc().wait().expect("nothing holds it");
        }
        // Else their handles are dropped, which destroys them as well (K12).
    }
    device.close().wait().expect("nothing is left");
    assert_eq!(threads(), before, "who asks for a destroy carries it out");

    let idle = Engine::new(Clock::wall());
    assert_eq!(idle.turn(), 0);
    let clock = VirtualClock::new();
    let engines: Vec<_> = (0..10).map(|_| Engine::new(clock.clone())).collect();
    for engine in &engines {
        engine.after(Duration::from_micros(10), count.clone(), 0);
    }
    assert_eq!(clock.advance(Duration::from_secs(1)), 10);
    assert_eq!(
        threads(),
        before,
        "no deadline on the wall clock, no thread"
    );

    for _ in 0..1000 {
        idle.after(Duration::from_micros(10), count.clone(), 0);
    }
    while count.0.load(SeqCst) < 1010 {
        assert_eq!(threads(), before + 1);
        thread::yield_now();
    }
    drop(idle);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while threads() > before {
        assert!(
            std::time::Instant::now() < end,
            "the thread ends with the engine"
        );
        thread::yield_now();
    }
}
