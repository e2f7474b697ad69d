//! One end of one connection (IBTA vol. 1, 12.9), sans-IO.
//!
//! [`state`] is the table of states; a connection adds what belongs to the edges: the messages, the
//! timer, the queue pair, the events. It is split by role: `active` asks, `passive` answers, `closing`
//! ends. `qp` knows what has to be modified when. A connection lives in a table
//! ([`Cm`](crate::Cm)), which finds it by the ids in a message.
//!
//! Peer-to-peer connections, where both sides send a REQ and one of them wins (12.10), are not
//! supported: two REQs that cross make two connections, or none where there is no listener.

pub(crate) mod active;
pub(crate) mod closing;
pub(crate) mod passive;
pub(crate) mod paths;
pub(crate) mod qp;
pub(crate) mod question;
pub mod state;

use std::time::Duration;

use verbs_core::addr::{Guid, Mtu, Qpn};
use verbs_core::mad::{Address, Bits, Blob, MadBytes, TimeCode, TransactionId};
use verbs_core::time::Instant;
use verbs_core::{Av, Error, QpAttr};

use crate::config::Config;
use crate::event::{ConnId, Ended, Event, Failure, ListenId, Outputs, QpChange};
use crate::machine::paths::Loading;
use crate::machine::qp::{Progress, QpDriver, Stage};
use crate::params::{Connect, Port, Route};
use crate::refusals::Refusals;
use crate::wire::{
    Acknowledged, CommId, Message, Mra, Rej, RejectReason, Rejected, Rep, Req, Transport,
};

pub(crate) use paths::Offer;
pub use state::{Edge, State};

/// What a connection works with during a call.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Instant,
    pub(crate) port: &'a Port,
    pub(crate) config: &'a Config,
    pub(crate) out: &'a mut Outputs,
}

/// The role of this end.
#[derive(Debug)]
enum Side {
    Active(Box<Connect>),
    Passive {
        listener: ListenId,
        /// The way to the peer for the queue pair, and the path MTU; both from the REQ.
        av: Av,
        mtu: Mtu,
        /// The alternate path of the REQ.
        offer: Offer,
        /// Whether the user takes alternate paths.
        takes_paths: bool,
        /// What is sent when the queue pair is in RTR.
        rep: Box<Rep>,
    },
}

/// The message that was sent last, to be sent again.
#[derive(Debug)]
struct Sent {
    is_reject: bool,
    mad: Box<MadBytes>,
}

/// One end of a connection. Methods for received messages return whether the state had a use for
/// the message.
#[derive(Debug)]
pub(crate) struct Connection {
    id: ConnId,
    state: State,
    side: Side,
    local_id: CommId,
    /// Known from the first message of the peer.
    remote_id: Option<CommId>,
    remote_guid: Guid,
    remote_qpn: Qpn,
    peer: Address,
    /// Of messages that begin something, and of answers to the peer's.
    own_tid: TransactionId,
    peer_tid: TransactionId,
    req: Box<Req>,
    qp: QpDriver,
    last: Option<Sent>,
    /// Time for an answer, and how often a message is sent again.
    wait: Duration,
    retries_left: u32,
    deadline: Option<Instant>,
    /// What the network reports of our REQ.
    refusals: Refusals,
    /// When an unproven peer has had its time to confirm the REP.
    gives_up: Option<Instant>,
    timewait: TimeCode,
    /// What came with REP or RTU, until the user is told.
    private_data: Blob<224>,
    /// The user was told that the connection is there.
    was_told: bool,
    /// The user has had its last event, or wants none.
    is_silent: bool,
    /// Which side has ended it, from before the queue pair goes to ERR.
    ended: Option<Ended>,
    proof: Proof,
    /// How long the peer takes to acknowledge a packet, as far as it has said so.
    ack_delay: TimeCode,
    /// The alternate path that is being loaded, and how many were.
    loading: Loading,
    loads: u32,
}

/// What is known of whether the peer is where its messages say that they come from.
#[derive(Clone, Copy, Debug)]
struct Proof {
    /// It has named our id, or has sent data; or we asked it.
    is_there: bool,
    /// Until then: its messages, and ours to it.
    heard: u32,
    said: u32,
}

