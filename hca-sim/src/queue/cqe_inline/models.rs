//! Models of inline CQEs: one poller against threads that recall them, and against the posts that follow.
//!
//! In a model one thread has a number of its own: the first that enters a pin, which sends. Loom does not see the
//! copies, because it switches threads only at the atomics of the protocol.
//!
//! Found by them: a first offer of receives that had room for nothing, so that no inline CQE was sent; and a machine
//! whose inline CQEs were recalled, that was put off by a completion queue, and waited for the first call for ever.

use loom::thread;
use verbs_core::mem::{Region, grace, pin};
use verbs_core::sync::Arc;
use verbs_core::{
    Access, Dest, Memory, Payload, Piece, PostCode, PostError, RawCq, RawRecvQueue, RawSendQueue,
    Remote, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};

use crate::link::Loopback;
use crate::post::recv::RecvPoster;
use crate::post::send::Poster;
use crate::post::send::moves::Unguarded;
use crate::qp::QueuePair;
use crate::qp::models::{model, pair};
use crate::queue::cq::{CqPoller, Pump};

/// Two ends between which messages become inline CQEs, once the receiver has posted.
struct World {
    a: Arc<QueuePair>,
    b: Arc<QueuePair>,
    sends: Poster<Unguarded>,
    recvs: RecvPoster,
    poller: CqPoller,
    memory: Arc<Memory>,
    /// 8 bytes that are sent, and the 32 bytes that receive them.
    from: Piece,
    to: Piece,
    remote: Remote,
}

impl World {
    fn new() -> Self {
        drop(pin());
        let (a, b) = pair(&Loopback::default());
        let memory = Arc::new(Memory::alloc(64).expect("a model has memory"));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = || Region::new(Arc::clone(&memory), access, 1);
        let (key, _) = a.port.mrs.register(region()).expect("there is room");
        let (at_peer, rkey) = b.port.mrs.register(region()).expect("there is room");
        let piece = |offset, len, lkey| {
            let addr = memory.addr() + offset;
            Piece::from(Sge { addr, len, lkey })
        };
        // This thread has the number, owns both queues, and has touched all that it uses; so the first message becomes
        // an inline CQE.
        let (pin, direct) = (pin(), a.direct_path().expect("both fit"));
        for cq in [&a.send_cq, &b.recv_cq] {
            assert!(cq.enter(&pin).is_some());
        }
        let from = piece(32, 8, key);
        let found = (a.port.mrs).check(&pin, from.key(), from.addr, 8, 1, Access::empty());
        assert!(found.is_some() && direct.admits_poster(&pin));
        drop(pin);
        direct.allow_inline_cqes(true);
        Self {
            sends: Poster::<Unguarded>::new(Arc::clone(&a)),
            recvs: RecvPoster::new(Arc::clone(&b)),
            poller: CqPoller::new(
                Arc::clone(&b.recv_cq),
                Some(Arc::clone(&b.port) as Arc<dyn Pump>),
            ),
            from,
            to: piece(0, 32, at_peer),
            remote: Remote {
                addr: memory.addr(),
                rkey,
            },
            a,
            b,
            memory,
        }
    }

    /// Posts that receive in another thread.
    fn expect(mut self, wr_id: u64) -> Self {
        let post = move || {
            let posted = self.recvs.post_one(wr_id, self.to);
            posted.expect("there is room");
            self
        };
        thread::spawn(post).join().expect("a receive")
    }

    fn send(&mut self, wr_id: u64, value: u64) {
        self.memory.store_u64(32, value).expect("in bounds");
        let sent = self.sends.send(wr_id, self.from, SendFlags::empty());
        sent.expect("there is room");
    }
}

/// Polls one completion.
fn poll(poller: &mut CqPoller) -> Option<(u64, WcStatus)> {
    let mut out = [Wc::default()];
    let count = poller.poll(&mut out);
    (count == 1).then_some((out[0].wr_id, out[0].status))
}

