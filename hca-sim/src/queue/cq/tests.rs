//! When pushes take the short path, and that no event is lost when they change to it.

use verbs_core::mem::pin;
use verbs_core::sync::thread;
use verbs_core::{Arm, Armed, Qpn, RawCq, Wc, WcOpcode};

use super::*;
use crate::clock::VirtualClock;
use crate::engine::Engine;
use crate::queue::cqe_inline::Scatter;

fn ring(shared: bool) -> (Arc<CqRing>, CqPoller) {
    let ring = CqRing::new(64, Arc::default(), None, shared).expect("it is small");
    let ring = Arc::new(ring);
    (Arc::clone(&ring), CqPoller::new(ring, None))
}

/// Pushes, and says whether the event is due.
fn push(ring: &CqRing) -> bool {
    let pin = pin();
    let way = ring.enter(&pin).expect("no other thread pushes");
    let cqe = Cqe::success(7, Qpn::new(1), WcOpcode::Send, 0);
    let pushed = ring.push(way, &cqe, |_| {});
    pushed.expect("the ring has room").fire
}

fn is_plain(ring: &CqRing) -> bool {
    ring.buffer().is_plain(&pin())
}

fn poll(poller: &mut CqPoller) -> usize {
    poller.poll(&mut [Wc::default(); 64])
}

/// Pushes until they are plain: how many that took.
fn push_until_plain(ring: &CqRing) -> usize {
    (0..).take_while(|_| !is_plain(ring) && !push(ring)).count()
}

/// Goal: a queue that was armed is as cheap as one that never was, soon after its event has been delivered. Method:
/// three arms by the thread that pushes, each with its event.
#[test]
fn pushes_are_plain_again_after_the_event() {
    let (ring, mut poller) = ring(false);
    assert!(!push(&ring));
    for _ in 0..3 {
        assert!(is_plain(&ring));
        poll(&mut poller);
        assert_eq!(poller.arm(Arm::Next), Armed::Empty);
        assert!(!is_plain(&ring), "the next push looks");
        assert!(push(&ring), "the event is due");
        assert_eq!(push_until_plain(&ring), buffer::IDLE_NEAR as usize);
        assert!(!push(&ring));
    }
}

/// Goal: a consumer that arms for each completion finds the flag where it was, which costs it the least. Method:
/// ten arms by the thread that pushes, each with its event.
#[test]
fn a_queue_that_is_armed_each_time_stays_so() {
    let (ring, mut poller) = ring(false);
    assert!(!push(&ring));
    for _ in 0..10 {
        poll(&mut poller);
        assert_eq!(poller.arm(Arm::Next), Armed::Empty);
        assert!(push(&ring), "the event is due");
        assert!(!is_plain(&ring), "it may be armed again");
    }
}

/// Goal: a queue that is armed for solicited completions stays armed while others are pushed. Method: one completion
/// that is not solicited, then one that is.
#[test]
fn pushes_look_as_long_as_an_event_is_wanted() {
    let (ring, mut poller) = ring(false);
    assert!(!push(&ring));
    poll(&mut poller);
    assert_eq!(poller.arm(Arm::Solicited), Armed::Empty);
    assert!(!push(&ring), "it is not solicited");
    assert!(!is_plain(&ring), "the event is wanted yet");
    let pin = pin();
    let way = ring.enter(&pin).expect("no other thread pushes");
    let cqe = Cqe::success(7, Qpn::new(1), WcOpcode::Recv, 0).solicited(true);
    assert!(ring.push(way, &cqe, |_| {}).is_ok_and(|pushed| pushed.fire));
    drop(pin);
    assert_eq!(push_until_plain(&ring), buffer::IDLE_NEAR as usize);
}

/// Goal: a consumer on another thread, whose next arm passes the process-wide barrier, does not pass it for each
/// message. Method: the pushes after an event are counted until one is plain.
#[test]
fn pushes_for_another_thread_look_for_a_time() {
    let (ring, mut poller) = ring(false);
    assert!(!push(&ring));
    poll(&mut poller);
    let armed = thread::scope(|scope| scope.spawn(|| poller.arm(Arm::Next)).join());
    assert_eq!(armed.expect("no panic"), Armed::Empty);
    assert!(push(&ring), "the event is due");
    assert_eq!(push_until_plain(&ring), buffer::IDLE as usize);
}

