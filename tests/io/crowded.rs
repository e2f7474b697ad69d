//! More messages than receives.
//!
//! Goal: the peer is held up, and no message is lost, on every transport: those over packets ask again, one over TCP lets
//! the stream wait. Method: small windows, receivers that are late or keep what they got, and many tasks.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{join, join_all};
use hca_sim::Hca;
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

/// Sends the flood, and counts in `posted`.
async fn send_all(conn: &Connection, posted: &Cell<u32>) {
    for n in 0..FLOOD {
        let message = message(conn, &n.to_string()).await;
        conn.send(message).posted().await.unwrap();
        posted.set(n + 1);
    }
}

/// Waits until the receiver holds up the sender behind this HCA: it was told that there is no receive, or, where a stream
/// waits, has sent everything.
async fn held_up(sender: &Hca, posted: &Cell<u32>) {
    let end = Instant::now() + Duration::from_secs(60);
    while posted.get() < FLOOD && sender.counters().port.rnr_naks == 0 {
        assert!(Instant::now() < end, "{} messages", posted.get());
        std::thread::yield_now();
        yields().await;
    }
}

/// Keeps as many messages as the window has.
async fn receive_all(conn: &Connection, window: u32) {
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
    let Pair { a, b, hcas, .. } = &pair;
    let posted = [Cell::new(0), Cell::new(0)];
    let sending = join(send_all(a, &posted[0]), send_all(b, &posted[1]));
    let receiving = async {
        for (hca, posted) in hcas.iter().zip(&posted) {
            held_up(hca, posted).await;
        }
        join(receive_all(a, window), receive_all(b, window)).await;
    };
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
