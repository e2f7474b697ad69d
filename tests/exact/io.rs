//! Awaitable operations allocate nothing, once the connection is in use: neither those that are ready at once nor those
//! that sleep.

use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::executor::block_on;
use verbs::prelude::*;

use crate::allocator::calls;

const TIMES: u32 = 1000;

/// Polls an operation that is ready; it may yield to others first, once.
fn ready<F: Future + Unpin>(mut future: F) -> F::Output {
    let cx = &mut Context::from_waker(Waker::noop());
    for _ in 0..2 {
        if let Poll::Ready(output) = future.poll_unpin(cx) {
            return output;
        }
    }
    panic!("the loopback link is as quick as the call")
}

/// Every operation once, and a receive that sleeps.
fn round(a: &Connection, b: &Connection, buf: Buf, token: Token) -> Buf {
    let buf = ready(a.send(buf)).expect("sent");
    let got = ready(b.recv()).expect("received").expect("not closed");
    assert_eq!(got.len(), 8);
    drop(got);
    let mut sleeps = b.recv();
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(sleeps.poll_unpin(cx).is_pending());
    // Once more, in case it only yielded to others.
    assert!(sleeps.poll_unpin(cx).is_pending());
    ready(a.send(buf).posted()).expect("posted");
    drop(ready(sleeps).expect("received"));
    let buf = ready(a.buf());
    let mut buf = ready(a.write(small(buf), token)).expect("written");
    buf = ready(a.read(buf, token)).expect("read");
    let word = token.word(0).expect("an aligned word");
    ready(a.fetch_add(word, 1)).expect("added");
    ready(a.compare_swap(word, 0, 1)).expect("swapped");
    buf
}

fn small(mut buf: Buf) -> Buf {
    buf.set_len(8);
    buf
}

#[test]
fn awaitable_operations_allocate_nothing() {
    let (a, b, net) = block_on(async {
        let network = verbs::sim::Network::new();
        let client = network.host([10, 0, 0, 1]).open().await.expect("a host");
        let server = network.host([10, 0, 0, 2]).open().await.expect("a host");
        let mut listener = server.listen("10.0.0.2:7471").await.expect("a listener");
        let accepted = async { Ok(listener.accept().await) };
        let asked = client.connect("10.0.0.2:7471").into_future();
        let (a, b) = futures::future::try_join(asked, accepted)
            .await
            .expect("connected");
        (a, b, server)
    });
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = block_on(net.region(64, rights)).expect("a region");
    let token = region.token(0..64).expect("all of it");
    let mut buf = small(ready(a.buf()));
    for _ in 0..TIMES {
        buf = round(&a, &b, buf, token);
    }
    let before = calls();
    for _ in 0..TIMES {
        buf = round(&a, &b, buf, token);
    }
    assert_eq!(calls() - before, 0, "in {TIMES} rounds");
}
