//! Instructions of a SEND of 64 bytes in RoCEv2 over UDP, each with a budget that fails the run: those of this workspace, and not
//! the kernel's.
//!
//! Two HCAs on two addresses of the loopback interface, and one thread that posts, sends and polls for both, so that each
//! step happens in one call: the post sends, a poll of the receiver places, its next one acknowledges, and a poll of the
//! sender completes. `single` and `batch` count the four steps together, with the post of the receive and the calling
//! code; the others count one step of them, for 32 messages more than are repeated: those that warm up. The engines' threads sleep: they would take packets whenever the machine has
//! kept this thread waiting, and counts would depend on its load.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use futures::executor::block_on;
use gungraun::{library_benchmark, library_benchmark_group};
use hca_sim::link::{
    Arrival, Burst, Change, Feedback, PacketLink, Refusal, Route, Sent, Udp, Waiter,
};
use hca_sim::{Hca, connect};
use verbs_core::{Access, Cq, Device, Error, Memory, Mr, Mtu, Pd, Qp, QpInit, Recv, Send, Wc};

use crate::asleep::Asleep;
use crate::budget::{TIMES, budget, budget_of};

/// Work requests in a batch.
const BATCH: usize = 16;
/// Bytes of a message.
const BYTES: usize = 64;
/// Polls of a queue before it counts as one that is polled all the time.
const POLLS: usize = 64;

/// Sockets whose thread waits for nothing but its end.
#[derive(Debug)]
struct Quiet {
    udp: Udp,
    asleep: Arc<Asleep>,
}

impl PacketLink for Quiet {
    fn addresses(&self) -> &[IpAddr] {
        self.udp.addresses()
    }

    fn mtu(&self) -> Mtu {
        self.udp.mtu()
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.udp.burst_limit(route)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.udp.transmit(burst)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.udp.receive(sink)
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.udp.feedback(route, news);
    }

    fn entropy(&mut self) -> u64 {
        self.udp.entropy()
    }

    fn change(&mut self) -> Option<Change> {
        self.udp.change()
    }

    fn refusal(&mut self) -> Option<Refusal> {
        self.udp.refusal()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Some(Arc::<Asleep>::clone(&self.asleep))
    }
}

/// One end of a connection. Dropped in this order.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    _device: Device,
    asleep: Arc<Asleep>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.asleep.end();
    }
}

impl End {
    async fn new(last: u8) -> Result<Self, Error> {
        let address = IpAddr::V4(Ipv4Addr::new(127, 92, 0, last));
        let asleep = Arc::<Asleep>::default();
        let link = Quiet {
            udp: Udp::bind(&[address]).expect("the addresses are free"),
            asleep: Arc::clone(&asleep),
        };
        let device = Hca::over(link).open().await?;
        let pd = device.alloc_pd().await?;
        let cq = device.create_cq(64).await?;
        let mr = pd
            .register(Memory::alloc(1 << 16)?, Access::LOCAL_WRITE)
            .await?;
        let qp = pd.create_qp(QpInit::rc(&cq, &cq).depth(32, 32)).await?;
        Ok(Self {
            qp,
            cq,
            mr,
            _pd: pd,
            _device: device,
            asleep,
        })
    }

    /// Makes room for that many messages.
    fn expect(&mut self, messages: usize) {
        let to = self.mr.slice(0..BYTES);
        let recv = |i| Recv::new(i).into(*black_box(&to));
        let recvs = (0..messages as u64)
            .map(recv)
            .collect::<ArrayVec<_, BATCH>>();
        let queue = self.qp.recv_queue().expect("it is here");
        queue.post_batch(&recvs).expect("there is room");
    }
}

/// Two connected queue pairs.
struct Subject {
    sender: End,
    receiver: End,
}

impl Subject {
    /// Connected, after every path has been taken often enough.
    fn new() -> Self {
        let mut subject = block_on(async {
            let (mut sender, mut receiver) = (End::new(1).await?, End::new(2).await?);
            connect(&mut sender.qp, &mut receiver.qp).await?;
            Ok::<_, Error>(Self { sender, receiver })
        })
        .expect("a connection");
        for _ in 0..POLLS {
            for end in [&mut subject.sender, &mut subject.receiver] {
                assert!(end.cq.poll(&mut [Wc::default()]).is_empty());
            }
        }
        subject.messages(BATCH as u64, BATCH);
        subject.messages(BATCH as u64, 1);
        subject
    }

    /// That many messages, or up to 15 more, so many of them in a batch.
    fn messages(&mut self, times: u64, batch: usize) {
        for _ in 0..times.div_ceil(batch as u64) {
            self.receiver.expect(batch);
            post(&mut self.sender, batch);
            receive(&mut self.receiver, batch);
            acknowledge(&mut self.receiver);
            complete(&mut self.sender, batch);
        }
    }
}

#[inline(never)]
fn post(end: &mut End, messages: usize) {
    let from = end.mr.slice(0..BYTES);
    let send = |i| Send::new(i).from(*black_box(&from)).signaled().wr;
    let queue = end.qp.send_queue().expect("it is here");
    if messages == 1 {
        queue.post(send(0)).expect("there is room");
    } else {
        let sends = (0..messages as u64)
            .map(send)
            .collect::<ArrayVec<_, BATCH>>();
        queue.post_batch(&sends).expect("there is room");
    }
}

#[inline(never)]
fn receive(end: &mut End, messages: usize) {
    take(end, messages);
    black_box("not the same function as the other");
}

#[inline(never)]
fn acknowledge(end: &mut End) {
    assert!(end.cq.poll(&mut [Wc::default()]).is_empty());
}

#[inline(never)]
fn complete(end: &mut End, messages: usize) {
    take(end, messages);
}

fn take(end: &mut End, messages: usize) {
    let mut out = [Wc::default(); BATCH];
    let mut missing = messages;
    while missing != 0 {
        let got = end.cq.poll(&mut out[..missing]);
        assert!(got.iter().all(Wc::is_ok));
        missing -= got.len();
    }
}

macro_rules! counted {
    ($($name:ident: $step:literal of $batch:expr => $budget:literal;)*) => {
        $(
            #[library_benchmark(config = budget_of($budget, $step))]
            #[bench::counted(Subject::new())]
            fn $name(mut subject: Subject) -> Subject {
                subject.messages(TIMES, $batch);
                subject
            }
        )*
    };
}

counted! {
    single_post: "counts::udp::post" of 1 => 3004;
    single_receive: "counts::udp::receive" of 1 => 2397;
    single_acknowledge: "counts::udp::acknowledge" of 1 => 2070;
    single_complete: "counts::udp::complete" of 1 => 2358;
    batch_post: "counts::udp::post" of BATCH => 1606;
    batch_receive: "counts::udp::receive" of BATCH => 1574;
    batch_acknowledge: "counts::udp::acknowledge" of BATCH => 163;
    batch_complete: "counts::udp::complete" of BATCH => 541;
}

// The aim is 1,500.
#[library_benchmark(config = budget(9_870))]
#[bench::counted(Subject::new())]
fn single(mut subject: Subject) -> Subject {
    subject.messages(TIMES, 1);
    subject
}

// A message; the aim is 400.
#[library_benchmark(config = budget(3705))]
#[bench::counted(Subject::new())]
fn batch(mut subject: Subject) -> Subject {
    subject.messages(TIMES, BATCH);
    subject
}

library_benchmark_group!(
    name = packets,
    benchmarks = [
        single,
        single_post,
        single_receive,
        single_acknowledge,
        single_complete,
        batch,
        batch_post,
        batch_receive,
        batch_acknowledge,
        batch_complete
    ]
);
