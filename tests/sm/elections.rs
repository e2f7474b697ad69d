//! Several managers on subnets with switches.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_sim::link::fabric::{PortRef, Topology};
use verbs_core::mad::Bits;
use verbs_core::mad::sm::SmState;
use verbs_sm::Config;

use crate::lab::Lab;
use crate::sweeps::{adapters, assert_connected};

/// Two switches with three adapters each, and a link between them.
fn halves() -> (Topology, PortRef) {
    let mut topology = Topology::new();
    let switches = ["s1", "s2"].map(|name| topology.switch(name, 4).unwrap());
    for (at, half) in switches.into_iter().zip(["a", "b"]) {
        for port in 1..=3 {
            let host = topology.hca(&format!("{half}{port}"), 1).unwrap();
            topology.link((at, port), (host, 1)).unwrap();
        }
    }
    topology.link((switches[0], 4), (switches[1], 4)).unwrap();
    let between = PortRef {
        node: switches[0],
        port: 4,
    };
    (topology, between)
}

fn config(priority: u32) -> Config {
    Config {
        priority: Bits::truncated(priority),
        ..Config::default()
    }
}

/// Goal: two subnets that become one have one master, and no LID twice; when they are separated again each has one.
/// Method: a manager in each half, the link between them plugged in and out; both orders of priority.
#[test]
fn two_subnets_become_one_and_two_again() {
    for (one, other) in [(1, 2), (2, 1), (3, 3)] {
        let (topology, between) = halves();
        let mut lab = Lab::new(&topology);
        let ports = adapters(&topology);
        assert!(lab.subnet.plug(lab.now, between, false));
        let managers = [
            lab.manager(ports[0], config(one)),
            lab.manager(ports[3], config(other)),
        ];
        lab.settle();
        let masters = |lab: &Lab| {
            let leads = |&&number: &&usize| lab.state(number).state() == SmState::MASTER;
            managers.iter().filter(leads).copied().collect::<Vec<_>>()
        };
        assert_eq!(masters(&lab), managers);
        for half in [&ports[..3], &ports[3..]] {
            assert_connected(&mut lab, half);
        }
        let lids = |lab: &Lab| {
            ports
                .iter()
                .map(|&at| lab.subnet.lid(at))
                .collect::<BTreeSet<_>>()
        };
        assert!(lids(&lab).len() < 6, "both halves count from 1");

        assert!(lab.subnet.plug(lab.now, between, true));
        lab.pass(Duration::from_secs(30));
        let leader = masters(&lab);
        assert_eq!(leader.len(), 1, "{one} and {other}");
        if one != other {
            assert_eq!(leader[0], managers[usize::from(other > one)]);
        }
        assert!(lab.state(leader[0]).is_up());
        assert_eq!(lab.state(leader[0]).nodes(), 8);
        assert_eq!(lids(&lab).len(), 6);
        assert_connected(&mut lab, &ports);

        assert!(lab.subnet.plug(lab.now, between, false));
        lab.pass(Duration::from_secs(60));
        assert_eq!(masters(&lab), managers);
        for half in [&ports[..3], &ports[3..]] {
            assert_connected(&mut lab, half);
        }
    }
}

/// Goal: of three managers the one with the highest priority is master; when it dies the next one is, and the last
/// stays standby. The first is master again when it is back. Method: three priorities, one killed, one started again.
#[test]
fn the_next_best_takes_over() {
    let (topology, _) = halves();
    let mut lab = Lab::new(&topology);
    let ports = adapters(&topology);
    let [low, middle] =
        [(1, 1), (4, 2)].map(|(at, priority)| lab.manager(ports[at], config(priority)));
    let high = lab.manager(ports[5], config(3));
    lab.pass(Duration::from_secs(15));
    let states = |lab: &Lab, all: &[usize]| -> Vec<_> {
        all.iter().map(|&at| lab.state(at).state()).collect()
    };
    let (master, standby) = (SmState::MASTER, SmState::STANDBY);
    assert_eq!(
        states(&lab, &[low, middle, high]),
        [standby, standby, master]
    );
    let lids: Vec<_> = ports.iter().map(|&at| lab.subnet.lid(at)).collect();
    lab.kill(high);
    lab.pass(Duration::from_secs(40));
    assert_eq!(states(&lab, &[low, middle]), [standby, master]);
    assert!(lab.state(middle).is_up());
    let sweeps = lab.state(low).counters().sweeps;
    lab.pass(Duration::from_secs(60));
    assert_eq!(states(&lab, &[low, middle]), [standby, master]);
    assert_eq!(lab.state(low).counters().sweeps, sweeps);
    let high = lab.manager(ports[5], config(3));
    lab.pass(Duration::from_secs(15));
    assert_eq!(
        states(&lab, &[low, middle, high]),
        [standby, standby, master]
    );
    let after: Vec<_> = ports.iter().map(|&at| lab.subnet.lid(at)).collect();
    assert_eq!(lids, after, "nobody has changed a LID");
    assert_connected(&mut lab, &ports);
}
