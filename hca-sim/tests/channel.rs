//! Completion and event channels over real completions.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use futures::executor::block_on;
use hca_sim::Hca;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs_core::{
    Access, Arm, Armed, CompletionChannel, Cq, Device, Error, Memory, Mr, Pd, Qp, QpInit, Recv,
    Send, Wc, collect,
};

struct Pair {
    device: Device,
    pd: Pd,
    mr: Mr,
    /// Its events go to the channel.
    cq: Cq,
    other: Cq,
    ours: Qp,
    theirs: Qp,
}

async fn pair(channel: &CompletionChannel) -> Pair {
    let device = Hca::loopback().open().await.unwrap();
    let pd = device.alloc_pd().await.unwrap();
    let cq = device.create_cq(16).channel(channel, 42).await.unwrap();
    let other = device.create_cq(16).await.unwrap();
    let mr = pd
        .register(Memory::alloc(4096).unwrap(), Access::LOCAL_WRITE)
        .await
        .unwrap();
    let mut ours = pd.create_qp(QpInit::rc(&other, &other)).await.unwrap();
    let mut theirs = pd.create_qp(QpInit::rc(&other, &cq)).await.unwrap();
    hca_sim::connect(&mut ours, &mut theirs).await.unwrap();
    Pair {
        device,
        pd,
        mr,
        cq,
        other,
        ours,
        theirs,
    }
}

impl Pair {
    fn message(&mut self) {
        self.theirs
            .post_recv(Recv::new(1).into(self.mr.slice(2048..4096)))
            .unwrap();
        self.ours
            .post_send(Send::new(2).from(self.mr.slice(0..8)))
            .unwrap();
    }
}

fn readable(fd: &impl AsFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

#[test]
fn the_descriptor_is_readable_while_events_wait() {
    let channel = CompletionChannel::new().unwrap();
    let mut pair = block_on(pair(&channel));
    pair.message();
    assert!(!readable(&channel), "not armed: no event, no system call");
    assert_eq!(pair.cq.arm(Arm::Next), Armed::Waiting);
    assert_eq!(pair.cq.poll(&mut [Wc::default(); 4]).len(), 1);
    let _ = channel.try_next();

    assert_eq!(pair.cq.arm(Arm::Next), Armed::Empty);
    assert!(!readable(&channel));
    pair.message();
    assert!(readable(&channel));
    assert_eq!(channel.wait().unwrap().token(), 42);
    assert!(!readable(&channel), "level-triggered: empty again");
    assert!(channel.try_next().is_none(), "once per arm");
    assert!(matches!(collect(|| channel.wait()), Err(Error::WouldBlock)));
}

#[test]
fn k11_a_destroy_waits_for_events_that_are_not_acknowledged() {
    let channel = CompletionChannel::new().unwrap();
    let mut pair = block_on(pair(&channel));
    assert_eq!(pair.cq.arm(Arm::Next), Armed::Empty);
    pair.message();
    let event = block_on(channel.next());
    let Pair {
        device,
        pd,
        mr,
        cq,
        other,
        ours,
        theirs,
    } = pair;
    block_on(async {
        ours.destroy().await.unwrap();
        theirs.destroy().await.unwrap();
    });
    let done = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&done);
    let _ = cq
        .destroy()
        .issue(move |result| theirs.store(result.map_or(2, |()| 1), SeqCst));
    assert_eq!(done.load(SeqCst), 0, "the event is not acknowledged");
    drop(event);
    assert_eq!(done.load(SeqCst), 1);
    block_on(async {
        mr.dereg().await.unwrap();
        pd.dealloc().await.unwrap();
        other.destroy().await.unwrap();
        device.close().await.unwrap();
    });
}

#[test]
fn events_that_nobody_took_go_with_their_queue() {
    let channel = CompletionChannel::new().unwrap();
    let mut pair = block_on(pair(&channel));
    assert_eq!(pair.cq.arm(Arm::Next), Armed::Empty);
    pair.message();
    assert!(readable(&channel));
    let Pair {
        cq, ours, theirs, ..
    } = pair;
    block_on(async {
        ours.destroy().await.unwrap();
        theirs.destroy().await.unwrap();
        cq.destroy().await.unwrap();
    });
    assert!(!readable(&channel) && channel.try_next().is_none());
}
