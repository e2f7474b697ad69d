//! Completion queues that another thread pushes to from now on.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::thread;

use verbs_core::{QpState, RKey, Recv, Remote, Send, WcStatus, Write};

use crate::ends::{End, pair, poll, state, statuses};

/// Two ends whose completion queues belong to this thread, and a place at the second that no key opens.
fn pushed_here() -> (End, End, Remote) {
    let (mut a, mut b) = pair();
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..8))).unwrap();
    let send = Send::new(2).from(a.mr.slice(0..8)).signaled();
    a.qp.post_send(send).unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(2, WcStatus::Success)]);
    assert_eq!(statuses(&mut b.recv_cq), [(1, WcStatus::Success)]);
    let mut wrong = b.mr.remote(0);
    wrong.rkey = RKey::new(wrong.rkey.value() ^ 0x55);
    (a, b, wrong)
}

/// Goal: a work request that ends in error while its completion queue changes hands ends with that error, although the
/// responder has gone to ERR in the meantime, which answers no second try. Method: one thread has pushed to the queues; another
/// posts a WRITE with a key that is no key.
#[test]
fn an_error_is_kept_while_the_queue_changes_hands() {
    for _ in 0..20 {
        let (mut a, mut b, wrong) = pushed_here();
        b.qp.post_recv(Recv::new(3).into(b.mr.slice(0..8))).unwrap();
        let mut a = thread::spawn(move || {
            let write = Write::new(9, wrong).from(a.mr.slice(0..8)).signaled();
            a.qp.post_send(write).unwrap();
            a
        })
        .join()
        .unwrap();
        let done = poll(&mut a.send_cq);
        assert_eq!(done.len(), 1, "{done:?}");
        assert_eq!((done[0].wr_id, done[0].status), (9, WcStatus::RemAccessErr));
        assert_eq!(state(&a), QpState::Err);
    }
}

/// Goal: what the responder has refused ends with its answer, and not as flushed, when the requester is brought to ERR before
/// it could be told. Method: as above, while the first thread brings the queue pair to ERR: afterwards once, and then sooner or later.
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
