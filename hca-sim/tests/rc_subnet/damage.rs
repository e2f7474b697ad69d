//! Packets of InfiniBand that are damaged on the way.

use std::time::Duration;

use futures::executor::block_on;
use hca_sim::clock::VirtualClock;
use hca_sim::connect;
use hca_sim::extension::PacketCounters;
use hca_sim::link::Faults;
use verbs_core::{Read, WcStatus, Write};

use crate::ends::{End, bytes, end_of, statuses};
use crate::way;

/// Goal: a packet in which a bit has changed is dropped and counted, and sent again: no wrong byte arrives, in either
/// direction. Method: each side gets three packets of ten with a bit inverted, in a header or in the payload.
#[test]
fn a_damaged_packet_is_counted_and_sent_again() {
    let clock = VirtualClock::new();
    let faults = Faults {
        corruption: 300,
        ..Faults::NONE
    };
    let [mut a, mut b] =
        way::damaged(&clock, |builder| builder, faults).map(|hca| end_of(hca, |init| init));
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    let data: Vec<u8> = (0..8000_u32).map(|at| (at * 7 / 3) as u8).collect();
    a.mr.write(0, &data).unwrap();
    for wr_id in 0..20 {
        let at = wr_id as usize * 400;
        let (to, from) = (b.mr.remote(at), a.mr.slice(at..at + 400));
        a.qp.post_send(Write::new(wr_id, to).from(from).signaled())
            .unwrap();
        let (from, to) = (b.mr.remote(at), a.mr.slice(20_000 + at..20_400 + at));
        a.qp.post_send(Read::new(wr_id, from).into(to).signaled())
            .unwrap();
        let mut ended = Vec::new();
        while ended.len() < 2 {
            way::advance(&clock, Duration::from_millis(100));
            ended.extend(statuses(&mut a.send_cq));
        }
        assert_eq!(ended, [(wr_id, WcStatus::Success); 2]);
    }
    assert_eq!(bytes(&b, 0, 8000), data, "written");
    assert_eq!(bytes(&a, 20_000, 8000), data, "read back");
    for end in [&a, &b] {
        let (bad, other) = dropped(end);
        assert!(bad > 0, "nothing was damaged");
        assert_eq!(other, 0, "a damaged packet was looked into");
    }
}

/// Packets whose ICRC was wrong, and packets that were dropped because of their content.
fn dropped(end: &End) -> (u64, u64) {
    let packets = end.device.call::<PacketCounters>(()).wait().unwrap();
    let other = packets.malformed + packets.bad_pkeys + packets.strangers;
    (packets.bad_icrcs, other)
}
