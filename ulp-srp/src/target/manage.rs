//! Task management, credit, events, and logout: everything except commands.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use verbs_core::Wc;
use verbs_core::sync::Arc;

use super::channel::Channel;
use super::event::{ChannelEnd, TargetEvent};
use super::nexus::{OUR_TAG, Order, Ticket};
use super::task::{Abort, Step};
use super::transfer;
use super::transfer::Id;
use crate::iu::{
    AerReq, CredReq, Delta, LogoutReason, Lun, ResponseCode, Status, Tag, TargetLogout,
    TaskFunction, TskMgmt,
};
use crate::scsi::{Code, Sense};

/// How long an initiator that is logged out has to acknowledge the notice. A working network needs one round
/// trip.
const GOODBYE: Duration = Duration::from_millis(250);

/// A request of this side to the initiator; one at a time is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Credit(i32),
    Event { unit: u16, code: Code },
}

/// A task management request has arrived.
pub(super) fn manage(channel: &mut Channel, slot: u16, unit: &TskMgmt) {
    channel.shared.live.task_management.add(1);
    let info = channel.shared.info();
    channel.house.tell(&TargetEvent::Managed {
        channel: &info,
        function: unit.function,
        lun: unit.lun,
    });
    let task = channel.task(slot);
    task.clear();
    (task.step, task.manages) = (Step::Managing, true);
    (task.tag, task.lun) = (unit.tag, unit.lun);
    (task.solicit_success, task.solicit_failure) = (unit.solicit_success, unit.solicit_failure);
    let number = unit.lun.number();
    let exists = number.filter(|number| channel.house.units().find(*number).is_some());
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
            channel.task(slot).answer.code = Some(ResponseCode::COMPLETE);
            return abort_own(channel, slot, unit.lun, Some(unit.task));
        }
        // Every initiator has a task set of its own: the control mode page says so.
        (TaskFunction::ABORT_TASK_SET | TaskFunction::CLEAR_TASK_SET, Some(_)) => {
            channel.task(slot).answer.code = Some(ResponseCode::COMPLETE);
            return abort_own(channel, slot, unit.lun, None);
        }
        (TaskFunction::LUN_RESET, Some(number)) => {
            channel.task(slot).answer.code = Some(ResponseCode::COMPLETE);
            return reset(channel, slot, unit.lun, number);
        }
        _ => ResponseCode::NOT_SUPPORTED,
    };
    channel.task(slot).answer.code = Some(code);
    managed(channel, slot);
}

/// Aborts commands of this channel: one, or all on the unit. The request is answered when the last of them
/// has ended.
fn abort_own(channel: &mut Channel, slot: u16, lun: Lun, one: Option<Tag>) {
    let ticket = Arc::new(Ticket {
        channel: Arc::clone(&channel.shared),
        slot,
    });
    abort_where(channel, lun.number(), one, true, &ticket);
}

fn reset(channel: &mut Channel, slot: u16, lun: Lun, number: u16) {
    let ticket = Arc::new(Ticket {
        channel: Arc::clone(&channel.shared),
        slot,
    });
    for other in channel.house.hall.channels() {
        other.nexus.attend(number, Code::DEVICE_RESET);
        if !Arc::ptr_eq(&other, &channel.shared) {
            other.order(Order::Abort {
                unit: number,
                ticket: Arc::clone(&ticket),
            });
        }
    }
    abort_where(channel, lun.number(), None, true, &ticket);
}

