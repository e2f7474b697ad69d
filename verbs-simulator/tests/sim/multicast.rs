//! Goal: a packet to a group arrives at every port that has joined, each over a path of its own.

use std::net::IpAddr;
use std::time::Duration;

use hca_sim::link::{Burst, PacketLink, Route, Sent};
use verbs_simulator::{LinkConfig, NetworkPort, Ppm, Sim};

/// How many packets have arrived at a port.
fn count(port: &mut NetworkPort) -> usize {
    port.receive(&mut |arrival| assert_eq!(arrival.bytes, [7; 40]))
}

#[test]
fn a_group_is_reached_over_a_way_for_each_port() {
    let sim = Sim::new(1);
    let addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let addresses: [IpAddr; 3] = addresses.map(|address| address.parse().unwrap());
    let mut ports = addresses.map(|address| sim.network().attach(&[address]));
    let group: IpAddr = "224.9.9.1".parse().unwrap();
    let route = Route {
        src: addresses[0],
        dst: group,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    let send = |port: &mut NetworkPort| {
        let burst = Burst {
            route,
            segment: 40,
            bytes: &[7; 40],
        };
        assert_eq!(port.transmit(&burst), Sent::Gone);
        let settled = sim.run(sim.sleep(Duration::from_millis(1)));
        assert_eq!(settled, Ok(()));
    };
    send(&mut ports[0]);
    assert_eq!(ports.each_mut().map(count), [0, 0, 0], "nobody has joined");
    ports.iter_mut().for_each(|port| port.join(group).unwrap());
    ports[2].join(group).unwrap();
    send(&mut ports[0]);
    assert_eq!(
        ports.each_mut().map(count),
        [1, 1, 1],
        "the sender's own too"
    );
    // One direction loses everything, another delivers everything twice.
    let (loss, duplication) = (Ppm::ALWAYS, Ppm::ALWAYS);
    let (never, twice) = (
        LinkConfig {
            loss,
            ..LinkConfig::default()
        },
        LinkConfig {
            duplication,
            ..LinkConfig::default()
        },
    );
    sim.network().set(addresses[0], addresses[1], never);
    sim.network().set(addresses[0], addresses[2], twice);
    send(&mut ports[0]);
    assert_eq!(ports.each_mut().map(count), [1, 0, 2]);
    sim.network().set_all(LinkConfig::default());
    // A port that has joined twice leaves twice; a port that is attached again has joined nothing.
    ports.iter_mut().for_each(|port| port.leave(group));
    send(&mut ports[0]);
    assert_eq!(ports.each_mut().map(count), [0, 0, 1]);
    ports[2] = sim.network().attach(&[addresses[2]]);
    send(&mut ports[0]);
    assert_eq!(ports.each_mut().map(count), [0, 0, 0]);
    assert_eq!(sim.network().unrouted(), 0);
}
