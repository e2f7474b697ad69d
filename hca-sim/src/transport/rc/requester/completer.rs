//! The requester's receiving half: answers become completions.
//!
//! An answer to a packet confirms every packet before it, except READs and atomics, whose own answers are the only ones
//! that count: one that is passed over is missing (an *implied NAK*; IBTA vol. 1, 9.7.5.1.1 and 9.7.5.2).

use std::ops::Range;

use verbs_core::{Psn, WcCause, WcStatus};

use super::Requester;
use super::retry::Verdict;
use super::window::{Flight, Kind, Outcome};
use crate::queue::send::Scratch;
use crate::transport::completion;
use crate::transport::pieces::{Body, Refused, scatter, sges};
use crate::transport::{Ends, Events, Told};
use crate::wire::{Aeth, Head, Message, NakCode, Place, Syndrome};

/// How far a confirmation went.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmed {
    All,
    /// Up to a READ or an atomic whose own answer is missing.
    UpToMissing,
    /// A completion could not be made.
    Stopped,
}

impl Requester {
    /// See [`Rc::peer_gone`](super::Rc::peer_gone).
    pub(in crate::transport::rc) fn peer_gone(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if !self.failed && !self.window.is_idle() {
            self.fail(ends, WcStatus::RetryExcErr, 0, events);
        }
        // Work requests that were not begun are flushed.
        events.fail = true;
    }

    /// Takes an answer. An answer to a packet that was not sent, or is confirmed already, is dropped.
    pub(in crate::transport::rc) fn receive(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) {
        let psn = head.bth().psn;
        if self.failed {
            return;
        }
        if !self.window.awaits(psn) {
            self.retry.answered_again(psn);
            return self.early.came_again(psn);
        }
        if self.answer(ends, head, payload, events) {
            self.go_on(ends, events);
        } else if !self.failed {
            self.came_early(ends, head, payload, events);
        }
    }

    /// Takes an answer that is awaited. `false`: an earlier one is missing, so it was not taken.
    fn answer(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) -> bool {
        let psn = head.bth().psn;
        let ext = head.ext();
        match (head.opcode().facts().message, ext.aeth, ext.atomic_ack) {
            (Message::Ack, Some(aeth), _) => self.acknowledged(ends, psn, aeth, events),
            (Message::Read, aeth, _) => self.read_response(ends, head, aeth, payload, events),
            (Message::Atomic, Some(aeth), Some(value)) => {
                self.atomic_response(ends, psn, aeth, value.original, events)
            }
            _ => true,
        }
    }

    /// An answer arrived before one that it follows: that one is late, or lost.
    fn came_early(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) {
        let kept = self.early.keep(head, payload, ends.now);
        if kept {
            ends.counters.kept_early.up();
        }
        if self.early.is_missing(self.window.una(), kept, ends.now) {
            self.missing_answer(ends, events);
        }
    }

    /// Takes the answers that waited for the one that has arrived.
    fn go_on(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if !self.early.has_gap() {
            return;
        }
        while let Some(kept) = self.early.take_from(self.window.una()) {
            if self.failed {
                return;
            }
            let awaited = self.window.awaits(kept.head.bth().psn);
            if awaited && !self.answer(ends, &kept.head, &kept.payload[..], events) {
                self.early.put_back(kept);
                break;
            }
        }
        let spilled = self.early.has_spilled();
        let misses = if self.early.passed(self.window.una(), false, ends.now) {
            self.early.is_due(ends.now)
        } else {
            // Answers that there was no room for have arrived already, and will not arrive again without a request.
            spilled && !self.early.has_gap() && self.window.is_outstanding()
        };
        if misses && !self.failed {
            self.missing_answer(ends, events);
        }
    }

    /// Answers to requests that were executed have been lost, and what follows them is kept: requests them again.
    pub(super) fn missing_answer(&mut self, ends: &Ends<'_>, events: &mut Events) {
        let end = |flight: &Flight| flight.first.add(flight.packets);
        self.early.asked(self.window.oldest().map(end));
        if self.is_to_repeat(ends, events) {
            self.send_again(Some(1));
            self.window.ask_for(self.early.distance(self.window.una()));
        }
    }

