//! The machine of a reliable connection: requester and responder of one queue pair, packet by packet
//! (IBTA vol. 1, 9.7).
//!
//! * Events: [`Rc::receive`] takes a packet, [`Rc::expire`] the time. They complete work requests and
//!   remember what is to be sent, but send nothing.
//! * Output: [`Rc::transmit`] puts packets out: requests, then the answers to the peer, in the order of its requests.
//!   Call it after events, after posts and when the outlet has room again.
//! * [`Rc::deadline`] is the latest time to call [`Rc::expire`]; a call that is early does nothing.
//!
//! After an error one last [`Rc::transmit`] sends the NAK that informs the peer, so it has to be called before the
//! queue pair goes to ERR; [`Rc::is_answering`] says whether the outlet had no room for it. Everything else has stopped
//! by then.
//!
//! The modules: [`requester`] cuts work requests into packets and turns the answers into completions; [`responder`]
//! executes requests, with receives in [`receives`] and memory in [`rdma`]; [`resources`] remembers what may have to be
//! answered again, and [`answers`] answers, perhaps with the client's [`replies`]. Both halves keep what arrives [`early`], and make
//! headers in [`head`]. [`standing`] lets another machine go on where this one stands.
//!
//! Memory is allocated with the machine: 32 bytes for each work request of the send queue, 9 KiB for [`resources`].
//! Only packets that arrive early take more, as long as they wait.

mod answers;
mod early;
mod head;
mod rdma;
mod receives;
mod replies;
mod requester;
mod resources;
mod responder;
mod standing;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

use std::time::Duration;

use verbs_core::{Error, QpCap, Srqn};

use crate::clock::Instant;
use crate::transport::congestion::{Dcqcn, Paced, Reaction};
use crate::transport::pieces::Body;
use crate::transport::{Ends, Events, Outlet, Path};
use crate::wire::{Head, Role};
use requester::Requester;

pub(super) use receives::{Room, pieces, take_shared};
pub(crate) use replies::PROMPT;
pub(super) use requester::{Flight, head_of, tells};
pub(super) use responder::Responder;
pub(crate) use standing::Elsewhere;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Rc {
    requester: Requester,
    responder: Responder,
    contacted: bool,
    /// The peer has reported that packets to it meet congestion.
    reaction: Option<Reaction>,
    /// A packet waits until the rate permits it.
    paced: bool,
    /// The queue pair is about to go to ERR: only answers to the peer are still sent.
    stopped: bool,
}

impl Rc {
    /// The machine of a queue pair of those sizes, as in RESET.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(cap: &QpCap) -> Result<Self, Error> {
        Ok(Self {
            requester: Requester::new(cap)?,
            responder: Responder::new()?,
            contacted: false,
            reaction: None,
            paced: false,
            stopped: false,
        })
    }

    /// Forgets the connection: the queue pair goes to RESET. The first request that arrives and the first that is sent
    /// take their numbers from the path again.
    pub(crate) fn reset(&mut self) {
        self.requester.reset();
        self.responder.reset();
        self.contacted = false;
        (self.reaction, self.paced) = (None, false);
        self.stopped = false;
    }

    /// Takes a packet whose ICRC, addresses, partition and destination are in order, and whose queue pair takes
    /// packets; `payload` is without pad. `events` concern this queue pair alone, here and below.
    pub(crate) fn receive(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: impl Body,
        events: &mut Events,
    ) {
        if self.stopped {
            return;
        }
        match head.opcode().facts().role {
            Role::Request => self.responder.receive(ends, head, payload, events),
            Role::Response => self.requester.receive(ends, head, payload, events),
            Role::Notice => return,
        }
        events.contact |= !std::mem::replace(&mut self.contacted, true);
        self.stopped |= events.fail;
    }

    /// Puts out what there is to send. Returns whether there is more to send when the outlet has room.
    pub(crate) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        events: &mut Events,
    ) -> bool {
        // A reply is sent before the acknowledgement of what it replies to: the peer waits for the reply, and an
        // acknowledgement, short as it is, ends the reply's burst.
        if self.reaction.is_none() {
            return self.transmit_at_once(ends, outlet, events);
        }
        let mut reaction = self.reaction.take();
        let mut paced = Paced::new(outlet, &mut reaction, ends.now);
        let more = self.transmit_at_once(ends, &mut paced, events);
        self.paced = paced.held;
        self.reaction = reaction;
        // What the rate holds back waits for the deadline, and not for the link.
        more && !self.paced
    }

    fn transmit_at_once(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        events: &mut Events,
    ) -> bool {
        let mut more = false;
        if !self.stopped {
            let begun = self.requester.window.begun();
            more = self.requester.transmit(ends, outlet, events);
            self.stopped |= events.fail;
            if self.requester.window.begun() != begun {
                self.responder.replies.replied(ends.now);
            }
        }
        more |= self.responder.transmit(ends, outlet, events);
        self.stopped |= events.fail;
        more
    }

    /// The queue pair stops sending, and puts out what the peer is owed for what the client may have seen. Returns
    /// whether there is more of it when the outlet has room.
    pub(crate) fn transmit_last(&mut self, path: &Path, outlet: &mut dyn Outlet) -> bool {
        self.responder.transmit_last(path, outlet)
    }

    /// The peer reports that packets to it meet congestion. Returns the rate at which they may be sent from now on, in
    /// bytes per second, if it has changed.
    pub(crate) fn congested(&mut self, config: &Dcqcn, now: Instant) -> Option<u64> {
        let cut = Reaction::notified(&mut self.reaction, config, now);
        self.reaction.as_ref().filter(|_| cut).map(Reaction::rate)
    }

    /// The rate to which notifications limit it, in bytes per second, if any have arrived lately.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.reaction.as_ref().map(Reaction::rate)
    }

    /// The smoothed round trip, if one was measured.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.requester.round_trip()
    }

    /// When time alone changes something.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        let own = earlier(self.requester.deadline(), self.responder.deadline());
        let departure = self.reaction.as_ref().filter(|_| self.paced);
        earlier(own, departure.map(Reaction::next_departure))
    }

    /// Time has passed: what has waited long enough continues, or ends.
    pub(crate) fn expire(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if !self.stopped {
            self.requester.expire(ends, events);
            self.responder.expire(ends.now);
            self.stopped |= events.fail;
        }
    }

    /// The peer no longer exists: what is under way ends as if all retries had been made, and the queue pair goes to
    /// ERR.
    pub(crate) fn peer_gone(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if !self.stopped {
            self.requester.peer_gone(ends, events);
            self.stopped = true;
        }
    }

    /// The connection goes by another path from now on: what was not confirmed is sent again there, with all retries.
    pub(crate) fn moved(&mut self) {
        self.requester.moved();
        // What the old path's switches have said is not true of this one.
        (self.reaction, self.paced) = (None, false);
    }

    /// The receive that was taken from a shared receive queue for a message that will not end: its `wr_id`, to be
    /// completed with WR_FLUSH_ERR before anything else is flushed, and for an extended connection the number of the
    /// shared receive queue. A receive of the queue pair's own stays on its queue until the message ends.
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.responder.abandon()
    }

    /// Whether no message is under way as requester: the send queue has drained.
    pub(crate) fn is_drained(&self) -> bool {
        self.requester.is_idle()
    }

    /// Whether answers wait for the outlet.
    pub(crate) fn is_answering(&mut self) -> bool {
        self.responder.is_answering()
    }
}

/// The earlier of two deadlines. Every packet asks for them, and most of the time there are none.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
