//! Goal: of several managers one leads, by the rules of IBTA vol. 1, 14.4; traps are heard, and no port tells
//! more than its share. Method: a manager whose port is linked to another one's; what that one says is up to
//! the test, and the time is an argument. More managers, on subnets with switches, are in the workspace's tests.

use std::time::Duration;

use verbs_core::mad::sm::{
    DATA_AT, LinkState, NodeInfo, NodeType, Notice, PortInfo, PortInfoView, TrapNumber,
    put_attribute,
};
use verbs_core::mad::{Bits, Class};
use verbs_core::{Av, Lid, Qpn};

use super::*;
use crate::config::Config;
use crate::manager::Output;

const OWN: Guid = Guid(0x20);
const SECOND: Duration = Duration::from_secs(1);

/// Two adapters, linked to each other: ours, and one with a manager that says what it is told to.
struct Pair {
    manager: SubnetManager,
    now: Time,
    /// `None`: it is not there.
    rival: Option<SmInfo>,
    /// What each port is like: ours, the other one.
    ports: [PortInfo; 2],
    /// What was asked of the other manager: method and modifier.
    asked: Vec<(Method, u32)>,
    /// What was sent without being a request.
    sent: Vec<(Address, MadBytes)>,
    /// The master's clients were told to register again.
    greeted: u32,
}

fn rival(guid: u64, priority: u32, state: SmState) -> SmInfo {
    SmInfo {
        guid: Guid(guid),
        sm_key: 1,
        activity: 0,
        priority: Bits::truncated(priority),
        state,
    }
}

impl Pair {
    fn new(priority: u32, other: Option<SmInfo>) -> Self {
        let config = Config {
            priority: Bits::truncated(priority),
            ..Config::default()
        };
        let port = PortInfo {
            state: LinkState::INIT,
            ..PortInfo::default()
        };
        let mut pair = Self {
            manager: SubnetManager::new(config, 1),
            now: Time::ZERO,
            rival: other,
            ports: [port; 2],
            asked: Vec::new(),
            sent: Vec::new(),
            greeted: 0,
        };
        pair.manager.start(pair.now);
        pair.settle();
        pair
    }

    fn state(&self) -> SmState {
        self.manager.state()
    }

