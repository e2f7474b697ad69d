//! Models of pushing and arming.
//!
//! In a model one thread has a number of its own and the others have none (module `verbs_core::mem`), so the models can
//! show one owner and later pushers, but not two owners.
//!
//! Not seen: `look_again` that loads the words which it reads by read-modify-writes. In models a thread that leaves a
//! pin fences; the real one does not, and then nothing else orders its load.

use loom::thread;
use verbs_core::mem::pin;
use verbs_core::sync::atomic::Ordering::Release;
use verbs_core::{Arm, Armed, Qpn, RawCq, Wc, WcOpcode};

use super::*;
use crate::clock::VirtualClock;
use crate::engine::Engine;
use crate::link::Loopback;
use crate::qp::cq_resize::resize;
use crate::qp::models::model;

fn ring(cqe: u32) -> Arc<CqRing> {
    Arc::new(CqRing::new(cqe, Arc::default(), None, false).expect("a model has memory"))
}

fn push(ring: &CqRing, wr_id: u64) -> Option<Pushed> {
    let pin = pin();
    let way = ring.enter(&pin)?;
    let pushed = ring.push(
        way,
        &Cqe::success(wr_id, Qpn::new(1), WcOpcode::Send, 0),
        |_| {},
    );
    Some(pushed.expect("the ring is large enough"))
}

/// Pushes its number when the queue has changed hands.
struct Late {
    ring: Arc<CqRing>,
    wr_id: u64,
    done: AtomicBool,
}

impl WaitsForCq for Late {
    fn go_on(self: Arc<Self>) {
        if !self.done.load(Relaxed) {
            let pushed = push(&self.ring, self.wr_id).is_some();
            self.done.store(pushed, Relaxed);
            if !pushed {
                // The end of a resize calls all waiters, also those that are not the owner.
                self.wait();
            }
        }
    }
}

impl Late {
    fn wait(self: Arc<Self>) {
        if self.ring.convert(Arc::clone(&self) as Arc<dyn WaitsForCq>) {
            self.go_on();
        }
    }
}

fn push_or_wait(ring: &Arc<CqRing>, wr_id: u64) {
    if push(ring, wr_id).is_none() {
        let done = AtomicBool::new(false);
        let late = Arc::new(Late {
            ring: Arc::clone(ring),
            wr_id,
            done,
        });
        late.wait();
    }
}

fn polled(ring: &Arc<CqRing>) -> Vec<u64> {
    let mut out = [Wc::default(); 8];
    let count = CqPoller::new(Arc::clone(ring), None).poll(&mut out);
    out[..count].iter().map(|wc| wc.wr_id).collect()
}

/// The first pusher owns the tail, a second converts the queue: no entry is lost or written twice.
#[test]
fn loom_cq_biased() {
    model(2, || {
        let ring = ring(4);
        push_or_wait(&ring, 1);
        let other = Arc::clone(&ring);
        let thread = thread::spawn(move || push_or_wait(&other, 10));
        push_or_wait(&ring, 2);
        thread.join().expect("the other thread does not panic");
        grace::help();
        let mut seen = polled(&ring);
        assert!(seen.iter().position(|&id| id == 1) < seen.iter().position(|&id| id == 2));
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 10]);
    });
}

/// Two threads push to a shared queue: the consumer sees each one's entries in order.
#[test]
fn loom_cq_shared_order() {
    model(2, || {
        let ring = ring(4);
        let nobody = Late {
            ring: Arc::clone(&ring),
            wr_id: 0,
            done: AtomicBool::new(true),
        };
        assert!(!ring.convert(Arc::new(nobody)));
        let other = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            for wr_id in [10, 11] {
                assert!(push(&other, wr_id).is_some());
            }
        });
        assert!(push(&ring, 1).is_some());
        let early = polled(&ring);
        assert!(
            early.iter().all(|id| [1, 10, 11].contains(id)),
            "no half-written entry"
        );
        assert!(push(&ring, 2).is_some());
        thread.join().expect("the other thread does not panic");
        let all = polled(&ring);
        assert_eq!(all.len(), 4);
        let at = |wr_id| all.iter().position(|&id| id == wr_id);
        assert!(at(1) < at(2) && at(10) < at(11));
    });
}

