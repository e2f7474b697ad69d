//! Connections of several hosts that meet in the queue of one switch: how they share it, and what it loses.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use hca_sim::{Dcqcn, Hca};
use verbs_core::sync::Arc;
use verbs_core::{
    Access, Av, Cq, Device, Error, Memory, Mr, Mtu, Path, Psn, Qp, QpInit, Qpn, Wc, WcStatus, Write,
};

use crate::{Digest, LinkConfig, QueueHits, Sim, SwitchQueue};

/// Bytes of a message.
const MESSAGE: usize = 64 << 10;
/// Messages of a connection under way.
const DEPTH: u64 = 24;
/// A traffic class that says that packets may be marked: ECT(0).
const CAPABLE: u8 = 2;
/// The address of the memory that is written.
const IOVA: u64 = 0x1_0000_0000;
/// What a host's own port queues before the transport waits: some bursts.
const HOST_QUEUE: usize = 128 << 10;

/// Connections that begin at once, one of each host, to one host behind a [`SwitchQueue`]: each writes 64 KiB over and
/// over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    /// Determines marks and numbers.
    pub seed: u64,
    /// Connections; 8 by default, 32 at most.
    pub flows: usize,
    /// The queue.
    pub queue: SwitchQueue,
    /// How senders react; `None`: not at all.
    pub congestion: Option<Dcqcn>,
    /// The time before the measurement, in which rates may converge; 50 ms by default.
    pub before: Duration,
    /// The time of the measurement; 100 ms by default.
    pub time: Duration,
    /// How often the queue and the rates are looked at, from the beginning on; never by default.
    pub sampling: Option<Duration>,
}

/// What became of the connections of a [`Bottleneck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Bytes of each connection that were confirmed in the time of the measurement.
    pub bytes: Vec<u64>,
    /// Bytes that the queue could have served in that time.
    pub capacity: u64,
    /// The queue, since the beginning.
    pub queue: QueueHits,
    /// Work requests that have failed.
    pub failed: u64,
    /// The queue and the rates, every [`sampling`](Bottleneck::sampling).
    pub course: Vec<Sample>,
    /// The digest of everything that has happened.
    pub digest: Digest,
}

/// The queue and the rates at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Since connections began.
    pub at: Duration,
    /// Bytes that wait in the queue.
    pub waiting: usize,
    /// The rate in bytes per second to which each connection is limited; `None` while nothing limits it.
    pub rates: Vec<Option<u64>>,
}

impl Bottleneck {
    /// The bars that connections have to meet: Jain's index in percent, and the part of the capacity that they use, in
    /// percent too. No packet may be lost in the queue.
    pub const BARS: (u64, u64) = (95, 90);

    /// Eight connections at 10 Gbit/s, with the reaction and the marks of the paper.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            flows: 8,
            queue: SwitchQueue::default(),
            congestion: Some(Dcqcn::default()),
            before: Duration::from_millis(50),
            time: Duration::from_millis(100),
            sampling: None,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Those of the verbs that make the connections.
    pub fn run(&self) -> Result<Shares, Error> {
        let sim = Sim::new(self.seed);
        let target = address(0);
        let make = |address| {
            let link = sim.network().attach(&[address]);
            let hca = Hca::over(link).clock(sim.clock().clone());
            hca.congestion(self.congestion).build()
        };
        let receiver = make(target);
        let hosts: Vec<_> = (1..=self.flows.min(32)).map(|n| make(address(n))).collect();
        sim.network().set_all(LinkConfig {
            rate: self.queue.rate,
            queue: HOST_QUEUE,
            lossless: true,
            ..LinkConfig::default()
        });
        sim.network().set_queue(target, self.queue);
        let counts = Rc::new(RefCell::new(Counts {
            bytes: vec![0; hosts.len()],
            failed: 0,
        }));
        let course = Rc::new(RefCell::new(Vec::new()));
        let measured = sim.run(async {
            // What the receiver's end needs lives as long as the run.
            let (mut ends, mut observed) = (Vec::new(), Vec::new());
            for (flow, host) in hosts.iter().enumerate() {
                let (sender, end) = connect(host, &receiver).await?;
                ends.push(end);
                if self.sampling.is_some() {
                    observed.push((host.open().await?, sender.qp.qpn()));
                }
                sim.spawn(sender.write(flow, Rc::clone(&counts)));
            }
            if let Some(every) = self.sampling {
                sim.spawn(observe(sim.clone(), every, observed, Rc::clone(&course)));
            }
            sim.sleep(self.before).await;
            counts.borrow_mut().bytes.fill(0);
            sim.sleep(self.time).await;
            Ok::<_, Error>(counts.borrow().bytes.clone())
        });
        let queue = sim.network().queue(target).unwrap_or_default();
        let digest = sim.digest();
        sim.clear();
        let nanos = self.time.as_nanos() * u128::from(self.queue.rate) / 1_000_000_000;
        Ok(Shares {
            // Timers of the transport are always set, so the clock goes on.
            bytes: measured.unwrap_or_else(|_| Ok(Vec::new()))?,
            capacity: u64::try_from(nanos).unwrap_or(u64::MAX),
            queue,
            failed: counts.borrow().failed,
            course: course.take(),
            digest,
        })
    }
}

