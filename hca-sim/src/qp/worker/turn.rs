//! A turn of a queue pair's machine: who takes it, what one round does by the state, what it leads to.

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::{Acquire, Release};
use verbs_core::{EventType, QpState, collect};

use crate::clock::Instant;
use crate::direct::message::Done;
use crate::direct::path::DirectPath;
use crate::engine::Due;
use crate::qp::QueuePair;
use crate::qp::effects::Effects;
use crate::qp::worker::Machine;
use crate::queue::base::events::WaitsForCq;
use crate::transport::TxContext;

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
            if effects.carry_out(&|cq| self.port.overrun(cq)).is_empty() {
                return;
            }
        }
    }

    /// There is reason to try again at once.
    pub(crate) fn kick(self: &Arc<Self>) {
        self.worker.kicked.store(true, Release);
        self.turn();
    }

    /// Notes what a message leads to that was placed directly.
    pub(super) fn note(&self, land: &DirectPath, done: Done, effects: &mut Effects) {
        if done.fire_recv {
            effects.fire.push(Arc::clone(&land.cq));
        }
        if done.overrun_recv {
            effects.overrun.push(Arc::clone(&land.cq));
        }
        self.note_own(done, effects);
        if done.srq_limit {
            effects.srq_limit.extend(land.srq.clone());
        }
        if done.fail_responder {
            effects.fail.extend(land.responder.upgrade());
        }
        let theirs = done.settle.map(|index| (Arc::clone(&land.mrs), index));
        effects.settle.extend(theirs);
    }

    /// Notes what concerns the sender alone.
    pub(super) fn note_own(&self, done: Done, effects: &mut Effects) {
        if done.fire_send {
            effects.fire.push(Arc::clone(&self.send_cq));
        }
        if done.overrun_send {
            effects.overrun.push(Arc::clone(&self.send_cq));
        }
        let own = |index| (Arc::clone(&self.port.mrs), index);
        effects.settle.extend(done.settle_own.map(own));
    }

    /// Sees to what a message left that was carried out by its poster.
    pub(crate) fn see_to(self: &Arc<Self>, land: &DirectPath, done: Done) {
        let mut effects = Effects::default();
        self.note(land, done, &mut effects);
        // Nobody is put off by what is done.
        effects.carry_out(&|cq| self.port.overrun(cq));
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
                let me = self.events();
                effects.raise.push((me, EventType::SqDrained));
            }
            if self.state() == QpState::Err && std::mem::take(&mut control.tell_last_wqe) {
                let me = self.events();
                effects.raise.push((me, EventType::QpLastWqeReached));
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
