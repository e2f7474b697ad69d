//! The end of a connection: disconnected, rejected, given up, out of interest.

use std::time::Duration;

use verbs_core::mad::{Blob, TransactionId};

use crate::event::{Ended, Event, Failure};
use crate::machine::qp::Stage;
use crate::machine::{Connection, Ctx, Edge, State};
use crate::wire::{Drep, Dreq, Message, Rej, RejectReason};

impl Connection {
    /// The user disconnects.
    pub(crate) fn disconnect(&mut self, ctx: &mut Ctx<'_>, private_data: Blob<220>) -> bool {
        if self.state != State::Established {
            return false;
        }
        self.ended = Some(Ended::Here);
        self.send_dreq(ctx, Edge::Disconnect, private_data);
        true
    }

    /// Takes `edge` to DreqSent: the queue pair goes to ERR while the peer is told.
    pub(super) fn send_dreq(&mut self, ctx: &mut Ctx<'_>, edge: Edge, private_data: Blob<220>) {
        if !self.go(edge) {
            return;
        }
        self.ended.get_or_insert(Ended::Failed);
        let dreq = Dreq {
            local_id: self.local_id,
            remote_id: self.remote_id.unwrap_or_default(),
            remote_qpn: self.remote_qpn,
            private_data,
        };
        self.ask(ctx, self.own_tid, &dreq.into());
        self.aim(ctx, Stage::Err);
    }

    /// A DREQ. Where it crosses ours, it is answered all the same, and ours needs no answer any more.
    pub(crate) fn handle_dreq(
        &mut self,
        ctx: &mut Ctx<'_>,
        tid: TransactionId,
        dreq: &Dreq,
    ) -> bool {
        if dreq.remote_qpn != self.qp.qpn() {
            return false;
        }
        self.prove();
        let before = self.state;
        let why = Failure::PeerDisconnected;
        let event = Event::ConnectError { conn: self.id, why };
        match before {
            State::Timewait => {
                // Linux sends each repetition with the id of the first, but need not.
                self.send_drep(ctx, tid);
                return true;
            }
            State::DreqSent => {
                self.send_drep(ctx, tid);
                self.leave(ctx, Edge::RecvDreq);
                return true;
            }
            State::RepRcvd | State::RepMraSent => {
                self.send_drep(ctx, tid);
                self.fail(ctx, Edge::RecvDreq, event);
                return true;
            }
            _ => {}
        }
        if !self.go(Edge::RecvDreq) {
            return false;
        }
        self.ended.get_or_insert(Ended::Peer);
        self.deadline = None;
        self.peer_tid = tid;
        if before != State::Established {
            self.tell(ctx, event);
            self.is_silent = true;
        }
        self.aim(ctx, Stage::Err);
        if self.qp.is_there() {
            self.finish_dreq(ctx, Edge::QpReady);
        }
        true
    }

    /// The queue pair is in ERR: answers the DREQ.
    pub(super) fn finish_dreq(&mut self, ctx: &mut Ctx<'_>, edge: Edge) {
        self.send_drep(ctx, self.peer_tid);
        self.leave(ctx, edge);
    }

    fn send_drep(&mut self, ctx: &mut Ctx<'_>, tid: TransactionId) {
        let drep = Message::Drep(Drep {
            local_id: self.local_id,
            remote_id: self.remote_id.unwrap_or_default(),
            private_data: Blob::default(),
        });
        self.send(ctx, tid, &drep);
    }

    /// The answer to our DREQ.
    pub(crate) fn handle_drep(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.state != State::DreqSent {
            return false;
        }
        self.last = None;
        self.leave(ctx, Edge::RecvDrep);
        true
    }

    /// A REJ, whatever it is about: the peer has no such connection, or no more.
    pub(crate) fn handle_rej(&mut self, ctx: &mut Ctx<'_>, rej: &Rej) -> bool {
        if self.state.after(Edge::RecvRej).is_none() {
            return false;
        }
        self.last = None;
        match self.state {
            State::Established | State::DreqSent => self.leave(ctx, Edge::RecvRej),
            _ => {
                let event = Event::Rejected {
                    conn: self.id,
                    reason: rej.reason,
                    info: rej.info,
                    private_data: rej.private_data,
                };
                self.fail(ctx, Edge::RecvRej, event);
            }
        }
        true
    }

