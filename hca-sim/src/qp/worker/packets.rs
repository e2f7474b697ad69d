//! A queue pair whose messages are sent as packets: what the sans-IO machine needs around it.
//!
//! Only the holder of the port's driver ([`crate::port::Driver`]) runs this code, so nothing here is ever contended.
//! The attributes that control verbs change are taken over at the beginning of each visit.

use std::ops::Range;
use std::time::Duration;

use verbs_core::mem::{Pin, Unmapped, pin};
use verbs_core::sync::Arc;
use verbs_core::sync::MutexGuard;
use verbs_core::{Access, Datagram, MigState, Mtu, PKey, Psn, QpAttr, QpState, QpType, Qpn};

use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::engine::Due;
use crate::link::Route;
use crate::qp::QueuePair;
use crate::qp::stats;
use crate::qp::worker::WorkerState;
use crate::qp::worker::packet_qp::PacketQp;
use crate::qp::worker::target::{self, Taken};
use crate::qp::worker::{migration, stream};
use crate::queue::cq::CqRing;
use crate::queue::srq::{SharedReceives, XrcSrq};
use crate::transport::{
    self, Acks, Ends, Events, Fill, Incoming, Outlet, Path, Post, Told, TxContext,
};
use crate::wire::{Bth, BthFlags, Extended, Head, Opcode, Role, Service};

/// The ECN bits of a traffic class, and what they are when a switch has marked the packet.
const ECN: u8 = 0b11;
const CE: u8 = 0b11;
/// The least time between two congestion notifications of one queue pair. Marks arrive in bursts, and one notification
/// says as much as many.
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Bytes of a congestion notification, all zero.
const CNP_PAYLOAD: usize = 16;

fn xrc_of(srq: &Option<Arc<SharedReceives>>) -> Option<&XrcSrq> {
    srq.as_ref().and_then(|srq| srq.xrc.as_ref())
}

/// The connection's parameters, from the attributes.
fn path(attr: &QpAttr, qp: &QueuePair) -> Path {
    let service = qp.service();
    // A datagram has to fit the port, not a path.
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
        fences: qp.port.features.fences,
        max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(0),
        sq_psn: attr.sq_psn.map_or(0, |psn| psn.value()),
        rq_psn: attr.rq_psn.map_or(0, |psn| psn.value()),
        flags: migration::flags(attr, qp),
        migration: attr.alt_path.and(attr.path_mig_state),
        may_migrate: false,
    }
}

/// How datagrams are sent.
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
        fill: Fill<'_>,
    ) -> Result<bool, Unmapped> {
        // The sender of a datagram gets no report that there is no such address.
        let Some(route) = self.qp.port.route(&to.av) else {
            return Ok(true);
        };
        let mut lane = self.mail.of(self.qp.qpn, &route);
        let ready = lane.is_ready();
        if ready {
            lane.put(head, len, false, fill)?;
        }
        Ok(ready)
    }
}

/// Notifies the peer that its packets meet congestion (IBTA annex A17.9.3).
fn notify_congestion(path: &Path, lane: &mut dyn Outlet) {
    let bth = Bth {
        opcode: Opcode::CNP,
        flags: BthFlags::BECN,
        pkey: path.pkey,
        dest_qpn: path.dest_qpn,
        psn: Psn::new(0),
    };
    if let Ok(head) = Head::new(bth, Extended::default()) {
        // Zeros are always there.
        let _ = lane.put(&head, CNP_PAYLOAD, true, &mut |payload| {
            payload.fill(0);
            Ok(())
        });
    }
}

/// Which entry of the P_Key table admits a packet of the peer, if it is one for the queue pair's machine.
#[inline(always)]
fn screened(
    qp: &QueuePair,
    exchange: &mut PacketQp,
    packet: &Incoming<'_>,
    now: Instant,
    effects: &mut Effects,
) -> Option<u16> {
    let PacketQp {
        transport,
        path: Some(path),
        ..
    } = exchange
    else {
        return None;
    };
    let path = &*path;
    let counters = &qp.port.counters;
    let Some(pkey_index) = admits(qp, path, packet) else {
        counters.bad_pkeys.up();
        qp.port.report(packet, false);
        return None;
    };
    look_at_qkey(qp, path, packet);
    if packet.head.opcode() == Opcode::CNP {
        slow_down(qp, transport, now, effects);
        return None;
    }
    if !path.takes(packet.head.opcode().service()) || is_other_end(qp, packet) {
        counters.strangers.up();
        return None;
    }
    let may_be_long = matches!(path.service, Service::Rc | Service::Uc);
    if packet.long.is_some() && !may_be_long {
        counters.malformed.up();
        return None;
    }
    Some(pkey_index)
}

