//! The responder: executes the peer's requests in the order of their numbers, each once.
//!
//! Checks are made in the order of the loopback's ([`crate::direct::message`]), so that both end in the same status. A
//! fault is answered with a NAK and takes the queue pair to ERR; the receive that it concerns completes in error, and
//! if there is none, an event reports it (IBTA vol. 1, 9.9.3).
//!
//! A receive of the queue pair's own stays on its queue until its message has ended. A receive of a shared queue is
//! taken when the message begins, because other queue pairs take from it in the meantime.

use verbs_core::{Error, EventType, Psn, Srqn, WcStatus};

use super::early::Early;
use super::replies::Replies;
use super::resources::Resources;
use crate::clock::Instant;
use crate::queue::srq::Seen;
use crate::transport::pieces::Body;
use crate::transport::{Ends, Events, Facts, Path, Told};
use crate::wire::target::Again;
use crate::wire::{
    BthFlags, CreditCode, Head, Message, NakCode, Reth, RnrTimer, Service, Syndrome,
};

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::transport) struct Responder {
    /// The first number has been taken from the path.
    started: bool,
    expected: Psn,
    /// Messages executed.
    pub(super) msn: u32,
    /// A NAK was sent; nothing more is sent until the expected number arrives.
    silent: bool,
    /// Requests that arrived before the ones they follow.
    pub(super) early: Early,
    pub(super) doing: Doing,
    /// The receive from a shared queue that was taken and is not completed: the one of the SEND under way.
    pub(super) taken: Option<Seen>,
    /// For an extended connection, the queue that the last message was for.
    named: Option<Srqn>,
    /// The acknowledgement to send, after the answers in `resources` are sent.
    pub(super) answer: Option<(Psn, Syndrome)>,
    /// Whether it may wait for the client's reply.
    pub(super) replies: Replies,
    pub(super) resources: Resources,
    /// The number of the newest READ or atomic.
    pub(super) newest_read: Option<Psn>,
}

/// The message of several packets that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    Nothing,
    Send { placed: u32 },
    Write { whole: Reth, placed: u32 },
}

/// Why a packet is not executed.
pub(super) enum Refusal {
    /// There is no receive.
    NotReady,
    /// It never will be: the NAK, the status of the receive under way if there is one, and the reason.
    Fault(NakCode, WcStatus, u32),
    /// It was executed, but takes the queue pair to ERR.
    Stopped,
}

pub(super) type Executed = Result<(), Refusal>;

/// A message that breaks the rules, or requests what the queue pair does not grant.
pub(super) const INVALID: Refusal =
    Refusal::Fault(NakCode::InvalidRequest, WcStatus::RemInvReqErr, 0);

pub(super) const ACK: Syndrome = Syndrome::Ack(CreditCode::UNKNOWN);

/// Whether a request is one of an extended connection, and names a queue.
fn is_extended(head: &Head) -> bool {
    matches!(head.opcode().service(), Service::Xrc | Service::OwnXrc)
}

