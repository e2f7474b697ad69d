//! A channel: one connection of an initiator, and the tasks that arrived on it.
//!
//! One future drives it, and owns all of it. Other code reaches it only by [`Order`](super::nexus::Order)s.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::task::{Context, Poll};

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, poll_fn};
use futures::stream::FuturesUnordered;
use verbs_cm::{Connection, StepFuture};
use verbs_core::sync::Arc;
use verbs_core::{Cq, Mr, Recv, Sge, Wc, WcOpcode, WcStatus};

use super::House;
use super::event::ChannelEnd;
use super::keepalive::Keepalive;
use super::nexus::Shared;
use super::task::Task;
use super::transfer::{Id, SendSlots};
use super::work::Trouble;
use super::{manage, transfer};
use crate::iu::{LogoutReason, Status, Tag, TaskAttribute, ToTarget};

/// Completions that are polled at a time.
const BATCH: usize = 16;

/// Rounds of one turn; then other channels have their turn.
const ROUNDS_MAX: usize = 64;

/// The memory that a channel receives into and sends from.
pub(super) struct Rooms {
    pub(super) cq: Cq,
    /// Receive buffers, one for each slot.
    pub(super) received: Mr,
    pub(super) iu_stride: usize,
    /// Slots for units that are being sent.
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

type Running = BoxFuture<'static, (u16, Result<(), Trouble>)>;

pub(super) struct Channel {
    pub(super) house: Arc<House>,
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Connection,
    closed: StepFuture<(), verbs_cm::Error>,
    pub(super) rooms: Rooms,
    /// The offset of immediate data in a command, if they are allowed.
    pub(super) immediate: Option<u16>,
    /// One for each receive buffer.
    pub(super) tasks: Vec<Task>,
    pub(super) sends: SendSlots,
    /// The work that logical units are doing.
    pub(super) running: FuturesUnordered<Running>,
    /// Tasks that wait for a buffer, for room on the send queue, and for other tasks to end.
    pub(super) waiting: VecDeque<u16>,
    pub(super) posting: VecDeque<u16>,
    pub(super) held: VecDeque<u16>,
    /// Commands that were begun and have not ended.
    pub(super) active: u16,
    /// Whether one of them is ordered, so later ones must wait.
    pub(super) ordered: bool,
    /// Requests that the initiator may send, and the increase that it does not know of yet.
    pub(super) credit: i32,
    pub(super) owed: i32,
    /// The request that the initiator has not answered, and what to ask after that.
    pub(super) asked: Option<Tag>,
    pub(super) asks: VecDeque<manage::Ask>,
    pub(super) keepalive: Option<Keepalive>,
    scratch: Vec<u8>,
    /// Something was begun but not polled yet: there is more to do before waiting.
    pub(super) again: bool,
    pub(super) end: Option<ChannelEnd>,
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
            keepalive: Keepalive::new(&house.device, house.config.keepalive),
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

    /// Drives the channel until it has ended and none of its work is in progress; returns why it has ended.
    pub(super) async fn run(mut self) -> ChannelEnd {
        let end = match poll_fn(|cx| self.clear(cx)).await {
            Some(end) => end,
            None => poll_fn(|cx| self.turn(cx)).await,
        };
        if let ChannelEnd::Ended(reason) = end {
            manage::say_goodbye(&mut self, reason).await;
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
        // The peer is notified, but no code waits for its answer, because it may be gone for good. After the
        // queue pair is destroyed, no data move between the peer and any buffer; a removed device moves no data
        // either.
        if let Some(qp) = connection.into_qp() {
            let _gone = qp.destroy().await;
        }
        while running.next().await.is_some() {}
        drop(tasks);
        drop(rooms);
        end
    }

    /// Waits until all work of the initiator's channels from earlier logins has ended: none of it may reach a
    /// unit after a command of this channel. Returns why this channel ends if it ends before that.
    fn clear(&mut self, cx: &mut Context<'_>) -> Poll<Option<ChannelEnd>> {
        self.shared.waker.register(cx.waker());
        for order in self.shared.take_orders() {
            manage::obey(self, order);
        }
        if self.end.is_none() && self.closed.poll_unpin(cx).is_ready() {
            self.end = Some(ChannelEnd::Disconnected);
        }
        if let Some(end) = self.end {
            return Poll::Ready(Some(end));
        }
        let ours = &self.shared;
        let is_older = |other: &Shared| {
            other.initiator == ours.initiator
                && other.id < ours.id
                && !Arc::ptr_eq(&other.nexus, &ours.nexus)
        };
        match self.house.hall.is_clear(is_older, cx.waker()) {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    /// Does all that can be done now; returns the reason when the channel ends.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<ChannelEnd> {
        self.shared.waker.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            self.again = false;
            for order in self.shared.take_orders() {
                manage::obey(self, order);
            }
            self.poll_completions();
            while let Poll::Ready(Some((slot, result))) = self.running.poll_next_unpin(cx) {
                self.unit_done(slot, result);
            }
            self.give_buffers(cx.waker());
            transfer::post(self);
            if self.end.is_none() && self.closed.poll_unpin(cx).is_ready() {
                self.end = Some(ChannelEnd::Disconnected);
            }
            if let Some(end) = self.end {
                return Poll::Ready(end);
            }
            transfer::keep_alive(self, cx.waker());
            if self.end.is_none() && !self.again && self.rooms.cq.poll_ready(cx).is_pending() {
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
            // The initiator has gone, or one of its descriptors was invalid: the queue pair is in error.
            self.end = Some(match wc.status {
                WcStatus::WrFlushErr => ChannelEnd::Disconnected,
                status => ChannelEnd::Failed(status),
            });
            return;
        }
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.heard();
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

    /// The initiator violated the protocol.
    pub(super) fn violation(&mut self, reason: LogoutReason) {
        self.shared.live.bad_units.add(1);
        self.end.get_or_insert(ChannelEnd::Ended(reason));
    }

    /// A unit has arrived.
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
            Ok(ToTarget::TskMgmt(unit)) => {
                self.charged().map(|()| manage::manage(self, slot, &unit))
            }
            Ok(ToTarget::CredRsp(unit)) => manage::answered(self, slot, unit.tag),
            Ok(ToTarget::AerRsp(unit)) => manage::answered(self, slot, unit.tag),
            Ok(ToTarget::Logout(_)) => {
                self.end = Some(ChannelEnd::LoggedOut);
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

    /// The answer has been posted, or there will be none: the slot is free, and tasks that waited for this one
    /// may begin. `was_begun` is false for a task that was held.
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

    /// Ends an aborted task, if it can end now.
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
            // No initiator waits for its answer; its credit is returned with another one.
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

    /// The slot's buffer may receive again.
    pub(super) fn repost(&mut self, slot: u16) {
        let recv = Recv::new(Id::Received(slot).number()).into(self.rooms.iu(slot));
        if self.connection.post_recv(recv).is_err() {
            // The connection has ended.
            self.end.get_or_insert(ChannelEnd::Disconnected);
        }
    }
}