impl QueuePair {
    /// Takes over what control verbs have changed.
    pub(super) fn follow(&self, exchange: &mut PacketQp) {
        let Some(driver) = self.port.driver() else {
            return;
        };
        let now = (self.changes(), driver.changes());
        if exchange.followed == Some(now) {
            return;
        }
        exchange.followed = Some(now);
        let attr = self.control.lock().attr();
        let mut path = path(&attr, self);
        let route = attr.av.and_then(|av| self.port.route(&av));
        let has_moved =
            path.migration.is_some() && exchange.route.is_some_and(|old| route != Some(old));
        if has_moved {
            exchange.transport.moved();
        }
        exchange.route = route;
        exchange.alt_route = attr.alt_path.and_then(|alt| self.port.route(&alt.av()));
        exchange.refused_migration = false;
        path.may_migrate = path.migration == Some(MigState::Armed) && exchange.alt_route.is_some();
        exchange.path = Some(path);
    }

    /// What the machine works on, if the state is still the one that was seen under the pin.
    #[inline(always)]
    pub(super) fn ends<'a>(
        &'a self,
        pin: &'a Pin,
        path: &'a Path,
        now: Instant,
    ) -> Option<Ends<'a>> {
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

    /// What exchanges packets, with the attributes as they are now; `None` while a change takes something away.
    #[inline]
    pub(super) fn open_exchange(&self) -> Option<MutexGuard<'_, PacketQp>> {
        let open = self.worker.exchange();
        let mut exchange = open.filter(|_| !self.worker.is_closing())?.lock();
        self.follow(&mut exchange);
        Some(exchange)
    }

    /// Takes a packet for this queue pair; its ICRC is right. Returns whether the machine has seen it, and so needs a
    /// round.
    pub(crate) fn take_packet(
        self: &Arc<Self>,
        packet: &Incoming<'_>,
        now: Instant,
        effects: &mut Effects,
    ) -> bool {
        let Some(mut exchange) = self.open_exchange() else {
            return false;
        };
        if !is_from_peer(self, &mut exchange, packet, effects) {
            self.port.counters.strangers.up();
            return false;
        }
        let Some(pkey_index) = screened(self, &mut exchange, packet, now, effects) else {
            return false;
        };
        // Most arrive in the first partition, and are not copied for it.
        let elsewhere = (pkey_index != 0).then_some(Incoming {
            pkey_index,
            ..*packet
        });
        let packet = elsewhere.as_ref().unwrap_or(packet);
        // The queue that a request on an extended connection is for; the machine refuses a request for none.
        let eth = packet.head.ext().xrceth;
        let named = eth.and_then(|eth| self.port.xrc.find(eth.srqn, self.pd));
        if eth.is_some() && (named.is_none() || exchange.shared.is_some()) {
            let named = named.as_ref();
            if target::hand_on(self, &mut exchange, packet, named, now, effects) != Taken::Here {
                return true;
            }
        }
        let PacketQp {
            transport,
            path: Some(path),
            marked,
            ..
        } = &mut *exchange
        else {
            return false;
        };
        let path = &*path;
        // Notifications are sent to the peer of a connection.
        *marked |= packet.tclass & ECN == CE && path.service != Service::Ud;
        let pin = pin();
        if !can_complete(self, &pin, xrc_of(&named), effects) {
            return false;
        }
        let Some(mut ends) = self.ends(&pin, path, now) else {
            return false;
        };
        if let Some((srq, own)) = named.as_ref().zip(xrc_of(&named)) {
            (ends.srq, ends.recv_cq, ends.pd) = (Some(srq), &own.cq, srq.pd);
        }
        let mut events = Events::default();
        transport.receive(&ends, packet, &mut events);
        drop(pin);
        if events.only_fires() {
            self.note_fires(named.as_ref(), &events, effects);
        } else {
            let mut machine = self.worker.machine.lock();
            self.handle_more(&mut exchange, &mut machine, events, named.as_ref(), effects);
        }
        true
    }

    /// Queue pairs with these numbers, at the port's own addresses, no longer exist. Returns whether the peer is one of
    /// them and a reliable connection ends; then this queue pair needs a round, and is listed for it.
    pub(crate) fn peer_gone(
        self: &Arc<Self>,
        qpns: &Range<u32>,
        now: Instant,
        effects: &mut Effects,
    ) -> bool {
        let Some(mut exchange) = self.open_exchange() else {
            return false;
        };
        let needs_round = target::program_gone(self, &mut exchange, qpns, effects);
        if needs_round && self.worker.listed.set() {
            return true;
        }
        let is_here = |route: &Route| self.port.has_address(route.dst);
        let connected = exchange
            .path
            .filter(|path| path.service != Service::Ud && qpns.contains(&path.dest_qpn.value()));
        let Some(path) = connected.filter(|_| exchange.route.as_ref().is_some_and(is_here)) else {
            return false;
        };
        let pin = pin();
        let Some(ends) = self.ends(&pin, &path, now) else {
            return false;
        };
        let mut events = Events::default();
        exchange.transport.peer_gone(&ends, &mut events);
        drop(pin);
        let mut machine = self.worker.machine.lock();
        self.handle_events(&mut exchange, &mut machine, events, None, effects);
        exchange.failing && self.worker.listed.set()
    }

    /// One round of the machine: what is due, and what can be sent.
    pub(crate) fn exchange(
        self: &Arc<Self>,
        exchange: &mut PacketQp,
        machine: &mut MutexGuard<'_, WorkerState>,
        mail: &mut TxContext<'_>,
        effects: &mut Effects,
    ) {
        if self.port.streams.is_some() {
            return stream::exchange_stream(self, exchange, machine, effects);
        }
        self.follow(exchange);
        let PacketQp {
            transport,
            path: Some(path),
            route,
            marked,
            quiet_until,
            ..
        } = &mut *exchange
        else {
            return;
        };
        if path.service == Service::Ud {
            return post_datagrams(self, exchange, machine, mail, effects);
        }
        let Some(route) = route else {
            return;
        };
        let (now, pin) = (mail.now, pin());
        let mut events = Events::default();
        if !can_complete(self, &pin, None, effects) {
            return;
        }
        let Some(ends) = self.ends(&pin, path, now) else {
            return;
        };
        if transport.deadline().is_some_and(|deadline| deadline <= now) {
            transport.expire(&ends, &mut events);
        }
        if events.migrate {
            drop(pin);
            effects.add(Effect::Again(self.events()));
            return self.handle_events(exchange, machine, events, None, effects);
        }
        let mut lane = mail.of(self.qpn, route);
        let more = transport.transmit(&ends, &mut lane, &mut events);
        drop(pin);
        if *marked && *quiet_until <= now && lane.is_ready() {
            *marked = false;
            *quiet_until = now + CNP_INTERVAL;
            self.port.counters.cnps_sent.up();
            notify_congestion(path, &mut lane);
        }
        if more {
            effects.add(Effect::Stalled(self.events()));
        } else if mail.acks != Acks::Now && exchange.transport.is_answering() {
            mail.deferred = true;
        }
        self.set_timer(exchange);
        if events.only_fires() {
            self.note_fires(None, &events, effects);
        } else {
            self.handle_more(exchange, machine, events, None, effects);
        }
        // The message that reports the reason to the peer has to be sent before sending stops.
        if exchange.failing && !exchange.transport.is_answering() {
            exchange.failing = false;
            effects.add(Effect::Fail(self.events()));
        }
    }

    /// The queue pair no longer sends. What its client may have seen is acknowledged before: otherwise the peer would
    /// ask a queue pair that does not answer, or no longer exists, until its retries are exceeded.
    pub(super) fn answer_last(
        self: &Arc<Self>,
        mail: Option<&mut TxContext<'_>>,
        effects: &mut Effects,
    ) {
        let (Some(exchange), Some(mail)) = (self.worker.exchange(), mail) else {
            return;
        };
        let mut exchange = exchange.lock();
        let PacketQp {
            transport,
            path: Some(path),
            route: Some(route),
            ..
        } = &mut *exchange
        else {
            return;
        };
        if transport.transmit_last(path, &mut mail.of(self.qpn, route)) {
            effects.add(Effect::Stalled(self.events()));
        }
    }

    /// Has the engine call at the machine's deadline, or before.
    pub(super) fn set_timer(self: &Arc<Self>, exchange: &mut PacketQp) {
        let Some(deadline) = exchange.transport.deadline() else {
            return;
        };
        let timer = &self.worker.timer;
        if timer.is_pending() && exchange.calls_at <= deadline {
            return;
        }
        call_at(self, exchange, deadline);
    }
}

