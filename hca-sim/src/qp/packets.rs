//! A queue pair whose messages go as packets: what the sans-IO machine needs around it.
//!
//! Whoever holds the port's driver ([`crate::port::Driver`]) is the only one to come here, so
//! nothing in here is ever contended. The attributes that control verbs change are taken over at the
//! beginning of each visit.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use verbs_core::mad::sm::{BadKey, PERMISSIVE_LID};
use verbs_core::mem::{Pin, pin};
use verbs_core::sync::Arc;
use verbs_core::sync::MutexGuard;
use verbs_core::{
    Access, Av, Datagram, Error, Gid, Lid, Mtu, PKey, Psn, QpAttr, QpCap, QpState, QpType, Qpn,
    Srqn,
};

use crate::clock::Instant;
use crate::engine::Due;
use crate::link::{Local, Route};
use crate::port::Port;
use crate::qp::QueuePair;
use crate::qp::effects::Effects;
use crate::qp::loopback::Machine;
use crate::queue::base::events::QpEvents;
use crate::queue::cq::CqRing;
use crate::queue::srq::{Named, SharedReceives};
use crate::transport::{self, Ends, Incoming, Notes, Outlet, Path, Post, TxContext};
use crate::wire::{Bth, BthFlags, Extended, Head, Opcode, Role, Service};

/// The address of packets that have none.
const NOWHERE: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
/// The ECN bits of a traffic class, and what they are when a switch has marked the packet.
const ECN: u8 = 0b11;
const CE: u8 = 0b11;
/// The least time between two congestion notifications of one queue pair. Marks come in bursts, and one
/// notification tells as much as many.
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Bytes of a congestion notification, all zero.
const CNP_PAYLOAD: usize = 16;

/// See the module's documentation.
pub(crate) struct PacketQp {
    transport: transport::Machine,
    /// What the attributes say.
    path: Option<Path>,
    /// Where packets to the peer go; `None` as long as the queue pair names nobody, or no address of the
    /// port. Datagrams have ways of their own.
    route: Option<Route>,
    /// The changes that `path` knows of: the queue pair's and the port's.
    followed: Option<(u32, u32)>,
    /// The deadline that the engine was given.
    timer: Option<Instant>,
    /// The queue pair goes to ERR as soon as its last answer has left.
    failing: bool,
    /// A packet came that a switch had marked: the peer is to hear of it.
    marked: bool,
    /// No notification leaves before.
    quiet_until: Instant,
}

impl PacketQp {
    /// A machine for a queue pair of that type and those sizes, with all that it will ever allocate.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(qp_type: QpType, cap: &QpCap) -> Result<Self, Error> {
        Ok(Self {
            transport: transport::Machine::new(qp_type, cap)?,
            path: None,
            route: None,
            followed: None,
            timer: None,
            failing: false,
            marked: false,
            quiet_until: Instant::ZERO,
        })
    }

    /// Back to how it was made.
    pub(crate) fn reset(&mut self) {
        self.transport.reset();
        (self.path, self.route, self.followed) = (None, None, None);
        (self.marked, self.failing) = (false, false);
    }

    /// The queue pair is in RTS again after SQE.
    pub(crate) fn resume(&mut self) {
        self.transport.resume();
    }

    /// See [`Rc::abandon`](transport::rc::Rc::abandon).
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.transport.abandon()
    }

    /// Whether every message that was begun has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.transport.is_drained()
    }

    /// Takes over what control verbs have changed.
    fn follow(&mut self, qp: &QueuePair) {
        let Some(driver) = qp.port.driver() else {
            return;
        };
        let now = (qp.changes(), driver.changes());
        if self.followed == Some(now) {
            return;
        }
        self.followed = Some(now);
        let attr = qp.control.lock().attr();
        self.path = Some(path(&attr, qp));
        self.route = attr.av.and_then(|av| qp.port.route(&av));
    }
}

