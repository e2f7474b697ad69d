//! A subnet manager's seat at a port of a simulated subnet: one node lies and asks whatever the script says, one is an
//! honest client.

use std::collections::VecDeque;
use std::time::Duration;

use hca_sim::link::fabric::{Body, MadPacket, Packet, PortRef, Subnet, SubnetConfig, Topology};
use verbs_core::mad::header::{MAD_LEN, emit_header, header_of};
use verbs_core::mad::sa::{self, PathRecord, PathRecordView};
use verbs_core::mad::sm::{self, PERMISSIVE_LID, SmState};
use verbs_core::mad::{
    Address, AgentConfig, AgentId, Agents, AttributeId, Class, Delivery, MadBytes, MadHeader,
    Method, Retry, TransactionId,
};
use verbs_core::time::Instant;
use verbs_core::{Av, Gid, Lid, PKey, QKey, Qpn};
use verbs_sm::{CLASSES, Config, Port, Seat, SubnetManager};

use crate::Script;

/// Nodes of the subnet: two switches and three adapters.
const NODES: usize = 5;

/// The most nodes that the manager manages.
const NODES_MAX: usize = 8;

/// The most requests that its service keeps.
const REQUESTS_MAX: usize = 64;

/// Records of an answer.
const RECORDS_MAX: usize = 40;

/// Datagrams that are carried until nothing moves any longer; more is a storm.
const CARRIED_MAX: u32 = 200_000;

/// The offset of the data in an answer of the administrator.
const SA_DATA: usize = 56;

/// Datagrams forged at one port, answers that are changed on their way, cables pulled, a rival manager, and time, at a
/// live seat. It asks no more than its service keeps, answers no more records than its limit, knows no more nodes than
/// it may; and when the liar is quiet, it is master, knows all nodes, and gives the honest client the right path.
pub(crate) fn seat(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let mut world = World::new();
    while let Some(what) = script.step(300) {
        world.step(what, &mut script);
        world.check();
    }
    world.end();
    script.steps()
}

fn config() -> Config {
    Config {
        // A node that does not know it changes nothing that the manager has set.
        m_key: 0x6b65_795f_6f66_736d,
        m_key_protect: sm::MKeyProtect::WRITES,
        nodes_max: NODES_MAX,
        groups_max: 3,
        members_max: 5,
        services_max: 3,
        subscriptions_max: 3,
        answer_records_max: RECORDS_MAX,
        reports_max: 8,
        window: 8,
        ..Config::default()
    }
}

/// A port's service, as the manager sees it.
struct Service {
    agents: Agents,
    ids: Vec<(Class, AgentId)>,
    sends: Vec<(Address, MadBytes)>,
    is_sm: Option<bool>,
    now: Instant,
}

impl Service {
    fn new(client: u32) -> Self {
        let config = AgentConfig {
            requests_max: REQUESTS_MAX,
            ..AgentConfig::default()
        };
        let mut agents = Agents::new(config, client << 16);
        let register = |(class, version, methods)| {
            let id = agents.register(class, version, methods);
            (class, id.expect("a service is new"))
        };
        let ids = CLASSES.into_iter().map(register).collect();
        Self {
            agents,
            ids,
            sends: Vec::new(),
            is_sm: None,
            now: Instant::ZERO,
        }
    }

    fn id(&self, class: Class) -> Option<AgentId> {
        let found = self.ids.iter().find(|(own, _)| *own == class);
        found.map(|&(_, id)| id)
    }
}

impl Port for Service {
    fn request(&mut self, to: Address, mad: &MadBytes, retry: Retry) -> Option<TransactionId> {
        let id = self.id(header_of(mad).class())?;
        self.agents.request(self.now, id, to, mad, retry).ok()
    }

    fn send(&mut self, to: Address, mad: &MadBytes) {
        self.sends.push((to, *mad));
    }

    fn respond(&mut self, to: Address, template: &MadBytes, payload: Vec<u8>) {
        assert!(
            payload.len() <= RECORDS_MAX * 176,
            "more records than the limit"
        );
        let id = self
            .id(header_of(template).class())
            .expect("a class of its own");
        // If there is no room, the client repeats its request.
        let _full = self.agents.respond(self.now, id, to, template, payload);
    }

    fn is_sm(&mut self, is_here: bool) {
        self.is_sm = Some(is_here);
    }
}

struct World {
    subnet: Subnet,
    now: Instant,
    manager: PortRef,
    honest: PortRef,
    liar: PortRef,
    seat: Seat,
    service: Service,
    client: Service,
    inbox: Vec<Delivery>,
    /// Datagrams that the liar has received, to be answered.
    heard: VecDeque<(Lid, MadBytes)>,
    /// Answers to the manager that are changed on their way.
    changes: VecDeque<(u8, u8)>,
}

