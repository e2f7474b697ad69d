//! Goal: a sweep keeps to its limits, sets what both ends of a link support, and greets every client that does not know
//! the master. Method: a manager whose port is linked to an adapter that the test answers for; subnets that were found.

use std::time::Duration;

use verbs_core::Guid;

use super::*;
use crate::config::Config;
use crate::elect::tests::Pair;
use crate::testing::Plan;

/// Goal: no more requests are in flight than the configuration says, and there are as many when there is work. Method:
/// windows of different sizes.
#[test]
fn requests_keep_to_the_window() {
    for window in 1..=3 {
        let config = Config {
            window,
            ..Config::default()
        };
        let pair = Pair::with(config, None, |_| {});
        assert_eq!(pair.in_flight_max, window);
        assert!(pair.manager.is_up());
    }
}

/// Goal: nodes beyond the limit are counted and left alone, and the others come into service. Method: room for one of
/// two; then for both.
#[test]
fn nodes_beyond_the_limit_are_counted() {
    for (nodes_max, found) in [(1, 1), (2, 2)] {
        let config = Config {
            nodes_max,
            ..Config::default()
        };
        let pair = Pair::with(config, None, |_| {});
        let unreached = pair.manager.counters().unreached;
        assert_eq!((pair.manager.nodes(), unreached), (found, 2 - found as u64));
        assert!(pair.manager.is_up());
    }
}

/// Goal: MTU and lanes of a link are those that both ends support, and no more than the configuration allows. Method:
/// either end is the lesser one, then the configuration.
#[test]
fn a_link_is_what_both_ends_support() {
    let link = |own: (u32, u32), other: (u32, u32), mtu_max| {
        let config = Config {
            mtu_max,
            vls_max: Bits::truncated(4),
            ..Config::default()
        };
        let pair = Pair::with(config, None, |ports| {
            for (port, (mtu, vls)) in ports.iter_mut().zip([own, other]) {
                port.mtu_cap = Bits::truncated(mtu);
                port.vl_cap = Bits::truncated(vls);
            }
        });
        let set = pair
            .ports
            .map(|port| (port.neighbor_mtu.value(), port.operational_vls.value()));
        assert_eq!(set[0], set[1], "both ends agree");
        set[0]
    };
    assert_eq!(link((5, 4), (5, 4), Mtu::B4096), (5, 4));
    assert_eq!(link((5, 2), (3, 4), Mtu::B4096), (3, 2));
    assert_eq!(link((2, 4), (5, 3), Mtu::B4096), (2, 3));
    assert_eq!(link((5, 5), (5, 5), Mtu::B1024), (3, 4));
    assert_eq!(
        link((0, 0), (5, 4), Mtu::B4096),
        (1, 1),
        "the least there is"
    );
}

/// Goal: a client whose port was away is greeted when it is back, although its port was in service all the time: its
/// memberships have gone. Method: a node that does not answer for a while.
#[test]
fn who_was_away_is_greeted_again() {
    let mut pair = Pair::with(Config::default(), None, |_| {});
    assert_eq!((pair.manager.nodes(), pair.greeted), (2, 2));
    pair.is_deaf = true;
    pair.pass(Duration::from_secs(30));
    assert_eq!((pair.manager.nodes(), pair.greeted), (1, 2));
    pair.is_deaf = false;
    pair.pass(Duration::from_secs(30));
    assert_eq!((pair.manager.nodes(), pair.greeted), (2, 3));
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.greeted, 3, "and once only");
}

/// Goal: LIDs and groups are limited by the switch with the least room. Method: a large and a small switch, in either
/// order; a limit of the configuration; a subnet without switches.
#[test]
fn the_least_switch_limits_all() {
    let limits = |caps: [(u16, u16); 2], groups_max| {
        let config = Config {
            groups_max,
            ..Config::default()
        };
        let mut manager = SubnetManager::new(config, 1);
        let mut plan = Plan::default();
        for (guid, (linear_cap, multicast_cap)) in (1..).zip(caps) {
            plan.switch(guid);
            let node = plan.fabric.nodes.get_mut(&Guid(guid)).expect("a node");
            node.switch = Some(SwitchInfo {
                linear_cap,
                multicast_cap,
                ..SwitchInfo::default()
            });
        }
        manager.found = plan.fabric;
        (forward::lid_max(&manager), forward::groups_max(&manager))
    };
    // A table of 48 entries has those of LIDs 0 to 47.
    assert_eq!(limits([(48, 16), (1024, 1024)], 500), (47, 16));
    assert_eq!(limits([(1024, 1024), (48, 16)], 500), (47, 16));
    assert_eq!(limits([(1024, 1024), (2048, 512)], 500), (1023, 500));
    let manager = SubnetManager::new(Config::default(), 1);
    assert_eq!(forward::lid_max(&manager), u16::MAX);
    assert_eq!(forward::groups_max(&manager), Config::default().groups_max);
}
