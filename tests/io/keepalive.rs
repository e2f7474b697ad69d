//! A peer that is gone without a word, noticed by a connection that only waits.

use std::time::Duration;

use verbs_io::{Error, Operation};
use verbs_simulator::{LinkConfig, Ppm, Sim, Stalled};

use crate::pair::{message, text};
use crate::simulated::{HOSTS, Simulated, simulated};

const SECOND: Duration = Duration::from_secs(1);

/// Goal: a task that only waits for messages hears that its peer is gone, within twice the time of the keepalive,
/// whether its device was removed or its cable pulled. What came before is not lost.
#[test]
fn a_receive_ends_when_the_peer_is_gone() {
    for removed in [true, false] {
        let sim = Sim::new(7);
        let program = async {
            let Simulated { a, b, hcas, .. } = simulated(&sim, |opening| opening).await?;
            b.send(message(&b, "last words").await).await?;
            sim.sleep(20 * SECOND).await;
            let gone = sim.now();
            match removed {
                true => hcas[1].remove(),
                false => sim.network().cut(HOSTS[0], HOSTS[1], true),
            }
            assert_eq!(text(&a).await.unwrap(), "last words");
            let error = a.recv().await.unwrap_err();
            let Error::Broken(cause) = &error else {
                panic!("{error}");
            };
            assert_eq!(cause.operation, Operation::Keepalive, "{error}");
            let late = sim.now().since(gone);
            assert!(late <= 10 * SECOND, "after {late:?}");
            let refused = a.send(message(&a, "anybody?").await).await.unwrap_err();
            assert_eq!(refused.error, error);
            drop((a, b));
            Ok::<(), Error>(())
        };
        sim.run(program).unwrap().unwrap();
    }
}

/// Goal: no false alarm on a network that loses packets. Method: two hours of silence with 2 % loss in each direction,
/// and a message at the end.
#[test]
fn a_lossy_network_is_no_reason_to_end() {
    for seed in 1..=5 {
        let sim = Sim::new(seed);
        let program = async {
            let Simulated { a, b, .. } = simulated(&sim, |opening| opening).await?;
            sim.network().set_all(LinkConfig {
                loss: Ppm::percent(2),
                ..LinkConfig::default()
            });
            if let Some(ended) = sim.timeout(7200 * SECOND, b.recv()).await {
                panic!("{ended:?} at {}", sim.now());
            }
            a.send(message(&a, "still there").await).await?;
            assert_eq!(text(&b).await.unwrap(), "still there");
            Ok::<(), Error>(())
        };
        sim.run(program).unwrap().unwrap();
    }
}

/// Goal: nothing is sent while messages come, and nothing at all when it is off. Method: the packets of a minute in
/// which each end sends a message every second, with and without; and of a minute of silence.
#[test]
fn traffic_needs_no_probes() {
    let packets = |keepalive: Option<Duration>, talks: bool| {
        let sim = Sim::new(3);
        let program = async {
            let Simulated { a, b, .. } =
                simulated(&sim, |opening| opening.keepalive(keepalive)).await?;
            let before = sim.counts().packets;
            for _ in 0..60 {
                sim.sleep(SECOND).await;
                if talks {
                    a.send(message(&a, "ask").await).await?;
                    drop(b.recv().await?);
                    b.send(message(&b, "answer").await).await?;
                    drop(a.recv().await?);
                }
            }
            Ok::<u64, Error>(sim.counts().packets - before)
        };
        sim.run(program).unwrap().unwrap()
    };
    let every = Some(5 * SECOND);
    assert_eq!(packets(None, false), 0);
    assert!(
        (80..=100).contains(&packets(every, false)),
        "each end, each 2.5 s, with its answer"
    );
    assert_eq!(packets(every, true), packets(None, true));
}

/// Goal: a message that its receiver is not ready for is no sign of a peer that is gone. Method: one more than the
/// peer has room for, which waits for a minute.
#[test]
fn a_receiver_that_is_not_ready_is_there() {
    let sim = Sim::new(11);
    let program = async {
        let Simulated { a, b, .. } = simulated(&sim, |opening| opening.window(1)).await?;
        a.send(message(&a, "first").await).await?;
        let waits = async {
            a.send(message(&a, "second").await).await?;
            a.send(message(&a, "third").await).await
        };
        let takes = async {
            sim.sleep(60 * SECOND).await;
            for wanted in ["first", "second", "third"] {
                assert_eq!(text(&b).await.unwrap(), wanted);
            }
        };
        let (sent, ()) = futures::future::join(waits, takes).await;
        Ok::<_, Error>(sent.map(drop)?)
    };
    sim.run(program).unwrap().unwrap();
}

/// Goal: a program of which both ends wait for ever stalls, although their devices go on probing each other.
#[test]
fn a_run_in_which_everybody_waits_stalls() {
    let sim = Sim::new(5);
    let program = async {
        let Simulated { a, b, .. } = simulated(&sim, |opening| opening).await?;
        let both = futures::future::join(a.recv(), b.recv()).await;
        drop(both);
        Ok::<(), Error>(())
    };
    assert!(matches!(sim.run(program), Err(Stalled::Idle(_))));
}
