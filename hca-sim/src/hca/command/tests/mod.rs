//! Goal: requests wait, take their time, complete out of order, are cancelled and removed as at a
//! real command interface, and none is lost. Method: a provider that counts protection domains
//! behind the interface, and a virtual clock that the test moves.

mod threads;

use verbs_core::device::DeviceCore;
use verbs_core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use verbs_core::sync::{OnceLock, thread};
use verbs_core::verb::Verb;
use verbs_core::{Attr, Device, Issued, Pd, Request};

use super::*;
use crate::clock::{Clock, VirtualClock};

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Protection domains, and ports that it reports as absent.
#[derive(Default)]
struct Tiny {
    live: AtomicU32,
    inside: AtomicU32,
    most_inside: AtomicU32,
    device: OnceLock<Weak<DeviceCore>>,
}

impl Provider for Tiny {
    fn issue(&self, command: AnyCommand<'_>) {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        self.most_inside.fetch_max(inside, SeqCst);
        match command {
            AnyCommand::OpenDevice(command) => {
                let _ = self.device.set(Arc::downgrade(command.target()));
                let (args, reply) = command.split();
                reply.complete(Ok(args.build()));
            }
            AnyCommand::QueryPort(command) => {
                let error = no_port(command.port);
                command.complete(Err(error));
            }
            AnyCommand::AllocPd(command) => {
                let number = self.live.fetch_add(1, SeqCst);
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(number, Box::new(()))));
            }
            AnyCommand::DeallocPd(command) => {
                self.live.fetch_sub(1, SeqCst);
                command.complete(Ok(()));
            }
            AnyCommand::CloseDevice(command) => command.complete(Ok(())),
            other => other.refuse(Error::Unsupported(Attr::Verb)),
        }
        self.inside.fetch_sub(1, SeqCst);
    }
}

/// How a query of that port ends when it was carried out.
fn no_port(port: u8) -> Error {
    Error::Invalid {
        attr: Attr::Port,
        got: u32::from(port),
        max: 0,
    }
}

/// A command interface on a virtual clock, with a device behind it.
struct Bench {
    clock: VirtualClock,
    tiny: Arc<Tiny>,
    interface: Arc<CommandInterface>,
    device: Device,
}

fn config(slots: u32, time: CommandTime) -> CommandConfig {
    let slots = NonZeroU32::new(slots).expect("at least one");
    CommandConfig {
        slots,
        time,
        ..CommandConfig::default()
    }
}

impl Bench {
    fn new(config: CommandConfig, max_pending: u32) -> Self {
        let (clock, tiny) = (VirtualClock::new(), Arc::new(Tiny::default()));
        let engine = Engine::new(clock.clone());
        let interface = Arc::new(CommandInterface::new(tiny.clone(), engine, config));
        let device = Device::open_with(interface.clone(), max_pending);
        let device = finish(&clock, device).expect("it opens");
        Self {
            clock,
            tiny,
            interface,
            device,
        }
    }

    fn run<V: Verb>(&self, request: Request<'_, V>) -> Result<V::Output, V::Error> {
        finish(&self.clock, request)
    }

    fn counts(&self) -> (u32, u32) {
        let counters = self.interface.counters();
        (counters.executing, counters.queued)
    }

    fn alloc(&self, n: usize) -> Vec<Pd> {
        (0..n)
            .map(|_| self.run(self.device.alloc_pd()).expect("no limit"))
            .collect()
    }

    /// The device is removed, without the interface being informed.
    fn remove(&self) -> usize {
        let core = self.tiny.device.get().and_then(Weak::upgrade);
        core.expect("the bench holds the device").remove()
    }

    /// Everything must be back in its place.
    fn close(self) {
        assert_eq!(self.counts(), (0, 0));
        assert_eq!(self.device.in_flight().len(), 0);
        assert_eq!(self.tiny.live.load(SeqCst), 0);
        finish(&self.clock, self.device.close()).expect("nothing is left on it");
    }
}

/// Issues a request, and moves the clock until it has completed.
fn finish<V: Verb>(clock: &VirtualClock, request: Request<'_, V>) -> Result<V::Output, V::Error> {
    let result = Arc::new(Mutex::new(None));
    let place = Arc::clone(&result);
    let _ = request.issue(move |result| *place.lock() = Some(result));
    loop {
        if let Some(result) = result.lock().take() {
            return result;
        }
        clock.step().expect("a request that pends has a deadline");
    }
}

