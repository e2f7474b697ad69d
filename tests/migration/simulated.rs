//! Moves over a network that loses, doubles and reorders, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use hca_sim::Hca;
use verbs_core::{Av, EventType, Gid, MigState, Wc};
use verbs_simulator::{LinkConfig, Ppm, Sim};

use crate::bed::{End, pass};

/// The addresses of a host: one for each path.
fn addresses(host: u8) -> [IpAddr; 2] {
    [1, 2].map(|net| IpAddr::from(Ipv4Addr::new(10, net, 0, host)))
}

/// The way from a host to the other one by that path.
fn way(from: u8, path: usize) -> Av {
    Av::to_gid(1, path as u16, Gid::from(addresses(3 - from)[path]))
}

/// Goal: whatever gets lost on the way, and whenever the path in use is cut, everything that was asked for is done
/// once, in order, and the connection is on the other path in the end. Method: for each seed, a connection that adds
/// and writes in both directions on a bad network, and is cut six times at random, the other path mended and loaded before.
#[test]
fn nothing_is_lost_or_done_twice() {
    let seeds = std::env::var("VERBS_MIGRATION_SEEDS").map_or(20, |text| text.parse().unwrap());
    for seed in 0..seeds {
        run(seed);
    }
}

fn run(seed: u64) {
    let sim = Sim::new(seed);
    let mut draw = sim.draw();
    let hosts = [1, 2].map(|host| {
        let port = sim.network().attach(&addresses(host));
        Hca::over(port).clock(sim.clock().clone()).build()
    });
    sim.network().set_all(LinkConfig {
        loss: Ppm::percent(draw.below(3) as u32),
        duplication: Ppm::percent(draw.below(3) as u32),
        reordering: Ppm::percent(draw.below(5) as u32),
        ..LinkConfig::default()
    });
    let mut ends = hosts.each_ref().map(End::on);
    ends[0].connect(&ends[1], way(1, 0));
    ends[1].connect(&ends[0], way(2, 0));
    let (mut posted, mut done) = ([0; 2], [0; 2]);
    let mut moved = [0; 2];
    for round in 0..6 {
        let (used, free) = (round % 2, 1 - round % 2);
        sim.network()
            .cut(addresses(1)[free], addresses(2)[free], false);
        for (end, host) in ends.iter().zip([1, 2]) {
            end.load(way(host, free));
        }
        // Packets that say so have to get there.
        while ends.iter().any(|end| end.state() != MigState::Armed) {
            add(&mut ends, 0, 1, &mut posted);
            add(&mut ends, 1, 1, &mut posted);
            pass(&sim, Duration::from_millis(20));
            settle(&mut ends, &mut done);
        }
        for host in [0, 1] {
            add(&mut ends, host, 1 + draw.below(40) as u64, &mut posted);
        }
        pass(
            &sim,
            draw.duration(Duration::ZERO..=Duration::from_micros(40)),
        );
        sim.network()
            .cut(addresses(1)[used], addresses(2)[used], true);
        add(&mut ends, draw.below(2), 1, &mut posted);
        for _ in 0..100 {
            pass(&sim, Duration::from_millis(100));
            settle(&mut ends, &mut done);
            if done == posted {
                break;
            }
        }
        assert_eq!(done, posted, "seed {seed}, round {round}");
        for (host, end) in ends.iter().enumerate() {
            let events = end.moves();
            assert!(
                events.iter().all(|&event| event == EventType::PathMig),
                "{events:?}"
            );
            moved[host] += events.len();
            let counted = end.counted();
            assert_eq!(counted, posted[1 - host], "seed {seed}, round {round}");
            let path = end.info().attr.av;
            assert_eq!(
                path,
                Some(way(host as u8 + 1, free)),
                "seed {seed}, round {round}"
            );
        }
    }
    assert_eq!(moved, [6; 2], "seed {seed}: each was told of each move");
}

/// Has a host add so often to the other one's word.
fn add(ends: &mut [End; 2], host: usize, times: u64, posted: &mut [u64; 2]) {
    let [one, other] = ends;
    let (from, to) = if host == 0 {
        (one, other)
    } else {
        (other, one)
    };
    from.count(to, times);
    posted[host] += times;
}

/// Takes the completions, all of which are good.
fn settle(ends: &mut [End; 2], done: &mut [u64; 2]) {
    for (end, done) in ends.iter_mut().zip(done) {
        let wcs = end.poll();
        assert!(wcs.iter().all(Wc::is_ok), "{wcs:?}");
        *done += wcs.len() as u64;
    }
}
