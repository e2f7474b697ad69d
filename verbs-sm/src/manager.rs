//! The machine: what it is doing, what it waits for, what goes in and out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, SmState, TrapNumber};
use verbs_core::mad::{
    Address, AttributeId, Class, MadBytes, MadHeader, Method, Retry, Status, Time,
};
use verbs_core::{Guid, Lid, Qpn};

use crate::config::Config;
use crate::fabric::{End, Fabric, Route};
use crate::lids::Lids;
use crate::sa::{Administrator, Reply};
use crate::smp::{Smp, directed};
use crate::tables::Tables;

/// Ports whose traps are listened to in a sweep's interval, and how many of each are: a node that tells
/// more is broken, and takes nothing of the others' share.
const TRAPPERS_MAX: usize = 4_096;
const TRAPS_PER_PORT_MAX: u32 = 10;

/// A subnet manager with its administrator, sans-IO.
///
/// - Commands: [`start`](Self::start), [`sweep`](Self::sweep).
/// - Inputs: [`handle`](Self::handle), [`answered`](Self::answered),
///   [`handle_timeout`](Self::handle_timeout).
/// - Outputs: after each call drain [`poll_output`](Self::poll_output), then look at
///   [`poll_timeout`](Self::poll_timeout).
///
/// It knows of no clock, queue pair or lock. No datagram panics, whoever made it, and every table has a
/// limit in [`Config`].
#[derive(Debug)]
pub struct SubnetManager {
    pub(crate) config: Config,
    /// The local port's number.
    port: u8,
    pub(crate) own_guid: Guid,
    pub(crate) state: SmState,
    pub(crate) activity: u32,
    pub(crate) phase: Phase,
    queue: VecDeque<(Smp, Purpose)>,
    in_flight: BTreeMap<u64, (Smp, Purpose)>,
    /// Reports to subscribers that wait for an answer, by request: their numbers.
    reporting: BTreeMap<u64, u64>,
    next_request: u64,
    /// What the present sweep has found.
    pub(crate) found: Fabric,
    /// What the last one has left: the administrator's view.
    pub(crate) view: Fabric,
    pub(crate) lids: Lids,
    pub(crate) tables: Tables,
    /// End ports whose clients have been told of this manager.
    pub(crate) greeted: BTreeSet<Guid>,
    pub(crate) rival: Option<Rival>,
    /// The master has handed over to us.
    pub(crate) takes_over: bool,
    /// By the port that sent them: traps of this interval.
    heard: BTreeMap<Lid, u32>,
    heard_since: Time,
    /// Something has changed since the sweep began.
    pub(crate) is_stale: bool,
    /// Something in this sweep did not go well.
    pub(crate) is_incomplete: bool,
    pub(crate) due: Option<Time>,
    pub(crate) sa: Administrator,
    outputs: VecDeque<Output>,
    pub(crate) counters: Counters,
}

/// What a manager wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a request, again when no response comes in time, and say what came of it:
    /// [`SubnetManager::answered`].
    Request {
        /// Which.
        id: u64,
        /// Where to.
        to: Address,
        /// The datagram, without its transaction id.
        mad: Box<MadBytes>,
        /// How often, and for how long.
        retry: Retry,
    },
    /// Send a datagram as it is.
    Send {
        /// Where to.
        to: Address,
        /// The datagram.
        mad: Box<MadBytes>,
    },
    /// Send an answer of any length, in segments.
    Respond {
        /// Where to.
        to: Address,
        /// Its headers.
        template: Box<MadBytes>,
        /// What the segments carry.
        payload: Vec<u8>,
    },
    /// The port is to say that a manager is here, or that there is none.
    IsSm(bool),
}

/// What a manager has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Sweeps that have looked at everything.
    pub sweeps: u64,
    /// Looks whether something has changed.
    pub light_sweeps: u64,
    /// Questions to nodes.
    pub smps: u64,
    /// Of those, the ones that nobody answered.
    pub timeouts: u64,
    /// Of those, the ones that were refused.
    pub refusals: u64,
    /// Traps of nodes.
    pub traps: u64,
    /// Requests to the administrator.
    pub requests: u64,
    /// Pairs of switches whose routes keep no order, in the last sweep.
    pub unordered_routes: u64,
    /// Nodes beyond [`Config::nodes_max`] and routes beyond what a datagram holds, in all sweeps.
    pub unreached: u64,
    /// Reports to subscribers.
    pub reports: u64,
}

