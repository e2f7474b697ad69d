//! Executing a command: from its receipt through its buffer, its data and its unit to its answer.

use std::ops::Range;
use std::task::Waker;

use futures::future::FutureExt;
use verbs_core::sync::Arc;

use super::pool::sge;
use super::server::{self, Plan};
use super::task::{Answer, Need, Place, Step, Task};
use super::work::{Trouble, Work, perform};
use crate::iu::{Cmd, DataBuffer, Residual, ResponseCode, Status, TaskAttribute};
use crate::lun::{Piece, UnitError, copy};
use crate::scsi::{Code, Sense, SenseKey};
use crate::target::channel::Channel;
use crate::target::event::TargetEvent;
use crate::target::units::Unit;

impl Channel {
    /// A command has arrived.
    pub(crate) fn command(&mut self, slot: u16, cmd: &Cmd<'_>, iu: &[u8]) {
        let live = &self.shared.live;
        live.commands.add(1);
        let busy = |task: &Task| task.step != Step::Free && task.tag == cmd.tag;
        let is_double = self.active > 0 && self.tasks.iter().any(busy);
        let entries_max = self.house.config.table_entries_max;
        let task = &mut self.tasks[usize::from(slot)];
        task.begin(cmd);
        // Whatever its answer will be, it counts as begun.
        self.active += 1;
        let mut described = task.describe(cmd, entries_max).is_ok();
        if let DataBuffer::Immediate(len) = cmd.data_out {
            let data = self
                .immediate
                .map(|offset| (offset, cmd.immediate(iu, offset)));
            if let Some((offset, Ok(_))) = data {
                let start = usize::from(slot) * self.rooms.iu_stride + usize::from(offset);
                task.immediate = Some(start..start + len as usize);
            }
            described &= task.immediate.is_some();
        }
        live.descriptors.add(task.pieces.len() as u64);
        match (task.direct, task.immediate.is_some(), task.buffer_len) {
            (Some(_), ..) => live.direct.add(1),
            (_, true, _) => live.immediate.add(1),
            (_, _, 0) => live.no_data.add(1),
            _ => live.indirect.add(1),
        }
        let attributes = [
            TaskAttribute::SIMPLE,
            TaskAttribute::HEAD_OF_QUEUE,
            TaskAttribute::ORDERED,
        ];
        if !described || !attributes.contains(&cmd.attribute) {
            return self.invalid(slot);
        }
        if is_double {
            let sense = Sense::new(SenseKey::AbortedCommand, Code::OVERLAPPED_COMMANDS);
            return self.refuse(slot, sense);
        }
        let after_others = cmd.attribute == TaskAttribute::ORDERED && self.active > 1;
        let is_first = cmd.attribute == TaskAttribute::HEAD_OF_QUEUE;
        let behind_others = !is_first && (self.ordered || !self.held.is_empty());
        if after_others || behind_others {
            self.active -= 1;
            self.task(slot).step = Step::Held;
            return self.held.push_back(slot);
        }
        self.start(slot);
    }

    /// The command may begin.
    pub(crate) fn start(&mut self, slot: u16) {
        self.ordered |= self.task(slot).attribute == TaskAttribute::ORDERED;
        match self.task(slot).rest {
            Some(_) => self.wait(slot, Need::Table),
            None => self.plan(slot),
        }
    }

    /// The location of its data is known.
    fn plan(&mut self, slot: u16) {
        let units = self.house.units();
        let task = &mut self.tasks[usize::from(slot)];
        match server::plan(&units, &self.shared.nexus, task.lun, &task.cdb) {
            Plan::Done(data) if data.is_empty() => self.good(slot, 0),
            Plan::Done(data) => {
                task.reply = data;
                self.wait(slot, Need::Reply);
            }
            Plan::Refused(sense) => self.refuse(slot, sense),
            Plan::Unit(unit, work) => self.work(slot, unit, work),
        }
    }

