//! The end of a command: its keys become invalid, then its memory returns to its owner, then its routine runs.

use verbs_core::sync::Arc;
use verbs_core::{FastMr, PostError, RKey};

use super::task;
use super::{Channel, Core, Due, Handle, Phase};
use crate::initiator::error::Error;
use crate::initiator::table::SlotId;
use crate::iu::ResponseCode;

/// The command's outcome is decided: withdraws the target's access to its memory. `remotely` is the key that
/// the target itself has invalidated.
pub(super) fn let_go(core: &mut Core, channel: &Arc<Channel>, id: SlotId, remotely: Option<RKey>) {
    if core.slot(id).pending > 0 {
        return;
    }
    if core.phase == Phase::Lost {
        return let_go_lost(core, channel, id);
    }
    for handle in &mut core.slot(id).handles {
        if let Handle::Fast { mr, is_valid } = handle
            && remotely == Some(mr.rkey())
        {
            *is_valid = false;
        }
    }
    let_go_own(core, channel, id);
    let_go_fmr(core, channel, id);
    if let Err(error) = let_go_fast(core, id) {
        return lose(core, channel, &error.into());
    }
    end(core, channel, id);
}

/// Posts invalidates of the keys that are still valid. The queue has room for them: its size covers all slots
/// with all their handles.
fn let_go_fast(core: &mut Core, id: SlotId) -> Result<(), PostError> {
    let valid = |handle: &Handle| matches!(handle, Handle::Fast { is_valid: true, .. });
    let handles = &core.slots[usize::from(id.index)].handles;
    let count = handles.iter().filter(|handle| valid(handle)).count();
    let mut left = count;
    for at in 0..handles.len() {
        let Handle::Fast { mr, is_valid: true } = &core.slots[usize::from(id.index)].handles[at]
        else {
            continue;
        };
        let key = mr.rkey();
        left -= 1;
        core.invalidate(id, key, left == 0)?;
    }
    core.slot(id).pending += usize::from(count > 0);
    Ok(())
}

/// The invalidates of that slot have completed.
pub(super) fn invalidated(core: &mut Core, channel: &Arc<Channel>, index: usize) {
    let id = u16::try_from(index)
        .ok()
        .and_then(|index| core.table.used(index));
    let Some(id) = id.filter(|_| core.phase != Phase::Lost) else {
        return;
    };
    let slot = core.slot(id);
    slot.pending = slot.pending.saturating_sub(1);
    for handle in &mut slot.handles {
        if let Handle::Fast { is_valid, .. } = handle {
            *is_valid = false;
        }
    }
    end(core, channel, id);
}

/// Frees the handles that were allocated for the command: when that has completed, no peer can access the
/// memory through them (K11).
fn let_go_own(core: &mut Core, channel: &Arc<Channel>, id: SlotId) {
    while let Some(at) = core
        .slot(id)
        .handles
        .iter()
        .position(|handle| matches!(handle, Handle::Own(_)))
    {
        if let Handle::Own(mr) = core.slot(id).handles.swap_remove(at) {
            free(core, channel, id, mr);
        }
    }
}

fn free(core: &mut Core, channel: &Arc<Channel>, id: SlotId, mr: FastMr) {
    core.slot(id).pending += 1;
    let channel = Arc::clone(channel);
    // Refused only while windows are bound, and none are.
    let _ = mr.free().issue(move |_freed| {
        channel.with(|core| {
            core.slot(id).pending -= 1;
            end(core, &channel, id);
        });
    });
}

/// Unmaps the command's fast memory regions; they are invalid after the pool has been flushed.
fn let_go_fmr(core: &mut Core, channel: &Arc<Channel>, id: SlotId) {
    let Some(pool) = &mut core.hands.fmr else {
        return;
    };
    let handles = &mut core.slots[usize::from(id.index)].handles;
    let mut unmapped = false;
    while let Some(at) = handles
        .iter()
        .position(|handle| matches!(handle, Handle::Fmr(_)))
    {
        if let Handle::Fmr(fmr) = handles.swap_remove(at) {
            pool.unmap(fmr);
            unmapped = true;
        }
    }
    if unmapped {
        core.slot(id).pending += 1;
        core.hands.unflushed.push(id);
        flush(core, channel);
    }
}

/// Flushes the pool for all slots that wait, unless a flush is running; then they wait for the next one.
fn flush(core: &mut Core, channel: &Arc<Channel>) {
    let hands = &mut core.hands;
    if !hands.flushing.is_empty() || hands.unflushed.is_empty() {
        return;
    }
    std::mem::swap(&mut hands.flushing, &mut hands.unflushed);
    let Some(pool) = &hands.fmr else { return };
    let again = Arc::clone(channel);
    let _ = pool.flush().issue(move |done| {
        again.with(|core| flushed(core, &again, done));
    });
}