/// What the manager is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing, until something is due.
    Idle,
    /// Looks at all nodes.
    Discover,
    /// Asks other managers.
    Ask,
    /// Sets LIDs and partitions.
    Configure,
    /// Writes the tables of switches.
    Tables,
    /// Brings links up.
    Arm,
    /// Brings links into service.
    Activate,
    /// Looks whether something has changed.
    Light,
    /// Writes the tables of groups that have changed.
    Groups,
    /// Asks its master whether it lives.
    Poll,
}

/// The manager that leads, or is going to.
#[derive(Clone, Debug)]
pub(crate) struct Rival {
    pub(crate) route: Route,
    /// Questions that it did not answer as a master would, in a row.
    pub(crate) misses: u32,
}

/// What a question is for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Behind that port; of the manager's own node, behind none.
    Node(Option<End>),
    Description(Guid),
    Switch(Guid),
    Port(End),
    PKeys(End),
    /// The manager at a port.
    Manager(End),
    SetPort(End),
    SetPKeys(End),
    /// Anything else that is set.
    Set,
    /// A block of a switch's tables: what is forgotten when it could not be written.
    SetTable(Guid),
    Light,
    Poll,
    Handover,
}

impl SubnetManager {
    /// A manager at a port, whose number at its node is given. It does nothing until it is
    /// [started](Self::start).
    pub fn new(config: Config, port: u8) -> Self {
        let sa = Administrator::new(&config);
        Self {
            config,
            port,
            own_guid: Guid(0),
            state: SmState::DISCOVERING,
            activity: 0,
            phase: Phase::Idle,
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            reporting: BTreeMap::new(),
            next_request: 0,
            found: Fabric::default(),
            view: Fabric::default(),
            lids: Lids::default(),
            tables: Tables::default(),
            greeted: BTreeSet::new(),
            rival: None,
            takes_over: false,
            heard: BTreeMap::new(),
            heard_since: Time::ZERO,
            is_stale: false,
            is_incomplete: false,
            due: None,
            sa,
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Begins: looks at the subnet, and manages it unless somebody else does.
    pub fn start(&mut self, now: Time) {
        self.outputs.push_back(Output::IsSm(true));
        self.sweep(now);
    }

    /// Looks at everything again, at once or as soon as what it is at is done.
    pub fn sweep(&mut self, now: Time) {
        self.is_stale = true;
        self.advance(now);
    }

    /// Takes a datagram that asks for something, or tells something: of a port's subnet management or
    /// administration.
    pub fn handle(&mut self, now: Time, from: Address, mad: &MadBytes) {
        let header = MadHeader::parse(header_of(mad));
        match (header.class, header.method, header.attribute) {
            (Class::SA, ..) => self.handle_request(now, from, mad),
            (Class::SUBN_LID, Method::TRAP, AttributeId::NOTICE) => {
                self.handle_trap(now, from, &header, mad);
            }
            (
                Class::SUBN_LID | Class::SUBN_DIRECTED,
                Method::GET | Method::SET,
                AttributeId::SM_INFO,
            ) => {
                self.handle_sm_info(now, from, mad);
            }
            _ => {}
        }
        self.advance(now);
    }

    /// What has come of a request; `None`: nobody answered.
    pub fn answered(&mut self, now: Time, id: u64, answer: Option<&MadBytes>) {
        if let Some(number) = self.reporting.remove(&id) {
            self.sa.reported(number, answer.is_some());
            return self.advance(now);
        }
        let Some((smp, purpose)) = self.in_flight.remove(&id) else {
            return;
        };
        let good = answer.filter(|mad| {
            let status = header_of(mad).status() - sm::DIRECTION;
            status == Status::OK && header_of(mad).attribute() == smp.attribute
        });
        match (answer, good) {
            (None, _) => self.counters.timeouts += 1,
            (Some(_), None) => self.counters.refusals += 1,
            (Some(_), Some(_)) => {}
        }
        match good {
            Some(mad) => self.learn(&smp, &purpose, sm::attribute(mad)),
            None => self.miss(&purpose),
        }
        self.advance(now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sa.expire(now);
        self.advance(now);
    }

    /// What is to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None` for no time.
    pub fn poll_timeout(&self) -> Option<Time> {
        let own = self.due.filter(|_| self.phase == Phase::Idle);
        own.into_iter().chain(self.sa.poll_timeout()).min()
    }

    /// What it is: master, standby, looking around.
    pub fn state(&self) -> SmState {
        self.state
    }

    /// Whether it is the master and all that it has found is in service.
    pub fn is_up(&self) -> bool {
        self.state == SmState::MASTER
            && self.counters.sweeps > 0
            && self.phase == Phase::Idle
            && !self.is_incomplete
            && !self.is_stale
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Nodes that the last sweep has found.
    pub fn nodes(&self) -> usize {
        self.view.nodes.len()
    }

    /// Puts a question into the queue.
    pub(crate) fn ask(&mut self, smp: Smp, purpose: Purpose) {
        self.queue.push_back((smp, purpose));
    }

    pub(crate) fn get(
        &mut self,
        route: &Route,
        attribute: AttributeId,
        modifier: u32,
        purpose: Purpose,
    ) {
        self.ask(Smp::get(route, attribute, modifier), purpose);
    }

    /// Sends what the window has room for, and goes on when all is answered.
    fn advance(&mut self, now: Time) {
        loop {
            self.flush();
            self.send_reports();
            let is_waiting = !self.in_flight.is_empty() || !self.queue.is_empty();
            if is_waiting || !self.step(now) {
                return;
            }
        }
    }

    fn flush(&mut self) {
        while self.in_flight.len() < self.config.window
            && let Some((smp, purpose)) = self.queue.pop_front()
        {
            let Some(mad) = smp.mad(self.config.m_key) else {
                self.counters.unreached += 1;
                continue;
            };
            self.counters.smps += 1;
            let id = self.request(directed(self.port), Box::new(mad));
            self.in_flight.insert(id, (smp, purpose));
        }
    }

    fn request(&mut self, to: Address, mad: Box<MadBytes>) -> u64 {
        let id = self.next_request;
        self.next_request += 1;
        let retry = self.config.retry;
        self.outputs
            .push_back(Output::Request { id, to, mad, retry });
        id
    }

    pub(crate) fn send(&mut self, to: Address, mad: MadBytes) {
        let mad = Box::new(mad);
        self.outputs.push_back(Output::Send { to, mad });
    }

    /// A node tells that something has changed: it is told that this was heard, by whoever it told, and
    /// looked at by the master.
    fn handle_trap(&mut self, now: Time, from: Address, header: &MadHeader, mad: &MadBytes) {
        self.counters.traps += 1;
        let notice = sm::NoticeView::new(mad.get(sm::DATA_AT..).unwrap_or_default());
        let Some(trap) = notice.map(|notice| notice.trap()) else {
            return;
        };
        if !self.hears(now, from.av.dlid) {
            return;
        }
        let mut repress = *mad;
        let header = MadHeader {
            method: Method::TRAP_REPRESS,
            ..*header
        };
        emit_header(&header, &mut repress);
        let m_key = self.config.m_key;
        let smp = sm::SmpHeader::of(&repress);
        sm::SmpHeader { m_key, ..smp }.put(&mut repress);
        let to = Address {
            qpn: Qpn::new(0),
            ..from
        };
        self.send(to, repress);
        let matters = matches!(trap, TrapNumber::LINK_STATE | TrapNumber::LOCAL_CHANGES);
        if matters && self.state == SmState::MASTER {
            self.sweep(now);
        }
    }

    /// Whether a port's trap is listened to: who tells again and again is heard some times, until the
    /// next interval begins.
    fn hears(&mut self, now: Time, from: Lid) -> bool {
        if now.since(self.heard_since) >= self.config.sweep_interval {
            self.heard_since = now;
            self.heard.clear();
        }
        if !self.heard.contains_key(&from) && self.heard.len() >= TRAPPERS_MAX {
            return false;
        }
        let times = self.heard.entry(from).or_default();
        *times = times.saturating_add(1);
        *times <= TRAPS_PER_PORT_MAX
    }

    /// A request to the administrator. As long as it is not in charge, whoever is shall answer.
    fn handle_request(&mut self, now: Time, from: Address, mad: &MadBytes) {
        if self.state != SmState::MASTER || self.view.nodes.is_empty() {
            return;
        }
        self.counters.requests += 1;
        match self.sa.handle(now, &self.view, &self.tables, &from, mad) {
            Reply::None => {}
            Reply::One(mad) => self.send(from, *mad),
            Reply::Table { template, payload } => self.outputs.push_back(Output::Respond {
                to: from,
                template,
                payload,
            }),
        }
    }

    fn send_reports(&mut self) {
        while let Some((number, to, mad)) = self.sa.poll_report() {
            self.counters.reports += 1;
            let id = self.request(to, mad);
            self.reporting.insert(id, number);
        }
    }
}
