//! Many destroys at once: none waits for another (P4).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandTime};
use verbs_core::testing::{Hold, Null, Subject};
use verbs_core::{Issued, Kind, QpInit};

const MANY: usize = 10_000;

#[test]
fn ten_thousand_destroys_complete_out_of_order() {
    let clock = VirtualClock::new();
    let (min, max) = (Duration::from_micros(1), Duration::from_millis(1));
    let config = CommandConfig {
        time: CommandTime::Drawn { min, max },
        seed: 5,
        ..CommandConfig::default()
    };
    let hca = Hca::loopback()
        .clock(clock.clone())
        .commands(config)
        .build();
    let (opens, steps) = (Arc::clone(&hca), clock.clone());
    let subject = Subject::opened_by(move || opens.open()).step(move || {
        steps.step();
    });
    let device = subject.device();
    let pd = subject.must(device.alloc_pd());
    let cq = subject.must(device.create_cq(4));
    let made = Arc::new(Mutex::new(Vec::with_capacity(MANY)));
    while made.lock().unwrap().len() < MANY {
        // Creates are limited; four thousand fit.
        let before = made.lock().unwrap().len();
        for _ in 0..(MANY - before).min(4_000) {
            let theirs = Arc::clone(&made);
            let _ = pd
                .create_qp(QpInit::rc(&cq, &cq))
                .issue(move |qp| theirs.lock().unwrap().push(qp.unwrap()));
        }
        subject.until("the queue pairs are made", || device.in_flight().is_empty());
    }

    let order = Arc::new(Mutex::new(Vec::with_capacity(MANY)));
    let queue_pairs = std::mem::take(&mut *made.lock().unwrap());
    assert_eq!(queue_pairs.len(), MANY);
    for (n, qp) in queue_pairs.into_iter().enumerate() {
        let order = Arc::clone(&order);
        let issued = qp.destroy().issue(move |result| {
            result.unwrap();
            order.lock().unwrap().push(n);
        });
        assert!(matches!(issued, Issued::Pending(_)));
    }
    let list = device.in_flight();
    assert_eq!(list.len(), MANY, "beyond the limit of ordinary requests");
    assert!(list.iter().all(|entry| entry.verb == Kind::DestroyQp));

    subject.until("they complete", || order.lock().unwrap().len() == MANY);
    let mut order = std::mem::take(&mut *order.lock().unwrap());
    let overtaken = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(overtaken > MANY / 4, "{overtaken} of {MANY} out of order");
    order.sort_unstable();
    assert!(order.into_iter().eq(0..MANY), "each exactly once");
    assert!(device.in_flight().is_empty());
    subject.must(pd.dealloc());
    subject.must(cq.destroy());
    assert_eq!(device.objects(), 0);
    subject.must(device.close());
}

#[test]
fn p4_a_destroy_that_hangs_holds_up_no_other() {
    let null = Arc::new(Null::default());
    let hold = Hold::over(null.clone());
    let steps = Arc::clone(&hold);
    let subject = Subject::new(hold.clone()).step(move || {
        steps.step();
    });
    let device = subject.device();
    let mut pds: Vec<_> = (0..100).map(|_| subject.must(device.alloc_pd())).collect();
    let gone = Arc::new(Mutex::new(Vec::new()));
    for (n, pd) in pds.drain(..).enumerate() {
        let gone = Arc::clone(&gone);
        let _ = pd.dealloc().issue(move |result| {
            result.unwrap();
            gone.lock().unwrap().push(n);
        });
    }
    let stuck = hold.take(0).unwrap();
    hold.run();
    assert!(gone.lock().unwrap().iter().copied().eq(1..100));
    let list = device.in_flight();
    assert_eq!((list.len(), list[0].verb), (1, Kind::DeallocPd), "visible");
    stuck.forward(&*null);
    assert_eq!(gone.lock().unwrap().last(), Some(&0));
    assert_eq!((null.live(), device.objects()), (0, 0));
    subject.must(device.close());
}
