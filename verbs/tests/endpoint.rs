//! What crate `verbs` adds for endpoints: names of hosts, statistics.

#![cfg(all(feature = "iwarp", feature = "simulator"))]

use verbs::prelude::*;

/// Goal: a name is connected to: its addresses are tried until one answers, and no name is looked up for an address. A name
/// that is not there is an error that says so, and takes nothing of the endpoint.
#[test]
fn a_name_is_connected_to() {
    verbs::block_on(async {
        let net = Endpoint::iwarp([127, 0, 0, 1])
            .open()
            .await
            .expect("an endpoint");
        let mut listener = net.listen("127.0.0.1:0").await.expect("a listener");
        let name = format!("localhost:{}", listener.local_addr().port());
        let (ours, theirs) = futures::join!(net.connect(name).into_future(), listener.accept());
        let (ours, theirs) = (ours.expect("connected"), theirs);
        assert!(ours.peer_addr().ip().is_loopback());
        let connections = net.usage().connections;
        for (text, part) in [
            ("nobody.invalid:7471", "nobody.invalid"),
            ("localhost", "host:7471"),
        ] {
            let error = net.connect(text).await.expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(net.usage().connections, connections);
        drop((ours, theirs));
    });
}

/// Goal: statistics of a connection say what has happened: messages that are unread, receives that are posted, retries on a
/// network that loses packets, and a round trip; none of it on one without packets.
#[test]
fn connections_have_statistics() {
    verbs::block_on(async {
        let (a, b) = verbs::sim::pair().await.expect("a pair");
        for _ in 0..3 {
            let buf = a.buf().await;
            a.send(buf).await.expect("sent");
        }
        let (sent, received) = (a.stats().await.expect("any"), b.stats().await.expect("any"));
        assert_eq!(
            (sent.posted, sent.waiting, sent.qp),
            (0, 0, verbs::QpStats::default())
        );
        assert_eq!(received.unread, 3, "{received:?}");
        assert_eq!(received.unread + received.receives, sent.receives);
    });
}
