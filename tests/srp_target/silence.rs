//! Silent initiators: those that still exist keep their channels, those that do not lose them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hca_sim::Hca;
use ulp_srp::target::{ChannelEnd, TargetEvent};
use verbs_core::sync::Mutex;
use verbs_simulator::Sim;

use crate::raw::{Raw, device, name, run, target};

const INTERVAL: Duration = Duration::from_secs(30);

/// The transport's retries, for a peer that answers nothing.
const RETRIES: Duration = Duration::from_secs(10);

fn hca(sim: &Sim, host: u8) -> Arc<Hca> {
    let port = sim.network().attach(&[IpAddr::from([10, 0, 0, host])]);
    Hca::over(port).clock(sim.clock().clone()).build()
}

/// Goal: initiators that no longer exist do not keep their places, and idle ones do. Method: two idle initiators fill
/// the target; the host of one disappears without notice; a third one asks for its place.
#[test]
fn an_initiator_that_is_gone_loses_its_place_and_an_idle_one_keeps_it() {
    run(1, async |sim| {
        let target = target(sim, |config| {
            config.channels_max = 2;
            config.keepalive = Some(INTERVAL);
        })
        .await;
        let ends = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&ends);
        target.on_event(move |event| {
            if let TargetEvent::Ended { channel, why } = event {
                telling.lock().push((channel.initiator, *why));
            }
        });
        let mut idle = Raw::new(&device(sim, 2), 2).await;
        idle.settle().await;
        let gone = hca(sim, 3);
        let _gone = Raw::new(&gone.open().wait().unwrap(), 3).await;
        gone.remove();
        sim.sleep(INTERVAL / 2).await;
        assert_eq!(target.channels().len(), 2, "nobody has asked yet");
        sim.sleep(2 * INTERVAL + RETRIES).await;
        let ends = ends.lock().clone();
        let [(initiator, ChannelEnd::Failed(_))] = ends[..] else {
            panic!("{ends:?}");
        };
        assert_eq!(initiator, name(3));
        let mut third = Raw::new(&device(sim, 4), 4).await;
        third.settle().await;
        idle.ready(0).await;
    });
}

/// Goal: only silent initiators are probed; an answered probe counts as traffic for the next interval. Method: the
/// count of probes on a channel that is used more often than once in an interval, and on the same one when it is
/// silent; and with a target configured without probes.
#[test]
fn only_silence_is_probed() {
    for interval in [Some(INTERVAL), None] {
        run(2, async |sim| {
            let target = target(sim, |config| config.keepalive = interval).await;
            let mut raw = Raw::new(&device(sim, 2), 2).await;
            raw.settle().await;
            for _ in 0..20 {
                sim.sleep(INTERVAL / 2).await;
                raw.ready(0).await;
            }
            assert_eq!(target.counters().keepalives, 0);
            sim.sleep(10 * INTERVAL).await;
            let probes = target.counters().keepalives;
            match interval {
                Some(_) => assert!((4..=6).contains(&probes), "{probes}"),
                None => assert_eq!(probes, 0),
            }
            raw.ready(0).await;
        });
    }
}
