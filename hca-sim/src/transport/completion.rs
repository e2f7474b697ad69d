//! Completions of both halves.
//!
//! The completion queues of an HCA with packet links may be pushed to by any thread from the start.
//! Should one refuse nevertheless, nothing is lost silently: the queue pair goes to ERR, says so by an
//! event, and flushes what could not complete.

use verbs_core::{EventType, WcStatus};

use super::rc::Flight;
use crate::queue::cq::{Cqe, note};
use crate::queue::send::Scratch;
use crate::transport::{Ends, Notes};

/// Completes the work request at that position. `false`: it could not be, and stays.
pub(in crate::transport) fn send_success(
    ends: &Ends<'_>,
    at: u32,
    flight: &Flight,
    notes: &mut Notes,
) -> bool {
    if flight.signaled {
        let cqe = Cqe::success(flight.wr_id, ends.qpn, flight.opcode, flight.len);
        if !push_send(ends, at, &cqe, notes) {
            return false;
        }
    }
    ends.sends.executed(at);
    true
}

/// Completes the work request at that position in error; it stays in the ring. `false`: it could not be.
pub(in crate::transport) fn send_failure(
    ends: &Ends<'_>,
    at: u32,
    status: WcStatus,
    vendor_err: u32,
    notes: &mut Notes,
) -> bool {
    let wr_id = ends.sends.read(at, &mut Scratch::default()).wr_id;
    let cqe = Cqe::failure(wr_id, ends.qpn, status, vendor_err);
    push_send(ends, at, &cqe, notes)
}

/// Completes the work request at that position in error. The send queue of a service that may lose
/// messages goes to SQE then, and its receives go on (IBTA vol. 1, 10.3.1.6).
pub(in crate::transport) fn fail_sends(
    ends: &Ends<'_>,
    at: u32,
    status: WcStatus,
    vendor_err: u32,
    notes: &mut Notes,
) {
    ends.counters.local_errors.up();
    if send_failure(ends, at, status, vendor_err, notes) {
        notes.failed = Some(at);
        notes.fail_sends = true;
    }
}

fn push_send(ends: &Ends<'_>, at: u32, cqe: &Cqe, notes: &mut Notes) -> bool {
    let Some(way) = ends.send_cq.enter(ends.pin) else {
        give_up(notes);
        return false;
    };
    // The poster fills the entry anew as soon as it has seen the completion.
    let index = ends.sends.index(at);
    let mark = |position| ends.sends.mark(index, position);
    let pushed = ends.send_cq.push(way, cqe, mark);
    note(pushed, &mut notes.fire_send, &mut notes.overrun_send);
    true
}

/// Completes a receive, which `take` takes off its queue just before. `false`: it could not be.
pub(in crate::transport) fn receive(
    ends: &Ends<'_>,
    cqe: &Cqe,
    take: impl FnOnce(),
    notes: &mut Notes,
) -> bool {
    let Some(way) = ends.recv_cq.enter(ends.pin) else {
        give_up(notes);
        return false;
    };
    take();
    let pushed = ends.recv_cq.push(way, cqe, |_| {});
    note(pushed, &mut notes.fire_recv, &mut notes.overrun_recv);
    true
}

fn give_up(notes: &mut Notes) {
    notes.fail = true;
    notes.event = Some(EventType::QpFatal);
}