impl Proof {
    const GIVEN: Self = Self {
        is_there: true,
        heard: 0,
        said: 0,
    };
    /// After a first message.
    const NONE: Self = Self {
        is_there: false,
        heard: 1,
        said: 0,
    };

    /// Whether another message may go to the peer, with so many more in reserve.
    fn allows(&self, reserve: u32, config: &Config) -> bool {
        let budget = self.heard.saturating_mul(config.amplification_max);
        self.is_there || self.said.saturating_add(reserve) < budget
    }
}

impl Connection {
    pub(crate) fn id(&self) -> ConnId {
        self.id
    }

    /// The way that it was asked for with, if this side has asked.
    pub(crate) fn route(&self) -> Option<Route> {
        match &self.side {
            Side::Active(connect) => Some(connect.route),
            Side::Passive { .. } => None,
        }
    }

    /// Whether it is an extended reliable connection.
    pub(crate) fn is_extended(&self) -> bool {
        self.req.transport == Transport::Extended
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn local_id(&self) -> CommId {
        self.local_id
    }

    pub(crate) fn remote_id(&self) -> Option<CommId> {
        self.remote_id
    }

    /// The queue pairs of both ends, this one's first; 0 before they are known.
    pub(crate) fn qpns(&self) -> [Qpn; 2] {
        [self.qp.qpn(), self.remote_qpn]
    }

    pub(crate) fn peer(&self) -> &Address {
        &self.peer
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The listener in whose backlog it is.
    pub(crate) fn backlog_of(&self) -> Option<ListenId> {
        match self.side {
            Side::Passive { listener, .. } if self.state.awaits_user() => Some(listener),
            _ => None,
        }
    }

    /// The peer's name for it, by which repeated REQs are found.
    pub(crate) fn remote_key(&self) -> Option<(Guid, CommId)> {
        Some((self.remote_guid, self.remote_id?))
    }

    /// The peer's queue pair, by which stale connections are found. In timewait it is the peer's own
    /// business when it uses the number again: Linux does at once.
    pub(crate) fn qpn_key(&self) -> Option<(Guid, Qpn)> {
        self.remote_id?;
        let is_over = self.state == State::Timewait;
        (!is_over).then_some((self.remote_guid, self.remote_qpn))
    }

    /// The age of a half-open connection (a REQ has come, and the peer has not confirmed the answer): first
    /// whether it still waits for the user, which alone may end it then, and then when it came.
    pub(crate) fn half_open(&self) -> Option<(bool, u64)> {
        use State::*;
        let is_half_open = matches!(
            self.state,
            ReqRcvd | ReqMraSent | Accepting | RepSent | RepMraRcvd
        );
        is_half_open.then_some((self.state.awaits_user(), self.id.serial))
    }

    /// Which side has ended it, if it is being ended: known before the queue pair goes to ERR.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// The modifies that bring its queue pair to RTR and to RTS, once they are known.
    pub(crate) fn qp_attrs(&self) -> Option<[QpAttr; 2]> {
        self.qp.to_rts()
    }

    /// What came with the REP or RTU.
    pub(crate) fn private_data(&self) -> Blob<224> {
        self.private_data
    }

    /// Whether the user was told that it is there.
    pub(crate) fn was_told(&self) -> bool {
        self.was_told
    }

    /// Whether nothing that was issued is still under way, so that it may be forgotten early.
    pub(crate) fn is_idle(&self) -> bool {
        self.qp.is_there()
    }

    /// Ends timewait now: there are too many.
    pub(crate) fn cut(&mut self, ctx: &mut Ctx<'_>) {
        closing::expire(self, ctx);
    }

    /// The deadline has passed.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        if self.deadline.is_none_or(|deadline| deadline > ctx.now) {
            return;
        }
        if self.state == State::Established {
            paths::lap_timeout(self, ctx);
        } else if self.state == State::Timewait {
            if self.qp.is_there() {
                closing::expire(self, ctx);
            } else {
                self.deadline = Some(ctx.now + self.wait);
            }
        } else if self.retries_left > 0 && !self.is_late(ctx) && self.go(Edge::Resend) {
            self.retries_left -= 1;
            self.refusals.sent_again();
            // The last message is left for the REJ that ends it: a peer that has confirmed, and whose
            // confirmations got lost, learns of the end.
            if self.proof.allows(1, ctx.config) {
                self.again(ctx);
            } else {
                ctx.out.counters.unproven += 1;
            }
            self.wait_more(ctx);
        } else {
            closing::give_up(self, ctx);
        }
    }

