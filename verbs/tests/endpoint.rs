//! What crate `verbs` adds for endpoints: names of hosts, statistics, lists of connections.

#![cfg(all(
    feature = "iwarp",
    feature = "publish",
    feature = "simulator",
    feature = "udp"
))]

use std::net::SocketAddr;

use hca_sim::link::published;
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

/// Goal: an endpoint that is closed sends what was posted, on all of its connections, and its peers are told: they get all
/// messages and then the end. One whose peer has gone before holds nothing up.
#[test]
fn an_endpoint_closes_all_of_its_connections() {
    verbs::block_on(async {
        let network = verbs::sim::Network::new();
        let (here, there) = (network.host([10, 0, 0, 1]), network.host([10, 0, 0, 2]));
        let (here, there) = (
            here.open().await.expect("it"),
            there.open().await.expect("it"),
        );
        let mut listener = here.listen("10.0.0.1:7471").await.expect("a listener");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let to = "10.0.0.1:7471";
            let (made, taken) = futures::join!(there.connect(to).into_future(), listener.accept());
            theirs.push(made.expect("connected"));
            ours.push(taken);
        }
        let gone = theirs.pop().expect("five");
        gone.close().await.expect("it ends");
        for conn in &ours[..4] {
            for n in 0..3 {
                let mut buf = conn.buf().await;
                buf.fill_from(&[n]);
                conn.send(buf).posted().await.expect("it is there");
            }
        }
        drop(listener);
        here.close().await.expect("all end");
        for conn in &theirs {
            for n in 0..3 {
                let message = conn.recv().await.expect("in order").expect("a message");
                assert_eq!(&message[..], [n]);
            }
            assert!(conn.recv().await.expect("in order").is_none());
        }
        for conn in &ours {
            let buf = conn.buf().await;
            assert!(conn.send(buf).await.is_err());
        }
    });
}

/// Goal: what a program publishes is what `verbs connections` reads: its connections, by their queue pairs and addresses.
#[test]
fn connections_are_published() {
    let mine = || {
        let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
        let all = published::ask_all(verbs::cm::Listed::PUBLISHED, read).expect("a folder of ours");
        all.into_iter().find(|said| said.pid == std::process::id())
    };
    verbs::block_on(async {
        let net = Endpoint::udp_any().open().await.expect("an address");
        let at = SocketAddr::new(net.local_ip().await.expect("an address"), 0);
        let mut listener = net.listen(at).await.expect("a number");
        let to = listener.local_addr();
        let (ours, theirs) = futures::join!(net.connect(to).into_future(), listener.accept());
        let ours = ours.expect("a connection");
        let kept = verbs::publish([&net]).expect("a folder of ours");
        let said = mine().expect("it is published").what;
        let rows = said.as_array().expect("a list");
        for conn in [&ours, &theirs] {
            let qpn = conn.qpn().expect("one").value();
            let row = rows.iter().find(|row| row["qpn"] == qpn).expect("a row");
            assert_eq!(row["remote"], conn.peer_addr().to_string(), "{row}");
            assert_eq!(
                (&row["service"], &row["state"]),
                (&"RC".into(), &"established".into())
            );
        }
        drop(kept);
        assert!(mine().is_none());
    });
}
