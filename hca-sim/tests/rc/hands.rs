//! Completion queues that another thread pushes to from now on.

use std::thread;

use verbs_core::{QpState, RKey, Recv, Remote, Send, WcStatus, Write};

use crate::ends::{End, pair, poll, state, statuses};

/// Two ends whose completion queues belong to this thread, and a place at the second that no key opens.
pub(crate) fn pushed_here() -> (End, End, Remote) {
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
