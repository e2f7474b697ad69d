use std::time::Duration;

use futures::executor::block_on;
use hca_sim::clock::VirtualClock;
use hca_sim::{Hca, Loopback};

use super::*;

#[test]
fn the_largest_window_fits_the_queues() {
    for (max_qp_wr, max_cqe) in [
        (4, 100),
        (5, 100),
        (1024, 100),
        (1024, 65536),
        (2, 3),
        (0, 0),
    ] {
        let slots = Endpoint::slots_within(max_qp_wr, max_cqe);
        let fits = |slots| {
            let (send, recv) = Endpoint::depths(&Plan::new(u64::MAX, 1, slots));
            send <= max_qp_wr && recv <= max_qp_wr && send + recv <= max_cqe
        };
        assert!(
            slots == 0 || fits(slots),
            "{slots} slots in {max_qp_wr}, {max_cqe}"
        );
        assert!(
            !fits(slots + 1),
            "{slots} slots are not the most for {max_qp_wr}, {max_cqe}"
        );
    }
}

/// Goal: an end that waits notices that its peer has gone, and is not told of one that is there. Method:
/// timers run on a virtual clock; the second probe meets no peer.
#[test]
fn a_probe_finds_out_whether_the_peer_is_there() {
    let (link, clock) = (Loopback::default(), VirtualClock::new());
    let open = async |end| {
        let hca = Hca::on(&link).clock(clock.clone());
        let device = hca.open().await.expect("a device");
        let plan = Plan::new(1600, 1600, 1);
        let made = Endpoint::new(end, device, &plan, Access::LOCAL_WRITE).await;
        made.expect("an end")
    };
    let (mut waiting, peer) = block_on(async {
        let (waiting, peer) = (open(End::Destination).await, open(End::Source).await);
        let psns = [link.draw_psn(), link.draw_psn()];
        waiting.connect(&peer, psns).await.expect("connected");
        (waiting, peer)
    });
    waiting.probe().expect("posted");
    while waiting.probing {
        assert_eq!(waiting.poll().expect("the peer is there"), None);
    }

    block_on(peer.close()).expect("nothing is in use");
    let since = clock.now();
    waiting.probe().expect("posted");
    waiting.probe().expect("one is under way, which is enough");
    let failed = loop {
        match waiting.poll() {
            Ok(told) => assert_eq!(told, None),
            Err(error) => break error,
        }
        clock.step().expect("the probe waits for its timer");
    };
    let said = failed.to_string();
    assert!(
        said.contains("the look whether the peer is there"),
        "{said}"
    );
    let silence = clock.now() - since;
    assert!(
        silence > Duration::from_secs(2) && silence < Duration::from_secs(9),
        "{silence:?}"
    );
}

#[test]
fn purposes_come_back() {
    let purposes = [
        Purpose::Write(0),
        Purpose::Write(1 << 40),
        Purpose::Announce(7),
        Purpose::Credit(u64::from(u32::MAX) + 1),
        Purpose::Totals,
        Purpose::Recv(u32::MAX),
        Purpose::Probe,
    ];
    for purpose in purposes {
        assert_eq!(Purpose::of(purpose.wr_id()), purpose);
    }
}
