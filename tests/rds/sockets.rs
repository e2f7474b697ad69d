//! Goal: sockets follow the rules of RDS. Method: two nodes on a simulated network, in virtual time.

use futures::FutureExt;
use ulp_rds::{Error, Node, RdsSocket, Received, SendError};
use verbs_simulator::Sim;

use crate::lab::{addr, at, config, device, pair};

#[test]
fn datagrams_of_all_lengths_go_both_ways() {
    let sim = Sim::new(1);
    let done = sim.run(async {
        let [(_a, one), (_b, other)] = pair(&sim).await;
        for len in [0, 1, 4096, 4097, 65_536] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            one.send_to(&payload, other.local_addr()).await.unwrap();
            let got = other.recv().await;
            assert_eq!(
                (got.from, got.payload == payload),
                (one.local_addr(), true),
                "{len}"
            );
            other.send_to(&got.payload, got.from).await.unwrap();
            assert_eq!(one.recv().await.payload.len(), len);
        }
        assert_eq!(one.counters().sent, 5);
        assert_eq!(one.counters().bytes_received, 73_730);
    });
    done.unwrap();
}

#[test]
fn both_versions_of_ip_have_a_port_of_their_own() {
    let sim = Sim::new(2);
    let done = sim.run(async {
        let addresses: [std::net::IpAddr; 2] =
            ["fd00::1", "fd00::2"].map(|text| text.parse().unwrap());
        let devices = addresses.map(|addr| device(&sim, addr));
        let one = Node::open(&devices[0], config(addresses[0])).await.unwrap();
        let other = Node::open(&devices[1], config(addresses[1])).await.unwrap();
        let one = RdsSocket::bind(&one, (addresses[0], 0).into()).unwrap();
        let other = RdsSocket::bind(&other, (addresses[1], 7).into()).unwrap();
        one.send_to(b"six", other.local_addr()).await.unwrap();
        assert_eq!(other.recv().await.payload, b"six");
        let v4 = at(2, 7);
        assert_eq!(one.try_send_to(b"", v4), Err(SendError::Destination(v4)));
    });
    done.unwrap();
}

#[test]
fn addresses_are_bound_once_and_only_here() {
    let sim = Sim::new(3);
    let done = sim.run(async {
        let [(node, one), _other] = pair(&sim).await;
        assert!(matches!(
            RdsSocket::bind(&node, at(1, 4000)),
            Err(Error::AddressInUse(_))
        ));
        assert!(matches!(
            RdsSocket::bind(&node, at(9, 1)),
            Err(Error::AddressNotAvailable(_))
        ));
        assert!(matches!(
            RdsSocket::bind(&node, "0.0.0.0:1".parse().unwrap()),
            Err(Error::AddressNotAvailable(_))
        ));
        let any = RdsSocket::bind(&node, at(1, 0)).unwrap();
        let other = RdsSocket::bind(&node, at(1, 0)).unwrap();
        assert_ne!(any.local_addr().port(), other.local_addr().port());
        assert!(any.local_addr().port() >= 1024);
        // Within the node there is no connection.
        any.send_to(b"near", one.local_addr()).await.unwrap();
        assert_eq!(one.recv().await.payload, b"near");
        assert!(node.connections().is_empty());
        drop(one);
        assert!(RdsSocket::bind(&node, at(1, 4000)).is_ok());
    });
    done.unwrap();
}

#[test]
fn pings_are_answered_without_a_program() {
    let sim = Sim::new(4);
    let done = sim.run(async {
        let [(_a, one), (_b, other)] = pair(&sim).await;
        for host in [2, 1] {
            one.send_to(b"", at(host, 0)).await.unwrap();
            let pong = one.recv().await;
            assert_eq!((pong.from, pong.payload.len()), (at(host, 0), 0));
        }
        assert_eq!(other.try_recv(), None);
    });
    done.unwrap();
}

#[test]
fn short_buffers_cut_and_a_look_takes_nothing() {
    let sim = Sim::new(5);
    let done = sim.run(async {
        let [(_a, one), (_b, other)] = pair(&sim).await;
        one.send_to(b"a datagram", other.local_addr())
            .await
            .unwrap();
        let mut buffer = [0; 4];
        let cut = Received {
            len: 4,
            from: one.local_addr(),
            truncated: true,
        };
        assert_eq!(other.peek_from(&mut buffer).await, cut);
        assert_eq!(
            (other.recv_from(&mut buffer).await, &buffer),
            (cut, b"a da")
        );
        assert_eq!(other.try_recv(), None);
    });
    done.unwrap();
}

#[test]
fn a_receiver_that_does_not_read_stops_its_senders_and_no_others() {
    let sim = Sim::new(6);
    let done = sim.run(async {
        let [(_a, one), (b, other)] = pair(&sim).await;
        let second = RdsSocket::bind(&b, at(2, 4001)).unwrap();
        let payload = [7; 4000];
        let to = other.local_addr();
        one.monitor(1 << (4000 % 64));
        let mut sent = 0;
        let refused = loop {
            match one.try_send_to(&payload, to) {
                Ok(()) => sent += 1,
                Err(SendError::WouldBlock) => sim.sleep(std::time::Duration::from_millis(1)).await,
                Err(error) => break error,
            }
            assert!(sent < 1000, "it is never stopped");
        };
        assert_eq!(refused, SendError::Congested(to));
        assert!(
            sent * 4000 < 4 * (64 << 10),
            "{sent} datagrams came before it was stopped"
        );
        assert!(one.send_to(&payload, to).now_or_never().is_none());
        one.send_to(b"past it", second.local_addr()).await.unwrap();
        assert_eq!(second.recv().await.payload, b"past it");
        for _ in 0..sent {
            assert_eq!(other.recv().await.payload, payload);
        }
        assert_eq!(one.freed().await, 1 << (4000 % 64));
        one.send_to(b"again", to).await.unwrap();
        assert_eq!(other.recv().await.payload, b"again");
        assert_eq!(other.counters().discarded, 0);
        let long = vec![0; 65_537];
        let too_long = SendError::TooLong {
            len: 65_537,
            max: 65_536,
        };
        assert_eq!(one.try_send_to(&long, to), Err(too_long));
    });
    done.unwrap();
}

