//! Messages over packets allocate nothing.
//!
//! The counts are of the allocations of the thread that posts and polls, which also makes packets, receives them and
//! places them: the polling thread drives.

use std::net::{IpAddr, Ipv4Addr};

use futures::executor::block_on;
use hca_sim::extension::PacketCounters;
use hca_sim::link::{PacketLink, Udp};
use hca_sim::{Hca, connect_with};
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Pd, Qp, QpAttr, QpInit, Read, Recv, Send, SendWr, Wc, Write,
};

use crate::allocator;

/// Bytes of the long messages: several packets in several bursts.
const LONG: usize = 200_000;
/// Rounds in which memory may still be allocated: lists grow to the size that they need.
const WARM: u32 = 20;
const TIMES: u32 = 50;
/// The most runs.
const RUNS: u32 = 10;

struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    device: Device,
}

fn end(last: u8) -> End {
    let address = IpAddr::V4(Ipv4Addr::new(127, 79, 0, last));
    block_on(async {
        let link = Udp::bind(&[address]).expect("an address of the loopback interface");
        let device = Hca::over(link).open().await?;
        let pd = device.alloc_pd().await?;
        let cq = device.create_cq(64).await?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd.register(Memory::alloc(1 << 20)?, rights).await?;
        let qp = pd.create_qp(QpInit::rc(&cq, &cq).inline(64)).await?;
        Ok::<_, verbs_core::Error>(End {
            qp,
            cq,
            mr,
            _pd: pd,
            device,
        })
    })
    .expect("an end")
}

/// Posts, and polls both ends until both completions, or the only one, have arrived.
fn carry<'w>(a: &mut End, b: &mut End, wr: impl Into<SendWr<'w>>, received: bool) {
    a.qp.post_send(wr).expect("there is room");
    let (mut sent, mut arrived) = (0, u32::from(!received));
    let mut one = [Wc::default()];
    let since = std::time::Instant::now();
    while sent + arrived < 2 {
        assert!(since.elapsed().as_secs() < 60, "no completion comes");
        for wc in a.cq.poll(&mut one) {
            assert!(wc.is_ok(), "{wc:?}");
            sent += 1;
        }
        for wc in b.cq.poll(&mut one) {
            assert!(wc.is_ok(), "{wc:?}");
            arrived += 1;
        }
    }
}

fn round(a: &mut End, b: &mut End) {
    for len in [8, LONG] {
        let (ours, theirs) = (a.mr.slice(0..len), b.mr.slice(0..len));
        b.qp.post_recv(Recv::new(1).into(theirs))
            .expect("there is room");
        carry(a, b, Send::new(2).from(ours).signaled(), true);
        carry(
            a,
            b,
            Write::new(3, b.mr.remote(0)).from(ours).signaled(),
            false,
        );
        carry(
            a,
            b,
            Read::new(4, b.mr.remote(0)).into(ours).signaled(),
            false,
        );
    }
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..64)))
        .expect("there is room");
    carry(
        a,
        b,
        Send::new(5).inline(b"in the work request").signaled(),
        true,
    );
}

#[test]
fn messages_over_udp_allocate_nothing() {
    let (mut a, mut b) = (end(1), end(2));
    // 8.6 s to answer: half a second is too little where a process waits for its processor.
    let patient = |rts: &mut QpAttr| rts.timeout = Some(18);
    block_on(connect_with(&mut a.qp, &mut b.qp, patient)).expect("connected");
    for _ in 0..WARM {
        round(&mut a, &mut b);
    }
    // A packet that arrives before the one it follows is kept in memory of its own. On a busy machine that happens;
    // such a run says nothing about the others.
    for _ in 0..RUNS {
        let early = kept_early(&a) + kept_early(&b);
        let before = allocator::calls();
        for _ in 0..TIMES {
            round(&mut a, &mut b);
        }
        let calls = allocator::calls() - before;
        if kept_early(&a) + kept_early(&b) == early {
            assert_eq!(calls, 0);
            return;
        }
    }
    panic!("packets came early in each of {RUNS} runs");
}

/// Goal: a thread that sleeps between messages costs no more memory than one that polls.
#[test]
fn a_wait_for_packets_allocates_nothing() {
    let address = IpAddr::V4(Ipv4Addr::new(127, 79, 0, 3));
    let link = Udp::bind(&[address]).expect("an address of the loopback interface");
    let waiter = link.waiter().expect("packets arrive by themselves");
    let before = allocator::calls();
    for packets in [true, false] {
        waiter.wake();
        waiter.wait(None, packets);
    }
    assert_eq!(allocator::calls() - before, 0);
}

/// Packets that have arrived before the ones they follow.
fn kept_early(end: &End) -> u64 {
    let counters = end.device.call::<PacketCounters>(());
    counters.wait().expect("it counts").kept_early
}
