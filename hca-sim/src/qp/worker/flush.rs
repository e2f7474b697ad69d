//! How work requests end that are not carried out: in error, flushed, or forgotten.

use verbs_core::WcStatus;
use verbs_core::mem::pin;
use verbs_core::sync::Arc;

use crate::direct::message::Fault;
use crate::qp::QueuePair;
use crate::qp::effects::Effects;
use crate::qp::worker::Machine;
use crate::queue::cq::{CqRing, Cqe, Overrun, Pushed, Way};
use crate::queue::send::{Scratch, SendRing};

impl QueuePair {
    /// Completes a work request in error; the queue pair goes to ERR.
    pub(super) fn end_in_error(
        self: &Arc<Self>,
        machine: &mut Machine,
        wr_id: u64,
        at: u32,
        fault: &Fault,
        effects: &mut Effects,
    ) {
        let Some(sends) = self.send_ring() else {
            return;
        };
        let counters = &self.port.counters;
        match fault.at_responder {
            true => counters.remote_errors.up(),
            false => counters.local_errors.up(),
        }
        let cqe = Cqe::failure(wr_id, self.qpn, fault.status, fault.vendor_err);
        if self.complete_send(sends, at, &cqe, effects) {
            machine.failed = Some(at);
            effects.fail.push(self.events());
        }
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
    pub(super) fn flush(self: &Arc<Self>, machine: &mut Machine, effects: &mut Effects) -> bool {
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
    pub(super) fn flush_sends(
        self: &Arc<Self>,
        machine: &mut Machine,
        effects: &mut Effects,
    ) -> bool {
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
            effects.wait_for(cq, self.events());
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
    pub(super) fn discard(&self) {
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
