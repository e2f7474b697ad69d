//! A queue pair whose messages go as packets: what the sans-IO machine needs around it.
//!
//! Whoever holds the port's driver ([`crate::port::Driver`]) is the only one to come here, so
//! nothing in here is ever contended. The attributes that control verbs change are taken over at the
//! beginning of each visit.

use std::time::Duration;

use verbs_core::mem::{Pin, pin};
use verbs_core::sync::Arc;
use verbs_core::sync::MutexGuard;
use verbs_core::sync::atomic::Ordering::Acquire;
use verbs_core::{Access, Datagram, Mtu, PKey, Psn, QpAttr, QpState, QpType, Qpn};

use crate::clock::Instant;
use crate::engine::Due;
use crate::link::Route;
use crate::qp::QueuePair;
use crate::qp::effects::Effects;
use crate::qp::worker::Machine;
use crate::qp::worker::packet_qp::PacketQp;
use crate::queue::cq::CqRing;
use crate::queue::srq::{Named, SharedReceives};
use crate::transport::{Ends, Incoming, Notes, Outlet, Path, Post, TxContext};
use crate::wire::{Bth, BthFlags, Extended, Head, Opcode, Role, Service};

/// The ECN bits of a traffic class, and what they are when a switch has marked the packet.
const ECN: u8 = 0b11;
const CE: u8 = 0b11;
/// The least time between two congestion notifications of one queue pair. Marks come in bursts, and one
/// notification tells as much as many.
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Bytes of a congestion notification, all zero.
const CNP_PAYLOAD: usize = 16;

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
    /// Takes over what control verbs have changed.
    fn follow(&self, exchange: &mut PacketQp) {
        let Some(driver) = self.port.driver() else {
            return;
        };
        let now = (self.changes(), driver.changes());
        if exchange.followed == Some(now) {
            return;
        }
        exchange.followed = Some(now);
        let attr = self.control.lock().attr();
        exchange.path = Some(path(&attr, self));
        exchange.route = attr.av.and_then(|av| self.port.route(&av));
    }

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
            effects.wait_for(cq, self.events());
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
        self.follow(&mut exchange);
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
        self.follow(exchange);
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
            effects.stalled.push(self.events());
        } else if !mail.acknowledges && exchange.transport.is_answering() {
            mail.deferred = true;
        }
        self.set_timer(exchange, now);
        self.see_to_notes(exchange, machine, notes, None, effects);
        // What tells the peer why has to leave before nothing leaves any more.
        if exchange.failing && !exchange.transport.is_answering() {
            exchange.failing = false;
            effects.fail.push(self.events());
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
            effects.stalled.push(self.events());
        }
        drop(pin);
        self.see_to_notes(exchange, machine, notes, None, effects);
        if std::mem::take(&mut exchange.failing) {
            effects.fail.push(self.events());
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
        self.note_packets(named, notes, effects);
    }

    /// Notes what a connection over packets leads to; `named` is the shared receive queue that a request
    /// named.
    fn note_packets(
        self: &Arc<Self>,
        named: Option<&Arc<SharedReceives>>,
        notes: Notes,
        effects: &mut Effects,
    ) {
        let srq = named.or(self.srq.as_ref());
        let recv_cq = named.and_then(|srq| srq.named.as_ref());
        let recv_cq = recv_cq.map_or(&self.recv_cq, |named| &named.cq);
        let Notes {
            fire_send,
            fire_recv,
            overrun_send,
            overrun_recv,
            srq_limit,
            contact,
            fail: _,
            fail_sends,
            event,
            failed: _,
            settle,
            again,
            later,
        } = notes;
        let noted = |wanted: bool, cq: &Arc<CqRing>| wanted.then(|| Arc::clone(cq));
        let own = |index| (Arc::clone(&self.port.mrs), index);
        effects.settle.extend(settle.into_iter().flatten().map(own));
        if again {
            effects.again.push(self.events());
        }
        effects
            .later
            .extend(later.map(|index| (self.events(), Arc::clone(&self.port.mrs), index)));
        effects.fire.extend(noted(fire_send, &self.send_cq));
        effects.fire.extend(noted(fire_recv, recv_cq));
        effects.overrun.extend(noted(overrun_send, &self.send_cq));
        effects.overrun.extend(noted(overrun_recv, recv_cq));
        if srq_limit {
            effects.srq_limit.extend(srq.cloned());
        }
        if fail_sends {
            effects.fail_sends.push(self.events());
        }
        if contact && !self.contacted.load(Acquire) {
            effects.contact.push(self.events());
        }
        effects
            .raise
            .extend(event.map(|event| (self.events(), event)));
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