    /// The command needs work of a unit.
    fn work(&mut self, slot: u16, unit: Arc<Unit>, work: Work) {
        let size = unit.shape.block_bytes;
        let wanted = work.data_out(size);
        let task = &mut self.tasks[usize::from(slot)];
        let has = if task.is_out { task.buffer_len } else { 0 };
        if wanted > has {
            task.answer.residual = Residual::Over(wanted - has);
            return self.refuse(slot, Sense::cdb_field(0));
        }
        let in_memory = unit.memory.as_ref().zip(work.in_memory(size));
        if let Some((memory, offset)) = in_memory {
            task.place = Place {
                addr: memory.iova() + offset,
                lkey: memory.lkey(),
            };
        }
        let is_in_memory = in_memory.is_some();
        let buffer = work.buffer(self.house.config.buffer_bytes, size);
        let immediate = task.immediate.clone();
        task.work = Some((unit, work));
        match (immediate, is_in_memory, buffer) {
            (Some(range), ..) if wanted > 0 => {
                let piece = self.came_along(range, wanted);
                self.task(slot).piece = Some(piece);
                self.execute(slot);
            }
            (_, true, _) if wanted > 0 => self.fetch(slot, wanted),
            (_, true, _) => self.good(slot, work.data_in()),
            (_, false, 0) => self.execute(slot),
            (_, false, _) => self.wait(slot, Need::Work),
        }
    }

    /// Data that arrived in the command's own unit.
    fn came_along(&self, range: Range<usize>, wanted: u32) -> Piece {
        let memory = Arc::clone(self.rooms.received.memory());
        Piece::of(memory).part(range.start..range.start + wanted as usize)
    }

    fn wait(&mut self, slot: u16, need: Need) {
        self.task(slot).step = Step::Waiting(need);
        self.waiting.push_back(slot);
        self.again = true;
    }

    /// Gives buffers to the waiting tasks, oldest first.
    pub(crate) fn give_buffers(&mut self, waker: &Waker) {
        while let Some(&slot) = self.waiting.front() {
            let len = self.buffer_len(slot);
            let Some(piece) = self.house.pool.take(len, waker) else {
                self.shared.live.buffer_waits.add(1);
                return;
            };
            self.waiting.pop_front();
            self.buffered(slot, piece);
        }
    }

    fn buffer_len(&self, slot: u16) -> usize {
        let task = &self.tasks[usize::from(slot)];
        let bytes = self.house.config.buffer_bytes;
        let len = match (task.step, &task.rest, &task.work) {
            (Step::Waiting(Need::Table), Some((rest, _)), _) => rest.len,
            (Step::Waiting(Need::Work), _, Some((unit, work))) => {
                work.buffer(bytes, unit.shape.block_bytes)
            }
            _ => bytes,
        };
        len.min(bytes) as usize
    }

    /// A buffer for a task that waited for one.
    fn buffered(&mut self, slot: u16, piece: Piece) {
        let lkey = self.house.pool.lkey();
        let task = &mut self.tasks[usize::from(slot)];
        let all = sge(&piece, lkey, 0..piece.len());
        task.place = Place {
            addr: all.addr,
            lkey,
        };
        match task.step {
            Step::Waiting(Need::Table) => {
                self.shared.live.tables_fetched.add(1);
                task.piece = Some(piece);
                task.step = Step::Table;
                self.posting.push_back(slot);
            }
            Step::Waiting(Need::Reply) => {
                let reply = std::mem::take(&mut task.reply);
                // Replies have less than 256 KiB: 8 bytes for each unit.
                let len = reply.len().min(piece.len());
                let written = piece.write(0, &reply[..len]);
                debug_assert_eq!(written, Ok(()));
                task.piece = Some(piece);
                self.good(slot, len as u32);
            }
            _ => {
                task.piece = Some(piece);
                let wanted = task
                    .work
                    .as_ref()
                    .map_or(0, |(unit, work)| work.data_out(unit.shape.block_bytes));
                match wanted {
                    0 => self.execute(slot),
                    _ => self.fetch(slot, wanted),
                }
            }
        }
    }

