//! IP packets between two interfaces of IPoIB on a simulated InfiniBand subnet, beside datagrams through sockets of UDP.
//!
//! Measured: a packet that is sent by an interface and delivered by the other one, both in one thread, of 64 bytes to 2 KiB
//! (the parameter), in datagram mode and connected mode, alone and in batches of 16. The subnet's manager, paths and
//! neighbours' addresses are settled before. The sockets' packets cross the loopback interface of the system.

mod settings;

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::executor::block_on;
use settings::{group, repeats, settings};
use ulp_ipoib::{Config, Face, Interface, Mode, SendError};
use verbs::sim::{Carrier, Network};
use verbs_benches::rivals::Udp;
use verbs_cm::sa::SaClient;
use verbs_core::Device;

const SIZES: [usize; 4] = [64, 512, 1400, 2044];
/// Packets in a batch.
const BATCH: u64 = 16;
/// Bytes of a header of IPv4, and of one of UDP.
const IP: usize = 20;
const UDP: usize = 8;

/// Counts what is delivered.
#[derive(Default)]
struct Counter(AtomicU64);

impl Face for Counter {
    fn deliver(&self, packet: &[u8]) {
        black_box(packet);
        self.0.fetch_add(1, Relaxed);
    }
}

/// Two interfaces. Dropped in this order.
struct Interfaces {
    ends: [Interface; 2],
    counter: Arc<Counter>,
    addresses: [IpAddr; 2],
    _devices: [Arc<Device>; 2],
    _network: Network,
}

impl Interfaces {
    async fn new(mode: Mode) -> Self {
        let network = Network::over(Carrier::Subnet);
        // A host that is opened by its network starts the subnet's manager.
        let first = network.host([10, 0, 0, 9]).open().await;
        drop(first.expect("the subnet comes up"));
        let addresses = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let counter = Arc::<Counter>::default();
        let (mut ends, mut devices) = (Vec::new(), Vec::new());
        for addr in addresses {
            let hca = network.hca(addr).expect("a port");
            let device = Arc::new(hca.open().await.expect("a device"));
            let admin = SaClient::of(&device, 1).await.expect("an administrator");
            let config = Config {
                mode,
                ..Config::with_address(addr, 24)
            };
            let face = Arc::<Counter>::clone(&counter);
            let interface = Interface::new(&device, Arc::new(admin), face, config).await;
            ends.push(interface.expect("an interface"));
            devices.push(device);
        }
        let (Ok(ends), Ok(devices)) = (ends.try_into(), devices.try_into()) else {
            unreachable!("there are two of each");
        };
        let interfaces = Self {
            ends,
            counter,
            addresses,
            _devices: devices,
            _network: network,
        };
        interfaces.settle(mode);
        interfaces
    }

    /// Waits until packets arrive, by a connection if that is the mode.
    fn settle(&self, mode: Mode) {
        let packet = self.packet(SIZES[0]);
        while !self.ends.iter().all(|end| end.link().is_up) {
            thread::yield_now();
        }
        let is_settled = || mode == Mode::Datagram || self.ends[0].connections().0 > 0;
        self.send(&packet, 1);
        while !is_settled() {
            self.send(&packet, 1);
        }
    }

    /// An IP packet of so many bytes, with a datagram of UDP.
    fn packet(&self, bytes: usize) -> Vec<u8> {
        let mut packet = vec![0; bytes];
        let [IpAddr::V4(from), IpAddr::V4(to)] = self.addresses else {
            unreachable!("both are of version 4");
        };
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
        packet[8] = 64;
        packet[9] = 17;
        packet[12..16].copy_from_slice(&from.octets());
        packet[16..20].copy_from_slice(&to.octets());
        packet[24..26].copy_from_slice(&((bytes - IP) as u16).to_be_bytes());
        packet
    }

    /// That many packets, each delivered before the next one is sent.
    fn send(&self, packet: &[u8], times: u64) {
        for _ in 0..times {
            let before = self.delivered();
            while !is_sent(self.ends[0].send(black_box(packet))) {
                thread::yield_now();
            }
            self.wait_for(before + 1);
        }
    }

    /// The same in batches, or up to 15 packets more.
    fn send_batches(&self, packet: &[u8], times: u64) {
        for _ in 0..times.div_ceil(BATCH) {
            let (before, mut left) = (self.delivered(), BATCH);
            while left > 0 {
                let mut batch = self.ends[0].batch();
                while left > 0 && is_sent(batch.send(black_box(packet))) {
                    left -= 1;
                }
            }
            self.wait_for(before + BATCH);
        }
    }

    fn delivered(&self) -> u64 {
        self.counter.0.load(Relaxed)
    }

    fn wait_for(&self, count: u64) {
        while self.delivered() < count {
            thread::yield_now();
        }
    }
}

/// Whether a packet was sent. It was not if no buffer is free: what was delivered may not have completed yet.
fn is_sent(result: Result<(), SendError>) -> bool {
    match result {
        Ok(()) => true,
        Err(SendError::Full) => false,
        Err(error) => panic!("the link is up: {error}"),
    }
}

fn packets(c: &mut Criterion) {
    let mut group = group(c, "ipoib");
    for (mode, name) in [(Mode::Datagram, "datagram"), (Mode::Connected, "connected")] {
        let interfaces = block_on(Interfaces::new(mode));
        for bytes in SIZES {
            let (packet, bytes) = (interfaces.packet(bytes), bytes as u64);
            let id = BenchmarkId::new(name, bytes);
            repeats(&mut group, id, Throughput::Bytes(bytes), |times| {
                interfaces.send(&packet, times);
            });
            let id = BenchmarkId::new(format!("{name}, batches of 16"), bytes);
            repeats(&mut group, id, Throughput::Bytes(bytes), |times| {
                interfaces.send_batches(&packet, times);
            });
        }
    }
    for bytes in SIZES {
        // The same packets, whose headers the system writes.
        let mut socket = Udp::new(bytes - IP - UDP);
        let id = BenchmarkId::new("udp socket", bytes);
        repeats(&mut group, id, Throughput::Bytes(bytes as u64), |times| {
            socket.send(times);
        });
    }
    group.finish();
}

criterion_group! {
    name = ipoib;
    config = settings();
    targets = packets
}
criterion_main!(ipoib);
