//! Queue pairs: their state, and the control verbs that change it.
//!
//! The state is part of the queue pair's touch word, so that posts see it under their pin and control
//! verbs know whom to wait for. It changes under the lock of the link, on which the fit of two queue
//! pairs is decided ([`crate::landing`]).
//!
//! A verb that takes something away from posters (to ERR, RESET or SQD, fewer rights, destroy) changes
//! the word, kills the landings, and completes when the grace period is over and the rings are flushed
//! (K11).

use std::fmt;

use verbs_core::command::Pending;
use verbs_core::mem::{Pin, TouchWord, Touched, Who, grace};
use verbs_core::qp::{DestroyQp, ModifyQp, QpCore};
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use verbs_core::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use verbs_core::yard::Common;
use verbs_core::{Command, Error, PostError, QpAttr, QpCap, QpInfo, QpState, QpType, Qpn};

use crate::cq::CqRing;
use crate::engaged::Engaged;
use crate::exchange::Exchange;
use crate::gate::{Gate, flag};
use crate::landing::Landing;
use crate::link::Links;
use crate::port::{Driver, Port};
use crate::qp_check;
use crate::recv::RecvRing;
use crate::ring::SendRing;
use crate::srq::SharedReceives;
use crate::wire::Service;

/// What all parts of a queue pair share.
pub(crate) struct QueuePair {
    pub(crate) gate: Common<Gate>,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    /// The protection domain. Of a target of extended reliable connections, the domain of those: memory is
    /// checked against the queue that a request names.
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) blocks_own_multicast: bool,
    pub(crate) port: Arc<Port>,
    pub(crate) send_cq: Arc<CqRing>,
    pub(crate) recv_cq: Arc<CqRing>,
    /// Where its receives come from, if not from its own queue.
    pub(crate) srq: Option<Arc<SharedReceives>>,
    pub(crate) engaged: Engaged,
    pub(crate) control: Mutex<Control>,
    pub(crate) me: Weak<Self>,
    /// Allocated by the first transition to INIT.
    sends: OnceLock<Common<SendRing>>,
    recvs: OnceLock<Common<RecvRing>>,
    /// How often it was reset.
    resets: AtomicU32,
    /// How often its attributes changed.
    changes: AtomicU32,
    /// A message came since it was in RESET.
    pub(crate) contacted: AtomicBool,
    /// Whom its events are about; set before the handle is given out.
    pub(crate) core: OnceLock<Weak<QpCore>>,
}

/// What control verbs change. Taken under the lock of the link, or alone; never while anything else is
/// waited for.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// `None` as long as it has none, which is all that is in RESET.
    attr: Option<Box<QpAttr>>,
    /// The way into the peer.
    pub(crate) out: Option<Common<Landing>>,
    /// Verbs that complete when the grace period is over and the rings are flushed.
    pub(crate) finish: Vec<Finish>,
    /// SQD was entered, and the client wants to hear when the send queue has drained.
    pub(crate) tell_drained: bool,
    /// ERR was entered on a shared receive queue, and the client has not heard yet that no more
    /// receives are taken.
    pub(crate) tell_last_wqe: bool,
}

impl Control {
    /// The attributes, those that were set.
    pub(crate) fn attr(&self) -> QpAttr {
        self.attr.as_deref().copied().unwrap_or_default()
    }
}

/// A verb that is done but for the waiting.
#[derive(Debug)]
pub(crate) enum Finish {
    Modify(Pending<ModifyQp>),
    Destroy(Pending<DestroyQp>),
}

impl Finish {
    pub(crate) fn complete(self) {
        match self {
            Self::Modify(pending) => pending.complete(Ok(())),
            Self::Destroy(pending) => pending.complete(Ok(())),
        }
    }
}

/// What a new queue pair is made from.
pub(crate) struct Init {
    pub(crate) port: Arc<Port>,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) blocks_own_multicast: bool,
    pub(crate) send_cq: Arc<CqRing>,
    pub(crate) recv_cq: Arc<CqRing>,
    pub(crate) srq: Option<Arc<SharedReceives>>,
}

const fn tag_of(state: QpState) -> u32 {
    let takes = matches!(
        state,
        QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    );
    state as u32 | if takes { flag::TAKES_RECVS } else { 0 }
}

fn state_of(tag: u32) -> QpState {
    let number = (tag & flag::STATE) as usize;
    QpState::ALL.get(number).copied().unwrap_or(QpState::Err)
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.recv_cq.count_receiver(false);
    }
}

