//! Two tables side by side, with a wire that a test works by hand.

use std::net::Ipv4Addr;

use verbs_core::addr::{Gid, Guid, Lid, Mtu, Psn, Qpn};
use verbs_core::mad::{Address, Blob, MadBytes, MadHeader, MadHeaderView, TimeCode, TransactionId};
use verbs_core::time::Instant;
use verbs_core::{Av, LinkLayer, QpState};

use crate::machine::State;
use crate::params::{Accept, Connect, Listen, Port, Route};
use crate::table::Cm;
use crate::wire::{Message, PortSpace, ServiceId};
use crate::{Config, ConnId, Event};

pub(super) const SERVICE: ServiceId = ServiceId::rdma_cm(PortSpace::Tcp, 7174);

/// A conversation between host 0, which asks, and host 1, which listens for [`SERVICE`].
pub(super) struct Lab {
    pub(super) now: Instant,
    pub(super) cms: [Cm; 2],
    /// Changes of queue pairs that have ended well, in order.
    pub(super) changes: Vec<(usize, QpState)>,
}

pub(super) fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 77, 0, u8::try_from(host).unwrap() + 2))
}

pub(super) fn port(host: usize) -> Port {
    Port {
        number: 1,
        ca_guid: Guid(0x5054_00ff_fe77_0002 + u64::try_from(host).unwrap()),
        link_layer: LinkLayer::Ethernet,
        lid: Lid(0),
        gids: vec![(1, gid(host))],
        mtu: Mtu::B1024,
        ack_delay: TimeCode::new(15),
        migrates: false,
    }
}

/// Where host `host` sees the other one.
pub(super) fn other_of(host: usize) -> Address {
    Address::gsi(Av::to_gid(1, 1, gid(1 - host)))
}

pub(super) fn connect(qpn: u32) -> Connect {
    let route = Route::roce(&port(0), gid(0), gid(1)).unwrap();
    let mut connect = Connect::new(SERVICE, Qpn::new(qpn), route);
    connect.psn = Psn::new(0x11_1111);
    connect
}

pub(super) fn accept() -> Accept {
    Accept {
        qpn: Qpn::new(0x99),
        psn: Psn::new(0x22_2222),
        ..Accept::default()
    }
}

impl Lab {
    pub(super) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Self {
        let mut cms =
            [0, 1].map(|host| Cm::new(config, port(host), 2, 40 + u64::try_from(host).unwrap()));
        cms[1].listen(Listen::new(SERVICE)).unwrap();
        Self {
            now: Instant::from_nanos(1),
            cms,
            changes: Vec::new(),
        }
    }

    /// What a host has to send now; its queue pair obeys.
    pub(super) fn sent(&mut self, host: usize) -> Vec<Message> {
        let mads = self.sent_mads(host);
        mads.iter()
            .map(|mad| Message::parse(mad).unwrap().1)
            .collect()
    }

    pub(super) fn sent_mads(&mut self, host: usize) -> Vec<MadBytes> {
        while let Some(change) = self.cms[host].poll_qp_change() {
            // One that loads a path changes no state.
            let state = change.attr.state;
            self.changes.extend(state.map(|state| (host, state)));
            self.cms[host].qp_modified(self.now, change.conn, Ok(()));
        }
        std::iter::from_fn(|| self.cms[host].poll_transmit().map(|(_, mad)| mad)).collect()
    }

