//! Work requests that are placed directly in the peer's memory, one by one, where their poster could not do so: a
//! receive was missing, a key was about to be invalidated, a completion queue was changing hands.

use verbs_core::mem::{MrTable, pin};
use verbs_core::sync::atomic::Ordering::{AcqRel, Release};
use verbs_core::sync::{Arc, MutexGuard, Weak};
use verbs_core::{QpState, SendFlags, SendWr, WcStatus};

use crate::clock::Instant;
use crate::direct::local::{Local, execute};
use crate::direct::message::{Done, Faulty, Message, MessageFault, MessageOutcome};
use crate::direct::path::DirectPath;
use crate::effects::{Effect, Effects};
use crate::engine::Due;
use crate::qp::QueuePair;
use crate::qp::worker::flush;
use crate::qp::worker::{Oldest, WorkerState};
use crate::qp::{pairing, stats};
use crate::queue::base::events::QpEvents;
use crate::queue::cq::{Cqe, note};
use crate::queue::send::{Scratch, SendRing};
use crate::transport::Told;
use crate::transport::timing::{ack_timeout, rnr_delay};

/// RNR retries that never end (IBTA vol. 1, 9.7.5.2.8).
const RNR_FOREVER: u8 = 7;

/// Whether the machine continues with the next work request.
enum Next {
    Continue,
    Stop,
}

/// Carries out work requests until there are none left or one has to wait.
pub(super) fn run(
    qp: &Arc<QueuePair>,
    machine: &mut MutexGuard<'_, WorkerState>,
    effects: &mut Effects,
) {
    let Some(sends) = qp.send_ring() else {
        return;
    };
    while let Some(at) = sends.next()
        && !matches!(machine.oldest, Oldest::Failed(_))
    {
        let kicked = qp.worker.kicked.swap(false, AcqRel);
        let now = qp.port.engine.now();
        let early = machine.wait.is_some_and(|deadline| now < deadline);
        if early && !kicked {
            return;
        }
        if let Next::Stop = step(qp, machine, sends, at, now, early, effects) {
            // A call to the queue pairs that a completion queue put off does not mean that any other wait is over.
            let put_off = effects.waits();
            qp.worker.kicked.fetch_or(put_off, AcqRel);
            return;
        }
    }
}

fn step(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    sends: &SendRing,
    at: u32,
    now: Instant,
    early: bool,
    effects: &mut Effects,
) -> Next {
    let mut scratch = Scratch::default();
    let wr = sends.read(at, &mut scratch);
    if let Some(fault) = fault_that_waits(machine) {
        flush::end_in_error(qp, machine, wr.wr_id, at, &fault, effects);
        return Next::Stop;
    }
    if wr.op.is_local() {
        return step_local(qp, machine, sends, at, &wr, effects);
    }
    let (direct, pin) = (qp.direct_path(), pin());
    let Some(direct) = direct.filter(|direct| direct.admits(&pin)) else {
        drop(pin);
        return unanswered(qp, machine, wr.wr_id, at, now, early, effects);
    };
    let message = Message {
        requester: pairing::requester(qp),
        sends,
        direct: &direct,
        pin: &pin,
        wr: &wr,
        index: sends.index(at),
        signaled: wr.flags.contains(SendFlags::SIGNALED),
    };
    let outcome = message.carry_out();
    if direct.awaits_first() && outcome.arrives() {
        has_heard(qp, &direct, effects);
    }
    match outcome {
        MessageOutcome::Done(done) => {
            drop(pin);
            direct.want_none();
            *machine = WorkerState::default();
            sends.executed(at);
            qp.note(&direct, done, effects);
            Next::Continue
        }
        MessageOutcome::NotReady => {
            drop(pin);
            not_ready(qp, machine, &direct, wr.wr_id, at, now, early, effects)
        }
        MessageOutcome::Busy(cq) => {
            effects.wait_for(&cq, qp.events());
            Next::Stop
        }
        MessageOutcome::Later(index) => {
            drop(pin);
            try_later(qp, machine, &direct.mrs, index)
        }
        MessageOutcome::InlineCqes => recall_inline_cqes(qp, machine, &direct, effects),
        MessageOutcome::Fault(fault) => {
            let mut done = Done::default();
            let faulty = message.complete_faulty_receive(&fault, &mut done);
            if let Some(next) = fault_of(qp, &faulty, &direct, effects) {
                return next;
            }
            drop(pin);
            qp.note(&direct, done, effects);
            end(qp, machine, &direct, wr.wr_id, at, &fault, effects)
        }
    }
}

/// The first message has arrived at the responder.
#[cold]
fn has_heard(qp: &QueuePair, direct: &DirectPath, effects: &mut Effects) {
    direct.has_heard(|| qp.port.link.is_bare());
    effects.add_all(direct.responder.upgrade().map(Effect::Contact));
}

/// The error of the oldest work request, if it could not be told yet.
fn fault_that_waits(machine: &WorkerState) -> Option<MessageFault> {
    let Oldest::Ends {
        status,
        at_responder,
        why,
    } = machine.oldest
    else {
        return None;
    };
    Some(match at_responder {
        true => MessageFault::nak(status, why),
        false => MessageFault::local(status, why),
    })
}

/// Ends a work request in error, at both ends if the responder saw it.
fn end(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    direct: &DirectPath,
    wr_id: u64,
    at: u32,
    fault: &MessageFault,
    effects: &mut Effects,
) -> Next {
    if fault.at_responder {
        effects.refused(direct, fault);
    }
    flush::end_in_error(qp, machine, wr_id, at, fault, effects);
    Next::Stop
}

