//! Slots that threads share, in which they cancel, and which they lose.

use super::*;

/// Threads that query and allocate through one interface, and wait for each.
fn hammer(config: CommandConfig, threads: usize, rounds: usize) -> (Duration, Arc<Tiny>) {
    let tiny = Arc::new(Tiny::default());
    let engine = Engine::new(Clock::wall());
    let clock = engine.clock().clone();
    let interface = Arc::new(CommandInterface::new(tiny.clone(), engine, config));
    let device = Arc::new(Device::open(interface.clone()).wait().expect("it opens"));
    let start = clock.now();
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let device = Arc::clone(&device);
            thread::spawn(move || {
                for _ in 0..rounds {
                    assert_eq!(
                        device.query_port(3).wait().expect_err("no ports"),
                        no_port(3)
                    );
                    let pd = device.alloc_pd().wait().expect("no limit");
                    pd.dealloc().wait().expect("it is empty");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    let took = clock.now() - start;
    // The engine's thread releases the last slot after it has completed the command.
    while interface.counters().executing > 0 {
        thread::yield_now();
    }
    assert_eq!(interface.counters().queued, 0);
    assert_eq!(tiny.live.load(SeqCst), 0);
    let device = Arc::into_inner(device).expect("the threads are gone");
    device.close().wait().expect("nothing is left");
    (took, tiny)
}

#[test]
fn ten_microseconds_on_the_wall_clock() {
    let (took, _) = hammer(config(u32::MAX, CommandTime::Fixed(us(10))), 1, 50);
    assert!(
        took >= us(10) * 150,
        "150 commands one after the other took {took:?}"
    );
    let (took, tiny) = hammer(config(1, CommandTime::Fixed(us(10))), 3, 50);
    assert!(
        took >= us(10) * 450,
        "450 commands through one slot took {took:?}"
    );
    assert_eq!(tiny.most_inside.load(SeqCst), 1);
}

#[test]
fn threads_share_slots_of_time_zero() {
    let (_, tiny) = hammer(config(1, CommandTime::Zero), 4, 500);
    assert_eq!(tiny.most_inside.load(SeqCst), 1, "one slot, one command");
}

/// How many requests ended with each result.
#[derive(Default)]
struct Ends {
    carried_out: AtomicUsize,
    cancelled: AtomicUsize,
    removed: AtomicUsize,
    destroyed: AtomicUsize,
}

impl Ends {
    fn count(&self, error: Error) {
        let counter = match error {
            Error::Cancelled => &self.cancelled,
            Error::DeviceRemoved => &self.removed,
            Error::Invalid { .. } => &self.carried_out,
            other => panic!("{other}"),
        };
        counter.fetch_add(1, SeqCst);
    }

    fn queries(&self) -> usize {
        let counters = [&self.carried_out, &self.cancelled, &self.removed];
        counters.map(|counter| counter.load(SeqCst)).iter().sum()
    }
}

/// Threads that issue queries, cancel every other one, and destroy a domain each round, while the
/// device is removed if `remove` says so. Every request must end once.
fn storm(config: CommandConfig, remove: bool) -> (Arc<Ends>, CommandCounters) {
    const THREADS: usize = 3;
    const ROUNDS: usize = 200;
    let (tiny, ends) = (Arc::new(Tiny::default()), Arc::new(Ends::default()));
    let engine = Engine::new(Clock::wall());
    let interface = Arc::new(CommandInterface::new(tiny.clone(), engine, config));
    let device = Arc::new(Device::open(interface.clone()).wait().expect("it opens"));
    let mut pds: Vec<Pd> = (0..THREADS * ROUNDS)
        .map(|_| device.alloc_pd().wait().expect("no limit"))
        .collect();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (device, ends) = (Arc::clone(&device), Arc::clone(&ends));
            let pds = pds.split_off(pds.len() - ROUNDS);
            thread::spawn(move || {
                for (round, pd) in pds.into_iter().enumerate() {
                    let of_query = Arc::clone(&ends);
                    let query = device.query_port(1).issue(move |result| {
                        of_query.count(result.expect_err("it has no ports"));
                    });
                    let of_destroy = Arc::clone(&ends);
                    let destroy = pd.dealloc().issue(move |result| {
                        assert!(result.is_ok(), "an accepted destroy");
                        of_destroy.destroyed.fetch_add(1, SeqCst);
                    });
                    for issued in [query, destroy] {
                        if let (0, Issued::Pending(handle)) = (round % 2, issued) {
                            handle.cancel();
                        }
                    }
                }
            })
        })
        .collect();
    if remove {
        while ends.queries() < THREADS * ROUNDS / 4 {
            thread::yield_now();
        }
        interface.fail_all();
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    let device = Arc::into_inner(device).expect("the threads are gone");
    device.close_when_idle().wait().expect("it becomes idle");
    // A request no longer counts as a user of its target when its routine begins on another thread.
    let (clock, total) = (Clock::wall(), THREADS * ROUNDS);
    let ended = || (ends.queries(), ends.destroyed.load(SeqCst));
    while ended() != (total, total) && clock.now() < Instant::ZERO + Duration::from_secs(20) {
        thread::yield_now();
    }
    assert_eq!(ended(), (total, total), "each once (K1)");
    assert_eq!(tiny.live.load(SeqCst), 0);
    (ends, interface.counters())
}

#[test]
fn k8_threads_cancel_while_slots_are_handed_over() {
    let (ends, counters) = storm(config(1, CommandTime::Fixed(us(1))), false);
    assert_eq!(ends.removed.load(SeqCst), 0);
    assert_eq!(ends.cancelled.load(SeqCst) as u64, counters.cancelled);
    assert!(
        ends.carried_out.load(SeqCst) >= 300,
        "every other one is not cancelled"
    );
}

#[test]
fn k15_the_device_is_removed_under_load() {
    let drawn = CommandTime::Drawn {
        min: us(1),
        max: us(50),
    };
    for config in [
        config(1, CommandTime::Fixed(us(1))),
        config(4, drawn),
        config(1, CommandTime::Zero),
    ] {
        storm(config, true);
    }
}