    /// The names of what a host has to send now, which then gets lost.
    pub(super) fn lose(&mut self, host: usize) -> Vec<&'static str> {
        self.sent(host).iter().map(Message::name).collect()
    }

    pub(super) fn give(&mut self, host: usize, message: &Message) {
        let mad = message.emit(TransactionId(0x1234));
        self.cms[host].handle(self.now, other_of(host), &mad);
    }

    /// The host that this one has sent to refuses all that it has to send now, and the network reports that;
    /// returns the names.
    pub(super) fn refuse(&mut self, host: usize) -> Vec<&'static str> {
        let mads = self.sent_mads(host);
        for mad in &mads {
            self.report(host, gid(1 - host), mad);
        }
        mads.iter()
            .map(|mad| Message::parse(mad).unwrap().1.name())
            .collect()
    }

    /// The network reports a message to that port as not delivered.
    pub(super) fn report(&mut self, host: usize, to: Gid, mad: &MadBytes) {
        let header = mad.first_chunk().unwrap();
        let tid = MadHeader::parse(MadHeaderView::of(header)).tid;
        self.cms[host].undelivered(self.now, to, tid);
    }

    /// Carries what a host has to send to the other; returns the names.
    pub(super) fn carry(&mut self, host: usize) -> Vec<&'static str> {
        let mads = self.sent_mads(host);
        for mad in &mads {
            self.cms[1 - host].handle(self.now, other_of(1 - host), mad);
        }
        mads.iter()
            .map(|mad| Message::parse(mad).unwrap().1.name())
            .collect()
    }

    /// Carries messages until none is left.
    pub(super) fn exchange(&mut self) {
        while !self.carry(0).is_empty() || !self.carry(1).is_empty() {}
    }

    /// Lets time go to the next deadline of a host, and its timer fire.
    pub(super) fn fire(&mut self, host: usize) {
        self.now = self.cms[host].poll_timeout().expect("a deadline");
        self.cms[host].handle_timeout(self.now);
    }

    /// Fires timers until a host has none, losing what it sends; returns the names.
    pub(super) fn fire_all(&mut self, host: usize) -> Vec<&'static str> {
        let mut names = Vec::new();
        while self.cms[host].poll_timeout().is_some() {
            self.fire(host);
            names.extend(self.lose(host));
        }
        names
    }

    pub(super) fn event(&mut self, host: usize) -> Option<Event> {
        self.cms[host].poll_event()
    }

    /// Connects as far as the passive user's request.
    pub(super) fn requested(&mut self) -> [ConnId; 2] {
        let active = self.cms[0].connect(self.now, connect(0x55)).unwrap();
        assert_eq!(self.carry(0), ["REQ"]);
        let passive = match self.event(1) {
            Some(Event::ConnectRequest { conn, .. }) => conn,
            other => panic!("{other:?}"),
        };
        [active, passive]
    }

    /// Connects as far as the REP, which is on the wire.
    pub(super) fn replied(&mut self) -> ([ConnId; 2], Message) {
        let conns = self.requested();
        self.cms[1].accept(self.now, conns[1], &accept()).unwrap();
        let rep = self.sent(1);
        assert_eq!(rep.len(), 1);
        (conns, rep[0])
    }

    /// A connection, with its events taken.
    pub(super) fn established(&mut self) -> [ConnId; 2] {
        let (conns, rep) = self.replied();
        self.give(0, &rep);
        self.exchange();
        for (host, conn) in [0, 1].into_iter().zip(conns) {
            assert!(matches!(self.event(host), Some(Event::Established { .. })));
            assert_eq!(self.cms[host].state(conn), Some(State::Established));
        }
        conns
    }

    pub(super) fn state(&self, host: usize, conn: ConnId) -> Option<State> {
        self.cms[host].state(conn)
    }

    pub(super) fn disconnect(&mut self, host: usize, conn: ConnId) {
        self.cms[host]
            .disconnect(self.now, conn, Blob::default())
            .unwrap();
    }

    /// Lets all timers run out; then nothing may be left.
    pub(super) fn finish(&mut self) {
        for _ in 0..200 {
            self.exchange();
            for host in 0..2 {
                if self.cms[host].poll_timeout().is_some() {
                    self.fire(host);
                }
            }
        }
        for cm in &self.cms {
            assert!(cm.is_empty() && cm.index.is_empty(), "{cm:?}");
        }
    }
}
