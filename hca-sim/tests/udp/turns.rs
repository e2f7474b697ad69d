//! Ends that take turns.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::connect;
use verbs_core::{QpInit, Recv, Send, Wc, WcStatus, Write};

use crate::ends::{End, end, host, next, pair, until};

/// Of a ping-pong of WRITEs.
const ROUNDS: u64 = 100;

/// What an end of a ping-pong lets the other know, in rounds and in nanoseconds since the test began.
#[derive(Default)]
struct Turn {
    posted_at: AtomicU64,
    polled_at: AtomicU64,
    /// Rounds after which it has polled for the last time, and watches its memory.
    turned: AtomicU64,
}

/// One end's part: rounds of a WRITE each, polled for, and of watching memory for the peer's. Returns how long those WRITEs
/// took that were posted within a millisecond of the last poll here.
fn poll_then_watch(
    end: &mut End,
    to: verbs_core::Remote,
    is_first: bool,
    [own, peer]: [&Turn; 2],
    now: impl Fn() -> u64,
) -> Vec<Duration> {
    let mut took = Vec::new();
    for round in 1..=ROUNDS {
        let seen = if is_first { round - 1 } else { round };
        let memory = end.mr.memory();
        until("the peer's WRITE", || memory.load_u64(0).unwrap() >= seen);
        let posted = peer.posted_at.load(Relaxed);
        if posted.saturating_sub(own.polled_at.load(Relaxed)) < 1_000_000 && round > 1 {
            took.push(Duration::from_nanos(now() - posted));
        }
        until("the peer's turn", || peer.turned.load(Acquire) >= seen);
        end.mr.memory().store_u64(8, round).unwrap();
        own.posted_at.store(now(), Relaxed);
        let write = Write::new(round, to).from(end.mr.slice(8..16)).signaled();
        end.qp.post_send(write).unwrap();
        until("the acknowledgement", || {
            let mut one = [Wc::default()];
            let wcs = end.cq.poll(&mut one);
            assert!(wcs.iter().all(|wc| wc.is_ok()), "{wcs:?}");
            !wcs.is_empty()
        });
        // A thread that polls in vain for a while is one that packets are left to.
        for _ in 0..100 {
            assert!(end.cq.poll(&mut [Wc::default()]).is_empty());
        }
        own.polled_at.store(now(), Relaxed);
        own.turned.store(round, Release);
    }
    took
}

/// As `ib_write_lat` does: polls for its own WRITE, then watches its memory for the peer's. The device is not told that
/// nobody polls any more.
///
/// Where packets are left to a poller that has gone, every WRITE is late; where the machine is busy, some are. So the
/// fastest quarter is judged, and one of several tries is enough.
#[test]
fn a_write_arrives_in_time_where_a_poller_turned_to_its_memory() {
    const TRIES: u32 = 10;
    // A packet that waits for a poller waits for up to a millisecond once; it was eight, each time.
    const IN_TIME: Duration = Duration::from_millis(4);
    let (mut a, mut b) = pair(11);
    let begun = Instant::now();
    let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap();
    let mut quarters = Vec::new();
    for _ in 0..TRIES {
        let turns = [Turn::default(), Turn::default()];
        for end in [&a, &b] {
            end.mr.memory().store_u64(0, 0).unwrap();
        }
        let (to_b, to_a) = (b.mr.remote(0), a.mr.remote(0));
        let mut took = thread::scope(|scope| {
            let [one, other] = &turns;
            let ours = scope.spawn(|| poll_then_watch(&mut a, to_b, true, [one, other], now));
            let theirs = poll_then_watch(&mut b, to_a, false, [other, one], now);
            [ours.join().unwrap(), theirs].concat()
        });
        took.sort_unstable();
        let quarter = took.get(took.len() / 4).copied();
        if took.len() >= 20 && quarter < Some(IN_TIME) {
            return;
        }
        quarters.push((took.len(), quarter));
    }
    panic!("(WRITEs that were judged, what the fastest quarter took): {quarters:?}");
}

/// Goal: a queue pair for low latency works as others do, for consumers that sleep. Method: messages go back and forth,
/// in turns with ordinary queue pairs; the times are printed, and depend on what else needs the processors.
#[test]
fn a_queue_pair_for_low_latency_carries_messages() {
    let mut ends = [1, 2].map(|n| end(host(33, n)));
    for round in 0..10 {
        let low_latency = round % 2 == 1;
        let mut qps = ends.each_ref().map(|end| {
            let init = QpInit::rc(&end.cq, &end.cq);
            let init = if low_latency {
                init.low_latency()
            } else {
                init
            };
            end._pd.create_qp(init).wait().unwrap()
        });
        let [a, b] = &mut qps;
        block_on(connect(a, b)).unwrap();
        let start = Instant::now();
        for message in 0..100 {
            let (from, to) = ((message % 2) as usize, 1 - (message % 2) as usize);
            let recv = Recv::new(message).into(ends[to].mr.slice(0..64));
            qps[to].post_recv(recv).unwrap();
            let send = Send::new(message).from(ends[from].mr.slice(64..128));
            qps[from].post_send(send.signaled()).unwrap();
            for end in [to, from] {
                let wc = next(&mut ends[end].cq);
                assert_eq!((wc.wr_id, wc.status), (message, WcStatus::Success));
            }
        }
        let each = start.elapsed() / 100;
        println!("low latency {low_latency}: {each:?} a message and its acknowledgement");
    }
}
