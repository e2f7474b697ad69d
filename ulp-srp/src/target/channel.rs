//! A channel: one connection of an initiator, and the tasks that came over it.
//!
//! One future drives it, and owns all of it. Others reach it by [`Order`](super::nexus::Order)s only.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, poll_fn};
use futures::stream::FuturesUnordered;
use verbs_cm::{Connection, StepFuture};
use verbs_core::sync::Arc;
use verbs_core::{Cq, Mr, Recv, Sge, Wc, WcOpcode};

use super::House;
use super::nexus::Shared;
use super::pool::sge;
use super::server::{self, Plan};
use super::task::{Answer, Need, Place, Step, Task};
use super::transfer::{Id, SendSlots};
use super::units::Unit;
use super::work::{Trouble, Work, perform};
use crate::iu::{Cmd, LogoutReason, Residual, ResponseCode, Status, Tag, TaskAttribute, ToTarget};
use crate::lun::{Piece, UnitError, copy};
use crate::scsi::{Code, Sense, SenseKey};

/// Completions that are polled at a time.
const BATCH: usize = 16;

/// Rounds of one turn; then others have theirs.
const ROUNDS_MAX: usize = 64;

/// What a channel has to receive and to send with.
pub(super) struct Rooms {
    pub(super) cq: Cq,
    /// Receive buffers, one for each slot.
    pub(super) received: Mr,
    pub(super) iu_stride: usize,
    /// Places for units that are being sent.
    pub(super) sent: Mr,
    pub(super) send_stride: usize,
    pub(super) slots: u16,
}

impl Rooms {
    /// The receive buffer of a slot.
    pub(super) fn iu(&self, slot: u16) -> Sge {
        let start = usize::from(slot) * self.iu_stride;
        self.received.slice(start..start + self.iu_stride)
    }
}

/// Why a channel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The initiator has ended it, or the connection has.
    Theirs,
    /// This side ends it, and says why.
    Ours(LogoutReason),
}

type Running = BoxFuture<'static, (u16, Result<(), Trouble>)>;

pub(super) struct Channel {
    pub(super) house: Arc<House>,
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Connection,
    closed: StepFuture<(), verbs_cm::Error>,
    pub(super) rooms: Rooms,
    /// Where in a command the data are that it brings along, if it may.
    immediate: Option<u16>,
    /// One for each receive buffer.
    pub(super) tasks: Vec<Task>,
    pub(super) sends: SendSlots,
    /// What logical units are doing.
    running: FuturesUnordered<Running>,
    /// Tasks that wait for a buffer, for room on the send queue, and for others to end.
    waiting: VecDeque<u16>,
    pub(super) posting: VecDeque<u16>,
    held: VecDeque<u16>,
    /// Commands that were begun and have not ended.
    active: u16,
    /// Whether one of them is ordered, so that those behind it have to wait.
    ordered: bool,
    /// Requests that the initiator may send, and by how much more that is to be than it knows of.
    pub(super) credit: i32,
    pub(super) owed: i32,
    /// What the initiator has not answered, and what is to be asked when it has.
    pub(super) asked: Option<Tag>,
    pub(super) asks: VecDeque<super::manage::Ask>,
    scratch: Vec<u8>,
    /// Something was begun that has not been looked at: there is more to do before anybody waits.
    again: bool,
    pub(super) end: Option<End>,
}

impl Channel {
    pub(super) fn new(
        house: Arc<House>,
        shared: Arc<Shared>,
        connection: Connection,
        rooms: Rooms,
        immediate: Option<u16>,
    ) -> Self {
        let closed = connection.closed();
        Self {
            credit: house.config.initial_limit.into(),
            sends: SendSlots::new(house.config.send_depth),
            tasks: (0..rooms.slots).map(|_| Task::default()).collect(),
            scratch: vec![0; rooms.iu_stride],
            closed: closed.into_future(),
            house,
            shared,
            connection,
            rooms,
            immediate,
            running: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            posting: VecDeque::new(),
            held: VecDeque::new(),
            active: 0,
            ordered: false,
            owed: 0,
            asked: None,
            asks: VecDeque::new(),
            again: false,
            end: None,
        }
    }

