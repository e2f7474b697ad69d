//! Live IPoIB interfaces: a hostile port sends datagrams of any content and makes connections, and the stack above
//! passes anything down; a neighbour is honest.

mod admin;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admin::{Admin, KEY};
use hca_sim::Hca;
use ulp_ipoib::config::{CONNECTIONS_MAX, GROUPS_MAX, NEIGHBOURS_MAX};
use ulp_ipoib::wire::{Arp, ArpOperation, HardwareAddress};
use ulp_ipoib::{Config, Face, Interface, Mode};
use verbs_cm::wire::ServiceId;
use verbs_cm::{Connection, Manager, Port, Route};
use verbs_core::mad::TimeCode;
use verbs_core::{
    Access, Av, Cq, Datagram, Device, Gid, Guid, Lid, LinkLayer, Memory, Mr, Mtu, Pd, Psn, Qp,
    QpInit, Qpn, Send as SendWr, Wc,
};
use verbs_simulator::Sim;

use crate::Script;

/// Packets that a face keeps.
const KEPT: usize = 32;

/// The slots in which hostile messages wait until they are sent, and bytes of each.
const SLOTS: usize = 8;
const SLOT: usize = 2048;

/// Messages, connections, packets of the stack, an administrator that changes often, and time at live interfaces.
/// Tables keep to their limits; when the hostile port is quiet, packets to the neighbour arrive as they were sent; when
/// the interfaces are destroyed, all groups are left and no object remains.
pub(crate) fn interface(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let sim = Sim::new(1);
    let end = sim.now() + Duration::from_secs(36_000);
    let ended = sim.run_until(end, async {
        let mut world = World::new(&sim, &mut script).await;
        while let Some(what) = script.step(300) {
            world.step(what, &mut script).await;
            world.check();
        }
        world.end().await;
    });
    ended.expect("everything ends");
    script.steps()
}

/// The packets that an interface delivers.
#[derive(Default)]
struct Inbox(Mutex<VecDeque<Vec<u8>>>);

impl Inbox {
    fn take(&self) -> Option<Vec<u8>> {
        self.0.lock().expect("nobody panics with it").pop_front()
    }
}

impl Face for Inbox {
    fn deliver(&self, packet: &[u8]) {
        let mut kept = self.0.lock().expect("nobody panics with it");
        kept.push_back(packet.to_vec());
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }
}

/// A host with one interface.
struct Node {
    hca: Arc<Hca>,
    device: Arc<Device>,
    interface: Option<Interface>,
    inbox: Arc<Inbox>,
    /// Keeps the port's service open, which interfaces use.
    _manager: Manager,
    /// How many objects existed before there was an interface.
    before: [usize; 8],
}

fn port_address(host: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0xb, 0, 0, 2, 0, 0, host.into()).into()
}

async fn open(sim: &Sim, host: u8) -> (Arc<Hca>, Arc<Device>) {
    let port = sim.network().attach(&[port_address(host)]);
    let hca = Hca::over(port).clock(sim.clock().clone()).build();
    let device = hca.open().await.expect("a device on a simulated network");
    (hca, Arc::new(device))
}

impl Node {
    async fn new(sim: &Sim, admin: &Arc<Admin>, host: u8, mode: Mode) -> Self {
        let (hca, device) = open(sim, host).await;
        let manager = Manager::of(&device);
        manager.open().await.expect("a new device");
        let before = hca.object_counts();
        let config = Config {
            addresses: vec![
                (IpAddr::from([10, 0, 0, host]), 24),
                (
                    Ipv6Addr::new(0xfd00, 0xa, 0, 0, 0, 0, 0, host.into()).into(),
                    64,
                ),
            ],
            mode,
            follows_reports: true,
            sends: 8,
            receives: 16,
            connected_sends: 2,
            connected_receives: 4,
            ..Config::default()
        };
        let inbox = Arc::new(Inbox::default());
        let face = Arc::<Inbox>::clone(&inbox);
        let admin = Arc::<Admin>::clone(admin);
        let interface = Interface::new(&device, admin, face, config).await;
        Self {
            hca,
            device,
            interface: Some(interface.expect("an interface on a new device")),
            inbox,
            _manager: manager,
            before,
        }
    }

