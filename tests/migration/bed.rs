//! A subnet with two cables between its switches, and an end of a connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_sim::link::fabric::{
    Body, LinkFault, NodeId, Packet, PortRef, SharedSubnet, Subnet, SubnetConfig, Topology,
};
use hca_sim::{Builder, Hca};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{
    self, ForwardingBlock, Hops, LinkState, PERMISSIVE_LID, PhysState, PortInfo, SmpHeader,
    SwitchInfo,
};
use verbs_core::mad::{AttributeId, Bits, Class, MadHeader, Method};
use verbs_core::time::Instant;
use verbs_core::{
    Access, AltPath, Atomic, Av, Cq, Device, EventType, Lid, Memory, MigState, Mr, Mtu, Path, Pd,
    Psn, Qp, QpAttr, QpInfo, QpInit, Wc,
};
use verbs_simulator::Sim;

/// The first LIDs of both HCAs. Each has two; the second ones lead through the second cable.
pub(crate) const LIDS: [Lid; 2] = [Lid(16), Lid(32)];
/// How long a requester waits, as the IBTA's code: 4.2 ms.
pub(crate) const TIMEOUT: u8 = 10;

/// Two HCAs, two switches, two cables between them.
pub(crate) struct Bed {
    pub(crate) sim: Sim,
    subnet: SharedSubnet,
    switches: [NodeId; 2],
    pub(crate) hcas: [Arc<Hca>; 2],
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(change: fn(Builder) -> Builder) -> Self {
        let sim = Sim::new(1);
        let mut topology = Topology::new();
        let switches = ["S1", "S2"].map(|name| topology.switch(name, 4).unwrap());
        let hosts = ["A", "B"].map(|name| topology.hca(name, 1).unwrap());
        for (switch, host) in switches.into_iter().zip(hosts) {
            topology.link((switch, 1), (host, 1)).unwrap();
        }
        for cable in [2, 3] {
            let [one, other] = switches;
            topology.link((one, cable), (other, cable)).unwrap();
        }
        let subnet = Subnet::new(&topology, SubnetConfig::default());
        let subnet = SharedSubnet::timed(subnet, sim.clock().clone());
        let [a, b] = hosts.map(|node| PortRef { node, port: 1 });
        subnet.with(Instant::ZERO, |subnet| manage(subnet, a, [a, b], switches));
        let hcas = [(a, 1), (b, 2)].map(|(at, seed)| {
            let port = subnet.attach(at, seed).unwrap();
            change(Hca::over(port).clock(sim.clock().clone())).build()
        });
        Self {
            sim,
            subnet,
            switches,
            hcas,
        }
    }

    /// Pulls a cable out.
    pub(crate) fn pull(&self, cable: u8) {
        let at = self.end(cable, 0);
        let was_in = self.subnet.with(Instant::ZERO, |subnet| {
            subnet.plug(Instant::ZERO, at, false)
        });
        assert!(was_in);
    }

    /// Loses all that goes through a cable, or nothing any longer.
    pub(crate) fn cut(&self, cable: u8, is_cut: bool) {
        for from in 0..2 {
            self.lose(cable, from, if is_cut { 1_000_000 } else { 0 });
        }
    }

    /// Loses so many of a million packets that go through a cable from that switch.
    pub(crate) fn lose(&self, cable: u8, from: usize, lost_ppm: u32) {
        let (at, damaged_ppm) = (self.end(cable, from), 0);
        let fault = LinkFault {
            lost_ppm,
            damaged_ppm,
        };
        let is_there = self
            .subnet
            .with(Instant::ZERO, |subnet| subnet.set_fault(at, fault));
        assert!(is_there);
    }

    fn end(&self, cable: u8, switch: usize) -> PortRef {
        PortRef {
            node: self.switches[switch],
            port: cable,
        }
    }
}

/// The ways from the first host to the nodes of its subnet.
const WAYS: [&[u8]; 4] = [&[], &[1, 2, 1], &[1], &[1, 2]];

/// What a subnet manager on `from` does: LIDs, ways, all ports in service.
fn manage(subnet: &mut Subnet, from: PortRef, hosts: [PortRef; 2], switches: [NodeId; 2]) {
    // Towards the LIDs of each host, from each switch.
    for (number, way) in [WAYS[2], WAYS[3]].into_iter().enumerate() {
        let mut data = [0; SwitchInfo::LEN];
        let info = SwitchInfo {
            linear_top: 63,
            ..SwitchInfo::default()
        };
        info.emit(&mut data);
        set(subnet, from, way, AttributeId::SWITCH_INFO, 0, &data);
        let mut block = ForwardingBlock::default();
        block.0.fill(255);
        for (host, lid) in LIDS.into_iter().enumerate() {
            let ports = if host == number { [1, 1] } else { [2, 3] };
            let at = usize::from(lid.0);
            block.0[at..at + 2].copy_from_slice(&ports);
        }
        set(
            subnet,
            from,
            way,
            AttributeId::LINEAR_FORWARDING,
            0,
            &block.0,
        );
    }
    for ((at, lid), way) in hosts.into_iter().zip(LIDS).zip(WAYS) {
        set_port(subnet, from, way, at, |info| {
            (info.lid, info.lmc) = (lid, Bits::truncated(1));
        });
    }
    for (at, way) in hosts.into_iter().zip(WAYS) {
        up(subnet, from, way, at);
    }
    for (node, way) in switches.into_iter().zip([WAYS[2], WAYS[3]]) {
        for port in 1..=3 {
            up(subnet, from, way, PortRef { node, port });
        }
    }
    while subnet.poll_event().is_some() {}
}

