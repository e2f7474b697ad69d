//! The requester's sending half: work requests become packets.
//!
//! # How much is under way
//!
//! At most [`PACKETS_MAX`] request packets are unconfirmed, fewer after losses ([`recovery`]). The peer is asked for an
//! acknowledgement by the last packet of what there is to send, by the one that fills the window, and [`ASKS`] times in
//! between: with a full window every four bursts of 15 packets of 4 KiB, so that answers are on their way while more is
//! sent, and many packets share the cost of an answer. The window is 1 MiB with the largest packets, which is what a
//! socket with a receive buffer of 4 MiB has room for when its reader is late, bookkeeping included; Linux rxe has a
//! queue without a bound. READs are limited in the same way by the data that they request, [`RESPONSES_MAX`], but a
//! single READ may be of any size.

mod completer;
mod message;
mod recovery;
mod retry;
mod rtt;
pub(super) mod window;

use std::time::Duration;

use verbs_core::{Access, Error, Psn, QpCap, SendFlags, SendOp, SendWr, WcCause, WcStatus};

use super::earlier;
use super::early::Early;
use super::head::head;
use crate::clock::Instant;
use crate::direct::local::{Local, execute};
use crate::queue::send::Scratch;
use crate::transport::completion;
use crate::transport::pieces::{Pieces, Refused, Source};
use crate::transport::{Ends, Events, Fill, LONG_MIN, Outlet, Path, Told, long_packets, longest};
use crate::wire::{BthFlags, Operation, Place};
use message::{flags, request};
pub(in crate::transport) use message::{head_of, tells};
use recovery::Recovery;
use retry::{Retry, Verdict};
pub(in crate::transport) use window::Flight;
use window::{Cursor, Kind, Window};

/// Request packets that are not confirmed.
pub(super) const PACKETS_MAX: u32 = 256;
/// Acknowledgements that are asked for in one window of a long transfer.
pub(super) const ASKS: u32 = 4;
/// Response packets that READs have requested, unless there is only one READ.
pub(super) const RESPONSES_MAX: u32 = 512;

/// Probes in a row that are attributed to a lost packet or a lost answer, and not to a peer that no longer exists.
const PROBES_MILD: u32 = 2;

/// Sends requests and turns the answers into completions; the other half is in `completer`.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) window: Window,
    retry: Retry,
    /// The first number has been taken from the path.
    started: bool,
    /// A work request ended in error: nothing is sent or taken any longer.
    failed: bool,
    recovery: Recovery,
    /// Answers that arrived before the ones they follow.
    early: Early,
    /// Packets since the peer was last asked for an acknowledgement.
    unasked: u32,
    /// The next packet asks for one, whatever follows.
    ask: bool,
}

/// A work request whose packets are being sent, and their bytes.
type Sending<'s, 'p> = (&'s SendWr<'s>, &'s Flight, &'s Source<'p, 's>);

/// What became of a long packet.
enum Long {
    /// It cannot be one.
    None,
    /// It was sent, and there is more of the message.
    Sent,
    /// The work request goes no further now.
    Ended(Step),
}

/// How far a work request was sent.
enum Step {
    /// Completely.
    Sent,
    /// As far as it can go now. An answer of the peer, or the end of another thread's look at a key, lets it go on.
    Held,
    /// Until the outlet was full.
    Full,
}

