//! The engine's calls at the deadlines of a queue pair.

use std::time::Duration;

use hca_sim::clock::VirtualClock;
use verbs_core::{Recv, Send, WcStatus};

use crate::ends::statuses;
use crate::faults::pair_with;
use crate::way;

/// Goal: a deadline that moves to an earlier time leaves no call behind. Method: a receiver that is not ready makes the
/// sender wait 10 ms again and again, and each time the sender waits for the acknowledgement next, up to 8.6 s. Tried
/// without the cancellation: more than 100 calls are left.
#[test]
fn a_deadline_that_moves_forward_leaves_no_call_behind() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_with(&clock, |attr| {
        attr.timeout = attr.timeout.map(|_| 18);
        attr.min_rnr_timer = attr.min_rnr_timer.map(|_| 20);
    });
    a.qp.post_send(Send::new(1).inline(b"x").signaled())
        .unwrap();
    way::advance(&clock, Duration::from_secs(3));
    assert_eq!(statuses(&mut a.send_cq), []);
    b.qp.post_recv(Recv::new(2).into(b.mr.slice(0..8))).unwrap();
    way::advance(&clock, Duration::from_millis(20));
    assert_eq!(statuses(&mut a.send_cq), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&mut b.recv_cq), [(2, WcStatus::Success)]);
    let left = clock.advance(Duration::from_secs(60));
    assert!(left <= 4, "{left} calls are left");
}
