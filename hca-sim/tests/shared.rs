//! Queues behind the lock by which threads share them.
#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread;

use futures::executor::block_on;
use hca_sim::Hca;
use verbs_core::{
    Access, Arm, Cq, Device, Memory, Mr, Pd, PostError, Qp, QpInit, Recv, RecvQueue, Send,
    SendQueue, Shared, Srq, Wc, WcOpcode,
};

/// A connection whose sends and receives all complete on one shared queue. Dropped in this order.
struct World {
    sender: Arc<Shared<SendQueue>>,
    receiver: Shared<RecvQueue>,
    _qps: [Qp; 2],
    cq: Arc<Shared<Cq>>,
    mr: Mr,
    _pd: Pd,
    _device: Device,
}

impl World {
    fn new(handler: impl FnMut() + std::marker::Send + 'static) -> Self {
        let device = Hca::loopback().open().wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(256).handler(handler).wait().unwrap();
        let cq = Arc::new(Shared::new(cq));
        let mr = pd
            .register(Memory::alloc(4096).unwrap(), Access::LOCAL_WRITE)
            .wait()
            .unwrap();
        let make = || {
            let init = QpInit::rc(&*cq, &*cq).depth(64, 64);
            pd.create_qp(init).wait().unwrap()
        };
        let (mut a, mut b) = (make(), make());
        block_on(hca_sim::connect(&mut a, &mut b)).unwrap();
        let (a, sender, _) = a.split().unwrap();
        let (b, _, receiver) = b.split().unwrap();
        Self {
            sender: Arc::new(Shared::new(sender)),
            receiver: Shared::new(receiver),
            _qps: [a, b],
            cq,
            mr,
            _pd: pd,
            _device: device,
        }
    }

    fn recv(&self, wr_id: u64) -> Result<(), PostError> {
        let recv = Recv::new(wr_id).into(self.mr.slice(2048..2056));
        self.receiver.post(recv)
    }

    fn send(&self, wr_id: u64) -> Result<(), PostError> {
        self.sender
            .post(Send::new(wr_id).from(self.mr.slice(0..8)).signaled())
    }
}

/// Calls until there is room.
fn insist(mut post: impl FnMut() -> Result<(), PostError>) {
    loop {
        match post() {
            Ok(()) => return,
            Err(PostError::Full { .. }) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn two_threads_post_to_the_same_queues_and_two_poll_one_and_nothing_is_lost_or_doubled() {
    const EACH: u64 = 5_000;
    let world = World::new(|| ());
    let left = AtomicU64::new(4 * EACH);
    let seen = thread::scope(|scope| {
        for poster in 0..2 {
            let world = &world;
            scope.spawn(move || {
                for i in 0..EACH {
                    let wr_id = poster * EACH + i;
                    insist(|| world.recv(wr_id));
                    insist(|| world.send(wr_id));
                }
            });
        }
        let pollers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut seen = Vec::new();
                let mut out = [Wc::default(); 16];
                while left.load(Relaxed) > 0 {
                    let polled = world.cq.poll(&mut out);
                    left.fetch_sub(polled.len() as u64, Relaxed);
                    seen.extend_from_slice(polled);
                    if polled.is_empty() {
                        thread::yield_now();
                    }
                }
                seen
            })
        });
        pollers.map(|poller| poller.join().unwrap()).concat()
    });
    let mut times = BTreeMap::new();
    for wc in &seen {
        assert!(wc.is_ok(), "{wc:?}");
        *times
            .entry((wc.opcode == WcOpcode::Recv, wc.wr_id))
            .or_insert(0) += 1;
    }
    assert_eq!(times.len() as u64, 4 * EACH);
    assert!(times.values().all(|times| *times == 1));
}

/// The event of a completion is raised while the post that caused it is inside the lock; its handler posts to the same
/// queue, and polls the queue that the post completed on (K4).
#[test]
fn a_handler_uses_the_queues_whose_use_called_it() {
    const ROUNDS: u64 = 1_000;
    let world = Arc::new(OnceLock::<World>::new());
    let rounds = Arc::new(AtomicU64::new(0));
    let handler = {
        let (world, rounds) = (Arc::downgrade(&world), Arc::clone(&rounds));
        move || {
            let Some(world) = world.upgrade() else { return };
            let world = world.get().unwrap();
            let mut out = [Wc::default(); 4];
            while !world.cq.poll(&mut out).is_empty() {}
            let _ = world.cq.arm(Arm::Next);
            if rounds.fetch_add(1, Relaxed) < ROUNDS {
                world.recv(1).unwrap();
                world.send(1).unwrap();
            }
        }
    };
    assert!(world.set(World::new(handler)).is_ok());
    let end = world.get().unwrap();
    let _ = end.cq.arm(Arm::Next);
    end.recv(1).unwrap();
    end.send(1).unwrap();
    assert!(rounds.load(Relaxed) > ROUNDS);
}