    fn fetch(&mut self, slot: u16, bytes: u32) {
        let task = self.task(slot);
        task.move_bytes(bytes);
        task.step = Step::Fetching;
        self.posting.push_back(slot);
    }

    /// Everything that had to be fetched is there.
    pub(crate) fn fetched(&mut self, slot: u16) {
        if self.drop_if_aborted(slot) {
            return;
        }
        let task = self.task(slot);
        match task.step {
            Step::Table => match task.take_table() {
                Ok(more) => {
                    self.shared.live.descriptors.add(more as u64);
                    self.plan(slot);
                }
                Err(_) => self.invalid(slot),
            },
            _ => self.execute(slot),
        }
    }

    /// Everything that the unit needs is there.
    fn execute(&mut self, slot: u16) {
        let task = &mut self.tasks[usize::from(slot)];
        let Some((unit, work)) = task.work.clone() else {
            return self.invalid(slot);
        };
        let in_memory = unit
            .memory
            .as_ref()
            .zip(work.in_memory(unit.shape.block_bytes));
        if let Some((memory, offset)) = in_memory {
            // The data are in place already, unless they arrived with the command.
            let copied = match &task.piece {
                None => Ok(()),
                Some(piece) => copy(piece, memory.memory(), offset as usize),
            };
            return match copied {
                Ok(()) => self.good(slot, 0),
                Err(_) => self.unit_done(slot, Err(UnitError::Failed.sense())),
            };
        }
        task.step = Step::OnUnit;
        let piece = task.piece.clone();
        let running = perform(unit, work, piece).map(move |result| (slot, result));
        self.running.push(running.boxed());
        self.again = true;
    }

    /// The unit has finished the work, or failed.
    pub(crate) fn unit_done(&mut self, slot: u16, result: Result<(), Trouble>) {
        if self.drop_if_aborted(slot) {
            return;
        }
        match result {
            Ok(()) => {
                let work = self.task(slot).work.as_ref();
                let data = work.map_or(0, |(_, work)| work.data_in());
                self.good(slot, data);
            }
            Err(Some(sense)) => self.refuse(slot, sense),
            Err(None) => self.answer(slot, Status::BUSY, 0),
        }
    }

    /// The command succeeded, with that many bytes for the initiator.
    pub(crate) fn good(&mut self, slot: u16, data: u32) {
        self.answer(slot, Status::GOOD, data);
    }

    pub(crate) fn refuse(&mut self, slot: u16, sense: Sense) {
        self.shared.live.check_conditions.add(1);
        if matches!(sense.key, SenseKey::MediumError | SenseKey::HardwareError) {
            let (channel, lun) = (&self.shared.info(), self.task(slot).lun);
            self.house.tell(&TargetEvent::Failed {
                channel,
                lun,
                sense,
            });
        }
        self.task(slot).answer.sense = Some(sense);
        self.answer(slot, Status::CHECK_CONDITION, 0);
    }

    /// The request contradicts itself.
    fn invalid(&mut self, slot: u16) {
        self.shared.live.invalid_fields.add(1);
        let task = self.task(slot);
        task.answer.code = Some(ResponseCode::INVALID_FIELDS);
        (task.buffer_len, task.is_out) = (0, false);
        self.answer(slot, Status::GOOD, 0);
    }

    /// The rest must be sent: the data first, then the answer.
    pub(crate) fn answer(&mut self, slot: u16, status: Status, data: u32) {
        let task = self.task(slot);
        let (has, used) = match task.is_out {
            true => (task.buffer_len, task.used()),
            false => (task.buffer_len, data),
        };
        let residual = match has.cmp(&used) {
            std::cmp::Ordering::Equal => task.answer.residual,
            std::cmp::Ordering::Less => Residual::Over(used - has),
            std::cmp::Ordering::Greater => match task.answer.residual {
                Residual::None => Residual::Under(has - used),
                said => said,
            },
        };
        task.answer = Answer {
            status,
            residual,
            ..task.answer
        };
        task.move_bytes(if task.is_out { 0 } else { used.min(has) });
        task.step = Step::Answering;
        self.posting.push_back(slot);
    }
}