impl QueuePair {
    /// A queue pair in RESET.
    pub(crate) fn new(qpn: Qpn, init: Init) -> Arc<Self> {
        let Init {
            port,
            qp_type,
            pd,
            cap,
            sq_sig_all,
            blocks_own_multicast,
            send_cq,
            recv_cq,
            srq,
        } = init;
        recv_cq.count_receiver(true);
        Arc::new_cyclic(|me| Self {
            gate: port.yard.common_or_abort(Gate {
                word: TouchWord::new(tag_of(QpState::Reset)),
                asked: AtomicU8::new(0),
            }),
            qpn,
            qp_type,
            pd,
            cap,
            sq_sig_all,
            blocks_own_multicast,
            port,
            send_cq,
            recv_cq,
            srq,
            engaged: Engaged::default(),
            control: Mutex::new(Control::default()),
            me: Weak::clone(me),
            sends: OnceLock::new(),
            recvs: OnceLock::new(),
            resets: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            contacted: AtomicBool::new(false),
            core: OnceLock::new(),
        })
    }

    /// This queue pair, for looks at memory.
    pub(crate) fn who(&self) -> Who {
        Who {
            pd: self.pd,
            qpn: self.qpn.value(),
        }
    }

    /// The service that its packets belong to.
    pub(crate) fn service(&self) -> Service {
        match self.qp_type {
            QpType::Uc => Service::Uc,
            QpType::Ud | QpType::Gsi | QpType::Smi => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            _ => Service::Rc,
        }
    }

    /// Whether it is queue pair 0 or 1.
    pub(crate) fn is_special(&self) -> bool {
        matches!(self.qp_type, QpType::Smi | QpType::Gsi)
    }

    /// Whether its messages go as packets, and are never placed directly.
    pub(crate) fn goes_as_packets(&self) -> bool {
        self.port.is_wire() || self.qp_type != QpType::Rc
    }

