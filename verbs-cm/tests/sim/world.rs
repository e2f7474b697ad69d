//! Two hosts, a wire, queue pairs and users, in virtual time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use oorandom::Rand64;
use verbs_cm::machine::State;
use verbs_cm::wire::{Message, PortSpace, RejectReason, ServiceId, SidrStatus, Transport};
use verbs_cm::{
    Accept, Cm, Config, ConnId, Connect, Event, Listen, Port, QpChange, Resolve, Resolved, Route,
};
use verbs_core::addr::{Gid, Guid, Lid, Mtu, Psn, QKey, Qpn};
use verbs_core::mad::{Address, Bits, Blob, MadBytes, Time, TimeCode};
use verbs_core::{Av, Error, LinkLayer, QpState};

use crate::checker::{Events, Qp, Seen};

const SERVICE: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7174);
const NOBODY: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7175);
const DATAGRAMS: ServiceId = ServiceId::rdma_cm(PortSpace::Udp, 7174);

/// Steps after which a run counts as endless.
const STEPS_MAX: u32 = 200_000;

/// Something wrong that is put in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The wire changes the first packet number in a REP.
    WrongPsn,
    /// The wire gives the passive side's queue pair another number.
    WrongQpn,
    /// A user does not get to see an event.
    LostEvent,
    /// A user sees an event twice.
    DoubleEvent,
    /// A modify is lost: it never ends.
    LostModify,
}

impl Defect {
    pub(crate) const ALL: [Self; 5] = [
        Self::WrongPsn,
        Self::WrongQpn,
        Self::LostEvent,
        Self::DoubleEvent,
        Self::LostModify,
    ];
}

/// What has happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) established: u64,
    pub(crate) rejected: u64,
    pub(crate) unreachable: u64,
    pub(crate) failed: u64,
    pub(crate) disconnected: u64,
    /// Both ends were asked to disconnect at the same time.
    pub(crate) crossing: u64,
    pub(crate) destroyed: u64,
    /// Data told of a lost or late RTU.
    pub(crate) rtu_by_data: u64,
    /// One end only was established when nothing moved any more; the transport ended it.
    pub(crate) half_open: u64,
    pub(crate) resolved: u64,
    pub(crate) unresolved: u64,
    pub(crate) messages: u64,
    pub(crate) digest: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        let mine = [
            (&mut self.established, other.established),
            (&mut self.rejected, other.rejected),
            (&mut self.unreachable, other.unreachable),
            (&mut self.failed, other.failed),
            (&mut self.disconnected, other.disconnected),
            (&mut self.crossing, other.crossing),
            (&mut self.destroyed, other.destroyed),
            (&mut self.rtu_by_data, other.rtu_by_data),
            (&mut self.half_open, other.half_open),
            (&mut self.resolved, other.resolved),
            (&mut self.unresolved, other.unresolved),
            (&mut self.messages, other.messages),
        ];
        for (sum, count) in mine {
            *sum += count;
        }
    }
}

/// What one seed draws for the whole run. Chances are of 100.
#[derive(Clone, Copy, Debug)]
struct Options {
    loss: u64,
    double: u64,
    delay_ms_max: u64,
    qp_failure: u64,
    qp_delay_ms_max: u64,
    answer_ms_max: u64,
    max_cm_retries: u32,
    response_timeout: u8,
    connections: u64,
    backlog: u32,
    timewait_max: usize,
}

/// What happens when its time has come.
#[derive(Clone, Debug)]
enum Item {
    Arrive {
        host: usize,
        mad: Box<MadBytes>,
    },
    Modified {
        host: usize,
        change: QpChange,
        is_ok: bool,
    },
    Connect {
        host: usize,
        service: ServiceId,
    },
    Answer {
        host: usize,
        conn: ConnId,
        transport: Transport,
        psn: Psn,
    },
    Data {
        host: usize,
        qpn: Qpn,
    },
    Disconnect {
        host: usize,
        conn: ConnId,
    },
    Destroy {
        host: usize,
        conn: ConnId,
    },
    Resolve {
        host: usize,
    },
}