impl Responder {
    /// With room for the READs and atomics of any peer.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(in crate::transport) fn new() -> Result<Self, Error> {
        Ok(Self {
            started: false,
            expected: Psn::new(0),
            msn: 0,
            silent: false,
            early: Early::default(),
            doing: Doing::Nothing,
            taken: None,
            named: None,
            answer: None,
            replies: Replies::default(),
            resources: Resources::new()?,
            newest_read: None,
        })
    }

    pub(in crate::transport) fn reset(&mut self) {
        self.started = false;
        self.msn = 0;
        self.silent = false;
        self.early = Early::default();
        self.doing = Doing::Nothing;
        self.taken = None;
        self.answer = None;
        self.replies = Replies::default();
        self.resources.reset();
        self.newest_read = None;
    }

    pub(in crate::transport) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.doing = Doing::Nothing;
        self.taken.take().map(|seen| (seen.wr_id, self.named))
    }

    pub(super) fn is_answering(&mut self) -> bool {
        self.answer.is_some() || self.resources.first_due().is_some()
    }

    /// Takes a request.
    pub(super) fn receive(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) {
        self.begin(ends.path);
        let psn = head.bth().psn;
        match psn.since(self.expected) {
            0 => {
                if std::mem::take(&mut self.silent) {
                    // A NAK that has not been sent is out of date.
                    self.answer = self.answer.filter(|&(_, syndrome)| syndrome == ACK);
                }
                let executed = self.execute(ends, head, payload, events);
                self.conclude(ends, psn, executed, events);
                if self.early.has_gap() {
                    self.go_on(ends, events);
                }
            }
            1.. => self.came_early(ends, head, payload),
            _ => {
                self.early.came_again(psn);
                self.repeated(ends, psn, head);
            }
        }
    }

    /// Takes the first number from the path, unless it has one.
    #[inline]
    pub(super) fn begin(&mut self, path: &Path) {
        if !self.started {
            self.begin_at(Psn::new(path.rq_psn));
        }
    }

    pub(super) fn begin_at(&mut self, psn: Psn) {
        self.started = true;
        self.expected = psn;
    }

    /// The number of the next request.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// A request arrived before one that it follows, and is not for a queue here.
    pub(super) fn missed(&mut self, ends: &Ends<'_>) {
        ends.counters.out_of_sequence.up();
        if !self.silent {
            self.ask();
        }
    }

    /// A request to a queue elsewhere arrived again, other than a READ.
    pub(super) fn executed_before(&mut self, ends: &Ends<'_>, psn: Psn, again: Again) {
        ends.counters.duplicates.up();
        let (depth, mtu) = (ends.path.max_dest_rd_atomic, ends.path.mtu);
        match again {
            Again::Result => self.resources.done_again(depth, psn, mtu),
            Again::Acknowledge | Again::Read => self.acknowledge_again(psn),
        }
    }

    /// A request arrived before one that it follows: that one is late, or lost.
    fn came_early(&mut self, ends: &Ends<'_>, head: &Head, payload: impl Body) {
        ends.counters.out_of_sequence.up();
        if self.silent && !self.early.has_gap() {
            // There was no receive, and everything from there on will be sent again.
            return;
        }
        // The objects that a packet of an extended connection works on depend on the queue that it names.
        let kept = ends.path.service == Service::Rc && self.early.keep(head, payload, ends.now);
        if kept {
            ends.counters.kept_early.up();
        }
        if self.early.is_missing(self.expected, kept, ends.now) {
            self.ask();
        }
    }

    /// Executes the requests that waited for the one that has arrived.
    fn go_on(&mut self, ends: &Ends<'_>, events: &mut Events) {
        let mut any = false;
        while !self.silent
            && !events.fail
            && let Some(kept) = self.early.take(self.expected)
        {
            let psn = self.expected;
            let executed = self.execute(ends, &kept.head, &kept.payload[..], events);
            self.conclude(ends, psn, executed, events);
            any = true;
        }
        if self.silent || events.fail {
            return self.early.clear();
        }
        // One acknowledgement confirms everything that was executed.
        if let (true, Some((psn, ACK))) = (any, self.answer) {
            self.acknowledge_again(psn);
        }
        if self.early.passed(self.expected, true, ends.now) && self.early.is_due(ends.now) {
            self.ask();
        }
    }

    /// Requests what is missing, and nothing more until it has arrived.
    fn ask(&mut self) {
        self.early.asked(None);
        if !std::mem::replace(&mut self.silent, true) {
            let nak = Syndrome::Nak(NakCode::PsnSequence);
            self.answer = Some((self.expected, nak));
        }
    }

    /// When time alone changes something.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.early.deadline()
    }

    /// A timer may have run out.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.early.is_due(now) {
            self.ask();
        }
    }

    /// Takes a request of an unreliable connection. Missing packets are not requested: the message that they belong to
    /// is dropped, and the next one that begins is taken (IBTA vol. 1, 9.8.2.2).
    pub(in crate::transport) fn receive_unreliable(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) {
        let psn = head.bth().psn;
        if head.opcode().facts().place.is_first() {
            // A message that has not ended never will; its receive goes to the next one.
            self.doing = Doing::Nothing;
            self.expected = psn;
        } else if psn != self.expected || matches!(self.doing, Doing::Nothing) {
            ends.counters.out_of_sequence.up();
            self.doing = Doing::Nothing;
            return;
        }
        let executed = self.execute(ends, head, payload, events);
        self.answer = None;
        match executed {
            Ok(()) => {}
            Err(Refusal::Stopped) => events.fail = true,
            // A receive that cannot be written to is this queue pair's own fault.
            Err(Refusal::Fault(_, WcStatus::LocProtErr, reason)) => {
                events.fail = true;
                self.fail_receive(ends, WcStatus::LocProtErr, reason, events);
            }
            Err(Refusal::Fault(_, status, reason)) => {
                ends.counters.dropped.up();
                if self.taken.is_some() {
                    self.fail_receive(ends, status, reason, events);
                }
                self.doing = Doing::Nothing;
            }
            Err(Refusal::NotReady) => {
                ends.counters.dropped.up();
                self.doing = Doing::Nothing;
            }
        }
    }

    /// A request that has arrived before: it is answered again, but not executed again.
    fn repeated(&mut self, ends: &Ends<'_>, psn: Psn, head: &Head) {
        ends.counters.duplicates.up();
        let depth = ends.path.max_dest_rd_atomic;
        let ext = head.ext();
        match (head.opcode().facts().message, ext.reth) {
            (Message::Send | Message::Write, _) => self.acknowledge_again(psn),
            // The queue that it names, if any, decides in which protection domain memory is read.
            (Message::Read, Some(_)) if is_extended(head) && ends.srq.is_none() => {}
            (Message::Read, Some(reth)) => {
                self.resources
                    .read_again(depth, psn, (ends.pd, reth), ends.path.mtu);
            }
            (Message::Atomic | Message::AtomicWrite | Message::Flush, _) => {
                self.resources.done_again(depth, psn, ends.path.mtu);
            }
            _ => {}
        }
    }

    /// Acknowledges the newest packet that may be acknowledged: beyond a READ or atomic, that would tell the peer that
    /// its answer is not coming.
    fn acknowledge_again(&mut self, psn: Psn) {
        let is_last_kind = self.newest_read.is_none_or(|read| psn.since(read) > 0);
        let newest = if is_last_kind {
            self.expected.add(0x00ff_ffff)
        } else {
            psn
        };
        match self.answer {
            // A NAK's number is the expected one, so it is never older.
            Some((pending, _)) if pending.since(newest) >= 0 => {}
            _ => self.answer = Some((newest, ACK)),
        }
    }

    /// Executes the next request, or returns why not.
    fn execute(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) -> Executed {
        let facts = head.opcode().facts();
        if is_extended(head) {
            let named = head.ext().xrceth.map(|eth| eth.srqn);
            if facts.place.is_first() {
                self.named = named;
            }
            // All packets of a message are for one queue, and it must exist.
            if ends.srq.is_none() || self.named != named {
                return Err(INVALID);
            }
        }
        let follows = match self.doing {
            Doing::Nothing => facts.place.is_first(),
            Doing::Send { .. } => facts.message == Message::Send && !facts.place.is_first(),
            Doing::Write { .. } => facts.message == Message::Write && !facts.place.is_first(),
        };
        if !follows || !payload.fits(head, ends.path.mtu) {
            return Err(INVALID);
        }
        let packets = payload.packets(ends.path.mtu);
        let ext = head.ext();
        match (facts.message, ext.reth, ext.atomic) {
            (Message::Send, ..) => self.send(ends, head, payload, events),
            (Message::Write, reth, _) => self.write(ends, head, reth, payload, events),
            (Message::Read, Some(reth), _) => self.read(ends, head.bth().psn, reth),
            (Message::Atomic, _, Some(eth)) => self.atomic(ends, head, eth),
            (Message::AtomicWrite, Some(reth), _) => self.atomic_write(ends, head, reth, payload),
            (Message::Flush, Some(reth), _) => match ext.feth {
                Some(feth) => self.flush(ends, head, feth, reth),
                None => Err(INVALID),
            },
            _ => Err(INVALID),
        }?;
        if facts.place.is_last() {
            self.msn = self.msn.wrapping_add(1);
        }
        if !matches!(facts.message, Message::Read) {
            self.advance(ends, packets);
        }
        let asks = head.bth().flags.contains(BthFlags::ACK_REQ);
        if asks && matches!(facts.message, Message::Send | Message::Write) {
            self.answer = Some((head.bth().psn.add(packets - 1), ACK));
            self.replies.asked(ends.now);
        }
        Ok(())
    }

    pub(super) fn advance(&mut self, ends: &Ends<'_>, packets: u32) {
        self.expected = self.expected.add(packets);
        ends.recvs.expect(self.expected.value());
    }

    /// Handles the consequences of a packet that was not executed.
    pub(super) fn conclude(
        &mut self,
        ends: &Ends<'_>,
        psn: Psn,
        executed: Executed,
        events: &mut Events,
    ) {
        match executed {
            Ok(()) => {}
            Err(Refusal::NotReady) => {
                // The packets behind this one are on their way; nothing has to be answered to them.
                self.silent = true;
                let timer = RnrTimer::from_u8(ends.path.min_rnr_timer).unwrap_or(RnrTimer::MAX);
                self.answer = Some((psn, Syndrome::RnrNak(timer)));
                events.told |= Told::NO_RECEIVE;
            }
            Err(Refusal::Fault(code, status, reason)) => {
                if !self.fail_receive(ends, status, reason, events) {
                    events.event = Some(match code {
                        NakCode::RemoteAccess => EventType::QpAccessErr,
                        _ => EventType::QpReqErr,
                    });
                }
                events.why_refused = Facts::number(reason);
                self.refuse(psn, code, events);
            }
            Err(Refusal::Stopped) => events.fail = true,
        }
    }

    /// Refuses the request of that packet. A SEND that is under way is another one; its receive is flushed.
    pub(super) fn refuse(&mut self, psn: Psn, code: NakCode, events: &mut Events) {
        self.answer = Some((psn, Syndrome::Nak(code)));
        events.told |= Told::REFUSED;
        events.fail = true;
    }
}
