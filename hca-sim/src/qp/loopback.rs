//! The machine of a queue pair: carries out what its posters could not, waits, flushes.
//!
//! Work requests wait in the send ring. Whoever has a reason calls [`QueuePair::turn`]: the poster who
//! put one there, who posts the receive that was missing, a timer, the end of a grace period, a control
//! verb. One thread at a time is *the holder* and does the work; others only leave a mark, and the
//! holder goes round again. So nobody waits, and no reason is lost.
//!
//! What the work leads to for others is collected and done when the holder has let go: events are
//! delivered, verbs completed, queue pairs taken to ERR.

use verbs_core::mem::{MrTable, pin};
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
use verbs_core::sync::{Mutex, MutexGuard, OnceLock, Weak};
use verbs_core::{EventType, QpState, SendFlags, SendWr, WcStatus, collect};

use crate::clock::Instant;
use crate::direct::local::{Local, execute};
use crate::direct::message::{Done, Fault, Faulty, Message, Outcome};
use crate::direct::path::DirectPath;
use crate::engine::Due;
use crate::qp::QueuePair;
use crate::qp::effects::Effects;
use crate::qp::packets::PacketQp;
use crate::queue::base::combiner::Combiner;
use crate::queue::base::events::QpEvents;
use crate::queue::cq::{CqRing, Cqe, Overrun, Pushed, WaitsForCq, Way, note};
use crate::queue::send::{Scratch, SendRing};
use crate::transport::TxContext;
use crate::transport::timing::{ack_timeout, rnr_delay};

/// RNR retries that never end (IBTA vol. 1, 9.7.5.2.8).
const RNR_FOREVER: u8 = 7;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Who holds the machine. If packets carry its messages, whoever holds the port's driver does.
    turns: Combiner,
    /// There is reason to try again before the deadline.
    kicked: AtomicBool,
    /// Grace periods that must be over before the rings may be flushed.
    pub(crate) closing: AtomicU32,
    /// Uncontended: only the holder locks it.
    pub(crate) machine: Mutex<Machine>,
    /// The connection over packets, from the first transition to INIT on; most have none. Uncontended as
    /// well.
    exchange: OnceLock<Box<Mutex<PacketQp>>>,
    /// It is on the driver's list already.
    pub(crate) listed: AtomicBool,
}

/// What the holder has to know from one turn to the next.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Until when the oldest work request waits.
    wait: Option<Instant>,
    /// What is left of the retries of the oldest work request; `None` before the first.
    rnr_left: Option<u8>,
    retries_left: Option<u8>,
    /// The position of a work request that ended in error; the queue pair is on its way to ERR. It stays
    /// in the ring until then, so that the poster does not take the ring for drained.
    pub(crate) failed: Option<u32>,
}

/// Whether the machine goes on with the next work request.
enum Next {
    Continue,
    Stop,
}

impl Worker {
    /// The connection over packets, if there is one.
    pub(crate) fn exchange(&self) -> Option<&Mutex<PacketQp>> {
        self.exchange.get().map(|exchange| &**exchange)
    }

    /// Gives the queue pair a connection over packets.
    pub(crate) fn set_exchange(&self, exchange: PacketQp) {
        // Under the lock of the link nobody else does this.
        let _ = self.exchange.set(Box::new(Mutex::new(exchange)));
    }

    /// Whether the rings wait for a grace period to be flushed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Acquire) != 0
    }
}

impl QueuePair {
    /// Whether every message that was begun has ended; over packets that takes time.
    fn is_drained(&self) -> bool {
        let exchange = self.worker.exchange();
        self.state() != QpState::Sqd || exchange.is_none_or(|exchange| exchange.lock().is_drained())
    }

    /// Does what can be done; see the module's documentation. Outside any pin.
    pub(crate) fn turn(self: &Arc<Self>) {
        if let Some(driver) = self.driver() {
            return driver.serve(self);
        }
        // What leaves a pin within may complete verbs, and their routines must not run under a machine's lock.
        collect(|| self.take_turns());
    }

