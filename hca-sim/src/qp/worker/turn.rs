//! A turn of a queue pair's machine: which thread takes it, what one round does in each state, and its effects.

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::{Acquire, Release};
use verbs_core::{EventType, QpState, collect};

use crate::clock::Instant;
use crate::direct::message::Done;
use crate::direct::path::DirectPath;
use crate::effects::{Effect, Effects};
use crate::engine::Due;
use crate::port::ready::{Listed, Mark};
use crate::qp::QueuePair;
use crate::qp::stats;
use crate::qp::worker::packet_qp::PacketQp;
use crate::qp::worker::{Oldest, Worker, WorkerState};
use crate::qp::worker::{flush, loopback, migration, stream, target};
use crate::queue::base::events::WaitsForCq;
use crate::queue::cq::CqRing;
use crate::queue::srq::SharedReceives;
use crate::transport::{Events, Facts, TxContext};

impl Listed for QueuePair {
    fn mark(&self) -> &Mark {
        &self.worker.listed
    }
}

impl QueuePair {
    /// Whether a message that was begun has not ended yet, or a poster may still be inside one that is placed directly:
    /// what `sq_draining` reports in SQD (IBTA vol. 1, 10.3.1.6).
    pub(crate) fn is_draining(&self) -> bool {
        self.worker.is_closing() || !is_drained(self)
    }

    /// Does what can be done; see the module's documentation. Called outside any pin.
    pub(crate) fn turn(self: &Arc<Self>) {
        if let Some(driver) = self.driver() {
            return driver.serve(self);
        }
        // Leaving a pin inside may complete verbs, and their routines must not run under a machine's lock.
        collect(|| take_turns(self));
    }

    /// There is a reason to try again at once.
    pub(crate) fn kick(self: &Arc<Self>) {
        self.worker.kicked.store(true, Release);
        self.turn();
    }

    /// Records the effects of a message that was placed directly.
    pub(super) fn note(&self, direct: &DirectPath, done: Done, effects: &mut Effects) {
        if done.fire_recv {
            effects.few().fire.push(Arc::clone(&direct.cq));
        }
        if done.overrun_recv {
            effects.add(Effect::Overrun(Arc::clone(&direct.cq)));
        }
        self.note_own(done, effects);
        if done.srq_limit {
            effects.add_all(direct.srq.clone().map(Effect::SrqLimit));
        }
        if done.fail_responder {
            effects.add_all(direct.responder.upgrade().map(Effect::Fail));
        }
        if let Some(index) = done.settle {
            let theirs = Effect::Settle(Arc::clone(&direct.mrs), index);
            effects.add(theirs);
        }
    }

    /// Records the effects that concern the sender alone.
    pub(super) fn note_own(&self, done: Done, effects: &mut Effects) {
        if done.fire_send {
            effects.few().fire.push(Arc::clone(&self.send_cq));
        }
        if done.overrun_send {
            effects.add(Effect::Overrun(Arc::clone(&self.send_cq)));
        }
        if let Some(index) = done.settle_own {
            let own = Effect::Settle(Arc::clone(&self.port.mrs), index);
            effects.add(own);
        }
    }

    /// Records what follows from a machine's work; `named` is the shared receive queue that a request named.
    #[inline]
    pub(super) fn handle_events(
        self: &Arc<Self>,
        exchange: &mut PacketQp,
        machine: &mut WorkerState,
        events: Events,
        named: Option<&Arc<SharedReceives>>,
        effects: &mut Effects,
    ) {
        if events.only_fires() {
            return self.note_fires(named, &events, effects);
        }
        self.handle_more(exchange, machine, events, named, effects);
    }

    #[cold]
    pub(super) fn handle_more(
        self: &Arc<Self>,
        exchange: &mut PacketQp,
        machine: &mut WorkerState,
        events: Events,
        named: Option<&Arc<SharedReceives>>,
        effects: &mut Effects,
    ) {
        if let Some(at) = events.failed {
            machine.oldest = Oldest::Failed(at);
        }
        exchange.failing |= events.fail;
        if events.fail {
            target::note_event(exchange, events.event);
        }
        if events.migrate {
            migration::migrate(self, exchange, effects);
        }
        note_events(self, named, events, effects);
    }

    /// Records which completion queues have new entries that a handler waits for.
    #[inline(always)]
    pub(super) fn note_fires(
        &self,
        named: Option<&Arc<SharedReceives>>,
        events: &Events,
        effects: &mut Effects,
    ) {
        if events.fire_send {
            effects.few().fire.push(Arc::clone(&self.send_cq));
        }
        if events.fire_recv {
            effects.few().fire.push(Arc::clone(recv_cq_of(self, named)));
        }
    }

    /// Carries out the effects of a message that its poster has carried out.
    pub(crate) fn handle_done(self: &Arc<Self>, direct: &DirectPath, done: Done) {
        if done.only_fires() {
            return collect(|| {
                if done.fire_recv {
                    direct.cq.fire();
                }
                if done.fire_send {
                    self.send_cq.fire();
                }
            });
        }
        self.handle_all(direct, done);
    }

    // Apart, because most messages only fire.
    #[cold]
    #[inline(never)]
    fn handle_all(self: &Arc<Self>, direct: &DirectPath, done: Done) {
        let mut effects = Effects::default();
        self.note(direct, done, &mut effects);
        // Nothing is put off by a message that is done.
        effects.carry_out(&|cq| self.port.overrun(cq));
    }

