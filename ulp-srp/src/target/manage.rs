//! Task management, credit, events, and the end: what is not a command.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use verbs_core::Wc;
use verbs_core::sync::Arc;

use super::channel::Channel;
use super::event::{ChannelEnd, TargetEvent};
use super::nexus::{OUR_TAG, Order, Ticket};
use super::task::{Abort, Step};
use super::transfer::Id;
use crate::iu::{
    AerReq, CredReq, Delta, LogoutReason, Lun, ResponseCode, Status, Tag, TargetLogout,
    TaskFunction, TskMgmt,
};
use crate::scsi::{Code, Sense};

/// How long an initiator that is logged out has to hear of it. On a network that works it takes a round trip.
const GOODBYE: Duration = Duration::from_millis(250);

/// What this side asks of the initiator, one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Credit(i32),
    Event { unit: u16, code: Code },
}

impl Channel {
    /// A task management request has come.
    pub(super) fn manage(&mut self, slot: u16, unit: &TskMgmt) {
        self.shared.live.task_management.add(1);
        let info = self.shared.info();
        self.house.tell(&TargetEvent::Managed {
            channel: &info,
            function: unit.function,
            lun: unit.lun,
        });
        let task = self.task(slot);
        task.clear();
        (task.step, task.manages) = (Step::Managing, true);
        (task.tag, task.lun) = (unit.tag, unit.lun);
        (task.solicit_success, task.solicit_failure) = (unit.solicit_success, unit.solicit_failure);
        let number = unit.lun.number();
        let exists = number.filter(|number| self.house.units().find(*number).is_some());
        let code = match (unit.function, exists) {
            (TaskFunction::CLEAR_ACA, _) => ResponseCode::NOT_SUPPORTED,
            (
                TaskFunction::ABORT_TASK
                | TaskFunction::ABORT_TASK_SET
                | TaskFunction::CLEAR_TASK_SET
                | TaskFunction::LUN_RESET,
                None,
            ) => ResponseCode::FAILED,
            (TaskFunction::ABORT_TASK, Some(_)) => {
                self.task(slot).answer.code = Some(ResponseCode::COMPLETE);
                return self.abort_own(slot, unit.lun, Some(unit.task));
            }
            // Every initiator has a task set of its own: the control mode page says so.
            (TaskFunction::ABORT_TASK_SET | TaskFunction::CLEAR_TASK_SET, Some(_)) => {
                self.task(slot).answer.code = Some(ResponseCode::COMPLETE);
                return self.abort_own(slot, unit.lun, None);
            }
            (TaskFunction::LUN_RESET, Some(number)) => {
                self.task(slot).answer.code = Some(ResponseCode::COMPLETE);
                return self.reset(slot, unit.lun, number);
            }
            _ => ResponseCode::NOT_SUPPORTED,
        };
        self.task(slot).answer.code = Some(code);
        self.managed(slot);
    }

    /// Aborts commands of this channel: that one, or all on the unit. The request is answered when the last
    /// of them has ended.
    fn abort_own(&mut self, slot: u16, lun: Lun, one: Option<Tag>) {
        let ticket = Arc::new(Ticket {
            channel: Arc::clone(&self.shared),
            slot,
        });
        self.abort_where(lun.number(), one, true, &ticket);
    }

    fn reset(&mut self, slot: u16, lun: Lun, number: u16) {
        let ticket = Arc::new(Ticket {
            channel: Arc::clone(&self.shared),
            slot,
        });
        for other in self.house.hall.channels() {
            other.nexus.attend(number, Code::DEVICE_RESET);
            if !Arc::ptr_eq(&other, &self.shared) {
                other.order(Order::Abort {
                    unit: number,
                    ticket: Arc::clone(&ticket),
                });
            }
        }
        self.abort_where(lun.number(), None, true, &ticket);
    }

    /// Marks commands on the unit as aborted; those that nobody works on end at once.
    fn abort_where(
        &mut self,
        number: Option<u16>,
        one: Option<Tag>,
        silent: bool,
        ticket: &Arc<Ticket>,
    ) {
        for slot in 0..self.rooms.slots {
            let task = self.task(slot);
            let is_meant = !matches!(task.step, Step::Free | Step::Managing)
                && !task.is_management()
                && task.lun.number() == number
                && one.is_none_or(|tag| tag == task.tag);
            // What is being answered has ended as far as the unit goes, and the answer comes first.
            if !is_meant || task.step == Step::Answering {
                continue;
            }
            task.abort = Some(Abort {
                silent,
                _ticket: Some(Arc::clone(ticket)),
            });
            if matches!(task.step, Step::Held | Step::Waiting(_)) {
                self.drop_if_aborted(slot);
            }
        }
    }