impl Shares {
    /// Jain's index of what the connections got, in percent: 100 if all got the same, and 100/n if one got everything.
    pub fn fairness(&self) -> u64 {
        let sum: u128 = self.bytes.iter().map(|&bytes| u128::from(bytes)).sum();
        let squares: u128 = self.bytes.iter().map(|&got| u128::from(got).pow(2)).sum();
        let index = (100 * sum * sum).checked_div(self.bytes.len() as u128 * squares);
        index.map_or(0, |index| u64::try_from(index).unwrap_or(100))
    }

    /// What they used of the capacity, in percent.
    pub fn used(&self) -> u64 {
        let sum: u64 = self.bytes.iter().sum();
        (100 * sum).checked_div(self.capacity).unwrap_or(0)
    }

    /// Whether the bars are met.
    pub fn is_good(&self) -> bool {
        let (fairness, used) = Bottleneck::BARS;
        self.fairness() >= fairness
            && self.used() >= used
            && self.queue.dropped == 0
            && self.failed == 0
    }
}

/// Looks at the queue and at each connection, over and over. The devices are those of their hosts.
async fn observe(
    sim: Sim,
    every: Duration,
    connections: Vec<(Device, Qpn)>,
    course: Rc<RefCell<Vec<Sample>>>,
) {
    let begun = sim.now();
    loop {
        sim.sleep(every).await;
        let mut rates = Vec::new();
        for (device, qpn) in &connections {
            let stats = device.qp_stats(*qpn).run().await;
            rates.push(stats.ok().and_then(|stats| stats.rate));
        }
        let sample = Sample {
            at: sim.now().since(begun),
            waiting: sim.network().waiting(address(0)).unwrap_or(0),
            rates,
        };
        course.borrow_mut().push(sample);
    }
}

struct Counts {
    bytes: Vec<u64>,
    failed: u64,
}

/// The sending end of a connection. Dropped in this order.
struct Sender {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    to: verbs_core::Remote,
    _device: Device,
}

/// The receiving end, in which nothing is done. Dropped in this order.
struct End {
    _qp: Qp,
    _cq: Cq,
    _mr: Mr,
    _device: Device,
}

impl Sender {
    /// Keeps messages under way, and counts those that are confirmed.
    async fn write(mut self, flow: usize, counts: Rc<RefCell<Counts>>) {
        for number in 0..DEPTH {
            self.post(number, &counts);
        }
        let mut out = [Wc::default(); DEPTH as usize];
        while self.cq.ready().await.is_ok() {
            let done: Vec<_> = self.cq.poll(&mut out).to_vec();
            for wc in done {
                if wc.status != WcStatus::Success {
                    counts.borrow_mut().failed += 1;
                    return;
                }
                counts.borrow_mut().bytes[flow] += MESSAGE as u64;
                self.post(wc.wr_id, &counts);
            }
        }
    }

    fn post(&mut self, number: u64, counts: &RefCell<Counts>) {
        let write = Write::new(number, self.to).from(self.mr.slice(0..MESSAGE));
        if self.qp.post_send(write.signaled()).is_err() {
            counts.borrow_mut().failed += 1;
        }
    }
}

/// The address of the receiver, or of the host with that number.
fn address(number: usize) -> IpAddr {
    // There are no more than 32.
    Ipv4Addr::new(10, 0, 0, number as u8 + 1).into()
}

/// A connection from the one to the other.
async fn connect(from: &Arc<Hca>, to: &Arc<Hca>) -> Result<(Sender, End), Error> {
    let (ours, theirs) = (from.open().await?, to.open().await?);
    let (our_pd, their_pd) = (ours.alloc_pd().await?, theirs.alloc_pd().await?);
    let depth = DEPTH as u32;
    let (cq, their_cq) = (ours.create_cq(depth).await?, theirs.create_cq(1).await?);
    let qp = our_pd.create_qp(QpInit::rc(&cq, &cq).depth(depth, 1));
    let qp = qp.await?;
    let their_qp = their_pd.create_qp(QpInit::rc(&their_cq, &their_cq)).await?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = our_pd.register(Memory::alloc(MESSAGE)?, rights).await?;
    // Packets name addresses, and those of memory differ from run to run.
    let their_mr = their_pd.register(Memory::alloc(MESSAGE)?, rights);
    let their_mr = their_mr.iova(IOVA).await?;
    for (qp, peer, hca) in [(&qp, &their_qp, to), (&their_qp, &qp, from)] {
        let mut av = Av::to_gid(1, 0, hca.gid());
        if let Some(global) = &mut av.global {
            global.traffic_class = CAPABLE;
        }
        let path = Path {
            av,
            dest_qpn: peer.qpn(),
            rq_psn: Psn::new(0),
            mtu: Mtu::B4096,
        };
        qp.init(1, rights).await?;
        qp.ready_to_receive(&path).await?;
        qp.ready_to_send(Psn::new(0)).await?;
    }
    let sender = Sender {
        to: their_mr.remote(0),
        qp,
        cq,
        mr,
        _device: ours,
    };
    let end = End {
        _qp: their_qp,
        _cq: their_cq,
        _mr: their_mr,
        _device: theirs,
    };
    Ok((sender, end))
}