/// Goal: queues that several threads push to, and moderated ones, keep the flag. Method: an arm and its event.
#[test]
fn shared_and_moderated_queues_go_on_looking() {
    let (shared, mut poller) = ring(true);
    assert_eq!(poller.arm(Arm::Next), Armed::Empty);
    assert!(push(&shared));
    assert!(shared.buffer().mode().tag() & ARMED != 0);
    let (moderated, mut poller) = ring(false);
    assert!(!push(&moderated));
    poll(&mut poller);
    moderated.moderate(&Engine::new(VirtualClock::new()), 2, 0);
    assert_eq!(poller.arm(Arm::Next), Armed::Empty);
    assert!(push(&moderated), "whether it is too early is asked later");
    assert!(moderated.buffer().mode().tag() & ARMED != 0);
}

/// A port with a thread: polls of consumers that poll all the time, and how often one said that it waits.
#[derive(Debug, Default)]
struct Listening {
    left: AtomicU32,
    stops: AtomicU32,
}

impl Pump for Listening {
    fn has_packets(&self) -> bool {
        true
    }

    fn has_thread(&self) -> bool {
        true
    }

    fn polls_here(&self) {}

    fn poll(&self, often: bool) -> bool {
        self.left.fetch_add(u32::from(often), Relaxed);
        false
    }

    fn stop(&self) {
        self.stops.fetch_add(1, Relaxed);
    }

    fn scatter(&self, _: Qpn) -> Option<Scatter> {
        None
    }
}

/// Goal: packets are left to a consumer that polls all the time, and not to one that may wait without a further word:
/// because its queue is armed still, or because it has paused. Method: polls that find nothing, and a port that counts.
#[test]
fn packets_are_left_to_consumers_that_poll_and_will_not_wait() {
    const POLLS: usize = 100;
    let ring = CqRing::new(64, Arc::default(), None, false).expect("it is small");
    let ring = Arc::new(ring);
    let port = Arc::new(Listening::default());
    let mut poller = CqPoller::new(Arc::clone(&ring), Some(Arc::clone(&port) as _));
    let left = |poller: &mut CqPoller| {
        let before = port.left.load(Relaxed);
        (0..POLLS).for_each(|_| assert_eq!(poll(poller), 0));
        port.left.load(Relaxed) - before
    };
    assert!(left(&mut poller) > 0, "it polls all the time");
    poller.pause();
    assert_eq!(port.stops.load(Relaxed), 1, "it polls no more");
    poller.pause();
    assert_eq!(port.stops.load(Relaxed), 1, "nothing was left to it");
    assert!(left(&mut poller) > 0, "it polls again");
    assert_eq!(poller.arm(Arm::Next), Armed::Empty);
    assert_eq!(port.stops.load(Relaxed), 2);
    assert_eq!(
        left(&mut poller),
        0,
        "it may wait for the event at any time"
    );
    assert!(push(&ring), "the event is due");
    assert_eq!(poll(&mut poller), 1);
    assert!(
        left(&mut poller) > 0,
        "it polls all the time, and is not armed"
    );
}

/// Goal: no event is lost between a consumer that arms whenever it finds nothing and a pusher that changes to the short
/// path and back all the time. Method: two threads; a consumer that was told to wait, and looks very often without
/// finding anything, has lost one.
#[test]
fn no_event_is_lost_between_two_threads() {
    const PUSHES: usize = 100_000;
    const LOOKS: u32 = 20_000_000;
    let (ring, mut poller) = ring(false);
    let events = AtomicU32::new(0);
    let (mut polled, mut waits) = (0, 0_u32);
    thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..PUSHES as u32 {
                while at.wrapping_sub(ring.head()) >= 64 {
                    thread::yield_now();
                }
                if push(&ring) {
                    events.fetch_add(1, Release);
                }
                if at % 9 == 0 {
                    thread::yield_now();
                }
            }
        });
        while polled < PUSHES {
            let seen = events.load(Acquire);
            polled += poll(&mut poller);
            if polled == PUSHES || poller.arm(Arm::Next) == Armed::Waiting {
                continue;
            }
            waits += 1;
            let mut looks = 0;
            while events.load(Acquire) == seen && ring.consumer.arm.load(Acquire) != 0 {
                looks += 1;
                assert!(looks < LOOKS, "an event was lost");
                thread::yield_now();
            }
        }
    });
    assert!(waits > 0, "the consumer was never told to wait");
}