    /// Answers requests until there are none.
    fn settle(&mut self) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Request { id, mad, .. } => {
                    let answer = self.answer(&mad);
                    self.manager.answered(self.now, id, answer.as_ref());
                }
                Output::Send { to, mad } => self.sent.push((to, *mad)),
                Output::Respond { .. } | Output::IsSm(_) => {}
            }
        }
    }

    fn answer(&mut self, question: &MadBytes) -> Option<MadBytes> {
        let header = MadHeader::parse(header_of(question));
        // How many links it passes.
        let far = usize::from(question[7] != 0);
        let is_set = header.method == Method::SET;
        let mut mad = *question;
        emit_header(&header.response(sm::DIRECTION), &mut mad);
        match header.attribute {
            AttributeId::NODE_INFO => {
                let guid = [OWN, Guid(0x10)][far];
                let info = NodeInfo {
                    node_type: NodeType::CA,
                    ports: 1,
                    node_guid: guid,
                    port_guid: guid,
                    pkey_capacity: 32,
                    local_port: 1,
                    ..NodeInfo::default()
                };
                let mut bytes = [0; NodeInfo::LEN];
                info.emit(&mut bytes);
                put_attribute(&mut mad, &bytes);
            }
            AttributeId::PORT_INFO => {
                let port = &mut self.ports[far];
                if is_set {
                    let wanted = PortInfoView::new(&question[DATA_AT..]).map(PortInfo::parse)?;
                    self.greeted += u32::from(wanted.client_reregister);
                    let state = match wanted.state {
                        LinkState::NO_CHANGE => port.state,
                        state => state,
                    };
                    *port = PortInfo { state, ..wanted };
                }
                port.capability_mask
                    .set(CapabilityMask::IS_SM, far == 0 || self.rival.is_some());
                let mut bytes = [0; PortInfo::LEN];
                port.emit(&mut bytes);
                put_attribute(&mut mad, &bytes);
            }
            AttributeId::SM_INFO => {
                let rival = self.rival?;
                self.asked.push((header.method, header.modifier));
                let mut bytes = [0; SmInfo::LEN];
                rival.emit(&mut bytes);
                put_attribute(&mut mad, &bytes);
            }
            _ => {}
        }
        Some(mad)
    }

    /// Lets that much time pass.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.manager.poll_timeout().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.manager.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
    }

    /// The other manager tells this one what to be. Returns the status.
    fn told(&mut self, method: Method, modifier: u32) -> Status {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SUBN_DIRECTED,
            class_version: sm::CLASS_VERSION,
            method,
            attribute: AttributeId::SM_INFO,
            modifier,
            ..MadHeader::default()
        };
        let mut mad = [0; 256];
        emit_header(&header, &mut mad);
        let from = Address {
            av: Av::to_lid(1, sm::PERMISSIVE_LID),
            qpn: Qpn::new(0),
            pkey_index: 0,
        };
        self.sent.clear();
        self.manager.handle(self.now, from, &mad);
        let answer =
            |(_, mad): &(Address, MadBytes)| header_of(mad).attribute() == AttributeId::SM_INFO;
        self.settle();
        let (_, mad) = self
            .sent
            .iter()
            .find(|sent| answer(sent))
            .expect("an answer");
        header_of(mad).status() - sm::DIRECTION
    }

    /// What this manager says of itself.
    fn says(&mut self) -> SmInfo {
        assert_eq!(self.told(Method::GET, 0), Status::OK);
        let (_, mad) = self.sent.last().expect("an answer");
        SmInfo::parse(SmInfoView::new(sm::attribute(mad)).expect("long enough"))
    }

    /// A trap of that port. Returns whether it was heard.
    fn trap(&mut self, from: u16, issuer: u16, trap: TrapNumber) -> bool {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SUBN_LID,
            class_version: sm::CLASS_VERSION,
            method: Method::TRAP,
            attribute: AttributeId::NOTICE,
            ..MadHeader::default()
        };
        let mut mad = [0; 256];
        emit_header(&header, &mut mad);
        let mut bytes = [0; Notice::LEN];
        Notice::about_gid(trap, Lid(issuer), verbs_core::Gid::default()).emit(&mut bytes);
        put_attribute(&mut mad, bytes.first_chunk::<64>().expect("80 bytes"));
        self.sent.clear();
        let from = Address {
            qpn: Qpn::new(0),
            ..Address::gsi(Av::to_lid(1, Lid(from)))
        };
        self.manager.handle(self.now, from, &mad);
        self.settle();
        let heard = self.sent.first();
        if let Some((to, mad)) = heard {
            assert_eq!(
                (to.av.dlid, header_of(mad).method()),
                (from.av.dlid, Method::TRAP_REPRESS)
            );
        }
        heard.is_some()
    }
}

/// Goal: priority decides, then the lower GUID; who is not active does not count, and a master is not put off by
/// one that is no better. Method: one rival after the other, in each state.
#[test]
fn priority_leads_then_the_lower_guid() {
    use SmState as S;
    let of = |own: u32, other| Pair::new(own, Some(other)).state();
    assert_eq!(Pair::new(0, None).state(), S::MASTER);
    for state in [S::DISCOVERING, S::STANDBY, S::MASTER] {
        assert_eq!(
            of(5, rival(0x30, 6, state)),
            S::STANDBY,
            "more priority, {state:?}"
        );
        assert_eq!(
            of(5, rival(0x10, 5, state)),
            S::STANDBY,
            "a lower GUID, {state:?}"
        );
    }
    for state in [S::DISCOVERING, S::STANDBY] {
        assert_eq!(
            of(5, rival(0x10, 4, state)),
            S::MASTER,
            "less priority, {state:?}"
        );
        assert_eq!(
            of(5, rival(0x30, 5, state)),
            S::MASTER,
            "a higher GUID, {state:?}"
        );
    }
    // There is a master: who comes later waits until that one hands over.
    assert_eq!(of(5, rival(0x30, 4, S::MASTER)), S::STANDBY);
    assert_eq!(of(5, rival(0x10, 9, S::NOT_ACTIVE)), S::MASTER);
}

