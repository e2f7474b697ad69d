//! Goal: every adapter reaches every other, no routes wait for each other in a circle, equal links carry equally
//! much, and a packet to a group reaches each of its members once. Method: difficult topologies, and random ones;
//! packets are followed through the tables.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_core::Guid;

use super::*;
use crate::testing::{Plan, flood, hosts, walk};

/// The paths between all adapters.
fn ways(fabric: &Fabric, routes: &Routes) -> Vec<Vec<End>> {
    let hosts = hosts(fabric);
    let mut ways = Vec::new();
    for &from in &hosts {
        for &to in hosts.iter().filter(|&&to| to != from) {
            let way = walk(fabric, routes, from, to);
            ways.push(way.unwrap_or_else(|| panic!("{from:?} does not reach {to:?}")));
        }
    }
    ways
}

/// A packet on a link waits for room on the next link of its path. No links wait for each other in a circle.
fn assert_no_circle(ways: &[Vec<End>]) {
    let mut after: BTreeMap<End, BTreeSet<End>> = BTreeMap::new();
    for way in ways {
        for pair in way.windows(2) {
            after.entry(pair[0]).or_default().insert(pair[1]);
        }
    }
    // Links that nothing waits for are removed until none is left, or only circles.
    loop {
        let waits: BTreeSet<End> = after.keys().copied().collect();
        let before = after.len();
        for next in after.values_mut() {
            next.retain(|link| waits.contains(link));
        }
        after.retain(|_, next| !next.is_empty());
        if after.len() == before {
            break;
        }
    }
    assert!(after.is_empty(), "these wait for each other: {after:?}");
}

/// Connected, without circles, and no packet passes more switches than exist.
fn assert_sound(plan: &Plan) -> Routes {
    let routes = unicast(&plan.fabric);
    let ways = ways(&plan.fabric, &routes);
    assert_no_circle(&ways);
    routes
}

/// Goal: the order from one root connects every switch with adapters where the order by distance from adapters
/// does not. Method: a chain of leaves, the middle one of which has the lowest number: in the first order it is
/// below both others, and no route goes down and up again.
#[test]
fn a_chain_of_leaves_is_joined() {
    let mut plan = Plan::default();
    for switch in [1, 2, 3] {
        plan.switch(switch);
    }
    plan.link(2, 1);
    plan.link(1, 3);
    for (host, at) in [(11, 1), (12, 2), (13, 3)] {
        plan.host(host, at);
    }
    let routes = assert_sound(&plan);
    assert_eq!(routes.unordered, 0);
    // Ports 0 of switches are reached too.
    for (from, to) in [(12, 3), (13, 2), (12, 1)] {
        let way = walk(&plan.fabric, &routes, (Guid(from), 1), (Guid(to), 0));
        assert!(way.is_some(), "{from} -> {to}");
    }
}

/// Goal: a packet that can go down goes down, even if going up first is shorter: after going down once it must
/// not go up again. Method: the path down from a spine has three links; through a leaf beside it, which is above
/// only one of them, the path would have two. All pairs are connected.
#[test]
fn who_can_go_down_does() {
    // Switches in a row from the root, and a short cut that goes up.
    let mut plan = Plan::default();
    for switch in 1..=6 {
        plan.switch(switch);
    }
    // 5 and 6 have no adapters and are the top; 1 to 4 are leaves in a ring of short cuts.
    for (one, other) in [(5, 1), (5, 2), (6, 3), (6, 4), (5, 6), (1, 4), (2, 3)] {
        plan.link(one, other);
    }
    for leaf in 1..=4 {
        plan.host(10 + leaf, leaf);
        plan.host(20 + leaf, leaf);
    }
    assert_sound(&plan);
    // A leaf that is above a switch by its number, and has a longer path down to another leaf.
    let order = |ranks: &[u32]| -> Vec<(u32, Index)> { ranks.iter().copied().zip(0..).collect() };
    let mut plan = Plan::default();
    for switch in 1..=5 {
        plan.switch(switch);
    }
    // Down from 1: 1, 2, 3, 4. Up from 1 to 5, and down from there to 4: shorter by one.
    for (one, other) in [(1, 2), (2, 3), (3, 4), (1, 5), (5, 4)] {
        plan.link(one, other);
    }
    let switches = Switches::new(&plan.fabric);
    let order = order(&[8, 6, 4, 2, 9]);
    let (down, up) = switches.ordered(&order, 3);
    assert_eq!(down, [3, 2, 1, 0, 1]);
    assert_eq!(up[0], 2, "by the top");
    let (hops, unordered) = switches.next_hops(&order, 3);
    let port_to = |to: u64| {
        let links = plan.fabric.links.iter();
        let mut out = links.filter(|(from, end)| from.0 == Guid(1) && end.0 == Guid(to));
        out.next().map(|(from, _)| from.1)
    };
    assert_eq!(hops[0], [port_to(2).unwrap()], "down, though up is shorter");
    assert_eq!(unordered, 0);
    // Below 1: a switch that must go up goes to 1, and counts the path that 1 takes.
    let mut plan_below = plan;
    plan_below.switch(6);
    plan_below.link(6, 1);
    let switches = Switches::new(&plan_below.fabric);
    let order: Vec<_> = [8, 6, 4, 2, 9, 1].into_iter().zip(0..).collect();
    let (down, up) = switches.ordered(&order, 3);
    assert_eq!((down[5], up[5]), (FAR, 4), "one up, three down");
}

