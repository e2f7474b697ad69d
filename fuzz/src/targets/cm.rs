//! A table of connections: forged, repeated and changed datagrams, and users that make any call, alongside an honest
//! peer.

use std::net::Ipv4Addr;
use std::time::Duration;

use verbs_cm::machine::State;
use verbs_cm::wire::{PortSpace, RejectReason, ServiceId};
use verbs_cm::{
    Accept, Cm, Config, ConnId, Connect, Event, Listen, Port, Resolve, ResolveId, Route,
};
use verbs_core::mad::{Address, Blob, MadBytes, TimeCode};
use verbs_core::time::Instant;
use verbs_core::{Av, Error, Gid, Guid, Lid, LinkLayer, Mtu, Psn, Qpn};

use crate::Script;

const OPEN: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7174);
const HONEST: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7175);

/// Offset of a CM message in its datagram, and of the ids in it.
const AT: usize = 24;

/// The most rounds until timers have expired, and until two tables have nothing to send to each other.
const ROUNDS_MAX: u32 = 10_000;

/// Datagrams and users' calls in any order at a table. It keeps within its limits, and has something to send for no
/// longer than its retries. When everything has been destroyed and time has passed, it is empty and connects the honest
/// peer.
pub(crate) fn table(bytes: &[u8]) -> u32 {
    // Alternate paths are agreed on where there are LIDs.
    let links = [LinkLayer::Ethernet, LinkLayer::InfiniBand];
    links.map(|link_layer| run(bytes, link_layer)).iter().sum()
}

fn run(bytes: &[u8], link_layer: LinkLayer) -> u32 {
    let mut script = Script::new(bytes);
    let mut world = World::new(link_layer);
    while let Some(what) = script.step(400) {
        world.step(what, &mut script);
        world.work(&mut script);
    }
    world.end();
    script.steps()
}

fn config() -> Config {
    Config {
        connections_max: 12,
        timewait_max: 6,
        resolutions_max: 4,
        transmits_max: 16,
        ..Config::default()
    }
}

fn gid(host: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 77, 0, host))
}

fn port(link_layer: LinkLayer, host: u8) -> Port {
    Port {
        number: 1,
        ca_guid: Guid(0x5054_00ff_fe77_0000 + u64::from(host)),
        link_layer,
        lid: Lid(match link_layer {
            LinkLayer::InfiniBand => 16 * u16::from(host),
            _ => 0,
        }),
        gids: vec![(1, gid(host))],
        mtu: Mtu::B1024,
        ack_delay: TimeCode::new(15),
        migrates: true,
    }
}

fn from(host: u8) -> Address {
    Address::gsi(Av::to_gid(1, 1, gid(host)))
}

struct World {
    link_layer: LinkLayer,
    now: Instant,
    /// The table of host 1, and the honest peer's, of host 2.
    cm: Cm,
    peer: Cm,
    conns: Vec<ConnId>,
    /// Questions that wait for the user's answer.
    questions: Vec<ResolveId>,
    /// The honest peer's alternate path is loaded.
    loaded: bool,
    /// Datagrams that have been on the wire, to be repeated and changed.
    seen: Vec<MadBytes>,
}

impl World {
    fn new(link_layer: LinkLayer) -> Self {
        let mut cm = Cm::new(config(), port(link_layer, 1), 2, 40);
        for service in [OPEN, HONEST] {
            cm.listen(Listen::new(service)).expect("a free service");
        }
        let mut world = Self {
            link_layer,
            now: Instant::from_nanos(1),
            cm,
            peer: Cm::new(Config::default(), port(link_layer, 2), 2, 41),
            conns: Vec::new(),
            questions: Vec::new(),
            loaded: false,
            seen: Vec::new(),
        };
        // A whole conversation, as initial material.
        world.converse(OPEN);
        world.converse(HONEST);
        world
    }

    /// The way from one host to another.
    fn route(&self, from: u8, to: u8) -> Route {
        let route = Route::roce(&port(self.link_layer, from), gid(from), gid(to));
        let route = route.expect("its own GID");
        match self.link_layer {
            LinkLayer::InfiniBand => route.between(0, Lid(16 * u16::from(to))),
            _ => route,
        }
    }