fn flushed(core: &mut Core, channel: &Arc<Channel>, done: Result<(), verbs_core::Error>) {
    // A flush fails only if the device was removed, and all keys with it.
    if let Err(error) = done {
        lose(core, channel, &error.into());
    }
    while let Some(id) = core.hands.flushing.pop() {
        core.slot(id).pending -= 1;
        end(core, channel, id);
    }
    flush(core, channel);
    core.send_ready(channel);
}

/// The connection is lost, so invalidates can no longer be posted: the handles are freed by requests.
fn let_go_lost(core: &mut Core, channel: &Arc<Channel>, id: SlotId) {
    let_go_own(core, channel, id);
    let_go_fmr(core, channel, id);
    while let Some(handle) = core.slot(id).handles.pop() {
        match handle {
            Handle::Fast { mr, .. } | Handle::Own(mr) => free(core, channel, id, mr),
            // The pool no longer exists, and neither do its keys.
            Handle::Fmr(_) => {}
        }
    }
    end(core, channel, id);
}

/// If nothing of the command is left, returns its memory to its owner and queues its routine.
fn end(core: &mut Core, channel: &Arc<Channel>, id: SlotId) {
    if core.slot(id).pending > 0 {
        return;
    }
    if core.phase == Phase::Lost && !core.slot(id).handles.is_empty() {
        return let_go_lost(core, channel, id);
    }
    give_back(core, id);
    if !core.is_over(id) {
        return;
    }
    let slot = core.slot(id);
    let (routine, outcome) = (slot.routine.take(), slot.outcome.take());
    core.table.release(id);
    if let (Some(routine), Some(outcome)) = (routine, outcome) {
        let outcome = match outcome {
            // The target reports an error in the unit instead of executing it.
            Ok(done) if refused(done.response) => {
                Err(Error::Response(done.response.unwrap_or_default()))
            }
            other => other,
        };
        core.due.push_back(Due::Routine(routine, outcome));
    }
    core.due.push_back(Due::Room);
    core.send_ready(channel);
}

/// Returns a command's handles, which are invalid or were never valid, to their pools.
pub(super) fn give_back(core: &mut Core, id: SlotId) {
    let handles = &mut core.slots[usize::from(id.index)].handles;
    while let Some(handle) = handles.pop() {
        match handle {
            Handle::Fast { mut mr, .. } => {
                // If a thread still reads the pages, the next mapping releases them.
                let _ = mr.unmap();
                core.hands.fast.push(mr);
            }
            // Dropped before it was ever registered.
            Handle::Own(_) => {}
            Handle::Fmr(fmr) => {
                if let Some(pool) = &mut core.hands.fmr {
                    pool.unmap(fmr);
                }
            }
        }
    }
}

/// Whether a key is one of a command's.
pub(super) fn is_handle(core: &Core, id: SlotId, key: RKey) -> bool {
    let handles = &core.slots[usize::from(id.index)].handles;
    handles.iter().any(|handle| match handle {
        Handle::Fast { mr, .. } | Handle::Own(mr) => mr.rkey() == key,
        Handle::Fmr(_) => false,
    })
}

/// The channel is lost: every command and every task management request ends.
pub(super) fn lose(core: &mut Core, channel: &Arc<Channel>, error: &Error) {
    if core.phase == Phase::Lost {
        return;
    }
    let was_open = core.phase == Phase::Open;
    core.phase = Phase::Lost;
    let why = match error {
        Error::LoggedOut | Error::Protocol(_) | Error::Replaced(_) | Error::GivenUp { .. } => {
            error.clone()
        }
        _ => Error::ConnectionLost,
    };
    if let Some(wires) = &mut core.wires
        && let Some(connection) = wires.connection.take()
    {
        core.due.push_back(Due::Disconnect(Box::new(connection)));
    }
    task::lose(core, &why);
    for index in 0..core.table.slots() {
        let Some(id) = core.table.used(index) else {
            continue;
        };
        if core.table.claim(id).is_some() {
            core.slot(id).outcome = Some(Err(why.clone()));
        }
        // Invalidates are flushed with everything else; requests still complete.
        let own = core.slot(id).asked.is_some();
        let waits = core.hands.flushing.contains(&id) || core.hands.unflushed.contains(&id);
        if !own && !waits {
            forget_invalidates(core, id);
            let_go_lost(core, channel, id);
        }
    }
    if was_open {
        core.due.push_back(Due::Lost(error.clone()));
    }
}

/// Posted invalidates will never complete; frees are requests, and will.
fn forget_invalidates(core: &mut Core, id: SlotId) {
    let slot = core.slot(id);
    let invalidates = slot
        .handles
        .iter()
        .any(|handle| matches!(handle, Handle::Fast { .. }));
    if invalidates {
        slot.pending = 0;
    }
}

fn refused(code: Option<ResponseCode>) -> bool {
    code.is_some_and(|code| code != ResponseCode::COMPLETE)
}