impl World {
    fn new() -> Self {
        let mut topology = Topology::new();
        let switch = |topology: &mut Topology, name| topology.switch(name, 4);
        let one = switch(&mut topology, "s1").expect("a new name");
        let other = switch(&mut topology, "s2").expect("a new name");
        topology.link((one, 4), (other, 4)).expect("free ports");
        let mut adapter = |name, at| {
            let node = topology.hca(name, 1).expect("a new name");
            topology.link(at, (node, 1)).expect("free ports");
            PortRef { node, port: 1 }
        };
        let [manager, honest, liar] = [
            adapter("manager", (one, 1)),
            adapter("honest", (other, 1)),
            adapter("liar", (one, 2)),
        ];
        let mut world = Self {
            subnet: Subnet::new(&topology, SubnetConfig::default()),
            now: Instant::ZERO,
            manager,
            honest,
            liar,
            seat: Seat::new(SubnetManager::new(config(), 1)),
            service: Service::new(1),
            client: Service::new(2),
            inbox: Vec::new(),
            heard: VecDeque::new(),
            changes: VecDeque::new(),
        };
        world.manage(SubnetManager::start);
        world.pass(Duration::from_secs(1));
        assert_eq!(
            world.seat.manager().nodes(),
            NODES,
            "the subnet is up at first"
        );
        world
    }

    fn manage(&mut self, call: impl FnOnce(&mut SubnetManager, Instant)) {
        let now = self.now;
        self.service.now = now;
        self.seat
            .with(now, &mut self.service, |manager| call(manager, now));
    }

    fn step(&mut self, what: u8, script: &mut Script<'_>) {
        match what % 16 {
            0..=6 => self.forge(script),
            7 | 8 => self.reply(script),
            9 | 10 => {
                for _ in 0..script.below(8) {
                    self.changes.push_back((script.byte(), script.byte()));
                }
            }
            11 => {
                let is_in = script.once_in(2);
                self.subnet.plug(self.now, self.liar, is_in);
            }
            12 => {
                let is_here = script.once_in(2);
                self.subnet.set_sm(self.now, self.liar, is_here);
            }
            13 => self.manage(SubnetManager::sweep),
            _ => {
                let millis = script.pick(&[1, 50, 250, 2_100, 11_000]);
                return self.pass(Duration::from_millis(millis));
            }
        }
        self.settle();
    }

    /// Sends a datagram that the liar forges.
    fn forge(&mut self, script: &mut Script<'_>) {
        let mad = a_datagram(script);
        let class = header_of(&mad).class();
        let own = self.subnet.lid(self.liar);
        let manager = self.subnet.lid(self.manager);
        let slid = match script.below(8) {
            0..=4 => own,
            5 => self.subnet.lid(self.honest),
            6 => PERMISSIVE_LID,
            _ => Lid(script.u16()),
        };
        let dlid = match script.below(8) {
            0..=5 => manager,
            6 => PERMISSIVE_LID,
            _ => Lid(script.below(12) as u16),
        };
        let body = MadPacket {
            src_qpn: Qpn::new(if class == Class::SA {
                1 + script.below(2) as u32
            } else {
                0
            }),
            dst_qpn: Qpn::new(u32::from(class == Class::SA)),
            qkey: QKey(0x8001_0000),
            pkey: PKey::DEFAULT,
            mad: Box::new(mad),
        };
        let packet = Packet::new(slid, dlid, 0, Body::Mad(body));
        self.subnet.send(self.now, self.liar, packet);
    }

    /// Answers a datagram that the liar has received: a transfer's segment, a report.
    fn reply(&mut self, script: &mut Script<'_>) {
        let Some((from, mut mad)) = self.heard.pop_front() else {
            return;
        };
        let header = MadHeader::parse(header_of(&mad));
        let answer = match script.below(4) {
            0 => header,
            _ => header.response(verbs_core::mad::Status::OK),
        };
        emit_header(&answer, &mut mad);
        let mut bytes = mad.to_vec();
        script.change(&mut bytes);
        bytes.resize(MAD_LEN, 0);
        mad.copy_from_slice(&bytes);
        let own = self.subnet.lid(self.liar);
        let packet = match header.class {
            Class::SA => Packet::gmp(own, from, Box::new(mad)),
            _ => Packet::smp(own, from, Box::new(mad)),
        };
        self.subnet.send(self.now, self.liar, packet);
    }

