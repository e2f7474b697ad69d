//! Futures that are dropped, in every state.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};

use futures::executor::block_on;
use verbs_core::Access;

use crate::pair::{Pair, message, pair_with, poll, text};

/// Counts how often it is woken.
#[derive(Default)]
struct Counts(AtomicU32);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Goal: an operation that is dropped before its first poll has no effect; one that waits for room is not sent; one
/// that is posted is; and all buffers are returned. Method: a peer with room for one message, and a queue for two.
#[test]
fn sends_dropped_in_every_state() {
    block_on(async {
        let pair = pair_with(|opening| opening.depth(2).window(1).buffers(8)).await;
        let Pair { a, b, nets, .. } = &pair;
        drop(a.send(message(a, "never polled").await));
        a.send(message(a, "first").await).await.unwrap();
        // The peer has no receive left: these are posted, and wait for it.
        let mut posted = a.send(message(a, "posted").await);
        let mut other = a.send(message(a, "posted as well").await);
        assert!(poll(&mut posted).is_none() && poll(&mut other).is_none());
        let mut waits = a.send(message(a, "waits for room").await);
        let mut last = a.send(message(a, "last").await);
        assert!(poll(&mut waits).is_none() && poll(&mut last).is_none());
        assert_eq!(nets[0].usage().lent, 0, "the lane has them");
        drop(posted);
        drop(waits);
        for expected in ["first", "posted", "posted as well", "last"] {
            assert_eq!(text(b).await.unwrap(), expected);
        }
        other.await.unwrap();
        last.await.unwrap();
        // All eight buffers of the pool are available.
        let all: Vec<_> = (0..8).map(|_| nets[0].try_buf().unwrap()).collect();
        assert!(nets[0].try_buf().is_none());
        drop(all);
        pair.close().await.unwrap();
    });
}

/// A completed operation whose future is dropped unread returns its buffer.
#[test]
fn a_completed_send_is_dropped() {
    block_on(async {
        let pair = pair_with(|opening| opening.window(1).buffers(2)).await;
        let Pair { a, b, nets, .. } = &pair;
        a.send(message(a, "one").await).await.unwrap();
        let mut second = a.send(message(a, "two").await);
        assert!(poll(&mut second).is_none());
        assert_eq!(text(b).await.unwrap(), "one");
        assert_eq!(text(b).await.unwrap(), "two");
        nets[0].turn();
        drop(second);
        assert!(nets[0].try_buf().is_some());
        pair.close().await.unwrap();
    });
}

/// Goal: a message that was given to a task that does not take it is given to the next, and none is lost. Method: two
/// wait, the first is dropped after a message arrived for it; then one that waits alone.
#[test]
fn receivers_dropped_after_delivery() {
    block_on(async {
        let pair = pair_with(|opening| opening).await;
        let Pair { a, b, .. } = &pair;
        let (mut first, mut second) = (b.recv(), b.recv());
        assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
        a.send(message(a, "for the first").await).await.unwrap();
        pair.nets[1].turn();
        drop(first);
        let got = poll(&mut second).expect("it was handed on").unwrap();
        assert_eq!(&got.unwrap()[..], b"for the first");
        let mut third = b.recv();
        assert!(poll(&mut third).is_none());
        a.send(message(a, "kept").await).await.unwrap();
        pair.nets[1].turn();
        drop(third);
        a.send(message(a, "behind").await).await.unwrap();
        assert_eq!(text(b).await.unwrap(), "kept");
        assert_eq!(text(b).await.unwrap(), "behind");
        pair.close().await.unwrap();
    });
}

/// Goal: a message that was given to a task that does not take it stays before those that arrived later, and the task
/// that gets it in its place is woken.
#[test]
fn a_message_that_is_not_taken_keeps_its_place() {
    block_on(async {
        let pair = pair_with(|opening| opening).await;
        let Pair { a, b, nets, .. } = &pair;
        let mut alone = b.recv();
        assert!(poll(&mut alone).is_none());
        for what in ["kept", "behind"] {
            a.send(message(a, what).await).await.unwrap();
        }
        nets[1].turn();
        drop(alone);
        for what in ["kept", "behind"] {
            assert_eq!(text(b).await.unwrap(), what);
        }
        let (mut first, mut second) = (b.recv(), b.recv());
        assert!(poll(&mut first).is_none());
        let counts = Arc::new(Counts::default());
        let waker = Waker::from(Arc::clone(&counts));
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut second).poll(&mut cx).is_pending());
        a.send(message(a, "for the first").await).await.unwrap();
        nets[1].turn();
        assert_eq!(counts.0.load(Ordering::Relaxed), 0, "it is for the first");
        drop(first);
        assert_eq!(counts.0.load(Ordering::Relaxed), 1);
        let got = poll(&mut second).expect("it was handed on").unwrap();
        assert_eq!(&got.unwrap()[..], b"for the first");
        pair.close().await.unwrap();
    });
}