fn named_by(srq: &Option<Arc<SharedReceives>>) -> Option<&Named> {
    srq.as_ref().and_then(|srq| srq.named.as_ref())
}

/// What the attributes say about the connection.
fn path(attr: &QpAttr, qp: &QueuePair) -> Path {
    let service = qp.service();
    // One datagram has to fit the port, not a path.
    let mtu = match service {
        Service::Ud => qp.port.mtu(),
        _ => attr.path_mtu.unwrap_or(Mtu::B256),
    };
    Path {
        service,
        qkey: attr.qkey.unwrap_or_default(),
        dest_qpn: attr.dest_qpn.unwrap_or(Qpn::new(0)),
        pkey: qp
            .port
            .pkey(attr.pkey_index.unwrap_or(0))
            .unwrap_or(PKey(0)),
        is_special: qp.is_special(),
        lmc: qp.port.lmc(),
        mtu,
        access: attr.access.unwrap_or(Access::empty()),
        timeout: attr.timeout.unwrap_or(0),
        retry_cnt: attr.retry_cnt.unwrap_or(0),
        rnr_retry: attr.rnr_retry.unwrap_or(0),
        min_rnr_timer: attr.min_rnr_timer.unwrap_or(0),
        max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(0),
        sq_psn: attr.sq_psn.map_or(0, |psn| psn.value()),
        rq_psn: attr.rq_psn.map_or(0, |psn| psn.value()),
    }
}

/// How datagrams leave.
struct Datagrams<'q, 'm, 'o> {
    qp: &'q QueuePair,
    mail: &'m mut TxContext<'o>,
}

impl Post for Datagrams<'_, '_, '_> {
    fn partition(&self, index: u16) -> Option<PKey> {
        self.qp.port.pkey(index)
    }

    fn post(
        &mut self,
        to: &Datagram,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        // Nobody tells the sender of a datagram that there is no such address.
        let Some(route) = self.qp.port.route(&to.av) else {
            return true;
        };
        let mut lane = self.mail.of(self.qp.qpn, route);
        let ready = lane.is_ready();
        if ready {
            lane.put(head, len, false, fill);
        }
        ready
    }
}

impl Port {
    /// The way that an address vector leads, if there is one from here.
    pub(crate) fn route(&self, av: &Av) -> Option<Route> {
        let global = av.global;
        let src = self.gid(global.map_or(0, |global| global.sgid_index))?;
        let (dgid, local) = if let Some(slid) = self.slid(av) {
            let local = Local {
                slid,
                dlid: av.dlid,
                sl: av.sl,
                global: global.is_some(),
            };
            // Without a header for it, an address is not needed.
            let dgid = global.map_or(Gid::from(NOWHERE), |global| global.dgid);
            (dgid, Some(local))
        } else if self.is_wire() {
            (global?.dgid, None)
        } else {
            let (dgid, dlid) = match global {
                Some(global) if global.dgid.is_multicast() => (global.dgid, av.dlid),
                _ => self.link.lock().address_of(av)?,
            };
            let local = Local {
                slid: self.lid,
                dlid,
                sl: av.sl,
                global: global.is_some(),
            };
            (dgid, Some(local))
        };
        let src = if global.is_none() && self.managed.is_some() {
            Gid::from(NOWHERE)
        } else {
            src
        };
        let (src, dst) = (IpAddr::from(src), IpAddr::from(dgid));
        (src.is_ipv4() == dst.is_ipv4()).then_some(Route {
            src,
            dst,
            tclass: global.map_or(0, |global| global.traffic_class),
            hop_limit: global.map_or(64, |global| global.hop_limit),
            local,
        })
    }
}

impl Port {
    /// On a managed port, the LID that packets leave from: on directed routes no LID is needed.
    fn slid(&self, av: &Av) -> Option<Lid> {
        let info = self.sheet().info?;
        if av.dlid == PERMISSIVE_LID {
            return Some(PERMISSIVE_LID);
        }
        Some(info.lid_of(av.src_path_bits))
    }

