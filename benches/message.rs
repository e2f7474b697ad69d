//! A message of 8 bytes between two queue pairs of one thread, compared with a word through a channel.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;

use futures::executor::block_on;
use verbs_benches::pair::Pair;
use verbs_core::{Recv, Send, SendWr, Wc};

use crate::{Group, Way, timed};

/// Work requests in a batch.
const BATCH: usize = 16;

/// Posts of the receive and of the signalled SEND, and polls of both completions.
pub(crate) fn group() -> Group {
    let subject = Rc::new(RefCell::new(block_on(Pair::new()).expect("a connection")));
    let way = |run: fn(&mut Pair, u64)| -> Way {
        let subject = Rc::clone(&subject);
        Box::new(move |times| timed(|| run(&mut subject.borrow_mut(), times)))
    };
    let ways = vec![
        ("crossbeam-channel, bounded", Box::new(channel) as Way),
        ("SEND, RECV, two polls", way(Pair::send)),
        ("the same, batches of 16", way(send_batches)),
        ("WRITE and its poll", way(Pair::write)),
        ("READ and its poll", way(Pair::read)),
    ];
    ("8 bytes, one thread".into(), ways)
}

fn channel(times: u64) -> std::time::Duration {
    let (sender, receiver) = crossbeam_channel::bounded(256);
    timed(|| {
        for word in 0..times {
            sender.send(black_box(word)).expect("there is room");
            black_box(receiver.recv()).expect("a word waits");
        }
    })
}

/// That many messages, or up to 15 more.
fn send_batches(pair: &mut Pair, times: u64) {
    let ((from, to), mut out) = (pair.places(), [Wc::default(); BATCH]);
    let send = |id| -> SendWr<'_> { Send::new(id).from(from).signaled().into() };
    let sends: [_; BATCH] = std::array::from_fn(|id| send(id as u64));
    let recvs: [_; BATCH] = std::array::from_fn(|id| Recv::new(id as u64).into(to));
    for _ in 0..times.div_ceil(BATCH as u64) {
        let recv_queue = pair.receiver.recv_queue().expect("it is here");
        recv_queue
            .post_batch(black_box(&recvs))
            .expect("there is room");
        let send_queue = pair.sender.send_queue().expect("it is here");
        send_queue
            .post_batch(black_box(&sends))
            .expect("there is room");
        assert_eq!(pair.sent.poll(&mut out).len(), BATCH);
        assert_eq!(pair.received.poll(&mut out).len(), BATCH);
    }
}
