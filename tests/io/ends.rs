//! Wakers, and other foreign code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::FutureExt;
use futures::executor::block_on;
use verbs_io::Connection;

use crate::pair::{Pair, message, pair, text};

/// Uses the connection from within a waker.
struct Reenters {
    conn: Connection,
    woken: AtomicU32,
}

impl Wake for Reenters {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::Relaxed);
        let buf = self.conn.buf().now_or_never().expect("the pool has some");
        // Sent from within, under no lock.
        let _sent = self.conn.send(buf).now_or_never();
        let _message = self.conn.recv().now_or_never();
    }
}

/// Goal: wakers run under no lock. Method: one that uses the lane that calls it.
#[test]
fn a_waker_may_use_the_connection() {
    block_on(async {
        let pair = pair().await;
        let Pair { a, b, .. } = &pair;
        let reenters = Arc::new(Reenters {
            conn: b.clone(),
            woken: AtomicU32::new(0),
        });
        let waker = Waker::from(Arc::clone(&reenters));
        let mut receiving = b.recv();
        let polled = receiving.poll_unpin(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        a.send(message(a, "wake up").await).await.unwrap();
        assert_eq!(reenters.woken.load(Ordering::Relaxed), 1);
        let polled = receiving.poll_unpin(&mut Context::from_waker(&waker));
        let Poll::Ready(Ok(Some(got))) = polled else {
            panic!("{polled:?}")
        };
        assert_eq!(&got[..], b"wake up");
        assert_eq!(a.recv().await.unwrap().unwrap().len(), 4096, "the waker's");
        drop((got, receiving));
        drop((reenters, waker));
        pair.close().await.unwrap();
    });
}

/// Goal: operations that are ready at once let other tasks run now and then. Method: two tasks of one executor; one
/// never waits.
#[test]
fn one_that_is_always_ready_lets_others_run() {
    block_on(async {
        let pair = pair().await;
        let Pair { a, b, .. } = &pair;
        let other = AtomicU32::new(0);
        let busy = async {
            for _ in 0..2_000 {
                a.send(message(a, "x").await).await.unwrap();
                assert_eq!(text(b).await.unwrap(), "x");
            }
            other.load(Ordering::Relaxed)
        };
        let counts = futures::future::poll_fn(|cx| {
            other.fetch_add(1, Ordering::Relaxed);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let busy = std::pin::pin!(busy);
        let turns = futures::future::select(busy, counts).await;
        let futures::future::Either::Left((turns, _)) = turns else {
            panic!("the other one never ends")
        };
        assert!(turns >= 10, "{turns} turns");
        pair.close().await.unwrap();
    });
}
