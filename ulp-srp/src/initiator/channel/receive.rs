//! Completions: answers, requests of the target, failures.

use verbs_core::sync::Arc;
use verbs_core::{Wc, WcStatus};

use super::post::RECV_LEN;
use super::{Channel, Core, Due, Phase, wr_id};
use crate::initiator::error::{Completion, Error, Outcome, Violation};
use crate::initiator::table::Answered;
use crate::iu::{AerReq, AerRsp, CredRsp, Detail, LogoutReason, Rsp, ToInitiator};

impl Core {
    /// Something that was posted has completed.
    pub(super) fn completed(&mut self, channel: &Arc<Channel>, wc: &Wc) {
        if !wc.is_ok() {
            // What was posted behind the failure is flushed; the failure itself came first.
            let error = match wc.status {
                WcStatus::WrFlushErr => Error::ConnectionLost,
                status => Error::Work(status),
            };
            return self.lose(channel, &error);
        }
        let index = (wc.wr_id & !wr_id::KIND) as usize;
        match wc.wr_id & wr_id::KIND {
            wr_id::RECV => {
                if let Err(error) = self.received(channel, index, wc) {
                    self.lose(channel, &error);
                }
            }
            wr_id::INVALIDATE => self.invalidated(channel, index),
            // A unit has been sent; its slot's place is written again only when it was answered.
            _ => {}
        }
    }

    fn received(&mut self, channel: &Arc<Channel>, index: usize, wc: &Wc) -> Result<(), Error> {
        if self.phase == Phase::Lost {
            return Ok(());
        }
        let Some(wires) = &mut self.wires else {
            return Ok(());
        };
        let mut bytes = [0; RECV_LEN];
        let bytes = &mut bytes[..(wc.byte_len as usize).min(RECV_LEN)];
        wires.recv.read(index * RECV_LEN, bytes)?;
        // First of all: the credit that the unit brings may be used at once, and so may this receive.
        wires.post_recv(index)?;
        let violation = |error| Error::Protocol(Violation::Unit(error));
        match ToInitiator::parse(bytes).map_err(violation)? {
            ToInitiator::Rsp(rsp) => self.response(channel, &rsp, wc),
            ToInitiator::CredReq(request) => {
                self.table.grant(request.delta.0);
                self.answer(&CredRsp { tag: request.tag }.unit())
            }
            ToInitiator::AerReq(event) => self.event(&event),
            ToInitiator::Logout(logout) => Err(match logout.reason {
                LogoutReason::MULTICHANNEL => Error::Replaced(channel.initiator),
                reason => Error::Ended(reason),
            }),
        }
    }

    fn event(&mut self, event: &AerReq<'_>) -> Result<(), Error> {
        self.table.grant(event.delta.0);
        let due = Due::Asynchronous(event.lun, event.sense.to_vec());
        self.due.push_back(due);
        self.answer(&AerRsp { tag: event.tag }.unit())
    }

    fn response(&mut self, channel: &Arc<Channel>, rsp: &Rsp<'_>, wc: &Wc) -> Result<(), Error> {
        self.table.grant(rsp.delta.0);
        let id = match self.table.answered(rsp.tag) {
            Answered::Claimed(id) => id,
            Answered::Late => return Ok(()),
            Answered::Unknown => return Err(Error::Protocol(Violation::Unasked(rsp.tag))),
        };
        if id.index + 1 == self.table.slots() {
            self.task_answered(channel, id, outcome(rsp));
            return Ok(());
        }
        self.slot(id).outcome = Some(outcome(rsp));
        let remotely = wc.invalidated();
        if let Some(key) = remotely
            && !self.is_handle(id, key)
        {
            self.let_go(channel, id, None);
            return Err(Error::Protocol(Violation::Invalidated));
        }
        self.let_go(channel, id, remotely);
        Ok(())
    }
}

/// What an answer means to whoever asked.
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
