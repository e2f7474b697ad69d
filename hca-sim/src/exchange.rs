//! A queue pair whose messages go as packets: what the sans-IO machine needs around it.
//!
//! Whoever holds the port's driver ([`crate::transport::Driver`]) is the only one to come here, so
//! nothing in here is ever contended. The attributes that control verbs change are taken over at the
//! beginning of each visit.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use verbs_core::mem::{Pin, pin};
use verbs_core::sync::Arc;
use verbs_core::sync::MutexGuard;
use verbs_core::{Access, Error, GlobalRoute, Mtu, Psn, QpAttr, QpCap, QpState, Qpn};

use crate::clock::Instant;
use crate::effects::Effects;
use crate::engaged::Machine;
use crate::engine::Due;
use crate::link::Route;
use crate::qp::QueuePair;
use crate::transport::rc::Rc;
use crate::transport::{Ends, Incoming, Mail, Notes, Outlet, Path};
use crate::wire::{Bth, BthFlags, Extended, Head, Opcode};

/// The ECN bits of a traffic class, and what they are when a switch has marked the packet.
const ECN: u8 = 0b11;
const CE: u8 = 0b11;
/// The least time between two congestion notifications of one queue pair. Marks come in bursts, and one
/// notification tells as much as many.
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Bytes of a congestion notification, all zero.
const CNP_PAYLOAD: usize = 16;

/// See the module's documentation.
pub(crate) struct Exchange {
    rc: Rc,
    /// What the attributes say, and where packets go; `None` as long as the queue pair names nobody, or
    /// no address of the port.
    path: Option<(Path, Route)>,
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

impl Exchange {
    /// A machine for a queue pair of those sizes, with all that it will ever allocate.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(cap: &QpCap) -> Result<Self, Error> {
        Ok(Self {
            rc: Rc::new(cap)?,
            path: None,
            followed: None,
            timer: None,
            failing: false,
            marked: false,
            quiet_until: Instant::ZERO,
        })
    }

    /// Back to how it was made.
    pub(crate) fn reset(&mut self) {
        self.rc.reset();
        (self.path, self.followed) = (None, None);
        (self.marked, self.failing) = (false, false);
    }

    /// See [`Rc::abandon`].
    pub(crate) fn abandon(&mut self) -> Option<u64> {
        self.rc.abandon()
    }

    /// Whether every message that was begun has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.rc.is_drained()
    }

    /// Takes over what control verbs have changed.
    fn follow(&mut self, qp: &QueuePair) {
        let Some(driver) = &qp.port.driver else {
            return;
        };
        let now = (qp.changes(), driver.changes());
        if self.followed == Some(now) {
            return;
        }
        self.followed = Some(now);
        let attr = qp.control.lock().attr;
        let route = attr.av.and_then(|av| route(&av.global?, qp));
        self.path = route.map(|route| (path(&attr, qp), route));
    }
}

/// What the attributes say about the connection.
fn path(attr: &QpAttr, qp: &QueuePair) -> Path {
    Path {
        dest_qpn: attr.dest_qpn.unwrap_or(Qpn::new(0)),
        pkey: qp.port.sheet().pkey,
        mtu: attr.path_mtu.unwrap_or(Mtu::B256),
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

fn route(global: &GlobalRoute, qp: &QueuePair) -> Option<Route> {
    let src = qp.port.gid(global.sgid_index)?;
    Some(Route {
        src: IpAddr::from(src),
        dst: IpAddr::from(global.dgid),
        tclass: global.traffic_class,
        hop_limit: global.hop_limit,
    })
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

    /// A packet for this queue pair; its ICRC is right. Whether the machine has seen it, so that it wants
    /// a round.
    pub(crate) fn take_packet(
        self: &Arc<Self>,
        packet: &Incoming<'_>,
        now: Instant,
        effects: &mut Effects,
    ) -> bool {
        let Some(exchange) = self.engaged.exchange() else {
            return false;
        };
        if self.engaged.is_closing() {
            return false;
        }
        let mut exchange = exchange.lock();
        exchange.follow(self);
        let Exchange {
            rc, path, marked, ..
        } = &mut *exchange;
        let counters = &self.port.counters;
        let known =
            |(_, route): &&(Path, Route)| route.dst == packet.src && route.src == packet.dst;
        let Some((path, _)) = path.as_ref().filter(known) else {
            counters.strangers.up();
            return false;
        };
        if !path.pkey.matches(packet.head.bth().pkey) {
            counters.bad_pkeys.up();
            return false;
        }
        if packet.head.opcode() == Opcode::CNP {
            counters.cnps_received.up();
            return false;
        }
        *marked |= packet.tclass & ECN == CE;
        let pin = pin();
        let Some(ends) = self.ends(&pin, path, now) else {
            return false;
        };
        let mut notes = Notes::default();
        rc.receive(&ends, &packet.head, packet.payload, &mut notes);
        drop(pin);
        let mut machine = self.engaged.machine.lock();
        self.see_to_notes(&mut exchange, &mut machine, notes, effects);
        true
    }

    /// One round of the machine: what is due, and what can be sent.
    pub(crate) fn exchange(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        machine: &mut MutexGuard<'_, Machine>,
        mail: &mut Mail<'_>,
        effects: &mut Effects,
    ) {
        exchange.follow(self);
        let Some((path, route)) = exchange.path else {
            return;
        };
        let now = self.port.engine.now();
        let mut notes = Notes::default();
        let pin = pin();
        let Some(ends) = self.ends(&pin, &path, now) else {
            return;
        };
        let rc = &mut exchange.rc;
        if rc.deadline().is_some_and(|deadline| deadline <= now) {
            rc.expire(&ends, &mut notes);
        }
        let mut lane = mail.of(self.qpn, route);
        let more = rc.transmit(&ends, &mut lane, &mut notes);
        drop(pin);
        if exchange.marked && exchange.quiet_until <= now && lane.is_ready() {
            exchange.marked = false;
            exchange.quiet_until = now + CNP_INTERVAL;
            notify_congestion(&path, &mut lane);
        }
        if more {
            effects.stalled.push(Arc::clone(self));
        } else if !mail.acknowledges && exchange.rc.is_answering() {
            mail.later.push(Arc::clone(self));
        }
        self.set_timer(exchange, now);
        self.see_to_notes(exchange, machine, notes, effects);
        // What tells the peer why has to leave before nothing leaves any more.
        if exchange.failing && !exchange.rc.is_answering() {
            exchange.failing = false;
            effects.fail.push(Arc::clone(self));
        }
    }

    fn see_to_notes(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        machine: &mut Machine,
        notes: Notes,
        effects: &mut Effects,
    ) {
        if notes.failed.is_some() {
            machine.failed = notes.failed;
        }
        exchange.failing |= notes.fail;
        effects.note_packets(self, notes);
    }

    /// Has the engine call at the machine's deadline. A call that comes early finds nothing to do and
    /// sets the next; so there is one at a time, although the deadline moves with every packet.
    fn set_timer(self: &Arc<Self>, exchange: &mut Exchange, now: Instant) {
        let pending = exchange.timer.filter(|&timer| timer > now);
        let Some(deadline) = exchange.rc.deadline() else {
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

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("path", &self.path)
            .field("timer", &self.timer)
            .finish_non_exhaustive()
    }
}
