//! The requester's receiving half: answers become completions.
//!
//! An answer to a packet confirms every packet before it, but not READs and atomics, whose own answers
//! are the only ones that count: one that is passed over is missing (an *implied NAK*; IBTA vol. 1,
//! 9.7.5.1.1 and 9.7.5.2).

use verbs_core::{Psn, WcStatus};

use super::requester::Requester;
use super::retry::Verdict;
use super::window::{Flight, Kind};
use crate::queue::send::Scratch;
use crate::transport::completion;
use crate::transport::pieces::{Refused, scatter, sges};
use crate::transport::{Ends, Notes};
use crate::wire::{Aeth, Head, Message, NakCode, Place, Syndrome};

/// What confirming came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmed {
    All,
    /// Up to a READ or an atomic whose own answer is missing.
    UpToMissing,
    /// A completion could not be made.
    Stopped,
}

impl Requester {
    /// Takes an answer. One to what was not sent, or is confirmed already, is dropped.
    pub(super) fn receive(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: &[u8],
        notes: &mut Notes,
    ) {
        let psn = head.bth().psn;
        if self.failed || !self.window.awaits(psn) {
            return;
        }
        let ext = head.ext();
        match (head.opcode().facts().message, ext.aeth, ext.atomic_ack) {
            (Message::Ack, Some(aeth), _) => self.acknowledged(ends, psn, aeth, notes),
            (Message::Read, aeth, _) => self.read_response(ends, head, aeth, payload, notes),
            (Message::Atomic, Some(aeth), Some(value)) => {
                self.atomic_response(ends, psn, aeth, value.original, notes);
            }
            _ => {}
        }
    }

    fn acknowledged(&mut self, ends: &Ends<'_>, psn: Psn, aeth: Aeth, notes: &mut Notes) {
        let before = self.window.distance(psn);
        let confirmed = match aeth.syndrome {
            Syndrome::Ack(_) => self.confirm(ends, before + 1, notes),
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => self.confirm(ends, before, notes),
        };
        match (confirmed, aeth.syndrome) {
            (Confirmed::Stopped, _) | (Confirmed::All, Syndrome::Ack(_)) => {}
            (Confirmed::UpToMissing, _) | (_, Syndrome::Nak(NakCode::PsnSequence)) => {
                self.missing(ends, notes);
            }
            (Confirmed::All, Syndrome::RnrNak(timer)) => {
                match self.retry.not_ready(ends.now, ends.path, timer.to_u8()) {
                    Verdict::Wait => {}
                    Verdict::Again => {
                        ends.counters.rnr_naks.up();
                        self.go_back();
                    }
                    Verdict::GiveUp => {
                        ends.counters.rnr_naks.up();
                        self.fail(ends, WcStatus::RnrRetryExcErr, 0, notes);
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
                self.fail(ends, status, syndrome, notes);
            }
        }
    }

    /// Something did not arrive, here or there: sends again from there, unless that is being done.
    fn missing(&mut self, ends: &Ends<'_>, notes: &mut Notes) {
        match self.retry.missing(ends.path) {
            Verdict::Wait => {}
            Verdict::Again => {
                ends.counters.sequence_naks.up();
                self.go_back();
            }
            Verdict::GiveUp => self.fail(ends, WcStatus::RetryExcErr, 0, notes),
        }
    }

    /// The peer has executed so many packets from the oldest unconfirmed one on.
    fn confirm(&mut self, ends: &Ends<'_>, packets: u32, notes: &mut Notes) -> Confirmed {
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
            if !self.complete(ends, notes) {
                return Confirmed::Stopped;
            }
        }
        if left != packets {
            self.progress(ends);
        }
        confirmed
    }

    fn progress(&mut self, ends: &Ends<'_>) {
        self.widen();
        let outstanding = self.window.is_outstanding();
        self.retry.progress(ends.now, ends.path, outstanding);
    }

    /// Completes the oldest work requests of which the peer has confirmed everything: one, and those behind
    /// it that have sent nothing. `false`: it could not be.
    pub(super) fn complete(&mut self, ends: &Ends<'_>, notes: &mut Notes) -> bool {
        while self.window.is_confirmed() {
            let at = self.window.base();
            if !completion::send_success(ends, at, self.window.flight(at), notes) {
                self.failed = true;
                return false;
            }
            self.window.retire();
        }
        true
    }

    /// What an answer to a READ or an atomic is for: the oldest message, after all before is confirmed.
    /// `None` if something before it is missing, or it answers nothing of that kind.
    fn answered(
        &mut self,
        ends: &Ends<'_>,
        psn: Psn,
        kind: Kind,
        notes: &mut Notes,
    ) -> Option<Flight> {
        let before = self.window.distance(psn);
        match self.confirm(ends, before, notes) {
            Confirmed::Stopped => return None,
            Confirmed::UpToMissing => {
                self.missing(ends, notes);
                return None;
            }
            Confirmed::All => {}
        }
        let flight = *self.window.oldest()?;
        // What was only done is answered like a READ of nothing.
        if flight.kind == kind || (flight.kind, kind) == (Kind::Done, Kind::Read) {
            return Some(flight);
        }
        self.fail(ends, WcStatus::BadRespErr, 0, notes);
        None
    }

    fn read_response(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        aeth: Option<Aeth>,
        payload: &[u8],
        notes: &mut Notes,
    ) {
        let Some(flight) = self.answered(ends, head.bth().psn, Kind::Read, notes) else {
            return;
        };
        let packet = self.window.acked();
        let offset = packet << ends.path.mtu.shift();
        let expected = match flight.kind {
            Kind::Done => 0,
            _ => (flight.len - offset).min(ends.path.mtu.bytes()),
        };
        let fits = fits(&flight, packet, head.opcode().facts().place)
            && payload.len() == expected as usize
            && aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)));
        if !fits {
            return self.fail(ends, WcStatus::BadRespErr, 0, notes);
        }
        self.take_data(ends, offset, payload, notes);
    }

    fn atomic_response(
        &mut self,
        ends: &Ends<'_>,
        psn: Psn,
        aeth: Aeth,
        original: u64,
        notes: &mut Notes,
    ) {
        if self.answered(ends, psn, Kind::Atomic, notes).is_none() {
            return;
        }
        if !matches!(aeth.syndrome, Syndrome::Ack(_)) {
            return self.fail(ends, WcStatus::BadRespErr, 0, notes);
        }
        self.take_data(ends, 0, &original.to_ne_bytes(), notes);
    }

    /// Places what has come for the oldest work request: its next packet.
    fn take_data(&mut self, ends: &Ends<'_>, offset: u32, data: &[u8], notes: &mut Notes) {
        let mut scratch = Scratch::default();
        let wr = ends.sends.read(self.window.base(), &mut scratch);
        match scatter(ends, sges(&wr), ends.pd, offset, data) {
            Err(Refused(why)) => self.fail(ends, WcStatus::LocProtErr, why, notes),
            Ok(()) => {
                self.window.confirm(1);
                if self.complete(ends, notes) {
                    self.progress(ends);
                }
            }
        }
    }
}

/// Whether a response of that kind may carry that packet of a READ. After a READ was asked for again in
/// part, responses begin with First or Only there, but Linux rxe goes on with Middle or Last.
fn fits(flight: &Flight, packet: u32, place: Place) -> bool {
    let begins = place.is_first();
    let may_begin = packet == flight.asked_from;
    let must_begin = packet == 0;
    let ends = packet + 1 == flight.packets;
    place.is_last() == ends && (!begins || may_begin || must_begin) && (begins || !must_begin)
}