/// What the owner of the buffer finds there after the completion was polled, before it puts something else in.
fn take(memory: &Memory) -> u64 {
    let found = memory.load_u64(0).expect("in bounds");
    memory.store_u64(0, 99).expect("in bounds");
    found
}

/// An inline CQE is polled while its queue pair goes to ERR: it is placed once, before either is over, and nothing is
/// written once the owner has the buffer back.
#[test]
fn loom_inline_cqe_close() {
    model(2, || {
        let mut world = World::new().expect(1);
        world.send(2, 7);
        let World {
            b,
            mut poller,
            memory,
            ..
        } = world;
        assert_eq!(take(&memory), 0, "it is carried in the CQE");
        let theirs = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            let early = poll(&mut poller);
            (early.map(|early| (early, take(&theirs))), poller)
        });
        b.fail();
        let (early, mut poller) = thread.join().expect("the poller does not panic");
        grace::help();
        if let Some((wc, found)) = early {
            assert_eq!((wc, found), ((1, WcStatus::Success), 7));
            assert_eq!(take(&memory), 99, "nothing was written since");
        } else {
            assert_eq!(
                take(&memory),
                7,
                "it was placed before the queue pair was in ERR"
            );
            assert_eq!(poll(&mut poller), Some((1, WcStatus::Success)));
            assert_eq!(take(&memory), 99);
        }
        assert_eq!(poll(&mut poller), None);
    });
}

/// A WRITE to the same place follows an inline CQE, which is polled in the meantime: the WRITE's bytes remain.
#[test]
fn loom_inline_cqe_order() {
    model(2, || {
        let mut world = World::new().expect(1);
        world.send(2, 7);
        let World {
            a,
            mut sends,
            mut poller,
            memory,
            from,
            remote,
            ..
        } = world;
        let thread = thread::spawn(move || {
            let early = poll(&mut poller);
            (early, poller)
        });
        memory.store_u64(32, 8).expect("in bounds");
        let posted = sends.post(&SendWr {
            wr_id: 3,
            op: SendOp::Write(remote),
            flags: SendFlags::SIGNALED,
            payload: Payload::One(from.into()),
            dest: Dest::Peer,
        });
        posted.expect("there is room");
        let (early, mut poller) = thread.join().expect("the poller does not panic");
        grace::help();
        assert_eq!(memory.load_u64(0), Ok(8), "the later message");
        let mut sent = CqPoller::new(Arc::clone(&a.send_cq), None);
        assert_eq!(poll(&mut sent).map(|wc| wc.0), Some(2));
        assert_eq!(poll(&mut sent), Some((3, WcStatus::Success)));
        let received = early.or_else(|| poll(&mut poller));
        assert_eq!(received, Some((1, WcStatus::Success)));
        assert_eq!(memory.load_u64(0), Ok(8), "nothing was written since");
    });
}

/// The receiver posts as soon as there is room: no receive is filled again before its inline CQE was polled.
#[test]
fn loom_inline_cqe_credits() {
    model(2, || {
        let mut world = World::new().expect(1).expect(2);
        world.send(10, 7);
        let World {
            mut sends,
            mut recvs,
            mut poller,
            memory,
            from,
            to,
            b,
            ..
        } = world;
        let thread = thread::spawn(move || {
            let (mut posted, mut polled) = (2, 0);
            while polled < 2 {
                match recvs.post_one(posted + 1, to).map_err(PostError::from) {
                    Ok(()) => posted += 1,
                    Err(PostError::Full { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                assert!(posted <= polled + 2, "one for each that was polled");
                match poll(&mut poller) {
                    Some(wc) => {
                        polled += 1;
                        assert_eq!(wc, (polled, WcStatus::Success));
                    }
                    None => thread::yield_now(),
                }
            }
        });
        memory.store_u64(32, 8).expect("in bounds");
        let sent: Result<(), PostCode> = sends.send(11, from, SendFlags::empty());
        sent.expect("there is room");
        thread.join().expect("the receiver does not panic");
        assert_eq!(memory.load_u64(0), Ok(8), "the last one");
        drop(b);
    });
}
