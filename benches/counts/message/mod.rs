//! Instructions of a message of 8 bytes, and of a fast registration with its invalidate, each with a budget that fails the run.
//!
//! Measured: two queue pairs of one HCA in one thread, from the posts to the polled completions, the calling code
//! included. A crossbeam channel is measured for the ratio.

mod awaited;
mod shared;

use std::hint::black_box;

use arrayvec::ArrayVec;
use futures::executor::block_on;
use gungraun::{library_benchmark, library_benchmark_group};
use verbs_benches::pair::Pair;
use verbs_core::{Access, Arm, Armed, Extent, FastMr, LocalInv, Recv, Send, Wc};

use crate::budget::{TIMES, budget};

/// Work requests in a batch.
const BATCH: usize = 16;

/// Two connected queue pairs, and a key for fast registrations.
struct Subject {
    fast: FastMr,
    pair: Pair,
}

impl Subject {
    /// Connected, after every path has been taken once.
    fn new() -> Self {
        let mut subject = block_on(async {
            let pair = Pair::new().await?;
            let mut fast = pair.pd.alloc_mr(1).await?;
            let page = Extent {
                memory: pair.mr.memory(),
                offset: 0,
                len: 4096,
            };
            fast.map([page])?;
            Ok::<_, verbs_core::Error>(Self { fast, pair })
        })
        .expect("a connection");
        subject.send_batches(1);
        subject.inline(1);
        subject.pair.write(1);
        subject.pair.read(1);
        subject.registration(1);
        subject
    }

    /// That many SENDs in batches, or up to 15 more: receives, sends, polls. Work requests are built each time.
    fn send_batches(&mut self, times: u64) {
        let pair = &mut self.pair;
        let ((from, to), mut out) = (pair.places(), [Wc::default(); BATCH]);
        for _ in 0..times.div_ceil(BATCH as u64) {
            let recv = |i| Recv::new(i).into(*black_box(&to));
            let recvs = (0..BATCH as u64).map(recv).collect::<ArrayVec<_, BATCH>>();
            let recv_queue = pair.receiver.recv_queue().expect("it is here");
            recv_queue.post_batch(&recvs).expect("there is room");
            let send = |i| Send::new(i).from(*black_box(&from)).signaled().wr;
            let sends = (0..BATCH as u64).map(send).collect::<ArrayVec<_, BATCH>>();
            let send_queue = pair.sender.send_queue().expect("it is here");
            send_queue.post_batch(&sends).expect("there is room");
            assert_eq!(pair.sent.poll(&mut out).len(), BATCH);
            assert_eq!(pair.received.poll(&mut out).len(), BATCH);
        }
    }

    fn inline(&mut self, times: u64) {
        let pair = &mut self.pair;
        let (_, to) = pair.places();
        let mut out = [Wc::default()];
        for i in 0..times {
            let recv = Recv::new(i).into(*black_box(&to));
            pair.receiver.post_recv(recv).expect("there is room");
            let send = Send::new(i).inline(black_box(&[7; 8])).signaled();
            pair.sender.post_send(send).expect("there is room");
            assert_eq!(pair.sent.poll(&mut out).len(), 1);
            assert_eq!(pair.received.poll(&mut out).len(), 1);
        }
    }

    /// Fast registration and local invalidate of one page, each with its completion.
    fn registration(&mut self, times: u64) {
        let mut out = [Wc::default()];
        for i in 0..times {
            let key = self.fast.next_key();
            let register = self.fast.register(i, Access::REMOTE_READ).signaled();
            self.pair
                .sender
                .post_send(black_box(register))
                .expect("there is room");
            let invalidate = LocalInv::new(i, black_box(key)).signaled();
            self.pair
                .sender
                .post_send(invalidate)
                .expect("there is room");
            assert_eq!(self.pair.sent.poll(&mut out).len(), 1);
            assert_eq!(self.pair.sent.poll(&mut out).len(), 1);
        }
    }
}

macro_rules! counted {
    ($($name:ident: $($operation:ident).+ <= $budget:literal;)*) => {
        $(
            #[library_benchmark(config = budget($budget))]
            #[bench::counted(Subject::new())]
            fn $name(mut subject: Subject) -> Subject {
                subject.$($operation).+(TIMES);
                subject
            }
        )*
    };
}

counted! {
    send: pair.send <= 420;
    send_batch: send_batches <= 301;
    send_inline: inline <= 399;
    write: pair.write <= 247;
    read: pair.read <= 249;
    // At most three times a SEND with its receive.
    registration: registration <= 1298;
}

// The SEND of `send` with handles that threads could share, but do not.
#[library_benchmark(config = budget(567))]
#[bench::counted(shared::Subject::new())]
fn send_shared(mut subject: shared::Subject) -> shared::Subject {
    subject.send(TIMES);
    subject
}

/// The subject of [`Subject::new`], after both completion queues were armed and have had their events.
fn armed_once() -> Subject {
    let mut subject = Subject::new();
    for cq in [&mut subject.pair.sent, &mut subject.pair.received] {
        assert_eq!(cq.arm(Arm::Next), Armed::Empty);
    }
    subject.pair.send(1);
    subject
}

// The SEND of `send`, and at most 30 instructions more.
#[library_benchmark(config = budget(450))]
#[bench::counted(armed_once())]
fn send_after_arm(mut subject: Subject) -> Subject {
    subject.pair.send(TIMES);
    subject
}

macro_rules! awaited {
    ($($name:ident: $operation:ident <= $budget:literal;)*) => {
        $(
            #[library_benchmark(config = budget($budget))]
            #[bench::counted(awaited::Subject::new())]
            fn $name(mut subject: awaited::Subject) -> awaited::Subject {
                subject.$operation(TIMES);
                subject
            }
        )*
    };
}

// The current counts, which are above the targets: 735, 400, 400 and 1535.
awaited! {
    awaited_send: send <= 819;
    awaited_write: write <= 412;
    awaited_read: read <= 414;
    awaited_parked: parked <= 2351;
}

#[library_benchmark]
#[bench::peer()]
fn channel() {
    let (sender, receiver) = crossbeam_channel::bounded(256);
    for word in 0..TIMES {
        sender.send(black_box(word)).expect("there is room");
        black_box(receiver.recv()).expect("a word waits");
    }
}

library_benchmark_group!(
    name = messages,
    benchmarks = [
        send,
        send_batch,
        send_inline,
        send_shared,
        send_after_arm,
        write,
        read,
        registration,
        awaited_send,
        awaited_write,
        awaited_read,
        awaited_parked,
        channel
    ]
);
