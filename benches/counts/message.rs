//! Instructions of a message of 8 bytes, and of a fast registration with its invalidate, each with a budget that fails the run.
//!
//! Measured: two queue pairs of one HCA in one thread, from the posts to the polled completions, the
//! calling code included. A crossbeam channel stands beside for the ratio.

#![allow(missing_docs, reason = "what gungraun generates has none")]
#![allow(unused_qualifications, reason = "gungraun generates paths")]

mod budget;
mod shared;

use std::hint::black_box;

use futures::executor::block_on;
use gungraun::{library_benchmark, library_benchmark_group, main};
use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Cq, Device, Extent, FastMr, LocalInv, Memory, Mr, Pd, Qp, QpInit, Read, Recv, Send,
    Sge, Wc, Write,
};

use budget::{TIMES, budget};

/// Two connected queue pairs, and what they need. Dropped in this order.
struct Subject {
    sender: Qp,
    receiver: Qp,
    sent: Cq,
    received: Cq,
    mr: Mr,
    fast: FastMr,
    _pd: Pd,
    _device: Device,
}

impl Subject {
    /// Connected, and every way has been gone once.
    fn new() -> Self {
        let mut subject = block_on(async {
            let device = Hca::loopback().open().await?;
            let pd = device.alloc_pd().await?;
            let (sent, received) = (device.create_cq(256).await?, device.create_cq(256).await?);
            let access = Access::LOCAL_WRITE | Access::REMOTE;
            let mr = pd.register(Memory::alloc(1 << 20)?, access).await?;
            let mut fast = pd.alloc_mr(1).await?;
            let page = Extent {
                memory: mr.memory(),
                offset: 0,
                len: 4096,
            };
            fast.map([page])?;
            let init = || QpInit::rc(&sent, &received).depth(64, 64).inline(64);
            let (mut sender, mut receiver) =
                (pd.create_qp(init()).await?, pd.create_qp(init()).await?);
            connect(&mut sender, &mut receiver).await?;
            Ok::<_, verbs_core::Error>(Self {
                sender,
                receiver,
                sent,
                received,
                mr,
                fast,
                _pd: pd,
                _device: device,
            })
        })
        .expect("a connection");
        subject.send(16, 1);
        subject.inline(1);
        subject.write(1);
        subject.read(1);
        subject.registration(1);
        subject
    }

    fn places(&self) -> (Sge, Sge) {
        (self.mr.slice(0..8), self.mr.slice(4096..4104))
    }

    /// That many SENDs, each time `batch` receives, `batch` sends, then the polls.
    fn send(&mut self, batch: u64, times: u64) {
        let (from, to) = self.places();
        let mut out = [Wc::default(); 16];
        for _ in 0..times.div_ceil(batch) {
            for i in 0..batch {
                let recv = Recv::new(i).into(black_box(to));
                self.receiver.post_recv(recv).expect("there is room");
            }
            for i in 0..batch {
                let send = Send::new(i).from(black_box(from)).signaled();
                self.sender.post_send(send).expect("there is room");
            }
            let out = &mut out[..batch as usize];
            assert_eq!(self.sent.poll(out).len(), batch as usize);
            assert_eq!(self.received.poll(out).len(), batch as usize);
        }
    }

    fn inline(&mut self, times: u64) {
        let (_, to) = self.places();
        let mut out = [Wc::default()];
        for i in 0..times {
            let recv = Recv::new(i).into(black_box(to));
            self.receiver.post_recv(recv).expect("there is room");
            let send = Send::new(i).inline(black_box(&[7; 8])).signaled();
            self.sender.post_send(send).expect("there is room");
            assert_eq!(self.sent.poll(&mut out).len(), 1);
            assert_eq!(self.received.poll(&mut out).len(), 1);
        }
    }

    fn write(&mut self, times: u64) {
        let (from, to) = (self.mr.slice(0..8), self.mr.remote(4096));
        let mut out = [Wc::default()];
        for i in 0..times {
            let write = Write::new(i, black_box(to))
                .from(black_box(from))
                .signaled();
            self.sender.post_send(write).expect("there is room");
            assert_eq!(self.sent.poll(&mut out).len(), 1);
        }
    }

    /// Fast registration and local invalidate of one page, each with its completion.
    fn registration(&mut self, times: u64) {
        let mut out = [Wc::default()];
        for i in 0..times {
            let key = self.fast.next_key();
            let register = self.fast.register(i, Access::REMOTE_READ).signaled();
            self.sender
                .post_send(black_box(register))
                .expect("there is room");
            let invalidate = LocalInv::new(i, black_box(key)).signaled();
            self.sender.post_send(invalidate).expect("there is room");
            assert_eq!(self.sent.poll(&mut out).len(), 1);
            assert_eq!(self.sent.poll(&mut out).len(), 1);
        }
    }

    fn read(&mut self, times: u64) {
        let (to, from) = (self.mr.slice(0..8), self.mr.remote(4096));
        let mut out = [Wc::default()];
        for i in 0..times {
            let read = Read::new(i, black_box(from)).into(black_box(to)).signaled();
            self.sender.post_send(read).expect("there is room");
            assert_eq!(self.sent.poll(&mut out).len(), 1);
        }
    }
}

macro_rules! counted {
    ($($name:ident: $operation:ident($($argument:expr),*) <= $budget:literal;)*) => {
        $(
            #[library_benchmark(config = budget($budget))]
            #[bench::counted(Subject::new())]
            fn $name(mut subject: Subject) -> Subject {
                subject.$operation($($argument,)* TIMES);
                subject
            }
        )*
    };
}

counted! {
    send: send(1) <= 482;
    send_batch: send(16) <= 442;
    send_inline: inline() <= 430;
    write: write() <= 282;
    read: read() <= 286;
    // Three times a SEND with its receive, at most.
    registration: registration() <= 1440;
}

// The SEND of `send` with handles that threads could share, and do not.
#[library_benchmark(config = budget(613))]
#[bench::counted(shared::Subject::new())]
fn send_shared(mut subject: shared::Subject) -> shared::Subject {
    subject.send(TIMES);
    subject
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
    name = message,
    benchmarks = [
        send,
        send_batch,
        send_inline,
        send_shared,
        write,
        read,
        registration,
        channel
    ]
);

main!(library_benchmark_groups = message);