/// A push against the first arm and a later one: a consumer that was told that nothing waits gets the event.
#[test]
fn loom_cq_arm() {
    arm(|ring, wr_id| push(ring, wr_id).expect("nobody else pushes").fire);
}

fn arm(push_as_owner: fn(&CqRing, u64) -> bool) {
    for armed_before in [false, true] {
        model(2, move || {
            let ring = ring(2);
            let mut poller = CqPoller::new(Arc::clone(&ring), None);
            if armed_before {
                assert_eq!(poller.arm(Arm::Next), Armed::Empty);
                ring.consumer.arm.store(0, Relaxed);
            }
            let other = Arc::clone(&ring);
            let thread = thread::spawn(move || u32::from(push_as_owner(&other, 1)));
            let armed = poller.arm(Arm::Next);
            let fired = thread.join().expect("the other thread does not panic");
            grace::help();
            let wanted = ring.consumer.arm.load(Relaxed);
            if armed == Armed::Empty {
                assert_eq!(wanted, 0, "the event was delivered");
            }
            assert!(
                fired == 0 || wanted == 0,
                "who fires takes the want with it"
            );
        });
    }
}

/// A queue is resized while a thread pushes, another waits to, and the consumer polls: each completion arrives once,
/// and those of each thread in order. Tried with a defect put in: if pushers are not refused in the meantime, or
/// refused ones are not called, completions are lost.
#[test]
fn loom_cq_resize() {
    model(2, || {
        let ring = ring(2);
        push_or_wait(&ring, 1);
        let mut poller = CqPoller::new(Arc::clone(&ring), None);
        let other = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            let port =
                crate::qp::models::port(&Loopback::default(), &Engine::new(VirtualClock::new()));
            let buffer = other.next_lane(4).expect("a model has memory");
            let resized = Arc::new(AtomicBool::new(false));
            let tell = Arc::clone(&resized);
            resize(&other, buffer, port, move |size| {
                tell.store(size == Ok(4), Release)
            });
            resized
        });
        push_or_wait(&ring, 2);
        let mut out = [Wc::default(); 8];
        let early = poller.poll(&mut out);
        push_or_wait(&ring, 3);
        let resized = thread.join().expect("the other thread does not panic");
        grace::help();
        assert!(resized.load(Acquire));
        let late = poller.poll(&mut out[early..]);
        let seen: Vec<u64> = out[..early + late].iter().map(|wc| wc.wr_id).collect();
        assert_eq!(seen, [1, 2, 3]);
    });
}

/// The consumer arms a queue for the first time while it is resized: if it was told that nothing waits, it gets the
/// event.
#[test]
fn loom_cq_resize_arm() {
    model(2, || {
        let ring = ring(2);
        let mut poller = CqPoller::new(Arc::clone(&ring), None);
        let other = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            let port =
                crate::qp::models::port(&Loopback::default(), &Engine::new(VirtualClock::new()));
            let buffer = other.next_lane(4).expect("a model has memory");
            resize(&other, buffer, port, |_| {});
            push(&other, 1).map(|pushed| pushed.fire)
        });
        let armed = poller.arm(Arm::Next);
        let fired = thread.join().expect("the other thread does not panic");
        grace::help();
        let wanted = ring.consumer.arm.load(Relaxed);
        if armed == Armed::Empty && fired.is_some() {
            assert_eq!(wanted, 0, "the event was delivered");
        }
    });
}

/// Two pushers to a queue that fires at two completions: neither alone is enough, and the thread that was too early
/// does not overlook the push that makes them two. Tried without the second look.
#[test]
fn loom_cq_moderation() {
    model(2, || {
        let ring = ring(4);
        let nobody = Late {
            ring: Arc::clone(&ring),
            wr_id: 0,
            done: AtomicBool::new(true),
        };
        assert!(!ring.convert(Arc::new(nobody)));
        ring.moderate(&Engine::new(VirtualClock::new()), 2, 0);
        let mut poller = CqPoller::new(Arc::clone(&ring), None);
        assert_eq!(poller.arm(Arm::Next), Armed::Empty);
        let push_and_fire = |ring: &CqRing, wr_id| {
            let pushed = push(ring, wr_id).expect("it is shared");
            if pushed.fire {
                ring.fire();
            }
        };
        let other = Arc::clone(&ring);
        let thread = thread::spawn(move || push_and_fire(&other, 10));
        push_and_fire(&ring, 1);
        thread.join().expect("the other thread does not panic");
        let wanted = ring.consumer.arm.load(Relaxed);
        assert_eq!(wanted, 0, "two wait, so the event was delivered");
    });
}