/// Marks commands on the unit as aborted; those without work in progress end at once.
fn abort_where(
    channel: &mut Channel,
    number: Option<u16>,
    one: Option<Tag>,
    silent: bool,
    ticket: &Arc<Ticket>,
) {
    for slot in 0..channel.rooms.slots {
        let task = channel.task(slot);
        let is_meant = !matches!(task.step, Step::Free | Step::Managing)
            && !task.is_management()
            && task.lun.number() == number
            && one.is_none_or(|tag| tag == task.tag);
        // A task that is being answered is no longer on the unit, and its answer comes first.
        if !is_meant || task.step == Step::Answering {
            continue;
        }
        task.abort = Some(Abort {
            silent,
            _ticket: Some(Arc::clone(ticket)),
        });
        if matches!(task.step, Step::Held | Step::Waiting(_)) {
            channel.drop_if_aborted(slot);
        }
    }
}

/// Carries out an order from other code.
pub(super) fn obey(channel: &mut Channel, order: Order) {
    match order {
        Order::End(reason) => {
            channel.end.get_or_insert(ChannelEnd::Ended(reason));
        }
        Order::Abort { unit, ticket } => abort_where(channel, Some(unit), None, false, &ticket),
        Order::Managed(slot) => managed(channel, slot),
        Order::Adjust(delta) => adjust(channel, delta),
        Order::Event { unit, code } => channel.asks.push_back(Ask::Event { unit, code }),
    }
}

/// The task management request in that slot must be answered.
fn managed(channel: &mut Channel, slot: u16) {
    let task = channel.task(slot);
    if task.step == Step::Managing {
        task.answer.status = Status::GOOD;
        task.step = Step::Answering;
        channel.posting.push_back(slot);
    }
}

fn adjust(channel: &mut Channel, delta: i32) {
    // The initiator's possible outstanding requests: those it has, and those it may send.
    let begun = channel
        .tasks
        .iter()
        .filter(|task| task.step != Step::Free)
        .count();
    let limit = channel.credit + channel.owed + i32::try_from(begun).unwrap_or(i32::MAX);
    let wanted = limit.saturating_add(delta);
    let delta = wanted.clamp(1, channel.house.config.request_limit.into()) - limit;
    match delta {
        0 => {}
        1.. => channel.asks.push_back(Ask::Credit(delta)),
        // The next answers return fewer credits.
        _ => channel.owed += delta,
    }
}

/// Sends the next request, if the initiator has answered the last one.
pub(super) fn ask(channel: &mut Channel) {
    if channel.asked.is_some() {
        return;
    }
    let Some(&ask) = channel.asks.front() else {
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
    match transfer::send_unit(channel, &bytes[..len]) {
        Ok(false) => {}
        Ok(true) => {
            channel.asks.pop_front();
            channel.asked = Some(tag);
            if let Ask::Credit(delta) = ask {
                channel.credit += delta;
            }
        }
        Err(_) => {
            channel.end.get_or_insert(ChannelEnd::Disconnected);
        }
    }
}

/// The initiator has answered a request.
pub(super) fn answered(channel: &mut Channel, slot: u16, tag: Tag) -> Result<(), LogoutReason> {
    if channel.asked != Some(tag) {
        return Err(LogoutReason::SPURIOUS_ANSWER);
    }
    channel.asked = None;
    channel.repost(slot);
    Ok(())
}

/// Tells the initiator why the channel ends, if possible, and waits until it has acknowledged: at most
/// [`GOODBYE`], because it may be gone.
pub(super) async fn say_goodbye(channel: &mut Channel, reason: LogoutReason) {
    let unit = TargetLogout {
        solicited: false,
        reason,
        tag: OUR_TAG,
    };
    let place = channel.sends.free.last().copied();
    let (Ok(true), Some(place)) = (transfer::send_unit(channel, &unit.unit()), place) else {
        return;
    };
    let Some(timer) = channel.house.device.target().provider_of().timer() else {
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
            let polled = channel.rooms.cq.poll(&mut wcs).len();
            let [wc] = wcs;
            let is_over = !wc.is_ok() || Id::of(wc.wr_id) == Id::Sent(place);
            if polled > 0 && is_over || timer.now() >= until {
                return Poll::Ready(());
            }
            if polled == 0 && channel.rooms.cq.poll_ready(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}
