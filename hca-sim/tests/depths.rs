//! The queues of a queue pair are resized while work is posted on them.
#![allow(clippy::unwrap_used, reason = "tests")]

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Attr, Device, Error, Pd, PostError, Qp, QpInit, QpType, Recv, Send, Wc, Why,
};

fn device() -> (Device, Pd) {
    let device = Hca::loopback().open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    (device, pd)
}

fn receives(qp: &mut Qp) -> u32 {
    let mut count = 0;
    loop {
        match qp.post_recv(Recv::new(u64::from(count))) {
            Ok(()) => count += 1,
            Err(PostError::Full { .. }) => return count,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn before_the_queues_are_there_any_depth_may_be_chosen() {
    let (device, pd) = device();
    let cq = device.create_cq(64).wait().unwrap();
    let mut qp = pd
        .create_qp(QpInit::rc(&cq, &cq).depth(1, 1))
        .wait()
        .unwrap();
    let cap = qp.resize().send(300).recv(40).wait().unwrap();
    assert_eq!((cap.max_send_wr, cap.max_recv_wr), (300, 40));
    assert_eq!(qp.query().wait().unwrap().cap, cap);
    assert_eq!(qp.target().cap(), cap);
    qp.init(1, Access::empty()).wait().unwrap();
    assert_eq!(receives(&mut qp), 40);
}

#[test]
fn queues_in_use_grow_into_their_rings_and_shrink_without_loss() {
    let (device, pd) = device();
    let mut cq = device.create_cq(64).wait().unwrap();
    let init = QpInit::rc(&cq, &cq).depth(5, 5).inline(8);
    let (mut from, mut to) = (
        pd.create_qp(init).wait().unwrap(),
        pd.create_qp(init).wait().unwrap(),
    );
    block_on(connect(&mut from, &mut to)).unwrap();
    assert_eq!(receives(&mut to), 5);
    to.resize().recv(8).wait().unwrap();
    assert_eq!(receives(&mut to), 3, "as many more as it grew");
    let (attr, got, outstanding) = (Attr::MaxRecvWr, 2, 8);
    let refused = Error::Outstanding {
        attr,
        got,
        outstanding,
    };
    assert_eq!(to.resize().recv(2).wait(), Err(refused));
    assert_eq!(receives(&mut to), 0, "it is as deep as it was");
    for id in 0..8 {
        from.post_send(Send::new(id).inline(b"").signaled())
            .unwrap_or_else(|error| {
                assert_eq!((id, error), (5, PostError::Full { depth: 5 }));
                assert_eq!(
                    from.resize().send(8).wait().map(|cap| cap.max_send_wr),
                    Ok(8)
                );
            });
        if id == 5 {
            from.post_send(Send::new(id).inline(b"").signaled())
                .unwrap();
        }
    }
    let mut out = [Wc::default(); 32];
    let polled = cq.poll(&mut out);
    assert_eq!(
        polled.iter().filter(|wc| wc.is_ok()).count(),
        16,
        "all that were posted arrive"
    );
    to.resize().recv(2).wait().unwrap();
    assert_eq!(receives(&mut to), 2, "the new depth holds");
}

#[test]
fn what_cannot_be_is_refused_by_name_and_changes_nothing() {
    let (device, pd) = device();
    let cq = device.create_cq(64).wait().unwrap();
    let srq = pd.create_srq(4, 1).wait().unwrap();
    let qp = pd
        .create_qp(QpInit::rc(&cq, &cq).depth(5, 5))
        .wait()
        .unwrap();
    let before = qp.target().cap();
    let most = device.query().wait().unwrap().max_qp_wr;
    let refused = qp.resize().send(most + 1).wait().unwrap_err();
    let (attr, got) = (Attr::MaxSendWr, most + 1);
    assert_eq!(
        refused,
        Error::Invalid {
            attr,
            got,
            max: most
        }
    );
    qp.init(1, Access::empty()).wait().unwrap();
    let refused = qp.resize().send(6).recv(9).wait().unwrap_err();
    assert_eq!(
        refused,
        Error::Exhausted {
            attr: Attr::MaxRecvWr,
            max: 8
        }
    );
    assert_eq!(qp.target().cap(), before);
    let of_srq = pd.create_qp(QpInit::rc(&cq, &cq).srq(&srq)).wait().unwrap();
    let refused = of_srq.resize().recv(9).wait().unwrap_err();
    let (attr, why) = (Attr::MaxRecvWr, Why::UsesSrq);
    assert_eq!(refused, Error::Mismatch { attr, why });
    let sender = pd
        .create_qp(QpInit::of(QpType::XrcSend, &cq, &cq))
        .wait()
        .unwrap();
    let refused = sender.resize().recv(9).wait().unwrap_err();
    let why = Why::NoReceives;
    assert_eq!(refused, Error::Mismatch { attr, why });
}
