//! Packets that a switch has marked.

use std::time::Duration;

use hca_sim::clock::VirtualClock;
use hca_sim::extension::PacketCounters;
use verbs_core::{Av, Send};

use crate::ends::{End, pair_with, poll};
use crate::way;

/// ECN: congestion experienced.
const MARKED: u8 = 0b11;

fn told(end: &End) -> u64 {
    way::settle();
    let counted = end.device.call::<PacketCounters>(()).wait().unwrap();
    counted.cnps_received
}

/// Goal: marks are answered, at most once in 50 us, and only to the queue pair whose packets have them.
/// Method: a sender whose packets leave marked, as if every switch were full.
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
        assert_eq!(told(&a), expected[0]);
        way::advance(&clock, Duration::from_micros(60));
        send(&mut a);
        assert_eq!(told(&a), expected[1]);
    }
}