impl Requester {
    /// With room for a full send queue.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn new(cap: &QpCap) -> Result<Self, Error> {
        Ok(Self {
            window: Window::new(cap.max_send_wr)?,
            retry: Retry::default(),
            started: false,
            failed: false,
            unasked: 0,
            recovery: Recovery::default(),
            early: Early::default(),
            ask: false,
        })
    }

    pub(super) fn reset(&mut self) {
        self.window.start(Psn::new(0));
        self.retry = Retry::default();
        self.started = false;
        self.failed = false;
        self.unasked = 0;
        self.recovery = Recovery::default();
        self.early = Early::default();
        self.ask = false;
    }

    /// When time alone changes something.
    pub(super) fn deadline(&self) -> Option<Instant> {
        earlier(self.early.deadline(), self.retry.deadline())
    }

    /// The smoothed round trip, if one was measured.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.retry.rtt.smoothed()
    }

    /// Whether no message is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.window.is_idle()
    }

    /// Sends what can be sent. Returns whether there is more to send when the outlet has room.
    pub(super) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        events: &mut Events,
    ) -> bool {
        if !self.has_work(ends) {
            return false;
        }
        let mut scratch = Scratch::default();
        loop {
            if !outlet.is_ready() {
                return true;
            }
            match self.step(ends, outlet, &mut scratch, events) {
                Step::Sent => {}
                Step::Held => return false,
                Step::Full => return true,
            }
            if !self.has_work(ends) {
                return false;
            }
        }
    }

    /// A timer may have run out.
    pub(super) fn expire(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if self.failed || self.retry.end_wait(ends.now) {
            return;
        }
        if self.early.is_due(ends.now) {
            self.missing_answer(ends, events);
        }
        if self.retry.is_silent(ends.now) {
            ends.counters.timeouts.up();
            events.told |= Told::TIMEOUT;
            match self.retry.silent(ends.path) {
                Verdict::GiveUp => self.exhausted(ends, events),
                _ => self.probe(true),
            }
        } else if let Some(probes) = self.retry.misses(ends.now, self.window.una()) {
            ends.counters.probes.up();
            self.probe(probes > PROBES_MILD);
        }
    }

    /// No answer has arrived for some time: asks again, and if the peer seems to be gone, continues with care.
    fn probe(&mut self, is_gone: bool) {
        let end = self.window.end();
        if is_gone {
            self.recovery.timed_out(end);
        } else {
            self.recovery.lost(end);
        }
        self.send_again(self.recovery.patch());
        if self.early.has_gap() {
            self.window.ask_for(self.early.distance(self.window.una()));
        }
    }

    /// The retries are used up: goes on by the alternate path, if one is armed (IBTA vol. 1, 17.2.8.1.2), with all
    /// retries again.
    fn exhausted(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if !ends.path.may_migrate {
            return self.fail(ends, WcStatus::RetryExcErr, 0, events);
        }
        events.migrate = true;
        self.moved();
    }

    /// See [`Rc::moved`](super::Rc::moved).
    pub(super) fn moved(&mut self) {
        if self.failed || !self.started {
            return;
        }
        let is_asked_to_wait = self.retry.is_waiting();
        if !is_asked_to_wait {
            self.retry = Retry::default();
        }
        if self.window.is_outstanding() && !is_asked_to_wait {
            self.probe(true);
        }
    }

    /// That many packets that are not confirmed are to be sent again, or all of them.
    fn send_again(&mut self, packets: Option<u32>) {
        match packets {
            Some(packets) => {
                self.window.ask_for(None);
                self.window.send_again(packets);
            }
            None => self.go_back(),
        }
    }

    /// Everything that is not confirmed is to be sent again.
    fn go_back(&mut self) {
        self.window.ask_for(None);
        self.window.go_back();
        self.unasked = 0;
    }

    /// Whether there is a packet at the cursor that may be sent as far as the queue pair's state goes.
    fn has_work(&mut self, ends: &Ends<'_>) -> bool {
        if self.failed || self.retry.is_waiting() {
            return false;
        }
        if !self.started {
            if !ends.may_begin {
                return false;
            }
            self.started = true;
            self.window.start(Psn::new(ends.path.sq_psn));
        }
        if self.window.is_idle() {
            let Some(at) = ends.sends.next() else {
                return false;
            };
            self.window.go_on_at(at);
        }
        let at = self.window.cursor().at;
        if at != self.window.begun() || may_begin(ends, at) {
            return true;
        }
        // The queue pair drains although the last packet left the request for an acknowledgement to one that will not
        // be sent.
        !ends.may_begin && self.ask_again()
    }

    /// Sends the packet before the cursor again if that makes the peer answer. Returns whether it does.
    fn ask_again(&mut self) -> bool {
        let needed = self.unasked != 0 && self.window.cursor().at != self.window.base();
        if needed {
            self.window.step_back();
            self.ask = true;
        }
        needed
    }

    /// Sends the work request at the cursor.
    fn step(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        scratch: &mut Scratch,
        events: &mut Events,
    ) -> Step {
        let at = self.window.cursor().at;
        let wr = ends.sends.read(at, scratch);
        if wr.op.is_local() {
            return self.step_local(ends, &wr, events);
        }
        let begins = at == self.window.begun();
        let flight = if begins {
            Flight::of(&wr, ends.path)
        } else {
            *self.window.flight(at)
        };
        if flight.kind != Kind::Plain && ends.path.max_rd_atomic == 0 {
            return self.refuse(
                ends,
                WcStatus::LocQpOpErr,
                WcCause::NoReadAtomic.code(),
                events,
            );
        }
        if self.is_held(ends.path, &flight, wr.flags, begins) {
            return Step::Held;
        }
        let need = match flight.kind {
            Kind::Plain | Kind::Done | Kind::Local => Access::empty(),
            Kind::Read | Kind::Atomic => Access::LOCAL_WRITE,
        };
        let mut pieces = Pieces::new();
        let source = match Source::check(ends, &wr, need, &mut pieces) {
            Ok(source) => source,
            Err(Refused(why)) => return self.refuse(ends, WcStatus::LocProtErr, why, events),
        };
        let flight = if begins {
            let flight = self.window.begin(flight);
            ends.sends.set_psn(self.window.next().value());
            flight
        } else {
            flight
        };
        match flight.kind {
            Kind::Plain if flight.len >= LONG_MIN => {
                self.send_long_packets(ends, outlet, (&wr, &flight, &source), events)
            }
            Kind::Plain => self.send_packets(ends, outlet, (&wr, &flight, &source), events),
            _ => self.send_request(ends, outlet, &wr, &flight, &source, events),
        }
    }

    /// Whether a work request has to wait for answers to earlier ones.
    fn is_held(&self, path: &Path, flight: &Flight, flags: SendFlags, begins: bool) -> bool {
        let window = &self.window;
        let fenced = flags.contains(SendFlags::FENCE) && window.reads() != 0 && path.fences;
        let too_deep = flight.kind != Kind::Plain
            && (window.reads() >= u32::from(path.max_rd_atomic)
                || window.responses() != 0
                    && window.responses().saturating_add(flight.packets) > RESPONSES_MAX);
        fenced
            || too_deep
            || window.requests() >= self.recovery.limit()
            || begins && !window.has_numbers(flight.packets)
    }

    /// A work request cannot be sent. It completes when all before it have.
    fn refuse(&mut self, ends: &Ends<'_>, status: WcStatus, why: u32, events: &mut Events) -> Step {
        if self.window.cursor().at == self.window.base() {
            self.fail(ends, status, why, events);
            Step::Held
        } else if self.ask_again() {
            Step::Sent
        } else {
            Step::Held
        }
    }

    /// Sends packets of a SEND or WRITE, long ones as far as that is possible.
    #[inline(never)]
    fn send_long_packets(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        sending: Sending<'_, '_>,
        events: &mut Events,
    ) -> Step {
        let Some(longest) = longest(ends, sending.1.len, outlet) else {
            return self.send_packets(ends, outlet, sending, events);
        };
        loop {
            if self.window.requests() >= self.recovery.limit() {
                return Step::Held;
            }
            if !outlet.is_ready() {
                return Step::Full;
            }
            match self.send_long(ends, outlet, sending, longest, events) {
                Long::None => return self.send_packets(ends, outlet, sending, events),
                Long::Sent => {}
                Long::Ended(step) => return step,
            }
        }
    }

    /// Sends packets of a SEND or WRITE.
    #[inline(always)]
    fn send_packets(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        (wr, flight, source): Sending<'_, '_>,
        events: &mut Events,
    ) -> Step {
        let at = self.window.cursor().at;
        loop {
            if self.window.requests() >= self.recovery.limit() {
                return Step::Held;
            }
            if !outlet.is_ready() {
                return Step::Full;
            }
            let packet = self.window.cursor().packet;
            let is_last = packet + 1 == flight.packets;
            let (psn, again) = self.window.psn(flight);
            let asks = self.asks(ends, at, is_last, 1);
            let flags = flags(wr, is_last, asks);
            self.retry.rtt.sent(psn, asks, again, ends.now);
            let offset = packet << ends.path.mtu.shift();
            let len = (flight.len - offset).min(ends.path.mtu.bytes());
            let place = Place::of(packet == 0, is_last);
            let head = head_of(wr, (place, flight.len), ends.path, psn, flags);
            let fill: Fill<'_> = &mut |out| source.read(offset, out);
            if let Err(unmapped) = outlet.put(&head, len as usize, again, fill) {
                let Refused(why) = unmapped.into();
                return self.refuse(ends, WcStatus::LocProtErr, why, events);
            }
            self.window.passed_packets(flight, 1);
            self.retry.sent(ends.now, ends.path);
            // The packet that was sent again may have been the last one.
            if is_last || self.window.cursor().at != at {
                return Step::Sent;
            }
        }
    }

    /// Sends a long packet for those at the cursor, if it can be one: nothing that is sent again is.
    fn send_long(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        (wr, flight, source): Sending<'_, '_>,
        longest: usize,
        events: &mut Events,
    ) -> Long {
        let Cursor { at, packet } = self.window.cursor();
        let (psn, again) = self.window.psn(flight);
        if again || self.window.is_patching() {
            return Long::None;
        }
        let mtu = ends.path.mtu;
        let offset = packet << mtu.shift();
        let room = self.recovery.limit() - self.window.requests();
        let left = (flight.packets - packet).min(room);
        let Some(packets) = long_packets(longest, mtu, flight.len - offset, left) else {
            return Long::None;
        };
        let is_last = packet + packets == flight.packets;
        let unasked = self.unasked;
        let asks = self.asks(ends, at, is_last, packets);
        let len = (flight.len - offset).min(packets << mtu.shift());
        let place = Place::of(packet == 0, is_last);
        let flags = flags(wr, is_last, asks);
        let head = head_of(wr, (place, flight.len), ends.path, psn, flags);
        match outlet.put_long(&head, len as usize, &mut |out| source.copy_to(offset, out)) {
            Ok(true) => {}
            Ok(false) => {
                self.unasked = unasked;
                return Long::Ended(Step::Full);
            }
            Err(unmapped) => {
                let Refused(why) = unmapped.into();
                return Long::Ended(self.refuse(ends, WcStatus::LocProtErr, why, events));
            }
        }
        let last = psn.add(packets - 1);
        self.retry.rtt.sent(last, asks, false, ends.now);
        self.window.passed_packets(flight, packets);
        self.retry.sent(ends.now, ends.path);
        match is_last {
            true => Long::Ended(Step::Sent),
            false => Long::Sent,
        }
    }

    /// Whether the packet at the cursor, which stands for so many of the work request at `at`, asks for an acknowledgement.
    #[inline(always)]
    fn asks(&mut self, ends: &Ends<'_>, at: u32, is_last: bool, packets: u32) -> bool {
        let next = at.wrapping_add(1);
        let follows = !is_last
            || !sends_nothing(ends, next) && (next != self.window.begun() || may_begin(ends, next));
        let asks = self.ask
            || !follows
            || self.window.ends_patch()
            || self.unasked + packets >= self.recovery.limit() / ASKS
            || self.window.requests() + packets >= self.recovery.limit();
        self.ask = false;
        self.unasked = if asks { 0 } else { self.unasked + packets };
        asks
    }

    /// A work request that sends nothing: it is carried out in its turn, an invalidate when all before it have ended;
    /// and it completes after those.
    fn step_local(&mut self, ends: &Ends<'_>, wr: &SendWr<'_>, events: &mut Events) -> Step {
        let at = self.window.cursor().at;
        if at != self.window.begun() {
            self.window.passed_local();
            return Step::Sent;
        }
        let waits = at != self.window.base();
        let reads = self.window.reads();
        let fenced = wr.flags.contains(SendFlags::FENCE) && reads != 0 && ends.path.fences;
        if waits && (fenced || matches!(wr.op, SendOp::LocalInv(_))) {
            return Step::Held;
        }
        let (local, settle) = execute(&wr.op, ends.mrs, ends.who(), ends.core);
        events.settle[0] = events.settle[0].or(settle);
        match local {
            Local::Fault(status, reason) => self.refuse(ends, status, reason, events),
            // Another thread is looking, which has posted an early invalidate for instance.
            Local::Later(index) => {
                events.later = Some(index);
                Step::Held
            }
            Local::Done(_) => {
                let flight = self.window.begin(Flight::of(wr, ends.path));
                debug_assert_eq!(flight.packets, 0, "it sends nothing");
                self.window.passed_local();
                if !waits && !self.complete(ends, events) {
                    return Step::Held;
                }
                // What was released has to be settled before anything else is.
                if settle.is_some() {
                    events.again = true;
                    return Step::Held;
                }
                Step::Sent
            }
        }
    }

    /// Sends the one packet of a READ or an atomic. For a READ of which a part has arrived, it requests the missing
    /// part.
    fn send_request(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        wr: &SendWr<'_>,
        flight: &Flight,
        source: &Source<'_, '_>,
        events: &mut Events,
    ) -> Step {
        let shift = ends.path.mtu.shift();
        let offset = self.window.cursor().packet << shift;
        let end = flight.asked_to.map_or(flight.len, |packet| packet << shift);
        let (psn, again) = self.window.psn(flight);
        self.retry.rtt.sent(psn, true, again, ends.now);
        let head = head(ends.path, psn, BthFlags::ACK_REQ, |ext| {
            let operation = request(wr, Place::Only, flight.len, ext);
            if let (Kind::Read, Some(reth)) = (flight.kind, &mut ext.reth) {
                reth.addr = reth.addr.wrapping_add(u64::from(offset));
                reth.dma_len = end - offset;
            }
            operation
        });
        let len = match head.opcode().operation() {
            Operation::AtomicWrite => 8,
            _ => 0,
        };
        let fill: Fill<'_> = &mut |out| source.read(0, out);
        if let Err(unmapped) = outlet.put(&head, len, again, fill) {
            let Refused(why) = unmapped.into();
            return self.refuse(ends, WcStatus::LocProtErr, why, events);
        }
        self.window.passed_request(flight);
        // The answer confirms everything before.
        self.unasked = 0;
        self.retry.sent(ends.now, ends.path);
        Step::Sent
    }

    /// Completes the oldest work request in error. The queue pair goes to ERR.
    fn fail(&mut self, ends: &Ends<'_>, status: WcStatus, vendor_err: u32, events: &mut Events) {
        match status {
            WcStatus::RemInvReqErr
            | WcStatus::RemAccessErr
            | WcStatus::RemOpErr
            | WcStatus::RemInvRdReqErr => ends.counters.remote_errors.up(),
            _ => ends.counters.local_errors.up(),
        }
        self.failed = true;
        let at = self.window.base();
        if completion::send_failure(ends, at, status, vendor_err, events) {
            events.failed = Some(at);
            events.fail = true;
        }
    }
}

/// Whether there is a work request at that position which may begin.
fn may_begin(ends: &Ends<'_>, at: u32) -> bool {
    ends.may_begin && ends.sends.is_filled(at)
}

/// Whether the position holds a work request that sends nothing, and so cannot ask for an answer.
fn sends_nothing(ends: &Ends<'_>, at: u32) -> bool {
    ends.sends.is_filled(at) && ends.sends.is_local(at)
}
