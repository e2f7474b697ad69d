//! The results of operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{join, join_all};
use verbs_core::Access;
use verbs_io::{Driver, Error, Token};

use crate::pair::{Pair, message, pair, pair_with, poll, text, udp_pair};

/// Every operation once.
async fn every_operation(pair: Pair) {
    let Pair { a, b, nets, .. } = &pair;
    // Messages, and the buffer is returned.
    let hello = a.send(message(a, "hello").await).await.unwrap();
    assert_eq!(&hello[..], b"hello");
    assert_eq!(text(b).await.unwrap(), "hello");

    // The peer's memory, by a token that is sent to the peer.
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = nets[1].region(64, rights).await.unwrap();
    let token = region.token(0..64).unwrap();
    let mut offer = b.buf().await;
    offer.fill_from(&token.to_bytes());
    b.send(offer).await.unwrap();
    let token = Token::from_bytes(&a.recv().await.unwrap().unwrap()).unwrap();
    let hello = a.write(hello, token.slice(8..16).unwrap()).await.unwrap();
    let mut bytes = [0; 5];
    region.read_at(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    region.write_at(8, b"HELLO").unwrap();
    let hello = a.read(hello, token.slice(8..13).unwrap()).await.unwrap();
    assert_eq!(&hello[..], b"HELLO");

    // Atomics.
    let word = token.word(32).unwrap();
    assert_eq!(a.fetch_add(word, 5).await, Ok(0));
    assert_eq!(a.fetch_add(word, 5).await, Ok(5));
    assert_eq!(a.compare_swap(word, 9, 1).await, Ok(10), "it was not 9");
    assert_eq!(a.compare_swap(word, 10, 77).await, Ok(10));
    assert_eq!(region.load(32), Ok(77));

    // An error is reported before anything is posted, and the buffer is returned.
    let failed = a
        .write(hello, token.slice(0..4).unwrap())
        .await
        .unwrap_err();
    assert_eq!(failed.error, Error::OutOfRange { end: 5, size: 4 });
    let read_only = nets[1].region(8, Access::REMOTE_READ).await.unwrap();
    let read_only = read_only.token(0..8).unwrap();
    let failed = a.write(failed.buf.unwrap(), read_only).await.unwrap_err();
    assert!(matches!(failed.error, Error::NoRight { .. }));
    assert_eq!(&failed.buf.unwrap()[..], b"HELLO");
    assert!(matches!(
        a.fetch_add(read_only.word(0).unwrap(), 1).await,
        Err(Error::NoRight { .. })
    ));
    drop(region);
    pair.close().await.unwrap();
}

#[test]
fn every_operation_over_the_loopback_link() {
    block_on(async { every_operation(pair().await).await });
}

#[test]
fn every_operation_over_udp() {
    block_on(async { every_operation(udp_pair(91, |opening| opening).await).await });
}

/// Goal: many tasks share one connection, with a queue and a pool far smaller than they need; all messages arrive once,
/// those of a task in order. Method: an echo on the other side.
async fn crowd(pair: Pair, tasks: u64, each: u64) {
    let Pair { a, b, .. } = &pair;
    let echo = async {
        while let Some(message) = b.recv().await.unwrap() {
            b.send(message).posted().await.unwrap();
        }
    };
    let crowd = (0..tasks).map(|task| async move {
        for n in 0..each {
            let mut buf = a.buf().await;
            buf.set_len(16);
            buf[..8].copy_from_slice(&task.to_le_bytes());
            buf[8..].copy_from_slice(&n.to_le_bytes());
            a.send(buf).await.unwrap();
        }
    });
    let collect = async {
        let mut next = vec![0; tasks as usize];
        for _ in 0..tasks * each {
            let message = a.recv().await.unwrap().unwrap();
            let numbers: Vec<u64> = message
                .chunks(8)
                .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
            let place = &mut next[numbers[0] as usize];
            assert_eq!(*place, numbers[1]);
            *place += 1;
        }
        assert!(next.iter().all(|&n| n == each));
        a.close().await.unwrap();
    };
    join(join(join_all(crowd), collect), echo).await;
    pair.close().await.unwrap();
}

#[test]
fn a_crowd_shares_a_connection_over_the_loopback_link() {
    block_on(async {
        let pair = pair_with(|opening| opening.depth(8).window(8).buffers(20));
        crowd(pair.await, 100, 100).await;
    });
}

#[test]
fn a_crowd_shares_a_connection_over_udp() {
    block_on(async {
        let pair = udp_pair(92, |opening| opening.depth(8).window(8).buffers(20));
        crowd(pair.await, 20, 20).await;
    });
}

/// Goal: two threads, each with a side, and each polls only when it is woken. Method: an echo and its client on
/// executors that sleep.
#[test]
fn two_threads_talk() {
    let Pair { a, b, .. } = block_on(pair());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                while let Some(message) = b.recv().await.unwrap() {
                    b.send(message).await.unwrap();
                }
            });
        });
        block_on(async {
            for n in 0..5_000_u32 {
                let mut buf = a.buf().await;
                buf.fill_from(&n.to_le_bytes());
                a.send(buf).await.unwrap();
                assert_eq!(a.recv().await.unwrap().unwrap()[..], n.to_le_bytes());
            }
            a.close().await.unwrap();
        });
    });
}

