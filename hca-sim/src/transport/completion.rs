//! Completions of both halves.
//!
//! The completion queues of an HCA with packet links may be pushed to by any thread from the start. Should one refuse
//! nevertheless, nothing is lost silently: the queue pair goes to ERR, reports that by an event, and flushes what could
//! not complete.

use verbs_core::{EventType, WcStatus};

use super::rc::Flight;
use crate::queue::cq::{Cqe, note};
use crate::queue::send::Scratch;
use crate::transport::{Ends, Events, Facts};

/// Completes the work request at that position. `false`: that was not possible, and it stays.
pub(in crate::transport) fn send_success(
    ends: &Ends<'_>,
    at: u32,
    flight: &Flight,
    events: &mut Events,
) -> bool {
    if flight.signaled {
        let cqe = Cqe::success(flight.wr_id, ends.qpn, flight.opcode, flight.len);
        if !push_send(ends, at, &cqe, events) {
            return false;
        }
    }
    ends.sends.executed(at);
    true
}

/// Completes the work request at that position in error; it stays in the ring. `false`: that was not possible.
pub(in crate::transport) fn send_failure(
    ends: &Ends<'_>,
    at: u32,
    status: WcStatus,
    vendor_err: u32,
    events: &mut Events,
) -> bool {
    events.gave_up = Some(status);
    events.why_failed = Facts::number(vendor_err);
    let wr_id = ends.sends.read(at, &mut Scratch::default()).wr_id;
    let cqe = Cqe::failure(wr_id, ends.qpn, status, vendor_err);
    push_send(ends, at, &cqe, events)
}

/// Completes the work request at that position in error. The send queue of a service that may lose messages goes to SQE
/// then, and its receives continue (IBTA vol. 1, 10.3.1.6).
pub(in crate::transport) fn fail_sends(
    ends: &Ends<'_>,
    at: u32,
    status: WcStatus,
    vendor_err: u32,
    events: &mut Events,
) {
    ends.counters.local_errors.up();
    if send_failure(ends, at, status, vendor_err, events) {
        events.failed = Some(at);
        events.fail_sends = true;
    }
}

#[inline]
fn push_send(ends: &Ends<'_>, at: u32, cqe: &Cqe, events: &mut Events) -> bool {
    let Some(way) = ends.send_cq.enter(ends.pin) else {
        give_up(events);
        return false;
    };
    // The poster fills the entry again as soon as it has seen the completion.
    let index = ends.sends.index(at);
    let mark = |position| ends.sends.mark(index, position);
    let pushed = ends.send_cq.push(way, cqe, mark);
    note(pushed, &mut events.fire_send, &mut events.overrun_send);
    true
}

/// Completes a receive, which `take` takes off its queue just before. `false`: that was not possible.
pub(in crate::transport) fn receive(
    ends: &Ends<'_>,
    cqe: &Cqe,
    take: impl FnOnce(),
    events: &mut Events,
) -> bool {
    let Some(way) = ends.recv_cq.enter(ends.pin) else {
        give_up(events);
        return false;
    };
    take();
    let pushed = ends.recv_cq.push(way, cqe, |_| {});
    note(pushed, &mut events.fire_recv, &mut events.overrun_recv);
    true
}

fn give_up(events: &mut Events) {
    events.fail = true;
    events.event = Some(EventType::QpFatal);
}
