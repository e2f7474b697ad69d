//! Moderation: an armed queue fires at a number of completions or after a time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use verbs_core::{
    Access, Arm, Armed, Attr, Cq, Device, Error, Memory, Mr, Pd, Qp, QpInit, Recv, Send, Wc,
};

/// A connection whose receiver's completion queue counts its events.
struct World {
    clock: VirtualClock,
    events: Arc<AtomicU32>,
    mr: Mr,
    recv_cq: Cq,
    ours: Qp,
    theirs: Qp,
    _held: (Device, Pd, Cq),
}

fn world() -> World {
    let clock = VirtualClock::new();
    let device = Hca::loopback().clock(clock.clone()).open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let events = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&events);
    let handler = move || {
        count.fetch_add(1, SeqCst);
    };
    let recv_cq = device.create_cq(64).handler(handler).wait().unwrap();
    let send_cq = device.create_cq(64).wait().unwrap();
    let memory = Memory::alloc(4096).unwrap();
    let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
    let mut ours = pd.create_qp(QpInit::rc(&send_cq, &send_cq)).wait().unwrap();
    let init = QpInit::rc(&send_cq, &recv_cq).depth(1, 64);
    let mut theirs = pd.create_qp(init).wait().unwrap();
    futures::executor::block_on(hca_sim::connect(&mut ours, &mut theirs)).unwrap();
    World {
        clock,
        events,
        mr,
        recv_cq,
        ours,
        theirs,
        _held: (device, pd, send_cq),
    }
}

impl World {
    fn message(&mut self) {
        let receive = Recv::new(1).into(self.mr.slice(2048..4096));
        self.theirs.post_recv(receive).unwrap();
        let send = Send::new(2).from(self.mr.slice(0..8)).signaled();
        self.ours.post_send(send).unwrap();
        self._held.2.poll(&mut [Wc::default(); 4]);
    }

    fn messages(&mut self, n: u32) -> u32 {
        (0..n).for_each(|_| self.message());
        self.events.swap(0, SeqCst)
    }

    fn drain(&mut self) -> usize {
        self.recv_cq.poll(&mut [Wc::default(); 64]).len()
    }
}

const PERIOD: Duration = Duration::from_micros(100);

#[test]
fn an_event_comes_with_the_count_or_after_the_period() {
    let mut world = world();
    world.recv_cq.moderate(3, PERIOD).wait().unwrap();
    assert_eq!(world.recv_cq.arm(Arm::Next), Armed::Empty);
    assert_eq!(world.messages(2), 0);
    assert_eq!(world.messages(1), 1, "the third");
    assert_eq!(world.messages(5), 0, "once per arm");
    assert_eq!(world.drain(), 8);

    assert_eq!(world.recv_cq.arm(Arm::Next), Armed::Empty);
    world.clock.advance(PERIOD);
    assert_eq!(world.messages(1), 0);
    world.clock.advance(PERIOD - Duration::from_nanos(1));
    assert_eq!(world.messages(0), 0, "a moment early");
    world.clock.advance(Duration::from_nanos(1));
    assert_eq!(world.messages(0), 1, "one is enough after the period");
    world.clock.advance(PERIOD * 10);
    assert_eq!(world.messages(0), 0);
}

#[test]
fn a_queue_is_armed_for_a_number_of_completions() {
    let mut world = world();
    assert_eq!(world.recv_cq.arm(Arm::Count(3)), Armed::Empty);
    assert_eq!(world.messages(2), 0);
    assert_eq!(
        (world.recv_cq.peek(64), world.recv_cq.peek(1)),
        (Some(2), Some(1))
    );
    assert_eq!(world.messages(1), 1, "the third");
    assert_eq!(world.messages(5), 0, "once per arm");
    assert_eq!(
        (
            world.recv_cq.peek(64),
            world.drain(),
            world.recv_cq.peek(64)
        ),
        (Some(8), 8, Some(0))
    );

    assert_eq!(world.messages(2), 0);
    assert_eq!(
        world.recv_cq.arm(Arm::Count(3)),
        Armed::Empty,
        "two of three wait"
    );
    assert_eq!(world.messages(1), 1, "those that wait count");
    assert_eq!(world.recv_cq.arm(Arm::Count(3)), Armed::Waiting);
    world.drain();

    assert_eq!(world.recv_cq.arm(Arm::Count(9)), Armed::Empty);
    assert_eq!(
        world.recv_cq.arm(Arm::Count(2)),
        Armed::Empty,
        "the smaller one"
    );
    assert_eq!((world.messages(1), world.messages(1)), (0, 1));
    world.drain();
    assert_eq!(world.recv_cq.arm(Arm::Count(9)), Armed::Empty);
    assert_eq!(
        world.recv_cq.arm(Arm::Next),
        Armed::Empty,
        "any is wanted now"
    );
    assert_eq!(world.messages(1), 1);
    world.drain();
    assert_eq!(world.recv_cq.arm(Arm::Next), Armed::Empty);
    assert_eq!(
        world.recv_cq.arm(Arm::Count(9)),
        Armed::Empty,
        "that is not taken back"
    );
    assert_eq!(world.messages(1), 1);
    world.drain();

    assert_eq!(world.recv_cq.arm(Arm::Count(1_000)), Armed::Empty);
    assert_eq!(world.messages(63), 0);
    assert_eq!(world.messages(1), 1, "a full queue is as much as can wait");
}

#[test]
fn a_number_and_a_period_go_together() {
    let mut world = world();
    world.recv_cq.moderate(0, PERIOD).wait().unwrap();
    let info = world.recv_cq.query().wait().unwrap();
    assert_eq!(
        (info.cqe, info.moderation_count, info.moderation_period_us),
        (64, 0, 100)
    );
    assert!(!info.overrun);
    assert_eq!(world.recv_cq.arm(Arm::Count(3)), Armed::Empty);
    assert_eq!(world.messages(2), 0);
    world.clock.advance(PERIOD);
    assert_eq!(world.messages(0), 1, "the period is over");
}

#[test]
fn a_period_alone_and_a_count_alone() {
    let mut world = world();
    world.recv_cq.moderate(0, PERIOD).wait().unwrap();
    assert_eq!(world.recv_cq.arm(Arm::Next), Armed::Empty);
    assert_eq!(world.messages(9), 0);
    world.clock.advance(PERIOD);
    assert_eq!(world.messages(0), 1);
    world.drain();

    world.recv_cq.moderate(4, Duration::ZERO).wait().unwrap();
    assert_eq!(world.recv_cq.arm(Arm::Next), Armed::Empty);
    assert_eq!(world.messages(3), 0);
    world.clock.advance(PERIOD * 1000);
    assert_eq!(world.messages(0), 0, "no time makes three into four");
    assert_eq!(world.messages(1), 1);
}

#[test]
fn ending_it_delivers_what_was_held_back() {
    let mut world = world();
    world.recv_cq.moderate(10, Duration::ZERO).wait().unwrap();
    assert_eq!(world.recv_cq.arm(Arm::Next), Armed::Empty);
    assert_eq!(world.messages(2), 0);
    world.recv_cq.moderate(0, Duration::ZERO).wait().unwrap();
    assert_eq!(world.messages(0), 1);
    world.drain();
    assert_eq!(world.recv_cq.arm(Arm::Next), Armed::Empty);
    assert_eq!(world.messages(1), 1, "as without moderation");
    let long = Duration::from_millis(66);
    let refused = world.recv_cq.moderate(2, long).wait().unwrap_err();
    assert_eq!(
        refused,
        Error::Invalid {
            attr: Attr::Moderation,
            got: 66_000,
            max: 65_535
        }
    );
}
