//! Send queues: the poster's side.
//!
//! The poster carries a message out itself when it may ([`crate::direct::path`]): the short ways for the
//! simplest messages are in [`short`]. Whatever they do not like goes through
//! [`SendPoster::post_any`], and what cannot be completed there goes into the ring and to the
//! machine ([`crate::qp::worker`]), which finds out why and says so.

use std::fmt;

use verbs_core::mem::{MrTable, Seen, pin};
use verbs_core::queue::post_shortest;
use verbs_core::sync::Arc;
use verbs_core::yard::Common;
use verbs_core::{
    BatchError, Dest, How, Payload, Piece, PostCode, PostError, QpType, Qpn, RawSendQueue, Remote,
    SendFlags, SendOp, SendWr,
};

use crate::direct::message::{Done, Message, Outcome};
use crate::direct::path::DirectPath;
use crate::qp::QueuePair;
use crate::queue::base::limits::{MAX_MESSAGE, MAX_SGE};
use crate::queue::cq::CqBuffer;
use crate::queue::recv::berth::Known;
use crate::queue::send::SendRing;

mod batch;
mod ends;
mod memory;
mod ride;
mod short;

use ends::{FromMemory, Inline, IntoMemory, IntoReceive};

/// The poster of one queue pair.
// In this order the first line is all that the short ways need.
#[repr(C, align(128))]
pub(crate) struct SendPoster {
    open: Option<Open>,
    /// What sends complete to, when it was looked at last.
    buffer: Arc<CqBuffer>,
    mrs: Arc<MrTable>,
    /// Number of the next work request.
    posted: u32,
    /// Number of the first one before which the slow way has to look again: none goes the short way if
    /// it is the next.
    limit: u32,
    pd: u32,
    qpn: Qpn,
    /// Flags that every work request has: SIGNALED, if so created.
    always: SendFlags,
    max_inline: u32,
    qp: Arc<QueuePair>,
    /// Work requests before this number are retired: one of them or after them was polled.
    retired: u32,
    /// Of [`QueuePair::resets`], as it was when `retired` was counted.
    resets: u32,
    /// Receives of the peer's that messages may ride to.
    berths: Known,
    /// How often the peer's riders had been called back when that was looked at last.
    recalls: u32,
    /// How often to look for credits yet before messages may ride again.
    shy: u32,
}

/// What the short ways need.
struct Open {
    land: Common<DirectPath>,
    view: Seen,
    sends: Common<SendRing>,
}

impl SendPoster {
    /// The one poster of a new queue pair.
    pub(crate) fn new(qp: Arc<QueuePair>) -> Self {
        let always = if qp.sq_sig_all {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let (buffer, mrs) = (qp.send_cq.buffer(), Arc::clone(&qp.port.mrs));
        let (pd, qpn, max_inline) = (qp.pd, qp.qpn, qp.cap.max_inline_data);
        Self {
            posted: 0,
            limit: 0,
            open: None,
            qp,
            buffer,
            mrs,
            pd,
            qpn,
            max_inline,
            always,
            retired: 0,
            resets: 0,
            berths: Known::default(),
            recalls: 0,
            shy: 0,
        }
    }

    /// Finds out again how much may go the short way; why none may is the long way's to say.
    #[cold]
    #[inline(never)]
    fn look_for_credits(&mut self) {
        let _ = self.refill();
    }

    #[cold]
    fn see_to(&self, done: Done) {
        if let Some(open) = &self.open {
            self.qp.see_to(&open.land, done);
        }
    }

    /// Posts any work request, with all its checks.
    #[inline(never)]
    fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.check_sizes(wr)?;
        self.invalidate_early(wr);
        let mut wr = *wr;
        wr.flags |= self.always;
        if self.posted == self.limit || !self.attempt(&wr) {
            // Perhaps there is a new door, and perhaps nothing may be posted any more.
            let sends = self.refill()?;
            if self.posted == self.limit || !self.attempt(&wr) {
                self.append(&sends, &wr)?;
            }
        }
        Ok(())
    }

    /// Finds out whether anything can be posted, and how much may go the short way.
    #[cold]
    fn refill(&mut self) -> Result<Common<SendRing>, PostError> {
        let state = self.qp.check_post_send()?;
        let Some(sends) = self.qp.send_ring().cloned() else {
            return Err(PostError::State(state));
        };
        self.find_room(&sends)?;
        if self.buffer.is_dead() {
            self.buffer = self.qp.send_cq.buffer();
        }
        let direct = sends.is_drained() && self.look_for_door(&sends);
        let depth = self.qp.cap.max_send_wr;
        self.limit = if direct {
            self.retired.wrapping_add(depth)
        } else {
            self.posted
        };
        Ok(sends)
    }