    fn check(&self) {
        assert!(
            self.seat.manager().nodes() <= NODES_MAX,
            "more nodes than it may have"
        );
        let pending = self.service.agents.pending();
        assert!(pending <= REQUESTS_MAX, "{pending} requests");
    }

    /// Lets that much time pass.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        let mut turns = 0_u32;
        loop {
            let due = [
                self.seat.manager().poll_timeout(),
                self.service.agents.poll_timeout(),
                self.client.agents.poll_timeout(),
                self.subnet.poll_timeout(),
            ];
            let due = due.into_iter().flatten().min();
            let Some(due) = due.filter(|&due| due <= end) else {
                break;
            };
            turns += 1;
            assert!(turns < CARRIED_MAX, "time does not go on");
            self.now = self.now.max(due);
            self.subnet.handle_timeout(self.now);
            self.service.agents.handle_timeout(self.now);
            self.client.agents.handle_timeout(self.now);
            self.manage(SubnetManager::handle_timeout);
            self.settle();
        }
        self.now = end;
    }

    /// Carries datagrams until nothing moves. Time stands still.
    fn settle(&mut self) {
        let mut carried = 0;
        loop {
            let before = carried;
            carried += self.carry();
            if carried == before {
                return;
            }
            assert!(carried < CARRIED_MAX, "datagrams that beget datagrams");
        }
    }

    fn carry(&mut self) -> u32 {
        let (mut moved, now) = (0, self.now);
        self.service.now = now;
        if let Some(is_here) = self.service.is_sm.take() {
            self.subnet.set_sm(now, self.manager, is_here);
        }
        while let Some(delivery) = self.service.agents.poll_delivery() {
            moved += 1;
            self.seat.deliver(now, &mut self.service, &delivery);
        }
        while let Some(delivery) = self.client.agents.poll_delivery() {
            self.inbox.push(delivery);
        }
        for (service, at) in [
            (&mut self.service, self.manager),
            (&mut self.client, self.honest),
        ] {
            let mut sends = std::mem::take(&mut service.sends);
            while let Some(transmit) = service.agents.poll_transmit() {
                sends.push(transmit);
            }
            for (to, mad) in sends {
                moved += 1;
                self.subnet.send(now, at, packet(to, mad));
            }
        }
        while let Some((at, packet)) = self.subnet.poll_delivery() {
            moved += 1;
            self.deliver(at, packet);
        }
        moved
    }

    fn deliver(&mut self, at: PortRef, packet: Packet) {
        let Body::Mad(mut datagram) = packet.body else {
            return;
        };
        let from = Address {
            av: Av::to_lid(at.port, packet.slid),
            qpn: datagram.src_qpn,
            pkey_index: 0,
        };
        if at == self.manager {
            if header_of(&datagram.mad).method().is_response()
                && let Some((place, value)) = self.changes.pop_front()
            {
                // Behind the fields by which the answered request is found.
                let place = 24 + usize::from(place) % (MAD_LEN - 24);
                datagram.mad[place] = value;
            }
            self.service.agents.handle(self.now, from, &datagram.mad);
        } else if at == self.honest {
            self.client.agents.handle(self.now, from, &datagram.mad);
        } else if at == self.liar {
            self.heard.push_back((packet.slid, *datagram.mad));
            if self.heard.len() > 16 {
                self.heard.pop_front();
            }
        }
    }

    /// The liar is quiet, and its cable pulled: then everything is correct.
    fn end(&mut self) {
        self.changes.clear();
        self.subnet.set_sm(self.now, self.liar, false);
        // A change of the network makes the manager read all nodes again: until then it believes what it read last.
        for is_plugged in [true, false] {
            self.subnet.plug(self.now, self.liar, is_plugged);
            self.pass(Duration::from_secs(60));
        }
        assert_eq!(
            self.seat.manager().state(),
            SmState::MASTER,
            "who is alone manages"
        );
        assert_eq!(
            self.seat.manager().nodes(),
            NODES - 1,
            "nodes without the liar"
        );
        let (own, other) = (self.gid(self.honest), self.gid(self.manager));
        let lids = (self.subnet.lid(self.honest), self.subnet.lid(self.manager));
        let path = self.ask(own, other).expect("the administrator answers");
        assert_eq!((path.slid, path.dlid), lids, "{path:?}");
        self.subnet.plug(self.now, self.liar, true);
        self.pass(Duration::from_secs(60));
        assert_eq!(self.seat.manager().nodes(), NODES, "nodes with the liar");
        assert_eq!(self.service.agents.pending(), 0, "requests that do not end");
    }

    fn gid(&self, at: PortRef) -> Gid {
        let node = self.subnet.node(at.node).expect("a node of the subnet");
        let port = node.port(at.port).expect("a port of the node");
        Gid::from_parts(Gid::LINK_LOCAL_PREFIX, port.guid())
    }

    /// The honest client asks for a path.
    fn ask(&mut self, sgid: Gid, dgid: Gid) -> Option<PathRecord> {
        let mut mad = [0; MAD_LEN];
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SA,
            class_version: sa::CLASS_VERSION,
            method: Method::GET,
            attribute: AttributeId::PATH_RECORD,
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        // Components: destination and source GID, reversible, one path.
        mad[48..56].copy_from_slice(&0b1_1000_0000_1100_u64.to_be_bytes());
        mad[SA_DATA + 8..SA_DATA + 24].copy_from_slice(&dgid.0);
        mad[SA_DATA + 24..SA_DATA + 40].copy_from_slice(&sgid.0);
        mad[SA_DATA + 49] = 0x81;
        let to = Address::gsi(Av::to_lid(1, self.subnet.lid(self.manager)));
        self.client.now = self.now;
        let tid = self.client.request(to, &mad, Retry::default())?;
        self.pass(Duration::from_secs(1));
        let mut answers = self.inbox.iter().filter_map(|delivery| match delivery {
            Delivery::Response { tid: of, mad, .. } if *of == tid => Some(mad),
            _ => None,
        });
        let mad = answers.next_back()?;
        let status = MadHeader::parse(header_of(mad)).status;
        assert!(
            status.is_empty(),
            "the honest client is refused: {status:?}"
        );
        let record = mad.get(SA_DATA..).and_then(PathRecordView::new)?;
        Some(PathRecord::parse(record))
    }
}

