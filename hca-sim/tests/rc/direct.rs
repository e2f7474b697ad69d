//! The particularities of messages that are placed directly.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use hca_sim::clock::VirtualClock;
use hca_sim::{Hca, Limits, Loopback};
use verbs_core::{
    Access, Attr, Error, LinkLayer, Memory, PortState, QpInit, QpState, Recv, Send, Wc, WcStatus,
    Write,
};

use crate::ends::{bytes, end_of, pair_on, poll, state, statuses};
use crate::hands::pushed_here;
use crate::way;

#[test]
fn a_flipped_bit_changes_one_message_and_nobody_notices() {
    let link = Loopback::with_seed(1);
    let (mut a, mut b) = (end(&link), end(&link));
    way::connect(&mut a.qp, &mut b.qp);
    link.flip_bit(2);
    let zeros = a.mr.slice(0..16);
    b.qp.post_recv(Recv::new(0)).unwrap();
    a.qp.post_send(Send::new(0).signaled()).unwrap();
    for i in 0..4 {
        a.qp.post_send(
            Write::new(i, b.mr.remote(16 * i as usize))
                .from(zeros)
                .signaled(),
        )
        .unwrap();
    }
    assert!(poll(&mut a.send_cq).iter().all(Wc::is_ok));
    let mut expected = [0; 64];
    expected[32] = 1;
    assert_eq!(bytes(&b, 0, 64), expected, "the third that carried data");
}

#[test]
fn time_stamps_come_when_asked_for() {
    let clock = VirtualClock::new();
    let hca = Hca::loopback().clock(clock.clone()).build();
    let end = end_of(hca, |init| init);
    let mut cq = end.device.create_cq(8).timestamps().wait().unwrap();
    let mut a = end.pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    let mut b = end.pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    way::connect(&mut a, &mut b);
    for us in 1..=2 {
        clock.advance(Duration::from_micros(1));
        a.post_send(
            Write::new(us, end.mr.remote(0))
                .from(end.mr.slice(8..16))
                .signaled(),
        )
        .unwrap();
    }
    let stamps: Vec<_> = poll(&mut cq).iter().map(|wc| wc.timestamp_ns).collect();
    assert_eq!(stamps, [1000, 2000]);
}

#[test]
fn limits_are_named_and_counts_return() {
    let limits = Limits {
        max_pd: 2,
        max_cq: 2,
        max_qp: 1,
        max_mr: 1,
        ..Limits::default()
    };
    let device = Hca::loopback().limits(limits).open().wait().unwrap();
    let (pd, other) = (
        device.alloc_pd().wait().unwrap(),
        device.alloc_pd().wait().unwrap(),
    );
    let full = |attr, max| Some(Error::Exhausted { attr, max });
    assert_eq!(device.alloc_pd().wait().err(), full(Attr::MaxPd, 2));
    other.dealloc().wait().unwrap();
    assert!(device.alloc_pd().wait().is_ok());
    let cq = device.create_cq(1).wait().unwrap();
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    assert_eq!(
        pd.create_qp(QpInit::rc(&cq, &cq)).wait().err(),
        full(Attr::MaxQp, 1)
    );
    qp.destroy().wait().unwrap();
    let deep = pd.create_qp(QpInit::rc(&cq, &cq).sges(17, 1)).wait().err();
    assert_eq!(
        deep,
        Some(Error::Invalid {
            attr: Attr::MaxSendSge,
            got: 17,
            max: 16
        })
    );
    assert!(pd.create_qp(QpInit::rc(&cq, &cq)).wait().is_ok());
    let low = pd
        .create_qp(QpInit::rc(&cq, &cq).low_latency())
        .wait()
        .err();
    assert_eq!(low, Some(Error::Unsupported(Attr::LowLatency)));
    let memory = || Memory::alloc(16).unwrap();
    let mr = pd.register(memory(), Access::empty()).wait().unwrap();
    assert_eq!(
        pd.register(memory(), Access::empty()).wait().err(),
        full(Attr::MaxMr, 1)
    );
    mr.dereg().wait().unwrap();
    assert!(pd.register(memory(), Access::empty()).wait().is_ok());
    assert!(device.query_port(2).wait().is_err());
    let port = device.query_port(1).wait().unwrap();
    assert_eq!(
        (port.state, port.link_layer),
        (PortState::Active, LinkLayer::InfiniBand)
    );
}