    /// The peer asks for a new connection with a queue pair that is part of this one: it does not
    /// know this one any more (IBTA vol. 1, 12.9.8.3.1).
    pub(crate) fn go_stale(&mut self, ctx: &mut Ctx<'_>) {
        match self.state {
            State::Established => self.send_dreq(ctx, Edge::Disconnect, Blob::default()),
            state if state.after(Edge::RecvRej).is_some() && state != State::DreqSent => {
                self.last = None;
                let why = Failure::Stale;
                let event = Event::ConnectError { conn: self.id, why };
                self.fail(ctx, Edge::RecvRej, event);
            }
            _ => {}
        }
    }

    /// The REP names a queue pair that is part of another connection; the table has rejected it.
    pub(crate) fn refuse_rep(&mut self, ctx: &mut Ctx<'_>) {
        if matches!(self.state, State::ReqSent | State::ReqMraRcvd) {
            let why = Failure::Stale;
            let event = Event::ConnectError { conn: self.id, why };
            self.fail(ctx, Edge::Abort, event);
        }
    }

    /// The user has no more interest: no event any more, and the queue pair is left alone. The peer
    /// is told.
    pub(crate) fn abort(&mut self, ctx: &mut Ctx<'_>) {
        self.is_silent = true;
        self.qp.detach();
        ctx.out.forget(self.id);
        match self.state {
            State::ReqSent | State::ReqMraRcvd => {
                self.withdraw(ctx);
                self.go(Edge::Abort);
                self.deadline = None;
            }
            State::RtuRcvd | State::Established => {
                self.send_dreq(ctx, Edge::Abort, Blob::default());
            }
            State::DreqRcvd => self.finish_dreq(ctx, Edge::Abort),
            state if state.after(Edge::Abort).is_some() => {
                self.send_rej(ctx, RejectReason::Consumer);
                self.leave(ctx, Edge::Abort);
            }
            // It is over, or about to be.
            _ => {}
        }
    }

    /// The program ends: as [`disconnect`](Self::disconnect) where the connection is there, and what is on its
    /// way to be one fails. The peer is told.
    pub(crate) fn end(&mut self, ctx: &mut Ctx<'_>) {
        let why = Failure::Ended;
        let event = Event::ConnectError { conn: self.id, why };
        match self.state {
            State::Established => {
                self.disconnect(ctx, Blob::default());
            }
            State::ReqSent | State::ReqMraRcvd => {
                self.withdraw(ctx);
                self.fail(ctx, Edge::Abort, event);
            }
            State::RtuRcvd => {
                self.tell(ctx, event);
                self.is_silent = true;
                self.send_dreq(ctx, Edge::Abort, Blob::default());
            }
            // It is over, or about to be.
            State::Idle | State::DreqSent | State::DreqRcvd | State::Timewait => {}
            _ => {
                self.send_rej(ctx, RejectReason::Consumer);
                self.fail(ctx, Edge::Abort, event);
            }
        }
    }

    /// A message was sent as often as it may be.
    pub(super) fn give_up(&mut self, ctx: &mut Ctx<'_>) {
        match self.state {
            State::ReqSent | State::ReqMraRcvd => self.give_up_request(ctx),
            State::RepSent | State::RepMraRcvd => self.give_up_reply(ctx),
            State::DreqSent => {
                self.last = None;
                self.leave(ctx, Edge::GiveUp);
            }
            _ => self.deadline = None,
        }
    }

    /// The connection did not come to be: tells so, as the last thing.
    pub(super) fn fail(&mut self, ctx: &mut Ctx<'_>, edge: Edge, event: Event) {
        self.tell(ctx, event);
        self.is_silent = true;
        self.leave(ctx, edge);
    }

    /// Takes `edge` out of the connection, to timewait or, where nothing was begun, to nothing.
    pub(super) fn leave(&mut self, ctx: &mut Ctx<'_>, edge: Edge) {
        let was_closing = matches!(self.state, State::DreqSent | State::DreqRcvd);
        let existed = was_closing || self.state == State::Established;
        if !self.go(edge) {
            return;
        }
        let by = *self.ended.get_or_insert(Ended::Failed);
        self.aim(ctx, Stage::Err);
        // Packets may be under way where there was a connection; where there was none, messages.
        let linger = if existed {
            self.timewait.duration()
        } else {
            self.wait * 2
        };
        let is_over = self.state == State::Idle;
        self.deadline = (!is_over).then(|| ctx.now + linger.max(Duration::from_millis(1)));
        if self.was_told {
            let event = Event::Disconnected { conn: self.id, by };
            self.tell(ctx, event);
        }
    }

    /// Timewait is over.
    pub(super) fn expire(&mut self, ctx: &mut Ctx<'_>) {
        self.go(Edge::Expire);
        self.deadline = None;
        if self.was_told {
            let event = Event::TimewaitExit { conn: self.id };
            self.tell(ctx, event);
        }
    }
}
