//! Datagrams: echoes, streams, groups, and what becomes of packets that cannot be sent.

use std::time::Duration;

use hca_sim::sim::Sim;
use ulp_ipoib::Mode;

use crate::node::World;

/// Runs a scenario of a few minutes at most.
pub(crate) fn run<F: Future<Output = ()>>(seed: u64, scenario: impl FnOnce(World) -> F) {
    let world = World::new(seed);
    let sim: Sim = world.sim.clone();
    let end = sim.now() + Duration::from_secs(3600);
    sim.run_until(end, scenario(world)).unwrap();
}

#[test]
fn echoes_come_back() {
    for is_v6 in [false, true] {
        run(1, async |world| {
            let mut a = world.node(1, Mode::Datagram, is_v6).await;
            let mut b = world.node(2, Mode::Datagram, is_v6).await;
            assert_eq!(a.link.interface().link().mtu, 2044);
            assert_eq!(world.ping(&mut a, &mut b, 50, 56).await, 50);
            assert_eq!(world.ping(&mut a, &mut b, 10, 1900).await, 10);
            let (ours, theirs) = (a.counters(), b.counters());
            assert_eq!(ours.asked, 1, "{ours:?}");
            assert_eq!((ours.paths_asked, theirs.paths_asked), (1, 1));
            assert_eq!(ours.datagrams_received, theirs.datagrams_sent);
        });
    }
}