#[test]
fn rnr_waits_for_a_receive_and_keeps_the_order() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_on(&clock);
    a.mr.write(0, b"12").unwrap();
    a.qp.post_send(Send::new(1).from(a.mr.slice(0..1)).signaled())
        .unwrap();
    a.qp.post_send(
        Write::new(2, b.mr.remote(500))
            .from(a.mr.slice(0..2))
            .signaled(),
    )
    .unwrap();
    a.qp.post_send(Send::new(3).from(a.mr.slice(1..2)).signaled())
        .unwrap();
    assert!(poll(&mut a.send_cq).is_empty());
    assert_eq!(bytes(&b, 500, 1), [0], "the WRITE waits behind the SEND");
    clock.advance(Duration::from_secs(5));
    assert!(poll(&mut a.send_cq).is_empty(), "7 means for ever");
    b.qp.post_recv(Recv::new(4).into(b.mr.slice(0..1))).unwrap();
    assert_eq!(
        statuses(&mut a.send_cq),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    b.qp.post_recv(Recv::new(5).into(b.mr.slice(1..2))).unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(3, WcStatus::Success)]);
    assert_eq!(bytes(&b, 0, 2), b"12");
    b.qp.post_recv(Recv::new(6).into(b.mr.slice(0..1))).unwrap();
    a.qp.post_send(Send::new(7).from(a.mr.slice(0..1)).signaled())
        .unwrap();
    assert_eq!(
        statuses(&mut a.send_cq),
        [(7, WcStatus::Success)],
        "the door is open again"
    );
}

#[test]
fn an_overrun_takes_the_queue_pairs_to_error() {
    let link = Loopback::default();
    let small = end(&link);
    let cq = small.device.create_cq(4).wait().unwrap();
    let pd = &small.pd;
    let mut a = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    let mut b = pd
        .create_qp(QpInit::rc(&small.send_cq, &small.recv_cq))
        .wait()
        .unwrap();
    way::connect(&mut a, &mut b);
    for wr_id in 0..5 {
        a.post_send(
            Write::new(wr_id, small.mr.remote(0))
                .from(small.mr.slice(8..9))
                .signaled(),
        )
        .unwrap();
    }
    assert_eq!(a.query().wait().unwrap().state, QpState::Err);
    assert_eq!(b.query().wait().unwrap().state, QpState::Rts);
    let mut cq = cq;
    assert_eq!(poll(&mut cq).len(), 4, "what fitted can be polled");
}

fn end(link: &Loopback) -> crate::ends::End {
    end_of(Hca::on(link).build(), |init| init)
}

/// Goal: what the responder has refused ends with its answer, and not as flushed, when the requester is brought to ERR before
/// it could be told. Method: one thread has pushed to its completion queue, and another posts a WRITE with a key that is no
/// key, while the first brings the queue pair to ERR: afterwards once, and then sooner or later.
#[test]
fn an_error_is_kept_when_its_queue_pair_is_brought_to_err() {
    for round in 0..1000 {
        let (a, b, wrong) = pushed_here();
        let (qp, mut sends, _recvs) = a.qp.split().unwrap();
        let (mr, mut done) = (a.mr, a.send_cq);
        let begin = Barrier::new(2);
        thread::scope(|both| {
            let post = both.spawn(|| {
                begin.wait();
                let write = Write::new(9, wrong).from(mr.slice(0..8)).signaled();
                sends.post(write).unwrap();
            });
            begin.wait();
            if round == 0 {
                post.join().unwrap();
            }
            (0..round % 100 * 20).for_each(|_| spin_loop());
            qp.to_error().wait().unwrap();
        });
        let refused = state(&b) == QpState::Err;
        let status = match refused {
            true => WcStatus::RemAccessErr,
            false => WcStatus::WrFlushErr,
        };
        assert_eq!(statuses(&mut done), [(9, status)], "round {round}");
        assert!(
            refused || round > 0,
            "the post came first, and was not refused"
        );
    }
}
