//! The machine: its phases, what it waits for, its inputs and outputs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, SmState, TrapNumber};
use verbs_core::mad::{Address, AttributeId, Class, MadBytes, MadHeader, Method, Retry, Status};
use verbs_core::time::Instant;
use verbs_core::{Guid, Lid, Qpn};

use crate::config::Config;
use crate::elect;
use crate::fabric::{End, Fabric, Route};
use crate::lids::Lids;
use crate::sa::{Administrator, Reply};
use crate::smp::{Smp, directed};
use crate::tables::Tables;

/// The number of ports whose traps are handled in a sweep's interval, and the traps of each: a node that sends
/// more is broken, and takes nothing from the others' share.
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
/// It has no clock, queue pair or lock. No datagram makes it panic, and every table has a limit in [`Config`].
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
    /// Reports to subscribers that wait for an answer: request id to report number.
    reporting: BTreeMap<u64, u64>,
    next_request: u64,
    /// What the current sweep has found.
    pub(crate) found: Fabric,
    /// The result of the last sweep: the administrator's view.
    pub(crate) view: Fabric,
    pub(crate) lids: Lids,
    pub(crate) tables: Tables,
    /// End ports whose clients have been notified of this manager.
    pub(crate) greeted: BTreeSet<Guid>,
    pub(crate) rival: Option<Rival>,
    /// The master has handed over to this manager.
    pub(crate) takes_over: bool,
    /// Traps in this interval, by the port that sent them.
    heard: BTreeMap<Lid, u32>,
    heard_since: Instant,
    /// Something has changed since the sweep began.
    pub(crate) is_stale: bool,
    /// Something in this sweep failed.
    pub(crate) is_incomplete: bool,
    pub(crate) due: Option<Instant>,
    pub(crate) sa: Administrator,
    outputs: VecDeque<Output>,
    pub(crate) counters: Counters,
}

/// An action that a manager requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a request, repeat it when no response arrives in time, and report the result by
    /// [`SubnetManager::answered`].
    Request {
        /// The request's id.
        id: u64,
        /// Its destination.
        to: Address,
        /// The datagram, without its transaction id.
        mad: Box<MadBytes>,
        /// How often to repeat it, and how long to wait.
        retry: Retry,
    },
    /// Send a datagram as it is.
    Send {
        /// Its destination.
        to: Address,
        /// The datagram.
        mad: Box<MadBytes>,
    },
    /// Send an answer of any length, in segments.
    Respond {
        /// Its destination.
        to: Address,
        /// Its headers.
        template: Box<MadBytes>,
        /// The data of the segments.
        payload: Vec<u8>,
    },
    /// Set whether the port announces a manager.
    IsSm(bool),
}

/// The counters of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Complete sweeps.
    pub sweeps: u64,
    /// Checks for changes.
    pub light_sweeps: u64,
    /// Requests to nodes.
    pub smps: u64,
    /// Of those, the unanswered ones.
    pub timeouts: u64,
    /// Of those, the refused ones.
    pub refusals: u64,
    /// Traps of nodes.
    pub traps: u64,
    /// Requests to the administrator.
    pub requests: u64,
    /// Pairs of switches whose routes follow no order, in the last sweep.
    pub unordered_routes: u64,
    /// Nodes beyond [`Config::nodes_max`] and routes beyond what a datagram holds, in all sweeps.
    pub unreached: u64,
    /// Reports to subscribers.
    pub reports: u64,
}

/// The manager's current phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing, until something is due.
    Idle,
    /// Queries all nodes.
    Discover,
    /// Polls other managers.
    Ask,
    /// Sets LIDs and partitions.
    Configure,
    /// Writes the tables of switches.
    Tables,
    /// Brings links up.
    Arm,
    /// Brings links into service.
    Activate,
    /// Checks for changes.
    Light,
    /// Writes the tables of groups that have changed.
    Groups,
    /// Polls its master.
    Poll,
}

/// The manager that is master, or will be.
#[derive(Clone, Debug)]
pub(crate) struct Rival {
    pub(crate) route: Route,
    /// Consecutive polls that it did not answer as a master.
    pub(crate) misses: u32,
}

/// The purpose of a request.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// A node behind that port; the manager's own node, if `None`.
    Node(Option<End>),
    Description(Guid),
    Switch(Guid),
    Port(End),
    PKeys(End),
    /// The manager at a port.
    Manager(End),
    SetPort(End),
    SetPKeys(End),
    /// Any other Set.
    Set,
    /// A block of a switch's tables, which is forgotten if it could not be written.
    SetTable(Guid),
    Light,
    Poll,
    Handover,
}

impl SubnetManager {
    /// Creates a manager at a port, by its number at its node. It does nothing until it is
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
            heard_since: Instant::ZERO,
            is_stale: false,
            is_incomplete: false,
            due: None,
            sa,
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Starts: queries the subnet, and manages it unless another manager does.
    pub fn start(&mut self, now: Instant) {
        self.outputs.push_back(Output::IsSm(true));
        self.sweep(now);
    }

    /// Starts a full sweep, at once or when the current work is done.
    pub fn sweep(&mut self, now: Instant) {
        self.is_stale = true;
        self.advance(now);
    }

    /// Handles a datagram that is a request or a notice, of a port's subnet management or administration.
    pub fn handle(&mut self, now: Instant, from: Address, mad: &MadBytes) {
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
                elect::handle_sm_info(self, now, from, mad);
            }
            _ => {}
        }
        self.advance(now);
    }

    /// The result of a request; `None` if it was not answered.
    pub fn answered(&mut self, now: Instant, id: u64, answer: Option<&MadBytes>) {
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

    /// Does the work that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sa.expire(now);
        self.advance(now);
    }

    /// The next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let own = self.due.filter(|_| self.phase == Phase::Idle);
        own.into_iter().chain(self.sa.poll_timeout()).min()
    }

    /// Its state: master, standby, discovering.
    pub fn state(&self) -> SmState {
        self.state
    }

    /// Whether it is the master and everything that it has found is in service.
    pub fn is_up(&self) -> bool {
        self.state == SmState::MASTER
            && self.counters.sweeps > 0
            && self.phase == Phase::Idle
            && !self.is_incomplete
            && !self.is_stale
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Nodes that the last sweep has found.
    pub fn nodes(&self) -> usize {
        self.view.nodes.len()
    }

    /// Queues a request.
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

    /// Sends as many requests as the window allows, and moves to the next phase when all are answered.
    fn advance(&mut self, now: Instant) {
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

    /// A node reports a change: any manager acknowledges it, and the master checks the subnet.
    fn handle_trap(&mut self, now: Instant, from: Address, header: &MadHeader, mad: &MadBytes) {
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

    /// Whether a port's trap is handled: of a port that keeps sending, a limited number is handled until the next
    /// interval begins.
    fn hears(&mut self, now: Instant, from: Lid) -> bool {
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

    /// A request to the administrator. While this manager is not in charge, the master must answer.
    fn handle_request(&mut self, now: Instant, from: Address, mad: &MadBytes) {
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
