//! Goal: one of several managers becomes master, by the rules of IBTA vol. 1, 14.4; traps are handled, and no
//! port may send more than its share of them. Method: a manager whose port is linked to another manager's; the
//! test writes that one's answers, and the time is an argument. More managers, on subnets with switches, are in
//! the workspace's tests.

use std::collections::VecDeque;
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

/// Two adapters, linked to each other: ours, and one whose manager the test controls.
pub(crate) struct Pair {
    pub(crate) manager: SubnetManager,
    now: Instant,
    /// `None`: it does not exist.
    rival: Option<SmInfo>,
    /// The information of each port: ours, the other one's.
    pub(crate) ports: [PortInfo; 2],
    /// Requests to the other manager: method and modifier.
    asked: Vec<(Method, u32)>,
    /// Datagrams sent that are not requests.
    sent: Vec<(Address, MadBytes)>,
    /// The master's clients were asked to register again.
    pub(crate) greeted: u32,
    /// The other node does not answer.
    pub(crate) is_deaf: bool,
    /// Requests that were in flight at the same time, at most.
    pub(crate) in_flight_max: usize,
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
        Self::with(config, other, |_| {})
    }

    /// `change` sees the ports before the manager starts.
    pub(crate) fn with(
        config: Config,
        other: Option<SmInfo>,
        change: impl FnOnce(&mut [PortInfo; 2]),
    ) -> Self {
        let port = PortInfo {
            state: LinkState::INIT,
            ..PortInfo::default()
        };
        let mut pair = Self {
            manager: SubnetManager::new(config, 1),
            now: Instant::ZERO,
            rival: other,
            ports: [port; 2],
            asked: Vec::new(),
            sent: Vec::new(),
            greeted: 0,
            is_deaf: false,
            in_flight_max: 0,
        };
        change(&mut pair.ports);
        pair.manager.start(pair.now);
        pair.settle();
        pair
    }

    fn state(&self) -> SmState {
        self.manager.state()
    }

    /// Answers requests until there are none.
    fn settle(&mut self) {
        let mut in_flight = VecDeque::new();
        loop {
            while let Some(output) = self.manager.poll_output() {
                match output {
                    Output::Request { id, mad, .. } => in_flight.push_back((id, mad)),
                    Output::Send { to, mad } => self.sent.push((to, *mad)),
                    Output::Respond { .. } | Output::IsSm(_) => {}
                }
            }
            self.in_flight_max = self.in_flight_max.max(in_flight.len());
            let Some((id, mad)) = in_flight.pop_front() else {
                return;
            };
            let answer = self.answer(&mad);
            self.manager.answered(self.now, id, answer.as_ref());
        }
    }

    fn answer(&mut self, question: &MadBytes) -> Option<MadBytes> {
        let header = MadHeader::parse(header_of(question));
        // The number of links that it passes.
        let far = usize::from(question[7] != 0);
        if far == 1 && self.is_deaf {
            return None;
        }
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

    /// Advances the time.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.manager.poll_timeout().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.manager.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
    }

    /// The other manager sets this one's state. Returns the status.
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

    /// This manager's information.
    fn says(&mut self) -> SmInfo {
        assert_eq!(self.told(Method::GET, 0), Status::OK);
        let (_, mad) = self.sent.last().expect("an answer");
        SmInfo::parse(SmInfoView::new(sm::attribute(mad)).expect("long enough"))
    }

    /// A trap of that port. Returns whether it was handled.
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

/// Goal: priority decides, then the lower GUID; a manager that is not active does not count, and a master is not
/// displaced by one that is no better. Method: one rival after the other, in each state.
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
    // There is a master: a later manager waits until that one hands over.
    assert_eq!(of(5, rival(0x30, 4, S::MASTER)), S::STANDBY);
    assert_eq!(of(5, rival(0x10, 9, S::NOT_ACTIVE)), S::MASTER);
}

/// Goal: a standby considers the master dead after the configured number of unanswered polls in a row, no more
/// and no fewer. Method: the master is away for one poll less, then for all of them; then it is no longer master.
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
    // It starts discovery, and finds one that outranks it.
    assert_eq!(pair.state(), SmState::STANDBY);
    assert_eq!(pair.asked, [(Method::GET, 0), (Method::GET, 0)]);
}

/// Goal: a master hands over to a manager that outranks it, once, and its later sweeps do not repeat that; a
/// lower-ranked one stands by unasked. Method: a rival that appears while this one is master; its state
/// afterwards.
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
    // The next check finds it without a trap.
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

/// Goal: a standby that is handed mastership takes it whatever its rank, acknowledges, and notifies clients that
/// it is new. Method: the old master hands over; the requests to it; the ports.
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

/// Goal: another manager can set this one's state only where the specification has a transition, and the answer
/// reports the state. Method: each modifier in each state.
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

/// Goal: only the master answers as the administrator. Method: the same request to a master, to one that has
/// handed over, and to a standby.
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
    // It hands over, but still knows the subnet.
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

/// Goal: after a trap about links the master alone checks the subnet; every trap is acknowledged. Method: traps
/// of several kinds, to a master and to a standby.
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

/// Goal: of a port that repeats traps, ten are handled per interval, whatever the traps contain and whatever
/// issuer they name, and traps of other ports are handled as before; the memory for them is bounded. Method:
/// floods from one port with invented issuers, then another port; floods from all possible LIDs.
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

/// Goal: the manager checks again after its interval, sooner if something failed. Method: virtual time over a
/// subnet without switches, all of which is swept; a node that refuses once.
#[test]
fn looks_come_at_their_intervals() {
    let mut pair = Pair::new(0, None);
    assert_eq!(
        pair.manager.poll_timeout(),
        Some(Instant::ZERO + 10 * SECOND)
    );
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