    fn take_turns(self: &Arc<Self>) {
        while let Some(mut held) = self.worker.turns.enter() {
            let mut effects = Effects::default();
            loop {
                self.round(None, &mut effects);
                match held.leave() {
                    Some(again) => held = again,
                    None => break,
                }
            }
            if effects.carry_out(&self.port).is_empty() {
                return;
            }
        }
    }

    /// There is reason to try again at once.
    pub(crate) fn kick(self: &Arc<Self>) {
        self.worker.kicked.store(true, Release);
        self.turn();
    }

    /// Sees to what a message left that was carried out by its poster.
    pub(crate) fn see_to(self: &Arc<Self>, land: &DirectPath, done: Done) {
        let mut effects = Effects::default();
        effects.note(self, land, done);
        // Nobody is put off by what is done.
        effects.carry_out(&self.port);
    }

    /// One round, by the holder; `mail` if packets carry its messages.
    pub(crate) fn round(self: &Arc<Self>, mail: Option<&mut TxContext<'_>>, effects: &mut Effects) {
        if self.worker.closing.load(Acquire) != 0 {
            return;
        }
        let mut machine = self.worker.machine.lock();
        let over = match self.state() {
            QpState::Sqe => {
                let over = self.flush_sends(&mut machine, effects);
                if let Some(exchange) = self.worker.exchange() {
                    exchange.lock().resume();
                }
                over
            }
            QpState::Err => self.flush(&mut machine, effects),
            QpState::Reset => {
                *machine = Machine::default();
                if let Some(exchange) = self.worker.exchange() {
                    exchange.lock().reset();
                }
                self.discard();
                true
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd if mail.is_some() => {
                if let (Some(exchange), Some(mail)) = (self.worker.exchange(), mail) {
                    self.exchange(&mut exchange.lock(), &mut machine, mail, effects);
                }
                true
            }
            QpState::Rts => {
                self.run(&mut machine, effects);
                true
            }
            _ => true,
        };
        drop(machine);
        if over {
            // Asked before the lock is taken: elsewhere the connection is held when it is.
            let drained = self.is_drained();
            let mut control = self.control.lock();
            effects.finish.append(&mut control.finish);
            if drained && std::mem::take(&mut control.tell_drained) {
                let me = Arc::clone(self) as Arc<dyn QpEvents>;
                effects.raise.push((me, EventType::SqDrained));
            }
            if self.state() == QpState::Err && std::mem::take(&mut control.tell_last_wqe) {
                let me = Arc::clone(self) as Arc<dyn QpEvents>;
                effects.raise.push((me, EventType::QpLastWqeReached));
            }
        }
    }

    /// Carries out work requests until there are no more or one has to wait.
    fn run(self: &Arc<Self>, machine: &mut MutexGuard<'_, Machine>, effects: &mut Effects) {
        let Some(sends) = self.send_ring() else {
            return;
        };
        while let Some(at) = sends.next()
            && machine.failed.is_none()
        {
            let kicked = self.worker.kicked.swap(false, AcqRel);
            let now = self.port.engine.now();
            let early = machine.wait.is_some_and(|deadline| now < deadline);
            if early && !kicked {
                return;
            }
            if let Next::Stop = self.step(machine, sends, at, now, early, effects) {
                // Who calls those that a queue puts off does not say that any other wait is over.
                let put_off = !effects.waiting.is_empty();
                self.worker.kicked.fetch_or(put_off, AcqRel);
                return;
            }
        }
    }

    fn step(
        self: &Arc<Self>,
        machine: &mut Machine,
        sends: &SendRing,
        at: u32,
        now: Instant,
        early: bool,
        effects: &mut Effects,
    ) -> Next {
        let mut scratch = Scratch::default();
        let wr = sends.read(at, &mut scratch);
        if wr.op.is_local() {
            return self.step_local(machine, sends, at, &wr, effects);
        }
        let (land, pin) = (self.direct_path(), pin());
        let Some(land) = land.filter(|land| land.admits(&pin)) else {
            drop(pin);
            return self.unanswered(machine, wr.wr_id, at, now, early, effects);
        };
        let message = Message {
            requester: self.requester(),
            sends,
            land: &land,
            pin: &pin,
            wr: &wr,
            index: sends.index(at),
            signaled: wr.flags.contains(SendFlags::SIGNALED),
        };
        let outcome = message.carry_out();
        if land.awaits_first() && outcome.arrives() {
            effects.contact.extend(land.responder.upgrade());
        }
        match outcome {
            Outcome::Done(done) => {
                drop(pin);
                land.want(false);
                *machine = Machine::default();
                sends.executed(at);
                effects.note(self, &land, done);
                Next::Continue
            }
            Outcome::NotReady => {
                drop(pin);
                self.not_ready(machine, &land, wr.wr_id, at, now, early, effects)
            }
            Outcome::Busy(cq) => {
                effects.wait_for(&cq, self);
                Next::Stop
            }
            Outcome::Later(index) => {
                drop(pin);
                self.try_later(machine, &land.mrs, index)
            }
            Outcome::Riders => self.call_back(machine, &land, effects),
            Outcome::Fault(fault) => {
                let mut done = Done::default();
                let faulty = message.complete_faulty_receive(&fault, &mut done);
                if let Some(next) = self.faulty(&faulty, &land, effects) {
                    return next;
                }
                drop(pin);
                effects.note(self, &land, done);
                if fault.at_responder {
                    effects.refused(&land, &fault);
                }
                self.end_in_error(machine, wr.wr_id, at, &fault, effects)
            }
        }
    }

    /// A work request that needs no peer.
    fn step_local(
        self: &Arc<Self>,
        machine: &mut Machine,
        sends: &SendRing,
        at: u32,
        wr: &SendWr<'_>,
        effects: &mut Effects,
    ) -> Next {
        let pin = pin();
        if self.enter_to_exchange(&pin) != Some(QpState::Rts) {
            return Next::Stop;
        }
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let way = match signaled.then(|| self.send_cq.enter(&pin)) {
            Some(None) => {
                effects.wait_for(&self.send_cq, self);
                return Next::Stop;
            }
            Some(way) => way,
            None => None,
        };
        let mrs = &self.port.mrs;
        let (local, settle) = execute(&wr.op, mrs, self.who(), self.core.get());
        let mut done = Done::default();
        if let (Local::Done(opcode), Some(way)) = (local, way) {
            let cqe = Cqe::success(wr.wr_id, self.qpn, opcode, 0);
            // The poster fills the entry anew as soon as it has seen the completion.
            let index = sends.index(at);
            let pushed = self
                .send_cq
                .push(way, &cqe, |position| sends.mark(index, position));
            note(pushed, &mut done.fire_send, &mut done.overrun_send);
        }
        drop(pin);
        done.settle_own = settle;
        effects.note_own(self, done);
        match local {
            Local::Later(index) => self.try_later(machine, mrs, index),
            Local::Fault(status, reason) => {
                let fault = Fault::local(status, reason);
                self.end_in_error(machine, wr.wr_id, at, &fault, effects)
            }
            Local::Done(_) => {
                *machine = Machine::default();
                sends.executed(at);
                Next::Continue
            }
        }
    }

    /// Has riders unloaded that are under way, and goes on when they are.
    fn call_back(
        self: &Arc<Self>,
        machine: &mut Machine,
        land: &DirectPath,
        effects: &mut Effects,
    ) -> Next {
        machine.wait = Some(Instant::NEVER);
        effects.call_back(land, self);
        Next::Stop
    }

    /// Goes on when nobody can be looking any more at what a key stood for.
    fn try_later(self: &Arc<Self>, machine: &mut Machine, mrs: &Arc<MrTable>, index: u32) -> Next {
        machine.wait = Some(Instant::NEVER);
        let me = Arc::clone(self);
        mrs.when_over(index, move || me.kick());
        Next::Stop
    }

    /// What to do instead if the receive that a fault concerns could not be completed.
    fn faulty(
        self: &Arc<Self>,
        faulty: &Faulty,
        land: &DirectPath,
        effects: &mut Effects,
    ) -> Option<Next> {
        match faulty {
            Faulty::Completed => None,
            Faulty::Busy => {
                effects.wait_for(&land.cq, self);
                Some(Next::Stop)
            }
            Faulty::Again => {
                self.worker.kicked.store(true, Release);
                Some(Next::Continue)
            }
        }
    }

    /// The responder answered receiver-not-ready (IBTA vol. 1, 9.7.5.2.8).
    #[expect(
        clippy::too_many_arguments,
        reason = "one step of the machine, cut out for its name"
    )]
    fn not_ready(
        self: &Arc<Self>,
        machine: &mut Machine,
        land: &DirectPath,
        wr_id: u64,
        at: u32,
        now: Instant,
        early: bool,
        effects: &mut Effects,
    ) -> Next {
        match &land.srq {
            Some(srq) => srq.want(Weak::clone(&self.me) as Weak<dyn QpEvents>),
            None => land.want(true),
        }
        if early {
            return Next::Stop;
        }
        self.port.counters.rnr_naks.up();
        let limit = self.control.lock().attr().rnr_retry.unwrap_or(0);
        let left = *machine.rnr_left.get_or_insert(limit);
        if limit != RNR_FOREVER && left == 0 {
            let fault = Fault::local(WcStatus::RnrRetryExcErr, 0);
            return self.end_in_error(machine, wr_id, at, &fault, effects);
        }
        machine.rnr_left = Some(left.saturating_sub(1));
        self.wait_until(machine, now + rnr_delay(land.ring.rnr_timer()));
        Next::Stop
    }

    /// Nobody is there to answer: a timeout is the only thing that can tell (IBTA vol. 1, 9.7.6.1.3).
    fn unanswered(
        self: &Arc<Self>,
        machine: &mut Machine,
        wr_id: u64,
        at: u32,
        now: Instant,
        early: bool,
        effects: &mut Effects,
    ) -> Next {
        if early {
            return Next::Stop;
        }
        self.port.counters.timeouts.up();
        let attr = self.control.lock().attr();
        let Some(timeout) = ack_timeout(attr.timeout.unwrap_or(0)) else {
            // No timeout: waits until the peer is there, which kicks.
            machine.wait = Some(Instant::NEVER);
            return Next::Stop;
        };
        match machine.retries_left {
            None => machine.retries_left = Some(attr.retry_cnt.unwrap_or(0)),
            Some(0) => {
                let fault = Fault::local(WcStatus::RetryExcErr, 0);
                return self.end_in_error(machine, wr_id, at, &fault, effects);
            }
            Some(left) => machine.retries_left = Some(left - 1),
        }
        self.wait_until(machine, now + timeout);
        Next::Stop
    }

    fn wait_until(self: &Arc<Self>, machine: &mut Machine, deadline: Instant) {
        machine.wait = Some(deadline);
        // A timer that comes late or for nothing finds that out in `run`.
        let _ = self
            .port
            .engine
            .at(deadline, Arc::clone(self) as Arc<dyn Due>, 0);
    }

    /// Completes a work request in error; the queue pair goes to ERR.
    fn end_in_error(
        self: &Arc<Self>,
        machine: &mut Machine,
        wr_id: u64,
        at: u32,
        fault: &Fault,
        effects: &mut Effects,
    ) -> Next {
        let Some(sends) = self.send_ring() else {
            return Next::Stop;
        };
        let counters = &self.port.counters;
        match fault.at_responder {
            true => counters.remote_errors.up(),
            false => counters.local_errors.up(),
        }
        let cqe = Cqe::failure(wr_id, self.qpn, fault.status, fault.vendor_err);
        if self.complete_send(sends, at, &cqe, effects) {
            machine.failed = Some(at);
            effects.fail.push(Arc::clone(self) as Arc<dyn QpEvents>);
        }
        Next::Stop
    }

    /// Completes the work request at that position of the ring; `false` as in `complete`.
    fn complete_send(
        self: &Arc<Self>,
        sends: &SendRing,
        at: u32,
        cqe: &Cqe,
        effects: &mut Effects,
    ) -> bool {
        // The poster fills the entry anew as soon as it has seen the completion.
        let index = sends.index(at);
        let mark = |position| sends.mark(index, position);
        self.complete(&self.send_cq, effects, |cq, way| cq.push(way, cqe, mark))
    }

    /// Completes all that is posted with WR_FLUSH_ERR: sends, then receives, each in order. `false`: a
    /// completion queue is changing hands and will call.
    fn flush(self: &Arc<Self>, machine: &mut Machine, effects: &mut Effects) -> bool {
        if !self.flush_sends(machine, effects) || !self.flush_abandoned(effects) {
            return false;
        }
        if let Some(recvs) = self.recv_ring() {
            while let Some(waiting) = recvs.next() {
                let cqe = self.flushed(waiting.wr_id());
                let push = |cq: &CqRing, way| {
                    waiting.consume();
                    cq.push(way, &cqe, |_| {})
                };
                if !self.complete(&self.recv_cq, effects, push) {
                    return false;
                }
            }
        }
        true
    }

    fn flushed(&self, wr_id: u64) -> Cqe {
        Cqe::failure(wr_id, self.qpn, WcStatus::WrFlushErr, 0)
    }

    /// The sends of that. `false` as in `flush`.
    fn flush_sends(self: &Arc<Self>, machine: &mut Machine, effects: &mut Effects) -> bool {
        if let Some(sends) = self.send_ring() {
            if let Some(completed) = machine.failed.take() {
                sends.executed(completed);
            }
            let mut scratch = Scratch::default();
            while let Some(at) = sends.next() {
                let wr_id = sends.read(at, &mut scratch).wr_id;
                if !self.complete_send(sends, at, &self.flushed(wr_id), effects) {
                    return false;
                }
                sends.executed(at);
            }
        }
        true
    }

    /// Completes the shared receive of a message that will not end. `false` as in `flush`.
    fn flush_abandoned(self: &Arc<Self>, effects: &mut Effects) -> bool {
        let exchange = self.worker.exchange();
        let Some((wr_id, named)) = exchange.and_then(|exchange| exchange.lock().abandon()) else {
            return true;
        };
        let cqe = self.flushed(wr_id);
        let srq = named.and_then(|number| self.port.xrc.find(number, self.pd));
        let named = srq.as_ref().and_then(|srq| srq.named.as_ref());
        let cq = named.map_or(&self.recv_cq, |named| &named.cq);
        self.complete(cq, effects, |cq, way| cq.push(way, &cqe, |_| {}))
    }

    /// Pushes a completion from the machine. `false`: the queue is changing hands and will call; `push`
    /// was not called.
    fn complete(
        self: &Arc<Self>,
        cq: &Arc<CqRing>,
        effects: &mut Effects,
        push: impl FnOnce(&CqRing, Way) -> Result<Pushed, Overrun>,
    ) -> bool {
        let pin = pin();
        let Some(way) = cq.enter(&pin) else {
            drop(pin);
            effects.wait_for(cq, self);
            return false;
        };
        let pushed = push(cq, way);
        drop(pin);
        match pushed {
            Ok(pushed) if pushed.fire => effects.fire.push(Arc::clone(cq)),
            Ok(_) => {}
            Err(Overrun) => effects.overrun.push(Arc::clone(cq)),
        }
        true
    }

    /// Forgets all that is posted: the way to RESET.
    fn discard(&self) {
        if let Some(sends) = self.send_ring() {
            while let Some(at) = sends.next() {
                sends.executed(at);
            }
        }
        if let Some(recvs) = self.recv_ring() {
            while let Some(waiting) = recvs.next() {
                waiting.consume();
            }
        }
    }
}

impl WaitsForCq for QueuePair {
    fn go_on(self: Arc<Self>) {
        self.turn();
    }
}

impl Due for QueuePair {
    fn due(&self, _: Instant, _: u64) {
        if let Some(me) = self.me.upgrade() {
            me.turn();
        }
    }
}