    /// One round, by the holder; `mail` if packets carry its messages.
    pub(crate) fn round(self: &Arc<Self>, mail: Option<&mut TxContext<'_>>, effects: &mut Effects) {
        match self.worker.closing.load(Acquire) {
            0 => {}
            Worker::SHARES => return target::round(self, mail, effects),
            _ => return,
        }
        let mut machine = self.worker.machine.lock();
        let over = match self.state() {
            QpState::Sqe => {
                let over = flush::flush_sends(self, &mut machine, effects);
                if let Some(exchange) = self.worker.exchange() {
                    exchange.lock().resume();
                }
                over
            }
            QpState::Err => {
                self.answer_last(mail, effects);
                stream::leave_stream(self, effects);
                flush::flush(self, &mut machine, effects)
            }
            QpState::Reset => {
                self.answer_last(mail, effects);
                stream::leave_stream(self, effects);
                *machine = WorkerState::default();
                if let Some(exchange) = self.worker.exchange() {
                    exchange.lock().reset();
                }
                flush::discard(self);
                true
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd if mail.is_some() => {
                if let (Some(exchange), Some(mail)) = (self.worker.exchange(), mail) {
                    self.exchange(&mut exchange.lock(), &mut machine, mail, effects);
                }
                true
            }
            QpState::Rts => {
                loopback::run(self, &mut machine, effects);
                true
            }
            _ => true,
        };
        drop(machine);
        if over && self.worker.owes.is_set() {
            // Checked before the lock is taken: elsewhere the lock is taken while the connection is held.
            let drained = is_drained(self);
            let mut control = self.control.lock();
            if !control.finish.is_empty() {
                effects.few().finish.extend(control.finish.drain(..));
            }
            if drained && std::mem::take(&mut control.tell_drained) {
                let me = self.events();
                effects.add(Effect::Raise(me, EventType::SqDrained));
            }
            if self.state() == QpState::Err && std::mem::take(&mut control.tell_last_wqe) {
                let me = self.events();
                effects.add(Effect::Raise(me, EventType::QpLastWqeReached));
            }
            let owes = control.tell_drained || control.tell_last_wqe;
            self.worker.owes.keep(owes);
        }
    }
}

/// Whether every message that was begun has ended; over packets that takes time.
fn is_drained(qp: &QueuePair) -> bool {
    let exchange = qp.worker.exchange();
    qp.state() != QpState::Sqd || exchange.is_none_or(|exchange| exchange.lock().is_drained())
}

fn take_turns(qp: &Arc<QueuePair>) {
    while let Some(mut held) = qp.worker.turns.hold() {
        let mut effects = Effects::default();
        loop {
            qp.round(None, &mut effects);
            match held.leave() {
                Some(again) => held = again,
                None => break,
            }
        }
        if effects.carry_out(&|cq| qp.port.overrun(cq)).is_empty() {
            return;
        }
    }
}

/// The completion queue of receives; `named` is the shared receive queue that a request named.
fn recv_cq_of<'a>(qp: &'a QueuePair, named: Option<&'a Arc<SharedReceives>>) -> &'a Arc<CqRing> {
    let own = named.and_then(|srq| srq.xrc.as_ref());
    own.map_or(&qp.recv_cq, |own| &own.cq)
}

/// Records the effects of a connection over packets; `named` is the shared receive queue that a request named.
fn note_events(
    qp: &Arc<QueuePair>,
    named: Option<&Arc<SharedReceives>>,
    events: Events,
    effects: &mut Effects,
) {
    let srq = named.or(qp.srq.as_ref());
    let recv_cq = recv_cq_of(qp, named);
    qp.note_fires(named, &events, effects);
    let Events {
        fire_send: _,
        fire_recv: _,
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
        told,
        migrate: _,
        gave_up,
        why_failed,
        why_refused,
    } = events;
    if !told.is_empty() || gave_up.is_some() {
        let facts = Facts {
            told,
            gave_up,
            why_failed,
            why_refused,
        };
        stats::record(qp, facts, effects);
    }
    let own = |index| Effect::Settle(Arc::clone(&qp.port.mrs), index);
    if settle != [None; 2] {
        effects.add_all(settle.into_iter().flatten().map(own));
    }
    if again {
        effects.add(Effect::Again(qp.events()));
    }
    if let Some(index) = later {
        let mrs = Arc::clone(&qp.port.mrs);
        effects.add(Effect::Later(qp.events(), mrs, index));
    }
    if overrun_send || overrun_recv {
        let send_cq = overrun_send.then_some(&qp.send_cq);
        let lost = [send_cq, overrun_recv.then_some(recv_cq)];
        let lost = lost.into_iter().flatten().cloned();
        effects.add_all(lost.map(Effect::Overrun));
    }
    if srq_limit {
        effects.add_all(srq.cloned().map(Effect::SrqLimit));
    }
    if fail_sends {
        effects.add(Effect::FailSends(qp.events()));
    }
    if contact && !qp.contacted.load(Acquire) {
        effects.add(Effect::Contact(qp.events()));
    }
    if let Some(event) = event {
        effects.add(Effect::Raise(qp.events(), event));
    }
}

impl WaitsForCq for QueuePair {
    fn go_on(self: Arc<Self>) {
        self.turn();
    }
}

impl Due for QueuePair {
    fn due(&self, _: Instant, token: u64) {
        // Waits of the loopback link have no token.
        if token != 0 && !self.worker.timer.called(token) {
            return;
        }
        if let Some(me) = self.me.upgrade() {
            me.turn();
        }
    }
}