    fn acknowledged(&mut self, ends: &Ends<'_>, psn: Psn, aeth: Aeth, events: &mut Events) -> bool {
        let before = self.window.distance(psn);
        let confirmed = match aeth.syndrome {
            Syndrome::Ack(_) => self.confirm(ends, before + 1, events),
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => self.confirm(ends, before, events),
        };
        match (confirmed, aeth.syndrome) {
            (Confirmed::Stopped, _) | (Confirmed::All, Syndrome::Ack(_)) => {}
            (Confirmed::UpToMissing, _) => return false,
            (_, Syndrome::Nak(NakCode::PsnSequence)) => self.missing(ends, events),
            (Confirmed::All, Syndrome::RnrNak(timer)) => {
                match self.retry.not_ready(ends.now, ends.path, timer.to_u8()) {
                    Verdict::Wait => {}
                    Verdict::Again => {
                        ends.counters.rnr_naks.up();
                        events.told |= Told::RNR_NAK;
                        self.go_back();
                    }
                    Verdict::GiveUp => {
                        ends.counters.rnr_naks.up();
                        events.told |= Told::RNR_NAK;
                        self.fail(ends, WcStatus::RnrRetryExcErr, 0, events);
                    }
                }
            }
            (Confirmed::All, Syndrome::Nak(code)) => {
                let status = match code {
                    NakCode::InvalidRequest => WcStatus::RemInvReqErr,
                    NakCode::RemoteAccess => WcStatus::RemAccessErr,
                    NakCode::InvalidRdRequest => WcStatus::RemInvRdReqErr,
                    _ => WcStatus::RemOpErr,
                };
                let syndrome = u32::from(aeth.syndrome.to_u8());
                self.fail(ends, status, syndrome, events);
            }
        }
        true
    }

    /// A request did not arrive: sends it again.
    fn missing(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if self.is_to_repeat(ends, events) {
            self.send_again(self.recovery.patch());
        }
    }

    /// Something is lost, here or at the peer. Returns whether it has to be sent again; that may be in progress
    /// already, or have been tried too often.
    fn is_to_repeat(&mut self, ends: &Ends<'_>, events: &mut Events) -> bool {
        match self.retry.missing(ends.path) {
            Verdict::Wait => return false,
            Verdict::Again => {}
            Verdict::GiveUp => {
                self.exhausted(ends, events);
                return false;
            }
        }
        ends.counters.sequence_naks.up();
        events.told |= Told::SEQUENCE;
        self.recovery.lost(self.window.end());
        self.retry.repeats();
        true
    }

    /// The peer has executed that many packets from the oldest unconfirmed one on.
    fn confirm(&mut self, ends: &Ends<'_>, packets: u32, events: &mut Events) -> Confirmed {
        let mut left = packets;
        let mut confirmed = Confirmed::All;
        while left != 0
            && let Some(flight) = self.window.oldest()
        {
            if !matches!(flight.kind, Kind::Plain | Kind::Local) {
                confirmed = Confirmed::UpToMissing;
                break;
            }
            let here = left.min(flight.packets - self.window.acked());
            left -= here;
            self.window.confirm(here);
            if !self.complete(ends, events) {
                return Confirmed::Stopped;
            }
        }
        if left != packets {
            self.progress(ends, packets - left);
        }
        confirmed
    }

    fn progress(&mut self, ends: &Ends<'_>, packets: u32) {
        let (una, outstanding) = (self.window.una(), self.window.is_outstanding());
        self.recovery.confirmed(packets, una);
        self.retry.progress(ends.now, ends.path, una, outstanding);
        match self.window.outcome() {
            Outcome::Open => {}
            Outcome::More => self.recovery.brought_more(),
            Outcome::Itself => {
                self.recovery.brought_itself();
                self.retry.repeats();
                self.send_again(self.recovery.patch());
            }
        }
    }

    /// Completes the oldest work requests of which the peer has confirmed everything: one, and those behind it that
    /// have sent nothing. `false`: that was not possible.
    pub(super) fn complete(&mut self, ends: &Ends<'_>, events: &mut Events) -> bool {
        while self.window.is_confirmed() {
            let at = self.window.base();
            if !completion::send_success(ends, at, self.window.flight(at), events) {
                self.failed = true;
                return false;
            }
            self.window.retire();
        }
        true
    }