/// Whether completions can be pushed now. On a loopback link other threads may own the queues, or be losing them:
/// then there is a round as soon as that is over. A packet that arrives in the meantime is lost, which services
/// with answers make up for.
#[inline]
fn can_complete(
    qp: &Arc<QueuePair>,
    pin: &Pin,
    named: Option<&XrcSrq>,
    effects: &mut Effects,
) -> bool {
    qp.port.is_wire() || may_push(qp, pin, named, effects)
}

#[cold]
fn may_push(qp: &Arc<QueuePair>, pin: &Pin, named: Option<&XrcSrq>, effects: &mut Effects) -> bool {
    let named = named.map(|named| &named.cq);
    let cqs = [Some(&qp.send_cq), Some(&qp.recv_cq), named];
    let refused = |cq: &&Arc<CqRing>| cq.enter(pin).is_none();
    let refused = cqs.into_iter().flatten().find(refused);
    if let Some(cq) = refused {
        effects.wait_for(cq, qp.events());
    }
    refused.is_none()
}

/// Whether a packet comes from where a connection's own packets go to. A datagram may come from any sender.
fn is_from_peer(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    packet: &Incoming<'_>,
    effects: &mut Effects,
) -> bool {
    let Some(path) = &exchange.path else {
        return false;
    };
    if path.service == Service::Ud {
        return true;
    }
    if path.migration.is_some() {
        return migration::is_from_either(qp, exchange, packet, effects);
    }
    let is_peer = |route: &Route| qp.port.is_peer(route, packet);
    exchange.route.as_ref().is_some_and(is_peer)
}

