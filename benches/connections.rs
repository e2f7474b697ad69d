//! Connections made and closed, one after the other, by both ends in one thread.
//!
//! Measured: verbs-cm (`cm`: a queue pair at each end, REQ, REP, RTU, and the exchange that ends it) over the loopback link,
//! verbs-io (`io`: the same with buffers and their receives) over the loopback link and over UDP, beside connect, accept and
//! close of TCP.

mod settings;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::executor::block_on;
use futures::future::try_join;
use hca_sim::{Hca, Loopback};
use settings::{group, repeats, settings};
use verbs::sim::Carrier;
use verbs_benches::awaited::Hosts;
use verbs_benches::rivals;
use verbs_cm::resolver::Fixed;
use verbs_cm::{Listener, Manager};
use verbs_core::{Cq, Device, Pd, Qp, QpInit};

/// Bytes of a message of an awaited connection.
const BYTES: usize = 4096;
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 7174);

/// A host: a device with what queue pairs are made of. Dropped in this order.
struct Side {
    manager: Manager,
    cq: Cq,
    pd: Pd,
    _device: Device,
}

impl Side {
    async fn open(hca: &Arc<Hca>, table: &Arc<Fixed>) -> Self {
        let device = hca.open().await.expect("a device");
        let manager = Manager::of(&device);
        let resolver = Arc::<Fixed>::clone(table);
        manager.use_resolver(resolver).await.expect("a manager");
        Self {
            manager,
            cq: device.create_cq(64).await.expect("a CQ"),
            pd: device.alloc_pd().await.expect("a PD"),
            _device: device,
        }
    }

    async fn qp(&self) -> Qp {
        let init = QpInit::rc(&self.cq, &self.cq);
        self.pd.create_qp(init).await.expect("a QP")
    }
}

/// Two hosts, and the server's listener.
struct Managed {
    listener: Listener,
    client: Side,
    server: Side,
}

impl Managed {
    async fn new() -> Self {
        let link = Loopback::with_seed(5);
        let hcas = [1, 2].map(|host| (IpAddr::from([10, 0, 0, host]), Hca::on(&link).build()));
        let table = hcas.iter().fold(Fixed::new(), |table, (addr, hca)| {
            table.way(*addr, hca.gid(), Some(hca.lid()))
        });
        let (table, [(_, here), (_, there)]) = (Arc::new(table), &hcas);
        let client = Side::open(here, &table).await;
        let server = Side::open(there, &table).await;
        let listener = server.manager.listen(SERVER).await.expect("a listener");
        Self {
            listener,
            client,
            server,
        }
    }

    /// That many connections, each closed by the client, and then by the server.
    fn connections(&mut self, times: u64) {
        block_on(async {
            for _ in 0..times {
                let (ours, theirs) = (self.client.qp().await, self.server.qp().await);
                let asked = async {
                    let connecting = self.client.manager.connect(SERVER, ours);
                    connecting.await.map_err(verbs_cm::Error::from)
                };
                let accepted = async {
                    let request = self.listener.accept().await;
                    request.accept(theirs).await.map_err(verbs_cm::Error::from)
                };
                let (a, b) = try_join(asked, accepted).await.expect("a connection");
                a.close().await.expect("it is open");
                b.closed().await.expect("the client has closed it");
                b.close().await.expect("it is over");
            }
        });
    }
}

fn connections(c: &mut Criterion) {
    let mut group = group(c, "connections");
    let mut one = |name: &str, operation: &mut dyn FnMut(u64)| {
        let id = BenchmarkId::from_parameter(name);
        repeats(&mut group, id, Throughput::Elements(1), operation);
    };
    let mut managed = block_on(Managed::new());
    one("cm, loopback", &mut |times| managed.connections(times));
    drop(managed);
    for (name, carrier) in [
        ("io, loopback", Carrier::Loopback),
        ("io, udp", Carrier::Roce),
    ] {
        let mut hosts = block_on(Hosts::over(carrier, BYTES)).expect("two hosts");
        one(name, &mut |times| hosts.connections(times));
    }
    one("tcp connect, accept, close", &mut rivals::connections);
    group.finish();
}

criterion_group! {
    name = connects;
    config = settings();
    targets = connections
}
criterion_main!(connects);
