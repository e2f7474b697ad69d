//! Connections that end: closed, broken, removed.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{join, join_all};
use verbs_core::{Access, WcStatus};
use verbs_io::{Ended, Endpoint, Error, Operation};

use crate::pair::{
    AT, Pair, endpoints, iwarp_pair, meet, message, pair, pair_with, poll, text, udp_pair,
};

/// Messages sent before the close are received, then `None`; and operations report which side has closed.
async fn closed_in_order(pair: Pair) {
    let Pair { a, b, .. } = &pair;
    for n in 0..5 {
        a.send(message(a, &n.to_string()).await)
            .posted()
            .await
            .unwrap();
    }
    a.close().await.unwrap();
    for n in 0..5 {
        assert_eq!(text(b).await.unwrap(), n.to_string());
    }
    assert_eq!(text(b).await, None);
    assert_eq!(text(b).await, None, "and stays");
    assert_eq!(text(a).await, None);
    let failed = a.send(message(a, "late").await).await.unwrap_err();
    assert_eq!(failed.error, Error::Closed { by: Ended::Here });
    assert_eq!(&failed.buf.unwrap()[..], b"late");
    let failed = b.send(message(b, "late").await).posted().await.unwrap_err();
    assert_eq!(failed.error, Error::Closed { by: Ended::Peer });
    drop(failed);
    assert_eq!(b.closed().await, Error::Closed { by: Ended::Peer });
    pair.close().await.unwrap();
}

#[test]
fn closed_in_order_over_the_loopback_link() {
    block_on(async { closed_in_order(pair().await).await });
}

#[test]
fn closed_in_order_over_udp() {
    block_on(async { closed_in_order(udp_pair(94, |opening| opening).await).await });
}

#[test]
fn closed_in_order_over_iwarp() {
    block_on(async { closed_in_order(iwarp_pair(94, |opening| opening).await).await });
}

/// Goal: an orderly close is told apart from a break, however close together the notice and the flushed receives are.
/// Method: many connections, one after the other; a task of another thread waits for messages when the peer closes.
async fn closed_while_waiting(pair: Pair) {
    for n in 0..100 {
        let (a, b) = meet(&pair.nets, &at(&pair, 7000 + n)).await;
        let waiting = std::thread::spawn(move || {
            let got = block_on(async {
                let first = b.recv().await?;
                drop(first);
                b.recv().await
            });
            got.map(|message| message.is_none())
        });
        a.send(message(&a, "last").await).await.unwrap();
        a.close().await.unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(true), "connection {n}");
    }
    pair.close().await.unwrap();
}

/// The address of the second end, with that port number.
fn at(pair: &Pair, port: u16) -> String {
    format!("{}:{port}", pair.a.peer_addr().ip())
}

#[test]
fn closed_while_waiting_over_the_loopback_link() {
    block_on(async { closed_while_waiting(pair().await).await });
}

#[test]
fn closed_while_waiting_over_udp() {
    block_on(async { closed_while_waiting(udp_pair(83, |opening| opening).await).await });
}

#[test]
fn closed_while_waiting_over_iwarp() {
    block_on(async { closed_while_waiting(iwarp_pair(83, |opening| opening).await).await });
}

/// A task that waits for messages is informed of the close even if the connection has no receive posted.
#[test]
fn a_receiver_without_receives_hears_of_the_close() {
    block_on(async {
        let pair = pair_with(|opening| opening.window(1)).await;
        let Pair { a, b, .. } = &pair;
        a.send(message(a, "held").await).await.unwrap();
        let held = b.recv().await.unwrap();
        let (next, closed) = join(b.recv(), a.close()).await;
        assert!(next.unwrap().is_none());
        closed.unwrap();
        drop(held);
        pair.close().await.unwrap();
    });
}

/// Goal: all operations get the first cause of an end, with the operation that failed. Method: a WRITE with a token
/// that was revoked, alongside operations of all kinds.
async fn broken(pair: Pair) {
    let Pair { a, b, nets, .. } = &pair;
    let region = nets[1].region(64, Access::REMOTE_WRITE).await.unwrap();
    let token = region.token(0..64).unwrap();
    region.revoke().await.unwrap();
    let mut receiving = a.recv();
    assert!(poll(&mut receiving).is_none());
    let failed = a.write(message(a, "x").await, token).await.unwrap_err();
    let Error::Broken(cause) = &failed.error else {
        panic!("{}", failed.error)
    };
    assert_eq!(cause.status, WcStatus::RemAccessErr);
    assert_eq!(cause.operation, Operation::Write);
    assert_eq!(&failed.buf.as_ref().unwrap()[..], b"x");
    assert_eq!(receiving.await.unwrap_err(), failed.error);
    let later = a.send(message(a, "y").await).await.unwrap_err();
    assert_eq!(later.error, failed.error);
    assert_eq!(a.close().await, Err(failed.error.clone()));
    assert!(b.recv().await.is_ok_and(|message| message.is_none()) || b.recv().await.is_err());
    drop(failed);
    drop(later);
}