fn packet(to: Address, mad: MadBytes) -> Packet {
    let mad = Box::new(mad);
    match (to.qpn == Qpn::new(0), to.av.dlid) {
        (true, PERMISSIVE_LID) => Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad),
        (true, dlid) => Packet::smp(Lid(0), dlid, mad),
        (false, dlid) => Packet::gmp(Lid(0), dlid, mad),
    }
}

/// A datagram of a class that the manager listens for, with fields that are often right.
fn a_datagram(script: &mut Script<'_>) -> MadBytes {
    let mut mad = [0; MAD_LEN];
    let class = script.pick(&[
        Class::SA,
        Class::SA,
        Class::SA,
        Class::SUBN_LID,
        Class::SUBN_DIRECTED,
        Class::PERF,
    ]);
    let version = if class == Class::SA {
        sa::CLASS_VERSION
    } else {
        1
    };
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class,
        class_version: if script.once_in(32) {
            script.byte()
        } else {
            version
        },
        method: Method(script.pick(&[1, 2, 0x12, 0x15, 5, 6, 0x81, 0x92, 0x95, 7, 3, 0x86])),
        attribute: AttributeId(script.pick(&[
            0x35, 0x38, 0x31, 3, 0x11, 0x12, 0x20, 0x14, 0x15, 2, 1, 0x10, 0x16, 0x17, 0x18, 0x19,
            0x1b, 0x30, 0x33, 0x36, 0x39,
        ])),
        tid: TransactionId(script.byte().into()),
        modifier: script.pick(&[0, 0, 0, 1, 2, 3, 4, 0x8000_0000]),
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    let at = if class == Class::SA { 24 } else { 32 };
    if class == Class::SUBN_DIRECTED {
        mad[6..8].copy_from_slice(&[script.below(4) as u8, script.below(4) as u8]);
    }
    if class == Class::SA {
        // Segments of transfers, mostly none.
        if script.once_in(6) {
            mad[24..28].copy_from_slice(&[1, script.below(5) as u8, script.byte(), script.byte()]);
            mad[28..36].copy_from_slice(&script.array::<8>());
        }
        mad[48..56].copy_from_slice(&match script.below(4) {
            0 => [0; 8],
            1 => [0xff; 8],
            _ => (u64::from(script.u32()) & 0x00ff_ffff).to_be_bytes(),
        });
    }
    let from = if class == Class::SA { SA_DATA } else { at };
    let len = script.below(120);
    for (to, &from) in mad[from..].iter_mut().zip(script.take(len)) {
        *to = from;
    }
    // Existing GIDs: of the broadcast group, of ports.
    if class == Class::SA && script.once_in(3) {
        let group = verbs_sm::Partition::default().broadcast();
        mad[SA_DATA..SA_DATA + 16].copy_from_slice(&group.0);
    }
    mad
}
