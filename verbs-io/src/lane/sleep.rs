//! Tasks that sleep: which queue is armed for them, and what the queues' handlers do.

use verbs_core::Armed;
use verbs_core::task::OwnWaker;

use super::end::End;
use super::reap;
use super::slot::{Side, State};
use super::{Lane, POOL};

/// The future of a slot sleeps.
pub(crate) fn park(lane: &mut Lane, slot: u32, waker: &mut OwnWaker) {
    lane.streak = 0;
    let parked = lane.slots.get(slot);
    let side = match parked.state {
        State::Receiving if parked.conn & POOL == 0 => Side::Recv,
        _ => Side::Send,
    };
    let conn = parked.conn;
    lane.slots.leave_waker(slot, side, waker);
    arm_if_needed(lane, side);
    if side == Side::Recv && lane.ends[conn as usize].needs_its_sends() {
        arm_if_needed(lane, Side::Send);
    }
    // Both are polled while a task runs, and a queue is armed once only for several tasks.
    reap::pause(lane);
}

/// What a driver does that hears of no events.
pub(crate) fn turn(lane: &mut Lane) -> usize {
    let n = reap::all(lane);
    let mut more = false;
    for side in [Side::Send, Side::Recv] {
        // It says whether the device is still there.
        more |= lane.slots.is_awaited() && !lane.is_dead && arm(lane, side);
    }
    match more {
        true => n + reap::all(lane),
        false => n,
    }
}

/// Arms that queue for the tasks that sleep, unless it is.
pub(crate) fn arm_if_needed(lane: &mut Lane, side: Side) {
    if lane.has_events && !lane.armed[side as usize] && !lane.is_dead {
        lane.armed[side as usize] = true;
        while arm(lane, side) {
            reap::all(lane);
        }
    }
}

/// Arms that queue; `true` if completions wait.
fn arm(lane: &mut Lane, side: Side) -> bool {
    let cq = match side {
        Side::Send => &mut lane.send_cq,
        Side::Recv => &mut lane.recv_cq,
    };
    match cq.arm_next() {
        Ok(armed) => armed == Armed::Waiting,
        Err(_) => {
            reap::die(lane);
            false
        }
    }
}

/// What the handler of that queue does inside.
pub(crate) fn on_event(lane: &mut Lane, side: Side) {
    lane.armed[side as usize] = false;
    reap::of(lane, side);
    reap::settle_if_needed(lane);
    let waits = |end: &End| {
        !end.waiting.is_empty()
            || !end.drainers.is_empty()
            || !end.receivers.is_empty() && end.needs_its_sends()
    };
    let is_awaited =
        lane.slots.is_awaited_at(side) || side == Side::Send && lane.ends.iter().any(waits);
    match is_awaited {
        true => arm_if_needed(lane, side),
        false => reap::pause(lane),
    }
}