/// A work request that needs no peer.
fn step_local(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    sends: &SendRing,
    at: u32,
    wr: &SendWr<'_>,
    effects: &mut Effects,
) -> Next {
    let pin = pin();
    if qp.enter_to_exchange(&pin) != Some(QpState::Rts) {
        return Next::Stop;
    }
    let signaled = wr.flags.contains(SendFlags::SIGNALED);
    let way = match signaled.then(|| qp.send_cq.enter(&pin)) {
        Some(None) => {
            effects.wait_for(&qp.send_cq, qp.events());
            return Next::Stop;
        }
        Some(way) => way,
        None => None,
    };
    let mrs = &qp.port.mrs;
    let (local, settle) = execute(&wr.op, mrs, qp.who(), qp.core.get());
    let mut done = Done::default();
    if let (Local::Done(opcode), Some(way)) = (local, way) {
        let cqe = Cqe::success(wr.wr_id, qp.qpn, opcode, 0);
        // The poster fills the entry again as soon as it has seen the completion.
        let index = sends.index(at);
        let pushed = qp
            .send_cq
            .push(way, &cqe, |position| sends.mark(index, position));
        note(pushed, &mut done.fire_send, &mut done.overrun_send);
    }
    drop(pin);
    done.settle_own = settle;
    qp.note_own(done, effects);
    match local {
        Local::Later(index) => try_later(qp, machine, mrs, index),
        Local::Fault(status, reason) => {
            let fault = MessageFault::local(status, reason);
            flush::end_in_error(qp, machine, wr.wr_id, at, &fault, effects);
            Next::Stop
        }
        Local::Done(_) => {
            *machine = WorkerState::default();
            sends.executed(at);
            Next::Continue
        }
    }
}

/// Has the inline CQEs that are under way scattered, and continues afterwards.
fn recall_inline_cqes(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    direct: &DirectPath,
    effects: &mut Effects,
) -> Next {
    machine.wait = Some(Instant::NEVER);
    effects.recall_inline_cqes(direct, qp.events());
    Next::Stop
}

/// Continues when no thread can still be looking at what a key stood for.
fn try_later(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    mrs: &Arc<MrTable>,
    index: u32,
) -> Next {
    machine.wait = Some(Instant::NEVER);
    let me = Arc::clone(qp);
    mrs.when_over(index, move || me.kick());
    Next::Stop
}

/// What to do instead if the receive that a fault concerns could not be completed.
fn fault_of(
    qp: &Arc<QueuePair>,
    faulty: &Faulty,
    direct: &DirectPath,
    effects: &mut Effects,
) -> Option<Next> {
    match faulty {
        Faulty::Completed => None,
        Faulty::Busy => {
            effects.wait_for(&direct.cq, qp.events());
            Some(Next::Stop)
        }
        Faulty::Again => {
            qp.worker.kicked.store(true, Release);
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
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    direct: &DirectPath,
    wr_id: u64,
    at: u32,
    now: Instant,
    early: bool,
    effects: &mut Effects,
) -> Next {
    match &direct.srq {
        Some(srq) => srq.want(Weak::clone(&qp.me) as Weak<dyn QpEvents>),
        None => direct.want(Weak::clone(&qp.me) as Weak<dyn QpEvents>),
    }
    if early {
        return Next::Stop;
    }
    qp.port.counters.rnr_naks.up();
    stats::record(qp, Told::RNR_NAK, effects);
    let limit = qp.control.lock().attr().rnr_retry.unwrap_or(0);
    let left = *machine.rnr_left.get_or_insert(limit);
    if limit != RNR_FOREVER && left == 0 {
        let fault = MessageFault::local(WcStatus::RnrRetryExcErr, 0);
        flush::end_in_error(qp, machine, wr_id, at, &fault, effects);
        return Next::Stop;
    }
    machine.rnr_left = Some(left.saturating_sub(1));
    wait_until(qp, machine, now + rnr_delay(direct.ring.rnr_timer()));
    Next::Stop
}

/// There is no responder to answer: only a timeout can show that (IBTA vol. 1, 9.7.6.1.3).
fn unanswered(
    qp: &Arc<QueuePair>,
    machine: &mut WorkerState,
    wr_id: u64,
    at: u32,
    now: Instant,
    early: bool,
    effects: &mut Effects,
) -> Next {
    if early {
        return Next::Stop;
    }
    qp.port.counters.timeouts.up();
    stats::record(qp, Told::TIMEOUT, effects);
    let attr = qp.control.lock().attr();
    let Some(timeout) = ack_timeout(attr.timeout.unwrap_or(0)) else {
        // No timeout: waits until there is a peer, which kicks.
        machine.wait = Some(Instant::NEVER);
        return Next::Stop;
    };
    match machine.retries_left {
        None => machine.retries_left = Some(attr.retry_cnt.unwrap_or(0)),
        Some(0) => {
            let fault = MessageFault::local(WcStatus::RetryExcErr, 0);
            flush::end_in_error(qp, machine, wr_id, at, &fault, effects);
            return Next::Stop;
        }
        Some(left) => machine.retries_left = Some(left - 1),
    }
    wait_until(qp, machine, now + timeout);
    Next::Stop
}

fn wait_until(qp: &Arc<QueuePair>, machine: &mut WorkerState, deadline: Instant) {
    machine.wait = Some(deadline);
    // A timer that expires late or without need finds that out in `run`.
    let _ = qp
        .port
        .engine
        .at(deadline, Arc::clone(qp) as Arc<dyn Due>, 0);
}