    /// The message that an answer to a READ or an atomic is for: the oldest one, after everything before it is
    /// confirmed.
    ///
    /// # Errors
    /// The result of [`Requester::answer`] in that case: `false` if an earlier answer is missing, otherwise
    /// `true`.
    fn answered(
        &mut self,
        ends: &Ends<'_>,
        psn: Psn,
        kind: Kind,
        events: &mut Events,
    ) -> Result<Flight, bool> {
        let before = self.window.distance(psn);
        match self.confirm(ends, before, events) {
            Confirmed::Stopped => return Err(true),
            Confirmed::UpToMissing => return Err(false),
            Confirmed::All => {}
        }
        let flight = *self.window.oldest().ok_or(true)?;
        // An operation without a result is answered like a READ of nothing.
        if flight.kind == kind || (flight.kind, kind) == (Kind::Done, Kind::Read) {
            return Ok(flight);
        }
        self.fail(
            ends,
            WcStatus::BadRespErr,
            WcCause::BadAnswer.code(),
            events,
        );
        Err(true)
    }

    fn read_response(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        aeth: Option<Aeth>,
        payload: impl Body,
        events: &mut Events,
    ) -> bool {
        let flight = match self.answered(ends, head.bth().psn, Kind::Read, events) {
            Ok(flight) => flight,
            Err(taken) => return taken,
        };
        let packet = self.window.acked();
        let packets = payload.packets(ends.path.mtu);
        let offset = packet << ends.path.mtu.shift();
        let expected = match flight.kind {
            Kind::Done => 0,
            _ => (flight.len - offset).min(packets << ends.path.mtu.shift()),
        };
        let fits = fits(
            &flight,
            packet..packet + packets,
            head.opcode().facts().place,
        ) && payload.len() == expected as usize
            && aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)));
        if fits {
            self.take_data(ends, offset, (payload, packets), events);
        } else {
            self.fail(
                ends,
                WcStatus::BadRespErr,
                WcCause::BadAnswer.code(),
                events,
            );
        }
        true
    }

    fn atomic_response(
        &mut self,
        ends: &Ends<'_>,
        psn: Psn,
        aeth: Aeth,
        original: u64,
        events: &mut Events,
    ) -> bool {
        if let Err(taken) = self.answered(ends, psn, Kind::Atomic, events) {
            return taken;
        }
        if matches!(aeth.syndrome, Syndrome::Ack(_)) {
            let bytes = original.to_ne_bytes();
            self.take_data(ends, 0, (&bytes[..], 1), events);
        } else {
            self.fail(
                ends,
                WcStatus::BadRespErr,
                WcCause::BadAnswer.code(),
                events,
            );
        }
        true
    }

    /// Places the data that have arrived for the oldest work request: its next packets.
    fn take_data(
        &mut self,
        ends: &Ends<'_>,
        offset: u32,
        (data, packets): (impl Body, u32),
        events: &mut Events,
    ) {
        let mut scratch = Scratch::default();
        let wr = ends.sends.read(self.window.base(), &mut scratch);
        match scatter(ends, sges(&wr), ends.pd, offset, data) {
            Err(Refused(why)) => self.fail(ends, WcStatus::LocProtErr, why, events),
            Ok(()) => {
                self.window.confirm(packets);
                if self.complete(ends, events) {
                    self.progress(ends, packets);
                }
            }
        }
    }
}

/// Whether a response of that kind may carry those packets of a READ. After part of a READ was requested again, responses
/// begin with First or Only there, but Linux rxe continues with Middle or Last. If the requested part was in the
/// middle, answers to several requests mix.
fn fits(flight: &Flight, packets: Range<u32>, place: Place) -> bool {
    let packet = packets.start;
    let begins = place.is_first();
    let must_begin = packet == 0;
    let may_begin = must_begin || packet == flight.asked_from || flight.is_patched;
    let must_end = packets.end == flight.packets;
    let may_end = must_end || flight.is_patched;
    let ends = place.is_last();
    (!begins || may_begin) && (begins || !must_begin) && (!ends || may_end) && (ends || !must_end)
}