/// The completed requests, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Ended>>>);

/// A request's number, and how it failed if it did.
type Ended = (usize, Option<Error>);

impl Log {
    fn query(&self, device: &Device, port: u8) -> Issued {
        let log = self.clone();
        device.query_port(port).issue(move |result| {
            log.0.lock().push((usize::from(port), result.err()));
        })
    }

    fn dealloc(&self, number: usize, pd: Pd) -> Issued {
        let log = self.clone();
        pd.dealloc().issue(move |result| {
            log.0.lock().push((number, result.err().map(Error::from)));
        })
    }

    fn order(&self) -> Vec<usize> {
        self.0.lock().iter().map(|&(number, _)| number).collect()
    }

    fn result(&self, number: usize) -> Option<Error> {
        let log = self.0.lock();
        let mut results = log.iter().filter(|&&(other, _)| other == number);
        let (result, more) = (results.next().expect("it has completed"), results.next());
        assert_eq!(more, None, "K1");
        result.1
    }
}

#[test]
fn time_zero_passes_straight_through() {
    for slots in [1, u32::MAX] {
        let bench = Bench::new(config(slots, CommandTime::Zero), 0);
        let log = Log::default();
        assert!(matches!(log.query(&bench.device, 1), Issued::Completed));
        assert_eq!(log.result(1), Some(no_port(1)));
        assert_eq!(bench.interface.counters(), CommandCounters::default());
        // A limit of 0 pending requests shows that none was pending here either.
        drop(bench.alloc(3));
        bench.close();
    }
}

#[test]
fn one_slot_serves_sixty_four_requests_in_line() {
    let bench = Bench::new(config(1, CommandTime::Fixed(us(10))), 64);
    let (log, start) = (Log::default(), bench.clock.now());
    for port in 0..64 {
        assert!(matches!(log.query(&bench.device, port), Issued::Pending(_)));
    }
    assert_eq!(bench.counts(), (1, 63));
    bench.clock.advance(us(10) - Duration::from_nanos(1));
    assert_eq!(log.order(), [0; 0], "each takes its time");
    bench.clock.advance(Duration::from_nanos(1));
    assert_eq!((log.order(), bench.counts()), (vec![0], (1, 62)));
    bench.clock.run_until(start + us(640));
    assert_eq!(log.order(), (0..64).collect::<Vec<_>>());
    assert!((0..64).all(|n| log.result(n) == Some(no_port(n as u8))));
    assert_eq!(bench.interface.counters().max_queued, 63);
    bench.close();
}

#[test]
fn slots_carry_out_at_once_and_hand_over_in_line() {
    let bench = Bench::new(config(4, CommandTime::Fixed(us(1))), 64);
    let log = Log::default();
    for port in 0..10 {
        let _ = log.query(&bench.device, port);
    }
    assert_eq!(bench.counts(), (4, 6));
    bench.clock.advance(us(1));
    assert_eq!((log.order().len(), bench.counts()), (4, (4, 2)));
    bench.clock.advance(us(2));
    assert_eq!(log.order(), (0..10).collect::<Vec<_>>());
    bench.close();
}

fn drawn_order(seed: u64, order: CommandOrder) -> (Vec<usize>, Instant) {
    let time = CommandTime::Drawn {
        min: us(1),
        max: us(100),
    };
    let bench = Bench::new(
        CommandConfig {
            seed,
            order,
            ..config(64, time)
        },
        64,
    );
    let log = Log::default();
    for port in 0..64 {
        let _ = log.query(&bench.device, port);
    }
    while log.order().len() < 64 {
        bench.clock.step().expect("64 deadlines");
    }
    let end = bench.clock.now();
    bench.close();
    (log.order(), end)
}

#[test]
fn drawn_times_complete_out_of_order_and_the_seed_decides_it() {
    let in_order: Vec<usize> = (0..64).collect();
    let first = drawn_order(7, CommandOrder::OutOfOrder);
    assert_ne!(first.0, in_order);
    assert_eq!(
        first,
        drawn_order(7, CommandOrder::OutOfOrder),
        "same seed, same run"
    );
    assert_ne!(
        first.0,
        drawn_order(8, CommandOrder::OutOfOrder).0,
        "another seed, another run"
    );
    let mut sorted = first.0;
    sorted.sort_unstable();
    assert_eq!(sorted, in_order, "each once");
    assert_eq!(drawn_order(7, CommandOrder::InOrder).0, in_order);
}