    fn step(&mut self, what: u8, script: &mut Script<'_>) {
        match what % 16 {
            0..=7 => self.forge(script),
            8 => self.noise(script),
            9 => {
                let route = self.route(1, 2 + script.below(2) as u8);
                let qpn = Qpn::new(0x50 + script.below(8) as u32);
                if script.once_in(4) {
                    // There may be no room.
                    let _full = self.cm.resolve(self.now, &Resolve::new(OPEN, route));
                } else if let Ok(conn) = self.cm.connect(self.now, Connect::new(OPEN, qpn, route)) {
                    self.conns.push(conn);
                }
            }
            10..=12 => self.use_conn(script),
            _ => {
                let micros = script.pick(&[10, 1_000, 100_000, 5_000_000, 200_000_000]);
                self.now += Duration::from_micros(micros);
                self.cm.handle_timeout(self.now);
            }
        }
    }

    /// A datagram that was seen, with its ids exchanged, another kind, or some bytes changed.
    fn forge(&mut self, script: &mut Script<'_>) {
        let Some(&seen) = self.seen.get(script.below(self.seen.len().max(1))) else {
            return;
        };
        let mut mad = seen;
        let how = script.byte();
        if how & 1 != 0 {
            let (local, remote) = (AT..AT + 4, AT + 4..AT + 8);
            let old = mad;
            mad[local.clone()].copy_from_slice(&old[remote.clone()]);
            mad[remote].copy_from_slice(&old[local]);
        }
        if how & 2 != 0 {
            mad[17] = 0x10 + script.below(13) as u8;
        }
        if how & 4 != 0 {
            let id = [0, 0, 0, script.byte()];
            mad[AT..AT + 4].copy_from_slice(&id);
            mad[8..16].copy_from_slice(&script.array::<8>());
        }
        if how & 8 != 0 && mad[17] == 0x10 {
            // Another queue pair of another host asks.
            mad[AT + 32 + 3] = script.byte();
            mad[AT + 16 + 7] = script.byte();
        }
        for _ in 0..script.below(4) {
            mad[AT + script.below(232)] = script.byte();
        }
        let host = 2 + script.below(3) as u8;
        self.cm.handle(self.now, from(host), &mad);
    }

    fn noise(&mut self, script: &mut Script<'_>) {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10 + script.below(13) as u8;
        let len = script.below(200);
        for (to, from) in mad[AT..].iter_mut().zip(script.take(len)) {
            *to = *from;
        }
        if script.once_in(4) {
            mad[script.below(24)] = script.byte();
        }
        self.cm.handle(self.now, from(3), &mad);
    }

    /// A user's call for a connection, whatever its state.
    fn use_conn(&mut self, script: &mut Script<'_>) {
        let Some(&conn) = self.conns.get(script.below(self.conns.len().max(1))) else {
            return;
        };
        let other = self.route(1, 2);
        let (cm, now) = (&mut self.cm, self.now);
        let accept = Accept {
            qpn: Qpn::new(0x90 + script.below(8) as u32),
            psn: Psn::new(script.u32()),
            ..Accept::default()
        };
        let failed = script.once_in(6);
        let done = match script.below(10) {
            9 => {
                let path = Route::between(other, script.byte() & 3, Lid(script.byte().into()));
                cm.load_path(now, conn, &path)
            }
            0 | 1 => cm.accept(now, conn, &accept),
            2 => cm.reject(
                now,
                conn,
                RejectReason::Other(28),
                &[1; 72],
                Blob::default(),
            ),
            3 => cm.delay(now, conn, TimeCode::new(script.byte() & 31)),
            4 | 5 => cm.disconnect(now, conn, Blob::default()),
            6 => cm.destroy(now, conn),
            7 => cm.communication_established(now, conn),
            _ => {
                let result = if failed { Err(Error::NoMemory) } else { Ok(()) };
                cm.qp_modified(now, conn, result);
                Ok(())
            }
        };
        // Most are refused in most states.
        drop(done.map_err(|error| error.to_string()));
    }

    /// The table's requests to its user: mostly carried out at once.
    fn work(&mut self, script: &mut Script<'_>) {
        while let Some(event) = self.cm.poll_event() {
            if let Event::ResolveRequest { resolution, .. } = event {
                self.questions.push(resolution);
            }
            if let Some(conn) = event.conn()
                && !self.conns.contains(&conn)
            {
                self.conns.push(conn);
            }
        }
        let first = usize::from(script.once_in(3)).min(self.questions.len());
        for question in self.questions.drain(..first) {
            // It may have been withdrawn.
            let _gone = self.cm.forget(question);
        }
        while let Some(change) = self.cm.poll_qp_change() {
            if !script.once_in(5) {
                self.cm.qp_modified(self.now, change.conn, Ok(()));
            }
        }
        let (cm, mut sent) = (&mut self.cm, 0);
        while let Some((_, mad)) = cm.poll_transmit() {
            sent += 1;
            if self.seen.len() < 48 {
                self.seen.push(mad);
            } else {
                let at = usize::from(mad[15]) % 48;
                self.seen[at] = mad;
            }
        }
        assert!(sent <= config().transmits_max, "{sent} datagrams at a time");
        let most = config().connections_max + config().timewait_max + config().resolutions_max;
        assert!(
            self.cm.len() <= most,
            "{} of {most} connections",
            self.cm.len()
        );
        self.conns.retain(|&conn| self.cm.state(conn).is_some());
        assert!(self.conns.len() <= most);
    }