struct Host {
    cm: Cm,
    gid: Gid,
    qps: BTreeMap<Qpn, Qp>,
    /// Connections and their queue pairs.
    conns: BTreeMap<ConnId, Qpn>,
    events: Events,
    next_qpn: u32,
}

pub(crate) struct World {
    now: Time,
    seq: u64,
    dice: Rand64,
    options: Options,
    hosts: [Host; 2],
    agenda: BTreeMap<(Time, u64), Item>,
    /// Faults and new actions.
    is_chaos: bool,
    defect: Option<Defect>,
    outcome: Outcome,
}

fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, u8::try_from(host).unwrap() + 1))
}

fn port(host: usize) -> Port {
    Port {
        number: 1,
        ca_guid: Guid(0x1111 * (u64::try_from(host).unwrap() + 1)),
        link_layer: LinkLayer::Ethernet,
        lid: Lid(0),
        gids: vec![(3, gid(host))],
        mtu: Mtu::B4096,
        ack_delay: TimeCode::new(15),
    }
}

impl Host {
    fn new(host: usize, seed: u64, options: &Options) -> Self {
        let config = Config {
            timewait_max: options.timewait_max,
            ..Config::default()
        };
        let seed = seed * 2 + u64::try_from(host).unwrap();
        let mut cm = Cm::new(config, port(host), 7, seed);
        let listen = Listen {
            backlog: options.backlog,
            ..Listen::new(SERVICE)
        };
        cm.listen(listen).unwrap();
        cm.listen(Listen::new(DATAGRAMS)).unwrap();
        Self {
            cm,
            gid: gid(host),
            qps: BTreeMap::new(),
            conns: BTreeMap::new(),
            events: Events::default(),
            next_qpn: 0x100 * (u32::try_from(host).unwrap() + 1),
        }
    }

    /// A queue pair in INIT.
    fn qp(&mut self, transport: Transport) -> Qpn {
        self.next_qpn += 1;
        let qpn = Qpn::new(self.next_qpn);
        self.qps.insert(qpn, Qp::new(transport));
        qpn
    }
}

