//! If code of the client panics in the middle of the data path, other queues lose nothing.
#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures::executor::block_on;
use hca_sim::clock::VirtualClock;
use hca_sim::link::{Arrival, Burst, Cable, Change, Feedback, PacketLink, Route, Sent, Waiter};
use hca_sim::{Hca, Loopback};
use verbs_core::{Access, Cq, Device, Memory, Mr, Mtu, Pd, Qp, QpInit, Recv, Send, Wc};

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("expected by the test: a waker");
    }
}

struct Counts(AtomicU32);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Two nodes with two connections between them, each with queues of its own.
struct Bed {
    clock: VirtualClock,
    hcas: [Arc<Hca>; 2],
    senders: Vec<Qp>,
    sends: Cq,
    receivers: Vec<Qp>,
    receives: Vec<Cq>,
    from: Mr,
    to: Mr,
    _pds: [Pd; 2],
    _devices: [Device; 2],
}

impl Bed {
    fn new(hcas: [Arc<Hca>; 2], clock: VirtualClock) -> Self {
        let [a, b] = hcas.each_ref().map(|hca| hca.open().wait().unwrap());
        let (pa, pb) = (a.alloc_pd().wait().unwrap(), b.alloc_pd().wait().unwrap());
        let region = |pd: &Pd| {
            let memory = Memory::alloc(4096).unwrap();
            pd.register(memory, Access::LOCAL_WRITE).wait().unwrap()
        };
        let (from, to) = (region(&pa), region(&pb));
        let sends = a.create_cq(64).wait().unwrap();
        let silent = b.create_cq(64).wait().unwrap();
        let receives: Vec<_> = (0..2).map(|_| b.create_cq(64).wait().unwrap()).collect();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for cq in &receives {
            let mut sender = pa.create_qp(QpInit::rc(&sends, &sends)).wait().unwrap();
            let mut receiver = pb.create_qp(QpInit::rc(&silent, cq)).wait().unwrap();
            block_on(hca_sim::connect(&mut sender, &mut receiver)).unwrap();
            for n in 0..3 {
                let recv = Recv::new(n).into(to.slice(0..64));
                receiver.post_recv(recv).unwrap();
            }
            senders.push(sender);
            receivers.push(receiver);
        }
        Self {
            clock,
            hcas,
            senders,
            sends,
            receivers,
            receives,
            from,
            to,
            _pds: [pa, pb],
            _devices: [a, b],
        }
    }

    fn loopback() -> Self {
        let (clock, link) = (VirtualClock::new(), Loopback::with_seed(1));
        let hcas = [(); 2].map(|()| Hca::on(&link).clock(clock.clone()).build());
        Self::new(hcas, clock)
    }

    fn cable() -> Self {
        let clock = VirtualClock::new();
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let (a, b) = Cable::new().plug(&[a], &[b]);
        let make = |end| Hca::over(end).clock(clock.clone()).build();
        Self::new([make(a), make(b)], clock)
    }

    /// Posts on that connection. Returns whether that panicked, which may be because of another connection.
    fn send(&mut self, n: usize, wr_id: u64) -> bool {
        let send = Send::new(wr_id).from(self.from.slice(0..8)).signaled();
        let sender = &mut self.senders[n];
        catch_unwind(AssertUnwindSafe(|| sender.post_send(send).unwrap())).is_err()
    }

    /// Lets time pass, even if code that runs in it panics.
    fn advance(&self) {
        for _ in 0..50 {
            for hca in &self.hcas {
                let _ = catch_unwind(AssertUnwindSafe(|| hca.turn()));
            }
            let step = || self.clock.advance(Duration::from_millis(1));
            let _ = catch_unwind(AssertUnwindSafe(step));
        }
    }
}

/// Goal: a waker that panics does not prevent another queue's wake, loses no completion and leaves its own queue pair
/// working. Method: two connections whose receivers are awaited, the first by a waker that panics; placed directly and
/// in packets.
#[test]
fn k14_a_waker_that_panics_loses_nobody_elses_event() {
    for mut bed in [Bed::loopback(), Bed::cable()] {
        let counts = Arc::new(Counts(AtomicU32::new(0)));
        let wakers = [
            Waker::from(Arc::new(Panics)),
            Waker::from(Arc::clone(&counts)),
        ];
        for (cq, waker) in bed.receives.iter_mut().zip(&wakers) {
            assert!(cq.poll_ready(&mut Context::from_waker(waker)).is_pending());
        }
        for n in 0..2 {
            bed.send(n, 1);
        }
        bed.advance();
        assert_eq!(counts.0.load(SeqCst), 1, "the other queue's waker");
        for n in 0..2 {
            let mut out = [Wc::default(); 4];
            assert_eq!(bed.receives[n].poll(&mut out).len(), 1);
            assert!(!bed.send(n, 2), "nobody is awaited any more");
            bed.advance();
            assert_eq!(bed.receives[n].poll(&mut out).len(), 1);
        }
        let mut out = [Wc::default(); 8];
        let mut done: Vec<_> = bed.sends.poll(&mut out).iter().map(|wc| wc.wr_id).collect();
        done.sort_unstable();
        assert_eq!(done, [1, 1, 2, 2], "each send completes once");
        assert_eq!(bed.receivers.len() + bed.to.len(), 2 + 4096);
    }
}

/// A link that panics once when it is asked to receive, as a user's may.
#[derive(Debug)]
struct Breaks<L> {
    link: L,
    now: Arc<AtomicBool>,
}

impl<L: PacketLink> PacketLink for Breaks<L> {
    fn addresses(&self) -> &[IpAddr] {
        self.link.addresses()
    }

    fn mtu(&self) -> Mtu {
        self.link.mtu()
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.link.burst_limit(route)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.link.transmit(burst)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        assert!(
            !self.now.swap(false, SeqCst),
            "expected by the test: a link"
        );
        self.link.receive(sink)
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.link.feedback(route, news);
    }

    fn entropy(&mut self) -> u64 {
        self.link.entropy()
    }

    fn change(&mut self) -> Option<Change> {
        self.link.change()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.link.waiter()
    }

    fn attach(&mut self, listener: std::sync::Weak<dyn hca_sim::engine::Due>) {
        self.link.attach(listener);
    }
}

/// Goal: a link that panics does not close its port for ever.
#[test]
fn a_port_works_on_after_its_link_has_panicked() {
    let clock = VirtualClock::new();
    let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let (a, b) = Cable::new().plug(&[a], &[b]);
    let now = Arc::new(AtomicBool::new(false));
    let broken = Breaks {
        link: b,
        now: Arc::clone(&now),
    };
    let a = Hca::over(a).clock(clock.clone()).build();
    let b = Hca::over(broken).clock(clock.clone()).build();
    let mut bed = Bed::new([a, b], clock);
    for round in 1..3 {
        now.store(true, SeqCst);
        for n in 0..2 {
            bed.send(n, round);
        }
        bed.advance();
        assert!(!now.load(SeqCst), "the link has panicked: round {round}");
        for n in 0..2 {
            let mut out = [Wc::default(); 4];
            let came = catch_unwind(AssertUnwindSafe(|| bed.receives[n].poll(&mut out).len()));
            assert_eq!(came.unwrap(), 1);
        }
    }
}
