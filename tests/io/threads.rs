//! Several threads in one lane.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use futures::FutureExt;
use futures::executor::block_on;

use crate::pair::{Pair, message, pair_with, udp_pair};

/// Goal: no message and no wake is lost between threads, whichever thread takes the completions. Method: two threads send, three
/// receive, and drop every third receive after its first poll; two threads echo. Every executor sleeps when its future
/// waits, so that a lost wake hangs.
fn storm(pair: &Pair, each: u32) {
    let Pair { a, b, .. } = pair;
    let (answers, all) = (AtomicU32::new(0), 2 * each);
    let receive = || {
        block_on(async {
            for n in 0.. {
                let received = match n % 3 {
                    0 => match a.recv().now_or_never() {
                        Some(received) => received,
                        None => continue,
                    },
                    _ => a.recv().await,
                };
                if received.unwrap().is_none() {
                    return;
                }
                if answers.fetch_add(1, Ordering::Relaxed) + 1 == all {
                    a.close().await.unwrap();
                }
            }
        });
    };
    let echo = || {
        block_on(async {
            while let Some(message) = b.recv().await.unwrap() {
                // The last answers may meet the close.
                if b.send(message).await.is_err() {
                    return;
                }
            }
        });
    };
    let send = || {
        block_on(async {
            for _ in 0..each {
                a.send(message(a, "x").await).await.unwrap();
            }
        });
    };
    thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(receive)));
        (0..2).for_each(|_| drop(scope.spawn(echo)));
        (0..2).for_each(|_| drop(scope.spawn(send)));
    });
    assert_eq!(answers.load(Ordering::Relaxed), all);
    for net in &pair.nets {
        assert_eq!((net.usage().lent, net.usage().late), (0, 0));
    }
}

#[test]
fn a_storm_over_the_loopback_link() {
    for depth in [1, 2, 16] {
        let options = |opening: verbs_io::Opening| opening.depth(depth).window(4).buffers(3);
        storm(&block_on(pair_with(options)), 3_000);
    }
}

#[test]
fn a_storm_over_udp() {
    let options = |opening: verbs_io::Opening| opening.depth(4).window(32).buffers(3);
    storm(&block_on(udp_pair(87, options)), 1_000);
}
