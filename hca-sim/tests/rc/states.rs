//! States of queue pairs, destruction and removal, limits.

use std::time::Duration;

use hca_sim::clock::VirtualClock;
use verbs_core::{
    Access, Error, Mtu, Path, PostError, Psn, QpAttr, QpState, Recv, Send, WcStatus, Write,
};

use crate::ends::{End, bytes, pair, pair_on, poll, state, statuses, two_on};
use crate::way;

#[test]
fn a_peer_that_becomes_ready_in_time_gets_the_message() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = two_on(&clock);
    let path = |end: &End| Path {
        av: way::address(&end.hca),
        dest_qpn: end.qp.qpn(),
        rq_psn: Psn::new(77),
        mtu: Mtu::B1024,
    };
    for (qp, to) in [(&a.qp, path(&b)), (&b.qp, path(&a))] {
        qp.init(1, Access::REMOTE_WRITE).wait().unwrap();
        qp.ready_to_receive(&to).wait().unwrap();
    }
    let early = b.qp.post_send(Send::new(1));
    assert_eq!(early, Err(PostError::State(QpState::Rtr)));
    b.qp.to_error().wait().unwrap();
    a.qp.ready_to_send(Psn::new(77)).wait().unwrap();
    a.qp.post_send(Write::new(2, b.mr.remote(0)).inline(b"late").signaled())
        .unwrap();
    way::advance(&clock, Duration::from_millis(100));
    b.qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    b.qp.init(1, Access::REMOTE_WRITE).wait().unwrap();
    b.qp.ready_to_receive(&path(&a)).wait().unwrap();
    // Over packets, this waits for the next retry.
    way::advance(&clock, Duration::from_millis(100));
    assert_eq!(statuses(&mut a.send_cq), [(2, WcStatus::Success)]);
    assert_eq!(bytes(&b, 0, 4), b"late");
    let info = b.qp.query().wait().unwrap();
    assert_eq!(info.attr.rq_psn, Some(Psn::new(78)));
    assert_eq!(a.qp.query().wait().unwrap().attr.sq_psn, Some(Psn::new(78)));
    drop(poll(&mut b.send_cq));
}

#[test]
fn error_flushes_each_queue_in_order() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_on(&clock);
    for wr_id in 0..5 {
        a.qp.post_recv(Recv::new(wr_id)).unwrap();
        a.qp.post_send(Send::new(10 + wr_id)).unwrap();
    }
    a.qp.to_error().wait().unwrap();
    let flushed = |from: u64| {
        (from..from + 5)
            .map(|id| (id, WcStatus::WrFlushErr))
            .collect::<Vec<_>>()
    };
    assert_eq!(statuses(&mut a.send_cq), flushed(10));
    assert_eq!(statuses(&mut a.recv_cq), flushed(0));
    a.qp.post_send(Send::new(20)).unwrap();
    a.qp.post_recv(Recv::new(21)).unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(20, WcStatus::WrFlushErr)]);
    assert_eq!(statuses(&mut a.recv_cq), [(21, WcStatus::WrFlushErr)]);
    assert_eq!(state(&b), QpState::Rts, "the peer is not told");
    drop(poll(&mut b.recv_cq));
}

#[test]
fn a_reset_queue_pair_forgets_and_connects_again() {
    let (mut a, mut b) = pair();
    for wr_id in 0..16 {
        a.qp.post_send(Write::new(wr_id, b.mr.remote(0)).from(a.mr.slice(0..1)))
            .unwrap();
        a.qp.post_recv(Recv::new(wr_id)).unwrap();
    }
    for qp in [&a.qp, &b.qp] {
        qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    }
    assert!(poll(&mut a.send_cq).is_empty() && poll(&mut a.recv_cq).is_empty());
    assert_eq!(
        a.qp.post_send(Send::new(1)),
        Err(PostError::State(QpState::Reset))
    );
    assert_eq!(
        a.qp.post_recv(Recv::new(1)),
        Err(PostError::State(QpState::Reset))
    );
    way::connect(&mut a.qp, &mut b.qp);
    for wr_id in 0..16 {
        b.qp.post_recv(Recv::new(wr_id)).unwrap();
        a.qp.post_send(Send::new(wr_id)).unwrap();
    }
    assert_eq!(statuses(&mut b.recv_cq).len(), 16);
}

#[test]
fn sqd_queues_and_rts_goes_on() {
    let (mut a, b) = pair();
    a.qp.modify(QpAttr::to(QpState::Sqd)).wait().unwrap();
    a.qp.post_send(Write::new(1, b.mr.remote(0)).inline(b"x").signaled())
        .unwrap();
    assert!(poll(&mut a.send_cq).is_empty());
    a.qp.modify(QpAttr::to(QpState::Rts)).wait().unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(1, WcStatus::Success)]);
    assert_eq!(bytes(&b, 0, 1), b"x");
}

#[test]
fn k11_destroy_flushes_and_the_queues_know() {
    let clock = VirtualClock::new();
    let (mut a, b) = pair_on(&clock);
    a.qp.post_send(Send::new(1).from(a.mr.slice(0..1))).unwrap();
    a.qp.post_recv(Recv::new(2)).unwrap();
    let (qp, mut sq, mut rq) = a.qp.split().unwrap();
    qp.destroy().wait().unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(statuses(&mut a.recv_cq), [(2, WcStatus::WrFlushErr)]);
    assert_eq!(sq.post(Send::new(3)), Err(PostError::Destroyed));
    assert_eq!(rq.post(Recv::new(4)), Err(PostError::Destroyed));
    a.send_cq.destroy().wait().unwrap();
    a.recv_cq.destroy().wait().unwrap();
    drop(b);
}

#[test]
fn a_removed_device_flushes_refuses_and_does_not_answer() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_on(&clock);
    b.qp.post_recv(Recv::new(1)).unwrap();
    b.hca.remove();
    assert_eq!(statuses(&mut b.recv_cq), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(b.qp.post_recv(Recv::new(2)), Err(PostError::DeviceRemoved));
    assert_eq!(b.qp.post_send(Send::new(3)), Err(PostError::DeviceRemoved));
    assert_eq!(
        b.device.alloc_pd().wait().map(drop),
        Err(Error::DeviceRemoved)
    );
    assert_eq!(b.qp.to_error().wait(), Err(Error::DeviceRemoved));
    a.qp.post_send(Send::new(4).from(a.mr.slice(0..1))).unwrap();
    way::advance(&clock, Duration::from_secs(1));
    assert_eq!(statuses(&mut a.send_cq), [(4, WcStatus::RetryExcErr)]);
    assert_eq!(b.hca.open().wait().map(drop), Err(Error::DeviceRemoved));
    b.qp.destroy().wait().unwrap();
    b.mr.dereg().wait().unwrap();
}