/// The peer reports that packets to it meet congestion.
fn slow_down(
    qp: &QueuePair,
    transport: &mut transport::Machine,
    now: Instant,
    effects: &mut Effects,
) {
    stats::record(qp, Told::CNP, effects);
    let counters = &qp.port.counters;
    counters.cnps_received.up();
    if let Some(config) = &qp.port.features.congestion
        && let Some(rate) = transport.congested(config, now)
    {
        counters.rate_cuts.up();
        counters.rate.set(rate);
    }
}

/// Reports a datagram whose key does not match; the machine drops it.
fn look_at_qkey(qp: &QueuePair, path: &Path, packet: &Incoming<'_>) {
    let deth = packet.head.ext().deth;
    if deth.is_some_and(|deth| deth.qkey != path.qkey) && qp.qp_type != QpType::Smi {
        qp.port.report(packet, true);
    }
}

/// Which entry of the P_Key table admits a packet, if any. Queue pair 0 does not check it; queue pair 1 is in all
/// of the port's partitions.
fn admits(qp: &QueuePair, path: &Path, packet: &Incoming<'_>) -> Option<u16> {
    let key = packet.head.bth().pkey;
    match qp.qp_type {
        QpType::Smi => Some(0),
        QpType::Gsi => qp.port.pkey_index(key),
        _ => path.pkey.matches(key).then_some(0),
    }
}

/// Whether a packet is for the other end of an extended connection: initiators take only answers, and targets only
/// requests.
fn is_other_end(qp: &QueuePair, packet: &Incoming<'_>) -> bool {
    match (qp.qp_type, packet.head.opcode().facts().role) {
        (QpType::XrcSend, role) => role != Role::Response,
        (QpType::XrcRecv, role) => role != Role::Request,
        _ => false,
    }
}

/// One round of a machine for datagrams.
fn post_datagrams(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    machine: &mut MutexGuard<'_, WorkerState>,
    mail: &mut TxContext<'_>,
    effects: &mut Effects,
) {
    let PacketQp {
        transport,
        path: Some(path),
        ..
    } = &mut *exchange
    else {
        return;
    };
    let mut events = Events::default();
    let pin = pin();
    if !can_complete(qp, &pin, None, effects) {
        return;
    }
    let Some(ends) = qp.ends(&pin, path, mail.now) else {
        return;
    };
    let mut post = Datagrams { qp, mail };
    if transport.post(&ends, &mut post, &mut events) {
        effects.add(Effect::Stalled(qp.events()));
    }
    drop(pin);
    qp.handle_events(exchange, machine, events, None, effects);
    if std::mem::take(&mut exchange.failing) {
        effects.add(Effect::Fail(qp.events()));
    }
}

// Apart, as most rounds find a call that is early enough.
#[inline(never)]
fn call_at(qp: &Arc<QueuePair>, exchange: &mut PacketQp, deadline: Instant) {
    let (timer, engine) = (&qp.worker.timer, &qp.port.engine);
    // A call that is too late is taken back: its time may be seconds away, and there may be thousands by then.
    if let (true, Some(late)) = (timer.is_pending(), exchange.call) {
        engine.cancel(late);
    }
    exchange.calls_at = deadline;
    let me = Arc::clone(qp) as Arc<dyn Due>;
    exchange.call = Some(engine.at(deadline, me, timer.ask()));
}
