//! The time of completions.

use verbs_core::{Attr, Device, Error, QpInit, Recv, Send, Wc, WcOpcode, WcStatus};

use crate::pair::{End, connect};
use crate::rdma_core::{is_our_own, nic};

/// Goal: completions of a queue with stamps have everything that others have, and times in the order in which they were
/// made; those of a queue without have none. A device without a clock refuses the queue by the name of what it lacks.
#[test]
fn completions_carry_the_time_if_that_is_asked_for() {
    let device = Device::open(nic()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let stamped = match device.create_cq(64).timestamps().wait() {
        Err(error) if !is_our_own() => {
            assert_eq!(error, Error::Unsupported(Attr::Timestamps));
            return;
        }
        made => made.unwrap(),
    };
    let mut plain = End::new(&device, &pd, verbs_core::QpType::Rc);
    let init = QpInit::rc(&stamped, &stamped).depth(16, 16).sges(2, 2);
    let mut left = End {
        qp: pd.create_qp(init).wait().unwrap(),
        cq: stamped,
        ..End::new(&device, &pd, verbs_core::QpType::Rc)
    };
    connect(&device, &left, &plain);
    let mut last = 0;
    for round in 1..=20_u64 {
        let room = left.mr.slice(0..64);
        left.qp.post_recv(Recv::new(round).into(room)).unwrap();
        let send = Send::new(round).imm(round as u32).inline(b"tick");
        plain.qp.post_send(send.signaled()).unwrap();
        assert_eq!(plain.completion().timestamp_ns, 0);
        let wc = left.completion();
        let shown = (wc.status, wc.opcode, wc.byte_len, wc.immediate(), wc.qpn);
        let expected = (
            WcStatus::Success,
            WcOpcode::Recv,
            4,
            Some(round as u32),
            left.qp.qpn(),
        );
        assert_eq!((wc.wr_id, shown), (round, expected));
        assert!(wc.timestamp_ns > last, "{} after {last}", wc.timestamp_ns);
        last = wc.timestamp_ns;
    }
    // Several at a time, and what a failure has.
    for round in 1..=3 {
        left.qp.post_recv(Recv::new(round)).unwrap();
    }
    left.qp.to_error().wait().unwrap();
    let mut some = [Wc::default(); 2];
    let flushed = |wc: &Wc| (wc.wr_id, wc.status, wc.qpn);
    let expected = |id| (id, WcStatus::WrFlushErr, left.qp.qpn());
    assert_eq!(left.cq.poll(&mut some).len(), 2);
    assert_eq!(some.map(|wc| flushed(&wc)), [expected(1), expected(2)]);
    assert_eq!(left.cq.poll(&mut some).len(), 1);
    assert_eq!(flushed(&some[0]), expected(3));
    assert_eq!(left.cq.poll(&mut some).len(), 0);
    assert_eq!(left.cq.poll(&mut []).len(), 0);
}