#[test]
fn a_break_says_why_over_the_loopback_link() {
    block_on(async { broken(pair().await).await });
}

#[test]
fn a_break_says_why_over_udp() {
    block_on(async { broken(udp_pair(95, |opening| opening).await).await });
}

/// Goal: over TCP a WRITE has completed when its error is found, so no completion tells why; but neither side takes the
/// break for a close in order.
#[test]
fn a_break_is_no_close_over_iwarp() {
    block_on(async {
        let pair = iwarp_pair(95, |opening| opening).await;
        let Pair { a, b, nets, .. } = &pair;
        let region = nets[1].region(64, Access::REMOTE_WRITE).await.unwrap();
        let token = region.token(0..64).unwrap();
        region.revoke().await.unwrap();
        drop(a.write(message(a, "x").await, token).await);
        for end in [a, b] {
            let broken = end.recv().await.unwrap_err();
            assert!(matches!(broken, Error::Broken(_)), "{broken}");
            let later = end.send(message(end, "y").await).await.unwrap_err();
            assert!(matches!(later.error, Error::Broken(_)), "{}", later.error);
        }
    });
}

/// Goal: no operation hangs when the device is removed. Method: a thousand operations of all kinds under way.
#[test]
fn removal_with_a_thousand_operations() {
    block_on(async {
        let pair = pair_with(|opening| opening.depth(64).window(1).buffers(1100)).await;
        let Pair { a, b, hcas, nets } = &pair;
        let mut sends = Vec::new();
        for _ in 0..1_000 {
            let mut send = a.send(message(a, "x").await);
            let done = poll(&mut send);
            assert!(sends.is_empty() == done.is_some() || sends.len() <= 1);
            if done.is_none() {
                sends.push(send);
            }
        }
        let mut receivers: Vec<_> = (0..10).map(|_| a.recv()).collect();
        assert!(
            receivers
                .iter_mut()
                .all(|receiver| poll(receiver).is_none())
        );
        hcas[0].remove();
        for failed in join_all(sends).await {
            assert_eq!(failed.unwrap_err().error, Error::Removed);
        }
        for failed in join_all(receivers).await {
            assert_eq!(failed.unwrap_err(), Error::Removed);
        }
        assert_eq!(a.recv().await.unwrap_err(), Error::Removed);
        assert_eq!(nets[0].usage().lent, 0);
        drop(b.recv());
    });
}

/// Waits until the connections that were dropped are closed.
fn all_closed(nets: &[Endpoint; 2]) {
    let end = Instant::now() + Duration::from_secs(60);
    while nets.iter().any(|net| net.usage().connections != 0) {
        assert!(Instant::now() < end, "{:?}", nets[0].usage());
        std::thread::yield_now();
    }
}

/// Goal: connections are made and dropped; their ends and buffers are used again. Method: more of them than the
/// endpoint has room for, one after the other, with operations under way when they are dropped; then more at a time.
#[test]
fn ends_are_used_again() {
    block_on(async {
        let (nets, _hcas) = endpoints(|opening| opening.connections(2).window(1)).await;
        let mut buffers = Vec::new();
        for round in 0..10 {
            let (a, b) = meet(&nets, AT).await;
            a.send(message(&a, "one").await).await.unwrap();
            let mut waits = a.send(message(&a, "two").await);
            assert!(poll(&mut waits).is_none(), "round {round}");
            assert_eq!(text(&b).await.unwrap(), "one");
            drop(waits);
            drop(b);
            a.closed().await;
            drop(a);
            all_closed(&nets);
            buffers.push(nets[0].usage().buffers);
        }
        assert!(buffers[9] <= 256 + 2, "{buffers:?}");
        let (first, second) = (meet(&nets, AT).await, meet(&nets, AT).await);
        let third = nets[0].connect(AT).await;
        assert_eq!(third.unwrap_err(), Error::TooManyConnections { max: 2 });
        drop((first, second));
    });
}

/// Goal: an attempt that fails, or whose future is dropped, gives back its end. Method: more of both than the endpoint
/// has room for, then as many connections as it has.
#[test]
fn attempts_that_fail_hold_no_ends() {
    block_on(async {
        let (nets, _hcas) = endpoints(|opening| opening.connections(2).window(1)).await;
        for round in 0..5 {
            let failed = nets[0].connect(AT).await;
            assert!(
                !matches!(failed, Ok(_) | Err(Error::TooManyConnections { .. })),
                "round {round}: {failed:?}"
            );
            let mut dropped = Box::pin(nets[0].connect(AT).into_future());
            let _begun = poll(&mut dropped);
            drop(dropped);
        }
        let _both = (meet(&nets, AT).await, meet(&nets, AT).await);
        assert_eq!(nets[0].usage().connections, 2);
    });
}
