//! A subnet of two switches and three adapters with an HCA on each, and a manager for it: a client of the
//! service for management datagrams on the first of them.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::link::fabric::{NodeId, PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{
    self, ForwardingBlock, Hops, LinkState, MulticastBlock, PERMISSIVE_LID, PhysState, PortInfo,
    PortInfoView, SmpHeader, SwitchInfo, SwitchInfoView,
};
use verbs_core::mad::{
    Address, AttributeId, Class, Delivery, MadAgent, MadBytes, MadClient, MadHeader, MadService,
    Method, Retry, Status,
};
use verbs_core::{AsyncEvent, Av, Device, EventType, Lid, Qpn};

/// The adapters' names, their LIDs, and the ways to them from the first one.
pub(crate) const ADAPTERS: [(&str, Lid, &[u8]); 3] = [
    ("A", Lid(1), &[]),
    ("B", Lid(2), &[1, 2]),
    ("C", Lid(3), &[1, 3, 2]),
];
/// The switches' LIDs, the ways to them, and their ports towards the LIDs from 0 on.
const SWITCHES: [(Lid, &[u8], [u8; 12]); 2] = [
    (
        Lid(10),
        &[1],
        [255, 1, 2, 3, 255, 255, 255, 255, 255, 255, 0, 3],
    ),
    (
        Lid(11),
        &[1, 3],
        [255, 1, 1, 2, 255, 255, 255, 255, 255, 255, 1, 0],
    ),
];

pub(crate) struct Node {
    pub(crate) hca: Arc<Hca>,
    pub(crate) device: Device,
    events: Arc<Mutex<Vec<AsyncEvent>>>,
}

impl Node {
    /// What was raised since the last look.
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
    /// The subnet as it is before anybody has managed it.
    pub(crate) fn new() -> Self {
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
            let hca = Hca::over(link).build();
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
        let bed = Self::new();
        let manager = Manager::on(&bed.nodes[0].device);
        manager.bring_up();
        for node in &bed.nodes {
            node.events();
        }
        (bed, manager)
    }
}

/// A client of a port's service that keeps what comes.
pub(crate) struct Client(Mutex<mpsc::Sender<Delivery>>);

impl MadClient for Client {
    fn deliver(&self, delivery: Delivery) {
        // Who does not look any more has been told enough.
        let _ = self.0.lock().unwrap().send(delivery);
    }
}

/// A client, and where it puts what comes.
pub(crate) fn client() -> (Arc<Client>, Receiver<Delivery>) {
    let (sender, receiver) = mpsc::channel();
    (Arc::new(Client(Mutex::new(sender))), receiver)
}

/// What a subnet manager does, as far as these tests need it.
pub(crate) struct Manager {
    _client: Arc<Client>,
    directed: MadAgent,
    by_lid: MadAgent,
    deliveries: Receiver<Delivery>,
}

impl Manager {
    pub(crate) fn on(device: &Device) -> Self {
        let service = block_on(MadService::of(device, 1)).unwrap();
        let (client, deliveries) = client();
        let weak = Arc::downgrade(&client) as std::sync::Weak<dyn MadClient>;
        let directed = service.register(Class::SUBN_DIRECTED, 1, &[], weak.clone());
        let by_lid = service.register(Class::SUBN_LID, 1, &[Method::TRAP], weak);
        Self {
            _client: client,
            directed: directed.unwrap(),
            by_lid: by_lid.unwrap(),
            deliveries,
        }
    }

    /// What has come and was no answer.
    pub(crate) fn delivery(&self) -> Delivery {
        self.deliveries
            .recv_timeout(Duration::from_secs(10))
            .expect("something comes")
    }

    fn answer(&self) -> MadBytes {
        match self.delivery() {
            Delivery::Response { mad, .. } => mad,
            other => panic!("{other:?} is no answer"),
        }
    }

    /// Asks by a directed route.
    pub(crate) fn ask(&self, path: &[u8], what: Smp<'_>) -> MadBytes {
        let mut mad = what.datagram(Class::SUBN_DIRECTED);
        Hops::put_path(&mut mad, path).unwrap();
        let there = address(PERMISSIVE_LID, 0);
        self.directed
            .request(there, &mad, Retry::default())
            .unwrap();
        self.answer()
    }

    /// Asks by LID.
    pub(crate) fn ask_lid(&self, lid: Lid, what: Smp<'_>) -> MadBytes {
        let mad = what.datagram(Class::SUBN_LID);
        let there = address(lid, 0);
        self.by_lid.request(there, &mad, Retry::default()).unwrap();
        self.answer()
    }