/// A pusher that pushes alone fills a ring of two entries twice, by the short path of messages, while the consumer
/// polls: each entry arrives whole and in order, and none is filled before it was polled.
#[test]
fn loom_cq_short() {
    model(2, || {
        drop(pin());
        let ring = ring(2);
        push_or_wait(&ring, 1);
        let buffer = ring.buffer();
        let fill = |wr_id| loop {
            let pin = pin();
            assert!(buffer.is_plain(&pin), "this thread pushes alone");
            if wr_id % 2 == 0 || buffer.has_room_for_two() || buffer.makes_room_for_two(&pin) {
                let cqe = Cqe::success(wr_id, Qpn::new(1), WcOpcode::Send, 0);
                return buffer.claim_plain().publish(&cqe);
            }
            drop(pin);
            thread::yield_now();
        };
        let other = Arc::clone(&ring);
        let polls = thread::spawn(move || {
            let mut poller = CqPoller::new(other, None);
            let mut seen = Vec::new();
            while seen.len() < 3 {
                let mut out = [Wc::default()];
                match poller.poll(&mut out) {
                    0 => thread::yield_now(),
                    _ => seen.push(out[0].wr_id),
                }
            }
            assert_eq!(seen, [1, 2, 3]);
        });
        fill(2);
        fill(3);
        polls.join().expect("the poller does not panic");
    });
}

/// The owner of a queue takes the flag out of the mode because no event is wanted, and pushes by the short path next,
/// while the consumer arms again: if the consumer was told that nothing waits, it gets the event. Tried without the
/// fence of [`CqBuffer::disarm`], and without its second look.
#[test]
fn loom_cq_arm_again() {
    arm_again(|ring, wr_id| push(ring, wr_id).expect("it is the owner").fire);
}

/// Both models of an arm with the pushes of messages after which a consumer may want an event. Tried without the fence
/// of [`CqBuffer::fires_for`].
#[test]
fn loom_cq_watched() {
    let push_watched: fn(&CqRing, u64) -> bool = |ring, wr_id| {
        let (buffer, pin) = (ring.buffer(), pin());
        // The first time it makes this thread the owner.
        let _way = buffer.enter(&pin).expect("no other thread pushes");
        assert!(buffer.is_owned(&pin) && buffer.has_room_for_two());
        let cqe = Cqe::success(wr_id, Qpn::new(1), WcOpcode::Send, 0);
        buffer.claim_plain().publish(&cqe);
        buffer.is_watched() && buffer.fires_for(&cqe)
    };
    arm(push_watched);
    arm_again(push_watched);
}

fn arm_again(push_as_owner: fn(&CqRing, u64) -> bool) {
    model(2, move || {
        let ring = ring(4);
        push_or_wait(&ring, 1);
        let mut poller = CqPoller::new(Arc::clone(&ring), None);
        assert_eq!(poller.poll(&mut [Wc::default()]), 1);
        assert_eq!(poller.arm(Arm::Next), Armed::Empty);
        // As if another thread had delivered the event: the flag is still set.
        ring.consumer.arm.store(0, Relaxed);
        let consumer = thread::spawn(move || {
            // The completion that clears the flag may be polled before the arm; the next one has to fire.
            poller.poll(&mut [Wc::default()]);
            poller.arm(Arm::Next)
        });
        let fired = [2, 3].map(|wr_id| push_as_owner(&ring, wr_id));
        let armed = consumer.join().expect("the other thread does not panic");
        grace::help();
        let wanted = ring.consumer.arm.load(Relaxed);
        if armed == Armed::Empty {
            assert_eq!(wanted, 0, "the event was delivered");
        }
        assert!(fired != [true; 2], "one arm, one event");
    });
}
