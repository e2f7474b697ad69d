//! RDMA with a datagram, between sockets on a simulated network.

use std::time::Duration;

use ulp_rds::wire::Cookie;
use ulp_rds::{
    Local, Mapping, Node, Notification, Rdma, RdmaStatus, RdsSocket, SendError, SendOptions,
};
use verbs_core::Memory;
use verbs_simulator::Sim;

use crate::lab::{at, pair};

const ONE: u64 = 1;

/// A region of the node's own, with those bytes.
async fn local(node: &Node, bytes: &[u8]) -> Local {
    let memory = Memory::alloc(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    let mr = node.register(memory).await.unwrap();
    let range = 0..bytes.len();
    Local { mr, range }
}

fn bytes_of(local: &Local) -> Vec<u8> {
    let mut bytes = vec![0; local.range.len()];
    local.mr.read(local.range.start, &mut bytes).unwrap();
    bytes
}

/// Memory of a socket that its peer may reach, of that many bytes; `once`: for one use.
async fn mapped(socket: &RdsSocket, len: usize, once: bool) -> Mapping {
    let memory = Memory::alloc(len).unwrap();
    socket.get_mr(memory, once).await.unwrap()
}

async fn send(socket: &RdsSocket, host: u8, rdma: Rdma) {
    let options = SendOptions::with_rdma(rdma.notify(ONE));
    socket
        .send_with(b"done", at(host, 4000), &options)
        .await
        .unwrap();
}

fn success() -> Notification {
    let (token, status) = (ONE, RdmaStatus::Success);
    Notification { token, status }
}

/// The cookie of a mapping, as it arrives at the other end.
async fn told(from: &RdsSocket, to: &RdsSocket, cookie: Cookie) -> Cookie {
    let options = SendOptions::with_cookie(cookie);
    let there = to.local_addr();
    from.send_with(b"here", there, &options).await.unwrap();
    Cookie::of(to.recv().await.cookie.unwrap())
}

#[test]
fn memory_is_written_and_read_before_its_datagram_comes() {
    let sim = Sim::new(2);
    sim.run(async {
        let [(_, client), (node, server)] = pair(&sim).await;
        let mapping = mapped(&client, 8192, false).await;
        let cookie = told(&client, &server, mapping.cookie()).await;
        let written = local(&node, &[7; 5000]).await;
        send(&server, 1, Rdma::write(cookie, 100, written)).await;
        assert_eq!(client.recv().await.payload, b"done");
        let mut there = [0; 5101];
        mapping.memory().read(99, &mut there).unwrap();
        assert_eq!((there[0], there[1], there[5000], there[5100]), (0, 7, 7, 0));
        assert_eq!(server.notified().await, success());
        // What is read is there when the operation has ended; its datagram may have come before, unless it is fenced.
        let read = local(&node, &[0; 3]).await;
        send(&server, 1, Rdma::read(cookie, 99, read.clone()).fenced()).await;
        client.recv().await;
        assert_eq!(bytes_of(&read), [0, 7, 7]);
        assert_eq!(server.notified().await, success());
        assert!(mapping.is_mapped());
    })
    .unwrap();
}

#[test]
fn atomics_change_eight_bytes_and_say_what_they_were() {
    let sim = Sim::new(3);
    sim.run(async {
        let [(_, client), (node, server)] = pair(&sim).await;
        let mapping = mapped(&client, 16, false).await;
        mapping.memory().store_u64(8, 40).unwrap();
        let cookie = mapping.cookie();
        let old = local(&node, &[0; 8]).await;
        let value = || mapping.memory().load_u64(8).unwrap();
        send(&server, 1, Rdma::fetch_add(cookie, 8, old.clone(), 2)).await;
        assert_eq!(server.notified().await, success());
        assert_eq!(
            (bytes_of(&old), value()),
            (40_u64.to_ne_bytes().to_vec(), 42)
        );
        send(
            &server,
            1,
            Rdma::compare_swap(cookie, 8, old.clone(), 41, 1),
        )
        .await;
        assert_eq!(server.notified().await, success());
        assert_eq!(
            (bytes_of(&old), value()),
            (42_u64.to_ne_bytes().to_vec(), 42)
        );
        send(
            &server,
            1,
            Rdma::compare_swap(cookie, 8, old.clone(), 42, 0x1111),
        )
        .await;
        assert_eq!(server.notified().await, success());
        assert_eq!(value(), 0x1111);
        // Only the lowest byte is compared, and only the one above it replaced.
        let masked = Rdma::compare_swap(cookie, 8, old.clone(), 0x11, 0xee00).masks(0xff, 0xff00);
        send(&server, 1, masked).await;
        assert_eq!(server.notified().await, success());
        assert_eq!(value(), 0xee11);
        // Two numbers of a byte each: the carry of the lower one is lost.
        let fields = Rdma::fetch_add(cookie, 8, old.clone(), 0x01f0).fields(0x80);
        send(&server, 1, fields).await;
        assert_eq!(server.notified().await, success());
        assert_eq!(value(), 0xef01);
    })
    .unwrap();
}

#[test]
fn a_mapping_for_one_use_ends_with_it() {
    let sim = Sim::new(4);
    sim.run(async {
        let [(_, client), (node, server)] = pair(&sim).await;
        let mapping = mapped(&client, 64, true).await;
        let other = mapped(&client, 64, true).await;
        let from = local(&node, &[9; 64]).await;
        send(&server, 1, Rdma::write(mapping.cookie(), 0, from.clone())).await;
        client.recv().await;
        assert_eq!(server.notified().await, success());
        assert!(!mapping.is_mapped() && other.is_mapped());
        assert_eq!(mapping.memory().load_u64(0).unwrap(), 0x0909_0909_0909_0909);
        // Its key is no longer one.
        send(&server, 1, Rdma::write(mapping.cookie(), 0, from)).await;
        assert_eq!(server.notified().await.status, RdmaStatus::RemoteError);
    })
    .unwrap();
}

#[test]
fn an_operation_that_is_refused_takes_no_other_datagram_with_it() {
    let sim = Sim::new(5);
    sim.run(async {
        let [(one, client), (node, server)] = pair(&sim).await;
        let mapping = mapped(&client, 64, false).await;
        let from = local(&node, &[9; 64]).await;
        let there = at(1, 4000);
        server.send_to(b"before", there).await.unwrap();
        send(&server, 1, Rdma::write(mapping.cookie(), 1, from.clone())).await;
        for number in 0..20_u8 {
            server.send_to(&[number], there).await.unwrap();
        }
        assert_eq!(server.notified().await.status, RdmaStatus::RemoteError);
        assert_eq!(client.recv().await.payload, b"before");
        for number in 0..20_u8 {
            assert_eq!(client.recv().await.payload, [number]);
        }
        let losses: u64 = one.connections().iter().map(|of| of.counts.losses).sum();
        assert!(losses > 0, "the connection is made again");
        // The mapping is as good as before.
        send(&server, 1, Rdma::write(mapping.cookie(), 0, from)).await;
        assert_eq!(server.notified().await, success());
        mapping.free().await.unwrap();
    })
    .unwrap();
}

/// Goal: an operation happens once at most, and its datagram comes only if it has. Method: connections are killed while
/// numbers are added; what was told to have been added is counted.
#[test]
fn operations_are_not_repeated_when_the_connection_is_lost() {
    for seed in 10..20 {
        let sim = Sim::new(seed);
        sim.run(async {
            let [(_, client), (node, server)] = pair(&sim).await;
            let mapping = mapped(&client, 8, false).await;
            let old = local(&node, &[0; 8]).await;
            let (mut done, mut unknown) = (0, 0);
            let mut draw = sim.draw();
            for _ in 0..40 {
                send(
                    &server,
                    1,
                    Rdma::fetch_add(mapping.cookie(), 0, old.clone(), 1),
                )
                .await;
                sim.sleep(draw.duration(Duration::ZERO..=Duration::from_micros(60)))
                    .await;
                node.drop_connection(at(2, 0).ip(), at(1, 0).ip());
                match server.notified().await.status {
                    RdmaStatus::Success => done += 1,
                    RdmaStatus::Dropped => unknown += 1,
                    status => panic!("seed {seed}: {status:?}"),
                }
            }
            let value = mapping.memory().load_u64(0).unwrap();
            assert!(
                (done..=done + unknown).contains(&value),
                "seed {seed}: {value}, {done}, {unknown}"
            );
            let mut came = 0;
            while client.try_recv().is_some() {
                came += 1;
            }
            assert!(
                came <= value,
                "seed {seed}: {came} datagrams of {value} operations"
            );
            assert!(done > 0 && unknown > 0, "seed {seed}: {done} and {unknown}");
        })
        .unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let sim = Sim::new(6);
    sim.run(async {
        let [(_, client), (node, server)] = pair(&sim).await;
        let from = local(&node, &[9; 64]).await;
        let try_send = |rdma, to| server.try_send_with(b"", to, &SendOptions::with_rdma(rdma));
        let cookie = Cookie::of(77);
        let own = at(2, 4000);
        let refused = try_send(Rdma::write(cookie, 0, from.clone()), own);
        assert_eq!(refused, Err(SendError::RdmaWithinNode(own)));
        let (mr, there) = (from.mr.clone(), at(1, 4000));
        let beyond = Local {
            mr: mr.clone(),
            range: 1..65,
        };
        let refused = try_send(Rdma::write(cookie, 0, beyond), there);
        let (start, end, len) = (1, 65, 64);
        assert_eq!(refused, Err(SendError::RdmaLocal { start, end, len }));
        let refused = try_send(Rdma::fetch_add(cookie, 0, from.clone(), 1), there);
        let (start, end, len) = (0, 64, 64);
        assert_eq!(refused, Err(SendError::RdmaLocal { start, end, len }));
        // There is no node at 10.0.0.9: the operation never begins.
        let nowhere = at(9, 4000);
        let options = SendOptions::with_rdma(Rdma::write(cookie, 0, from).notify(5));
        server.send_with(b"", nowhere, &options).await.unwrap();
        assert_eq!(server.cancel_sent_to(Some(nowhere)), 1);
        let (token, status) = (5, RdmaStatus::Cancelled);
        assert_eq!(server.notified().await, Notification { token, status });
        drop(client);
    })
    .unwrap();
}

/// Goal: a mapping for one use ends with its operation, also where there is no room for the datagram. Method: a receive
/// queue that is full.
#[test]
fn a_mapping_for_one_use_ends_although_its_datagram_is_discarded() {
    let sim = Sim::new(7);
    sim.run(async {
        let mut config = crate::lab::config(crate::lab::addr(1));
        config.receive_max = 1;
        let device = crate::lab::device(&sim, crate::lab::addr(1));
        let full = Node::open(&device, config).await.unwrap();
        let client = RdsSocket::bind(&full, at(1, 4000)).unwrap();
        let device = crate::lab::device(&sim, crate::lab::addr(2));
        let config = crate::lab::config(crate::lab::addr(2));
        let node = Node::open(&device, config).await.unwrap();
        let server = RdsSocket::bind(&node, at(2, 4000)).unwrap();
        let mapping = mapped(&client, 64, true).await;
        let from = local(&node, &[9; 64]).await;
        send(&server, 1, Rdma::write(mapping.cookie(), 0, from)).await;
        assert_eq!(server.notified().await, success());
        sim.sleep(Duration::from_millis(5)).await;
        assert_eq!(client.counters().discarded, 1);
        assert!(!mapping.is_mapped());
    })
    .unwrap();
}

/// A WRITE of eight bytes to a cookie's memory.
async fn ends(server: &RdsSocket, cookie: Cookie, from: &Local) -> RdmaStatus {
    send(server, 1, Rdma::write(cookie, 0, from.clone())).await;
    server.notified().await.status
}

/// Goal: mappings have keys of a pool while there are some; others are registered, and nobody sees the difference. A key is
/// invalid, and the memory has come back, when a mapping was freed. Method: more mappings than keys, one that is too long, and a
/// node without a pool.
#[test]
fn mappings_come_from_a_pool_and_go_back() {
    let sim = Sim::new(8);
    sim.run(async {
        let mut nodes = Vec::new();
        for (host, pooled) in [(1, 4), (2, 0)] {
            let mut config = crate::lab::config(crate::lab::addr(host));
            config.pooled_mappings = pooled;
            let device = crate::lab::device(&sim, crate::lab::addr(host));
            let node = Node::open(&device, config).await.unwrap();
            let socket = RdsSocket::bind(&node, at(host, 4000)).unwrap();
            nodes.push((node, socket));
        }
        let [(_, client), (node, server)] = &nodes[..] else {
            unreachable!("there are two");
        };
        assert!(!mapped(server, 64, false).await.is_pooled());
        let from = local(node, &[9; 8]).await;
        for round in 0..3 {
            let memories = [64, 64, 3 << 20, 64, 64, 64].map(|len| Memory::alloc(len).unwrap());
            let memories = memories.map(std::sync::Arc::new);
            let mut mappings = Vec::new();
            for memory in &memories {
                mappings.push(client.get_mr(memory.clone(), false).await.unwrap());
            }
            let pooled: Vec<_> = mappings.iter().map(Mapping::is_pooled).collect();
            assert_eq!(pooled, [true, true, false, true, true, false], "{round}");
            for mapping in &mappings {
                let status = ends(server, mapping.cookie(), &from).await;
                assert_eq!(status, RdmaStatus::Success);
                let written = mapping.memory().load_u64(0).unwrap();
                assert_eq!(written, 0x0909_0909_0909_0909);
            }
            for (mapping, memory) in mappings.into_iter().zip(memories) {
                let cookie = mapping.cookie();
                mapping.free().await.unwrap();
                assert_eq!(std::sync::Arc::strong_count(&memory), 1);
                let status = ends(server, cookie, &from).await;
                assert_eq!(status, RdmaStatus::RemoteError);
            }
        }
    })
    .unwrap();
}

/// Goal: a lazy mapping's key lasts until a flush: one that is asked for, or that of other mappings. Method: WRITEs to mappings
/// that have ended.
#[test]
fn a_lazy_mapping_is_invalid_after_a_flush() {
    let sim = Sim::new(9);
    sim.run(async {
        let [(one, client), (node, server)] = pair(&sim).await;
        let from = local(&node, &[9; 8]).await;
        let lazy = || async { mapped(&client, 64, false).await.lazily() };
        let mapping = lazy().await;
        let cookie = mapping.cookie();
        let memory = mapping.memory().clone();
        drop(mapping);
        let status = ends(&server, cookie, &from).await;
        assert_eq!(status, RdmaStatus::Success, "as its key is valid still");
        one.flush_mappings().await.unwrap();
        let status = ends(&server, cookie, &from).await;
        assert_eq!(status, RdmaStatus::RemoteError);
        assert_eq!(std::sync::Arc::strong_count(&memory), 1);
        // Another one, for one use, takes it along.
        let (mapping, once) = (lazy().await, mapped(&client, 64, true).await);
        let cookie = mapping.cookie();
        drop(mapping);
        let used = ends(&server, once.cookie(), &from).await;
        assert_eq!(used, RdmaStatus::Success);
        client.recv().await;
        while once.is_mapped() {
            client.recv().await;
        }
        let status = ends(&server, cookie, &from).await;
        assert_eq!(status, RdmaStatus::RemoteError);
        // A tenth of the pool.
        let mut cookies = Vec::new();
        for _ in 0..4 {
            cookies.push(lazy().await.cookie());
        }
        let status = ends(&server, cookies[0], &from).await;
        assert_eq!(status, RdmaStatus::RemoteError);
    })
    .unwrap();
}