/// Goal: a standby takes the master for dead after as many questions in a row as it is told, not one more or less.
/// Method: the master is away for one question less; then for all of them; one that is master no more.
#[test]
fn a_standby_counts_its_questions() {
    let master = rival(0x10, 9, SmState::MASTER);
    let mut pair = Pair::new(0, Some(master));
    let misses = pair.manager.config.poll_misses;
    assert_eq!((misses, pair.manager.config.poll_interval), (3, 2 * SECOND));
    for _ in 0..5 {
        pair.rival = None;
        pair.pass(2 * SECOND * (misses - 1));
        assert_eq!(pair.state(), SmState::STANDBY);
        pair.rival = Some(master);
        pair.pass(2 * SECOND);
    }
    let timeouts = pair.manager.counters().timeouts;
    pair.rival = None;
    pair.pass(2 * SECOND * misses - Duration::from_nanos(1));
    assert_eq!(pair.state(), SmState::STANDBY);
    assert_eq!(
        pair.manager.counters().timeouts - timeouts,
        u64::from(misses - 1)
    );
    pair.pass(Duration::from_nanos(1));
    assert_eq!(pair.state(), SmState::MASTER, "it looks around and leads");
    assert!(pair.manager.is_up());

    let mut pair = Pair::new(0, Some(master));
    pair.rival = Some(rival(0x10, 9, SmState::STANDBY));
    pair.pass(2 * SECOND * (misses - 1));
    assert_eq!(
        (pair.state(), pair.manager.poll_timeout()),
        (SmState::STANDBY, Some(pair.now + 2 * SECOND))
    );
    pair.asked.clear();
    pair.pass(2 * SECOND);
    // It looks around, and finds one that has more right to lead than it.
    assert_eq!(pair.state(), SmState::STANDBY);
    assert_eq!(pair.asked, [(Method::GET, 0), (Method::GET, 0)]);
}

/// Goal: a master hands over to one with more right, once, and is told nothing more by its sweeps; one with less
/// right stands by without being asked. Method: a rival that comes while this one leads; its state after.
#[test]
fn a_master_hands_over() {
    let mut pair = Pair::new(3, None);
    assert!(pair.manager.is_up());
    pair.rival = Some(rival(0x10, 2, SmState::STANDBY));
    pair.manager.sweep(pair.now);
    pair.settle();
    assert_eq!(pair.state(), SmState::MASTER, "it has less right");
    pair.rival = Some(rival(0x10, 4, SmState::DISCOVERING));
    pair.manager.sweep(pair.now);
    pair.settle();
    assert_eq!(pair.state(), SmState::MASTER, "that one is not ready");
    pair.asked.clear();
    pair.rival = Some(rival(0x10, 4, SmState::STANDBY));
    // The next look finds it, without anybody telling.
    pair.pass(10 * SECOND);
    assert_eq!(pair.state(), SmState::STANDBY);
    let sets: Vec<_> = pair
        .asked
        .iter()
        .filter(|(method, _)| *method == Method::SET)
        .collect();
    assert_eq!(sets, [&(Method::SET, HANDOVER)]);
    pair.rival = Some(rival(0x10, 4, SmState::MASTER));
    pair.asked.clear();
    pair.pass(20 * SECOND);
    assert_eq!(
        (pair.state(), pair.asked.len()),
        (SmState::STANDBY, 10),
        "a question every two seconds"
    );
}

