//! The machine of a connection over a stream: iWARP's DDP and RDMAP (RFC 5041, RFC 5040, RFC 7306) on FPDUs of MPA.
//!
//! * Commands: [`Iwarp::start`] when MPA has agreed.
//! * Events: [`Iwarp::receive`] takes bytes of the stream in pieces of any length, [`Iwarp::end`] its end,
//!   [`Iwarp::resume`] that there may be a receive, [`Iwarp::expire`] the time. They place payload, complete work requests
//!   and remember what is to be sent.
//! * Output: [`Iwarp::transmit`] puts FPDUs out: requests and READ responses, a message of each in turn. Call it after
//!   events, after posts and when the outlet has room again.
//! * [`Iwarp::deadline`] is when to call [`Iwarp::expire`] at the latest.
//!
//! The stream is reliable, so nothing is acknowledged or repeated: a SEND or WRITE completes when it was put out, and a
//! READ or an atomic with the last byte of its response. Completions are in the order of the work requests all the same.
//!
//! What is wrong with a segment is found at its header, and judged when its CRC has turned out right: damage is reported
//! as damage. After a fault one last [`Iwarp::transmit`] sends the Terminate that tells the peer;
//! [`Iwarp::is_answering`] says whether the outlet had no room for it. Everything else has stopped by then.
//!
//! [`deframer`] takes the stream apart, [`segment`] says what a segment is part of; [`requester`] makes FPDUs of work
//! requests and completions of responses, [`responder`] executes what the peer asks for, with receives in [`receives`],
//! messages that wait for one in [`hold`], and words in [`atomics`]; [`fault`] is what can be wrong.

mod atomics;
mod deframer;
mod fault;
mod hold;
mod outlet;
mod receives;
mod requester;
mod responder;
mod segment;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

use std::time::Duration;

use verbs_core::{Error, EventType, Srqn, WcStatus};
use verbs_wire::iwarp::{
    Fpdu, Header, RdmapOpcode, ReadRequest, Rtr, STag, Tagged, Terminate, Untagged,
};

use crate::clock::Instant;
use crate::transport::{Ends, Events};
use deframer::Deframer;
use fault::Fault;
use hold::Hold;
use outlet::{Step, put_bytes};
use requester::Requester;
use responder::Responder;
use segment::Segment;

pub(crate) use requester::GUARDED_SINK;

pub(crate) use outlet::{Extensions, Fill, Start, StreamOutlet};

/// How long after the start an initiator that has sent something and heard nothing sends a WRITE of no bytes, which
/// touches nothing, and then again. Linux siw loses the notice of bytes that come while it accepts, and finds them when
/// others follow.
const NUDGES: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(200),
    Duration::from_secs(2),
];

/// How long a responder leaves the first word to an initiator that did not ask for a peer-to-peer connection. RFC 5044
/// (section 7.1.2) has it wait for ever; Linux siw does not wait at all, and programs that let the server speak first rely
/// on that. What comes glued to the Reply makes siw fail, so some time has to pass.
const FIRST_FPDU: Duration = Duration::from_millis(100);

/// Whose message is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Request,
    Response,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Iwarp {
    /// `None` before the stream carries FPDUs.
    start: Option<Start>,
    deframer: Deframer,
    /// The segment that is coming.
    segment: Option<Segment>,
    /// It has no receive yet, so nothing is taken.
    hold: Option<Hold>,
    requester: Requester,
    responder: Responder,
    /// The ready-to-receive message, which goes before all others.
    rtr: Rtr,
    /// Until when the peer has the first word; `None` once this side may send.
    silent_until: Option<Instant>,
    turn: Turn,
    /// When the peer is reminded that something has come; see [`NUDGES`].
    nudge: Option<(Instant, usize)>,
    /// What tells the peer why.
    terminate: Option<Terminate>,
    /// The queue pair is to go to ERR: only the Terminate still leaves.
    stopped: bool,
    /// The peer has closed the stream between two messages.
    closed: bool,
}

