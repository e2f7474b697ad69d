//! Completions: answers, requests of the target, failures.

use verbs_core::sync::Arc;
use verbs_core::{Wc, WcStatus};

use super::post::RECV_LEN;
use super::{Channel, Core, Due, Phase, wr_id};
use super::{release, task};
use crate::initiator::error::{Completion, Error, Outcome, Violation};
use crate::initiator::table::Answered;
use crate::iu::{AerReq, AerRsp, CredRsp, Detail, LogoutReason, Rsp, ToInitiator};

/// A posted work request has completed.
pub(super) fn completed(core: &mut Core, channel: &Arc<Channel>, wc: &Wc) {
    if !wc.is_ok() {
        // Work requests posted after the failed one are flushed; the failure itself completed first.
        let error = match wc.status {
            WcStatus::WrFlushErr => Error::ConnectionLost,
            status => Error::Work(status),
        };
        return release::lose(core, channel, &error);
    }
    let index = (wc.wr_id & !wr_id::KIND) as usize;
    match wc.wr_id & wr_id::KIND {
        wr_id::RECV => {
            if let Err(error) = received(core, channel, index, wc) {
                release::lose(core, channel, &error);
            }
        }
        wr_id::INVALIDATE => release::invalidated(core, channel, index),
        // A unit has been sent; its slot's space is reused only after the answer.
        _ => {}
    }
}

fn received(core: &mut Core, channel: &Arc<Channel>, index: usize, wc: &Wc) -> Result<(), Error> {
    if core.phase == Phase::Lost {
        return Ok(());
    }
    let Some(wires) = &mut core.wires else {
        return Ok(());
    };
    let mut bytes = [0; RECV_LEN];
    let bytes = &mut bytes[..(wc.byte_len as usize).min(RECV_LEN)];
    wires.recv.read(index * RECV_LEN, bytes)?;
    // First of all: the credit that the unit returns may be used at once, and so may this receive.
    wires.post_recv(index)?;
    let violation = |error| Error::Protocol(Violation::Unit(error));
    match ToInitiator::parse(bytes).map_err(violation)? {
        ToInitiator::Rsp(rsp) => response(core, channel, &rsp, wc),
        ToInitiator::CredReq(request) => {
            core.table.grant(request.delta.0);
            core.answer(&CredRsp { tag: request.tag }.unit())
        }
        ToInitiator::AerReq(event) => asynchronous(core, &event),
        ToInitiator::Logout(logout) => Err(match logout.reason {
            LogoutReason::MULTICHANNEL => Error::Replaced(channel.initiator),
            reason => Error::Ended(reason),
        }),
    }
}

fn asynchronous(core: &mut Core, event: &AerReq<'_>) -> Result<(), Error> {
    core.table.grant(event.delta.0);
    let due = Due::Asynchronous(event.lun, event.sense.to_vec());
    core.due.push_back(due);
    core.answer(&AerRsp { tag: event.tag }.unit())
}

fn response(core: &mut Core, channel: &Arc<Channel>, rsp: &Rsp<'_>, wc: &Wc) -> Result<(), Error> {
    core.table.grant(rsp.delta.0);
    let id = match core.table.answered(rsp.tag) {
        Answered::Claimed(id) => id,
        Answered::Late => return Ok(()),
        Answered::Unknown => return Err(Error::Protocol(Violation::Unasked(rsp.tag))),
    };
    if id.index + 1 == core.table.slots() {
        task::answered(core, channel, id, outcome(rsp));
        return Ok(());
    }
    core.slot(id).outcome = Some(outcome(rsp));
    let remotely = wc.invalidated();
    if let Some(key) = remotely
        && !release::is_handle(core, id, key)
    {
        release::let_go(core, channel, id, None);
        return Err(Error::Protocol(Violation::Invalidated));
    }
    release::let_go(core, channel, id, remotely);
    Ok(())
}

/// The outcome that an answer means to the issuer of the command.
fn outcome(rsp: &Rsp<'_>) -> Outcome {
    let (sense, response) = match rsp.detail {
        Detail::None => (None, None),
        Detail::Response(code) => (None, Some(code)),
        Detail::Sense(sense) => (Some(sense.into()), None),
    };
    Ok(Completion {
        status: rsp.status,
        data_out: rsp.data_out,
        data_in: rsp.data_in,
        sense,
        response,
    })
}