/// Goal: equally good links carry equally many LIDs. Method: two leaves of six adapters under three spines; two
/// links between two switches.
#[test]
fn equal_links_carry_equally_many() {
    let mut plan = Plan::default();
    for switch in [1, 2, 31, 32, 33] {
        plan.switch(switch);
    }
    for leaf in [1, 2] {
        for spine in [31, 32, 33] {
            plan.link(leaf, spine);
        }
        for number in 0..6 {
            plan.host(leaf * 100 + number, leaf);
        }
    }
    let routes = assert_sound(&plan);
    let of_others = |leaf: u64| {
        let mut by_port: BTreeMap<u8, u32> = BTreeMap::new();
        for (&lid, &port) in &routes.tables[&Guid(leaf)] {
            if lid / 100 != 0 && u64::from(lid / 100) != leaf {
                *by_port.entry(port).or_default() += 1;
            }
        }
        by_port.into_values().collect::<Vec<_>>()
    };
    assert_eq!((of_others(1), of_others(2)), (vec![2, 2, 2], vec![2, 2, 2]));

    let mut plan = Plan::default();
    plan.switch(1);
    plan.switch(2);
    plan.link(1, 2);
    plan.link(1, 2);
    for number in 0..4 {
        plan.host(10 + number, 1);
        plan.host(20 + number, 2);
    }
    let routes = assert_sound(&plan);
    let over = |port| {
        routes.tables[&Guid(1)]
            .values()
            .filter(|&&out| out == port)
            .count()
    };
    assert_eq!(over(1) + over(2), 5, "four adapters, and the switch itself");
    assert!(over(1).abs_diff(over(2)) <= 1);
}

/// Goal: routes that follow no order are counted: those between the ports of switches that have no common switch
/// above them. Method: two leaves under two spines, which are above both; a tree, where there are none.
#[test]
fn routes_without_an_order_are_counted() {
    let mut plan = Plan::default();
    for switch in [1, 2, 31, 32] {
        plan.switch(switch);
    }
    for (leaf, spine) in [(1, 31), (1, 32), (2, 31), (2, 32)] {
        plan.link(leaf, spine);
    }
    plan.host(11, 1);
    plan.host(12, 2);
    let routes = assert_sound(&plan);
    assert_eq!(routes.unordered, 2, "a spine to the other, and back");
    // They reach each other all the same.
    let table = &routes.tables[&Guid(31)];
    assert!(table.contains_key(&32) && table[&32] != 0);
    assert_eq!(unicast(&deep_tree(3, 2).0.fabric).unordered, 0);
}

/// A tree of switches with that many below each, the adapters at the lowest.
fn deep_tree(levels: u32, below: u64) -> (Plan, Vec<End>) {
    let mut plan = Plan::default();
    plan.switch(1);
    let (mut level, mut next) = (vec![1], 2);
    for _ in 1..levels {
        let mut lower = Vec::new();
        for &above in &level {
            for _ in 0..below {
                plan.switch(next);
                plan.link(above, next);
                lower.push(next);
                next += 1;
            }
        }
        level = lower;
    }
    let mut hosts = Vec::new();
    for at in level {
        for number in 0..2 {
            hosts.push(plan.host(1000 + at * 2 + number, at));
        }
    }
    (plan, hosts)
}