impl World {
    pub(crate) fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut dice = Rand64::new(seed.into());
        let mut draw = |range: std::ops::Range<u64>| dice.rand_range(range);
        let options = Options {
            loss: [0, 10, 30, 50][usize::try_from(draw(0..4)).unwrap()],
            double: draw(0..30),
            delay_ms_max: [1, 100, 3_000][usize::try_from(draw(0..3)).unwrap()],
            qp_failure: [0, 0, 10][usize::try_from(draw(0..3)).unwrap()],
            qp_delay_ms_max: [1, 500][usize::try_from(draw(0..2)).unwrap()],
            answer_ms_max: [1, 200, 10_000][usize::try_from(draw(0..3)).unwrap()],
            max_cm_retries: u32::try_from(draw(1..16)).unwrap(),
            response_timeout: u8::try_from(draw(16..21)).unwrap(),
            connections: draw(1..12),
            backlog: u32::try_from(draw(1..8)).unwrap(),
            timewait_max: usize::try_from(draw(1..20)).unwrap(),
        };
        let hosts = [0, 1].map(|host| Host::new(host, seed, &options));
        Self {
            now: Time::ZERO,
            seq: 0,
            dice,
            options,
            hosts,
            agenda: BTreeMap::new(),
            is_chaos: true,
            defect,
            outcome: Outcome::default(),
        }
    }

    /// All three phases.
    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        for _ in 0..self.options.connections {
            let (host, service) = (self.host(), self.service());
            self.later(20_000, Item::Connect { host, service });
            if self.chance(30) {
                let host = self.host();
                self.later(20_000, Item::Resolve { host });
            }
        }
        // Faults end after 30 s; whatever is under way goes on without.
        self.settle(Some(Time::from_nanos(30_000_000_000)))?;
        self.is_chaos = false;
        self.settle(None)?;
        self.end_half_open()?;
        self.settle(None)?;
        self.check_agreement()?;
        self.disconnect_all();
        self.settle(None)?;
        self.check_nothing_left()?;
        Ok(self.outcome)
    }

    /// Lets everything happen that is going to, or all until `until`.
    fn settle(&mut self, until: Option<Time>) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            self.drain()?;
            let agenda = self.agenda.first_key_value().map(|(&(time, _), _)| time);
            let timers = self.hosts.iter().map(|host| host.cm.poll_timeout());
            let Some(next) = timers.chain([agenda]).flatten().min() else {
                return Ok(());
            };
            if until.is_some_and(|until| next > until) {
                return Ok(());
            }
            self.now = self.now.max(next);
            if agenda == Some(next) {
                let Some((_, item)) = self.agenda.pop_first() else {
                    continue;
                };
                self.happen(item)?;
            } else {
                for host in &mut self.hosts {
                    host.cm.handle_timeout(self.now);
                }
            }
        }
        Err(format!("no end after {STEPS_MAX} steps"))
    }

    /// Fetches all that the tables have to say; what users do about it has more to be fetched.
    fn drain(&mut self) -> Result<(), String> {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for host in 0..2 {
                while let Some((to, mad)) = self.hosts[host].cm.poll_transmit() {
                    is_quiet = false;
                    self.transmit(to, mad)?;
                }
                while let Some(change) = self.hosts[host].cm.poll_qp_change() {
                    is_quiet = false;
                    self.modify(host, change);
                }
                while let Some(event) = self.hosts[host].cm.poll_event() {
                    is_quiet = false;
                    let is_lost = self.defect == Some(Defect::LostEvent) && self.chance(5);
                    let is_double = self.defect == Some(Defect::DoubleEvent) && self.chance(5);
                    for _ in 0..usize::from(!is_lost) + usize::from(is_double) {
                        self.event(host, &event)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn transmit(&mut self, to: Address, mad: MadBytes) -> Result<(), String> {
        let dgid = to.av.global.map(|global| global.dgid);
        let host = usize::from(dgid == Some(gid(1)));
        if dgid != Some(gid(host)) {
            return Err(format!("a message to nowhere: {to:?}"));
        }
        self.outcome.messages += 1;
        let mut mad = mad;
        let (tid, mut message) = Message::parse(&mad).map_err(|error| error.to_string())?;
        if let Message::Rep(rep) = &mut message {
            match self.defect {
                Some(Defect::WrongPsn) => rep.psn = rep.psn.add(1),
                Some(Defect::WrongQpn) => rep.qpn = Qpn::new(rep.qpn.value() + 0x1000),
                _ => {}
            }
            mad = message.emit(tid);
        }
        self.note(&[mad[17], mad[27], mad[31]]);
        let is_lost = self.is_chaos && self.chance(self.options.loss);
        let is_double = self.is_chaos && self.chance(self.options.double);
        let copies = if is_lost {
            0
        } else {
            1 + usize::from(is_double)
        };
        for _ in 0..copies {
            self.later(
                self.options.delay_ms_max,
                Item::Arrive {
                    host,
                    mad: Box::new(mad),
                },
            );
        }
        Ok(())
    }

    fn modify(&mut self, host: usize, change: QpChange) {
        if self.defect == Some(Defect::LostModify) && self.chance(10) {
            return;
        }
        let is_ok = !(self.is_chaos && self.chance(self.options.qp_failure));
        self.later(
            self.options.qp_delay_ms_max,
            Item::Modified {
                host,
                change,
                is_ok,
            },
        );
    }

    fn happen(&mut self, item: Item) -> Result<(), String> {
        let now = self.now;
        match item {
            Item::Arrive { host, mad } => {
                let from = Address::gsi(Av::to_gid(1, 3, gid(1 - host)));
                self.hosts[host].cm.handle(now, from, &mad);
            }
            Item::Modified {
                host,
                change,
                is_ok,
            } => {
                let host = &mut self.hosts[host];
                let qp = host
                    .qps
                    .get_mut(&change.qpn)
                    .ok_or("a modify of no queue pair")?;
                if is_ok {
                    qp.modify(&change)?;
                }
                let result = if is_ok {
                    Ok(())
                } else {
                    Err(Error::DeviceFailed)
                };
                host.cm.qp_modified(now, change.conn, result);
            }
            Item::Connect { host, service } => self.connect(host, service)?,
            Item::Answer {
                host,
                conn,
                transport,
                psn,
            } => self.answer(host, conn, transport, psn),
            Item::Data { host, qpn } => self.data(host, qpn),
            Item::Disconnect { host, conn } => {
                // In the wrong state it is refused, and that is all.
                let _refused = self.hosts[host].cm.disconnect(now, conn, Blob::default());
            }
            Item::Destroy { host, conn } => {
                if self.hosts[host].cm.destroy(now, conn).is_ok() {
                    self.hosts[host].events.ended(conn);
                    self.outcome.destroyed += 1;
                    self.take_away(host, conn);
                }
            }
            Item::Resolve { host } => {
                let service = if self.chance(80) { DATAGRAMS } else { NOBODY };
                let mut resolve = Resolve::new(service, self.route(host));
                resolve.response_timeout = TimeCode::new(self.options.response_timeout);
                resolve.max_cm_retries = Bits::saturating(self.options.max_cm_retries / 4);
                self.hosts[host]
                    .cm
                    .resolve(now, &resolve)
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn connect(&mut self, host: usize, service: ServiceId) -> Result<(), String> {
        let transport = if self.chance(20) {
            Transport::Uc
        } else {
            Transport::Rc
        };
        let qpn = self.hosts[host].qp(transport);
        let mut connect = Connect::new(service, qpn, self.route(host));
        connect.transport = transport;
        connect.psn = self.hosts[host].cm.draw_psn();
        connect.responder_resources = self.byte(16);
        connect.initiator_depth = self.byte(16);
        connect.response_timeout = TimeCode::new(self.options.response_timeout);
        connect.max_cm_retries = Bits::saturating(self.options.max_cm_retries);
        let conn = self.hosts[host]
            .cm
            .connect(self.now, connect)
            .map_err(|e| e.to_string())?;
        self.hosts[host].conns.insert(conn, qpn);
        self.hosts[host].events.asked(conn)?;
        if self.chance(10) {
            self.later(10_000, Item::Destroy { host, conn });
        }
        Ok(())
    }

    /// A user answers a request, somehow.
    fn answer(&mut self, host: usize, conn: ConnId, transport: Transport, psn: Psn) {
        let now = self.now;
        let choice = self.dice.rand_range(0..100);
        match choice {
            // First for more time, then again.
            0..10 => {
                let longer = TimeCode::new(self.byte(22));
                if self.hosts[host].cm.delay(now, conn, longer).is_ok() {
                    self.later(
                        3_000,
                        Item::Answer {
                            host,
                            conn,
                            transport,
                            psn,
                        },
                    );
                }
            }
            10..20 => {
                let reason = RejectReason::Consumer;
                let rejected = self.hosts[host]
                    .cm
                    .reject(now, conn, reason, b"", Blob::default());
                if rejected.is_ok() {
                    self.hosts[host].events.ended(conn);
                }
            }
            20..25 => self.later(1, Item::Destroy { host, conn }),
            _ => {
                let qpn = self.hosts[host].qp(transport);
                let accept = Accept {
                    qpn,
                    psn,
                    responder_resources: self.byte(16),
                    initiator_depth: self.byte(16),
                    ..Accept::default()
                };
                if self.hosts[host].cm.accept(now, conn, &accept).is_ok() {
                    self.hosts[host].conns.insert(conn, qpn);
                    if self.chance(5) {
                        self.later(5_000, Item::Destroy { host, conn });
                    }
                }
            }
        }
    }

    /// Data from the peer's queue pair tell a passive side that the connection is there.
    fn data(&mut self, host: usize, qpn: Qpn) {
        let found = self.hosts[host].conns.iter().find(|(_, own)| **own == qpn);
        let Some((&conn, _)) = found else { return };
        let is_waiting = matches!(
            self.hosts[host].cm.state(conn),
            Some(State::RepSent | State::RepMraRcvd)
        );
        if is_waiting
            && self.hosts[host]
                .cm
                .communication_established(self.now, conn)
                .is_ok()
        {
            self.outcome.rtu_by_data += 1;
        }
    }

    fn event(&mut self, host: usize, event: &Event) -> Result<(), String> {
        self.hosts[host].events.event(event)?;
        match *event {
            Event::ConnectRequest { conn, req, .. } => {
                let psn = self.hosts[host].cm.draw_psn();
                let answer = Item::Answer {
                    host,
                    conn,
                    transport: req.transport,
                    psn,
                };
                self.later(self.options.answer_ms_max, answer);
            }
            Event::Established { conn, .. } => self.established(host, conn)?,
            Event::Rejected { conn, .. } => {
                self.outcome.rejected += 1;
                self.take_away(host, conn);
            }
            Event::Unreachable { conn } => {
                self.outcome.unreachable += 1;
                self.take_away(host, conn);
            }
            Event::ConnectError { .. } => self.outcome.failed += 1,
            Event::Disconnected { .. } => self.outcome.disconnected += 1,
            Event::ResolveRequest { resolution, .. } => {
                let resolved = Resolved {
                    status: SidrStatus::Valid,
                    qpn: Qpn::new(0x77),
                    qkey: QKey(1),
                    private_data: Blob::default(),
                };
                let answered = self.hosts[host].cm.answer(self.now, resolution, &resolved);
                answered.map_err(|error| error.to_string())?;
            }
            Event::Resolved { status, qpn, .. } => {
                self.outcome.resolved += 1;
                if (status == SidrStatus::Valid) != (qpn == Qpn::new(0x77)) {
                    return Err(format!("{event:?}"));
                }
            }
            Event::Unresolved { .. } => self.outcome.unresolved += 1,
            _ => {}
        }
        Ok(())
    }

    fn established(&mut self, host: usize, conn: ConnId) -> Result<(), String> {
        self.outcome.established += 1;
        let qpn = self.hosts[host].conns[&conn];
        let qp = &self.hosts[host].qps[&qpn];
        if qp.state != QpState::Rts {
            return Err(format!("established with a queue pair in {}", qp.state));
        }
        let peer_qpn = qp.attr.dest_qpn.ok_or("no peer")?;
        let peer = self.hosts[1 - host]
            .qps
            .get(&peer_qpn)
            .ok_or("the peer has no such queue pair")?;
        // The passive side is told last: by then both are in RTS, unless the active one has left.
        if peer.state == QpState::Rts {
            qp.fits(qpn, qp.attr.sq_psn.unwrap_or_default(), peer, peer_qpn)?;
        }
        if self.chance(50) {
            self.later(
                1_000,
                Item::Data {
                    host: 1 - host,
                    qpn: peer_qpn,
                },
            );
        }
        if self.chance(70) {
            self.later(5_000, Item::Disconnect { host, conn });
        }
        let other = self.hosts[1 - host]
            .conns
            .iter()
            .find(|(_, own)| **own == peer_qpn);
        if let Some((&other, _)) = other.filter(|_| self.dice.rand_range(0..100) < 20) {
            // Both at the same time.
            let at = (self.now + Duration::from_millis(2_500), self.seq);
            self.agenda.insert(at, Item::Disconnect { host, conn });
            self.agenda.insert(
                (at.0, at.1 + 1),
                Item::Disconnect {
                    host: 1 - host,
                    conn: other,
                },
            );
            self.seq += 2;
            self.outcome.crossing += 1;
        }
        Ok(())
    }

    /// The user destroys the queue pair of a connection that is over for it.
    fn take_away(&mut self, host: usize, conn: ConnId) {
        self.hosts[host].conns.remove(&conn);
    }

    /// Connections whose other end is gone: the transport's retries run out, and the user disconnects.
    fn end_half_open(&mut self) -> Result<(), String> {
        for host in 0..2 {
            for (conn, peer) in self.open(host) {
                if peer.is_none() {
                    self.outcome.half_open += 1;
                    let cm = &mut self.hosts[host].cm;
                    cm.disconnect(self.now, conn, Blob::default())
                        .map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// The established connections of a host, each with its other end if that is established too.
    fn open(&self, host: usize) -> Vec<(ConnId, Option<ConnId>)> {
        let (here, there) = (&self.hosts[host], &self.hosts[1 - host]);
        let is_open = |host: &Host, conn| host.cm.state(conn) == Some(State::Established);
        let open = here.conns.iter().filter(|&(&conn, _)| is_open(here, conn));
        open.map(|(&conn, qpn)| {
            let peer_qpn = here.qps[qpn].attr.dest_qpn;
            let peer = there.conns.iter().find(|&(&other, own)| {
                Some(*own) == peer_qpn
                    && is_open(there, other)
                    && there.qps[own].attr.dest_qpn == Some(*qpn)
            });
            (conn, peer.map(|(&other, _)| other))
        })
        .collect()
    }

    /// Nothing moves: each end that is there has its other end, and nothing else is there.
    fn check_agreement(&self) -> Result<(), String> {
        for host in 0..2 {
            let open = self.open(host);
            for (conn, peer) in &open {
                if peer.is_none() {
                    return Err(format!("{conn:?} of host {host} has no other end"));
                }
                if self.hosts[host].events.seen(*conn) != Some(Seen::Established) {
                    return Err(format!(
                        "{conn:?} of host {host} is there and nobody was told"
                    ));
                }
            }
            let len = self.hosts[host].cm.len();
            if len != open.len() {
                return Err(format!(
                    "host {host} has {len} entries for {} connections",
                    open.len()
                ));
            }
        }
        Ok(())
    }

    fn disconnect_all(&mut self) {
        for host in 0..2 {
            for (conn, _) in self.open(host) {
                // Ends of the same connection cross, in an order that differs.
                let delay = self.options.delay_ms_max;
                self.later(delay, Item::Disconnect { host, conn });
            }
        }
    }

    fn check_nothing_left(&self) -> Result<(), String> {
        for (number, host) in self.hosts.iter().enumerate() {
            host.events.all_ended()?;
            if !host.cm.is_empty() {
                return Err(format!("host {number} keeps {} entries", host.cm.len()));
            }
            for qpn in host.conns.values() {
                let state = host.qps[qpn].state;
                if !matches!(state, QpState::Init | QpState::Err) && self.options.qp_failure == 0 {
                    return Err(format!("queue pair {qpn} is left in {state}"));
                }
            }
        }
        Ok(())
    }

    fn route(&self, host: usize) -> Route {
        let mut route = Route::roce(&port(host), self.hosts[host].gid, gid(1 - host)).unwrap();
        route.packet_lifetime = TimeCode::new(16);
        route
    }

    fn host(&mut self) -> usize {
        usize::try_from(self.dice.rand_range(0..2)).unwrap()
    }

    fn service(&mut self) -> ServiceId {
        if self.chance(90) { SERVICE } else { NOBODY }
    }

    fn byte(&mut self, end: u64) -> u8 {
        u8::try_from(self.dice.rand_range(0..end)).unwrap()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.dice.rand_range(0..100) < percent
    }

    /// Puts something on the agenda within so many milliseconds from now.
    fn later(&mut self, ms_max: u64, item: Item) {
        let delay = Duration::from_micros(self.dice.rand_range(0..ms_max * 1_000));
        self.seq += 1;
        self.agenda.insert((self.now + delay, self.seq), item);
    }

    /// Takes something into the digest.
    fn note(&mut self, bytes: &[u8]) {
        let time = self.now.as_nanos().to_le_bytes();
        for byte in bytes.iter().chain(&time) {
            let mixed = (self.outcome.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            self.outcome.digest = mixed.rotate_left(5);
        }
    }
}
