//! Goal: while a consumer polls, the engine's thread leaves packets to it and seldom wakes up. Method: a link that counts
//! how often that thread waits, and which threads receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::link::{Arrival, Burst, PacketLink, Sent, Udp, Waiter, Wrap};
use hca_sim::{connect, connect_with};
use verbs_core::{QpAttr, QpInit, Recv, Send, Wc, Write};

use crate::ends::{End, PATIENCE, end, end_over, free, host, next};

/// How long a link takes to send a burst, if it is one that takes long: two take longer than a consumer may be away that
/// is gone.
const LONG: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Counts {
    /// The thread that polls.
    poller: ThreadId,
    /// Waits of the engine's thread.
    waits: AtomicU64,
    /// Packets that were received by another thread than the one that polls.
    by_others: AtomicU64,
    /// How often another thread looked for packets.
    looks: AtomicU64,
}

impl Counts {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            poller: thread::current().id(),
            waits: AtomicU64::new(0),
            by_others: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        })
    }
}

#[derive(Debug)]
struct Counted {
    link: Udp,
    counts: Arc<Counts>,
    takes: Duration,
}

impl Wrap for Counted {
    fn inner(&self) -> &dyn PacketLink {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut dyn PacketLink {
        &mut self.link
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let came = self.link.receive(sink);
        if thread::current().id() != self.counts.poller {
            self.counts.by_others.fetch_add(came as u64, Relaxed);
            self.counts.looks.fetch_add(1, Relaxed);
        }
        came
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let begun = Instant::now();
        while begun.elapsed() < self.takes {}
        self.link.transmit(burst)
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Some(Arc::new(CountedWaiter {
            waiter: self.link.waiter()?,
            counts: Arc::clone(&self.counts),
        }))
    }
}

#[derive(Debug)]
struct CountedWaiter {
    waiter: Arc<dyn Waiter>,
    counts: Arc<Counts>,
}

impl Waiter for CountedWaiter {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        self.counts.waits.fetch_add(1, Relaxed);
        self.waiter.wait(timeout, packets);
    }

    fn wake(&self) {
        self.waiter.wake();
    }
}

fn counted(address: (u8, u8), counts: &Arc<Counts>, takes: Duration) -> End {
    end_over(Counted {
        link: free(host(address.0, address.1)),
        counts: Arc::clone(counts),
        takes,
    })
}

fn poll_in_vain(end: &mut End) {
    assert!(end.cq.poll(&mut [Wc::default()]).is_empty());
}

/// A thread that polls has its processor to itself, but for a look now and then. A busy machine takes it away, and then
/// there are more looks; one lot of many is enough.
#[test]
fn the_engine_s_thread_looks_seldom_at_a_consumer_that_polls() {
    const LOT: Duration = Duration::from_millis(100);
    // One in eight milliseconds, and some for the processor that was away; it was one in each.
    const WAITS: u64 = 50;
    let counts = Counts::new();
    let mut end = counted((60, 1), &counts, Duration::ZERO);
    let begun = Instant::now();
    let mut least = u64::MAX;
    while least > WAITS && begun.elapsed() < PATIENCE {
        let (lot, before) = (Instant::now(), counts.waits.load(Relaxed));
        while lot.elapsed() < LOT {
            poll_in_vain(&mut end);
        }
        least = least.min(counts.waits.load(Relaxed) - before);
    }
    assert!(least <= WAITS, "{least} waits in {LOT:?}");
}

/// One thread polls two ports, and sends from one for longer than packets of the other one are left to a poller. It is at
/// work, and not gone: it receives all that arrives at the other port.
#[test]
fn a_consumer_at_work_in_another_port_is_not_gone() {
    const WRITES: u64 = 10;
    const BYTES: usize = 256 << 10;
    let counts = Counts::new();
    let (mut slow, mut far) = (counted((61, 1), &Counts::new(), LONG), end(host(61, 4)));
    let (mut a, mut b) = (end(host(61, 2)), counted((61, 3), &counts, Duration::ZERO));
    let patient = |rts: &mut QpAttr| rts.timeout = Some(18);
    block_on(connect_with(&mut a.qp, &mut b.qp, patient)).unwrap();
    block_on(connect_with(&mut slow.qp, &mut far.qp, patient)).unwrap();
    let begun = Instant::now();
    let mut least = u64::MAX;
    while least > 0 && begun.elapsed() < PATIENCE {
        for _ in 0..32 {
            poll_in_vain(&mut b);
        }
        let before = counts.by_others.load(Relaxed);
        for n in 0..WRITES {
            let write = |from: &mut End, to: &End, len| {
                let write = Write::new(n, to.mr.remote(0)).from(from.mr.slice(0..len));
                from.qp.post_send(write.signaled()).unwrap();
            };
            // The packet is there, and the thread is not.
            write(&mut a, &b, 64);
            write(&mut slow, &far, BYTES);
            for waits in [&mut a, &mut slow] {
                while waits.cq.poll(&mut [Wc::default()]).is_empty() {
                    poll_in_vain(&mut b);
                }
            }
        }
        least = least.min(counts.by_others.load(Relaxed) - before);
    }
    assert_eq!(least, 0, "packets of {WRITES} WRITEs");
}

/// Goal: the engine's thread of a queue pair for low latency looks for more packets before it sleeps, and that of an ordinary
/// one does not. Method: a consumer that sleeps gets messages one by one; how often that thread looked for packets, for each
/// time that it slept. It does not where others need its processor; one lot of many is enough.
#[test]
fn the_thread_looks_again_where_a_queue_pair_is_for_low_latency() {
    let (begun, mut lots) = (Instant::now(), Vec::new());
    while begun.elapsed() < PATIENCE {
        let ordinary = looks_each_sleep(1, |init| init);
        let low_latency = looks_each_sleep(3, |init| init.low_latency());
        if ordinary <= 2 && low_latency >= 8 {
            return;
        }
        lots.push((ordinary, low_latency));
    }
    panic!("looks for each sleep, of an ordinary queue pair and of one for low latency: {lots:?}");
}

fn looks_each_sleep(first: u8, change: fn(QpInit<'_>) -> QpInit<'_>) -> u64 {
    const MESSAGES: u64 = 50;
    let counts = Counts::new();
    let (mut a, mut b) = (
        end(host(62, first)),
        counted((62, first + 1), &counts, Duration::ZERO),
    );
    for end in [&mut a, &mut b] {
        let init = change(QpInit::rc(&end.cq, &end.cq));
        end.qp = end._pd.create_qp(init).wait().unwrap();
    }
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    let [looks, waits] = [&counts.looks, &counts.waits].map(|count| count.load(Relaxed));
    for n in 0..MESSAGES {
        b.qp.post_recv(Recv::new(n).into(b.mr.slice(0..64)))
            .unwrap();
        let send = Send::new(n).from(a.mr.slice(0..64));
        a.qp.post_send(send.signaled()).unwrap();
        assert_eq!(next(&mut b.cq).wr_id, n);
        assert_eq!(next(&mut a.cq).wr_id, n);
    }
    let looks = counts.looks.load(Relaxed) - looks;
    looks / (counts.waits.load(Relaxed) - waits).max(1)
}
