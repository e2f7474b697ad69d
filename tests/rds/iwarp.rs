//! Goal: what goes over packets goes over streams of TCP too, and what a stream has not is refused. Method: two nodes of one
//! process on two addresses of the loopback interface, over the system's TCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::{Hca, Tcp};
use ulp_rds::wire::Cookie;
use ulp_rds::{Config, Local, Node, Rdma, RdmaStatus, RdsSocket, SendError, SendOptions};
use verbs_core::{AtomicCap, Memory};

/// Two addresses that no other test has.
fn addresses() -> [IpAddr; 2] {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    [1, 2].map(|host| [127, 16 | high & 0x0f, low, host].into())
}

async fn open(addr: IpAddr) -> (Node, RdsSocket) {
    open_with(addr, AtomicCap::Hca).await
}

async fn open_with(addr: IpAddr, atomics: AtomicCap) -> (Node, RdsSocket) {
    let hca = Hca::over_streams(Tcp::on(&[addr]).unwrap())
        .atomics(atomics)
        .masked_atomics(atomics)
        .build();
    let device = Arc::new(hca.open().await.unwrap());
    let node = Node::open(&device, Config::new([addr])).await.unwrap();
    let socket = RdsSocket::bind(&node, SocketAddr::new(addr, 4000)).unwrap();
    (node, socket)
}

async fn operate(node: &RdsSocket, to: SocketAddr, rdma: Rdma) -> RdmaStatus {
    let options = SendOptions::with_rdma(rdma.notify(1));
    node.send_with(b"done", to, &options).await.unwrap();
    node.notified().await.status
}

#[test]
fn datagrams_and_operations_go_over_streams() {
    block_on(async {
        let [one, other] = addresses();
        let (a, client) = open(one).await;
        let (b, server) = open_with(other, AtomicCap::None).await;
        let (here, there) = (client.local_addr(), server.local_addr());
        for len in [0, 1, 4096, 4097, 1 << 20] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            client.send_to(&payload, there).await.unwrap();
            let got = server.recv().await;
            assert!(got.from == here && got.payload == payload, "{len}");
        }
        // Connections are lost and made again.
        for number in 0..200_u8 {
            client.send_to(&[number; 9000], there).await.unwrap();
            if number % 20 == 10 {
                let node = if number % 40 == 10 { &a } else { &b };
                let [from, to] = match number % 40 {
                    10 => [here, there],
                    _ => [there, here],
                };
                node.drop_connection(from.ip(), to.ip());
            }
            assert_eq!(server.recv().await.payload, [number; 9000]);
        }
        let losses: u64 = a.connections().iter().map(|of| of.counts.losses).sum();
        assert!(losses > 0);

        operations(&client, (&b, &server)).await;
    });
}

/// RDMA on the client's memory by the server.
async fn operations(client: &RdsSocket, (b, server): (&Node, &RdsSocket)) {
    let (here, there) = (client.local_addr(), server.local_addr());
    let mapping = client
        .get_mr(Memory::alloc(8192).unwrap(), false)
        .await
        .unwrap();
    let options = SendOptions::with_cookie(mapping.cookie());
    client.send_with(b"here", there, &options).await.unwrap();
    let cookie = Cookie::of(server.recv().await.cookie.unwrap());
    let mr = b.register(Memory::alloc(8192).unwrap()).await.unwrap();
    mr.write(0, &[7; 5000]).unwrap();
    let local = |range| Local {
        mr: Arc::clone(&mr),
        range,
    };
    let write = Rdma::write(cookie, 100, local(0..5000));
    assert_eq!(operate(server, here, write).await, RdmaStatus::Success);
    assert_eq!(client.recv().await.payload, b"done");
    let mut bytes = [0; 5101];
    mapping.memory().read(99, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[1], bytes[5000], bytes[5100]), (0, 7, 7, 0));
    let read = Rdma::read(cookie, 99, local(8000..8003)).fenced();
    assert_eq!(operate(server, here, read).await, RdmaStatus::Success);
    let mut bytes = [0; 3];
    mr.read(8000, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 7, 7]);
    client.recv().await;

    // This device has no atomics: nothing is queued, and the connection stays.
    let up = |node: &Node| node.connections()[0].counts;
    let before = up(b);
    let old = || local(8000..8008);
    for (rdma, what) in [
        (Rdma::fetch_add(cookie, 0, old(), 1), "atomics"),
        (Rdma::compare_swap(cookie, 0, old(), 0, 1), "atomics"),
        (
            Rdma::fetch_add(cookie, 0, old(), 1).fields(8),
            "masked atomics",
        ),
    ] {
        let refused = server.try_send_with(b"", here, &SendOptions::with_rdma(rdma));
        assert_eq!(refused, Err(SendError::Unsupported(what)));
    }
    // What the peer does not grant takes the connection down, and no datagram with it.
    let far = Rdma::read(cookie, 8000, local(0..5000));
    assert_ne!(operate(server, here, far).await, RdmaStatus::Success);
    server.send_to(b"after it", here).await.unwrap();
    assert_eq!(client.recv().await.payload, b"after it");
    assert_eq!(up(b).losses, before.losses + 1);
}

/// Goal: atomics with a datagram go over streams where the device has them.
#[test]
fn atomics_go_over_streams() {
    block_on(async {
        let [one, other] = addresses().map(|addr| match addr {
            IpAddr::V4(addr) => IpAddr::from(u32::from(addr).wrapping_add(4).to_be_bytes()),
            addr => addr,
        });
        let ((_a, client), (b, server)) = (open(one).await, open(other).await);
        let (here, there) = (client.local_addr(), server.local_addr());
        let memory = Memory::alloc(64).unwrap();
        let mapping = client.get_mr(memory, false).await.unwrap();
        let options = SendOptions::with_cookie(mapping.cookie());
        client.send_with(b"here", there, &options).await.unwrap();
        let cookie = Cookie::of(server.recv().await.cookie.unwrap());
        let mr = b.register(Memory::alloc(64).unwrap()).await.unwrap();
        let old = || Local {
            mr: Arc::clone(&mr),
            range: 0..8,
        };
        for (rdma, then) in [
            (Rdma::fetch_add(cookie, 8, old(), 5), 5_u64),
            (Rdma::compare_swap(cookie, 8, old(), 5, 9), 9),
            (Rdma::fetch_add(cookie, 8, old(), 1).fields(1), 8),
        ] {
            assert_eq!(operate(&server, here, rdma).await, RdmaStatus::Success);
            client.recv().await;
            let mut word = [0; 8];
            mapping.memory().read(8, &mut word).unwrap();
            assert_eq!(u64::from_ne_bytes(word), then);
        }
    });
}

/// Goal: the port of RDS is the host's port of TCP. Method: a second node at an address that has one.
#[test]
fn an_address_has_one_node() {
    let [addr, _] = addresses().map(|addr| match addr {
        IpAddr::V4(addr) => IpAddr::from(u32::from(addr).wrapping_add(2).to_be_bytes()),
        addr => addr,
    });
    block_on(async {
        let (node, socket) = open(addr).await;
        let hca = Hca::over_streams(Tcp::on(&[addr]).unwrap()).build();
        let device = Arc::new(hca.open().await.unwrap());
        let second = Node::open(&device, Config::new([addr])).await.unwrap_err();
        assert_eq!(second.to_string(), format!("{addr}:18634 is in use"));
        drop((node, socket));
        let until = Instant::now() + Duration::from_secs(60);
        while Node::open(&device, Config::new([addr])).await.is_err() {
            assert!(Instant::now() < until, "the port does not become free");
            std::thread::yield_now();
        }
    });
}