/// Goal: a standby that is handed the lead takes it whatever its right, acknowledges, and tells clients that it is
/// new. Method: the old master says so; what is asked of it; ports.
#[test]
fn a_standby_takes_what_it_is_handed() {
    let mut pair = Pair::new(0, Some(rival(0x10, 9, SmState::MASTER)));
    pair.asked.clear();
    assert_eq!(pair.greeted, 0);
    // The old master has brought the ports into service.
    pair.ports
        .iter_mut()
        .for_each(|port| port.state = LinkState::ACTIVE);
    assert_eq!(pair.told(Method::SET, HANDOVER), Status::OK);
    assert_eq!(pair.state(), SmState::MASTER);
    assert!(pair.asked.contains(&(Method::SET, ACKNOWLEDGE)));
    assert_eq!(pair.greeted, 2, "both ports' clients register again");
    assert_eq!(pair.told(Method::SET, ACKNOWLEDGE), Status::OK);
    assert_eq!(pair.state(), SmState::MASTER);
}

/// Goal: a manager is what another one tells it to be only where the specification has an edge, and says what it is.
/// Method: each modifier in each state.
#[test]
fn a_manager_is_told_what_to_be() {
    let master = Some(rival(0x10, 9, SmState::MASTER));
    let mut pair = Pair::new(0, master);
    for refused in [STANDBY, 0, 6] {
        assert_eq!(
            pair.told(Method::SET, refused),
            Status::BAD_VALUE,
            "{refused}"
        );
    }
    let before = pair.says();
    assert_eq!(
        (before.state, before.guid, before.sm_key),
        (SmState::STANDBY, OWN, 1)
    );
    assert!(pair.says().activity > before.activity, "it lives");
    assert_eq!(pair.told(Method::SET, DISABLE), Status::OK);
    assert_eq!(pair.state(), SmState::NOT_ACTIVE);
    assert_eq!(pair.manager.poll_timeout(), None);
    for refused in [HANDOVER, DISABLE, DISCOVER] {
        assert_eq!(
            pair.told(Method::SET, refused),
            Status::BAD_VALUE,
            "{refused}"
        );
    }
    pair.rival = None;
    pair.pass(100 * SECOND);
    assert_eq!(pair.state(), SmState::NOT_ACTIVE, "it asks nobody");
    pair.rival = master;
    assert_eq!(pair.told(Method::SET, STANDBY), Status::OK);
    pair.pass(100 * SECOND);
    assert_eq!(pair.state(), SmState::STANDBY);
    pair.rival = Some(rival(0x10, 0, SmState::NOT_ACTIVE));
    assert_eq!(pair.told(Method::SET, DISCOVER), Status::OK);
    assert_eq!(pair.state(), SmState::MASTER);
    for refused in [DISABLE, STANDBY, DISCOVER] {
        assert_eq!(
            pair.told(Method::SET, refused),
            Status::BAD_VALUE,
            "{refused}"
        );
        assert_eq!(pair.state(), SmState::MASTER);
    }
}

/// Goal: only the master answers as the administrator. Method: the same request to a master, to one that has handed
/// over, and to a standby.
#[test]
fn a_standby_is_no_administrator() {
    let answers = |pair: &mut Pair| {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SA,
            class_version: verbs_core::mad::sa::CLASS_VERSION,
            method: Method::GET,
            attribute: AttributeId::CLASS_PORT_INFO,
            ..MadHeader::default()
        };
        let mut mad = [0; 256];
        emit_header(&header, &mut mad);
        pair.manager
            .handle(pair.now, Address::gsi(Av::to_lid(1, Lid(2))), &mad);
        pair.settle();
        (pair.sent.len(), pair.manager.counters().requests)
    };
    let mut pair = Pair::new(0, None);
    assert_eq!(answers(&mut pair), (1, 1));
    // It hands over, and knows the subnet still.
    pair.rival = Some(rival(0x10, 9, SmState::STANDBY));
    pair.manager.sweep(pair.now);
    pair.settle();
    pair.sent.clear();
    assert_eq!(
        (pair.state(), answers(&mut pair)),
        (SmState::STANDBY, (0, 1))
    );
    let mut pair = Pair::new(0, Some(rival(0x10, 9, SmState::MASTER)));
    assert_eq!(answers(&mut pair), (0, 0));
}