#[test]
fn draws_fill_their_range_and_stay_in_it() {
    let (min, max) = (Duration::from_nanos(3), Duration::from_nanos(6));
    let mut seen = [0_u32; 4];
    for number in 0..4000 {
        let drawn = draw(CommandTime::Drawn { min, max }, 1, number);
        assert!((min..=max).contains(&drawn));
        seen[(drawn - min).as_nanos() as usize] += 1;
    }
    assert!(seen.iter().all(|n| (900..1100).contains(n)), "{seen:?}");
    assert_eq!(draw(CommandTime::Drawn { min: max, max: min }, 1, 1), max);
    let widest = CommandTime::Drawn {
        min: Duration::ZERO,
        max: Duration::MAX,
    };
    assert!(draw(widest, 1, 1) > Duration::ZERO);
}

#[test]
fn k8_cancel_takes_out_what_waits_and_leaves_alone_what_has_begun() {
    let bench = Bench::new(config(1, CommandTime::Fixed(us(10))), 64);
    let log = Log::default();
    let begun = log.query(&bench.device, 1);
    let first = log.query(&bench.device, 2);
    let _ = log.query(&bench.device, 3);
    let (Issued::Pending(begun), Issued::Pending(first)) = (begun, first) else {
        panic!("both pend")
    };
    assert!(begun.cancel(), "the hint was taken");
    assert!(first.cancel());
    assert!(!first.cancel(), "it has completed");
    assert_eq!((log.order(), bench.counts()), (vec![2], (1, 1)));
    assert_eq!(log.result(2), Some(Error::Cancelled));
    bench.clock.advance(us(20));
    assert!(!begun.cancel(), "it has completed");
    assert_eq!(log.order(), [2, 1, 3], "the line closed up");
    assert_eq!(log.result(1), Some(no_port(1)), "it was carried out");
    assert_eq!(bench.interface.counters().cancelled, 1);
    bench.close();
}

#[test]
fn k8_an_accepted_destroy_is_not_cancelled() {
    let bench = Bench::new(config(1, CommandTime::Fixed(us(10))), 64);
    let [one, two] = <[Pd; 2]>::try_from(bench.alloc(2)).expect("two");
    let log = Log::default();
    let handles = [log.dealloc(1, one), log.dealloc(2, two)];
    for issued in handles {
        let Issued::Pending(handle) = issued else {
            panic!("it takes time")
        };
        handle.cancel();
    }
    assert_eq!(bench.counts(), (1, 1));
    bench.clock.advance(us(20));
    assert_eq!((log.result(1), log.result(2)), (None, None));
    bench.close();
}

#[test]
fn a_create_cancelled_in_line_leaves_its_parent_free() {
    let bench = Bench::new(config(1, CommandTime::Fixed(us(10))), 64);
    let log = Log::default();
    let _ = log.query(&bench.device, 1);
    let result = Arc::new(Mutex::new(None));
    let place = Arc::clone(&result);
    let alloc = bench
        .device
        .alloc_pd()
        .issue(move |pd| *place.lock() = pd.err());
    assert_eq!(bench.device.objects(), 1, "a create in flight counts (K10)");
    let Issued::Pending(handle) = alloc else {
        panic!("it waits")
    };
    assert!(handle.cancel());
    assert_eq!(*result.lock(), Some(Error::Cancelled));
    assert_eq!(bench.device.objects(), 0);
    bench.clock.advance(us(10));
    bench.close();
}

#[test]
fn the_devices_limit_bounds_the_line_and_destroys_are_exempt() {
    let bench = Bench::new(config(1, CommandTime::Fixed(us(1))), 8);
    let pd = bench.alloc(1).remove(0);
    let log = Log::default();
    for port in 0..9 {
        let _ = log.query(&bench.device, port);
    }
    assert_eq!(log.order(), [8], "the ninth was refused at once");
    assert_eq!(log.result(8), Some(Error::TooManyRequests { max: 8 }));
    let _ = log.dealloc(9, pd);
    assert_eq!(bench.counts(), (1, 8));
    bench.clock.advance(us(9));
    assert_eq!(log.result(9), None);
    bench.close();
}

