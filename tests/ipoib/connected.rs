//! Connected mode: long packets over connections, datagrams beside them, and the ends of connections.

use std::time::Duration;

use ulp_ipoib::Mode;

use crate::datagrams::run;

#[test]
fn long_packets_go_over_connections_of_either_end() {
    run(21, async |world| {
        let mut a = world.node(1, Mode::Connected, false).await;
        let mut b = world.node(2, Mode::Connected, false).await;
        assert_eq!(a.link.interface().link().mtu, 65_520);
        assert_eq!(world.ping(&mut a, &mut b, 20, 60_000).await, 20);
        let (ours, theirs) = (a.counters(), b.counters());
        // Each sends over its own connection, and receives over the other's.
        assert_eq!(
            (ours.connections_made, ours.connections_accepted),
            (1, 1),
            "{ours:?}"
        );
        assert_eq!(
            (theirs.connections_made, theirs.connections_accepted),
            (1, 1)
        );
        assert_eq!((ours.connected_sent, ours.connected_received), (20, 20));
        assert_eq!(a.link.interface().connections(), (1, 1));
        world.stream(&mut a, &mut b, 4 << 20).await;
        assert_eq!(a.counters().send_errors + b.counters().send_errors, 0);
    });
}

#[test]
fn who_takes_no_connections_gets_datagrams() {
    run(22, async |world| {
        let mut a = world.node(1, Mode::Connected, false).await;
        let mut b = world.node(2, Mode::Datagram, false).await;
        assert_eq!(world.ping(&mut a, &mut b, 10, 1500).await, 10);
        assert_eq!(world.ping(&mut a, &mut b, 1, 30_000).await, 0);
        let counters = a.counters();
        assert_eq!(
            (counters.connections_made, counters.too_big),
            (0, 1),
            "{counters:?}"
        );
    });
}

#[test]
fn connections_that_nobody_uses_go_and_come_again() {
    run(23, async |world| {
        let mut a = world.node(1, Mode::Connected, true).await;
        let mut b = world.node(2, Mode::Connected, true).await;
        assert_eq!(world.ping(&mut a, &mut b, 3, 9000).await, 3);
        world
            .drive(&mut [&mut a, &mut b], Duration::from_secs(200), |_| false)
            .await;
        assert_eq!(a.link.interface().connections(), (0, 0));
        assert_eq!(b.link.interface().connections(), (0, 0));
        assert_eq!(a.counters().connections_reaped, 1);
        assert_eq!(world.ping(&mut a, &mut b, 3, 9000).await, 3);
        assert_eq!(a.counters().connections_made, 2);
    });
}

#[test]
fn a_neighbour_that_was_away_is_connected_to_anew() {
    run(24, async |world| {
        let mut a = world.node(1, Mode::Connected, false).await;
        let mut b = world.node(2, Mode::Connected, false).await;
        assert_eq!(world.ping(&mut a, &mut b, 3, 9000).await, 3);
        b.hca.port_down();
        world.until_link(&mut b, false).await;
        b.hca.port_up();
        world.until_link(&mut b, true).await;
        // The first packets may find the connection that no longer exists.
        let long = Duration::from_secs(20);
        world.drive(&mut [&mut a, &mut b], long, |_| false).await;
        assert_eq!(world.ping(&mut a, &mut b, 5, 9000).await, 5);
    });
}