/// Goal: a trap about links is followed by a look at the subnet, by the master alone; any is acknowledged. Method:
/// traps of several kinds, to a master and to a standby.
#[test]
fn traps_about_links_are_followed() {
    let mut pair = Pair::new(0, None);
    let sweeps = |pair: &Pair| pair.manager.counters().sweeps;
    assert_eq!(sweeps(&pair), 1);
    assert!(pair.trap(2, 2, TrapNumber::LINK_STATE));
    assert!(pair.trap(2, 2, TrapNumber::LOCAL_CHANGES));
    assert_eq!(sweeps(&pair), 3);
    assert!(pair.trap(2, 2, TrapNumber::GROUP_CREATED));
    assert_eq!((sweeps(&pair), pair.manager.counters().traps), (3, 3));
    let mut pair = Pair::new(0, Some(rival(0x10, 9, SmState::MASTER)));
    assert!(pair.trap(2, 2, TrapNumber::LINK_STATE));
    assert_eq!((pair.state(), sweeps(&pair)), (SmState::STANDBY, 0));
}

/// Goal: a port that tells again and again is heard ten times in an interval, whatever it says and whoever it says
/// that it is, and others are heard as before; what is kept of it has a limit. Method: floods from one port
/// with invented issuers, then another port; floods from all LIDs there are.
#[test]
fn a_flood_of_traps_mutes_only_its_sender() {
    let mut pair = Pair::new(0, None);
    let heard =
        (0..20_000_u16).filter(|&issuer| pair.trap(2, issuer, TrapNumber(64 + issuer % 100)));
    assert_eq!(heard.count(), 10);
    assert!(pair.trap(3, 3, TrapNumber::LINK_STATE), "another port");
    assert!(!pair.trap(2, 3, TrapNumber::LINK_STATE));
    let interval = pair.manager.config.sweep_interval;
    pair.pass(interval - Duration::from_nanos(1));
    assert!(!pair.trap(2, 3, TrapNumber::GROUP_CREATED));
    pair.pass(Duration::from_nanos(1));
    assert!(pair.trap(2, 3, TrapNumber::GROUP_CREATED));
    let heard = (4..20_000).filter(|&from| pair.trap(from, 1, TrapNumber::GROUP_CREATED));
    assert_eq!(heard.count(), 4_095, "as many ports as are kept");
    assert!(
        pair.trap(2, 3, TrapNumber::GROUP_CREATED),
        "who was there before is heard still"
    );
}

/// Goal: the manager looks again after its interval, sooner if something failed. Method: virtual time over a subnet
/// without switches, whose whole is looked at; a node that refuses once.
#[test]
fn looks_come_at_their_intervals() {
    let mut pair = Pair::new(0, None);
    assert_eq!(pair.manager.poll_timeout(), Some(Time::ZERO + 10 * SECOND));
    pair.pass(35 * SECOND);
    assert_eq!(pair.manager.counters().sweeps, 4);
    assert_eq!(pair.ports[1].state, LinkState::ACTIVE);
    assert_eq!(pair.greeted, 2, "once, when they came up");
    assert_eq!(
        (pair.ports[0].sm_lid, pair.ports[1].sm_lid),
        (pair.ports[0].lid, pair.ports[0].lid)
    );
    assert_ne!(pair.ports[0].lid, pair.ports[1].lid);
}
