//! What a consumer has seen is acknowledged, whatever becomes of its queue pair.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;
use std::time::Instant;

use futures::executor::block_on;
use hca_sim::connect;
use hca_sim::link::{Arrival, PacketLink, Udp, Wrap};
use verbs_core::{QpAttr, QpState, Recv, Send, Wc, WcStatus};

use crate::ends::{PATIENCE, end, end_over, free, host, next, pair};

/// Goal: what has arrived is acknowledged although its receiver destroys its queue pair, or takes it to ERR, as soon as
/// it sees it; the sender's retries would end in an error otherwise. Method: the receiver polls without a pause, so
/// that acknowledgements wait for its next poll, which never comes.
#[test]
fn a_message_that_was_seen_is_acknowledged_before_its_queue_pair_goes() {
    for (destroys, first) in [(true, 100), (false, 120)] {
        for test in first..first + 20 {
            let (mut a, mut b) = pair(test);
            b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..64)))
                .unwrap();
            // A thread that polls without result for a while receives the packets itself.
            for _ in 0..64 {
                assert!(b.cq.poll(&mut [Wc::default()]).is_empty());
            }
            a.qp.post_send(Send::new(2).from(a.mr.slice(0..64)).signaled())
                .unwrap();
            let mut one = [Wc::default()];
            let begun = Instant::now();
            while b.cq.poll(&mut one).is_empty() {
                assert!(begun.elapsed() < PATIENCE, "no message comes");
                std::hint::spin_loop();
            }
            assert_eq!(one[0].status, WcStatus::Success);
            if destroys {
                block_on(async { b.qp.destroy().await }).unwrap();
            } else {
                block_on(async { b.qp.to_error().await }).unwrap();
            }
            assert_eq!(next(&mut a.cq).status, WcStatus::Success);
        }
    }
}

/// A link whose reader, once it has read something while it is to `stop`, says so and waits until it may go on.
#[derive(Debug)]
struct Held {
    link: Udp,
    stop: Arc<AtomicBool>,
    stopped: Sender<()>,
    go_on: Receiver<()>,
}

impl Wrap for Held {
    fn inner(&self) -> &dyn PacketLink {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut dyn PacketLink {
        &mut self.link
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let came = self.link.receive(sink);
        if came != 0 && self.stop.swap(false, SeqCst) {
            self.stopped.send(()).unwrap();
            self.go_on.recv().unwrap();
        }
        came
    }
}

/// Goal: as above, when the engine's thread stands between the completion and the acknowledgement while the queue pair
/// goes.
#[test]
fn a_message_is_acknowledged_by_the_thread_that_received_it_although_its_queue_pair_goes() {
    let states = [None, Some(QpState::Err), Some(QpState::Reset)];
    for (test, goes_to) in (140..).zip(states) {
        let stop = Arc::new(AtomicBool::new(false));
        let ((stopped, has_stopped), (goes_on, go_on)) = (channel(), channel());
        let held = Held {
            link: free(host(test, 2)),
            stop: Arc::clone(&stop),
            stopped,
            go_on,
        };
        let (mut a, mut b) = (end(host(test, 1)), end_over(held));
        block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
        b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..64)))
            .unwrap();
        stop.store(true, SeqCst);
        a.qp.post_send(Send::new(2).from(a.mr.slice(0..64)).signaled())
            .unwrap();
        has_stopped.recv().unwrap();
        let mut one = [Wc::default()];
        assert_eq!(b.cq.poll(&mut one).len(), 1);
        let mut end = pin!(async {
            match goes_to {
                None => b.qp.destroy().await.map_err(|refused| refused.error),
                Some(to) => b.qp.modify(QpAttr::to(to)).await,
            }
        });
        let began = block_on(poll_fn(|cx| Poll::Ready(end.as_mut().poll(cx))));
        assert!(began.is_pending(), "the thread is still at work");
        goes_on.send(()).unwrap();
        block_on(end).unwrap();
        assert_eq!(next(&mut a.cq).status, WcStatus::Success);
    }
}
