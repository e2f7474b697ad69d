//! A subnet of two switches and three adapters with an HCA on each, and its manager: a client of the service for
//! management datagrams on the first of them.

use std::sync::{Arc, Mutex};

use hca_sim::link::fabric::{NodeId, PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use hca_sim::{Builder, Hca};
use verbs_core::{AsyncEvent, Device, EventType};

use crate::manager::{ADAPTERS, Manager};

pub(crate) struct Node {
    pub(crate) hca: Arc<Hca>,
    pub(crate) device: Device,
    events: Arc<Mutex<Vec<AsyncEvent>>>,
}

impl Node {
    /// The events that were raised since the last look.
    pub(crate) fn events(&self) -> Vec<EventType> {
        let events = std::mem::take(&mut *self.events.lock().unwrap());
        events.into_iter().map(|event| event.event).collect()
    }
}

pub(crate) struct Bed {
    pub(crate) subnet: SharedSubnet,
    pub(crate) nodes: Vec<Node>,
    pub(crate) switches: [NodeId; 2],
}

impl Bed {
    /// The subnet before any manager has configured it.
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// The same, with HCAs that `change` configures.
    pub(crate) fn with(change: fn(Builder) -> Builder) -> Self {
        let mut topology = Topology::new();
        let switches = ["S1", "S2"].map(|name| topology.switch(name, 4).unwrap());
        let [a, b, c] = ADAPTERS.map(|(name, ..)| topology.hca(name, 1).unwrap());
        topology.link((switches[0], 1), (a, 1)).unwrap();
        topology.link((switches[0], 2), (b, 1)).unwrap();
        topology.link((switches[0], 3), (switches[1], 1)).unwrap();
        topology.link((switches[1], 2), (c, 1)).unwrap();
        let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
        let nodes = [a, b, c].into_iter().zip(1..).map(|(node, seed)| {
            let link = subnet.attach(PortRef { node, port: 1 }, seed).unwrap();
            let hca = change(Hca::over(link)).build();
            let device = hca.open().wait().unwrap();
            let events = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&events);
            device.on_event(move |event| seen.lock().unwrap().push(event));
            Node {
                hca,
                device,
                events,
            }
        });
        Self {
            nodes: nodes.collect(),
            subnet,
            switches,
        }
    }

    /// The subnet in service.
    pub(crate) fn managed() -> (Self, Manager) {
        Self::managed_with(|builder| builder)
    }

    /// The same, with HCAs that `change` configures.
    pub(crate) fn managed_with(change: fn(Builder) -> Builder) -> (Self, Manager) {
        let bed = Self::with(change);
        let manager = Manager::on(&bed.nodes[0].device);
        manager.bring_up();
        for node in &bed.nodes {
            node.events();
        }
        (bed, manager)
    }
}