/// Tasks that wait for a buffer of the pool get it in order; one that is dropped does not keep it.
#[test]
fn takers_dropped_in_every_state() {
    block_on(async {
        let pair = pair_with(|opening| opening.buffers(1)).await;
        let a = &pair.a;
        let only = a.buf().await;
        let (mut first, mut second, mut third) = (a.buf(), a.buf(), a.buf());
        assert!(poll(&mut first).is_none());
        assert!(poll(&mut second).is_none());
        assert!(poll(&mut third).is_none());
        drop(first);
        drop(only);
        assert!(poll(&mut third).is_none(), "it is the second's turn");
        drop(second);
        assert_eq!(poll(&mut third).expect("now").len(), 4096);
        pair.close().await.unwrap();
    });
}

/// Goal: `posted` only waits for room, an operation that is dropped in the queue is not sent, and buffers are returned
/// by themselves.
#[test]
fn pipelines_wait_for_room() {
    block_on(async {
        let pair = pair_with(|opening| opening.depth(2).window(1).buffers(8)).await;
        let Pair { a, b, nets, .. } = &pair;
        for n in 0..3 {
            let mut posting = a.send(message(a, &n.to_string()).await).posted();
            assert!(poll(&mut posting).expect("there is room").is_ok());
        }
        let mut waits = a.send(message(a, "3").await).posted();
        let mut dropped = a.send(message(a, "not sent").await).posted();
        assert!(poll(&mut waits).is_none() && poll(&mut dropped).is_none());
        drop(dropped);
        assert_eq!(text(b).await.unwrap(), "0");
        assert_eq!(text(b).await.unwrap(), "1");
        waits.await.unwrap();
        assert_eq!(text(b).await.unwrap(), "2");
        assert_eq!(text(b).await.unwrap(), "3");
        nets[0].turn();
        let all: Vec<_> = (0..8).map(|_| nets[0].try_buf().unwrap()).collect();
        drop(all);
        pair.close().await.unwrap();
    });
}

/// Goal: a future that was polled once and is held, never polled again, blocks no other. Method: the connection's other
/// operations continue, with a queue of one.
#[test]
fn a_future_that_is_held_holds_no_other_up() {
    block_on(async {
        let pair = pair_with(|opening| opening.depth(1).window(1)).await;
        let Pair { a, b, .. } = &pair;
        a.send(message(a, "first").await).await.unwrap();
        let mut held = a.send(message(a, "held").await);
        assert!(poll(&mut held).is_none());
        let mut reader = b.recv();
        assert!(poll(&mut reader).is_some(), "the first");
        let sender = async {
            for n in 0..100_u32 {
                a.send(message(a, &n.to_string()).await).await.unwrap();
            }
        };
        let receiver = async {
            assert_eq!(text(b).await.unwrap(), "held");
            for n in 0..100_u32 {
                assert_eq!(text(b).await.unwrap(), n.to_string());
            }
        };
        futures::future::join(sender, receiver).await;
        drop(held);
        pair.close().await.unwrap();
    });
}

/// Atomics that are dropped return their words: there are as many as work requests.
#[test]
fn atomics_dropped_under_way() {
    block_on(async {
        let pair = crate::pair::udp_pair(93, |opening| opening.depth(4)).await;
        let region = pair.nets[1].region(8, Access::REMOTE_ATOMIC).await.unwrap();
        let word = region.token(0..8).unwrap().word(0).unwrap();
        for _ in 0..20 {
            let mut adding = pair.a.fetch_add(word, 1);
            let _sometimes = poll(&mut adding);
        }
        let mut value = 0;
        while value < 20 {
            value = pair.a.fetch_add(word, 0).await.unwrap();
            assert!(value <= 20);
            if value < 20 {
                assert_eq!(pair.a.fetch_add(word, 1).await, Ok(value));
            }
        }
        pair.close().await.unwrap();
    });
}
