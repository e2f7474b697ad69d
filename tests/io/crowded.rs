//! More messages than receives.
//!
//! Goal: the peer is held up, and no message is lost, on every transport: those over packets ask again, one over TCP lets
//! the stream wait. Method: small windows, receivers that are late or keep what they got, and many tasks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures::executor::block_on;
use futures::future::{join, join_all};
use verbs_io::{Connection, Opening};

use crate::pair::{Pair, iwarp_pair, message, pair_with, text, udp_pair};

/// Messages each way in a flood.
const FLOOD: u32 = 400;
/// Tasks that ask, and how often each does.
const TASKS: u32 = 10;
const ROUNDS: u32 = 40;

/// Receives of a connection, in the order in which the tests have them.
const WINDOWS: [u32; 3] = [1, 4, 16];

/// Lets the other half of a join have its turn.
async fn yields() {
    let mut first = true;
    poll_fn(move |cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

async fn send_all(conn: &Connection) {
    for n in 0..FLOOD {
        let message = message(conn, &n.to_string()).await;
        conn.send(message).posted().await.unwrap();
    }
}

/// Takes nothing for a while, and then keeps as many messages as the window has.
async fn receive_late(conn: &Connection, window: u32) {
    std::thread::sleep(Duration::from_millis(5));
    let mut kept = VecDeque::new();
    for n in 0..FLOOD {
        yields().await;
        let message = conn.recv().await.unwrap().unwrap();
        assert_eq!(&message[..], n.to_string().as_bytes());
        kept.push_back(message);
        if kept.len() as u32 >= window {
            kept.pop_front();
        }
    }
}

/// Both sides send more than the other has receives for, before either takes anything.
async fn flood(pair: Pair, window: u32) {
    let Pair { a, b, .. } = &pair;
    let sending = join(send_all(a), send_all(b));
    let receiving = join(receive_late(a, window), receive_late(b, window));
    join(sending, receiving).await;
    pair.close().await.unwrap();
}

/// Many tasks ask, more of them than there are receives; each is answered.
async fn storm(pair: Pair) {
    let Pair { a, b, .. } = &pair;
    let asking = (0..TASKS).map(|_| async {
        for _ in 0..ROUNDS {
            a.send(message(a, "question").await).await.unwrap();
            assert_eq!(text(a).await.unwrap(), "answer");
        }
    });
    let answering = async {
        for _ in 0..TASKS * ROUNDS {
            let mut message = b.recv().await.unwrap().unwrap();
            message.fill_from(b"answer");
            b.send(message).posted().await.unwrap();
        }
    };
    join(join_all(asking), answering).await;
    pair.close().await.unwrap();
}

fn opening(window: u32) -> impl Fn(Opening) -> Opening {
    move |opening| opening.window(window)
}

#[test]
fn a_flood_over_the_loopback_link() {
    for window in WINDOWS {
        block_on(async { flood(pair_with(opening(window)).await, window).await });
    }
}

#[test]
fn a_flood_over_udp() {
    for (window, network) in WINDOWS.into_iter().zip(70..) {
        block_on(async { flood(udp_pair(network, opening(window)).await, window).await });
    }
}

#[test]
fn a_flood_over_iwarp() {
    for (window, network) in WINDOWS.into_iter().zip(70..) {
        block_on(async { flood(iwarp_pair(network, opening(window)).await, window).await });
    }
}

#[test]
fn a_storm_over_the_loopback_link() {
    for window in WINDOWS {
        block_on(async { storm(pair_with(opening(window)).await).await });
    }
}

#[test]
fn a_storm_over_udp() {
    for (window, network) in WINDOWS.into_iter().zip(73..) {
        block_on(async { storm(udp_pair(network, opening(window)).await).await });
    }
}

#[test]
fn a_storm_over_iwarp() {
    for (window, network) in WINDOWS.into_iter().zip(73..) {
        block_on(async { storm(iwarp_pair(network, opening(window)).await).await });
    }
}