    /// Tells the subnet manager of a packet with a key that does not fit, if there is one to be told.
    fn report(&self, packet: &Incoming<'_>, is_qkey: bool) {
        let (Some(managed), Some(local)) = (&self.managed, packet.local) else {
            return;
        };
        let (bth, deth) = (packet.head.bth(), packet.head.ext().deth);
        let qkey = deth.map_or(0, |deth| deth.qkey.0);
        let gids = if local.global {
            [Gid::from(packet.src).0, Gid::from(packet.dst).0]
        } else {
            [[0; 16]; 2]
        };
        managed.report(&BadKey {
            is_qkey,
            key: if is_qkey { qkey } else { bth.pkey.0.into() },
            sl: local.sl,
            from: local.slid,
            src_qpn: deth.map_or(Qpn::new(0), |deth| deth.src_qpn),
            dest_qpn: bth.dest_qpn,
            gids,
        });
    }

    /// Whether a packet comes from where a connection's own packets go to.
    fn is_peer(&self, own: &Route, packet: &Incoming<'_>) -> bool {
        let is_by_address = own.dst == packet.src && own.src == packet.dst;
        match (own.local, packet.local) {
            (Some(own), Some(came)) if self.managed.is_some() => {
                let is_by_lid = own.dlid == Lid(0) || own.dlid == came.slid;
                is_by_lid && (is_by_address || !own.global || !came.global)
            }
            _ => is_by_address,
        }
    }
}

/// Tells the peer that its packets meet congestion (IBTA annex A17.9.3).
fn notify_congestion(path: &Path, lane: &mut dyn Outlet) {
    let bth = Bth {
        opcode: Opcode::CNP,
        flags: BthFlags::BECN,
        pkey: path.pkey,
        dest_qpn: path.dest_qpn,
        psn: Psn::new(0),
    };
    if let Ok(head) = Head::new(bth, Extended::default()) {
        lane.put(&head, CNP_PAYLOAD, true, &mut |payload| payload.fill(0));
    }
}

