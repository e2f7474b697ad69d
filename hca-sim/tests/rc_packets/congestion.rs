//! Packets that a switch has marked.

use std::time::Duration;

use hca_sim::Dcqcn;
use hca_sim::clock::VirtualClock;
use hca_sim::extension::{PacketCounters, Packets};
use verbs_core::{Av, Send};

use crate::ends::{End, poll};
use crate::faults::pair_with;
use crate::way;

/// ECN: congestion experienced.
const MARKED: u8 = 0b11;

fn counted(end: &End) -> Packets {
    way::settle();
    end.device.call::<PacketCounters>(()).wait().unwrap()
}

/// Goal: marks are answered, at most once in 50 us, and only to the queue pair whose packets have them, which then
/// sends at half of the line's rate, and at less after the next notification. Method: a sender whose packets are sent
/// marked, as if every switch were full.
#[test]
fn marked_packets_are_answered_with_notifications() {
    let clock = VirtualClock::new();
    let marked = |av: Av| {
        let global = av.global.map(|mut global| {
            global.traffic_class = MARKED;
            global
        });
        Av { global, ..av }
    };
    for (class, expected) in [(0, [0, 0]), (MARKED, [1, 2])] {
        let (mut a, mut b) = pair_with(&clock, |attr| {
            if class == MARKED {
                attr.av = attr.av.map(marked);
            }
        });
        let mut send = |a: &mut End| {
            for _ in 0..3 {
                b.qp.post_recv(verbs_core::Recv::new(1).into(b.mr.slice(0..64)))
                    .unwrap();
                a.qp.post_send(Send::new(2).inline(b"x").signaled())
                    .unwrap();
            }
            assert_eq!(poll(&mut a.send_cq).len(), 3);
        };
        send(&mut a);
        assert_eq!(counted(&a).cnps_received, expected[0]);
        let half = Dcqcn::default().line_rate / 2;
        assert_eq!(counted(&a).rate, half * expected[0]);
        way::advance(&clock, Duration::from_micros(60));
        send(&mut a);
        assert_eq!(counted(&a).cnps_received, expected[1]);
        assert_eq!(counted(&a).rate_cuts, expected[1]);
        assert_eq!(counted(&b).cnps_sent, expected[1]);
        assert!(counted(&a).rate <= half);
        let stats = a.qp.stats().wait().expect("this HCA counts");
        assert_eq!(stats.cnps, expected[1]);
        assert_eq!(stats.rate.is_some(), class == MARKED, "{stats:?}");
        assert!(stats.round_trip.is_some() && stats.timeouts == 0);
    }
}
