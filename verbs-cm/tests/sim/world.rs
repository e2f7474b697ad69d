//! Two hosts, a wire, queue pairs and users, in virtual time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use oorandom::Rand64;
use verbs_cm::machine::State;
use verbs_cm::wire::{Message, PortSpace, ServiceId, Transport};
use verbs_cm::{Cm, Config, ConnId, Listen, Port, QpChange, Resolve, Route};
use verbs_core::addr::{Gid, Guid, Lid, Mtu, Psn, Qpn};
use verbs_core::mad::{Address, Bits, Blob, MadBytes, TimeCode};
use verbs_core::time::Instant;
use verbs_core::{Av, Error, LinkLayer, QpState};

use crate::checker::{Events, Qp, Seen};
use crate::options::{Defect, Options, Outcome};

const SERVICE: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7174);
const NOBODY: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7175);
const DATAGRAMS: ServiceId = ServiceId::rdma_cm(PortSpace::Udp, 7174);

/// Steps after which a run counts as endless.
const STEPS_MAX: u32 = 200_000;

/// What happens when its time has come.
#[derive(Clone, Debug)]
pub(crate) enum Item {
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
    /// A host loses all that it knows, and starts again with the same queue pair numbers.
    Crash {
        host: usize,
    },
}

impl Item {
    fn survives_crash_of(&self, crashed: usize) -> bool {
        match *self {
            Self::Arrive { .. } | Self::Connect { .. } | Self::Resolve { .. } => true,
            Self::Modified { host, .. }
            | Self::Answer { host, .. }
            | Self::Data { host, .. }
            | Self::Disconnect { host, .. }
            | Self::Destroy { host, .. }
            | Self::Crash { host } => host != crashed,
        }
    }
}

pub(crate) struct Host {
    pub(crate) cm: Cm,
    pub(crate) gid: Gid,
    pub(crate) qps: BTreeMap<Qpn, Qp>,
    /// Connections and their queue pairs.
    pub(crate) conns: BTreeMap<ConnId, Qpn>,
    pub(crate) events: Events,
    next_qpn: u32,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) seq: u64,
    pub(crate) dice: Rand64,
    pub(crate) options: Options,
    pub(crate) hosts: [Host; 2],
    pub(crate) agenda: BTreeMap<(Instant, u64), Item>,
    /// Faults and new actions.
    pub(crate) is_chaos: bool,
    pub(crate) defect: Option<Defect>,
    pub(crate) outcome: Outcome,
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
        migrates: false,
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
    pub(crate) fn qp(&mut self, transport: Transport) -> Qpn {
        self.next_qpn += 1;
        let qpn = Qpn::new(self.next_qpn);
        self.qps.insert(qpn, Qp::new(transport));
        qpn
    }
}

impl World {
    pub(crate) fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut dice = Rand64::new(seed.into());
        let options = Options::draw(&mut dice);
        let hosts = [0, 1].map(|host| Host::new(host, seed, &options));
        Self {
            now: Instant::ZERO,
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
            if self.chance(self.options.crash) {
                let host = self.host();
                self.later(20_000, Item::Crash { host });
            }
        }
        // Faults end after 30 s; whatever is under way goes on without.
        self.settle(Some(Instant::from_nanos(30_000_000_000)))?;
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
    fn settle(&mut self, until: Option<Instant>) -> Result<(), String> {
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
            Item::Crash { host } => self.crash(host),
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

    /// A host starts again; only what is on the wire stays.
    fn crash(&mut self, host: usize) {
        let seed = self.dice.rand_u64();
        self.hosts[host] = Host::new(host, seed >> 32, &self.options);
        self.agenda.retain(|_, item| item.survives_crash_of(host));
        self.outcome.crashed += 1;
    }

    /// The user destroys the queue pair of a connection that is over for it.
    pub(crate) fn take_away(&mut self, host: usize, conn: ConnId) {
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

    pub(crate) fn route(&self, host: usize) -> Route {
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

    pub(crate) fn byte(&mut self, end: u64) -> u8 {
        u8::try_from(self.dice.rand_range(0..end)).unwrap()
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.dice.rand_range(0..100) < percent
    }

    /// Puts something on the agenda within so many milliseconds from now.
    pub(crate) fn later(&mut self, ms_max: u64, item: Item) {
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