/// Brings a port into service.
fn up(subnet: &mut Subnet, from: PortRef, way: &[u8], at: PortRef) {
    for state in [LinkState::ARMED, LinkState::ACTIVE] {
        set_port(subnet, from, way, at, |info| info.state = state);
    }
}

fn set_port(
    subnet: &mut Subnet,
    from: PortRef,
    way: &[u8],
    at: PortRef,
    change: impl FnOnce(&mut PortInfo),
) {
    let mut info = PortInfo {
        state: LinkState::NO_CHANGE,
        phys_state: PhysState::NO_CHANGE,
        ..*subnet.port_info(at).unwrap()
    };
    change(&mut info);
    let mut data = [0; PortInfo::LEN];
    info.emit(&mut data);
    set(
        subnet,
        from,
        way,
        AttributeId::PORT_INFO,
        at.port.into(),
        &data,
    );
}

/// Sets an attribute of the node at the end of that way.
fn set(
    subnet: &mut Subnet,
    from: PortRef,
    way: &[u8],
    attribute: AttributeId,
    modifier: u32,
    data: &[u8],
) {
    let mut mad = Box::new([0; 256]);
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: Class::SUBN_DIRECTED,
        class_version: sm::CLASS_VERSION,
        method: Method::SET,
        attribute,
        modifier,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    let ends = SmpHeader::directed(0);
    ends.put(&mut mad);
    mad[sm::DATA_AT..sm::DATA_AT + data.len()].copy_from_slice(data);
    Hops::put_path(&mut mad, way).unwrap();
    let packet = Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad);
    subnet.send(Instant::ZERO, from, packet);
    let (_, answer) = subnet.poll_delivery().unwrap();
    let Body::Mad(answer) = answer.body else {
        panic!("an answer is a datagram")
    };
    let status = header_of(&answer.mad).status();
    assert_eq!(status, sm::DIRECTION, "{attribute:?} {modifier} at {way:?}");
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
    events: Arc<Mutex<Vec<EventType>>>,
}

impl End {
    pub(crate) fn on(hca: &Arc<Hca>) -> Self {
        Self::with(hca, |cq| QpInit::rc(cq, cq))
    }

    pub(crate) fn with(hca: &Arc<Hca>, init: for<'a> fn(&'a Cq) -> QpInit<'a>) -> Self {
        let device = hca.open().wait().unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        device.on_event(move |event| seen.lock().unwrap().push(event.event));
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(512).wait().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let memory = Memory::alloc(1 << 16).unwrap();
        let mr = pd.register(memory, access).wait().unwrap();
        let qp = pd.create_qp(init(&cq).depth(128, 128)).wait().unwrap();
        Self {
            qp,
            cq,
            mr,
            pd,
            device,
            events,
        }
    }

    /// The path to the other end between the LIDs, or addresses, of that number.
    pub(crate) fn connect(&self, to: &Self, path: Av) {
        let path = Path {
            av: path,
            dest_qpn: to.qp.qpn(),
            rq_psn: Psn::new(0xff_fff0),
            mtu: Mtu::B1024,
        };
        let qp_type = self.qp.qp_type();
        let mut rts = QpAttr::rts_of(qp_type, Psn::new(0xff_fff0));
        rts.timeout = rts.timeout.map(|_| TIMEOUT);
        let steps = [
            QpAttr::init(1, Access::REMOTE),
            QpAttr::rtr_of(qp_type, &path),
            rts,
        ];
        for attr in steps {
            self.qp.modify(attr).wait().unwrap();
        }
    }

    pub(crate) fn load(&self, av: Av) {
        let attr = QpAttr::load_path(alternate(av));
        self.qp.modify(attr).wait().unwrap();
    }

    pub(crate) fn info(&self) -> QpInfo {
        *self.qp.query().wait().unwrap()
    }

    pub(crate) fn state(&self) -> MigState {
        self.info().attr.path_mig_state.unwrap_or_default()
    }

    /// Events of migration since the last look.
    pub(crate) fn moves(&self) -> Vec<EventType> {
        let mut events = std::mem::take(&mut *self.events.lock().unwrap());
        events.retain(|event| matches!(event, EventType::PathMig | EventType::PathMigErr));
        events
    }

    /// Adds one to the other end's first word, as often as that.
    pub(crate) fn count(&mut self, to: &Self, times: u64) {
        for wr_id in 0..times {
            let add = Atomic::fetch_add(wr_id, to.mr.remote(0), 1);
            self.qp
                .post_send(add.into(self.mr.slice(8..16)).signaled())
                .unwrap();
        }
    }

    /// What has been counted here.
    pub(crate) fn counted(&self) -> u64 {
        let mut word = [0; 8];
        self.mr.read(0, &mut word).unwrap();
        u64::from_ne_bytes(word)
    }

    pub(crate) fn poll(&mut self) -> Vec<Wc> {
        let mut wcs = [Wc::default(); 256];
        self.cq.poll(&mut wcs).to_vec()
    }
}

/// An alternate path.
pub(crate) fn alternate(av: Av) -> AltPath {
    AltPath::new(av, 0, TIMEOUT)
}

/// The way from that host to the other one between their LIDs of that number.
pub(crate) fn lids(from: usize, number: u8) -> Av {
    Av {
        src_path_bits: number,
        ..Av::to_lid(1, Lid(LIDS[1 - from].0 + u16::from(number)))
    }
}

/// Lets that much time pass.
pub(crate) fn pass(sim: &Sim, time: Duration) {
    sim.run(sim.sleep(time)).unwrap();
}
