//! Task management: one request at a time, on the slot and the credit that are reserved for it.

use verbs_core::sync::Arc;

use super::release;
use super::{Channel, Core, Due, Phase, Task};
use crate::initiator::error::{Completion, Error, Outcome};
use crate::initiator::table::{SlotId, State};
use crate::iu::{Lun, ResponseCode, Tag, TaskFunction, TskMgmt};

impl Channel {
    /// Requests task management; the routine gets the result.
    pub(crate) fn manage(self: &Arc<Self>, task: Task) {
        self.with(|core| {
            if core.phase != Phase::Open {
                core.due
                    .push_back(Due::Routine(task.routine, Err(Error::Reconnecting)));
                return;
            }
            core.tasks.push_back(task);
            core.send_ready(self);
        });
    }

    /// The slot of the command with that tag, if it is on this channel.
    pub(crate) fn slot_of(&self, tag: Tag) -> Option<SlotId> {
        self.core.lock().table.slot_of(tag)
    }

    /// A reset through another channel has ended all commands of a logical unit. It is unknown whether commands
    /// sent around that time came before or after the reset; they end too, because none may be left waiting.
    pub(crate) fn was_reset(self: &Arc<Self>, function: TaskFunction, lun: Lun) {
        self.with(|core| abort_all(core, self, function, lun, u64::MAX));
    }
}

/// Sends the next task management request, if there is one and the slot is free.
pub(super) fn send_next(core: &mut Core, channel: &Arc<Channel>) {
    while core.task.is_none() && !core.tasks.is_empty() {
        if abort_unsent(core, channel) {
            continue;
        }
        let Some(id) = core.table.take_task() else {
            return;
        };
        let Some(mut task) = core.tasks.pop_front() else {
            return;
        };
        task.mark = core.table.counters().sent;
        let unit = TskMgmt {
            tag: core.table.tag(id),
            lun: task.lun,
            function: task.function,
            task: task.target.map_or(Tag(0), |id| core.table.tag(id)),
            ..TskMgmt::default()
        };
        core.task = Some(task);
        if let Err(error) = core.send_unit(id, &unit.unit()) {
            return release::lose(core, channel, &error);
        }
    }
}

/// An abort of a command that the target does not have, because it was not sent or has ended, completes at
/// once.
fn abort_unsent(core: &mut Core, channel: &Arc<Channel>) -> bool {
    let Some(target) = core.tasks.front().and_then(|task| task.target) else {
        return false;
    };
    if core.table.state(target) == State::Sent {
        return false;
    }
    if let Some(task) = core.tasks.pop_front() {
        core.claim(channel, target, Error::Aborted(task.function));
        let done = Completion {
            response: Some(ResponseCode::COMPLETE),
            ..Completion::default()
        };
        core.due.push_back(Due::Routine(task.routine, Ok(done)));
    }
    true
}

/// Handles the answer to task management.
pub(super) fn answered(core: &mut Core, channel: &Arc<Channel>, id: SlotId, outcome: Outcome) {
    core.table.release(id);
    let Some(task) = core.task.take() else { return };
    let is_done = matches!(
        &outcome,
        Ok(done) if done.response.is_none_or(|code| code == ResponseCode::COMPLETE)
    );
    if is_done {
        match task.target {
            Some(target) => core.claim(channel, target, Error::Aborted(task.function)),
            None => {
                abort_all(core, channel, task.function, task.lun, task.mark);
                core.due.push_back(Due::Reset(task.function, task.lun));
            }
        }
    }
    core.due.push_back(Due::Routine(task.routine, outcome));
    core.send_ready(channel);
}

/// The target has ended all commands that it had for a logical unit.
fn abort_all(core: &mut Core, channel: &Arc<Channel>, function: TaskFunction, lun: Lun, mark: u64) {
    if function == TaskFunction::CLEAR_ACA {
        return;
    }
    for index in 0..core.table.slots() - 1 {
        let Some(id) = core.table.used(index) else {
            continue;
        };
        let slot = core.slot(id);
        let meant = slot.lun == lun && slot.sent_as <= mark;
        if meant && core.table.state(id) == State::Sent {
            core.claim(channel, id, Error::Aborted(function));
        }
    }
}

/// Task management ends with the channel.
pub(super) fn lose(core: &mut Core, why: &Error) {
    let tasks = core.task.take().into_iter().chain(core.tasks.drain(..));
    for task in tasks {
        core.due
            .push_back(Due::Routine(task.routine, Err(why.clone())));
    }
}