    /// What can be said from the work request and the sizes of the queue.
    fn check_sizes(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let cap = &self.qp.cap;
        let got = match wr.payload {
            Payload::One(_) => 1,
            Payload::List(sges) => sges.len(),
            Payload::Inline(_) => 0,
        };
        let max = cap.max_send_sge.min(MAX_SGE as u32);
        if got > max as usize {
            return Err(PostError::TooManySges {
                got: u32::try_from(got).unwrap_or(u32::MAX),
                max,
            });
        }
        let inline = matches!(wr.payload, Payload::Inline(_));
        if inline && wr.payload.len() > u64::from(cap.max_inline_data) {
            let got = u32::try_from(wr.payload.len()).unwrap_or(u32::MAX);
            return Err(PostError::InlineTooLong {
                got,
                max: cap.max_inline_data,
            });
        }
        if wr.payload.len() > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong { max: MAX_MESSAGE });
        }
        self.check_service(wr)?;
        match wr.op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::Write(_) | SendOp::WriteWithImm(..) => {
                // A flag without the bytes, or bytes without the flag, is a mistake of the caller's.
                if inline == wr.flags.contains(SendFlags::INLINE) {
                    Ok(())
                } else {
                    Err(PostError::Unsupported)
                }
            }
            SendOp::Read(_) if !inline => Ok(()),
            SendOp::Read(_) => Err(PostError::Unsupported),
            _ => self.check_memory_op(wr, inline),
        }
    }

    /// What the type of the queue pair asks of a work request.
    fn check_service(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match (self.qp.qp_type, wr.dest) {
            (QpType::Rc | QpType::Uc | QpType::XrcSend, Dest::Peer) if wr.op.is_local() => Ok(()),
            (QpType::Ud | QpType::Gsi | QpType::Smi, Dest::Datagram(to)) => {
                let max = self.qp.port.mtu().bytes();
                if !matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)) {
                    Err(PostError::Unsupported)
                } else if wr.payload.len() > u64::from(max) {
                    Err(PostError::TooLong { max })
                } else if self.qp.port.is_roce() && to.av.global.is_none() {
                    // RoCE has no LIDs: the GID is the address (IBTA annex A17.3).
                    Err(PostError::Unreachable)
                } else {
                    Ok(())
                }
            }
            (QpType::Ud | QpType::Gsi | QpType::Smi, _) => Err(PostError::NoDestination),
            (QpType::XrcSend, Dest::Srq(_)) => Ok(()),
            (QpType::XrcSend, _) => Err(PostError::NoSrq),
            (QpType::XrcRecv, _) => Err(PostError::Unsupported),
            (QpType::Uc, Dest::Peer) => match wr.op {
                SendOp::Send
                | SendOp::SendWithImm(_)
                | SendOp::Write(_)
                | SendOp::WriteWithImm(..) => Ok(()),
                _ => Err(PostError::Unsupported),
            },
            (_, Dest::Peer) => Ok(()),
            _ => Err(PostError::Destination),
        }
    }

    /// Makes sure that the queue has room for one more.
    fn find_room(&mut self, sends: &SendRing) -> Result<(), PostError> {
        let depth = self.qp.cap.max_send_wr;
        let resets = self.qp.resets();
        if self.resets != resets {
            // What was posted before the reset makes no completion any more.
            (self.resets, self.retired) = (resets, self.posted);
        }
        if self.posted.wrapping_sub(self.retired) < depth {
            return Ok(());
        }
        let head = self.qp.send_cq.head();
        let polled = |index: &u32| {
            sends
                .marked(*index)
                .is_some_and(|at| at.wrapping_sub(head).cast_signed() < 0)
        };
        let waiting = self.posted.wrapping_sub(self.retired);
        // Completions come in order, so the newest that was polled retires all before it.
        let newest = (1..=waiting)
            .map(|back| self.posted.wrapping_sub(back))
            .find(polled);
        let Some(newest) = newest else {
            return Err(PostError::Full { depth });
        };
        self.retired = newest.wrapping_add(1);
        Ok(())
    }

    /// Whether the poster may land messages now; the ring is drained.
    fn look_for_door(&mut self, sends: &Common<SendRing>) -> bool {
        if !self.open.as_ref().is_some_and(|open| open.land.is_alive()) {
            let land = self.qp.direct_path();
            self.berths = Known::default();
            self.recalls = land.as_ref().map_or(0, |land| land.ring.recalls());
            self.open = land.map(|land| Open {
                view: land.view(),
                land,
                sends: sends.clone(),
            });
        }
        self.choose_way();
        self.open.is_some()
    }

    /// Tries to carry the message out here. `false`: something is in the way, nothing was done.
    fn attempt(&mut self, wr: &SendWr<'_>) -> bool {
        if wr.op.is_local() {
            return self.attempt_local(wr);
        }
        let Some(open) = &mut self.open else {
            return false;
        };
        open.view = open.land.view();
        let pin = pin();
        if !open.land.admits_poster(&pin) {
            drop(pin);
            self.open = None;
            return false;
        }
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let land = &*open.land;
        let message = Message {
            requester: self.qp.requester(),
            sends: &open.sends,
            land,
            pin: &pin,
            wr,
            index: self.posted,
            signaled,
        };
        let outcome = message.carry_out();
        let Outcome::Done(done) = outcome else {
            return false;
        };
        // Counted before anything foreign runs, which may panic.
        self.posted = self.posted.wrapping_add(1);
        drop(pin);
        if !done.is_quiet() {
            self.see_to(done);
        }
        true
    }

    /// Puts it into the ring and has the machine look. The door is closed until that is done.
    fn append(&mut self, sends: &SendRing, wr: &SendWr<'_>) -> Result<(), PostError> {
        let pin = pin();
        self.qp.enter_to_post_send(&pin)?;
        sends.append(self.posted, wr);
        // Counted before anything foreign runs, which may panic.
        self.posted = self.posted.wrapping_add(1);
        self.limit = self.posted;
        drop(pin);
        self.qp.turn();
        Ok(())
    }
}

