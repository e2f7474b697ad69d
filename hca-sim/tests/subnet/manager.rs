//! A small manager of a subnet of two switches and three adapters: a client of the service for management
//! datagrams of the first adapter's port.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::executor::block_on;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{
    self, ForwardingBlock, Hops, LinkState, MulticastBlock, PERMISSIVE_LID, PhysState, PortInfo,
    PortInfoView, SmpHeader, SwitchInfo, SwitchInfoView,
};
use verbs_core::mad::{
    Address, AttributeId, Bits, Class, Delivery, MadAgent, MadBytes, MadClient, MadHeader,
    MadService, Method, Retry, Status,
};
use verbs_core::{Av, Device, Lid, Qpn};

/// The adapters' names, their LIDs, and the paths to them from the first one.
pub(crate) const ADAPTERS: [(&str, Lid, &[u8]); 3] = [
    ("A", Lid(1), &[]),
    ("B", Lid(2), &[1, 2]),
    ("C", Lid(3), &[1, 3, 2]),
];
/// The first of the four LIDs that each adapter has after [`Manager::spread`].
pub(crate) const SPREAD: [Lid; 3] = [Lid(16), Lid(32), Lid(48)];
/// The switches' LIDs, the paths to them, and their ports towards the LIDs from 0 on.
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

/// A client of a port's service that keeps what arrives.
pub(crate) struct Client(Mutex<mpsc::Sender<Delivery>>);

impl MadClient for Client {
    fn deliver(&self, delivery: Delivery) {
        // A receiver that no longer looks needs no more deliveries.
        let _ = self.0.lock().unwrap().send(delivery);
    }
}

/// A client, and the channel into which it puts what arrives.
pub(crate) fn client() -> (Arc<Client>, Receiver<Delivery>) {
    let (sender, receiver) = mpsc::channel();
    (Arc::new(Client(Mutex::new(sender))), receiver)
}

/// The part of a subnet manager that these tests need.
pub(crate) struct Manager {
    _client: Arc<Client>,
    directed: MadAgent,
    by_lid: MadAgent,
    deliveries: Receiver<Delivery>,
    /// What has arrived while an answer was waited for.
    kept: Mutex<VecDeque<Delivery>>,
}

impl Manager {
    pub(crate) fn on(device: &Device) -> Self {
        let service = block_on(MadService::of(device, 1)).unwrap();
        let (client, deliveries) = client();
        let weak = Arc::downgrade(&client) as Weak<dyn MadClient>;
        let directed = service.register(Class::SUBN_DIRECTED, 1, &[], weak.clone());
        let by_lid = service.register(Class::SUBN_LID, 1, &[Method::TRAP], weak);
        Self {
            _client: client,
            directed: directed.unwrap(),
            by_lid: by_lid.unwrap(),
            deliveries,
            kept: Mutex::default(),
        }
    }

    /// The next arrival that is not an answer.
    pub(crate) fn delivery(&self) -> Delivery {
        let kept = self.kept.lock().unwrap().pop_front();
        kept.unwrap_or_else(|| self.next())
    }

    fn next(&self) -> Delivery {
        self.deliveries
            .recv_timeout(Duration::from_secs(60))
            .expect("something comes")
    }

    fn answer(&self) -> MadBytes {
        loop {
            match self.next() {
                Delivery::Response { mad, .. } => return mad,
                request @ Delivery::Request { .. } => self.kept.lock().unwrap().push_back(request),
                other => panic!("{other:?} is no answer"),
            }
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

    /// The state of a port.
    pub(crate) fn port(&self, path: &[u8], number: u8) -> PortInfo {
        let mad = self.ask(path, Smp::get(AttributeId::PORT_INFO, number.into()));
        PortInfoView::new(sm::attribute(&mad))
            .map(PortInfo::parse)
            .unwrap()
    }

    /// Sets an attribute of a port.
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

    /// Gives all nodes LIDs and routes, and brings all ports into service.
    pub(crate) fn bring_up(&self) {
        for (lid, path, ways) in SWITCHES {
            self.set_port(path, 0, |port| (port.lid, port.sm_lid) = (lid, Lid(1)));
            self.set_linear_top(path, 11);
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

    /// Gives each adapter four LIDs instead of one.
    pub(crate) fn spread(&self) {
        let [sm, ..] = SPREAD;
        for (_, path, ways) in SWITCHES {
            self.set_linear_top(path, 63);
            let mut block = ForwardingBlock::default();
            block.0.fill(255);
            block.0[..ways.len()].copy_from_slice(&ways);
            for (base, (_, lid, _)) in SPREAD.into_iter().zip(ADAPTERS) {
                let first = usize::from(base.0);
                block.0[first..first + 4].fill(ways[usize::from(lid.0)]);
            }
            self.set(path, AttributeId::LINEAR_FORWARDING, 0, block.0);
        }
        for (base, (_, _, path)) in SPREAD.into_iter().zip(ADAPTERS) {
            self.set_port(path, 1, |port| {
                (port.lid, port.lmc, port.sm_lid) = (base, Bits::truncated(2), sm);
            });
        }
    }

    fn set_linear_top(&self, path: &[u8], linear_top: u16) {
        let mad = self.ask(path, Smp::get(AttributeId::SWITCH_INFO, 0));
        let info = SwitchInfoView::new(sm::attribute(&mad)).map(SwitchInfo::parse);
        let info = SwitchInfo {
            linear_top,
            ..info.unwrap()
        };
        let mut data = [0; SwitchInfo::LEN];
        info.emit(&mut data);
        self.set(path, AttributeId::SWITCH_INFO, 0, data);
    }

    /// Lets the switches forward packets to a group through these ports.
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

/// The contents of a datagram of subnet management.
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
        let ends = SmpHeader::directed(0);
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
