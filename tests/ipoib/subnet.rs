//! On a subnet: three hosts behind two switches, with a manager that brings the ports up and an administrator that
//! knows the paths.

use std::sync::Arc;
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use ulp_ipoib::{Config, Mode};
use verbs_cm::sa::SaClient;
use verbs_core::time::Instant;
use verbs_core::{Device, Mtu, PKey};
use verbs_sm::{Config as SmConfig, Manager, Partition};

use crate::datagrams::run;
use crate::node::{Node, World, address};

const TOPOLOGY: &str = "
Switch 4 \"S1\"
[1] \"A\"[1]
[2] \"M\"[1]
[3] \"S2\"[3]

Switch 4 \"S2\"
[1] \"B\"[1]
[2] \"C\"[1]
[3] \"S1\"[3]

Hca 1 \"A\"
Hca 1 \"B\"
Hca 1 \"C\"
Hca 1 \"M\"
";

pub(crate) struct Lab<'w> {
    world: &'w World,
    topology: Topology,
    subnet: SharedSubnet,
    /// The device that the manager runs on.
    device: Device,
    manager: Option<Manager>,
    config: SmConfig,
}

impl<'w> Lab<'w> {
    pub(crate) async fn new(world: &'w World, config: SmConfig) -> Self {
        let topology = Topology::parse(TOPOLOGY).unwrap();
        let subnet = Subnet::new(&topology, SubnetConfig::default());
        let subnet = SharedSubnet::timed(subnet, world.sim.clock().clone());
        let at = place(&topology, "M");
        let hca = Hca::over(subnet.attach(at, 99).unwrap());
        let device = hca.clock(world.sim.clock().clone()).open().await.unwrap();
        let mut lab = Self {
            world,
            topology,
            subnet,
            device,
            manager: None,
            config,
        };
        lab.start().await;
        lab
    }

    /// A manager starts; the previous one has ended.
    async fn start(&mut self) {
        self.manager = None;
        let manager = Manager::start(&self.device, 1, self.config.clone());
        let manager = manager.await.unwrap();
        manager.up().await;
        self.manager = Some(manager);
    }

    pub(crate) async fn node(&self, name: &str, config: Config) -> Node {
        let port = self.subnet.attach(place(&self.topology, name), 7).unwrap();
        let hca = Hca::over(port)
            .clock(self.world.sim.clock().clone())
            .build();
        let device = Arc::new(hca.open().await.unwrap());
        let admin = SaClient::of(&device, 1).await.unwrap();
        self.world.host(hca, device, Arc::new(admin), config).await
    }

    fn plug(&self, name: &str, is_in: bool) {
        let at = place(&self.topology, name);
        let now = Instant::from_nanos(self.world.sim.now().as_nanos());
        assert!(self.subnet.with(now, |subnet| subnet.plug(now, at, is_in)));
    }
}

fn place(topology: &Topology, name: &str) -> PortRef {
    PortRef {
        node: topology.find(name).unwrap(),
        port: 1,
    }
}

#[test]
fn three_hosts_talk_across_two_switches() {
    for mode in [Mode::Datagram, Mode::Connected] {
        run(41, async |world| {
            let lab = Lab::new(&world, SmConfig::default()).await;
            let mut a = lab.node("A", address(1, mode, false)).await;
            let mut b = lab.node("B", address(2, mode, false)).await;
            let mut c = lab.node("C", address(3, mode, false)).await;
            assert_eq!(a.link.interface().link().datagram_mtu, 2044);
            assert_eq!(world.ping(&mut a, &mut b, 20, 1400).await, 20);
            assert_eq!(world.ping(&mut b, &mut c, 20, 1400).await, 20);
            world.stream(&mut a, &mut b, 1 << 20).await;
            let counters = b.counters();
            let over = counters.connected_received > 0;
            assert_eq!(over, mode == Mode::Connected, "{counters:?}");
        });
    }
}

#[test]
fn groups_reach_across_switches() {
    run(42, async |world| {
        let lab = Lab::new(&world, SmConfig::default()).await;
        let mut a = lab.node("A", address(1, Mode::Datagram, true)).await;
        let mut b = lab.node("B", address(2, Mode::Datagram, true)).await;
        let mut c = lab.node("C", address(3, Mode::Datagram, true)).await;
        let group = "ff05::1234".parse().unwrap();
        let sockets = [&mut a, &mut b, &mut c].map(|node| node.add_udp(5000));
        b.subscribe(group);
        let settled = Duration::from_secs(5);
        world
            .drive(&mut [&mut a, &mut b, &mut c], settled, |_| false)
            .await;
        a.udp(sockets[0])
            .send_slice(b"to all", (group, 5000))
            .unwrap();
        world
            .drive(&mut [&mut a, &mut b, &mut c], settled, |_| false)
            .await;
        assert_eq!(b.udp(sockets[1]).recv().unwrap().0, b"to all");
        assert!(!c.udp(sockets[2]).can_recv());
    });
}

#[test]
fn ten_thousand_echoes_come_back_while_managers_come_and_go() {
    run(43, async |world| {
        let mut lab = Lab::new(&world, SmConfig::default()).await;
        let mut a = lab.node("A", address(1, Mode::Datagram, false)).await;
        let mut b = lab.node("B", address(2, Mode::Datagram, false)).await;
        for round in 0..10 {
            assert_eq!(world.ping(&mut a, &mut b, 1000, 56).await, 1000, "{round}");
            lab.start().await;
        }
        let counters = a.counters();
        assert!(counters.refreshes >= 9, "{counters:?}");
        assert_eq!(counters.link_ups, 1, "{counters:?}");
    });
}

#[test]
fn a_cable_that_was_out_is_found_again() {
    run(44, async |world| {
        let lab = Lab::new(&world, SmConfig::default()).await;
        let mut a = lab.node("A", address(1, Mode::Connected, false)).await;
        let mut b = lab.node("B", address(2, Mode::Connected, false)).await;
        assert_eq!(world.ping(&mut a, &mut b, 5, 9000).await, 5);
        lab.plug("B", false);
        world.until_link(&mut b, false).await;
        assert_eq!(world.ping(&mut a, &mut b, 2, 56).await, 0);
        lab.plug("B", true);
        world.until_link(&mut b, true).await;
        let settled = Duration::from_secs(20);
        world.drive(&mut [&mut a, &mut b], settled, |_| false).await;
        assert_eq!(world.ping(&mut a, &mut b, 5, 9000).await, 5);
    });
}

#[test]
fn a_child_has_a_partition_of_its_own_and_its_mtu() {
    run(45, async |world| {
        let config = SmConfig {
            partitions: vec![
                Partition::default(),
                Partition {
                    pkey: PKey(0x8001),
                    mtu: Mtu::B4096,
                    ..Partition::default()
                },
            ],
            ..SmConfig::default()
        };
        let lab = Lab::new(&world, config).await;
        let child = |number| Config {
            pkey: PKey(0x8001),
            ..address(number, Mode::Connected, false)
        };
        let mut a = lab.node("A", child(1)).await;
        let mut b = lab.node("B", child(2)).await;
        let mut c = lab.node("C", address(3, Mode::Datagram, false)).await;
        assert_eq!(a.link.interface().link().datagram_mtu, 4092);
        assert_eq!(world.ping(&mut a, &mut b, 5, 30_000).await, 5);
        assert_eq!(
            world.ping(&mut c, &mut a, 1, 56).await,
            0,
            "in another partition"
        );
    });
}