    /// Others' wishes.
    pub(super) fn obey(&mut self, order: Order) {
        match order {
            Order::End(reason) => {
                self.end.get_or_insert(ChannelEnd::Ended(reason));
            }
            Order::Abort { unit, ticket } => self.abort_where(Some(unit), None, false, &ticket),
            Order::Managed(slot) => self.managed(slot),
            Order::Adjust(delta) => self.adjust(delta),
            Order::Event { unit, code } => self.asks.push_back(Ask::Event { unit, code }),
        }
    }

    /// The task management request in that slot is to be answered.
    fn managed(&mut self, slot: u16) {
        let task = self.task(slot);
        if task.step == Step::Managing {
            task.answer.status = Status::GOOD;
            task.step = Step::Answering;
            self.posting.push_back(slot);
        }
    }

    fn adjust(&mut self, delta: i32) {
        // What the initiator may have outstanding: what it has, and what it may send.
        let begun = self
            .tasks
            .iter()
            .filter(|task| task.step != Step::Free)
            .count();
        let limit = self.credit + self.owed + i32::try_from(begun).unwrap_or(i32::MAX);
        let wanted = limit.saturating_add(delta);
        let delta = wanted.clamp(1, self.house.config.request_limit.into()) - limit;
        match delta {
            0 => {}
            1.. => self.asks.push_back(Ask::Credit(delta)),
            // The answers to come give back less than they would.
            _ => self.owed += delta,
        }
    }

    /// Asks what there is to ask, if the initiator has answered the last one.
    pub(super) fn ask(&mut self) {
        if self.asked.is_some() {
            return;
        }
        let Some(&ask) = self.asks.front() else {
            return;
        };
        let tag = OUR_TAG;
        let sense;
        let mut bytes = [0; 64];
        let emitted = match ask {
            Ask::Credit(delta) => CredReq {
                solicited: false,
                delta: Delta(delta),
                tag,
            }
            .emit_unit(&mut bytes),
            Ask::Event { unit, code } => {
                sense = Sense::attention(code).emit_fixed();
                AerReq {
                    tag,
                    lun: Lun::new(unit).unwrap_or_default(),
                    sense: &sense,
                    ..AerReq::default()
                }
                .emit(&mut bytes)
            }
        };
        let len = emitted.unwrap_or(0);
        match self.send_unit(&bytes[..len]) {
            Ok(false) => {}
            Ok(true) => {
                self.asks.pop_front();
                self.asked = Some(tag);
                if let Ask::Credit(delta) = ask {
                    self.credit += delta;
                }
            }
            Err(_) => {
                self.end.get_or_insert(ChannelEnd::Disconnected);
            }
        }
    }

    /// The initiator has answered.
    pub(super) fn answered(&mut self, slot: u16, tag: Tag) -> Result<(), LogoutReason> {
        if self.asked != Some(tag) {
            return Err(LogoutReason::SPURIOUS_ANSWER);
        }
        self.asked = None;
        self.repost(slot);
        Ok(())
    }

    /// Tells the initiator why the channel ends, if it can still be told, and waits until it has heard it: for
    /// [`GOODBYE`] at most, as it may have gone.
    pub(super) async fn say_goodbye(&mut self, reason: LogoutReason) {
        let unit = TargetLogout {
            solicited: false,
            reason,
            tag: OUR_TAG,
        };
        let place = self.sends.free.last().copied();
        let (Ok(true), Some(place)) = (self.send_unit(&unit.unit()), place) else {
            return;
        };
        let Some(timer) = self.house.device.target().provider_of().timer() else {
            return;
        };
        let until = timer.now() + GOODBYE;
        let mut is_timed = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut is_timed, true) {
                timer.wake_at(until, cx.waker().clone());
            }
            loop {
                let mut wcs = [Wc::default(); 1];
                let polled = self.rooms.cq.poll(&mut wcs).len();
                let [wc] = wcs;
                let is_over = !wc.is_ok() || Id::of(wc.wr_id) == Id::Sent(place);
                if polled > 0 && is_over || timer.now() >= until {
                    return Poll::Ready(());
                }
                if polled == 0 && self.rooms.cq.poll_ready(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }
}
