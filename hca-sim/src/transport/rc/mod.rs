//! The machine of a reliable connection: requester and responder of one queue pair, packet by packet
//! (IBTA vol. 1, 9.7).
//!
//! * Events: [`Rc::receive`] takes a packet, [`Rc::expire`] the time. They complete work requests and
//!   remember what is to be sent, but send nothing.
//! * Output: [`Rc::transmit`] puts packets out: requests, then what answers the peer, in the order of its
//!   requests. Call it after events, after posts and when the outlet has room again.
//! * [`Rc::deadline`] is when to call [`Rc::expire`] at the latest; a call that comes early does nothing.
//!
//! After an error one last [`Rc::transmit`] sends the NAK that tells the peer, so it comes before the
//! queue pair goes to ERR; [`Rc::is_answering`] says whether the outlet had no room for it. Everything
//! else has stopped by then.
//!
//! Whom does what: [`requester`] cuts work requests into packets, [`completer`] makes completions of the
//! answers, [`window`] knows what is between the two and [`retry`] when to try again; [`responder`]
//! executes requests, with receives in [`receives`] and memory in [`rdma`]; [`resources`] remembers what may
//! have to be answered again, and [`answers`] answers.
//!
//! All memory is allocated with the machine: 32 bytes for each work request of the send queue, 9 KiB for
//! [`resources`].

mod answers;
mod completer;
mod rdma;
mod receives;
mod requester;
mod resources;
mod responder;
mod retry;
#[cfg(all(test, not(verbs_loom)))]
mod tests;
mod window;

use verbs_core::{Error, Psn, QpCap, Srqn};

use crate::clock::Instant;
use crate::transport::{Ends, Notes, Outlet, Path};
use crate::wire::{Bth, BthFlags, Extended, Head, Opcode, Operation, Role, Service};
use requester::Requester;

pub(super) use requester::{request, tells};
pub(super) use responder::Responder;
pub(super) use window::Flight;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Rc {
    requester: Requester,
    responder: Responder,
    contacted: bool,
    /// The queue pair is to go to ERR: only what answers the peer still leaves.
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
            stopped: false,
        })
    }

    /// Forgets the connection: the queue pair goes to RESET. Numbers are taken from the path anew, by
    /// the first request that comes and the first that goes.
    pub(crate) fn reset(&mut self) {
        self.requester.reset();
        self.responder.reset();
        self.contacted = false;
        self.stopped = false;
    }

    /// Takes a packet whose ICRC, addresses, partition and destination are in order, and whose queue pair
    /// takes packets; `payload` is without pad. `notes` are about this queue pair alone, here and below.
    pub(crate) fn receive(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: &[u8],
        notes: &mut Notes,
    ) {
        if self.stopped {
            return;
        }
        match head.opcode().facts().role {
            Role::Request => self.responder.receive(ends, head, payload, notes),
            Role::Response => self.requester.receive(ends, head, payload, notes),
            Role::Notice => return,
        }
        notes.contact |= !std::mem::replace(&mut self.contacted, true);
        self.stopped |= notes.fail;
    }

    /// Puts out what is to be sent; whether more would be, had the outlet room.
    pub(crate) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        notes: &mut Notes,
    ) -> bool {
        // A reply goes before the acknowledgement of what it replies to: the peer waits for the reply, and
        // short as it is, the acknowledgement ends the reply's burst.
        let mut more = false;
        if !self.stopped {
            more = self.requester.transmit(ends, outlet, notes);
            self.stopped |= notes.fail;
        }
        more |= self.responder.transmit(ends, outlet, notes);
        self.stopped |= notes.fail;
        more
    }

    /// When time alone changes something.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        self.requester.retry.deadline()
    }

    /// It is later than before: what has waited long enough goes on, or ends.
    pub(crate) fn expire(&mut self, ends: &Ends<'_>, notes: &mut Notes) {
        if !self.stopped {
            self.requester.expire(ends, notes);
            self.stopped |= notes.fail;
        }
    }

    /// The receive that was taken from a shared receive queue for a message that will not end: its
    /// `wr_id`, to be completed with WR_FLUSH_ERR before anything else is flushed, and of an extended
    /// connection the number of the shared receive queue. A receive of the queue
    /// pair's own stays on its queue until the message ends.
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.responder.abandon()
    }

    /// Whether no message is under way as requester: the send queue has drained.
    pub(crate) fn is_drained(&self) -> bool {
        self.requester.window.is_idle()
    }

    /// Whether answers wait for the outlet.
    pub(crate) fn is_answering(&mut self) -> bool {
        self.responder.is_answering()
    }
}

/// The headers of a packet to the peer.
pub(super) fn head(
    path: &Path,
    operation: Operation,
    psn: Psn,
    flags: BthFlags,
    ext: Extended,
) -> Head {
    let is_masked = matches!(
        operation,
        Operation::MaskedCompareSwap | Operation::MaskedFetchAdd
    );
    let service = match path.service {
        Service::Rc if is_masked => Service::Own,
        Service::Xrc if is_masked => Service::OwnXrc,
        service => service,
    };
    let bth = Bth {
        opcode: Opcode::new(service, operation)
            .expect("only operations that the service has are sent"),
        flags,
        pkey: path.pkey,
        dest_qpn: path.dest_qpn,
        psn,
    };
    Head::new(bth, ext).expect("every operation is sent with its own headers")
}