#[test]
fn ten_thousand_destroys_complete_out_of_order() {
    const N: usize = 10_000;
    let time = CommandTime::Drawn {
        min: us(1),
        max: us(1000),
    };
    let bench = Bench::new(
        CommandConfig {
            seed: 42,
            ..config(256, time)
        },
        16,
    );
    let pds = bench.alloc(N);
    let log = Log::default();
    for (number, pd) in pds.into_iter().enumerate() {
        let _ = log.dealloc(number, pd);
    }
    assert_eq!(bench.counts(), (256, N as u32 - 256));
    assert_eq!(bench.device.in_flight().len(), N, "each is listed (K15)");
    while log.order().len() < N {
        bench.clock.step().expect("there are deadlines");
    }
    let mut order = log.order();
    assert!(!order.is_sorted());
    order.sort_unstable();
    assert!(order.into_iter().eq(0..N), "each once");
    assert!(log.0.lock().iter().all(|(_, error)| error.is_none()));
    bench.close();
}

#[test]
fn k15_removal_ends_what_waits_and_what_has_begun_and_lets_destroys_through() {
    let bench = Bench::new(config(2, CommandTime::Fixed(us(10))), 64);
    let mut pds = bench.alloc(3);
    let log = Log::default();
    let _ = log.query(&bench.device, 10);
    let _ = log.dealloc(11, pds.remove(0));
    let _ = log.query(&bench.device, 12);
    let _ = log.dealloc(13, pds.remove(0));
    assert_eq!(bench.counts(), (2, 2));
    assert_eq!(bench.interface.fail_all(), 4);
    assert_eq!(log.order(), [10, 11, 12, 13]);
    let results = [10, 11, 12, 13].map(|n| log.result(n));
    let removed = Some(Error::DeviceRemoved);
    assert_eq!(results, [removed, None, removed, None]);
    assert_eq!(bench.counts(), (0, 0));
    assert_eq!(bench.clock.next_deadline(), None, "no timer is left");
    assert_eq!(bench.remove(), 0, "nothing pends");
    let _ = log.query(&bench.device, 14);
    assert_eq!(log.result(14), removed);
    let _ = log.dealloc(15, pds.remove(0));
    assert_eq!(log.result(15), None);
    assert_eq!(bench.device.late_completions(), 0);
    bench.close();
}

#[test]
fn k15_a_removal_that_did_not_tell_the_interface_loses_nothing_either() {
    let bench = Bench::new(config(1, CommandTime::Fixed(us(10))), 64);
    let log = Log::default();
    let _ = log.query(&bench.device, 1);
    let _ = log.query(&bench.device, 2);
    assert_eq!(bench.remove(), 2);
    assert_eq!(
        (log.result(1), log.result(2)),
        (Some(Error::DeviceRemoved), Some(Error::DeviceRemoved))
    );
    bench.clock.advance(us(20));
    assert_eq!(bench.device.late_completions(), 2, "the loser is late (K8)");
    bench.close();
}

#[test]
fn k4_routines_issue_into_the_interface_that_completes_them() {
    fn next(device: Arc<Device>, left: Arc<AtomicUsize>) {
        let again = (Arc::clone(&device), Arc::clone(&left));
        let _ = device.query_port(1).issue(move |_| {
            if left.fetch_sub(1, SeqCst) > 1 {
                next(again.0, again.1);
            }
        });
    }
    for (slots, time) in [(1, CommandTime::Fixed(us(1))), (1, CommandTime::Zero)] {
        let Bench {
            clock,
            tiny,
            interface,
            device,
        } = Bench::new(config(slots, time), 16);
        let (device, left) = (Arc::new(device), Arc::new(AtomicUsize::new(10_000)));
        next(Arc::clone(&device), Arc::clone(&left));
        while clock.step().is_some() {}
        assert_eq!(left.load(SeqCst), 0);
        let device = Arc::into_inner(device).expect("the routines are gone");
        Bench {
            clock,
            tiny,
            interface,
            device,
        }
        .close();
    }
}