    /// Drives it until it has ended and nothing of it goes on.
    pub(super) async fn run(mut self) {
        let end = poll_fn(|cx| self.turn(cx)).await;
        if let End::Ours(reason) = end {
            self.say_goodbye(reason);
        }
        let Self {
            connection,
            closed,
            mut running,
            tasks,
            rooms,
            ..
        } = self;
        drop(closed);
        // The peer is told, and nobody waits for its answer: it may have gone for good. Nothing is moved
        // between it and any buffer when the queue pair has been destroyed; a device that has gone moves
        // nothing either.
        if let Some(qp) = connection.into_qp() {
            let _gone = qp.destroy().await;
        }
        while running.next().await.is_some() {}
        drop(tasks);
        drop(rooms);
    }

    /// Does all that can be done now; yields why it ends when it does.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.shared.waker.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            self.again = false;
            for order in self.shared.take_orders() {
                self.obey(order);
            }
            self.poll_completions();
            while let Poll::Ready(Some((slot, result))) = self.running.poll_next_unpin(cx) {
                self.unit_done(slot, result);
            }
            self.give_buffers(cx.waker());
            self.post();
            if self.end.is_none() && self.closed.poll_unpin(cx).is_ready() {
                self.end = Some(End::Theirs);
            }
            if let Some(end) = self.end {
                return Poll::Ready(end);
            }
            if !self.again && self.rooms.cq.poll_ready(cx).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_completions(&mut self) {
        let mut room = [Wc::default(); BATCH];
        loop {
            let polled = self.rooms.cq.poll(&mut room).len();
            for wc in &room[..polled] {
                if self.end.is_some() {
                    return;
                }
                self.completed(wc);
            }
            if polled < BATCH {
                return;
            }
        }
    }

    fn completed(&mut self, wc: &Wc) {
        if !wc.is_ok() {
            // The initiator has gone, or one of its descriptors was wrong: the queue pair is in error.
            self.end = Some(End::Theirs);
            return;
        }
        match Id::of(wc.wr_id) {
            Id::Received(slot) if wc.opcode == WcOpcode::Recv => self.received(slot, wc.byte_len),
            Id::Received(_) => self.violation(LogoutReason::INVALID_TYPE),
            Id::Fetched(slot) => {
                self.sends.completed();
                self.fetched(slot);
            }
            Id::Sent(at) => {
                self.sends.completed();
                self.sends.sent(at);
            }
            Id::Part => self.sends.completed(),
        }
    }

    /// The initiator did what it must not do.
    pub(super) fn violation(&mut self, reason: LogoutReason) {
        self.shared.live.bad_units.add(1);
        self.end.get_or_insert(End::Ours(reason));
    }