    /// Destroys everything, and lets time pass.
    fn end(&mut self) {
        for conn in std::mem::take(&mut self.conns) {
            // It may be in timewait, which continues without its user.
            let _gone = self.cm.destroy(self.now, conn);
        }
        let mut rounds = 0;
        loop {
            let mut none = Script::new(&[]);
            self.work(&mut none);
            for question in std::mem::take(&mut self.questions) {
                let _gone = self.cm.forget(question);
            }
            for conn in std::mem::take(&mut self.conns) {
                let _gone = self.cm.destroy(self.now, conn);
            }
            let Some(due) = self.cm.poll_timeout() else {
                break;
            };
            rounds += 1;
            assert!(
                rounds < ROUNDS_MAX,
                "timers that do not run out: {:?}",
                self.cm
            );
            self.now = self.now.max(due);
            self.cm.handle_timeout(self.now);
        }
        assert!(
            self.cm.is_empty(),
            "what nobody has any more: {:?}",
            self.cm
        );
        self.converse(HONEST);
    }

    /// The honest peer connects and disconnects.
    fn converse(&mut self, service: ServiceId) {
        let route = self.route(2, 1);
        let has_lids = self.link_layer == LinkLayer::InfiniBand;
        let alternate = has_lids.then(|| route.between(1, Lid(17)));
        let connect = Connect {
            alternate,
            ..Connect::new(service, Qpn::new(0x22), route)
        };
        let ours = self.peer.connect(self.now, connect).expect("there is room");
        let theirs = self.exchange();
        let theirs = theirs.expect("the honest peer's request arrives");
        assert_eq!(self.peer.state(ours), Some(State::Established));
        assert_eq!(self.cm.state(theirs), Some(State::Established));
        if has_lids {
            self.loaded = false;
            let path = route.between(2, Lid(18));
            let offered = self.peer.load_path(self.now, ours, &path);
            offered.expect("it is established");
            self.exchange();
            assert!(self.loaded, "the honest peer's path is loaded");
        }
        let bye = self.peer.disconnect(self.now, ours, Blob::default());
        bye.expect("it is established");
        self.exchange();
        for (cm, conn) in [(&mut self.peer, ours), (&mut self.cm, theirs)] {
            // Timewait continues without its user.
            let _gone = cm.destroy(self.now, conn);
        }
        let mut rounds = 0;
        while let Some(due) = [self.cm.poll_timeout(), self.peer.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
        {
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "timers that do not run out");
            self.now = self.now.max(due);
            self.cm.handle_timeout(self.now);
            self.peer.handle_timeout(self.now);
            self.exchange();
        }
        assert!(self.cm.is_empty() && self.peer.is_empty());
    }

    /// Carries datagrams between the two; a request is accepted.
    fn exchange(&mut self) -> Option<ConnId> {
        let mut asked = None;
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for (cm, host) in [(&mut self.cm, 1), (&mut self.peer, 2)] {
                while let Some(event) = cm.poll_event() {
                    self.loaded |= matches!(event, Event::PathLoaded { .. }) && host == 2;
                    if let Event::ConnectRequest { conn, .. } = event {
                        let accept = Accept {
                            qpn: Qpn::new(0x33),
                            ..Accept::default()
                        };
                        cm.accept(self.now, conn, &accept).expect("it is asked for");
                        asked = Some(conn);
                        assert_eq!(host, 1, "the honest peer does not listen");
                    }
                }
                while let Some(change) = cm.poll_qp_change() {
                    // Its effects come out in the next round.
                    moved = true;
                    cm.qp_modified(self.now, change.conn, Ok(()));
                }
            }
            while let Some((_, mad)) = self.cm.poll_transmit() {
                moved = true;
                self.peer.handle(self.now, from(1), &mad);
                self.seen.push(mad);
            }
            while let Some((_, mad)) = self.peer.poll_transmit() {
                moved = true;
                self.cm.handle(self.now, from(2), &mad);
                self.seen.push(mad);
            }
            self.seen.truncate(48);
            if !moved {
                return asked;
            }
        }
        panic!("two tables that do not end talking");
    }
}
