//! The ends of work requests that are not carried out: in error, flushed, or forgotten.

use verbs_core::WcStatus;
use verbs_core::mem::pin;
use verbs_core::sync::Arc;

use crate::direct::message::MessageFault;
use crate::effects::{Effect, Effects};
use crate::qp::QueuePair;
use crate::qp::stats;
use crate::qp::worker::{Oldest, WorkerState};
use crate::queue::cq::{CqRing, Cqe, Overrun, Pushed, Way};
use crate::queue::send::{Scratch, SendRing};
use crate::transport::Facts;

/// Completes a work request in error; the queue pair goes to ERR.
pub(super) fn end_in_error(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    wr_id: u64,
    at: u32,
    fault: &MessageFault,
    effects: &mut Effects,
) {
    let Some(sends) = qp.send_ring() else {
        return;
    };
    let cqe = Cqe::failure(wr_id, qp.qpn, fault.status, fault.vendor_err);
    if !complete_send(qp, sends, at, &cqe, effects) {
        machine.oldest = Oldest::Ends {
            status: fault.status,
            at_responder: fault.at_responder,
            why: fault.vendor_err,
        };
        return;
    }
    let counters = &qp.port.counters;
    match fault.at_responder {
        true => counters.remote_errors.up(),
        false => counters.local_errors.up(),
    }
    let facts = Facts {
        gave_up: Some(fault.status),
        why_failed: Facts::number(fault.vendor_err),
        ..Facts::default()
    };
    stats::record(qp, facts, effects);
    machine.oldest = Oldest::Failed(at);
    effects.add(Effect::Fail(qp.events()));
}

/// Completes the work request at that position of the ring; `false` as in `complete`.
fn complete_send(
    qp: &Arc<QueuePair>,
    sends: &SendRing,
    at: u32,
    cqe: &Cqe,
    effects: &mut Effects,
) -> bool {
    // The poster fills the entry again as soon as it has seen the completion.
    let index = sends.index(at);
    let mark = |position| sends.mark(index, position);
    complete(qp, &qp.send_cq, effects, |cq, way| cq.push(way, cqe, mark))
}

/// Completes all that is posted with WR_FLUSH_ERR: sends, then receives, each in order. `false`: a completion queue
/// is changing hands and will call.
pub(super) fn flush(qp: &Arc<QueuePair>, machine: &mut WorkerState, effects: &mut Effects) -> bool {
    if let Oldest::Ends { status, why, .. } = machine.oldest
        && !end_first(qp, machine, (status, why), effects)
    {
        return false;
    }
    if !flush_sends(qp, machine, effects) || !flush_abandoned(qp, effects) {
        return false;
    }
    if let Some(recvs) = qp.recv_ring() {
        while let Some(waiting) = recvs.next() {
            let cqe = flushed(qp, waiting.wr_id());
            let push = |cq: &CqRing, way| {
                waiting.consume();
                cq.push(way, &cqe, |_| {})
            };
            if !complete(qp, &qp.recv_cq, effects, push) {
                return false;
            }
        }
    }
    true
}

fn flushed(qp: &QueuePair, wr_id: u64) -> Cqe {
    Cqe::failure(wr_id, qp.qpn, WcStatus::WrFlushErr, 0)
}

/// The sends' part of `flush`. `false` as there.
pub(super) fn flush_sends(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    effects: &mut Effects,
) -> bool {
    if let Some(sends) = qp.send_ring() {
        if let Oldest::Failed(completed) = machine.oldest {
            machine.oldest = Oldest::Open;
            sends.executed(completed);
        }
        let mut scratch = Scratch::default();
        while let Some(at) = sends.next() {
            let wr_id = sends.read(at, &mut scratch).wr_id;
            if !complete_send(qp, sends, at, &flushed(qp, wr_id), effects) {
                return false;
            }
            sends.executed(at);
        }
    }
    true
}

/// Completes a work request that was about to end with an error of its own, if it has not ended. `false` as in `flush`.
#[cold]
#[inline(never)]
fn end_first(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    (status, why): (WcStatus, u32),
    effects: &mut Effects,
) -> bool {
    if let Some(sends) = qp.send_ring()
        && let Some(at) = sends.next()
    {
        let wr_id = sends.read(at, &mut Scratch::default()).wr_id;
        let cqe = Cqe::failure(wr_id, qp.qpn, status, why);
        if !complete_send(qp, sends, at, &cqe, effects) {
            return false;
        }
        sends.executed(at);
    }
    machine.oldest = Oldest::Open;
    true
}

/// Completes the shared receive of a message that will not end. `false` as in `flush`.
fn flush_abandoned(qp: &Arc<QueuePair>, effects: &mut Effects) -> bool {
    let exchange = qp.worker.exchange();
    let Some((wr_id, named)) = exchange.and_then(|exchange| exchange.lock().abandon()) else {
        return true;
    };
    let cqe = flushed(qp, wr_id);
    let srq = named.and_then(|number| qp.port.xrc.find(number, qp.pd));
    let named = srq.as_ref().and_then(|srq| srq.xrc.as_ref());
    let cq = named.map_or(&qp.recv_cq, |named| &named.cq);
    complete(qp, cq, effects, |cq, way| cq.push(way, &cqe, |_| {}))
}

/// Pushes a completion from the machine. `false`: the queue is changing hands and will call; `push`
/// was not called.
fn complete(
    qp: &Arc<QueuePair>,
    cq: &Arc<CqRing>,
    effects: &mut Effects,
    push: impl FnOnce(&CqRing, Way) -> Result<Pushed, Overrun>,
) -> bool {
    let pin = pin();
    let Some(way) = cq.enter(&pin) else {
        drop(pin);
        effects.wait_for(cq, qp.events());
        return false;
    };
    let pushed = push(cq, way);
    drop(pin);
    match pushed {
        Ok(pushed) if pushed.fire => effects.few().fire.push(Arc::clone(cq)),
        Ok(_) => {}
        Err(Overrun) => effects.add(Effect::Overrun(Arc::clone(cq))),
    }
    true
}

/// Forgets all that is posted, on a change to RESET.
pub(super) fn discard(qp: &QueuePair) {
    if let Some(sends) = qp.send_ring() {
        while let Some(at) = sends.next() {
            sends.executed(at);
        }
        sends.forget_marks();
    }
    if let Some(recvs) = qp.recv_ring() {
        while let Some(waiting) = recvs.next() {
            waiting.consume();
        }
    }
}
