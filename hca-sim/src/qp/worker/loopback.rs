//! Work requests that are placed in the peer's memory straight, one by one, where their poster could not: a receive was
//! missing, a key was about to go, a completion queue was changing hands.

use verbs_core::mem::{MrTable, pin};
use verbs_core::sync::atomic::Ordering::{AcqRel, Release};
use verbs_core::sync::{Arc, MutexGuard, Weak};
use verbs_core::{QpState, SendFlags, SendWr, WcStatus};

use crate::clock::Instant;
use crate::direct::local::{Local, execute};
use crate::direct::message::{Done, Fault, Faulty, Message, Outcome};
use crate::direct::path::DirectPath;
use crate::engine::Due;
use crate::qp::QueuePair;
use crate::qp::effects::Effects;
use crate::qp::worker::Machine;
use crate::queue::base::events::QpEvents;
use crate::queue::cq::{Cqe, note};
use crate::queue::send::{Scratch, SendRing};
use crate::transport::timing::{ack_timeout, rnr_delay};

/// RNR retries that never end (IBTA vol. 1, 9.7.5.2.8).
const RNR_FOREVER: u8 = 7;

/// Whether the machine goes on with the next work request.
enum Next {
    Continue,
    Stop,
}

impl QueuePair {
    /// Carries out work requests until there are no more or one has to wait.
    pub(super) fn run(
        self: &Arc<Self>,
        machine: &mut MutexGuard<'_, Machine>,
        effects: &mut Effects,
    ) {
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
                self.note(&land, done, effects);
                Next::Continue
            }
            Outcome::NotReady => {
                drop(pin);
                self.not_ready(machine, &land, wr.wr_id, at, now, early, effects)
            }
            Outcome::Busy(cq) => {
                effects.wait_for(&cq, self.events());
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
                self.note(&land, done, effects);
                if fault.at_responder {
                    effects.refused(&land, &fault);
                }
                self.end_in_error(machine, wr.wr_id, at, &fault, effects);
                Next::Stop
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
                effects.wait_for(&self.send_cq, self.events());
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
        self.note_own(done, effects);
        match local {
            Local::Later(index) => self.try_later(machine, mrs, index),
            Local::Fault(status, reason) => {
                let fault = Fault::local(status, reason);
                self.end_in_error(machine, wr.wr_id, at, &fault, effects);
                Next::Stop
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
        effects.call_back(land, self.events());
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
                effects.wait_for(&land.cq, self.events());
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
            self.end_in_error(machine, wr_id, at, &fault, effects);
            return Next::Stop;
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
                self.end_in_error(machine, wr_id, at, &fault, effects);
                return Next::Stop;
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
}
