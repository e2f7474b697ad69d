//! The end of a command: its keys become invalid, then its memory goes back, then its routine runs.

use verbs_core::sync::Arc;
use verbs_core::{FastMr, PostError, RKey};

use super::{Channel, Core, Due, Handle, Phase};
use crate::initiator::error::Error;
use crate::initiator::table::SlotId;
use crate::iu::ResponseCode;

impl Core {
    /// The command's outcome is decided: takes the target's rights to its memory away. `remotely` is the
    /// key that the target has invalidated itself.
    pub(super) fn let_go(&mut self, channel: &Arc<Channel>, id: SlotId, remotely: Option<RKey>) {
        if self.slot(id).pending > 0 {
            return;
        }
        if self.phase == Phase::Lost {
            return self.let_go_lost(channel, id);
        }
        for handle in &mut self.slot(id).handles {
            if let Handle::Fast { mr, is_valid } = handle
                && remotely == Some(mr.rkey())
            {
                *is_valid = false;
            }
        }
        self.let_go_own(channel, id);
        self.let_go_fmr(channel, id);
        if let Err(error) = self.let_go_fast(id) {
            return self.lose(channel, &error.into());
        }
        self.end(channel, id);
    }

    /// Posts invalidates of the keys that are still valid. The queue has room for them: it was made for
    /// all slots with all their handles.
    fn let_go_fast(&mut self, id: SlotId) -> Result<(), PostError> {
        let valid = |handle: &Handle| matches!(handle, Handle::Fast { is_valid: true, .. });
        let handles = &self.slots[usize::from(id.index)].handles;
        let count = handles.iter().filter(|handle| valid(handle)).count();
        let mut left = count;
        for at in 0..handles.len() {
            let Handle::Fast { mr, is_valid: true } =
                &self.slots[usize::from(id.index)].handles[at]
            else {
                continue;
            };
            let key = mr.rkey();
            left -= 1;
            self.invalidate(id, key, left == 0)?;
        }
        self.slot(id).pending += usize::from(count > 0);
        Ok(())
    }

    /// The invalidates of that slot have completed.
    pub(super) fn invalidated(&mut self, channel: &Arc<Channel>, index: usize) {
        let id = u16::try_from(index)
            .ok()
            .and_then(|index| self.table.used(index));
        let Some(id) = id.filter(|_| self.phase != Phase::Lost) else {
            return;
        };
        let slot = self.slot(id);
        slot.pending = slot.pending.saturating_sub(1);
        for handle in &mut slot.handles {
            if let Handle::Fast { is_valid, .. } = handle {
                *is_valid = false;
            }
        }
        self.end(channel, id);
    }

    /// Frees the handles that were allocated for the command: when that has completed, nobody reaches the
    /// memory through them any more (K11).
    fn let_go_own(&mut self, channel: &Arc<Channel>, id: SlotId) {
        while let Some(at) = self
            .slot(id)
            .handles
            .iter()
            .position(|handle| matches!(handle, Handle::Own(_)))
        {
            if let Handle::Own(mr) = self.slot(id).handles.swap_remove(at) {
                self.free(channel, id, mr);
            }
        }
    }

    fn free(&mut self, channel: &Arc<Channel>, id: SlotId, mr: FastMr) {
        self.slot(id).pending += 1;
        let channel = Arc::clone(channel);
        // Refused only while windows are bound, and none are.
        let _ = mr.free().issue(move |_freed| {
            channel.with(|core| {
                core.slot(id).pending -= 1;
                core.end(&channel, id);
            });
        });
    }