    /// Whether an unproven peer has had its time.
    fn is_late(&self, ctx: &Ctx<'_>) -> bool {
        let over = self.gives_up.is_some_and(|over| over <= ctx.now);
        over && !self.proof.is_there
    }

    /// Waits for an answer, of an unproven peer not beyond its time.
    fn wait_more(&mut self, ctx: &Ctx<'_>) {
        let usual = ctx.now + self.wait;
        let over = self.gives_up.filter(|_| !self.proof.is_there);
        self.deadline = Some(over.map_or(usual, |over| over.min(usual)));
    }

    /// The peer has shown that it hears us.
    fn prove(&mut self) {
        self.proof = Proof::GIVEN;
    }

    /// An MRA: the answer takes longer. Each one takes a retry, so that a peer cannot put it off
    /// for ever.
    pub(crate) fn handle_mra(&mut self, ctx: &mut Ctx<'_>, mra: &Mra) -> bool {
        if self.state == State::Established && mra.message == Acknowledged::Lap {
            return paths::handle_lap_mra(self, ctx, mra);
        }
        let fits = match self.state {
            State::ReqSent | State::ReqMraRcvd => mra.message == Acknowledged::Req,
            _ => mra.message == Acknowledged::Rep,
        };
        if !fits || self.retries_left == 0 || !self.go(Edge::RecvMra) {
            return false;
        }
        self.retries_left -= 1;
        self.prove();
        self.refusals.answered();
        let longer = mra.service_timeout.min(ctx.config.service_timeout_max);
        self.deadline = Some(ctx.now + longer.duration() + self.wait);
        true
    }

    /// The user needs more time: to answer a REQ, or for the queue pair after a REP.
    pub(crate) fn delay(&mut self, ctx: &mut Ctx<'_>, service_timeout: TimeCode) -> bool {
        if !self.go(Edge::Delay) {
            return false;
        }
        let message = match self.side {
            Side::Active(_) => Acknowledged::Rep,
            Side::Passive { .. } => Acknowledged::Req,
        };
        let mra = Mra {
            local_id: self.local_id,
            remote_id: self.remote_id.unwrap_or_default(),
            message,
            service_timeout,
            private_data: Blob::default(),
        };
        self.send(ctx, self.peer_tid, &mra.into());
        true
    }

    /// A modify that was issued has ended.
    pub(crate) fn qp_modified(&mut self, ctx: &mut Ctx<'_>, result: Result<(), Error>) {
        match self.qp.ended(result.is_ok()) {
            Progress::Working => {}
            Progress::Ready => self.qp_ready(ctx),
            Progress::Loaded => paths::path_taken(self, ctx, result),
            Progress::Failed => {
                let why = result.err().unwrap_or(Error::DeviceFailed);
                self.qp_failed(ctx, why);
            }
        }
        self.step(ctx);
    }

    fn qp_ready(&mut self, ctx: &mut Ctx<'_>) {
        match self.state {
            State::RepRcvd | State::RepMraSent => active::confirm(self, ctx),
            State::Accepting => passive::reply(self, ctx),
            State::RtuRcvd => self.arrive(ctx),
            State::DreqRcvd => closing::finish_dreq(self, ctx, Edge::QpReady),
            _ => {}
        }
    }

    fn qp_failed(&mut self, ctx: &mut Ctx<'_>, why: Error) {
        let event = Event::ConnectError {
            conn: self.id,
            why: Failure::QueuePair(why),
        };
        match self.state {
            State::RepRcvd | State::RepMraSent | State::Accepting => {
                self.send_rej(ctx, RejectReason::NoQp);
                closing::fail(self, ctx, Edge::QpFailed, event);
            }
            State::RtuRcvd => {
                // The peer takes the connection for established.
                self.tell(ctx, event);
                self.is_silent = true;
                closing::send_dreq(self, ctx, Edge::QpFailed, Blob::default());
            }
            _ => {}
        }
    }