/// Goal: a socket whose short datagrams asked for no acknowledgement can send a long one. Method: as long as the whole
/// send buffer.
#[test]
fn a_long_datagram_does_not_wait_for_short_ones() {
    let sim = Sim::new(9);
    let done = sim.run(async {
        let [(_a, one), (_b, other)] = pair(&sim).await;
        for len in [1, 0, 4096, 4097, 65_536, 3, 65_536, 65_536] {
            one.send_to(&vec![7; len], other.local_addr())
                .await
                .unwrap();
            assert_eq!(other.recv().await.payload.len(), len);
        }
    });
    done.unwrap();
}

#[test]
fn what_cannot_be_sent_waits_and_can_be_cancelled() {
    let sim = Sim::new(7);
    let done = sim.run(async {
        let device = device(&sim, addr(1));
        let node = Node::open(&device, config(addr(1))).await.unwrap();
        let one = RdsSocket::bind(&node, at(1, 4000)).unwrap();
        // There is no such host yet.
        let (to, elsewhere) = (at(2, 4000), at(3, 1));
        one.send_to(&[0; 60_000], to).await.unwrap();
        one.send_to(&[0; 5536], elsewhere).await.unwrap();
        assert_eq!(one.try_send_to(&[0; 1000], to), Err(SendError::WouldBlock));
        assert_eq!(one.cancel_sent_to(Some(elsewhere)), 1);
        one.send_to(b"kept", to).await.unwrap();
        assert_eq!(one.unacked(), (2, 60_004));
        assert_eq!(one.cancel_sent_to(None), 2);
        one.send_to(b"at last", to).await.unwrap();
        sim.sleep(std::time::Duration::from_secs(5)).await;
        let device = crate::lab::device(&sim, addr(2));
        let other = Node::open(&device, config(addr(2))).await.unwrap();
        let other = RdsSocket::bind(&other, to).unwrap();
        assert_eq!(other.recv().await.payload, b"at last");
    });
    done.unwrap();
}

#[test]
fn nodes_that_forget_everything_are_heard_and_reached() {
    let sim = Sim::new(8);
    let done = sim.run(async {
        let devices = [1, 2].map(|host| device(&sim, addr(host)));
        let mut nodes = Vec::new();
        for (device, host) in devices.iter().zip(1..) {
            nodes.push(Some(Node::open(device, config(addr(host))).await.unwrap()));
        }
        for round in 0..6 {
            let sockets: Vec<RdsSocket> = nodes
                .iter()
                .zip(1..)
                .map(|(node, host)| RdsSocket::bind(node.as_ref().unwrap(), at(host, 7)).unwrap())
                .collect();
            for number in 0..20_u8 {
                for (from, to) in [(0, 1), (1, 0)] {
                    let to = sockets[to].local_addr();
                    sockets[from].send_to(&[round, number], to).await.unwrap();
                }
            }
            for number in 0..20 {
                for socket in &sockets {
                    assert_eq!(socket.recv().await.payload, [round, number]);
                }
            }
            drop(sockets);
            // One of them starts again, and its peer has a connection to the life before.
            let host = round % 2;
            let slot = &mut nodes[usize::from(host)];
            *slot = None;
            sim.sleep(std::time::Duration::from_millis(1)).await;
            let opened = Node::open(&devices[usize::from(host)], config(addr(host + 1))).await;
            *slot = Some(opened.unwrap());
        }
    });
    done.unwrap();
}

/// Goal: a program with a loop of its own overlooks nothing. Method: the descriptor before and after what can come, with
/// something left behind.
#[test]
fn a_descriptor_is_readable_when_there_is_something_to_take() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use ulp_rds::Readiness;

    let sim = Sim::new(30);
    let done = sim.run(async {
        let [(_a, one), (_b, other)] = pair(&sim).await;
        let readiness = Readiness::of(&other).unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(&readiness, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
        };
        assert!(is_readable(), "at first");
        readiness.clear();
        assert!(!is_readable());
        for number in 0..3 {
            one.send_to(&[number], other.local_addr()).await.unwrap();
        }
        while !is_readable() {
            sim.sleep(std::time::Duration::from_micros(10)).await;
        }
        readiness.clear();
        assert_eq!(other.try_recv().unwrap().payload, [0]);
        // Two may be there, or come yet.
        while !is_readable() {
            sim.sleep(std::time::Duration::from_micros(10)).await;
        }
        sim.sleep(std::time::Duration::from_millis(5)).await;
        readiness.clear();
        assert!(is_readable(), "two are left behind");
        while other.try_recv().is_some() {}
        assert!(is_readable(), "until it is cleared");
        readiness.clear();
        assert!(!is_readable());
        assert_eq!(other.try_notified(), None);
    });
    done.unwrap();
}