    /// Unmaps the command's fast memory regions; they are invalid when the pool has been flushed.
    fn let_go_fmr(&mut self, channel: &Arc<Channel>, id: SlotId) {
        let Some(pool) = &mut self.hands.fmr else {
            return;
        };
        let handles = &mut self.slots[usize::from(id.index)].handles;
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
            self.slot(id).pending += 1;
            self.hands.unflushed.push(id);
            self.flush(channel);
        }
    }

    /// Flushes the pool for all that wait, unless a flush is under way; then they wait for the next.
    fn flush(&mut self, channel: &Arc<Channel>) {
        let hands = &mut self.hands;
        if !hands.flushing.is_empty() || hands.unflushed.is_empty() {
            return;
        }
        std::mem::swap(&mut hands.flushing, &mut hands.unflushed);
        let Some(pool) = &hands.fmr else { return };
        let again = Arc::clone(channel);
        let _ = pool.flush().issue(move |done| {
            again.with(|core| core.flushed(&again, done));
        });
    }

    fn flushed(&mut self, channel: &Arc<Channel>, done: Result<(), verbs_core::Error>) {
        // A pool that cannot be flushed is of a device that has gone, with all its keys.
        if let Err(error) = done {
            self.lose(channel, &error.into());
        }
        while let Some(id) = self.hands.flushing.pop() {
            self.slot(id).pending -= 1;
            self.end(channel, id);
        }
        self.flush(channel);
        self.send_ready(channel);
    }

    /// The connection is gone, and with it the way of invalidates: the handles are freed by requests.
    fn let_go_lost(&mut self, channel: &Arc<Channel>, id: SlotId) {
        self.let_go_own(channel, id);
        self.let_go_fmr(channel, id);
        while let Some(handle) = self.slot(id).handles.pop() {
            match handle {
                Handle::Fast { mr, .. } | Handle::Own(mr) => self.free(channel, id, mr),
                // The pool is gone with its keys.
                Handle::Fmr(_) => {}
            }
        }
        self.end(channel, id);
    }

    /// If nothing of the command is left, its memory goes back and its routine is due.
    fn end(&mut self, channel: &Arc<Channel>, id: SlotId) {
        if self.slot(id).pending > 0 {
            return;
        }
        if self.phase == Phase::Lost && !self.slot(id).handles.is_empty() {
            return self.let_go_lost(channel, id);
        }
        self.give_back(id);
        if !self.is_over(id) {
            return;
        }
        let slot = self.slot(id);
        let (routine, outcome) = (slot.routine.take(), slot.outcome.take());
        self.table.release(id);
        if let (Some(routine), Some(outcome)) = (routine, outcome) {
            let outcome = match outcome {
                // The target says what is wrong with the unit instead of executing it.
                Ok(done) if refused(done.response) => {
                    Err(Error::Response(done.response.unwrap_or_default()))
                }
                other => other,
            };
            self.due.push_back(Due::Routine(routine, outcome));
        }
        self.due.push_back(Due::Room);
        self.send_ready(channel);
    }

    /// Puts a command's handles, which are invalid or were never valid, back into their pools.
    pub(super) fn give_back(&mut self, id: SlotId) {
        let handles = &mut self.slots[usize::from(id.index)].handles;
        while let Some(handle) = handles.pop() {
            match handle {
                Handle::Fast { mut mr, .. } => {
                    // If somebody is looking at the pages still, the next mapping lets go of them.
                    let _ = mr.unmap();
                    self.hands.fast.push(mr);
                }
                // Dropped before it was ever registered.
                Handle::Own(_) => {}
                Handle::Fmr(fmr) => {
                    if let Some(pool) = &mut self.hands.fmr {
                        pool.unmap(fmr);
                    }
                }
            }
        }
    }

    /// Whether a key is one of a command's.
    pub(super) fn is_handle(&self, id: SlotId, key: RKey) -> bool {
        let handles = &self.slots[usize::from(id.index)].handles;
        handles.iter().any(|handle| match handle {
            Handle::Fast { mr, .. } | Handle::Own(mr) => mr.rkey() == key,
            Handle::Fmr(_) => false,
        })
    }

    /// The channel is lost: every command and every task management request ends.
    pub(super) fn lose(&mut self, channel: &Arc<Channel>, error: &Error) {
        if self.phase == Phase::Lost {
            return;
        }
        let was_open = self.phase == Phase::Open;
        self.phase = Phase::Lost;
        let why = match error {
            Error::LoggedOut | Error::Protocol(_) | Error::Replaced(_) | Error::GivenUp { .. } => {
                error.clone()
            }
            _ => Error::ConnectionLost,
        };
        if let Some(wires) = &mut self.wires
            && let Some(connection) = wires.connection.take()
        {
            self.due.push_back(Due::Disconnect(Box::new(connection)));
        }
        self.lose_tasks(&why);
        for index in 0..self.table.slots() {
            let Some(id) = self.table.used(index) else {
                continue;
            };
            if self.table.claim(id).is_some() {
                self.slot(id).outcome = Some(Err(why.clone()));
            }
            // Invalidates are flushed with everything else; requests still complete.
            let own = self.slot(id).asked.is_some();
            let waits = self.hands.flushing.contains(&id) || self.hands.unflushed.contains(&id);
            if !own && !waits {
                self.forget_invalidates(id);
                self.let_go_lost(channel, id);
            }
        }
        if was_open {
            self.due.push_back(Due::Lost(error.clone()));
        }
    }

    /// Invalidates that were posted will never be heard of again; frees are requests, and will.
    fn forget_invalidates(&mut self, id: SlotId) {
        let slot = self.slot(id);
        let invalidates = slot
            .handles
            .iter()
            .any(|handle| matches!(handle, Handle::Fast { .. }));
        if invalidates {
            slot.pending = 0;
        }
    }
}

fn refused(code: Option<ResponseCode>) -> bool {
    code.is_some_and(|code| code != ResponseCode::COMPLETE)
}
