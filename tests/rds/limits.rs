//! Goal: each limit holds, has an error or a counter of its own, and ends when there is room again. Method: nodes on a simulated
//! network whose limits are small.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use ulp_rds::{Error, Node, RdsSocket, SEND_MESSAGES_MAX, SendError};
use verbs_core::timer::Sleep;
use verbs_simulator::Sim;

use crate::lab::{addr, at, config, device, pair};

#[test]
fn sockets_are_counted_and_their_places_come_back() {
    let sim = Sim::new(31);
    let done = sim.run(async {
        let mut limited = config(addr(1));
        limited.sockets_max = 2;
        let node = Node::open(&device(&sim, addr(1)), limited).await.unwrap();
        let bind = |port| RdsSocket::bind(&node, at(1, port));
        let (one, _other) = (bind(1000).unwrap(), bind(0).unwrap());
        for port in [1001, 0] {
            assert!(matches!(bind(port), Err(Error::Sockets(2))));
        }
        drop(one);
        assert!(bind(1001).is_ok());
    });
    done.unwrap();
}

/// Method: a node that may have one connection sends to a second node, and is asked by it.
#[test]
fn connections_are_counted_and_those_beyond_are_refused() {
    let sim = Sim::new(32);
    let done = sim.run(async {
        let [(_one, one), (_other, other)] = pair(&sim).await;
        let mut limited = config(addr(3));
        limited.connections_max = 1;
        let node = Node::open(&device(&sim, addr(3)), limited).await.unwrap();
        let socket = RdsSocket::bind(&node, at(3, 4000)).unwrap();
        socket.send_to(b"first", one.local_addr()).await.unwrap();
        assert_eq!(one.recv().await.payload, b"first");
        let refused = SendError::Connections(1);
        let second = other.local_addr();
        assert_eq!(socket.try_send_to(b"second", second), Err(refused));
        other.send_to(b"third", at(3, 4000)).await.unwrap();
        Sleep::new(node.timer(), Duration::from_secs(5)).await;
        assert_eq!(other.unacked().0, 1, "it still waits");
        assert_eq!(socket.try_recv(), None);
        assert_eq!(node.connections().len(), 1);
        // The connection that there is goes on.
        one.send_to(b"fourth", at(3, 4000)).await.unwrap();
        assert_eq!(socket.recv().await.payload, b"fourth");
    });
    done.unwrap();
}

/// Goal: empty datagrams, which take no bytes, are bounded too. Method: to an address where no node is.
#[test]
fn messages_without_bytes_are_bounded_and_can_be_taken_back() {
    let sim = Sim::new(33);
    let done = sim.run(async {
        let [(_a, one), _other] = pair(&sim).await;
        for _ in 0..SEND_MESSAGES_MAX {
            one.try_send_to(b"", at(9, 1)).unwrap();
        }
        assert_eq!(one.unacked(), (SEND_MESSAGES_MAX, 0));
        let full = Err(SendError::WouldBlock);
        assert_eq!(one.try_send_to(b"", at(9, 1)), full);
        assert_eq!(one.cancel_sent_to(None), SEND_MESSAGES_MAX);
        assert_eq!(one.try_send_to(b"", at(9, 1)), Ok(()));
    });
    done.unwrap();
}

/// Goal: two ends that ask at the same time end with one connection, and nothing is lost or comes twice. Method: both send at
/// once, at times and over a network that the seed draws; in many of them requests cross.
#[test]
fn ends_that_ask_at_the_same_time_get_one_connection() {
    let mut crossed = 0;
    for seed in 0..40 {
        let sim = Sim::new(seed);
        let done = sim.run(async {
            let [(a, one), (b, other)] = pair(&sim).await;
            let late = Duration::from_nanos(seed % 8 * 500);
            let exchange = async |from: &RdsSocket, to: SocketAddr, pause, node: &Node| {
                Sleep::new(node.timer(), pause).await;
                for number in 0..5_u8 {
                    from.send_to(&[number], to).await.unwrap();
                }
                for number in 0..5 {
                    assert_eq!(from.recv().await.payload, [number], "seed {seed}");
                }
            };
            let (here, there) = (one.local_addr(), other.local_addr());
            let now = Duration::ZERO;
            join_all([
                exchange(&one, there, now, &a),
                exchange(&other, here, late, &b),
            ])
            .await;
            assert_eq!((one.try_recv(), other.try_recv()), (None, None));
            let mut refused = 0;
            for node in [&a, &b] {
                let of = node.connections();
                assert_eq!(of.len(), 1, "seed {seed}");
                assert_eq!(of[0].counts.connects, 1, "seed {seed}");
                assert_eq!(of[0].counts.duplicates, 0, "seed {seed}");
                refused += of[0].counts.refused;
            }
            refused
        });
        crossed += u32::from(done.unwrap() > 0);
    }
    assert!(crossed >= 10, "requests crossed {crossed} times");
}
