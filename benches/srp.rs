//! Commands of SRP against a unit in memory, beside the same blocks asked for over TCP.
//!
//! Measured: READ and WRITE of 4 KiB and of 64 KiB (the parameter), one at a time and 16 in flight, from the call to the
//! answer; initiator and target are two HCAs on the loopback link, and neither has a thread. WRITE of 4 KiB carries its data
//! in the command, as the target allows; `by rdma` lets the target read them. TCP carries a request of 64 bytes and as many
//! bytes back, from memory to memory, in one thread.

mod settings;

use std::net::IpAddr;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::executor::block_on;
use futures::future::join_all;
use hca_sim::{Hca, Loopback};
use settings::{group, repeats, settings};
use ulp_srp::initiator::{Initiator, Options, Session, Target as Address};
use ulp_srp::iu::{Lun, PortId};
use ulp_srp::lun::MemoryUnit;
use ulp_srp::target::{Target, TargetConfig};
use verbs_benches::rivals::Tcp;
use verbs_cm::Manager;
use verbs_cm::resolver::Fixed;
use verbs_core::{Device, Extent, Memory};

const AT: &str = "10.0.0.2:5555";
const SIZES: [usize; 2] = [4 << 10, 64 << 10];
/// Bytes of a block, and of the unit.
const BLOCK: u32 = 512;
const UNIT: usize = 4 << 20;
/// Commands in flight.
const MANY: usize = 16;
/// Bytes of a request over TCP: those of a command of SRP with one descriptor, about.
const REQUEST: usize = 64;

/// An initiator that is logged in to a target. Dropped in this order.
struct Bed {
    session: Session,
    memory: Arc<Memory>,
    _target: Target,
    _managers: Vec<Manager>,
    _devices: Vec<Arc<Device>>,
}

impl Bed {
    async fn new(options: Options) -> Self {
        let link = Loopback::with_seed(3);
        let hcas = [1, 2].map(|host| (IpAddr::from([10, 0, 0, host]), Hca::on(&link).build()));
        let table = hcas.iter().fold(Fixed::new(), |table, (addr, hca)| {
            table.way(*addr, hca.gid(), Some(hca.lid()))
        });
        let table = Arc::new(table);
        let (mut devices, mut managers) = (Vec::new(), Vec::new());
        for (_, hca) in &hcas {
            let device = Arc::new(hca.open().await.expect("a device"));
            let manager = Manager::of(&device);
            let resolver = Arc::<Fixed>::clone(&table);
            manager.use_resolver(resolver).await.expect("a manager");
            devices.push(device);
            managers.push(manager);
        }
        let config = TargetConfig::new(PortId::default());
        let target = Target::open(Arc::clone(&devices[1]), config).await;
        let target = target.expect("a target");
        let unit = MemoryUnit::new(UNIT, BLOCK).expect("memory");
        let exported = target.export(0, Arc::new(unit)).await;
        exported.expect("the number is free");
        let at: std::net::SocketAddr = AT.parse().expect("an address");
        target.listen(at).await.expect("a free port");
        let to: Address = AT.parse().expect("an address");
        let session = Initiator::new(&devices[0], options).login(to).await;
        let memory = Memory::alloc(MANY * SIZES[1]).expect("memory");
        Self {
            session: session.expect("a login"),
            memory: Arc::new(memory),
            _target: target,
            _managers: managers,
            _devices: devices,
        }
    }

    /// That many commands, so many in flight at a time; up to 15 more.
    fn commands(&self, is_write: bool, bytes: usize, in_flight: usize, times: u64) {
        block_on(async {
            for _ in 0..times.div_ceil(in_flight as u64) {
                let all = (0..in_flight).map(|at| self.command(is_write, bytes, at));
                join_all(all).await;
            }
        });
    }

    async fn command(&self, is_write: bool, bytes: usize, at: usize) {
        let list = [Extent {
            memory: &self.memory,
            offset: at * bytes,
            len: bytes as u32,
        }];
        let blocks = bytes as u32 / BLOCK;
        let (session, lba) = (&self.session, at as u64 * u64::from(blocks));
        let done = match is_write {
            true => session.write(Lun(0), lba, blocks, &list).await,
            false => session.read(Lun(0), lba, blocks, &list).await,
        };
        done.expect("the unit carries it out");
    }
}

fn commands(c: &mut Criterion) {
    let bed = block_on(Bed::new(Options::default()));
    let by_rdma = block_on(Bed::new(Options {
        immediate_max: 0,
        ..Options::default()
    }));
    for (name, is_write) in [("srp-read", false), ("srp-write", true)] {
        let mut group = group(c, name);
        for bytes in SIZES {
            let throughput = || Throughput::Bytes(bytes as u64);
            for (name, in_flight) in [("srp", 1), ("srp, 16 in flight", MANY)] {
                let id = BenchmarkId::new(name, bytes);
                repeats(&mut group, id, throughput(), |times| {
                    bed.commands(is_write, bytes, in_flight, times);
                });
            }
            if is_write {
                let id = BenchmarkId::new("srp, by rdma", bytes);
                repeats(&mut group, id, throughput(), |times| {
                    by_rdma.commands(true, bytes, 1, times);
                });
            }
            let mut tcp = Tcp::new(bytes);
            let id = BenchmarkId::new("tcp request and answer", bytes);
            repeats(&mut group, id, throughput(), |times| {
                tcp.ask(REQUEST, times);
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = srp;
    config = settings();
    targets = commands
}
criterion_main!(srp);