impl Iwarp {
    /// A machine without a stream, with all that it will ever allocate.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            start: None,
            deframer: Deframer::new(true),
            segment: None,
            hold: None,
            requester: Requester::default(),
            responder: Responder::new()?,
            rtr: Rtr::empty(),
            silent_until: None,
            turn: Turn::Request,
            nudge: None,
            terminate: None,
            stopped: false,
            closed: false,
        })
    }

    /// The stream carries FPDUs from here on.
    pub(crate) fn start(&mut self, start: Start) {
        self.reset();
        self.deframer = Deframer::new(start.has_crc);
        if start.is_initiator {
            self.rtr = start.rtr;
            self.nudge = Some((start.now + NUDGES[0], 0));
        } else {
            // Of a peer-to-peer connection the first FPDU is sure to come.
            let wait = if start.rtr.is_empty() {
                start.now + FIRST_FPDU
            } else {
                Instant::NEVER
            };
            self.silent_until = Some(wait);
        }
        self.start = Some(start);
    }

    /// Forgets the connection.
    pub(crate) fn reset(&mut self) {
        self.start = None;
        (self.segment, self.hold) = (None, None);
        self.requester.reset();
        self.responder.reset();
        self.rtr = Rtr::empty();
        self.silent_until = None;
        self.turn = Turn::Request;
        self.nudge = None;
        self.terminate = None;
        (self.stopped, self.closed) = (false, false);
    }

    /// Takes bytes of the stream. Those behind the header of a message that finds no receive are returned, to be given
    /// again when [`Iwarp::resume`] says so.
    #[must_use]
    pub(crate) fn receive<'b>(
        &mut self,
        ends: &Ends<'_>,
        mut bytes: &'b [u8],
        events: &mut Events,
    ) -> &'b [u8] {
        if self.start.is_none() {
            return &[];
        }
        while !self.stopped {
            if self.is_held() {
                return bytes;
            }
            let taken = match self.deframer.next(&mut bytes) {
                Ok(None) => return &[],
                Ok(Some(part)) => self.take(ends, part, events),
                Err(error) => Err(Fault::of(&error)),
            };
            if let Err(fault) = taken {
                self.fail(ends, fault, events);
            }
        }
        &[]
    }

    /// Bytes of the longest ULPDU that is put out; 0 without a stream.
    pub(crate) fn ulpdu_max(&self) -> usize {
        self.start
            .map_or(0, |start| start.ulpdu_max.min(Fpdu::ULPDU_MAX))
    }

    /// Whether a message waits for a receive, and the stream with it.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Looks for a receive for the message that waits: whether the stream goes on. It also does when the message has
    /// waited for too long, and ends with it.
    pub(crate) fn resume(&mut self, ends: &Ends<'_>, events: &mut Events) -> bool {
        self.open(ends, events);
        !self.is_held()
    }

    /// The peer sends nothing further, or the stream `is_lost`.
    pub(crate) fn end(&mut self, ends: &Ends<'_>, is_lost: bool, events: &mut Events) {
        if self.stopped || self.start.is_none() {
            return;
        }
        self.stopped = true;
        events.fail = true;
        let is_inside = self.deframer.is_inside() || self.responder.is_inside();
        self.closed = !is_lost && !is_inside;
        // What was under way never will be whole, and its sender does not know.
        if is_inside {
            ends.counters.remote_errors.up();
            events.event = Some(EventType::QpFatal);
        }
    }

    /// Whether the connection has ended for the machine: nothing that comes changes anything.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether the peer has closed the stream in order: that is no fault.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether [`Iwarp::transmit`] may have something to put out: something is asked for, waits to be sent or for an
    /// answer, or ends.
    pub(crate) fn wants_round(&self, ends: &Ends<'_>) -> bool {
        let has_own = !self.rtr.is_empty() || self.stopped;
        has_own || self.responder.is_asked() || ends.sends.next().is_some()
    }

    /// Puts out what is to be sent; whether more would be, had the outlet room.
    pub(crate) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn StreamOutlet,
        events: &mut Events,
    ) -> bool {
        let Some(start) = self.start else {
            return false;
        };
        let more = !self.stopped && self.transmit_messages(ends, &start, outlet, events);
        match &self.terminate {
            None => more,
            Some(_) if !outlet.is_ready() => true,
            Some(terminate) => {
                let mut body = [0; Terminate::LEN_MAX];
                let len = terminate.emit(&mut body).unwrap_or(0);
                let header = Header::Untagged(Untagged::first(RdmapOpcode::Terminate, 1));
                put_bytes(outlet, &header, &body[..len]);
                self.terminate = None;
                false
            }
        }
    }

    fn transmit_messages(
        &mut self,
        ends: &Ends<'_>,
        start: &Start,
        outlet: &mut dyn StreamOutlet,
        events: &mut Events,
    ) -> bool {
        if self.silent_until.is_some() {
            return false;
        }
        if !self.rtr.is_empty() {
            if !outlet.is_ready() {
                return true;
            }
            self.put_rtr(outlet);
        }
        let mut idle = 0;
        while idle < 2 {
            let step = match self.turn {
                Turn::Request => self.requester.step(ends, start, outlet, events),
                Turn::Response => self.responder.step(ends, start, outlet),
            };
            match step {
                Ok(Step::Sent) => idle = 0,
                Ok(Step::Held) => idle += 1,
                Ok(Step::Full) => return true,
                Err(fault) => {
                    self.fail(ends, fault, events);
                    return false;
                }
            }
            self.turn = match self.turn {
                Turn::Request => Turn::Response,
                Turn::Response => Turn::Request,
            };
        }
        false
    }

    /// The zero-length message that tells the peer that it may send (RFC 6581, section 4).
    fn put_rtr(&mut self, outlet: &mut dyn StreamOutlet) {
        let stag = STag::new(1);
        match std::mem::replace(&mut self.rtr, Rtr::empty()) {
            rtr if rtr.contains(Rtr::WRITE) => {
                let header = Header::Tagged(Tagged {
                    opcode: RdmapOpcode::Write,
                    is_last: true,
                    stag,
                    offset: 0,
                });
                put_bytes(outlet, &header, &[]);
            }
            rtr if rtr.contains(Rtr::READ) => {
                let nothing = ReadRequest {
                    sink: stag,
                    sink_offset: 0,
                    len: 0,
                    source: stag,
                    source_offset: 0,
                };
                self.requester.put_first_read(&nothing, outlet);
            }
            _ => self.requester.put_first_send(outlet),
        }
    }

    /// When time alone changes something.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        let until = self.silent_until.filter(|&until| until != Instant::NEVER);
        let next = until.or(self.nudge.map(|(at, _)| at));
        let held = self.hold.map(|hold| hold.again);
        next.into_iter().chain(held).min()
    }

    /// It is later than before.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.silent_until = self.silent_until.filter(|&until| until > now);
        if let Some((at, number)) = self.nudge
            && at <= now
        {
            // In the middle of a message others follow anyway, and a WRITE may not be put between the segments of another
            // or of a READ response.
            let is_between = !self.requester.is_inside() && !self.responder.is_answering();
            if self.requester.has_put() && is_between {
                self.rtr |= Rtr::WRITE;
            }
            let next = NUDGES.get(number + 1);
            self.nudge = next.map(|&after| (now + after, number + 1));
        }
    }

    /// The receive that was taken from a shared receive queue for a message that will not end; see
    /// [`Rc::abandon`](super::rc::Rc::abandon).
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.responder.abandon()
    }

    /// Whether every message that was begun has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.requester.is_idle()
    }

    /// Whether the Terminate waits for the outlet.
    pub(crate) fn is_answering(&self) -> bool {
        self.terminate.is_some()
    }

    /// The stream cannot go on: says so to both sides.
    fn fail(&mut self, ends: &Ends<'_>, fault: Fault, events: &mut Events) {
        self.stopped = true;
        events.fail = true;
        if fault.is_local {
            ends.counters.local_errors.up();
        } else {
            ends.counters.remote_errors.up();
        }
        if let Some(cause) = fault.cause {
            let body = self.segment.as_ref().map_or(&[][..], Segment::body);
            let refused = self.deframer.refused(body).filter(|_| fault.quotes);
            self.terminate = Some(Terminate { cause, refused });
        }
        if let Some((status, reason)) = fault.send {
            self.requester.fail(ends, status, reason, events);
        } else if !fault.is_local {
            let status = fault.receive.unwrap_or((WcStatus::WrFlushErr, 0));
            let told = fault.receive.is_some()
                && self
                    .responder
                    .fail_receive(ends, status.0, status.1, events);
            if !told {
                events.event = fault.event;
            }
        }
    }
}