/// Goal: unicast in trees of four levels takes the shortest path. Method: hops of the longest.
#[test]
fn deep_trees_are_routed() {
    let (plan, hosts) = deep_tree(4, 3);
    assert_eq!(hosts.len(), 54);
    let routes = assert_sound(&plan);
    let longest = ways(&plan.fabric, &routes).iter().map(Vec::len).max();
    assert_eq!(
        longest,
        Some(8),
        "the adapter's link, three up, three down, the last"
    );
}

/// Goal: a packet to a group reaches each member once, across all levels, and no other port: not a member that
/// only sends, and not through switches without members behind them. Method: members at opposite ends, with and
/// without a send-only one; one switch alone; a member that is a switch itself.
#[test]
fn trees_of_groups_reach_all_members_and_nobody_else() {
    let (mut plan, hosts) = deep_tree(4, 2);
    // Loops, so that a flood without a tree would never end.
    plan.link(2, 3);
    plan.link(4, 7);
    let members = [hosts[0], hosts[1], hosts[6], hosts[15]];
    let sender = hosts[9];
    let with_sender = members
        .iter()
        .map(|&end| (end, true))
        .chain([(sender, false)]);
    let tree = multicast(&plan.fabric, with_sender);
    for from in members.into_iter().chain([sender]) {
        let got = flood(&plan.fabric, &tree, from);
        let expected: BTreeSet<_> = members.into_iter().filter(|&end| end != from).collect();
        assert_eq!(got, expected, "from {from:?}");
    }
    // Two at one leaf: that leaf alone.
    let tree = multicast(&plan.fabric, members[..2].iter().map(|&end| (end, true)));
    assert_eq!(tree.len(), 1);
    assert_eq!(
        flood(&plan.fabric, &tree, hosts[0]),
        BTreeSet::from([hosts[1]])
    );
    // The port of a switch.
    let root = (Guid(1), 0);
    let tree = multicast(&plan.fabric, [(root, true), (hosts[3], false)].into_iter());
    assert_eq!(flood(&plan.fabric, &tree, hosts[3]), BTreeSet::from([root]));
    assert!(multicast(&plan.fabric, std::iter::empty()).is_empty());
}

/// A connected subnet: each switch after the first is linked to one before it, then links at random.
fn random_plan(parents: &[prop::sample::Index], links: &[(usize, usize)], at: &[usize]) -> Plan {
    let mut plan = Plan::default();
    let count = parents.len() + 1;
    // Numbers are not in the order of the links.
    let guid = |number: usize| 1 + (number as u64 * 7919) % 997;
    for number in 0..count {
        plan.switch(guid(number));
    }
    for (number, parent) in (1..count).zip(parents) {
        plan.link(guid(number), guid(parent.index(number)));
    }
    for &(one, other) in links {
        let (one, other) = (one % count, other % count);
        if one != other {
            plan.link(guid(one), guid(other));
        }
    }
    for (&at, number) in at.iter().zip(2000..) {
        plan.host(number, guid(at % count));
    }
    plan
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    /// Goal: routes first go up, then down, in one order of all switches, so no circle of waits closes; groups
    /// reach all their members once. Method: random subnets.
    #[test]
    fn random_subnets_are_connected_without_circles(
        parents in vec(any::<prop::sample::Index>(), 1..14),
        links in vec((0..64_usize, 0..64_usize), 0..16),
        at in vec(0..64_usize, 2..12),
        receives in vec(any::<bool>(), 12),
    ) {
        let plan = random_plan(&parents, &links, &at);
        let routes = assert_sound(&plan);
        let switches = Switches::new(&plan.fabric);
        let order = switches.order();
        let rank = |guid: Guid| order[switches.by_guid[&guid]];
        for way in ways(&plan.fabric, &routes) {
            let passed: Vec<_> = way[1..].iter().map(|end| rank(end.0)).collect();
            let top = passed.iter().max().unwrap();
            let (up, down) = passed.split_at(passed.iter().position(|rank| rank == top).unwrap());
            prop_assert!(up.is_sorted() && down.iter().rev().is_sorted(), "{passed:?}");
        }
        let members: Vec<_> = hosts(&plan.fabric).into_iter().zip(receives).collect();
        let tree = multicast(&plan.fabric, members.iter().copied());
        for &(from, _) in &members {
            let got = flood(&plan.fabric, &tree, from);
            let others = members.iter().filter(|&&(end, receives)| receives && end != from);
            prop_assert_eq!(got, others.map(|&(end, _)| end).collect());
        }
    }
}