#[test]
fn a_shared_receive_queue_is_shared_by_threads_too() {
    const EACH: u64 = 500;
    let device = Hca::loopback().open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let srq = Shared::new(pd.create_srq(1024, 1).wait().unwrap());
    let mut cq = device.create_cq(2048).wait().unwrap();
    let memory = Memory::alloc(64).unwrap();
    let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
    let init = QpInit::rc(&cq, &cq).srq(&srq).depth(64, 64);
    let mut receiver = pd.create_qp(init).wait().unwrap();
    let mut sender = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    block_on(hca_sim::connect(&mut sender, &mut receiver)).unwrap();
    thread::scope(|scope| {
        for poster in 0..2 {
            let (srq, mr) = (&srq, &mr);
            scope.spawn(move || {
                for i in 0..EACH {
                    let recv = Recv::new(poster * EACH + i).into(mr.slice(8..16));
                    srq.post_recv(recv).unwrap();
                }
            });
        }
    });
    let mut received = Vec::new();
    for _ in 0..2 * EACH {
        sender
            .post_send(Send::new(u64::MAX).from(mr.slice(0..8)).signaled())
            .unwrap();
        let mut out = [Wc::default(); 2];
        let polled = cq.poll(&mut out);
        assert!(polled.iter().all(Wc::is_ok));
        received.extend(polled.iter().map(|wc| wc.wr_id).filter(|id| *id < u64::MAX));
    }
    received.sort_unstable();
    assert_eq!(received, (0..2 * EACH).collect::<Vec<_>>());
    drop((sender, receiver));
    let srq: Srq = srq.into_inner();
    srq.destroy().wait().unwrap();
}

/// Goal: a waker that posts to the queue whose post has woken it is called when that post is done, so that no post runs
/// within another. Method: with one thread, and behind the lock of two.
#[test]
fn k4_a_waker_may_post_to_the_queue_that_it_was_woken_by() {
    struct Posts {
        world: OnceLock<World>,
        inside: AtomicU64,
        posted: AtomicU64,
    }
    impl Posts {
        fn post(&self, wr_id: u64) {
            assert_eq!(self.inside.fetch_add(1, Relaxed), 0, "a post within a post");
            let world = self.world.get().unwrap();
            world.send(wr_id).unwrap();
            self.posted.fetch_add(1, Relaxed);
            self.inside.fetch_sub(1, Relaxed);
        }
    }
    struct Wakes(Arc<Posts>);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            // The client does not know of the post that woke it yet: that post is returning.
            self.0.inside.store(0, Relaxed);
            (0..3).for_each(|n| self.0.post(10 + n));
        }
    }
    for two in [false, true] {
        let world = World::new(|| ());
        let mut own = world._device.create_cq(64).wait().unwrap();
        let make = || {
            world
                ._pd
                .create_qp(QpInit::rc(&*world.cq, &own).depth(64, 64))
                .wait()
                .unwrap()
        };
        let (mut a, mut b) = (make(), make());
        block_on(hca_sim::connect(&mut a, &mut b)).unwrap();
        for n in 0..16 {
            b.post_recv(Recv::new(n).into(world.mr.slice(2048..2056)))
                .unwrap();
        }
        let (a, sender, _) = a.split().unwrap();
        let world = World {
            sender: Arc::new(Shared::new(sender)),
            ..world
        };
        world.send(1).unwrap();
        if two {
            thread::scope(|scope| {
                scope.spawn(|| world.send(2).unwrap());
            });
        }
        let before = own.poll(&mut [Wc::default(); 16]).len() as u64;
        let posts = Arc::new(Posts {
            world: OnceLock::new(),
            inside: AtomicU64::new(0),
            posted: AtomicU64::new(0),
        });
        let waker = Waker::from(Arc::new(Wakes(Arc::clone(&posts))));
        let ready = own.poll_ready(&mut Context::from_waker(&waker));
        assert!(ready.is_pending());
        assert!(posts.world.set(world).is_ok());
        posts.post(3);
        assert_eq!(posts.posted.load(Relaxed), 4);
        let done = own.poll(&mut [Wc::default(); 16]).len() as u64;
        assert_eq!((before, done), (1 + u64::from(two), 4));
        drop((posts, a, b, own));
    }
}