    /// The connection is there.
    fn arrive(&mut self, ctx: &mut Ctx<'_>) {
        if !self.go(Edge::QpReady) {
            return;
        }
        self.deadline = None;
        self.was_told = true;
        let event = Event::Established {
            conn: self.id,
            private_data: self.private_data,
        };
        self.tell(ctx, event);
    }

    /// Takes an edge, if there is one from here.
    fn go(&mut self, edge: Edge) -> bool {
        match self.state.after(edge) {
            Some(after) => {
                self.state = after;
                true
            }
            None => false,
        }
    }

    fn tell(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        if !self.is_silent {
            let events = &mut ctx.out.events;
            let is_reserved = events.len() < events.capacity();
            debug_assert!(is_reserved, "there is room for all of a connection's");
            events.push_back(event);
        }
    }

    /// Sends a message, and keeps it for being sent again: a peer that may not be sent more now gets it when
    /// it repeats what it said.
    fn send(&mut self, ctx: &mut Ctx<'_>, tid: TransactionId, message: &Message) {
        let mad = message.emit(tid);
        // An MRA is a courtesy, which leaves room for the REP.
        let reserve = u32::from(matches!(message, Message::Mra(_)));
        self.transmit(ctx, mad, reserve);
        self.last = Some(Sent {
            is_reject: matches!(message, Message::Rej(_)),
            mad: Box::new(mad),
        });
    }

    /// Sends a message that begins something, and waits for its answer.
    fn ask(&mut self, ctx: &mut Ctx<'_>, tid: TransactionId, message: &Message) {
        self.send(ctx, tid, message);
        self.retries_left = self.req.max_cm_retries.value();
        self.wait_more(ctx);
    }

    /// Sends the last message again.
    fn again(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Some(last) = &self.last else {
            return false;
        };
        let mad = *last.mad;
        self.transmit(ctx, mad, 0);
        true
    }

    fn transmit(&mut self, ctx: &mut Ctx<'_>, mad: MadBytes, reserve: u32) {
        if !self.proof.allows(reserve, ctx.config) {
            ctx.out.counters.unproven += 1;
            return;
        }
        self.proof.said = self.proof.said.saturating_add(1);
        ctx.out.send(self.peer, mad);
    }

    /// Sends the last message again if it was a reject, and keeps the connection in mind for longer.
    fn reject_again(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let was_rejected = self.last.as_ref().is_some_and(|last| last.is_reject);
        if was_rejected {
            self.deadline = Some(ctx.now + self.wait * 2);
        }
        was_rejected && self.again(ctx)
    }

    fn send_rej(&mut self, ctx: &mut Ctx<'_>, reason: RejectReason) {
        self.send_rej_with(
            ctx,
            reason,
            Bits::default(),
            Blob::default(),
            Blob::default(),
        );
    }

    fn send_rej_with(
        &mut self,
        ctx: &mut Ctx<'_>,
        reason: RejectReason,
        info_len: Bits<7>,
        info: Blob<72>,
        private_data: Blob<148>,
    ) {
        let message = match self.state {
            State::RepRcvd | State::RepMraSent => Rejected::Rep,
            State::ReqRcvd | State::ReqMraSent | State::Accepting => Rejected::Req,
            _ => Rejected::NoMessage,
        };
        let rej = Rej {
            local_id: self.local_id,
            remote_id: self.remote_id.unwrap_or_default(),
            message,
            info_len,
            reason,
            info,
            private_data,
        };
        self.send(ctx, self.peer_tid, &rej.into());
    }

    /// Issues the queue pair's next modify, if there is one.
    fn step(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(attr) = self.qp.next() {
            let (conn, qpn) = (self.id, self.qp.qpn());
            let changes = &mut ctx.out.changes;
            let is_reserved = changes.len() < changes.capacity();
            debug_assert!(is_reserved, "there is room for each connection's");
            changes.push_back(QpChange { conn, qpn, attr });
        }
    }

    fn aim(&mut self, ctx: &mut Ctx<'_>, goal: Stage) {
        self.qp.aim(goal);
        self.step(ctx);
    }
}
