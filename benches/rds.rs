//! Datagrams of RDS, which arrive exactly once and in order, beside those of UDP, which may be lost, and beside bare SENDs.
//!
//! Measured: a datagram of 8 bytes to 32 KiB (the parameter) from `send_to` to `recv`, one after the other, between two nodes
//! of one process on the loopback link; one thread sends, carries and delivers, and acknowledgements are among it. `send` is a
//! SEND with its receive and both completions on the same link. The sockets of UDP cross the system's loopback interface.

mod settings;

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::executor::block_on;
use hca_sim::{Hca, Loopback};
use settings::{group, repeats, settings};
use ulp_rds::{Config, Node, RdsSocket};
use verbs::sim::Carrier;
use verbs_benches::ends::Ends;
use verbs_benches::rivals::Udp;
use verbs_cm::Manager;
use verbs_cm::resolver::Fixed;

const SIZES: [usize; 4] = [8, 512, 4 << 10, 32 << 10];

/// Two sockets of two nodes, with their managers. Dropped in this order.
struct Sockets {
    ends: [RdsSocket; 2],
    _kept: Vec<(Node, Manager)>,
}

impl Sockets {
    async fn new() -> Self {
        let link = Loopback::with_seed(7);
        let hcas = [1, 2].map(|host| (IpAddr::from([10, 0, 0, host]), Hca::on(&link).build()));
        let table = hcas.iter().fold(Fixed::new(), |table, (addr, hca)| {
            table.way(*addr, hca.gid(), Some(hca.lid()))
        });
        let table = Arc::new(table);
        let (mut ends, mut kept) = (Vec::new(), Vec::new());
        for (addr, hca) in hcas {
            let device = Arc::new(hca.open().await.expect("a device"));
            let manager = Manager::of(&device);
            let resolver = Arc::<Fixed>::clone(&table);
            manager.use_resolver(resolver).await.expect("a manager");
            let node = Node::open(&device, Config::new([addr])).await;
            let node = node.expect("a node");
            let socket = RdsSocket::bind(&node, SocketAddr::new(addr, 4000));
            ends.push(socket.expect("a free port"));
            kept.push((node, manager));
        }
        let Ok(ends) = ends.try_into() else {
            unreachable!("there are two");
        };
        Self { ends, _kept: kept }
    }

    /// That many datagrams, each taken when it has come.
    fn send(&self, payload: &[u8], times: u64) {
        block_on(async {
            let [from, to] = &self.ends;
            let there = to.local_addr();
            for _ in 0..times {
                let sent = from.send_to(black_box(payload), there).await;
                sent.expect("it is sent");
                let got = to.recv().await;
                assert_eq!(black_box(got.payload).len(), payload.len());
            }
        });
    }
}

fn datagrams(c: &mut Criterion) {
    let mut group = group(c, "rds");
    let mut sized = |name: &str, bytes: usize, operation: &mut dyn FnMut(u64)| {
        let id = BenchmarkId::new(name, bytes);
        repeats(&mut group, id, Throughput::Bytes(bytes as u64), operation);
    };
    let sockets = block_on(Sockets::new());
    let mut ends = block_on(Ends::over(Carrier::Loopback, 64)).expect("a connection");
    for bytes in SIZES {
        let payload = vec![7; bytes];
        sized("rds", bytes, &mut |times| sockets.send(&payload, times));
        sized("send", bytes, &mut |times| ends.send(bytes, times));
        let mut udp = Udp::new(bytes);
        sized("udp socket", bytes, &mut |times| udp.send(times));
    }
    group.finish();
}

criterion_group! {
    name = rds;
    config = settings();
    targets = datagrams
}
criterion_main!(rds);