    fn set<const N: usize>(
        &self,
        path: &[u8],
        attribute: AttributeId,
        modifier: u32,
        data: [u8; N],
    ) {
        let what = Smp {
            method: Method::SET,
            attribute,
            modifier,
            data: &data,
        };
        let status = header_of(&self.ask(path, what)).status();
        assert_eq!(
            status,
            sm::DIRECTION,
            "{attribute:?} {modifier} at {path:?}"
        );
    }

    /// How a port is.
    pub(crate) fn port(&self, path: &[u8], number: u8) -> PortInfo {
        let mad = self.ask(path, Smp::get(AttributeId::PORT_INFO, number.into()));
        PortInfoView::new(sm::attribute(&mad))
            .map(PortInfo::parse)
            .unwrap()
    }

    /// Sets something of a port.
    pub(crate) fn set_port(&self, path: &[u8], number: u8, change: impl FnOnce(&mut PortInfo)) {
        let mut info = PortInfo {
            state: LinkState::NO_CHANGE,
            phys_state: PhysState::NO_CHANGE,
            ..self.port(path, number)
        };
        change(&mut info);
        let mut data = [0; PortInfo::LEN];
        info.emit(&mut data);
        self.set(path, AttributeId::PORT_INFO, number.into(), data);
    }

    /// Gives everybody LIDs and ways, and brings all ports into service.
    pub(crate) fn bring_up(&self) {
        for (lid, path, ways) in SWITCHES {
            self.set_port(path, 0, |port| (port.lid, port.sm_lid) = (lid, Lid(1)));
            let mad = self.ask(path, Smp::get(AttributeId::SWITCH_INFO, 0));
            let info = SwitchInfoView::new(sm::attribute(&mad)).map(SwitchInfo::parse);
            let info = SwitchInfo {
                linear_top: 11,
                ..info.unwrap()
            };
            let mut data = [0; SwitchInfo::LEN];
            info.emit(&mut data);
            self.set(path, AttributeId::SWITCH_INFO, 0, data);
            let mut block = ForwardingBlock::default();
            block.0.fill(255);
            block.0[..ways.len()].copy_from_slice(&ways);
            self.set(path, AttributeId::LINEAR_FORWARDING, 0, block.0);
        }
        for (_, lid, path) in ADAPTERS {
            self.set_port(path, 1, |port| {
                (port.lid, port.sm_lid, port.client_reregister) = (lid, Lid(1), true);
            });
        }
        let ends = ADAPTERS.map(|(_, _, path)| (path, 1));
        let between: [(&[u8], u8); 5] =
            [(&[1], 1), (&[1], 2), (&[1], 3), (&[1, 3], 1), (&[1, 3], 2)];
        for state in [LinkState::ARMED, LinkState::ACTIVE] {
            for (path, number) in ends.into_iter().chain(between) {
                self.set_port(path, number, |port| port.state = state);
            }
        }
    }

    /// Has the switches forward packets to a group through these ports.
    pub(crate) fn set_group(&self, mlid: Lid, ports: [&[u8]; 2]) {
        let index = usize::from(mlid.0 - 0xc000);
        for ((_, path, _), ports) in SWITCHES.into_iter().zip(ports) {
            let mut block = MulticastBlock::default();
            for port in ports {
                block.masks[index] |= 1 << port;
            }
            let mut data = [0; MulticastBlock::LEN];
            block.emit(&mut data);
            self.set(path, AttributeId::MULTICAST_FORWARDING, 0, data);
        }
    }
}

/// What a datagram of subnet management asks for.
#[derive(Clone, Copy)]
pub(crate) struct Smp<'a> {
    pub(crate) method: Method,
    pub(crate) attribute: AttributeId,
    pub(crate) modifier: u32,
    pub(crate) data: &'a [u8],
}

impl Smp<'_> {
    pub(crate) const fn get(attribute: AttributeId, modifier: u32) -> Self {
        Self {
            method: Method::GET,
            attribute,
            modifier,
            data: &[],
        }
    }

    fn datagram(&self, class: Class) -> MadBytes {
        let mut mad = [0; 256];
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class,
            class_version: sm::CLASS_VERSION,
            method: self.method,
            status: Status::OK,
            attribute: self.attribute,
            modifier: self.modifier,
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        let ends = SmpHeader {
            m_key: 0,
            dr_slid: PERMISSIVE_LID,
            dr_dlid: PERMISSIVE_LID,
        };
        if class == Class::SUBN_DIRECTED {
            ends.put(&mut mad);
        }
        mad[sm::DATA_AT..sm::DATA_AT + self.data.len()].copy_from_slice(self.data);
        mad
    }
}

/// A queue pair 0 or 1.
pub(crate) fn address(lid: Lid, qpn: u32) -> Address {
    Address {
        av: Av::to_lid(1, lid),
        qpn: Qpn::new(qpn),
        pkey_index: 0,
    }
}