/// Goal: a batch is posted in order and as a whole, whether or not its futures are polled, before what is posted after
/// it. Method: batches larger than the queue; one that is dropped; one that a send of its own task tries to overtake.
async fn batches(pair: Pair) {
    let Pair { a, b, nets, .. } = &pair;
    let region = nets[1].region(64, Access::REMOTE_WRITE).await.unwrap();
    let token = region.token(0..64).unwrap();
    let mut batch = a.batch();
    let written = batch.write(message(a, "data").await, token);
    let notices = [0; 9].map(|_| a.buf().now_or_never().expect("the pool has some"));
    let told: Vec<_> = notices.map(|buf| batch.send(buf)).into();
    batch.submit();
    for _ in 0..9 {
        assert!(b.recv().await.unwrap().is_some());
        let mut data = [0; 4];
        region.read_at(0, &mut data).unwrap();
        assert_eq!(&data, b"data", "it came before the notices");
    }
    assert_eq!(&written.await.unwrap()[..], b"data");
    for sent in join_all(told).await {
        assert_eq!(sent.unwrap().len(), 4096);
    }
    // Never polled.
    let mut batch = a.batch();
    let first = batch.send(message(a, "first").await);
    drop(batch);
    assert_eq!(text(b).await.unwrap(), "first");
    drop(first);
    // Errors, and batches that are dropped before they are posted.
    let mut batch = a.batch();
    let wrong = batch.write(message(a, "too long").await, token.slice(0..4).unwrap());
    drop(batch.send(message(a, "taken back").await));
    let before = batch.send(message(a, "before").await);
    a.send(message(a, "behind").await).await.unwrap();
    batch.submit();
    let failed = wrong.await.unwrap_err();
    assert_eq!(failed.error, Error::OutOfRange { end: 8, size: 4 });
    assert_eq!(text(b).await.unwrap(), "before");
    assert_eq!(text(b).await.unwrap(), "behind");
    before.await.unwrap();
    drop(failed);
    pair.close().await.unwrap();
}

#[test]
fn batches_over_the_loopback_link() {
    block_on(async { batches(pair_with(|opening| opening.depth(4)).await).await });
}

/// Goal: what a batch has posted goes on without its future, gives its buffer back by itself, and says what is wrong with it
/// when it is posted. Method: more than the queue has room for, awaited and then dropped; before the batch is submitted and
/// after; with a buffer of the other endpoint.
#[test]
fn a_batch_is_posted_and_left() {
    block_on(async {
        let pair = pair_with(|opening| opening.depth(4)).await;
        let Pair { a, b, nets, .. } = &pair;
        let mut batch = a.batch();
        let posted: Vec<_> = (0..9)
            .map(|_| a.buf().now_or_never().expect("the pool has some"))
            .map(|buf| batch.send(buf).posted())
            .collect();
        batch.submit();
        for posted in posted {
            posted.await.unwrap();
        }
        for _ in 0..9 {
            assert!(b.recv().await.unwrap().is_some());
        }
        // One that has completed already, and one that was never submitted.
        let mut batch = a.batch();
        let sent = batch.send(message(a, "sent").await);
        batch.submit();
        assert_eq!(text(b).await.unwrap(), "sent");
        sent.posted().await.unwrap();
        let mut batch = a.batch();
        drop(batch.send(message(a, "taken back").await).posted());
        let wrong = batch.send(message(b, "of another").await).posted();
        batch.submit();
        let failed = wrong.await.unwrap_err();
        assert_eq!(failed.error, Error::OtherEndpoint);
        drop(failed);
        a.send(message(a, "behind").await).await.unwrap();
        assert_eq!(text(b).await.unwrap(), "behind");
        assert_eq!(nets.each_ref().map(|net| net.usage().lent), [0; 2]);
        pair.close().await.unwrap();
    });
}