    fn interface(&self) -> &Interface {
        self.interface.as_ref().expect("it lives until the end")
    }
}

/// A port that sends anything.
struct Hostile {
    device: Arc<Device>,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Mr,
    av: Av,
    next: usize,
    connection: Option<Connection>,
}

impl Hostile {
    async fn new(sim: &Sim) -> Self {
        let (_, device) = open(sim, 3).await;
        let pd = device.alloc_pd().await.expect("a domain");
        let cq = device.create_cq(64).await.expect("a queue");
        let memory = Memory::alloc(SLOTS * SLOT).expect("memory");
        let memory = pd
            .register(memory, Access::LOCAL_WRITE)
            .await
            .expect("a region");
        let qp = pd.create_qp(QpInit::ud(&cq, &cq).depth(32, 1)).await;
        let qp = qp.expect("a queue pair");
        qp.init_datagram(1, KEY).await.expect("it is new");
        qp.ready_to_receive_datagrams().await.expect("it is INIT");
        qp.ready_to_send(Psn::new(1)).await.expect("it is RTR");
        let av = Av::to_gid(1, 0, Gid::from(port_address(1)));
        Self {
            device,
            pd,
            cq,
            qp,
            memory,
            av,
            next: 0,
            connection: None,
        }
    }

    /// Sends a message to a queue pair of host 1: as a datagram, or over the connection.
    fn send(&mut self, message: &[u8], to: Qpn, over_connection: bool) {
        while !self.cq.poll(&mut [Wc::default(); 16]).is_empty() {}
        let at = self.next * SLOT;
        self.next = (self.next + 1) % SLOTS;
        let message = &message[..message.len().min(SLOT)];
        self.memory.write(at, message).expect("it is in range");
        let piece = self.memory.slice(at..at + message.len());
        let wr = SendWr::new(1).from(piece).signaled();
        // A queue may be full, a connection closed.
        let _sent = match &mut self.connection {
            Some(connection) if over_connection => connection.post_send(wr),
            _ => self.qp.post_send(wr.to(&Datagram::new(self.av, to, KEY))),
        };
    }

    /// Connects to the service of connected mode.
    async fn connect(&mut self, to: Qpn, script: &mut Script<'_>) {
        self.connection = None;
        let port = Port {
            number: 1,
            ca_guid: Guid(3),
            link_layer: LinkLayer::Ethernet,
            lid: Lid(0),
            gids: vec![(0, Gid::from(port_address(3)))],
            mtu: Mtu::B1024,
            ack_delay: TimeCode::new(15),
            migrates: false,
        };
        let (own, other) = (Gid::from(port_address(3)), Gid::from(port_address(1)));
        let route = Route::roce(&port, own, other).expect("its own GID");
        let init = QpInit::rc(&self.cq, &self.cq).depth(8, 1);
        let qp = self.pd.create_qp(init).await.expect("a queue pair");
        let service = Config::default().service_prefix | u64::from(to.value());
        let len = script.pick(&[8, 8, 0, 4, 92]);
        let mut data = vec![0; len];
        for (to, from) in data.iter_mut().zip(script.take(len)) {
            *to = *from;
        }
        let calling = Manager::of(&self.device).connect_service(ServiceId(service), route, qp);
        self.connection = calling.private_data(&data).await.ok();
    }
}

struct World<'s> {
    sim: &'s Sim,
    admin: Arc<Admin>,
    nodes: [Node; 2],
    hostile: Option<Hostile>,
    sent: u16,
}

impl<'s> World<'s> {
    async fn new(sim: &'s Sim, script: &mut Script<'_>) -> Self {
        let admin = Arc::new(Admin::default());
        let mode = script.pick(&[Mode::Datagram, Mode::Connected]);
        let nodes = [
            Node::new(sim, &admin, 1, mode).await,
            Node::new(sim, &admin, 2, mode).await,
        ];
        let world = Self {
            sim,
            admin,
            nodes,
            hostile: Some(Hostile::new(sim).await),
            sent: 0,
        };
        world.wait_for_links().await;
        world
    }