impl QueuePair {
    /// What the machine works on, if the state is still the one that it was under the pin.
    fn ends<'a>(&'a self, pin: &'a Pin, path: &'a Path, now: Instant) -> Option<Ends<'a>> {
        let state = self.enter_to_exchange(pin)?;
        Some(Ends {
            pin,
            now,
            qpn: self.qpn,
            pd: self.pd,
            path,
            may_begin: state == QpState::Rts,
            sends: self.send_ring()?,
            recvs: self.recv_ring()?,
            srq: self.srq.as_ref(),
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            mrs: &self.port.mrs,
            counters: &self.port.counters,
            core: self.core.get(),
        })
    }

    /// Whether completions can be told now. On a loopback link others may own the queues, or are losing
    /// them: then there is a round as soon as that is over. A packet that comes meanwhile is lost, which
    /// services that answer make up for.
    fn can_complete(
        self: &Arc<Self>,
        pin: &Pin,
        named: Option<&Named>,
        effects: &mut Effects,
    ) -> bool {
        if self.port.is_wire() {
            return true;
        }
        let named = named.map(|named| &named.cq);
        let cqs = [Some(&self.send_cq), Some(&self.recv_cq), named];
        let refused = |cq: &&Arc<CqRing>| cq.enter(pin).is_none();
        let refused = cqs.into_iter().flatten().find(refused);
        if let Some(cq) = refused {
            effects.wait_for(cq, self);
        }
        refused.is_none()
    }

    /// A packet for this queue pair; its ICRC is right. Whether the machine has seen it, so that it wants
    /// a round.
    pub(crate) fn take_packet(
        self: &Arc<Self>,
        packet: &Incoming<'_>,
        now: Instant,
        effects: &mut Effects,
    ) -> bool {
        let open = self.worker.exchange();
        let Some(exchange) = open.filter(|_| !self.worker.is_closing()) else {
            return false;
        };
        let mut exchange = exchange.lock();
        exchange.follow(self);
        let PacketQp {
            transport,
            path,
            route,
            marked,
            ..
        } = &mut *exchange;
        let counters = &self.port.counters;
        // A connection knows its peer; a datagram may come from anybody.
        let is_peer = |route: &Route| self.port.is_peer(route, packet);
        let known =
            |path: &&Path| path.service == Service::Ud || route.as_ref().is_some_and(is_peer);
        let Some(path) = path.as_ref().filter(known) else {
            counters.strangers.up();
            return false;
        };
        let Some(pkey_index) = self.admits(path, packet) else {
            counters.bad_pkeys.up();
            self.port.report(packet, false);
            return false;
        };
        // Most come in the first partition, and are not copied for it.
        let elsewhere = (pkey_index != 0).then_some(Incoming {
            pkey_index,
            ..*packet
        });
        let packet = elsewhere.as_ref().unwrap_or(packet);
        self.look_at_qkey(path, packet);
        if packet.head.opcode() == Opcode::CNP {
            counters.cnps_received.up();
            return false;
        }
        if !path.takes(packet.head.opcode().service()) || self.is_other_end(packet) {
            counters.strangers.up();
            return false;
        }
        // Which queue a request on an extended connection is for; the machine refuses what is for none.
        let eth = packet.head.ext().xrceth;
        let named = eth.and_then(|eth| self.port.xrc.find(eth.srqn, self.pd));
        // Notifications go to the peer of a connection.
        *marked |= packet.tclass & ECN == CE && path.service != Service::Ud;
        let pin = pin();
        if !self.can_complete(&pin, named_by(&named), effects) {
            return false;
        }
        let Some(mut ends) = self.ends(&pin, path, now) else {
            return false;
        };
        if let Some((srq, own)) = named.as_ref().zip(named_by(&named)) {
            (ends.srq, ends.recv_cq, ends.pd) = (Some(srq), &own.cq, srq.pd);
        }
        let mut notes = Notes::default();
        transport.receive(&ends, packet, &mut notes);
        drop(pin);
        let mut machine = self.worker.machine.lock();
        self.see_to_notes(&mut exchange, &mut machine, notes, named.as_ref(), effects);
        true
    }

    /// Reports a datagram whose key is another; the machine drops it.
    fn look_at_qkey(&self, path: &Path, packet: &Incoming<'_>) {
        let deth = packet.head.ext().deth;
        if deth.is_some_and(|deth| deth.qkey != path.qkey) && self.qp_type != QpType::Smi {
            self.port.report(packet, true);
        }
    }

    /// Whether a packet's partition lets it in, and which entry of the table that is. Queue pair 0 does
    /// not look at it, queue pair 1 is in all of the port's partitions.
    fn admits(&self, path: &Path, packet: &Incoming<'_>) -> Option<u16> {
        let key = packet.head.bth().pkey;
        match self.qp_type {
            QpType::Smi => Some(0),
            QpType::Gsi => self.port.pkey_index(key),
            _ => path.pkey.matches(key).then_some(0),
        }
    }

    /// Whether a packet is for the other end of an extended connection: initiators take answers only, and
    /// targets requests.
    fn is_other_end(&self, packet: &Incoming<'_>) -> bool {
        match (self.qp_type, packet.head.opcode().facts().role) {
            (QpType::XrcSend, role) => role != Role::Response,
            (QpType::XrcRecv, role) => role != Role::Request,
            _ => false,
        }
    }

    /// One round of the machine: what is due, and what can be sent.
    pub(crate) fn exchange(
        self: &Arc<Self>,
        exchange: &mut PacketQp,
        machine: &mut MutexGuard<'_, Machine>,
        mail: &mut TxContext<'_>,
        effects: &mut Effects,
    ) {
        exchange.follow(self);
        let Some(path) = exchange.path else {
            return;
        };
        if path.service == Service::Ud {
            return self.post_datagrams(exchange, machine, &path, mail, effects);
        }
        let Some(route) = exchange.route else {
            return;
        };
        let now = self.port.engine.now();
        let mut notes = Notes::default();
        let pin = pin();
        if !self.can_complete(&pin, None, effects) {
            return;
        }
        let Some(ends) = self.ends(&pin, &path, now) else {
            return;
        };
        let transport = &mut exchange.transport;
        if transport.deadline().is_some_and(|deadline| deadline <= now) {
            transport.expire(&ends, &mut notes);
        }
        let mut lane = mail.of(self.qpn, route);
        let more = transport.transmit(&ends, &mut lane, &mut notes);
        drop(pin);
        if exchange.marked && exchange.quiet_until <= now && lane.is_ready() {
            exchange.marked = false;
            exchange.quiet_until = now + CNP_INTERVAL;
            notify_congestion(&path, &mut lane);
        }
        if more {
            effects.stalled.push(Arc::clone(self));
        } else if !mail.acknowledges && exchange.transport.is_answering() {
            mail.deferred = true;
        }
        self.set_timer(exchange, now);
        self.see_to_notes(exchange, machine, notes, None, effects);
        // What tells the peer why has to leave before nothing leaves any more.
        if exchange.failing && !exchange.transport.is_answering() {
            exchange.failing = false;
            effects.fail.push(Arc::clone(self) as Arc<dyn QpEvents>);
        }
    }

    /// One round of a machine for datagrams.
    fn post_datagrams(
        self: &Arc<Self>,
        exchange: &mut PacketQp,
        machine: &mut MutexGuard<'_, Machine>,
        path: &Path,
        mail: &mut TxContext<'_>,
        effects: &mut Effects,
    ) {
        let mut notes = Notes::default();
        let pin = pin();
        if !self.can_complete(&pin, None, effects) {
            return;
        }
        let Some(ends) = self.ends(&pin, path, self.port.engine.now()) else {
            return;
        };
        let mut post = Datagrams { qp: self, mail };
        if exchange.transport.post(&ends, &mut post, &mut notes) {
            effects.stalled.push(Arc::clone(self));
        }
        drop(pin);
        self.see_to_notes(exchange, machine, notes, None, effects);
        if std::mem::take(&mut exchange.failing) {
            effects.fail.push(Arc::clone(self) as Arc<dyn QpEvents>);
        }
    }

    fn see_to_notes(
        self: &Arc<Self>,
        exchange: &mut PacketQp,
        machine: &mut Machine,
        notes: Notes,
        named: Option<&Arc<SharedReceives>>,
        effects: &mut Effects,
    ) {
        if notes.failed.is_some() {
            machine.failed = notes.failed;
        }
        exchange.failing |= notes.fail;
        effects.note_packets(self, named, notes);
    }

    /// Has the engine call at the machine's deadline. A call that comes early finds nothing to do and
    /// sets the next; so there is one at a time, although the deadline moves with every packet.
    fn set_timer(self: &Arc<Self>, exchange: &mut PacketQp, now: Instant) {
        let pending = exchange.timer.filter(|&timer| timer > now);
        let Some(deadline) = exchange.transport.deadline() else {
            exchange.timer = pending;
            return;
        };
        if pending.is_some_and(|timer| timer <= deadline) {
            exchange.timer = pending;
            return;
        }
        exchange.timer = Some(deadline);
        let _ = self
            .port
            .engine
            .at(deadline, Arc::clone(self) as Arc<dyn Due>, 0);
    }
}

impl fmt::Debug for PacketQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketQp")
            .field("path", &self.path)
            .field("timer", &self.timer)
            .finish_non_exhaustive()
    }
}
