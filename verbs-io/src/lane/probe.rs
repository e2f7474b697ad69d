//! Probes: WRITEs of no bytes, which show whether the peer's device is there.

use verbs_core::{Dest, Payload, RKey, Remote, SendFlags, SendOp, SendWr, WcStatus};

use super::Lane;
use super::reap;
use super::slot::{Fault, NONE, State};
use crate::error::Operation;

/// Whether messages have come on a connection since it was looked at; if not, and if nothing is under way, probes the
/// peer, and says by what. `None` if the connection is over. `receives` are those that were posted then.
pub(crate) fn feel(lane: &mut Lane, conn: u32, receives: &mut u32) -> Option<Option<u64>> {
    reap::in_passing(lane);
    let end = &lane.ends[conn as usize];
    if end.is_over {
        return None;
    }
    // Each message takes one, and they are posted again by several. If it is the same number by accident, one probe
    // is sent without need, and no operation has anything to count.
    let now = end.recv_posted;
    let is_silent = std::mem::replace(receives, now) == now && end.is_drained();
    Some(is_silent.then(|| probe(lane, conn)).flatten())
}

/// Posts a probe, if there is room; says which.
pub(crate) fn probe(lane: &mut Lane, conn: u32) -> Option<u64> {
    if !lane.ends[conn as usize].has_room() {
        return None;
    }
    let slot = lane.slots.take(State::Orphan, conn);
    let id = lane.slots.id(slot);
    let taken = lane.slots.get(slot);
    (taken.buf, taken.operation) = (NONE, Operation::Keepalive);
    // No bytes are written, so no key is checked.
    let nowhere = Remote {
        addr: 0,
        rkey: RKey::default(),
    };
    let probe = SendWr {
        wr_id: id,
        op: SendOp::Write(nowhere),
        flags: SendFlags::SIGNALED,
        payload: Payload::List(&[]),
        dest: Dest::Peer,
    };
    let end = &mut lane.ends[conn as usize];
    let posted = end.queues.as_mut().map(|(send, _)| send.post(probe));
    if !matches!(posted, Some(Ok(()))) {
        // The connection is ending; nothing was left to wake.
        let _none = lane.slots.release(slot);
        return None;
    }
    end.posted += 1;
    Some(id)
}

/// Whether a probe has completed, in whatever way.
pub(crate) fn is_answered(lane: &mut Lane, conn: u32, probe: u64) -> bool {
    reap::in_passing(lane);
    lane.slots.of_id(probe).is_none() || lane.ends[conn as usize].is_over
}

/// The peer has acknowledged no probe.
pub(crate) fn lose(lane: &mut Lane, conn: u32) {
    lane.ends[conn as usize].fail(Fault::Status {
        status: WcStatus::RetryExcErr,
        operation: Operation::Keepalive,
        vendor_err: 0,
    });
    lane.unsettled = true;
    reap::settle_if_needed(lane);
}