    async fn wait_for_links(&self) {
        for _ in 0..600 {
            if self.nodes.iter().all(|node| node.interface().link().is_up) {
                return;
            }
            self.sim.sleep(Duration::from_millis(100)).await;
        }
        panic!("links that do not come up");
    }

    async fn step(&mut self, what: u8, script: &mut Script<'_>) {
        let to = self.nodes[0].interface().link().hardware.qpn;
        match what % 16 {
            0..=7 => {
                let message = a_message(script, to);
                let over_connection = script.once_in(3);
                if let Some(hostile) = &mut self.hostile {
                    hostile.send(&message, to, over_connection);
                }
            }
            8..=10 => {
                let mut packet = a_packet(script);
                if script.once_in(4) {
                    script.change(&mut packet);
                }
                // No room, no link, not an IP packet: all are valid answers.
                let _sent = self.nodes[0].interface().send(&packet);
            }
            11 => {
                let micros = script.pick(&[10, 1_000, 300_000, 1_100_000, 40_000_000]);
                self.sim.sleep(Duration::from_micros(micros)).await;
            }
            12 => {
                if let Some(hostile) = &mut self.hostile {
                    hostile.connect(to, script).await;
                }
            }
            13 => match script.below(4) {
                0 => self.admin.refuse(true),
                1 => self.admin.refuse(false),
                _ => self.admin.restart(),
            },
            14 => {
                let group = IpAddr::from([239, 1, 2, script.below(6) as u8]);
                let interface = self.nodes[0].interface();
                // There may be too many.
                let _full = interface.subscribe(group);
                if script.once_in(2) {
                    interface.unsubscribe(group);
                }
            }
            _ => {
                let addr = IpAddr::from([10, 0, 0, script.below(8) as u8]);
                let asked = self.nodes[0].interface().resolve(addr);
                if script.once_in(2) {
                    let _found = asked.await;
                }
            }
        }
        if what & 0x30 == 0 {
            self.sim.sleep(Duration::from_micros(20)).await;
        }
    }

    fn check(&self) {
        for node in &self.nodes {
            let interface = node.interface();
            assert!(interface.neighbours().len() <= NEIGHBOURS_MAX);
            let (made, taken) = interface.connections();
            assert!(
                made <= CONNECTIONS_MAX && taken <= CONNECTIONS_MAX,
                "{made}, {taken}"
            );
        }
        assert!(
            self.admin.members() <= 2 * GROUPS_MAX,
            "{} members",
            self.admin.members()
        );
    }

    /// The hostile port leaves; what it has sent is forgotten; packets arrive; the interfaces are destroyed.
    async fn end(mut self) {
        self.admin.refuse(false);
        self.hostile = None;
        self.sim.sleep(Duration::from_secs(120)).await;
        self.wait_for_links().await;
        for (from, to, len) in [(0, 1, 100), (1, 0, 1500), (0, 1, 9000)] {
            self.exchange(from, to, len).await;
        }
        for node in &mut self.nodes {
            node.interface = None;
        }
        self.sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(self.admin.members(), 0, "groups that are not left");
        for node in &self.nodes {
            assert!(node.device.in_flight().is_empty());
            assert_eq!(
                node.hca.object_counts(),
                node.before,
                "objects of an interface that is gone"
            );
        }
    }

    /// Sends a packet from one to the other, as often as necessary: a datagram may be lost.
    async fn exchange(&mut self, from: usize, to: usize, len: usize) {
        let len = len.min(self.nodes[from].interface().link().mtu);
        self.sent += 1;
        let mut packet = udp(from as u8 + 1, Ipv4Addr::new(10, 0, 0, to as u8 + 1), len);
        packet[4..6].copy_from_slice(&self.sent.to_be_bytes());
        for _ in 0..50 {
            while self.nodes[to].inbox.take().is_some() {}
            // A packet that is refused now is sent again below.
            let _sent = self.nodes[from].interface().send(&packet);
            self.sim.sleep(Duration::from_millis(400)).await;
            while let Some(came) = self.nodes[to].inbox.take() {
                if came.get(4..6) == packet.get(4..6) {
                    assert_eq!(came, packet, "a packet that was changed");
                    return;
                }
            }
        }
        panic!(
            "honest neighbours do not reach each other: {:?}",
            self.nodes[from].interface().counters()
        );
    }
}