    /// What drives its machine, if its messages go as packets.
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.port.driver().filter(|_| self.goes_as_packets())
    }

    pub(crate) fn state(&self) -> QpState {
        state_of(self.gate.word.tag())
    }

    pub(crate) fn send_ring(&self) -> Option<&Common<SendRing>> {
        self.sends.get()
    }

    pub(crate) fn recv_ring(&self) -> Option<&Common<RecvRing>> {
        self.recvs.get()
    }

    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Acquire)
    }

    /// How often its attributes changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Acquire)
    }

    /// The way into the peer, if both fit.
    pub(crate) fn landing(&self) -> Option<Common<Landing>> {
        self.control
            .lock()
            .out
            .clone()
            .filter(|land| land.is_alive())
    }

    /// A receive was posted that the peer's machine waits for.
    #[cold]
    pub(crate) fn call_sender(&self) {
        let attr = self.control.lock().attr();
        let peer = self.named_peer(&self.port.link.lock(), &attr).cloned();
        if let Some(peer) = peer {
            peer.kick();
        }
    }

    /// Whether sends can be posted, and the state.
    pub(crate) fn check_post_send(&self) -> Result<QpState, PostError> {
        let state = refusal(self.gate.word.tag())?;
        if state.refuses_sends() {
            Err(PostError::State(state))
        } else {
            Ok(state)
        }
    }

    /// Whether receives can be posted.
    pub(crate) fn check_post_recv(&self) -> Result<(), PostError> {
        match refusal(self.gate.word.tag())? {
            QpState::Reset => Err(PostError::State(QpState::Reset)),
            _ => Ok(()),
        }
    }

    /// As [`QueuePair::check_post_send`], valid until the pin is left.
    pub(crate) fn enter_to_post_send(&self, pin: &Pin) -> Result<(), PostError> {
        loop {
            let tag = self.gate.word.tag();
            let state = refusal(tag)?;
            if state.refuses_sends() {
                return Err(PostError::State(state));
            }
            if self.gate.word.admits(pin, TouchWord::TAG, tag) {
                return Ok(());
            }
        }
    }

    /// As [`QueuePair::check_post_recv`], valid until the pin is left.
    pub(crate) fn enter_to_post_recv(&self, pin: &Pin) -> Result<(), PostError> {
        loop {
            let tag = self.gate.word.tag();
            if refusal(tag)? == QpState::Reset {
                return Err(PostError::State(QpState::Reset));
            }
            if self.gate.word.admits(pin, TouchWord::TAG, tag) {
                return Ok(());
            }
        }
    }

    /// The state, if packets may come and go in it; it stays that until the pin is left.
    pub(crate) fn enter_to_exchange(&self, pin: &Pin) -> Option<QpState> {
        loop {
            let tag = self.gate.word.tag();
            let state = refusal(tag).ok()?;
            if !takes_packets(state) {
                return None;
            }
            if self.gate.word.admits(pin, TouchWord::TAG, tag) {
                return Some(state);
            }
        }
    }

    /// The verb of that name.
    pub(crate) fn modify(self: &Arc<Self>, command: Command<'_, ModifyQp>) {
        let links = self.port.link.lock();
        let change = command.attr;
        let from = self.state();
        let to = change.state.unwrap_or(from);
        let checked = self
            .may_change()
            .and_then(|()| qp_check::check(self.qp_type, from, to, &change))
            .and_then(|()| self.port.check_path(&change));
        let checked = checked.and_then(|()| self.allocate(to));
        if let Err(error) = checked {
            drop(links);
            return command.complete(Err(error));
        }
        let takes_away = matches!(to, QpState::Err | QpState::Reset | QpState::Sqd)
            || change.access.is_some()
                && matches!(from, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !takes_away {
            // Nothing is taken away, so nobody is waited for.
            let _ = self.apply(from, to, &change).and(self.repair(&links));
            drop(links);
            command.complete(Ok(()));
            return self.wake_both();
        }
        // Pending comes first: when its limit refuses the verb, nothing has been done.
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let before = self.control.lock().attr();
        let touched = self
            .apply(from, to, &change)
            .and(self.repair_after(&links, &before));
        self.control.lock().finish.push(Finish::Modify(pending));
        self.close(links, touched);
        self.wake_both();
    }

    /// Changes that take nothing away, without a verb.
    #[cfg(all(test, verbs_loom))]
    pub(crate) fn change(self: &Arc<Self>, changes: &[QpAttr]) {
        let links = self.port.link.lock();
        for change in changes {
            let (from, to) = (self.state(), change.state.unwrap_or(self.state()));
            qp_check::check(QpType::Rc, from, to, change).expect("a model makes legal changes");
            self.allocate(to).expect("a model has memory");
            let _ = self.apply(from, to, change).and(self.repair(&links));
        }
    }

    /// The verb of that name: flushes and lets go.
    pub(crate) fn destroy(self: &Arc<Self>, command: Command<'_, DestroyQp>) {
        let mut links = self.port.link.lock();
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let touched = self.take_away(&links, flag::GONE);
        links.leave(self.port.lid, self.qpn);
        self.control.lock().finish.push(Finish::Destroy(pending));
        self.close(links, touched);
    }

    /// Goes to ERR for a reason that a completion or an event tells; `false` if it is in RESET or ERR.
    pub(crate) fn fail(self: &Arc<Self>) -> bool {
        let links = self.port.link.lock();
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return false;
        }
        let touched = self.take_away(&links, 0);
        self.close(links, touched);
        true
    }

    /// Its send queue goes to SQE for a reason that a completion tells; receives go on.
    pub(crate) fn fail_sends(self: &Arc<Self>) {
        let links = self.port.link.lock();
        if self.state() != QpState::Rts && self.state() != QpState::Sqd {
            return;
        }
        let touched = self.set_state(QpState::Sqe, 0);
        self.close(links, touched);
    }

    /// The device has gone.
    pub(crate) fn remove(self: &Arc<Self>) {
        let links = self.port.link.lock();
        let touched = self.take_away(&links, flag::REMOVED);
        self.close(links, touched);
    }

    /// Its attributes as they are now.
    pub(crate) fn query(&self) -> QpInfo {
        let state = self.state();
        let mut attr = self.control.lock().attr();
        attr.state = Some(state);
        if let (Some(sends), true) = (self.send_ring(), attr.sq_psn.is_some()) {
            attr.sq_psn = Some(verbs_core::Psn::new(sends.psn()));
        }
        if let (Some(recvs), true) = (self.recv_ring(), attr.rq_psn.is_some()) {
            attr.rq_psn = Some(verbs_core::Psn::new(recvs.epsn()));
        }
        QpInfo {
            state,
            attr,
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
            sq_draining: false,
        }
    }

    fn may_change(&self) -> Result<(), Error> {
        match self.gate.word.tag() {
            tag if tag & flag::REMOVED != 0 => Err(Error::DeviceRemoved),
            tag if tag & flag::GONE != 0 => Err(Error::Closing),
            _ => Ok(()),
        }
    }

    /// The rings, when they are needed first.
    fn allocate(&self, to: QpState) -> Result<(), Error> {
        if to != QpState::Init || self.sends.get().is_some() {
            return Ok(());
        }
        let yard = &self.port.yard;
        let sends = SendRing::new(yard, &self.cap, self.service())?;
        let recvs = RecvRing::new(yard, self.cap.max_recv_wr, self.cap.max_recv_sge)?;
        let (sends, recvs) = (yard.common(sends)?, yard.common(recvs)?);
        if self.goes_as_packets() {
            self.engaged
                .set_exchange(Exchange::new(self.qp_type, &self.cap)?);
        }
        // Under the lock of the link nobody else does this.
        let _ = self.recvs.set(recvs);
        let _ = self.sends.set(sends);
        Ok(())
    }

    /// Takes over a change that has been checked. Whom to wait for if it takes something away.
    fn apply(&self, from: QpState, to: QpState, change: &QpAttr) -> Touched {
        let mut control = self.control.lock();
        let attr = control.attr.get_or_insert_default();
        attr.apply(change);
        attr.state = Some(to);
        attr.cur_state = None;
        if to == QpState::Reset {
            control.attr = None;
            self.resets.fetch_add(1, AcqRel);
            self.contacted.store(false, Relaxed);
        }
        if from != to {
            control.tell_drained = to == QpState::Sqd && change.en_sqd_async_notify == Some(true);
            control.tell_last_wqe = to == QpState::Err && self.srq.is_some();
        }
        drop(control);
        self.changes.fetch_add(1, AcqRel);
        if let Some(recvs) = self.recv_ring() {
            if let Some(psn) = change.rq_psn {
                recvs.expect(psn.value());
            }
            if let Some(code) = change.min_rnr_timer {
                recvs.set_rnr_timer(code);
            }
        }
        if let (Some(sends), Some(psn)) = (self.send_ring(), change.sq_psn) {
            sends.set_psn(psn.value());
        }
        if from == to {
            return Touched::NOBODY;
        }
        self.set_state(to, 0)
    }

    fn set_state(&self, to: QpState, flags: u32) -> Touched {
        let keep = flag::GONE | flag::REMOVED;
        let changed = self
            .gate
            .word
            .update(|tag| Some(tag & keep | tag_of(to) | flags));
        if let Some(managed) = self.port.managed.as_ref().filter(|_| self.is_special()) {
            let attends = takes_packets(to) && self.gate.word.tag() & keep == 0;
            managed.attend(self.qpn, attends);
        }
        changed.map_or(Touched::NOBODY, |(_, touched)| touched)
    }

    /// To ERR, whatever it was; RESET stays, as there is nothing to flush.
    fn take_away(self: &Arc<Self>, links: &Links, flags: u32) -> Touched {
        let to = if self.state() == QpState::Reset {
            QpState::Reset
        } else {
            QpState::Err
        };
        if to == QpState::Err && self.state() != to {
            self.control.lock().tell_last_wqe = self.srq.is_some();
        }
        let touched = self.set_state(to, flags);
        let before = self.control.lock().attr();
        touched.and(self.repair_after(links, &before))
    }

    /// Flushes and completes what waits for it, once nobody can be inside any more. Until then no new
    /// landing begins or ends here: there would be two owners of one direction.
    fn close(self: &Arc<Self>, links: MutexGuard<'_, Links>, touched: Touched) {
        self.begin_close(&links);
        drop(links);
        self.end_close(touched);
    }

    /// No landing begins here from now on; under the lock under which the old one was taken away.
    pub(crate) fn begin_close(&self, _links: &Links) {
        self.engaged.closing.fetch_add(1, AcqRel);
    }

    /// The rest of what [`QueuePair::begin_close`] has begun, outside of locks.
    pub(crate) fn end_close(self: &Arc<Self>, touched: Touched) {
        let me = Arc::clone(self);
        // Nothing is written by pollers when this is over.
        let berths = self.berths();
        let pollers = berths.as_ref().map(|berths| berths.ring.shut_out_pollers());
        let touched = touched.and(pollers.unwrap_or(Touched::NOBODY));
        grace::after(touched, move || {
            if let Some(berths) = berths {
                me.end_riding(&berths);
            }
            me.engaged.closing.fetch_sub(1, AcqRel);
            me.turn();
            let links = me.port.link.lock();
            // What a landing is made for since has nobody to wait for.
            let _ = me.repair(&links);
            drop(links);
            me.wake_both();
        });
    }

    /// Both ends may go on now: a machine waited for the other to be ready.
    fn wake_both(self: &Arc<Self>) {
        let attr = self.control.lock().attr();
        let peer = self.named_peer(&self.port.link.lock(), &attr).cloned();
        for qp in peer.iter().chain([self]) {
            qp.wake();
        }
    }

    /// Goes on with what waits, if anything does.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.send_ring().is_some_and(|sends| !sends.is_drained()) {
            self.kick();
        }
    }
}

/// Whether packets may come in that state, or go.
const fn takes_packets(state: QpState) -> bool {
    matches!(
        state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    )
}

/// The state, if anything can be posted at all.
fn refusal(tag: u32) -> Result<QpState, PostError> {
    if tag & flag::REMOVED != 0 {
        return Err(PostError::DeviceRemoved);
    }
    if tag & flag::GONE != 0 {
        return Err(PostError::Destroyed);
    }
    Ok(state_of(tag))
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let closing = self.engaged.closing.load(Relaxed);
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn)
            .field("state", &self.state())
            .field("closing", &closing)
            .finish_non_exhaustive()
    }
}
