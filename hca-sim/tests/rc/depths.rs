//! The queues of a connected queue pair are made smaller.

use verbs_core::{Attr, Error, PostError, QpAttr, QpState, Recv, Send, Write};

use crate::ends::{pair, poll, statuses};
use crate::way;

/// Goal: a depth below what is outstanding is refused with all three numbers, and the queue pair continues as it was; the
/// exact number is right. Method: receives that wait, and sends that are carried out and not polled.
#[test]
fn a_queue_is_not_made_smaller_than_what_is_outstanding() {
    let (mut a, mut b) = pair();
    let refused = |attr, got, outstanding| {
        Err(Error::Outstanding {
            attr,
            got,
            outstanding,
        })
    };
    let before = (a.qp.target().cap(), b.qp.target().cap());
    for id in 0..5 {
        b.qp.post_recv(Recv::new(id)).unwrap();
    }
    let few = b.qp.resize().recv(4).wait();
    assert_eq!(few, refused(Attr::MaxRecvWr, 4, 5));
    let said = "max_recv_wr = 4 is too small: 5 work requests are outstanding; ask for at least 5, or wait until fewer \
                are";
    assert_eq!(few.unwrap_err().to_string(), said);
    for id in 0..4 {
        let send = Send::new(id).inline(b"");
        let is_last = id == 3;
        a.qp.post_send(if is_last || id == 1 {
            send.signaled()
        } else {
            send
        })
        .unwrap();
    }
    way::settle();
    // The oldest that has something to report is the second.
    let few = a.qp.resize().send(2).recv(7).wait();
    assert_eq!(few, refused(Attr::MaxSendWr, 2, 3));
    assert_eq!((a.qp.target().cap(), b.qp.target().cap()), before);
    assert_eq!(a.qp.resize().send(3).wait().unwrap().max_send_wr, 3);
    assert_eq!(b.qp.resize().recv(0).wait(), refused(Attr::MaxRecvWr, 0, 1));
    assert_eq!(b.qp.resize().recv(1).wait().unwrap().max_recv_wr, 1);
    let ok = verbs_core::WcStatus::Success;
    assert_eq!(statuses(&mut a.send_cq), [(1, ok), (3, ok)]);
    assert_eq!(poll(&mut b.recv_cq).len(), 4);
    a.qp.resize().send(1).wait().unwrap();
    for id in 5..9 {
        a.qp.post_send(Send::new(id).inline(b"").signaled())
            .unwrap();
        assert_eq!(statuses(&mut a.send_cq), [(id, ok)]);
        assert_eq!(
            statuses(&mut b.recv_cq),
            [(if id == 5 { 4 } else { id - 1 }, ok)]
        );
        b.qp.post_recv(Recv::new(id)).unwrap();
    }
}

/// Goal: what is finished and reports nothing neither prevents that a queue is made smaller nor blocks it afterwards.
#[test]
fn finished_sends_without_completions_give_their_places_to_a_smaller_queue() {
    for is_one_polled in [false, true] {
        let (mut a, b) = pair();
        let write = |id| Write::new(id, b.mr.remote(0)).inline(b"quiet");
        let depth = a.qp.target().cap().max_send_wr;
        for id in 0..u64::from(depth) {
            let write = write(id);
            let is_first = is_one_polled && id == 0;
            let posted =
                a.qp.post_send(if is_first { write.signaled() } else { write });
            posted.unwrap();
        }
        let full = |depth| Err(PostError::Full { depth });
        assert_eq!(a.qp.post_send(write(99)), full(depth));
        assert_eq!(poll(&mut a.send_cq).len(), usize::from(is_one_polled));
        a.qp.resize().send(4).wait().unwrap();
        for round in 0..3 {
            for id in 0..4 {
                a.qp.post_send(write(id).signaled()).unwrap();
            }
            assert_eq!(a.qp.post_send(write(99)), full(4), "round {round}");
            assert_eq!(poll(&mut a.send_cq).len(), 4);
        }
    }
}

/// Goal: a reset leaves nothing outstanding, although completions of before can still be polled.
#[test]
fn after_a_reset_nothing_is_outstanding() {
    let (mut a, mut b) = pair();
    for id in 0..3 {
        b.qp.post_recv(Recv::new(id)).unwrap();
        let write = Write::new(id, b.mr.remote(0)).inline(b"seen");
        a.qp.post_send(write.signaled()).unwrap();
    }
    way::settle();
    assert!(a.qp.resize().send(2).wait().is_err());
    assert!(b.qp.resize().recv(2).wait().is_err());
    for end in [&a, &b] {
        end.qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
        let cap = end.qp.resize().send(1).recv(1).wait().unwrap();
        assert_eq!((cap.max_send_wr, cap.max_recv_wr), (1, 1));
    }
    assert_eq!(poll(&mut a.send_cq).len(), 3);
}