#[test]
fn batches_over_udp() {
    block_on(async { batches(udp_pair(89, |opening| opening.depth(4)).await).await });
}

/// Goal: with the manual driver nothing happens except in turns. Method: a task that sleeps, and a message for it.
#[test]
fn a_manual_driver_works_by_turns() {
    block_on(async {
        let pair = pair_with(|opening| opening.driver(Driver::Manual)).await;
        let Pair { a, b, nets, .. } = &pair;
        let woken = Arc::new(AtomicBool::new(false));
        let waker = Waker::from(Arc::new(Flag(Arc::clone(&woken))));
        let mut receiving = b.recv();
        let polled = receiving.poll_unpin(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        a.send(message(a, "quietly").await).await.unwrap();
        assert!(!woken.load(Ordering::Relaxed));
        assert_eq!(nets[1].turn(), 1);
        assert!(woken.load(Ordering::Relaxed));
        let got = receiving.now_or_never().expect("it came").unwrap();
        assert_eq!(&got.unwrap()[..], b"quietly");
        pair.close().await.unwrap();
    });
}

struct Flag(Arc<AtomicBool>);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A buffer is used only on connections of its own endpoint; the connection continues.
#[test]
fn a_buffer_of_another_endpoint_comes_back() {
    block_on(async {
        let pair = pair().await;
        let Pair { a, b, nets, .. } = &pair;
        let region = nets[1].region(8, Access::REMOTE).await.unwrap();
        let token = region.token(0..8).unwrap();
        let failed = a.send(message(b, "x").await).await.unwrap_err();
        assert_eq!(failed.error, Error::OtherEndpoint);
        let failed = a.send(failed.buf.unwrap()).posted().await.unwrap_err();
        assert_eq!(failed.error, Error::OtherEndpoint);
        let failed = a
            .batch()
            .write(failed.buf.unwrap(), token)
            .await
            .unwrap_err();
        assert_eq!(failed.error, Error::OtherEndpoint);
        assert_eq!(nets[0].usage().lent, 0);
        assert_eq!(nets[1].usage().lent, 1);
        b.send(failed.buf.unwrap()).await.unwrap();
        assert_eq!(text(a).await.unwrap(), "x");
        pair.close().await.unwrap();
    });
}

/// Goal: pools are separate, and a long WRITE and READ pass through one of long buffers. Method: two long buffers and a
/// task that waits for a third, besides the endpoint's own pool.
async fn long_buffers(pair: Pair) {
    let Pair { a, nets, .. } = &pair;
    let size = 1 << 20;
    let pool = nets[0].pool(size, 2).await.unwrap();
    let region = nets[1].region(size as usize, Access::REMOTE).await.unwrap();
    let token = region.token(0..region.len()).unwrap();
    let (mut first, second) = (pool.buf().await, pool.buf().await);
    assert_eq!((first.len(), second.len()), (1 << 20, 1 << 20));
    let mut third = pool.buf();
    assert!(poll(&mut third).is_none() && pool.try_buf().is_none());
    assert_eq!(a.buf().await.len(), 4096, "another pool");
    for (n, word) in first.chunks_mut(4).enumerate() {
        word.copy_from_slice(&(n as u32).to_le_bytes());
    }
    let first = a.write(first, token).await.unwrap();
    assert_eq!(region.load(8), Ok(3 << 32 | 2));
    let second = a.read(second, token).await.unwrap();
    assert!(first[..] == second[..]);
    drop(first);
    assert_eq!(poll(&mut third).expect("its turn").len(), 1 << 20);
    drop(second);
    pair.close().await.unwrap();
}

#[test]
fn long_buffers_over_the_loopback_link() {
    block_on(async { long_buffers(pair().await).await });
}

#[test]
fn long_buffers_over_udp() {
    block_on(async { long_buffers(udp_pair(86, |opening| opening).await).await });
}
