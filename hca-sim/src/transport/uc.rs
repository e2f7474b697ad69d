//! The machine of an unreliable connection: packets are sent, and not answered (IBTA vol. 1, 9.8.2).
//!
//! A work request completes when its last packet has been sent. What is lost is lost: the responder drops the message
//! that a missing packet belongs to, and every message for which there is no receive.

use verbs_core::{Access, Error, Psn, SendFlags, SendWr, Srqn, WcStatus};

use crate::direct::local::{Local, execute};
use crate::queue::send::Scratch;
use crate::transport::completion;
use crate::transport::pieces::{Body, Pieces, Refused, Source};
use crate::transport::rc::{Flight, Responder, head_of, tells};
use crate::transport::{Ends, Events, Outlet, long_packets, longest};
use crate::wire::{BthFlags, Head, Place, Role};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Uc {
    /// The number of the next packet; `None` before the first, which takes it from the path.
    next: Option<Psn>,
    /// Packets of the oldest work request that have been sent.
    packet: u32,
    /// A work request ended in error: nothing is sent until the queue pair is resumed.
    failed: bool,
    responder: Responder,
    contacted: bool,
}

impl Uc {
    /// A machine as in RESET.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            next: None,
            packet: 0,
            failed: false,
            responder: Responder::new()?,
            contacted: false,
        })
    }

    pub(crate) fn reset(&mut self) {
        (self.next, self.packet, self.failed) = (None, 0, false);
        self.contacted = false;
        self.responder.reset();
    }

    /// The queue pair is in RTS again after SQE.
    pub(crate) fn resume(&mut self) {
        (self.failed, self.packet) = (false, 0);
    }

    /// As [`Rc::abandon`](super::rc::Rc::abandon).
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.responder.abandon()
    }

    /// Whether no message is half sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.packet == 0
    }

    pub(crate) fn receive(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) {
        if head.opcode().facts().role != Role::Request {
            return;
        }
        self.responder
            .receive_unreliable(ends, head, payload, events);
        events.contact |= !std::mem::replace(&mut self.contacted, true);
    }

    /// Puts out what there is to send. Returns whether there is more to send when the outlet has room.
    pub(crate) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        events: &mut Events,
    ) -> bool {
        while let Some(at) = ends.sends.next() {
            let begins = self.packet == 0;
            if self.failed || begins && !ends.may_begin {
                return false;
            }
            if !self.send(ends, at, outlet, events) {
                return !self.failed;
            }
        }
        false
    }

    /// Sends the work request at that position. `false`: not to its end.
    fn send(
        &mut self,
        ends: &Ends<'_>,
        at: u32,
        outlet: &mut dyn Outlet,
        events: &mut Events,
    ) -> bool {
        let mut scratch = Scratch::default();
        let wr = ends.sends.read(at, &mut scratch);
        let flight = Flight::of(&wr, ends.path);
        if wr.op.is_local() {
            return self.carry_out(ends, at, &wr, &flight, events);
        }
        let mut pieces = Pieces::new();
        let source = match Source::check(ends, &wr, Access::empty(), &mut pieces) {
            Ok(source) => source,
            Err(Refused(why)) => {
                self.failed = true;
                completion::fail_sends(ends, at, WcStatus::LocProtErr, why, events);
                return false;
            }
        };
        let mut psn = self.next.unwrap_or(Psn::new(ends.path.sq_psn));
        let longest = longest(ends, flight.len, outlet);
        while self.packet < flight.packets {
            if !outlet.is_ready() {
                self.next = Some(psn);
                return false;
            }
            let offset = self.packet << ends.path.mtu.shift();
            let left = flight.packets - self.packet;
            let rest = flight.len - offset;
            let long = longest.and_then(|longest| long_packets(longest, ends.path.mtu, rest, left));
            let packets = long.unwrap_or(1);
            let is_last = packets == left;
            let place = Place::of(self.packet == 0, is_last);
            let mut flags = BthFlags::empty();
            if is_last && wr.flags.contains(SendFlags::SOLICITED) && tells(&wr.op) {
                flags |= BthFlags::SOLICITED;
            }
            let len = (flight.len - offset).min(packets << ends.path.mtu.shift()) as usize;
            let head = head_of(&wr, (place, flight.len), ends.path, psn, flags);
            let put = source.put(outlet, (&head, false), (offset, len), long.is_some());
            match put {
                Ok(true) => {}
                Ok(false) => {
                    self.next = Some(psn);
                    return false;
                }
                Err(unmapped) => {
                    let Refused(why) = unmapped.into();
                    self.failed = true;
                    completion::fail_sends(ends, at, WcStatus::LocProtErr, why, events);
                    return false;
                }
            }
            psn = psn.add(packets);
            self.packet += packets;
        }
        self.next = Some(psn);
        ends.sends.set_psn(psn.value());
        self.packet = 0;
        completion::send_success(ends, at, &flight, events)
    }

    /// A work request that sends nothing. `false`: not to its end, or something has to be released before the next one.
    fn carry_out(
        &mut self,
        ends: &Ends<'_>,
        at: u32,
        wr: &SendWr<'_>,
        flight: &Flight,
        events: &mut Events,
    ) -> bool {
        let (local, settle) = execute(&wr.op, ends.mrs, ends.who(), ends.core);
        events.settle[0] = events.settle[0].or(settle);
        match local {
            Local::Later(_) => false,
            Local::Fault(status, reason) => {
                self.failed = true;
                completion::fail_sends(ends, at, status, reason, events);
                false
            }
            Local::Done(_) => {
                completion::send_success(ends, at, flight, events) && settle.is_none()
            }
        }
    }
}
