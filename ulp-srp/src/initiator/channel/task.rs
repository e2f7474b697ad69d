//! Task management: one request at a time, on the slot and the credit that are kept back for it.

use verbs_core::sync::Arc;

use super::{Channel, Core, Due, Phase, Task};
use crate::initiator::error::{Completion, Error, Outcome};
use crate::initiator::table::{SlotId, State};
use crate::iu::{Lun, ResponseCode, Tag, TaskFunction, TskMgmt};

impl Channel {
    /// Asks for task management; the routine gets what became of it.
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

    /// The command of a tag, if it is one of this channel.
    pub(crate) fn slot_of(&self, tag: Tag) -> Option<SlotId> {
        self.core.lock().table.slot_of(tag)
    }

    /// A reset by way of another channel has ended all commands of a logical unit. Of those that were sent
    /// meanwhile nobody knows on which side of it they are; they end too, as none may be left waiting.
    pub(crate) fn was_reset(self: &Arc<Self>, function: TaskFunction, lun: Lun) {
        self.with(|core| core.abort_all(self, function, lun, u64::MAX));
    }
}

impl Core {
    /// Sends the next task management request, if there is one and the slot is free.
    pub(super) fn send_task(&mut self, channel: &Arc<Channel>) {
        while self.task.is_none() && !self.tasks.is_empty() {
            if self.abort_unsent(channel) {
                continue;
            }
            let Some(id) = self.table.take_task() else {
                return;
            };
            let Some(mut task) = self.tasks.pop_front() else {
                return;
            };
            task.mark = self.table.counters().sent;
            let unit = TskMgmt {
                tag: self.table.tag(id),
                lun: task.lun,
                function: task.function,
                task: task.target.map_or(Tag(0), |id| self.table.tag(id)),
                ..TskMgmt::default()
            };
            self.task = Some(task);
            if let Err(error) = self.send_unit(id, &unit.unit()) {
                return self.lose(channel, &error);
            }
        }
    }

    /// An abort of a command that the target does not have, as it was not sent or has ended, is done at
    /// once.
    fn abort_unsent(&mut self, channel: &Arc<Channel>) -> bool {
        let Some(target) = self.tasks.front().and_then(|task| task.target) else {
            return false;
        };
        if self.table.state(target) == State::Sent {
            return false;
        }
        if let Some(task) = self.tasks.pop_front() {
            self.claim(channel, target, Error::Aborted(task.function));
            let done = Completion {
                response: Some(ResponseCode::COMPLETE),
                ..Completion::default()
            };
            self.due.push_back(Due::Routine(task.routine, Ok(done)));
        }
        true
    }

    /// The answer to task management.
    pub(super) fn task_answered(&mut self, channel: &Arc<Channel>, id: SlotId, outcome: Outcome) {
        self.table.release(id);
        let Some(task) = self.task.take() else { return };
        let is_done = matches!(
            &outcome,
            Ok(done) if done.response.is_none_or(|code| code == ResponseCode::COMPLETE)
        );
        if is_done {
            match task.target {
                Some(target) => self.claim(channel, target, Error::Aborted(task.function)),
                None => {
                    self.abort_all(channel, task.function, task.lun, task.mark);
                    self.due.push_back(Due::Reset(task.function, task.lun));
                }
            }
        }
        self.due.push_back(Due::Routine(task.routine, outcome));
        self.send_ready(channel);
    }

    /// The target has ended all commands of a logical unit that it had.
    fn abort_all(&mut self, channel: &Arc<Channel>, function: TaskFunction, lun: Lun, mark: u64) {
        if function == TaskFunction::CLEAR_ACA {
            return;
        }
        for index in 0..self.table.slots() - 1 {
            let Some(id) = self.table.used(index) else {
                continue;
            };
            let slot = self.slot(id);
            let meant = slot.lun == lun && slot.sent_as <= mark;
            if meant && self.table.state(id) == State::Sent {
                self.claim(channel, id, Error::Aborted(function));
            }
        }
    }

    /// Task management ends with the channel.
    pub(super) fn lose_tasks(&mut self, why: &Error) {
        let tasks = self.task.take().into_iter().chain(self.tasks.drain(..));
        for task in tasks {
            self.due
                .push_back(Due::Routine(task.routine, Err(why.clone())));
        }
    }
}
