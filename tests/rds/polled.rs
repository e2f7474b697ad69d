//! Goal: while a program polls, no event is asked for, and nevertheless it keeps nobody waiting when it stops: neither its own
//! tasks nor its peers. Method: two nodes on a simulated network, in virtual time, one of which has polled until then.

use std::time::Duration;

use futures::join;
use ulp_rds::{Node, RdsSocket};
use verbs_core::time::Instant;
use verbs_simulator::{LinkConfig, Sim};

use crate::lab::{at, pair};

/// Less than what a peer waits for that is found by a look in time.
const SOON: Duration = Duration::from_micros(300);
/// More than that, with the pause before the look.
const LATER: Duration = Duration::from_micros(1300);

/// Two nodes, of which the second has just received many datagrams without sleeping for any.
async fn polled(sim: &Sim) -> [(Node, RdsSocket); 2] {
    sim.network().set_all(LinkConfig {
        latency: Duration::from_micros(10),
        ..LinkConfig::default()
    });
    let [(a, one), (b, other)] = pair(sim).await;
    let send = async {
        for _ in 0..100 {
            one.send_to(b"one of many", other.local_addr())
                .await
                .unwrap();
            sim.sleep(Duration::from_micros(50)).await;
        }
    };
    let poll = async {
        let mut got = 0;
        while got < 100 {
            match other.try_recv() {
                Some(_) => got += 1,
                None => sim.sleep(Duration::from_micros(5)).await,
            }
        }
    };
    join!(send, poll);
    [(a, one), (b, other)]
}

/// How long a ping takes.
async fn ping(sim: &Sim, from: &RdsSocket) -> Duration {
    let before = sim.now();
    from.send_to(b"", at(2, 0)).await.unwrap();
    assert_eq!(from.recv().await.from, at(2, 0));
    since(sim, before)
}

fn since(sim: &Sim, before: Instant) -> Duration {
    sim.now().since(before)
}

#[test]
fn peers_of_a_program_that_stops_polling_are_answered() {
    let first = |pause: u64| {
        let sim = Sim::new(1);
        let done = sim.run(async {
            let [(_a, one), (_b, other)] = polled(&sim).await;
            sim.sleep(Duration::from_micros(pause)).await;
            // Nobody looks but the driver, and not at once.
            let first = ping(&sim, &one).await;
            assert!(first < LATER, "{first:?}");
            // It has found that nobody does, and answers each packet.
            sim.sleep(Duration::from_millis(150)).await;
            let second = ping(&sim, &one).await;
            assert!(second < SOON, "{second:?}");
            assert_eq!(other.counters().received, 100);
            first
        });
        done.unwrap()
    };
    let longest = (0..10).map(|pause| first(100 * pause)).max();
    assert!(longest > Some(SOON), "no event was spared: {longest:?}");
}

#[test]
fn a_task_that_sleeps_after_polling_is_woken_at_once() {
    let sim = Sim::new(2);
    let done = sim.run(async {
        let [(_a, one), (_b, other)] = polled(&sim).await;
        let before = sim.now();
        let send = async {
            sim.sleep(Duration::from_micros(20)).await;
            one.send_to(b"the next", other.local_addr()).await.unwrap();
        };
        let (got, ()) = join!(other.recv(), send);
        assert_eq!(got.payload, b"the next");
        assert!(since(&sim, before) < SOON, "{:?}", since(&sim, before));
    });
    done.unwrap();
}

/// Goal: what is kept in slots waits no longer than other messages, and is not lost with its connection. Method: more datagrams
/// than there are slots, to a program that does not look, and a connection that is dropped in the middle.
#[test]
fn datagrams_in_slots_survive_their_connection() {
    let sim = Sim::new(3);
    let done = sim.run(async {
        let [(a, one), (_b, other)] = polled(&sim).await;
        for number in 0..200_u32 {
            let payload = number.to_be_bytes();
            one.send_to(&payload, other.local_addr()).await.unwrap();
            if number % 50 == 13 {
                // The one before has been made again.
                sim.sleep(Duration::from_millis(20)).await;
                let [local, remote] = [&one, &other].map(|end| end.local_addr().ip());
                assert!(a.drop_connection(local, remote));
            }
        }
        for number in 0..200_u32 {
            let got = other.recv().await;
            assert_eq!(got.payload, number.to_be_bytes());
        }
        assert_eq!(other.try_recv(), None);
    });
    done.unwrap();
}