/// A UDP packet, or at least its IP header.
fn udp(from: u8, to: Ipv4Addr, len: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from];
    packet.extend_from_slice(&to.octets());
    packet.extend((packet.len()..len).map(|at| (at % 251) as u8));
    let [high, low] = (packet.len() as u16).to_be_bytes();
    packet[2..4].copy_from_slice(&[high, low]);
    packet
}

/// A packet that the stack passes down.
fn a_packet(script: &mut Script<'_>) -> Vec<u8> {
    let to = match script.below(8) {
        0..=3 => Ipv4Addr::new(10, 0, 0, script.below(8) as u8),
        4 => Ipv4Addr::BROADCAST,
        5 => Ipv4Addr::new(239, 1, 2, script.below(8) as u8),
        6 => Ipv4Addr::from(script.u32()),
        _ => Ipv4Addr::new(10, 0, 0, 255),
    };
    let len = script.pick(&[20, 28, 100, 1500, 2044, 2045, 9000, 65_520, 65_535]);
    let mut packet = udp(1, to, len);
    match script.below(4) {
        0 => {
            // A report of groups: IGMP.
            packet.truncate(64);
            packet[9] = 2;
            let len = script.below(44);
            for (to, from) in packet[20..].iter_mut().zip(script.take(len)) {
                *to = *from;
            }
        }
        1 => {
            // For IPv6: neighbour discovery, listener discovery, or anything.
            packet = vec![0x60, 0, 0, 0, 0, 0, 58, 255];
            packet.extend_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            packet.extend_from_slice(&match script.below(3) {
                0 => [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2],
                1 => [0xfd, 0, 0, 0xa, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
                _ => script.array(),
            });
            packet.extend_from_slice(&[script.pick(&[135, 136, 130, 131, 143, 128]), 0, 0, 0]);
            let len = script.below(96);
            packet.extend_from_slice(script.take(len));
            let len = packet.len() as u16 - 40;
            packet[4..6].copy_from_slice(&len.to_be_bytes());
        }
        _ => {}
    }
    packet
}

/// A message in the form of the link, mostly one of address resolution.
fn a_message(script: &mut Script<'_>, victim: Qpn) -> Vec<u8> {
    let hardware = HardwareAddress {
        qpn: match script.below(3) {
            0 => victim,
            _ => Qpn::new(script.below(32) as u32),
        },
        gid: match script.below(3) {
            0 => Gid(script.array()),
            1 => Gid::from(port_address(2)),
            _ => Gid::from(port_address(3)),
        },
        ..HardwareAddress::parse(&[0x80; HardwareAddress::LEN])
    };
    let ours = Ipv4Addr::new(10, 0, 0, script.pick(&[3, 2, 1, 4, 255, 0]));
    let mut message = match script.below(8) {
        0..=3 => {
            let arp = Arp {
                operation: script.pick(&[ArpOperation::Request, ArpOperation::Reply]),
                sender: (hardware, ours),
                target: (hardware, Ipv4Addr::new(10, 0, 0, script.pick(&[1, 2, 9]))),
            };
            [&[8, 6, 0, 0][..], &arp.emit()].concat()
        }
        4 | 5 => {
            let protocol: [u8; 4] = script.pick(&[[8, 0, 0, 0], [0x86, 0xdd, 0, 0]]);
            [&protocol[..], &a_packet(script)].concat()
        }
        6 => {
            let len = script.below(100);
            script.take(len).to_vec()
        }
        _ => {
            let packet = udp(3, Ipv4Addr::new(10, 0, 0, 1), 64);
            [&[8, 0, 0, 0][..], &packet].concat()
        }
    };
    if script.once_in(3) {
        script.change(&mut message);
    }
    message
}
