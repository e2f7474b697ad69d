//! Taking completions, and what follows from each.

use verbs_core::{WcFlags, WcOpcode, WcStatus};

use super::slot::{Fault, State};
use super::{Lane, RECV, Side, WCS};
use crate::error::Operation;

/// Takes all that has completed; says how many that were.
#[inline(never)]
pub(crate) fn all(lane: &mut Lane) -> usize {
    let mut count = 0;
    loop {
        let (sent, received) = (of(lane, Side::Send), of(lane, Side::Recv));
        count += sent + received;
        if sent < WCS && received < WCS {
            break;
        }
    }
    if lane.unsettled {
        settle(lane);
    }
    count
}

/// As [`all`], for one who looks once and does not come back for more: packets are not left to it.
pub(crate) fn in_passing(lane: &mut Lane) {
    all(lane);
    pause(lane);
}

/// Nobody polls the queues for a while.
pub(super) fn pause(lane: &mut Lane) {
    lane.send_cq.pause();
    lane.recv_cq.pause();
}

/// Takes all that has completed to one queue; says how many that were. What follows for ends that are over is
/// [not done](settle_if_needed).
#[inline(always)]
pub(super) fn of(lane: &mut Lane, side: Side) -> usize {
    let mut count = 0;
    loop {
        let cq = match side {
            Side::Send => &mut lane.send_cq,
            Side::Recv => &mut lane.recv_cq,
        };
        let n = cq.poll(&mut lane.wcs).len();
        (0..n).for_each(|at| dispatch(lane, at));
        count += n;
        if n < WCS {
            return count;
        }
    }
}

/// One completion.
#[inline]
pub(super) fn dispatch(lane: &mut Lane, n: usize) {
    let wc = lane.wcs[n];
    let fault = |operation| {
        (wc.status != WcStatus::Success).then_some(Fault::Status {
            status: wc.status,
            operation,
            vendor_err: wc.vendor_err,
        })
    };
    if wc.wr_id & RECV == 0 {
        let Some(slot) = lane.slots.of_id(wc.wr_id) else {
            lane.late += 1;
            return;
        };
        let operation = lane.slots.get(slot).operation;
        completed(lane, slot, fault(operation));
    } else {
        let conn = (wc.wr_id >> 32) as u32 & !(1 << 31);
        let mut len = wc.byte_len.min(lane.sizes.message);
        if wc.flags.contains(WcFlags::WITH_IMM) {
            len = with_imm(lane, n, len);
        }
        received(lane, conn, wc.wr_id as u32, len, fault(Operation::Recv));
    }
}

/// A receive has completed with immediate data: keeps that, and says how many bytes are in the buffer. Of a WRITE, none
/// are.
#[cold]
#[inline(never)]
fn with_imm(lane: &mut Lane, n: usize, len: u32) -> u32 {
    let wc = &lane.wcs[n];
    if wc.status != WcStatus::Success {
        return len;
    }
    lane.loans.keep_imm(wc.wr_id as u32, wc.imm);
    match wc.opcode {
        WcOpcode::RecvRdmaWithImm => 0,
        _ => len,
    }
}

/// An operation has completed.
fn completed(lane: &mut Lane, slot: u32, fault: Option<Fault>) {
    let done = lane.slots.get(slot);
    let (state, conn, buf, word) = (done.state, done.conn, done.buf, done.word);
    if !matches!(state, State::Posted | State::Orphan) {
        lane.late += 1;
        return;
    }
    (done.fault, done.word) = (fault, super::NONE);
    let end = &mut lane.ends[conn as usize];
    end.posted -= 1;
    if word != super::NONE {
        lane.slots.get(slot).value = end.words.give_back(word);
    }
    if let Some(fault) = fault {
        end.fail(fault);
        lane.unsettled = true;
    }
    if end.is_drained() {
        lane.wake.append(&mut end.drainers);
    }
    let waits = !end.waiting.is_empty();
    if state == State::Orphan {
        // Nothing was left to wake.
        let _none = lane.slots.release(slot);
        lane.give_back(buf);
    } else {
        lane.slots.get(slot).state = State::Done;
        let waker = lane.slots.take_waker(slot);
        lane.wake.extend(waker);
    }
    if waits {
        lane.refill(conn);
    }
}

/// A receive has completed.
fn received(lane: &mut Lane, conn: u32, buf: u32, len: u32, fault: Option<Fault>) {
    let Some(end) = lane.ends.get_mut(conn as usize) else {
        lane.late += 1;
        return;
    };
    end.recv_posted -= 1;
    if let Some(fault) = fault {
        end.home.push(buf);
        end.fail(fault);
        lane.unsettled = true;
        return;
    }
    match end.receivers.pop_front() {
        None => end.inbox.push_back((buf, len)),
        Some(receiver) => lane.hand(receiver, buf, len),
    }
}

#[inline(always)]
pub(super) fn settle_if_needed(lane: &mut Lane) {
    if lane.unsettled {
        all(lane);
    }
}

/// Tells the tasks of ends that are over. Both queues are empty, so that messages that came before are where
/// they belong.
#[cold]
#[inline(never)]
pub(super) fn settle(lane: &mut Lane) {
    lane.unsettled = false;
    for conn in 0..lane.ends.len() {
        let end = &mut lane.ends[conn];
        if !end.is_over {
            continue;
        }
        let waiting = std::mem::take(&mut end.waiting);
        let receivers = std::mem::take(&mut end.receivers);
        if end.is_drained() {
            lane.wake.append(&mut end.drainers);
        }
        for slot in waiting.into_iter().chain(receivers) {
            lane.refuse(slot, Fault::Over);
        }
    }
}

/// The device can no longer be used. What it has flushed has completed; of the rest nothing will be heard, and
/// the buffers stay with the lane, as the device may have them still.
#[cold]
pub(super) fn die(lane: &mut Lane) {
    all(lane);
    lane.is_dead = true;
    for end in &mut lane.ends {
        end.fail(Fault::Removed);
        end.posted = 0;
    }
    for slot in lane.slots.in_use() {
        let lost = lane.slots.get(slot);
        match lost.state {
            State::Posted => {
                lost.buf = super::NONE;
                lane.refuse(slot, Fault::Removed);
            }
            State::Orphan => {
                let _none = lane.slots.release(slot);
            }
            _ => {}
        }
    }
    settle(lane);
}