    /// A unit has come.
    fn received(&mut self, slot: u16, len: u32) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let len = (len as usize).min(scratch.len());
        let start = usize::from(slot) * self.rooms.iu_stride;
        // The buffer is as long as the scratch.
        let read = self.rooms.received.read(start, &mut scratch[..len]);
        debug_assert_eq!(read, Ok(()));
        let done = match ToTarget::parse(&scratch[..len]) {
            Err(crate::iu::IuError::Type(_)) => Err(LogoutReason::INVALID_TYPE),
            Err(_) => Err(LogoutReason::INVALID_LENGTH),
            Ok(ToTarget::Cmd(cmd)) => self
                .charged()
                .map(|()| self.command(slot, &cmd, &scratch[..len])),
            Ok(ToTarget::TskMgmt(unit)) => self.charged().map(|()| self.manage(slot, &unit)),
            Ok(ToTarget::CredRsp(unit)) => self.answered(slot, unit.tag),
            Ok(ToTarget::AerRsp(unit)) => self.answered(slot, unit.tag),
            Ok(ToTarget::Logout(_)) => {
                self.end = Some(End::Theirs);
                Ok(())
            }
        };
        self.scratch = scratch;
        if let Err(reason) = done {
            self.violation(reason);
        }
    }

    /// A request takes a credit.
    fn charged(&mut self) -> Result<(), LogoutReason> {
        self.credit -= 1;
        match self.credit {
            0.. => Ok(()),
            _ => Err(LogoutReason::UNSPECIFIED),
        }
    }

    pub(super) fn task(&mut self, slot: u16) -> &mut Task {
        &mut self.tasks[usize::from(slot)]
    }

    fn command(&mut self, slot: u16, cmd: &Cmd<'_>, iu: &[u8]) {
        let live = &self.shared.live;
        live.commands.add(1);
        let busy = |task: &Task| task.step != Step::Free && task.tag == cmd.tag;
        let is_double = self.active > 0 && self.tasks.iter().any(busy);
        let entries_max = self.house.config.table_entries_max;
        let task = &mut self.tasks[usize::from(slot)];
        task.begin(cmd);
        // Whatever it is answered with, it is one of those that have begun.
        self.active += 1;
        let mut described = task.describe(cmd, entries_max).is_ok();
        if let crate::iu::DataBuffer::Immediate(len) = cmd.data_out {
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
    fn start(&mut self, slot: u16) {
        self.ordered |= self.task(slot).attribute == TaskAttribute::ORDERED;
        match self.task(slot).rest {
            Some(_) => self.wait(slot, Need::Table),
            None => self.plan(slot),
        }
    }

    /// It is known where its data are.
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

    /// The command is for a unit.
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

    /// Data that came in the command's own unit.
    fn came_along(&self, range: Range<usize>, wanted: u32) -> Piece {
        let memory = Arc::clone(self.rooms.received.memory());
        Piece::of(memory).part(range.start..range.start + wanted as usize)
    }

    fn wait(&mut self, slot: u16, need: Need) {
        self.task(slot).step = Step::Waiting(need);
        self.waiting.push_back(slot);
        self.again = true;
    }

    /// Buffers for those who wait, oldest first.
    fn give_buffers(&mut self, waker: &Waker) {
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

    /// All that was to be fetched is there.
    fn fetched(&mut self, slot: u16) {
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

    /// All is there that the unit needs.
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
            // The data are in their place already, unless they came with the command.
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

    /// The unit has done it, or not.
    fn unit_done(&mut self, slot: u16, result: Result<(), Trouble>) {
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

    /// Done, with so many bytes for the initiator.
    pub(super) fn good(&mut self, slot: u16, data: u32) {
        self.answer(slot, Status::GOOD, data);
    }

    pub(super) fn refuse(&mut self, slot: u16, sense: Sense) {
        self.shared.live.check_conditions.add(1);
        self.task(slot).answer.sense = Some(sense);
        self.answer(slot, Status::CHECK_CONDITION, 0);
    }

    /// The request says something that cannot be.
    fn invalid(&mut self, slot: u16) {
        self.shared.live.invalid_fields.add(1);
        let task = self.task(slot);
        task.answer.code = Some(ResponseCode::INVALID_FIELDS);
        (task.buffer_len, task.is_out) = (0, false);
        self.answer(slot, Status::GOOD, 0);
    }

    /// What is left is to be sent: data first, and the answer behind them.
    pub(super) fn answer(&mut self, slot: u16, status: Status, data: u32) {
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

    /// The answer has been posted, or there will be none: the slot is free, and those that waited for the
    /// task may begin. `was_begun` is false for what was held.
    pub(super) fn ended(&mut self, slot: u16, was_begun: bool) {
        let task = self.task(slot);
        let was_ordered = task.attribute == TaskAttribute::ORDERED;
        task.clear();
        if was_begun {
            self.active -= 1;
            self.ordered &= !was_ordered;
        }
        while let Some(&next) = self.held.front() {
            let is_ordered = self.task(next).attribute == TaskAttribute::ORDERED;
            if self.ordered || is_ordered && self.active > 0 {
                return;
            }
            self.held.pop_front();
            self.active += 1;
            self.start(next);
        }
    }

    /// A task that somebody wants to end, at a moment at which it can.
    pub(super) fn drop_if_aborted(&mut self, slot: u16) -> bool {
        let Some(abort) = &self.task(slot).abort else {
            return false;
        };
        let silent = abort.silent;
        self.shared.live.aborted.add(1);
        self.waiting.retain(|other| *other != slot);
        let was_held = self.held.len();
        self.held.retain(|other| *other != slot);
        let was_begun = was_held == self.held.len();
        if !was_begun {
            self.active += 1;
        }
        match silent {
            // Nobody waits for its answer; its credit goes back with another one.
            true => {
                self.owed += 1;
                self.repost(slot);
                self.ended(slot, true);
            }
            false => {
                self.task(slot).abort = None;
                self.answer(slot, Status::TASK_ABORTED, 0);
            }
        }
        true
    }

    /// The slot's buffer may be received into again.
    pub(super) fn repost(&mut self, slot: u16) {
        let recv = Recv::new(Id::Received(slot).number()).into(self.rooms.iu(slot));
        if self.connection.post_recv(recv).is_err() {
            // The connection has gone.
            self.end.get_or_insert(End::Theirs);
        }
    }
}