fn check_atomic(wr: &SendWr<'_>, remote: Remote) -> Result<(), PostError> {
    if wr.payload.len() != 8 {
        return Err(PostError::AtomicSize {
            got: u32::try_from(wr.payload.len()).unwrap_or(u32::MAX),
        });
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PostError::AtomicAlignment);
    }
    Ok(())
}

impl RawSendQueue for SendPoster {
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_any(wr)
    }

    fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        if self.qp.port.features.early_invalidates {
            // One doorbell: hardware sees all of them at once.
            wrs.iter().for_each(|wr| self.invalidate_early(wr));
        }
        let mut posted = 0;
        while posted < wrs.len() {
            posted += self.burst(&wrs[posted..]);
            // What stands first now is for the other ways.
            if let Some(wr) = wrs.get(posted) {
                post_shortest(self, wr).map_err(|error| BatchError { posted, error })?;
                posted += 1;
            }
        }
        Ok(())
    }

    fn send(&mut self, wr_id: u64, piece: Piece, flags: SendFlags) -> Result<(), PostCode> {
        self.short(wr_id, piece, IntoReceive, flags)
    }

    fn send_inline(&mut self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), PostCode> {
        if bytes.len() > self.max_inline as usize {
            return self.post_parts(wr_id, SendOp::Send, flags, Payload::Inline(bytes));
        }
        self.short(wr_id, Inline(bytes), IntoReceive, flags)
    }

    fn write(&mut self, wr_id: u64, piece: Piece, to: u64, how: How) -> Result<(), PostCode> {
        self.short(wr_id, piece, IntoMemory(to, how.key()), how.flags())
    }

    fn write_inline(
        &mut self,
        wr_id: u64,
        bytes: &[u8],
        to: u64,
        how: How,
    ) -> Result<(), PostCode> {
        if bytes.len() > self.max_inline as usize {
            let (op, payload) = (SendOp::Write(how.remote(to)), Payload::Inline(bytes));
            return self.post_parts(wr_id, op, how.flags(), payload);
        }
        self.short(wr_id, Inline(bytes), IntoMemory(to, how.key()), how.flags())
    }

    fn read(&mut self, wr_id: u64, piece: Piece, from: u64, how: How) -> Result<(), PostCode> {
        self.short(wr_id, piece, FromMemory(from, how.key()), how.flags())
    }
}

impl fmt::Debug for SendPoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendPoster")
            .field("qpn", &self.qp.qpn)
            .field("posted", &self.posted)
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}
